//! What an operator of the emulation may look at and change from outside. No key is ever shown.

use std::collections::BTreeMap;
use std::time::Duration;

use ib_wire::{
    Gid, Guid, Lid, Lmc, NodeDescription, NodeInfo, Pkey, PkeyBlock, PortNum, PortState, SMP_DATA_LEN,
    SlToVl, SwitchInfo, VlArbEntry,
};
use serde::Serialize;

use crate::agent::Access;
use crate::counters::Counters;
use crate::device::{DeviceId, PortId};
use crate::fabric::{DropReason, Fabric};
use crate::faults::Probability;
use crate::lazy_table::LazyTable;
use crate::vf_frames::FrameCounters;

/// What happened since the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Datagrams dropped, by reason.
    pub drops: BTreeMap<DropReason, u64>,
    /// Traps sent, by number, repetitions included.
    pub traps: BTreeMap<u16, u64>,
    /// Frames of virtual functions.
    pub frames: FrameCounters,
}

/// A node and its ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceView {
    /// The id in the topology file.
    pub id: String,
    /// The node description.
    pub description: String,
    /// The node GUID.
    pub guid: Guid,
    /// Its ports, lowest number first.
    pub ports: Vec<PortView>,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortView {
    /// Its number.
    pub number: u8,
    /// Its GUID.
    pub guid: Guid,
    /// Its LID.
    pub lid: Option<Lid>,
    /// Its LID mask control.
    pub lmc: Lmc,
    /// Logical state.
    pub state: String,
    /// Physical state.
    pub physical_state: String,
    /// The other end, as `id[port]`.
    pub peer: Option<String>,
    /// Whether a management key is set. The key itself is never shown.
    pub m_key_set: bool,
    /// Protection level, 0 to 3.
    pub m_key_protection: u8,
    /// Datagrams with a wrong management key.
    pub m_key_violations: u16,
    /// Packets with a wrong partition key.
    pub pkey_violations: u16,
    /// What it counted.
    pub counters: Counters,
}

/// The tables of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableView {
    /// Partition keys by port number; empty entries at the end are left out.
    pub pkeys: BTreeMap<u8, Vec<Option<Pkey>>>,
    /// Exit port by LID.
    pub linear_forwarding: BTreeMap<u16, u8>,
    /// Exit ports by multicast LID.
    pub multicast_forwarding: BTreeMap<u16, Vec<u8>>,
    /// Turns whose service levels differ from the default, as `input>output`: the lane of each level.
    pub sl_to_vl: BTreeMap<String, Vec<u8>>,
}

/// What decides where the data of a port goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortForwarding<'a> {
    /// Its number.
    pub number: PortNum,
    /// Its GUID.
    pub guid: Guid,
    /// Its LID.
    pub lid: Option<Lid>,
    /// Logical state.
    pub state: PortState,
    /// The other end of its cable, if that is plugged.
    pub peer: Option<PortId>,
    /// Its partition keys; entries beyond the end are empty.
    pub keys: &'a [Option<Pkey>],
    /// Whether a switch port checks the keys of packets that come in, and of those that go out.
    pub enforces: (bool, bool),
}

impl Fabric {
    /// What happened since the start.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            drops: self.drops.clone(),
            traps: self.traps_sent.clone(),
            frames: self.functions.total().clone(),
        }
    }

    /// A node and its ports.
    pub fn device_view(&self, device: DeviceId) -> DeviceView {
        let state = &self.devices[device.index()];
        DeviceView {
            id: state.id.clone(),
            description: state.description.text(),
            guid: state.info.node_guid,
            ports: state.ports().map(|port| self.port_view(port)).collect(),
        }
    }

    /// A port.
    pub fn port_view(&self, id: PortId) -> PortView {
        let port = self.port(id);
        let peer = port.peer.map(|peer| format!("{}[{}]", self.device_of(peer).id, self.port(peer).number));
        PortView {
            number: port.number.to_wire(),
            guid: port.guid,
            lid: port.info.lid,
            lmc: port.info.lmc,
            state: format!("{:?}", port.info.state),
            physical_state: format!("{:?}", port.info.physical_state),
            peer,
            m_key_set: port.info.m_key.is_some(),
            m_key_protection: port.info.m_key_protection.to_wire(),
            m_key_violations: port.info.m_key_violations,
            pkey_violations: port.info.pkey_violations,
            counters: port.counters.clone(),
        }
    }

    /// The tables of a node.
    pub fn table_view(&self, device: DeviceId) -> TableView {
        let state = &self.devices[device.index()];
        let keys = |id| (self.port(id).number.to_wire(), self.port(id).pkeys.stored().to_vec());
        let mut view = TableView {
            pkeys: state.ports().map(keys).collect(),
            linear_forwarding: BTreeMap::new(),
            multicast_forwarding: BTreeMap::new(),
            sl_to_vl: BTreeMap::new(),
        };
        if let Some(switch) = &state.switch {
            let routed = switch.linear.filled();
            view.linear_forwarding = routed.map(|(lid, exit)| (lid as u16, exit)).collect();
            view.multicast_forwarding = self.groups_of(device);
            view.sl_to_vl = hop_view(&switch.sl_to_vl, state.info.port_count);
        }
        view
    }

    /// What decides where the data of a port goes. Unlike [`Fabric::port_view`], this is quick enough for a look after
    /// every datagram.
    pub fn port_forwarding(&self, id: PortId) -> PortForwarding<'_> {
        let port = self.port(id);
        PortForwarding {
            number: port.number,
            guid: port.guid,
            lid: port.info.lid,
            state: port.info.state,
            peer: port.peer.filter(|_| port.plugged),
            keys: port.pkeys.stored(),
            enforces: (port.info.enforce_inbound, port.info.enforce_outbound),
        }
    }

    /// The nodes in the order of their topology.
    pub fn device_ids(&self) -> impl ExactSizeIterator<Item = DeviceId> + use<> {
        (0..self.devices.len() as u32).map(DeviceId)
    }

    /// The ports of a node, lowest number first.
    pub fn ports_of(&self, device: DeviceId) -> impl Iterator<Item = PortId> + use<> {
        self.devices[device.index()].ports()
    }

    /// The node a port belongs to.
    pub fn device_id_of(&self, port: PortId) -> DeviceId {
        self.port(port).device
    }

    /// The linear table of a switch up to the last LID that has an exit, and the highest LID that counts.
    pub fn linear_of(&self, device: DeviceId) -> Option<(&[u8], u16)> {
        let switch = self.devices[device.index()].switch.as_ref()?;
        Some((switch.linear.stored(), switch.info.linear_fdb_top))
    }

    /// What a switch says of itself.
    pub fn switch_info_of(&self, device: DeviceId) -> Option<&SwitchInfo> {
        self.devices[device.index()].switch.as_ref().map(|switch| &switch.info)
    }

    /// What a node is called.
    pub fn description_of(&self, device: DeviceId) -> NodeDescription {
        self.devices[device.index()].description
    }

    /// The lanes that service levels take out of a port: of a switch by where packets come in, of an adapter always.
    pub fn lanes_of(&self, input: PortNum, output: PortId) -> SlToVl {
        match self.is_switch(output) {
            true => SlToVl::decode(&self.hop_mapping(input, output)),
            false => SlToVl::decode(&self.port(output).sl_to_vl),
        }
    }

    /// The arbitration tables of a port as far as they reach, low and high.
    pub fn arbitration_of(&self, port: PortId) -> (Vec<VlArbEntry>, Vec<VlArbEntry>) {
        let state = self.port(port);
        let tables = state.arbitration.as_deref().cloned().unwrap_or_default();
        let part = |table: &[VlArbEntry], capacity: u8| table[..usize::from(capacity).min(64)].to_vec();
        (part(&tables.low, state.info.vl_arb_low_cap), part(&tables.high, state.info.vl_arb_high_cap))
    }

    /// The exit ports of a switch by multicast LID; groups without any are left out.
    pub fn groups_of(&self, device: DeviceId) -> BTreeMap<u16, Vec<u8>> {
        let state = &self.devices[device.index()];
        let Some(switch) = &state.switch else { return BTreeMap::new() };
        let ports = || (0..=state.info.port_count).filter_map(PortNum::new);
        let members = (0..switch.multicast.group_end()).map(|group| {
            let exits = ports().filter(|port| switch.multicast.has_exit(group, *port));
            (ib_wire::MulticastLid::MIN + group as u16, exits.map(PortNum::to_wire).collect::<Vec<u8>>())
        });
        members.filter(|(_, exits)| !exits.is_empty()).collect()
    }

    /// Loses datagrams on every link, or on those of one port.
    pub fn set_loss(&mut self, port: Option<PortId>, probability: Probability) {
        self.faults.set_loss(port, probability);
    }

    /// Loses data on the links of one port. Subnet management passes.
    pub fn set_data_loss(&mut self, port: PortId, probability: Probability) {
        self.faults.set_data_loss(port, probability);
    }

    /// Handles datagrams twice.
    pub fn set_duplication(&mut self, probability: Probability) {
        self.faults.set_duplication(probability);
    }

    /// Holds deliveries back for a random time up to `longest`.
    pub fn set_delay_max(&mut self, longest: Duration) {
        self.faults.set_delay_max(longest);
    }

    /// NodeInfo as a port answers it, on the wire; for transports that tell a client about its own port.
    pub fn node_info_of(&self, port: PortId) -> [u8; SMP_DATA_LEN] {
        self.node_info(port)
    }

    /// PortInfo of a port of the same node, on the wire, the key hidden; number 0 is the port itself.
    pub fn port_info_of(&self, port: PortId, number: u8) -> Option<[u8; SMP_DATA_LEN]> {
        let selected = match number {
            0 => port,
            number => self.device_of(port).port(PortNum::new(number)?)?,
        };
        Some(self.port_info(selected, port, Access::ReadAllButKey))
    }

    /// The first 32 partition keys of a port, on the wire.
    pub fn pkeys_of(&self, port: PortId) -> [u8; SMP_DATA_LEN] {
        let keys = &self.port(port).pkeys;
        PkeyBlock(std::array::from_fn(|i| keys.get(i))).encode()
    }

    /// The partition key at index 0: what software that names none sends with.
    pub fn first_pkey(&self, port: PortId) -> Option<Pkey> {
        self.port(port).pkeys.get(0)
    }

    /// The number of a port at its node.
    pub fn number_of(&self, port: PortId) -> PortNum {
        self.port(port).number
    }

    /// The partition keys of a port.
    pub fn keys_of(&self, port: PortId) -> Vec<Pkey> {
        self.port(port).keys().collect()
    }

    /// Whether a partition key stands in the port's table: an adapter sends with no other.
    pub fn holds_pkey(&self, port: PortId, key: Pkey) -> bool {
        self.port(port).keys().any(|held| held == key)
    }

    /// Whether a port answers to a LID.
    pub fn owns(&self, port: PortId, lid: Lid) -> bool {
        self.port(port).owns(lid)
    }

    /// How many data lanes a port uses: lanes beyond discard what is put on them.
    pub fn lane_count_of(&self, port: PortId) -> u8 {
        crate::device::lane_count(self.port(port).info.operational_vls)
    }

    /// Whether software behind a port says that it is a subnet manager.
    pub fn is_sm(&self, port: PortId) -> bool {
        self.port(port).is_sm
    }

    /// Logical state of a port.
    pub fn state_of(&self, port: PortId) -> PortState {
        self.port(port).info.state
    }

    /// GUID of a port.
    pub fn guid_of(&self, port: PortId) -> Guid {
        self.port(port).guid
    }

    /// First GID of a port.
    pub fn gid_of(&self, port: PortId) -> Gid {
        Gid::unicast(self.port(port).info.gid_prefix, self.port(port).guid)
    }

    /// Id of the node a port belongs to, as its topology file spells it.
    pub fn id_of(&self, port: PortId) -> &str {
        &self.device_of(port).id
    }

    /// NodeInfo of the node a port belongs to.
    pub fn node_of(&self, port: PortId) -> &NodeInfo {
        &self.device_of(port).info
    }
}

fn hop_view(hops: &LazyTable<[u8; SlToVl::LEN]>, port_count: u8) -> BTreeMap<String, Vec<u8>> {
    let width = usize::from(port_count) + 1;
    hops.filled()
        .map(|(index, hop)| {
            let lanes = SlToVl::decode(&hop).0.iter().map(|lane| lane.to_wire()).collect();
            (format!("{}>{}", index / width, index % width), lanes)
        })
        .collect()
}
