//! Counters of subnet management requests, by the port that sent them.

use std::collections::BTreeMap;

use fabric_sim::{Fabric, PortId};
use ib_wire::{Attribute, Mad, Method};
use serde_json::{Value, json};

/// Attributes with a counter of their own; all others share one, as clients choose attribute numbers freely.
const NAMED: [Attribute; 13] = [
    Attribute::NODE_DESCRIPTION,
    Attribute::NODE_INFO,
    Attribute::SWITCH_INFO,
    Attribute::GUID_INFO,
    Attribute::PORT_INFO,
    Attribute::PKEY_TABLE,
    Attribute::SL_TO_VL,
    Attribute::VL_ARBITRATION,
    Attribute::LINEAR_FORWARDING,
    Attribute::MULTICAST_FORWARDING,
    Attribute::SM_INFO,
    Attribute::NOTICE,
    Attribute::MLNX_EXT_PORT_INFO,
];

/// A counter for each named attribute and one for all others.
type Counts = [u64; NAMED.len() + 1];

/// Requests that one port sent.
#[derive(Debug, Default)]
struct PortRequests {
    gets: Counts,
    sets: Counts,
}

/// Requests of subnet management by port.
#[derive(Debug, Default)]
pub struct RequestCounts(BTreeMap<PortId, PortRequests>);

impl RequestCounts {
    /// Counts a datagram that a client sends from a port, if it is a Get or Set of subnet management.
    pub fn count(&mut self, from: PortId, mad: &Mad) {
        let (is_get, is_set) = (mad.method() == Method::GET, mad.method() == Method::SET);
        if !mad.class().is_subnet_management() || !(is_get || is_set) {
            return;
        }
        let attribute = mad.attribute();
        let place = NAMED.iter().position(|named| *named == attribute).unwrap_or(NAMED.len());
        let asked = self.0.entry(from).or_default();
        let counts = if is_get { &mut asked.gets } else { &mut asked.sets };
        counts[place] += 1;
    }

    /// The counters above 0, by node, as `heddle sim-ctl status` prints them.
    pub fn view(&self, fabric: &Fabric) -> Value {
        let by_attribute = |counts: &Counts| -> BTreeMap<String, u64> {
            let names = NAMED.iter().map(|it| format!("{it:?}")).chain(["other".to_owned()]);
            names.zip(*counts).filter(|(_, count)| *count > 0).collect()
        };
        let ports = self.0.iter().map(|(port, asked)| {
            let asked = json!({ "get": by_attribute(&asked.gets), "set": by_attribute(&asked.sets) });
            (fabric.id_of(*port).to_owned(), asked)
        });
        Value::Object(ports.collect())
    }
}
