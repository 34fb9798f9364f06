//! [`Basis`]: a fingerprint of the inputs of a compilation.

use std::fmt;

use ib_wire::{Guid, PortNum};

use crate::intent::{Intents, LaneBuffer, PortCapability, SwitchCapability, UnenforcedPorts};
use crate::topology::{Node, Topology};

/// Fingerprint of the inputs that determine LIDs and routes besides the decisions: the cabling, the manager's port and the
/// capabilities of the devices. Prints as 32 hexadecimal digits.
///
/// Different inputs give different fingerprints except with a probability of about 2⁻¹²⁸. The order of nodes in a file,
/// names, partitions and clusters do not matter. The hash is not cryptographic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Basis(u128);

impl Basis {
    /// Computes the fingerprint of a topology and the intents for it.
    pub fn of(topology: &Topology, intents: &Intents) -> Self {
        let nodes = topology.nodes().map(|(_, node)| of_node(topology, node));
        let cables = nodes.fold(Digest::of(1), Digest::combine);
        let limits = of_capabilities(intents);
        let managers = limits_and_manager(cables, limits, intents);
        Self(managers.number())
    }

    /// From the value of [`number`](Self::number).
    pub const fn from_number(number: u128) -> Self {
        Self(number)
    }

    /// The fingerprint as an integer, for storage.
    pub const fn number(self) -> u128 {
        self.0
    }
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Basis({self})")
    }
}

/// Digest of a node with its cables. Nodes without cables count, too, since plans report unreachable nodes.
fn of_node(topology: &Topology, node: &Node) -> Digest {
    let own = node.port(PortNum::MANAGEMENT).map_or(0, |port| port.guid.to_wire());
    let start = Digest::of(2).then(node.guid.to_wire()).then(node.kind.to_wire().into()).then(own);
    node.ports().filter_map(|(number, port)| Some((number, port, port.peer?))).fold(
        start,
        |digest, (number, port, peer)| {
            let numbers = u64::from(number.to_wire()) << 8 | u64::from(peer.port.to_wire());
            let digest =
                digest.then(numbers).then(port.guid.to_wire()).then(topology[peer.node].guid.to_wire());
            // Guarantees depend on the rates of links.
            port.rate.map_or(digest, |rate| digest.then(8).then((rate.data_rate_gbps() * 1e3) as u64))
        },
    )
}

fn limits_and_manager(cables: Digest, limits: Digest, intents: &Intents) -> Digest {
    let digest = cables.then(limits.0).then(limits.1).then(intents.manager.to_wire());
    intents.standby_managers.iter().fold(digest, |digest, guid| digest.then(14).then(guid.to_wire()))
}

fn of_capabilities(intents: &Intents) -> Digest {
    let capabilities = &intents.capabilities;
    let mut digest = of_port(Digest::of(3), &capabilities.default_port);
    digest = of_switch(digest, &capabilities.default_switch);
    for (name, port) in &capabilities.ports {
        digest = of_port(digest.then(4).then(name.node.to_wire()).then(name.port.to_wire().into()), port);
    }
    for (guid, switch) in &capabilities.switches {
        digest = of_switch(digest.then(5).then(Guid::to_wire(*guid)), switch);
    }
    for guid in &capabilities.adaptive_routing {
        digest = digest.then(11).then(guid.to_wire());
    }
    // Where all ports are enforced, this makes no difference.
    let default = std::iter::once(&capabilities.default_switch);
    let can_enforce = capabilities.switches.values().chain(default).all(|switch| switch.enforced_pkeys > 0)
        && capabilities.ports.values().all(|port| port.isolates);
    match intents.unenforced_ports {
        UnenforcedPorts::Open if !can_enforce => digest.then(10),
        UnenforcedPorts::Open | UnenforcedPorts::Closed => digest,
    }
}

fn of_port(digest: Digest, port: &PortCapability) -> Digest {
    let PortCapability { pkeys, mtu, lanes, arbitration, lane_buffer, isolates, divides_lanes, enabled_rate } =
        port;
    let mut digest = digest.then((*arbitration).into());
    if !(*isolates && *divides_lanes) {
        digest = digest.then(9).then(u64::from(*isolates) << 1 | u64::from(*divides_lanes));
    }
    if let Some(rate) = enabled_rate {
        digest = digest.then(12).then((rate.data_rate_gbps() * 1e3) as u64);
    }
    if let Some(LaneBuffer { bytes, round_trip_ns }) = lane_buffer {
        digest = digest.then(7).then(u64::from(*bytes) << 32 | u64::from(*round_trip_ns));
    }
    digest.then(u64::from(*pkeys) << 16 | u64::from(mtu.to_wire()) << 8 | u64::from(lanes.to_wire()))
}

fn of_switch(digest: Digest, switch: &SwitchCapability) -> Digest {
    let SwitchCapability { linear, multicast, enforced_pkeys, own_pkeys, filters_raw } = switch;
    let digest = if *filters_raw { digest } else { digest.then(13) };
    let tables = u64::from(*linear) << 16 | u64::from(*multicast);
    digest.then(tables << 32 | u64::from(*enforced_pkeys) << 16 | u64::from(*own_pkeys))
}

/// Two independent 64-bit states, each mixed with every input word by a multiplication of its own.
#[derive(Clone, Copy, Debug)]
struct Digest(u64, u64);

impl Digest {
    fn of(word: u64) -> Self {
        Self(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f).then(word)
    }

    /// Mixes a word in; the order of words matters.
    #[inline]
    fn then(self, word: u64) -> Self {
        let mix = |state: u64, factor: u64| {
            let wide = u128::from(state ^ word) * u128::from(factor);
            (wide as u64 ^ (wide >> 64) as u64).wrapping_add(state.rotate_left(23)) ^ word.rotate_left(41)
        };
        Self(mix(self.0, 0xff51_afd7_ed55_8ccd), mix(self.1, 0xa076_1d64_78bd_642f))
    }

    /// Combines two digests; commutative and associative over `other`, so the order of nodes does not matter.
    fn combine(self, other: Self) -> Self {
        let other = other.then(6);
        Self(self.0.wrapping_add(other.0), self.1.wrapping_add(other.1))
    }

    fn number(self) -> u128 {
        u128::from(self.0) << 64 | u128::from(self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::FatTree;
    use crate::{Endpoint, TopologyBuilder, ibnetdiscover};

    #[test]
    fn the_basis_depends_on_cabling_manager_and_capabilities() {
        let tree = FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap();
        let guids: Vec<Guid> =
            tree.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect();
        let intents = Intents::new(guids[0]);
        let basis = Basis::of(&tree, &intents);
        let mut seen = std::collections::BTreeSet::from([basis]);

        let mut with_partition = intents.clone();
        with_partition.partitions.push(crate::intent::PartitionIntent {
            name: "blue".to_owned(),
            number: None,
            members: Vec::new(),
            ipoib: None,
        });
        assert_eq!(Basis::of(&tree, &with_partition), basis);
        let read = ibnetdiscover::parse(&ibnetdiscover::write(&tree)).unwrap();
        assert_eq!(Basis::of(&read, &intents), basis);

        assert!(seen.insert(Basis::of(&tree, &Intents::new(guids[1]))), "another manager");
        let mut standby = intents.clone();
        standby.standby_managers.insert(guids[1]);
        assert!(seen.insert(Basis::of(&tree, &standby)), "a standby manager");
        let mut less = intents.clone();
        less.capabilities.default_switch.own_pkeys -= 1;
        assert!(seen.insert(Basis::of(&tree, &less)), "smaller tables");
        let mut less = intents.clone();
        less.capabilities.default_port.lane_buffer = Some(LaneBuffer { bytes: 1 << 16, round_trip_ns: 248 });
        assert!(seen.insert(Basis::of(&tree, &less)), "known lane buffers");
        let mut less = intents.clone();
        less.unenforced_ports = UnenforcedPorts::Open;
        assert_eq!(Basis::of(&tree, &less), basis, "all switches enforce partitions");
        less.capabilities.default_switch.enforced_pkeys = 0;
        assert!(seen.insert(Basis::of(&tree, &less)), "ports without enforcement are open");
        less.unenforced_ports = UnenforcedPorts::Closed;
        assert!(seen.insert(Basis::of(&tree, &less)), "ports without enforcement are closed");
        for (isolates, divides_lanes) in [(false, true), (true, false), (false, false)] {
            let mut less = intents.clone();
            let default = &mut less.capabilities.default_port;
            (default.isolates, default.divides_lanes) = (isolates, divides_lanes);
            assert!(seen.insert(Basis::of(&tree, &less)), "entries that ports do not take");
        }
        for link in tree.links() {
            let mut builder = TopologyBuilder::from(tree.clone());
            builder.disconnect(link.a).unwrap();
            assert!(seen.insert(Basis::of(&builder.build().unwrap(), &intents)), "a missing cable");
        }
        // Two hosts with swapped cables.
        let mut builder = TopologyBuilder::from(tree.clone());
        let ends: Vec<Endpoint> = guids[1..3].iter().map(|guid| tree.by_port_guid(*guid).unwrap()).collect();
        let peers: Vec<Endpoint> = ends.iter().map(|end| tree.peer(*end).unwrap()).collect();
        for end in &ends {
            builder.disconnect(*end).unwrap();
        }
        builder.connect(ends[0], peers[1], None).unwrap();
        builder.connect(ends[1], peers[0], None).unwrap();
        assert!(seen.insert(Basis::of(&builder.build().unwrap(), &intents)), "cables swapped");
    }
}
