//! Addresses of nodes in the private network of their cluster.

use std::net::Ipv4Addr;

/// First two octets of the private network of a cluster. Clusters are isolated, so all use the same.
const NETWORK: [u8; 2] = [10, 128];

/// Most nodes of a cluster: limited by the cluster's private network and the size of a partition.
pub const CLUSTER_SIZE_MAX: u32 = 4096;

/// Address of a node in its cluster's private network, as text.
pub fn address(number: u32) -> String {
    ipv4_address(number).to_string()
}

/// Address of a node in its cluster's private network.
pub fn ipv4_address(number: u32) -> Ipv4Addr {
    let [a, b] = NETWORK;
    let [_, _, c, d] = number.to_be_bytes();
    Ipv4Addr::new(a, b, c, d)
}
