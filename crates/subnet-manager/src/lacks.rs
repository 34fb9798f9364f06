//! Entries that isolate tenants or carry guarantees, and that a device does not hold although they were written.
//!
//! A lack closes the port concerned, or withdraws what was guaranteed on its link. It becomes part of the capabilities of
//! the discovered fabric, so that the next plan does without the port. It is forgotten when the device restarts, when an
//! operator asks for another try, and after a while that doubles with every failure.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use fabric_model::intent::PortName;
use ib_wire::{Attribute, Guid, PkeyBlock, PortInfo, PortNum, SMP_DATA_LEN, Status, SwitchInfo, VlArbBlock};
use serde::{Deserialize, Serialize};

use crate::attribute_key::AttributeRef;
use crate::entry_class::EntryClass;
use crate::transition::lanes;

/// Time before entries that a device did not take are tried again.
const RETRY_FIRST: Duration = Duration::from_secs(60);

/// The longest time before another try. Each one costs two plans and a few writes.
const RETRY_MAX: Duration = Duration::from_secs(3600);

/// An entry that a device did not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// The port concerned; port 0 stands for a whole switch.
    pub port: PortName,
    /// Never [`EntryClass::Other`].
    pub class: EntryClass,
    pub attribute: Attribute,
    pub modifier: u32,
    pub answer: LackAnswer,
    /// The entries that were written, in words and without keys.
    pub written: String,
}

/// How a device shows that it did not take an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LackAnswer {
    /// It answered a Set with this status.
    Refused(Status),
    /// It answered a Set without an error, and holds something else.
    Ineffective,
}

impl fmt::Display for LackAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status) => write!(f, "the device refused it with status {:#06x}", status.0),
            Self::Ineffective => f.write_str("the device accepted it without effect"),
        }
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, attribute, modifier, answer, written, .. } = self;
        write!(f, "port {port} does not take {attribute:?} {modifier:#x} ({written}): {answer}")
    }
}

/// The known lacks of all devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Entry>", into = "Vec<Entry>")]
pub struct Lacks {
    by_entry: BTreeMap<AttributeRef, Lack>,
}

impl Lacks {
    pub fn is_empty(&self) -> bool {
        self.by_entry.is_empty()
    }

    pub fn len(&self) -> usize {
        self.by_entry.len()
    }

    /// In order of nodes, ports and attributes.
    pub fn iter(&self) -> impl Iterator<Item = &Lack> {
        self.by_entry.values()
    }

    /// Whether a port has a lack of a class.
    pub(crate) fn has(&self, port: PortName, class: EntryClass) -> bool {
        let first = (port.node, PortNum::MANAGEMENT, (Attribute(0), 0));
        let of_node = self.by_entry.range(first..).take_while(|((node, ..), _)| *node == port.node);
        of_node.map(|(_, lack)| lack).any(|lack| lack.port == port && lack.class == class)
    }

    /// Records a lack. Returns whether it is new.
    pub(crate) fn learn(&mut self, target: AttributeRef, lack: Lack) -> bool {
        self.by_entry.insert(target, lack).is_none()
    }

    pub(crate) fn contains(&self, target: &AttributeRef) -> bool {
        self.by_entry.contains_key(target)
    }

    pub(crate) fn targets(&self) -> impl Iterator<Item = &AttributeRef> {
        self.by_entry.keys()
    }

    /// The lacks that another record does not have.
    pub(crate) fn without<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a Lack> {
        let is_gone = |(target, _): &(&AttributeRef, &Lack)| !other.by_entry.contains_key(target);
        self.by_entry.iter().filter(is_gone).map(|(_, lack)| lack)
    }

    /// Forgets the lacks of a node. Returns whether there were any.
    pub(crate) fn forget_node(&mut self, node: Guid) -> bool {
        let before = self.by_entry.len();
        self.by_entry.retain(|(owner, ..), _| *owner != node);
        self.by_entry.len() != before
    }

    /// Whether the link between a switch port and an adapter port must carry no data: one of them or the switch lacks what
    /// isolates tenants. The rule of [`Capabilities::enforced_pkeys`].
    ///
    /// [`Capabilities::enforced_pkeys`]: fabric_model::intent::Capabilities::enforced_pkeys
    pub(crate) fn close(&self, switch_port: PortName, adapter_port: PortName) -> bool {
        let switch = PortName { node: switch_port.node, port: PortNum::MANAGEMENT };
        [switch, switch_port, adapter_port].into_iter().any(|port| self.has(port, EntryClass::Isolation))
    }
}

/// When lacks are tried again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LackRetry {
    due: Option<Duration>,
    failures: u32,
}

impl LackRetry {
    /// After a programming run with lacks: schedules the next try, unless one is scheduled.
    pub fn schedule(&mut self, now: Duration) {
        if self.due.is_none() {
            self.due = Some(now + RETRY_FIRST.saturating_mul(1 << self.failures.min(16)).min(RETRY_MAX));
            self.failures += 1;
        }
    }

    /// After a programming run without lacks.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Whether a try is due. If so, the next one is scheduled by the run that follows.
    pub fn take(&mut self, now: Duration) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }

    pub fn poll_timeout(&self) -> Option<Duration> {
        self.due
    }
}

/// The entries of an attribute in words, without keys.
pub(crate) fn describe(attribute: Attribute, data: &[u8; SMP_DATA_LEN]) -> String {
    let list = |items: Vec<String>| items.join(" ");
    match attribute {
        Attribute::PKEY_TABLE => {
            let keys = PkeyBlock::decode(data).0.into_iter().flatten();
            format!("P_Keys {}", list(keys.map(|key| key.to_string()).collect()))
        }
        Attribute::SL_TO_VL => {
            let lanes = lanes::decode(data).0;
            format!("lanes {}", list(lanes.iter().map(|lane| lane.to_wire().to_string()).collect()))
        }
        Attribute::VL_ARBITRATION => {
            let entries = VlArbBlock::decode(data).0.into_iter().filter(|entry| entry.weight > 0);
            let entries = entries.map(|entry| format!("{}:{}", entry.lane.to_wire(), entry.weight));
            format!("weights {}", list(entries.collect()))
        }
        Attribute::PORT_INFO => match PortInfo::decode(data) {
            Ok(info) => format!(
                "enforcement {}/{}, raw filters {}/{}, M_Key {}, {} lanes, HOQLife {}",
                u8::from(info.enforce_inbound),
                u8::from(info.enforce_outbound),
                u8::from(info.filter_raw_inbound),
                u8::from(info.filter_raw_outbound),
                if info.m_key.is_some() { "set" } else { "none" },
                info.operational_vls.count(),
                info.hoq_life,
            ),
            Err(_) => "PortInfo".to_owned(),
        },
        Attribute::SWITCH_INFO => match SwitchInfo::decode(data) {
            Ok(info) => format!("LifeTimeValue {}", info.life_time),
            Err(_) => "SwitchInfo".to_owned(),
        },
        _ => "a table".to_owned(),
    }
}

/// One lack, as stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    node: Guid,
    /// The port through which the attribute is reached.
    reached: PortNum,
    attribute: u16,
    modifier: u32,
    port: PortNum,
    class: EntryClass,
    /// `None` if the entry is ineffective.
    status: Option<u16>,
    written: String,
}

impl From<Vec<Entry>> for Lacks {
    fn from(entries: Vec<Entry>) -> Self {
        let by_entry = entries.into_iter().map(|entry| {
            let attribute = Attribute(entry.attribute);
            let lack = Lack {
                port: PortName { node: entry.node, port: entry.port },
                class: entry.class,
                attribute,
                modifier: entry.modifier,
                answer: entry.status.map_or(LackAnswer::Ineffective, |raw| LackAnswer::Refused(Status(raw))),
                written: entry.written,
            };
            ((entry.node, entry.reached, (attribute, entry.modifier)), lack)
        });
        Self { by_entry: by_entry.collect() }
    }
}

impl From<Lacks> for Vec<Entry> {
    fn from(lacks: Lacks) -> Self {
        let entry = |((node, reached, key), lack): (AttributeRef, Lack)| Entry {
            node,
            reached,
            attribute: key.0.0,
            modifier: key.1,
            port: lack.port.port,
            class: lack.class,
            status: match lack.answer {
                LackAnswer::Refused(status) => Some(status.0),
                LackAnswer::Ineffective => None,
            },
            written: lack.written,
        };
        lacks.by_entry.into_iter().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lack(node: u64, answer: LackAnswer) -> (AttributeRef, Lack) {
        let (node, port) = (Guid::from_wire(node).unwrap(), PortNum::new(3).unwrap());
        let key = (Attribute::PKEY_TABLE, 0x3_0000);
        let lack = Lack {
            port: PortName { node, port },
            class: EntryClass::Isolation,
            attribute: key.0,
            modifier: key.1,
            answer,
            written: "P_Keys 0x8001".to_owned(),
        };
        ((node, PortNum::MANAGEMENT, key), lack)
    }

    #[test]
    fn lacks_are_read_as_they_were_written() {
        let mut lacks = Lacks::default();
        for (target, lack) in [lack(7, LackAnswer::Ineffective), lack(8, LackAnswer::Refused(Status(0x1c)))] {
            assert!(lacks.learn(target, lack.clone()));
            assert!(!lacks.learn(target, lack), "no news");
        }
        let json = serde_json::to_string(&lacks).unwrap();
        assert_eq!(serde_json::from_str::<Lacks>(&json).unwrap(), lacks);
        assert!(lacks.forget_node(Guid::from_wire(7).unwrap()));
        assert_eq!(lacks.len(), 1);
    }

    #[test]
    fn tries_become_rarer_until_one_succeeds() {
        let mut retry = LackRetry::default();
        let mut now = Duration::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            retry.schedule(now);
            retry.schedule(now);
            let due = retry.poll_timeout().unwrap();
            pauses.push((due - now).as_secs());
            now = due;
            assert!(retry.take(now) && !retry.take(now));
        }
        assert_eq!(pauses, [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]);
        retry.reset();
        retry.schedule(now);
        assert_eq!(retry.poll_timeout(), Some(now + RETRY_FIRST));
    }

    #[test]
    fn words_of_a_port_show_no_key() {
        let mut info = PortInfo::decode(&[0; SMP_DATA_LEN]).unwrap();
        info.m_key = ib_wire::MKey::from_wire(0x1234_5678);
        let text = describe(Attribute::PORT_INFO, &info.encode());
        assert!(text.contains("M_Key set") && !text.contains("1234"), "{text}");
    }
}
