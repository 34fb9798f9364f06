//! What a node is by its registers: a host's adapter, or something that tenants never get.
//!
//! Aggregation nodes are the engines of switches that combine the data of collective operations. They appear as adapters
//! behind a port that no cable leads to.

use ib_wire::NodeKind;

use crate::topology::Node;

impl Node {
    /// NodeInfo:VendorID of aggregation nodes.
    pub const AGGREGATION_VENDOR: u32 = 0x2c9;
    /// NodeInfo:DeviceID of the aggregation nodes of Quantum switches.
    pub const AGGREGATION_DEVICE: u16 = 0xcf09;
    /// NodeDescription of aggregation nodes.
    pub const AGGREGATION_DESCRIPTION: &str = "Mellanox Technologies Aggregation Node";

    /// Whether the node is an aggregation node: by its device id, or by its description where the id is unknown. A host
    /// that takes the description of one only excludes itself.
    pub fn is_aggregation_node(&self) -> bool {
        let is_device = self.vendor_id == Some(Self::AGGREGATION_VENDOR)
            && self.device_id == Some(Self::AGGREGATION_DEVICE);
        !self.is_switch() && (is_device || self.description == Self::AGGREGATION_DESCRIPTION)
    }

    /// Whether the node may be the adapter of a host: switches, routers and aggregation nodes are not.
    pub fn is_host_adapter(&self) -> bool {
        self.kind == NodeKind::Adapter && !self.is_aggregation_node()
    }

    /// The name of the host by its NodeDescription: the first word, because drivers append the name of the device, as in
    /// `node17 mlx5_0`. Software of the host writes it, so it proves nothing.
    pub fn host_name(&self) -> &str {
        self.description.split_whitespace().next().unwrap_or(&self.description)
    }
}

#[cfg(test)]
mod tests {
    use crate::ibnetdiscover;

    const FABRIC: &str = r#"
vendid=0x2c9
devid=0xd2f0
Switch 41 "S-0000000000000010" # "Quantum Mellanox Technologies"
[1] "H-0000000000000020"[1]
[2] "R-0000000000000030"[1]
[41] "H-0000000000000018"[1]

vendid=0x2c9
devid=0x1b
Ca 1 "H-0000000000000020" # "node17 mlx5_0"
[1] "S-0000000000000010"[1]

Rt 1 "R-0000000000000030" # "router"
[1] "S-0000000000000010"[2]

vendid=0x2c9
devid=0xcf09
Ca 1 "H-0000000000000018" # "renamed"
[1] "S-0000000000000010"[41]
"#;

    #[test]
    fn only_adapters_of_hosts_are_host_adapters() {
        let topology = ibnetdiscover::parse(FABRIC).unwrap();
        let hosts: Vec<&str> = topology
            .nodes()
            .filter(|(_, node)| node.is_host_adapter())
            .map(|(_, node)| node.host_name())
            .collect();
        assert_eq!(hosts, ["node17"]);
        let named =
            FABRIC.replace("devid=0xcf09", "").replace("renamed", "Mellanox Technologies Aggregation Node");
        let topology = ibnetdiscover::parse(&named).unwrap();
        assert_eq!(topology.nodes().filter(|(_, node)| node.is_aggregation_node()).count(), 1);
    }
}
