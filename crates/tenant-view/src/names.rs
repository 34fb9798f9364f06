//! Aliases: the GUIDs, LIDs and port numbers under which a tenant sees its slice.
//!
//! Every alias is a function of a number, and numbers are given in the order in which a walk along the routes between
//! the virtual machines visits things. So aliases reveal nothing physical, and two clusters of the same structure
//! look the same. A number is kept while the thing it names is absent.

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::NODE_PORTS_MAX;
use ib_wire::{Guid, Lid, PortNum};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::slice::{Slice, Visit};

/// First GUID of adapters, locally administered. Each adapter has 16: the node GUID, then its port GUID.
const NODE_GUIDS: u64 = 0x0248_4500_0000_0000;
/// First GUID of switches, above those of adapters: of two subnet managers with one priority, the lower GUID becomes
/// master, and the default SM is attached to a switch.
const SWITCH_GUIDS: u64 = 0x0248_4510_0000_0000;
/// GUIDs for each node.
const GUIDS_EACH: u64 = 16;
/// Absent nodes, and absent switches, that keep their number. Of more, those with the lowest numbers lose it.
const ABSENT_MAX: usize = 1024;
/// Free ports of a new switch, at least.
const FREE_PORTS: u16 = 2;
/// Switch sizes are multiples of this, so that a few more ports need no larger switch.
const PORT_STEP: u16 = 4;

/// Why a slice cannot be given aliases.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NamesError {
    #[error("switch-{number} of the view needs {ports} ports, but a switch has at most {NODE_PORTS_MAX}")]
    TooManyPorts { number: u32, ports: usize },
    #[error("the view needs more than the {} LIDs of a subnet", Lid::MAX)]
    LidsExhausted,
}

/// The aliases of a view, as persistent data. Store it with the cluster after every [`View::new`](crate::View::new)
/// and [`View::set_slice`](crate::View::set_slice), so that aliases survive a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Names {
    nodes: BTreeMap<String, NodeNames>,
    switches: BTreeMap<Guid, SwitchNames>,
    nodes_given: u32,
    switches_given: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NodeNames {
    number: u32,
    lid: Lid,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SwitchNames {
    number: u32,
    lid: Lid,
    /// Number of external ports.
    size: u8,
    /// Ports in front of virtual machines, by the names of these.
    access: BTreeMap<String, PortNum>,
    /// Ports with cables to other switches, by physical port number.
    links: BTreeMap<PortNum, PortNum>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alias {
    pub guid: Guid,
    pub lid: Lid,
    pub number: u32,
}

impl Names {
    /// Gives aliases to what is new in a slice. Nothing changes on errors.
    pub fn learn(&mut self, slice: &Slice) -> Result<(), NamesError> {
        let mut next = self.clone();
        next.forget(slice);
        let mut lids: BTreeSet<Lid> = next.nodes.values().map(|node| node.lid).collect();
        lids.extend(next.switches.values().map(|switch| switch.lid));
        for visit in &slice.visits {
            next.name(slice, *visit, &mut lids)?;
        }
        for switch in next.switches.values_mut() {
            switch.resize();
        }
        *self = next;
        Ok(())
    }

    fn name(&mut self, slice: &Slice, visit: Visit, lids: &mut BTreeSet<Lid>) -> Result<(), NamesError> {
        match visit {
            Visit::Node(index) => {
                let node = &slice.nodes[index].node;
                if !self.nodes.contains_key(node) {
                    self.nodes_given += 1;
                    let names = NodeNames { number: self.nodes_given, lid: free_lid(lids)? };
                    self.nodes.insert(node.clone(), names);
                }
            }
            Visit::Switch(guid) => {
                if !self.switches.contains_key(&guid) {
                    self.switches_given += 1;
                    let names = SwitchNames::new(self.switches_given, free_lid(lids)?);
                    self.switches.insert(guid, names);
                }
            }
            Visit::Access(guid, index) => {
                let node = &slice.nodes[index].node;
                if let Some(switch) =
                    self.switches.get_mut(&guid).filter(|switch| !switch.access.contains_key(node))
                {
                    let port = switch.free_port(slice, guid)?;
                    switch.access.insert(node.clone(), port);
                }
            }
            Visit::Link(name) => {
                if let Some(switch) =
                    self.switches.get_mut(&name.node).filter(|switch| !switch.links.contains_key(&name.port))
                {
                    let port = switch.free_port(slice, name.node)?;
                    switch.links.insert(name.port, port);
                }
            }
        }
        Ok(())
    }

    /// Forgets the lowest numbers beyond [`ABSENT_MAX`] absent nodes and switches.
    fn forget(&mut self, slice: &Slice) {
        let nodes: BTreeSet<&str> = slice.nodes().collect();
        let absent = self.nodes.iter().filter(|(name, _)| !nodes.contains(name.as_str()));
        let mut absent: Vec<(u32, String)> =
            absent.map(|(name, names)| (names.number, name.clone())).collect();
        absent.sort_unstable();
        for (_, name) in absent.iter().take(absent.len().saturating_sub(ABSENT_MAX)) {
            self.nodes.remove(name);
        }
        let present: BTreeSet<Guid> = slice.switches().collect();
        let absent = self.switches.iter().filter(|(guid, _)| !present.contains(guid));
        let mut absent: Vec<(u32, Guid)> = absent.map(|(guid, names)| (names.number, *guid)).collect();
        absent.sort_unstable();
        for (_, guid) in absent.iter().take(absent.len().saturating_sub(ABSENT_MAX)) {
            self.switches.remove(guid);
        }
    }

    pub(crate) fn node(&self, name: &str) -> Option<Alias> {
        let NodeNames { number, lid } = *self.nodes.get(name)?;
        Some(Alias { guid: guid(NODE_GUIDS, number)?, lid, number })
    }

    /// Alias and number of ports of a switch, by its physical GUID.
    pub(crate) fn switch(&self, physical: Guid) -> Option<(Alias, u8)> {
        let names = self.switches.get(&physical)?;
        let alias = Alias { guid: guid(SWITCH_GUIDS, names.number)?, lid: names.lid, number: names.number };
        Some((alias, names.size))
    }

    /// The port of a switch in front of a virtual machine.
    pub(crate) fn access(&self, physical: Guid, node: &str) -> Option<PortNum> {
        self.switches.get(&physical)?.access.get(node).copied()
    }

    /// The port of a switch with a cable to another, by its physical number.
    pub(crate) fn link(&self, physical: Guid, port: PortNum) -> Option<PortNum> {
        self.switches.get(&physical)?.links.get(&port).copied()
    }
}

impl SwitchNames {
    fn new(number: u32, lid: Lid) -> Self {
        Self { number, lid, size: 0, access: BTreeMap::new(), links: BTreeMap::new() }
    }

    fn ports(&self) -> usize {
        self.access.len() + self.links.len()
    }

    /// The lowest free port number, or that of something absent.
    fn free_port(&mut self, slice: &Slice, own: Guid) -> Result<PortNum, NamesError> {
        let taken: BTreeSet<PortNum> = self.access.values().chain(self.links.values()).copied().collect();
        let free = (1..=NODE_PORTS_MAX).filter_map(PortNum::new).find(|port| !taken.contains(port));
        if let Some(port) = free {
            return Ok(port);
        }
        let present: BTreeSet<&str> = (slice.nodes.iter())
            .filter(|node| node.access.node == own)
            .map(|node| node.node.as_str())
            .collect();
        let gone = self.access.iter().filter(|(node, _)| !present.contains(node.as_str()));
        let lowest = gone.min_by_key(|(_, port)| **port).map(|(node, port)| (node.clone(), *port));
        if let Some((node, port)) = lowest {
            self.access.remove(&node);
            return Ok(port);
        }
        let is_gone =
            |port: PortNum| !slice.cables.contains_key(&fabric_model::intent::PortName { node: own, port });
        let gone = self.links.iter().filter(|(physical, _)| is_gone(**physical));
        let lowest = gone.min_by_key(|(_, port)| **port).map(|(physical, port)| (*physical, *port));
        let too_many = NamesError::TooManyPorts { number: self.number, ports: self.ports() + 1 };
        let (physical, port) = lowest.ok_or(too_many)?;
        self.links.remove(&physical);
        Ok(port)
    }

    /// Switches never shrink. They grow only if they must, and then by half, since all devices of the view restart
    /// for it.
    fn resize(&mut self) {
        let highest = self.access.values().chain(self.links.values()).max().map_or(0, |port| port.to_wire());
        if highest <= self.size {
            return;
        }
        let used = u16::from(highest);
        let free = if self.size == 0 { FREE_PORTS.max(used / 8) } else { used / 2 };
        let size = (used + free).next_multiple_of(PORT_STEP).max(2 * PORT_STEP);
        self.size = u8::try_from(size).unwrap_or(NODE_PORTS_MAX).min(NODE_PORTS_MAX);
    }
}

fn guid(first: u64, number: u32) -> Option<Guid> {
    Guid::from_wire(first + u64::from(number) * GUIDS_EACH)
}

/// The lowest free LID.
fn free_lid(taken: &mut BTreeSet<Lid>) -> Result<Lid, NamesError> {
    let free = (1..=Lid::MAX).filter_map(Lid::from_wire).find(|lid| !taken.contains(lid));
    let lid = free.ok_or(NamesError::LidsExhausted)?;
    taken.insert(lid);
    Ok(lid)
}
