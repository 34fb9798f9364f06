//! Adds and removes nodes and cables while the fabric runs.

use std::collections::BTreeSet;
use std::time::Duration;

use fabric_model::{BuildError, Endpoint, Link, LinkRate, NewNode, Topology, TopologyBuilder};
use ib_wire::{Guid, PortNum};
use thiserror::Error;

use crate::device::{self, DeviceId, PortId};
use crate::fabric::Fabric;

/// Why the topology cannot be replaced.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RecableError {
    /// A node has another kind or number of ports than the node with the same GUID in the fabric.
    #[error("node {0} must keep its kind and number of ports")]
    OtherDevice(Guid),
    /// The combination of old and new nodes is not a valid topology.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// A cable. One that is replaced by a cable of another rate is another cable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cable {
    /// Node GUID and port number of both ends, the lower first.
    ends: [(Guid, PortNum); 2],
    rate: Option<LinkRate>,
}

impl Fabric {
    /// Replaces the topology. Nodes are identified by GUID: those in both topologies keep their state and
    /// ids, new ones get factory defaults, and missing ones stay in the fabric without cables or subnet
    /// manager until a later topology contains them again. Both ends of removed cables go down, those of new
    /// cables train, and switches raise traps.
    ///
    /// On an error the topology is unchanged.
    pub fn recable(&mut self, now: Duration, topology: &Topology) -> Result<(), RecableError> {
        self.handle_timeout(now);
        let (old, new) = (cables(self.blueprint()), cables(topology));
        let next = self.next_blueprint(topology, &old, &new)?;
        for cable in old.difference(&new) {
            let ends = cable.ends.map(|end| self.cabled_port(end));
            if let [Some(a), Some(b)] = ends {
                self.unplug(now, a);
                for end in [a, b] {
                    self.port_mut(end).peer = None;
                    self.port_mut(end).plugged = true;
                }
            }
        }
        self.replace_blueprint(next);
        for cable in new.difference(&old) {
            let ends = cable.ends.map(|end| self.cabled_port(end));
            if let [Some(a), Some(b)] = ends {
                self.port_mut(a).peer = Some(b);
                self.port_mut(b).peer = Some(a);
                self.enable_rate(a);
                self.enable_rate(b);
                self.train_link(a);
            }
        }
        let left: Vec<PortId> = (self.device_ids())
            .filter(|device| topology.by_guid(self.devices[device.index()].info.node_guid).is_none())
            .flat_map(|device| self.ports_of(device))
            .collect();
        for port in left {
            self.set_is_sm(now, port, false);
        }
        Ok(())
    }

    /// The nodes of the fabric at their indices, then the new ones, with the cables of `topology`.
    fn next_blueprint(
        &self,
        topology: &Topology,
        old: &BTreeSet<Cable>,
        new: &BTreeSet<Cable>,
    ) -> Result<Topology, RecableError> {
        let before = self.blueprint();
        let mut builder = TopologyBuilder::from(before.clone());
        let end = |topology: &Topology, (guid, port): (Guid, PortNum)| {
            topology.by_guid(guid).map(|node| Endpoint::new(node, port))
        };
        for cable in old.difference(new) {
            if let Some(end) = end(before, cable.ends[0]) {
                builder.disconnect(end)?;
            }
        }
        let mut indices = std::collections::HashMap::new();
        for (_, node) in topology.nodes() {
            let index = match before.by_guid(node.guid) {
                Some(index) => {
                    let known = &before[index];
                    if (known.kind, known.port_count()) != (node.kind, node.port_count()) {
                        return Err(RecableError::OtherDevice(node.guid));
                    }
                    index
                }
                None => builder.add_node(NewNode {
                    id: node.id.clone(),
                    kind: node.kind,
                    guid: node.guid,
                    port_count: node.port_count(),
                    system_guid: node.system_guid,
                    vendor_id: node.vendor_id,
                    device_id: node.device_id,
                    description: node.description.clone(),
                    port_0: node.port_0,
                })?,
            };
            indices.insert(node.guid, index);
        }
        for link in topology.links() {
            let cable = cable_of(topology, link);
            if !old.contains(&cable) {
                let [a, b] = cable.ends.map(|(guid, port)| Endpoint::new(indices[&guid], port));
                builder.connect(a, b, link.rate)?;
            }
        }
        Ok(builder.build()?)
    }

    /// Enables the widths and speeds of a new cable, as at power-on.
    fn enable_rate(&mut self, id: PortId) {
        let (port, kind) = (self.port(id), self.device_of(id).info.kind);
        let fresh = device::new_port(port.device, kind, port.number, self.model_port(id), &self.profile).info;
        let info = &mut self.port_mut(id).info;
        info.link_width_enabled = fresh.link_width_enabled;
        info.link_speed_enabled = fresh.link_speed_enabled;
        info.extended_speed_supported = fresh.extended_speed_supported;
        info.extended_speed_enabled = fresh.extended_speed_enabled;
    }

    fn cabled_port(&self, (guid, port): (Guid, PortNum)) -> Option<PortId> {
        self.port_of(self.device_by_guid(guid)?, port)
    }

    fn replace_blueprint(&mut self, next: Topology) {
        let known = self.devices.len();
        let count = next.node_count();
        self.set_blueprint(next);
        for index in known..count {
            self.add_device(DeviceId(index as u32));
        }
    }
}

fn cables(topology: &Topology) -> BTreeSet<Cable> {
    topology.links().map(|link| cable_of(topology, link)).collect()
}

fn cable_of(topology: &Topology, link: Link) -> Cable {
    let mut ends = [link.a, link.b].map(|end| (topology[end.node].guid, end.port));
    ends.sort_unstable();
    Cable { ends, rate: link.rate }
}
