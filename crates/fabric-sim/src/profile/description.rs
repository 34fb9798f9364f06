//! NodeDescriptions as devices of the field have them.

use fabric_model::{Node, NodeIndex, Topology};
use serde::{Deserialize, Serialize};

use super::DeviceProfile;

/// NodeDescription of adapters. The host is [`Node::host_name`] of the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdapterDescription {
    /// As in the topology.
    Topology,
    /// `node17 mlx4_0`.
    Mlx4,
    /// `node17 mlx5_0`.
    Mlx5,
    /// `node17 HCA-1` and `node17 HCA-2`: of two adapters in a row, the second is in the host of the first.
    TwoPerHost,
    /// `MT4123 ConnectX6   Mellanox Technologies`: that of the firmware, before a host has written its own.
    Firmware,
}

/// NodeDescription of switches. A description in the topology that contains a semicolon is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwitchDescription {
    /// As in the topology.
    Topology,
    /// `MF0;leaf-1:SX6036/U1`.
    SwitchX,
    /// `Quantum Mellanox Technologies`, the same for all.
    Quantum,
}

impl DeviceProfile {
    /// The NodeDescription of a node at power-on.
    pub(crate) fn description(&self, topology: &Topology, index: NodeIndex) -> String {
        let node = &topology[index];
        if node.is_switch() {
            return self.switch_description(node);
        }
        if !node.is_host_adapter() {
            return node.description.clone();
        }
        let host = node.host_name();
        match self.adapters.description {
            AdapterDescription::Topology => node.description.clone(),
            AdapterDescription::Mlx4 => format!("{host} mlx4_0"),
            AdapterDescription::Mlx5 => format!("{host} mlx5_0"),
            AdapterDescription::TwoPerHost => match first_adapter(topology, index) {
                Some(first) => format!("{} HCA-2", first.host_name()),
                None => format!("{host} HCA-1"),
            },
            AdapterDescription::Firmware => "MT4123 ConnectX6   Mellanox Technologies".to_owned(),
        }
    }

    fn switch_description(&self, node: &Node) -> String {
        let name = &node.description;
        match self.switches.description {
            SwitchDescription::SwitchX if !name.contains(';') => format!("MF0;{name}:SX6036/U1"),
            SwitchDescription::Quantum if !name.contains(';') => "Quantum Mellanox Technologies".to_owned(),
            _ => name.clone(),
        }
    }
}

/// The first adapter of the host whose second adapter is at an odd index, if the node before is an adapter.
fn first_adapter(topology: &Topology, second: NodeIndex) -> Option<&Node> {
    let before = second.index().checked_sub(1).filter(|before| before % 2 == 0)?;
    let first = topology.node(NodeIndex::new(before as u32))?;
    first.is_host_adapter().then_some(first)
}
