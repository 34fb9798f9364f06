//! Inspection and fault injection for the operator of the emulation. No call returns an M_Key.

use std::collections::BTreeMap;
use std::time::Duration;

use ib_wire::{
    Gid, Guid, Lid, Lmc, MKey, NodeDescription, NodeInfo, Pkey, PkeyBlock, PortNum, PortState, SMP_DATA_LEN,
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

/// Counters of the whole fabric since it was built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Dropped datagrams by reason; frames are counted in `frames`.
    pub drops: BTreeMap<DropReason, u64>,
    /// Traps sent by trap number, repetitions included.
    pub traps: BTreeMap<u16, u64>,
    /// Frames of all virtual functions, detached ones included.
    pub frames: FrameCounters,
}

/// A node and its ports, for display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceView {
    /// Id in the topology file.
    pub id: String,
    pub description: String,
    pub guid: Guid,
    /// In ascending order of their numbers.
    pub ports: Vec<PortView>,
}

/// A port, for display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortView {
    pub number: u8,
    pub guid: Guid,
    pub lid: Option<Lid>,
    pub lmc: Lmc,
    pub state: String,
    pub physical_state: String,
    /// The other end of the cable, as `id[port]`.
    pub peer: Option<String>,
    /// Whether an M_Key is set.
    pub m_key_set: bool,
    /// M_Key protection level, 0 to 3.
    pub m_key_protection: u8,
    pub m_key_violations: u16,
    pub pkey_violations: u16,
    pub counters: Counters,
}

/// The tables of a node, for display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableView {
    /// P_Key tables by port number, without empty entries at the end.
    pub pkeys: BTreeMap<u8, Vec<Option<Pkey>>>,
    /// Output port by LID.
    pub linear_forwarding: BTreeMap<u16, u8>,
    /// Output ports by multicast LID.
    pub multicast_forwarding: BTreeMap<u16, Vec<u8>>,
    /// SLtoVLMappingTable of the hops that differ from the default, by `input>output`: the lane of each
    /// service level.
    pub sl_to_vl: BTreeMap<String, Vec<u8>>,
}

/// The state of a port that decides whether data passes it and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortForwarding<'a> {
    pub number: PortNum,
    pub guid: Guid,
    pub lid: Option<Lid>,
    pub state: PortState,
    /// The other end of the cable, if the cable is plugged in.
    pub peer: Option<PortId>,
    /// P_Key table; entries beyond the end are empty.
    pub keys: &'a [Option<Pkey>],
    /// Whether a switch port enforces partitions inbound and outbound.
    pub enforces: (bool, bool),
}

impl Fabric {
    /// Counters of the whole fabric since it was built.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            drops: self.drops.clone(),
            traps: self.traps_sent.clone(),
            frames: self.functions.total().clone(),
        }
    }

    /// A node and its ports, for display.
    pub fn device_view(&self, device: DeviceId) -> DeviceView {
        let state = &self.devices[device.index()];
        DeviceView {
            id: state.id.clone(),
            description: state.description.text(),
            guid: state.info.node_guid,
            ports: state.ports().map(|port| self.port_view(port)).collect(),
        }
    }

    /// A port, for display.
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

    /// The tables of a node, for display.
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

    /// The state of a port that decides whether data passes it and where to. Unlike [`Fabric::port_view`] it
    /// allocates nothing, so that it can be read after every datagram.
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

    /// PortInfo:MasterSMLID of a port: where its software sends requests for the subnet manager.
    pub fn master_lid_of(&self, id: PortId) -> Option<Lid> {
        self.port(id).info.master_sm_lid
    }

    /// The nodes in the order of the topology.
    pub fn device_ids(&self) -> impl ExactSizeIterator<Item = DeviceId> + use<> {
        (0..self.devices.len() as u32).map(DeviceId)
    }

    /// The ports of a node in ascending order of their numbers.
    pub fn ports_of(&self, device: DeviceId) -> impl Iterator<Item = PortId> + use<> {
        self.devices[device.index()].ports()
    }

    pub fn device_id_of(&self, port: PortId) -> DeviceId {
        self.port(port).device
    }

    /// The linear forwarding table of a switch up to the last LID that has an output port, and LinearFDBTop.
    /// `None` for an adapter.
    pub fn linear_of(&self, device: DeviceId) -> Option<(&[u8], u16)> {
        let switch = self.devices[device.index()].switch.as_ref()?;
        Some((switch.linear.stored(), switch.info.linear_fdb_top))
    }

    /// SwitchInfo; `None` for an adapter.
    pub fn switch_info_of(&self, device: DeviceId) -> Option<&SwitchInfo> {
        self.devices[device.index()].switch.as_ref().map(|switch| &switch.info)
    }

    pub fn description_of(&self, device: DeviceId) -> NodeDescription {
        self.devices[device.index()].description
    }

    /// SLtoVLMappingTable of an output port: of a switch for packets from `input`, of an adapter for all
    /// packets it sends.
    pub fn lanes_of(&self, input: PortNum, output: PortId) -> SlToVl {
        match self.is_switch(output) {
            true => SlToVl::decode(&self.hop_mapping(input, output)),
            false => SlToVl::decode(&self.port(output).sl_to_vl),
        }
    }

    /// The VL arbitration tables of a port, low and high priority, up to their capacities.
    pub fn arbitration_of(&self, port: PortId) -> (Vec<VlArbEntry>, Vec<VlArbEntry>) {
        let state = self.port(port);
        let tables = state.arbitration.as_deref().cloned().unwrap_or_default();
        let part = |table: &[VlArbEntry], capacity: u8| table[..usize::from(capacity).min(64)].to_vec();
        (part(&tables.low, state.info.vl_arb_low_cap), part(&tables.high, state.info.vl_arb_high_cap))
    }

    /// The output ports of a switch by multicast LID, without groups that have none or that it does not forward.
    pub fn groups_of(&self, device: DeviceId) -> BTreeMap<u16, Vec<u8>> {
        let state = &self.devices[device.index()];
        let Some(switch) = &state.switch else { return BTreeMap::new() };
        let ports = || (0..=state.info.port_count).filter_map(PortNum::new);
        let end = switch.multicast.group_end().min(self.multicast_end(state));
        let members = (0..end).map(|group| {
            let exits = ports().filter(|port| switch.multicast.has_exit(group, *port));
            (ib_wire::MulticastLid::MIN + group as u16, exits.map(PortNum::to_wire).collect::<Vec<u8>>())
        });
        members.filter(|(_, exits)| !exits.is_empty()).collect()
    }

    /// Drops packets with a probability: on every link, or on the link of one port. [`Probability::NEVER`]
    /// ends it.
    pub fn set_loss(&mut self, port: Option<PortId>, probability: Probability) {
        self.faults.set_loss(port, probability);
    }

    /// Drops data packets on the link of one port. Subnet management passes.
    pub fn set_data_loss(&mut self, port: PortId, probability: Probability) {
        self.faults.set_data_loss(port, probability);
    }

    /// Processes datagrams twice with a probability.
    pub fn set_duplication(&mut self, probability: Probability) {
        self.faults.set_duplication(probability);
    }

    /// Delays deliveries by a random time from 0 to `longest`.
    pub fn set_delay_max(&mut self, longest: Duration) {
        self.faults.set_delay_max(longest);
    }

    /// NodeInfo as read through a port, in wire format; for transports that present a port to a client.
    pub fn node_info_of(&self, port: PortId) -> [u8; SMP_DATA_LEN] {
        self.node_info(port)
    }

    /// PortInfo of a port of the same node in wire format, the M_Key hidden. Number 0 means the port itself.
    pub fn port_info_of(&self, port: PortId, number: u8) -> Option<[u8; SMP_DATA_LEN]> {
        let selected = match number {
            0 => port,
            number => self.device_of(port).port(PortNum::new(number)?)?,
        };
        Some(self.port_info(selected, port, Access::ReadAllButKey))
    }

    /// The first block of 32 P_Keys of a port in wire format.
    pub fn pkeys_of(&self, port: PortId) -> [u8; SMP_DATA_LEN] {
        let keys = &self.port(port).pkeys;
        PkeyBlock(std::array::from_fn(|i| keys.get(i))).encode()
    }

    /// The P_Key at index 0, which software uses that names none.
    pub fn first_pkey(&self, port: PortId) -> Option<Pkey> {
        self.port(port).pkeys.get(0)
    }

    pub fn number_of(&self, port: PortId) -> PortNum {
        self.port(port).number
    }

    /// The P_Keys of a port in order of their index.
    pub fn keys_of(&self, port: PortId) -> Vec<Pkey> {
        self.port(port).keys().collect()
    }

    /// Whether a P_Key is in the table of a port. An adapter sends with no other.
    pub fn holds_pkey(&self, port: PortId, key: Pkey) -> bool {
        self.port(port).keys().any(|held| held == key)
    }

    /// Whether a LID is one of the 2^LMC LIDs of a port.
    pub fn owns(&self, port: PortId, lid: Lid) -> bool {
        self.port(port).owns(lid)
    }

    /// Number of data lanes that a port operates. Packets on higher lanes are discarded.
    pub fn lane_count_of(&self, port: PortId) -> u8 {
        crate::device::lane_count(self.port(port).info.operational_vls)
    }

    /// Whether the software behind a port is a subnet manager.
    pub fn is_sm(&self, port: PortId) -> bool {
        self.port(port).is_sm
    }

    /// Logical state of a port.
    pub fn state_of(&self, port: PortId) -> PortState {
        self.port(port).info.state
    }

    /// The M_Key that a port holds, whoever asks: for tests of who may learn it.
    pub fn m_key_of(&self, port: PortId) -> Option<MKey> {
        self.port(port).info.m_key
    }

    pub fn guid_of(&self, port: PortId) -> Guid {
        self.port(port).guid
    }

    /// The alias GUIDs that a port holds, in the order of its GUID table.
    pub fn aliases_of(&self, port: PortId) -> impl Iterator<Item = Guid> {
        self.port(port).aliases.filled().filter_map(|(_, guid)| guid)
    }

    /// The GID of a port from its own GUID.
    pub fn gid_of(&self, port: PortId) -> Gid {
        Gid::unicast(self.port(port).info.gid_prefix, self.port(port).guid)
    }

    /// Id in the topology file of the node of a port.
    pub fn id_of(&self, port: PortId) -> &str {
        &self.device_of(port).id
    }

    /// NodeInfo of the node of a port.
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
