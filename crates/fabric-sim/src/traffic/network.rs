//! A snapshot of the tables of a fabric, laid out for fast lookup: peers, output ports, lanes, filters.
//!
//! This module has no forwarding rules of its own. It evaluates those of `forwarding` and the devices once
//! for every possible case.

use std::collections::HashMap;
use std::sync::Arc;

use fabric_model::LinkRate;
use ib_wire::{Lid, Pkey, PortNum, ServiceLevel, SlToVl, VirtualLane};

use super::arbiter::ArbitrationTables;
use super::time::Pace;
use crate::device::{Device, DeviceId, PortId, is_allowed_by, lane_count};
use crate::fabric::{DropReason, Fabric};
use crate::forwarding::HOPS_MAX;

/// No port, packet or queue.
pub(crate) const NONE: u32 = u32::MAX;

/// Entry of a forwarding table without an output port.
const NO_PORT: u8 = 0xff;

/// A snapshot of the forwarding state of a fabric. Later changes of the fabric have no effect on it.
///
/// A port whose arbitration tables were never written has the factory defaults: lane 0 in the high-priority
/// table, all others in the low-priority one with equal weights, and each service level on the lane of its
/// number.
#[derive(Debug)]
pub struct TrafficNetwork {
    pub(crate) lookups: Vec<PortLookup>,
    pub(crate) ports: Vec<PortTables>,
    devices: Vec<DeviceTables>,
    /// P_Keys of all ports.
    keys: Vec<Pkey>,
    /// Output port numbers of all switches by LID.
    exits: Vec<u8>,
    /// Index into `maps` for each hop of all switches.
    hop_maps: Vec<u32>,
    /// Distinct SLtoVLMappingTables: the lane of each service level in four bits.
    maps: Vec<u64>,
    owners: HashMap<Lid, PortId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortKind {
    Adapter,
    /// Port 0 of a switch.
    Management,
    External,
}

/// The properties of a port that every packet needs. Compact, so that a large fabric stays in the cache.
#[derive(Debug)]
pub(crate) struct PortLookup {
    /// The port at the other end of a link that is up, or [`NONE`].
    pub to: u32,
    /// Time per byte of packets that arrive.
    pub pace: Pace,
    device: u32,
    /// Largest payload that it sends.
    pub mtu: u16,
    pub lanes: u8,
    number: u8,
    pub kind: PortKind,
    /// Whether the link carries data.
    pub is_active: bool,
    enforces_in: bool,
    enforces_out: bool,
}

/// The other properties of a port.
#[derive(Debug)]
pub(crate) struct PortTables {
    keys: (u32, u32),
    lid: Option<Lid>,
    lid_count: u16,
    /// SLtoVLMappingTable of an adapter, as in `maps`.
    injection: u64,
    pub rate: LinkRate,
    pub pace: Pace,
    pub tables: Arc<ArbitrationTables>,
}

#[derive(Debug)]
struct DeviceTables {
    first_port: u32,
    exits: (u32, u32),
    hop_maps: HopMaps,
}

/// Which SLtoVLMappingTable each hop of a switch has.
#[derive(Debug)]
enum HopMaps {
    /// The same for all hops: an index into `maps`.
    Uniform(u32),
    /// Individual: the first index into `hop_maps`, and the number of outputs per input.
    Each(u32, u32),
}

/// The headers of a packet. Small, as every packet in flight has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    pub to: Lid,
    pub pkey: Pkey,
    pub payload: u16,
    /// Bytes besides the payload.
    pub bytes: u8,
    /// The service level, or [`NO_SERVICE_LEVEL`].
    sl: u8,
}

/// The service level of packets that have none: subnet management.
const NO_SERVICE_LEVEL: u8 = u8::MAX;

impl Headers {
    /// Headers of `bytes` bytes; `sl` is `None` for subnet management.
    pub fn new(to: Lid, pkey: Pkey, sl: Option<ServiceLevel>, payload: u16, bytes: u8) -> Self {
        Self { to, pkey, payload, bytes, sl: sl.map_or(NO_SERVICE_LEVEL, ServiceLevel::to_wire) }
    }

    /// `None` for subnet management.
    #[inline]
    pub fn sl(&self) -> Option<ServiceLevel> {
        ServiceLevel::from_wire(self.sl)
    }
}

/// The next hop of a packet at a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextHop {
    /// Through this port, on this lane.
    Out(u32, VirtualLane),
    /// To port 0 of the switch.
    Local(u32),
}

impl TrafficNetwork {
    /// Takes a snapshot of a fabric.
    pub fn of(fabric: &Fabric) -> Self {
        let mut builder = Builder::default();
        let mut devices = Vec::with_capacity(fabric.devices.len());
        for device in fabric.device_ids() {
            devices.push(builder.device(fabric, device));
        }
        let ports: Vec<PortTables> =
            (0..fabric.ports.len() as u32).map(|id| builder.port(fabric, PortId(id))).collect();
        let lookups: Vec<PortLookup> =
            (0..ports.len() as u32).map(|id| port_lookup(fabric, PortId(id), &ports)).collect();
        let ends = ports.iter().zip(&lookups).enumerate();
        let ends = ends.filter(|(_, (_, lookup))| lookup.kind != PortKind::External);
        let ends = ends.filter_map(|(id, (port, _))| Some((port.lid?, id, port)));
        let owners = ends.flat_map(|(base, id, port)| {
            let lids = (0..port.lid_count).filter_map(move |n| Lid::from_wire(base.to_wire() + n));
            lids.map(move |lid| (lid, PortId(id as u32)))
        });
        Self {
            owners: owners.collect(),
            lookups,
            ports,
            devices,
            keys: builder.keys,
            exits: builder.exits,
            hop_maps: builder.hop_maps,
            maps: builder.maps,
        }
    }

    /// The port that owns a LID.
    pub fn owner(&self, lid: Lid) -> Option<PortId> {
        self.owners.get(&lid).copied()
    }

    /// The base LID of a port.
    pub fn lid(&self, port: PortId) -> Option<Lid> {
        self.ports[port.index()].lid
    }

    /// The adapter ports with a link that carries data.
    pub fn adapter_ports(&self) -> impl Iterator<Item = PortId> {
        let ports = self.lookups.iter().enumerate();
        ports
            .filter(|(_, lookup)| lookup.kind == PortKind::Adapter && lookup.is_active)
            .map(|(id, _)| PortId(id as u32))
    }

    /// All ports in ascending order.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + use<> {
        (0..self.lookups.len() as u32).map(PortId)
    }

    /// The rate of a port's link.
    pub fn rate(&self, port: PortId) -> LinkRate {
        self.ports[port.index()].rate
    }

    /// The largest payload that a port sends, in bytes.
    pub fn mtu(&self, port: PortId) -> u16 {
        self.lookups[port.index()].mtu
    }

    /// The port at the other end of a link that is up.
    pub fn peer(&self, port: PortId) -> Option<PortId> {
        let to = self.lookups[port.index()].to;
        (to != NONE).then_some(PortId(to))
    }

    /// The ports that a packet from adapter port `from` to LID `to` leaves through, in order, as far as the
    /// forwarding tables lead.
    pub fn path(&self, from: PortId, to: Lid) -> impl Iterator<Item = PortId> {
        let next = move |out: &PortId| {
            let at = self.peer(*out).filter(|at| self.lookups[at.index()].kind == PortKind::External)?;
            self.exit(at.0, to).map(PortId)
        };
        std::iter::successors(Some(from), next).take(HOPS_MAX)
    }

    /// The VL arbitration tables of a port.
    pub fn arbitration(&self, port: PortId) -> &Arc<ArbitrationTables> {
        &self.ports[port.index()].tables
    }

    /// Whether a LID is one of the LIDs of a port.
    pub(crate) fn owns(&self, port: u32, lid: Lid) -> bool {
        let port = &self.ports[port as usize];
        port.lid.is_some_and(|base| lid.to_wire().wrapping_sub(base.to_wire()) < port.lid_count)
    }

    /// Whether an adapter may send with a P_Key.
    pub(crate) fn holds(&self, port: u32, key: Pkey) -> bool {
        self.keys_of(port).contains(&key)
    }

    /// Whether an end port accepts a P_Key.
    pub(crate) fn accepts(&self, port: u32, key: Pkey) -> bool {
        self.keys_of(port).iter().any(|held| key.is_accepted_by(*held))
    }

    fn keys_of(&self, port: u32) -> &[Pkey] {
        let (start, end) = self.ports[port as usize].keys;
        &self.keys[start as usize..end as usize]
    }

    /// The lane on which an adapter sends a packet to another port.
    pub(crate) fn inject(&self, port: u32, headers: &Headers) -> Result<VirtualLane, DropReason> {
        let (map, lanes) = (self.ports[port as usize].injection, self.lookups[port as usize].lanes);
        let lane = match headers.sl() {
            Some(sl) => lane_in(map, sl, lanes)?,
            None => VirtualLane::MANAGEMENT,
        };
        self.cross(port, headers)?;
        Ok(lane)
    }

    /// The output port for a LID at the switch of port `at`.
    #[inline]
    pub(crate) fn exit(&self, at: u32, to: Lid) -> Option<u32> {
        let device = &self.devices[self.lookups[at as usize].device as usize];
        let index = device.exits.0 + u32::from(to.to_wire());
        let exit = if index < device.exits.1 { self.exits[index as usize] } else { NO_PORT };
        (exit != NO_PORT).then(|| device.first_port + u32::from(exit))
    }

    /// The next hop of a packet that arrived at a switch port.
    #[inline]
    pub(crate) fn next_hop(&self, at: u32, headers: &Headers) -> Result<NextHop, DropReason> {
        let input = &self.lookups[at as usize];
        let is_allowed = |held: &Pkey| is_allowed_by(headers.pkey, *held);
        if input.enforces_in && headers.sl().is_some() && !self.keys_of(at).iter().any(is_allowed) {
            return Err(DropReason::PartitionAtSwitch);
        }
        let device = &self.devices[input.device as usize];
        let out = self.exit(at, headers.to).ok_or(DropReason::NoRoute)?;
        let exit = out - device.first_port;
        if exit == 0 {
            return if self.owns(out, headers.to) {
                Ok(NextHop::Local(out))
            } else {
                Err(DropReason::WrongPort)
            };
        }
        let lane = match headers.sl() {
            None => VirtualLane::MANAGEMENT,
            Some(sl) => {
                let map = match device.hop_maps {
                    HopMaps::Uniform(map) => map,
                    HopMaps::Each(first, width) => {
                        self.hop_maps[(first + u32::from(input.number) * width + exit) as usize]
                    }
                };
                let map = self.maps[map as usize];
                let output = &self.lookups[out as usize];
                let lane = lane_in(map, sl, output.lanes)?;
                if output.enforces_out && !self.accepts(out, headers.pkey) {
                    return Err(DropReason::PartitionAtSwitch);
                }
                lane
            }
        };
        self.cross(out, headers)?;
        Ok(NextHop::Out(out, lane))
    }

    /// Whether the link behind a port carries a packet.
    #[inline]
    fn cross(&self, out: u32, headers: &Headers) -> Result<(), DropReason> {
        let port = &self.lookups[out as usize];
        match headers.sl() {
            _ if port.to == NONE => Err(DropReason::LinkDown),
            Some(_) if !port.is_active => Err(DropReason::NotActive),
            Some(_) if headers.payload > port.mtu => Err(DropReason::TooLarge),
            _ => Ok(()),
        }
    }
}

fn lane_in(map: u64, sl: ServiceLevel, lanes: u8) -> Result<VirtualLane, DropReason> {
    let lane = VirtualLane::from_wire((map >> (4 * sl.index()) & 0xf) as u8);
    lane.filter(|lane| lane.to_wire() < lanes).ok_or(DropReason::ServiceLevel)
}

fn port_lookup(fabric: &Fabric, id: PortId, ports: &[PortTables]) -> PortLookup {
    let port = fabric.port(id);
    let kind = match (fabric.is_switch(id), port.number) {
        (false, _) => PortKind::Adapter,
        (true, PortNum::MANAGEMENT) => PortKind::Management,
        (true, _) => PortKind::External,
    };
    let to = fabric.linked_port(id);
    PortLookup {
        to: to.map_or(NONE, |to| to.0),
        pace: ports[to.unwrap_or(id).index()].pace,
        device: port.device.0,
        mtu: port.info.neighbor_mtu.bytes(),
        lanes: lane_count(port.info.operational_vls),
        number: port.number.to_wire(),
        kind,
        is_active: to.is_some_and(|to| fabric.carries_data(id, to)),
        enforces_in: port.info.enforce_inbound && kind == PortKind::External,
        enforces_out: port.info.enforce_outbound && kind == PortKind::External,
    }
}

fn packed(map: [u8; SlToVl::LEN]) -> u64 {
    let lanes = SlToVl::decode(&map).0;
    lanes.iter().rev().fold(0, |packed, lane| packed << 4 | u64::from(lane.to_wire()))
}

/// Tables that ports and devices share.
#[derive(Default)]
struct Builder {
    keys: Vec<Pkey>,
    exits: Vec<u8>,
    hop_maps: Vec<u32>,
    maps: Vec<u64>,
    map_numbers: HashMap<u64, u32>,
    tables: HashMap<ArbitrationTables, Arc<ArbitrationTables>>,
}

impl Builder {
    fn device(&mut self, fabric: &Fabric, id: DeviceId) -> DeviceTables {
        let device = &fabric.devices[id.index()];
        let (first_port, exits) = (device.first_port.0, self.exits.len() as u32);
        let mut hop_maps = HopMaps::Uniform(0);
        if let Some(switch) = &device.switch {
            let end = (usize::from(switch.info.linear_fdb_top) + 1).min(switch.linear.stored().len());
            let exit = |lid: usize| {
                let out = device.exit(Lid::from_wire(lid as u16)?)?;
                Some(fabric.port(out).number.to_wire())
            };
            self.exits.extend((0..end).map(|lid| exit(lid).unwrap_or(NO_PORT)));
            hop_maps = self.hop_maps(fabric, device);
        }
        DeviceTables { first_port, exits: (exits, self.exits.len() as u32), hop_maps }
    }

    fn hop_maps(&mut self, fabric: &Fabric, device: &Device) -> HopMaps {
        let start = self.hop_maps.len();
        for input in device.ports().map(|port| fabric.port(port).number) {
            for output in device.ports() {
                let number = self.map(packed(fabric.hop_mapping(input, output)));
                self.hop_maps.push(number);
            }
        }
        let first = self.hop_maps[start];
        if self.hop_maps[start..].iter().all(|map| *map == first) {
            self.hop_maps.truncate(start);
            return HopMaps::Uniform(first);
        }
        HopMaps::Each(start as u32, u32::from(device.info.port_count) + 1)
    }

    /// The index of an SLtoVLMappingTable in `maps`. Most hops share one of a few.
    fn map(&mut self, map: u64) -> u32 {
        let next = self.maps.len() as u32;
        let number = *self.map_numbers.entry(map).or_insert(next);
        if number == next {
            self.maps.push(map);
        }
        number
    }

    fn port(&mut self, fabric: &Fabric, id: PortId) -> PortTables {
        let port = fabric.port(id);
        let first_key = self.keys.len() as u32;
        self.keys.extend(port.keys());
        let rate = fabric.link_rate(id);
        PortTables {
            keys: (first_key, self.keys.len() as u32),
            lid: port.info.lid,
            lid_count: port.info.lmc.lid_count(),
            injection: packed(port.sl_to_vl),
            rate,
            pace: Pace::of(rate.data_rate_gbps() * 1e9),
            tables: self.arbitration(fabric, id),
        }
    }

    fn arbitration(&mut self, fabric: &Fabric, id: PortId) -> Arc<ArbitrationTables> {
        let tables = fabric.arbitration_tables(id);
        let shared = self.tables.entry(tables).or_insert_with_key(|tables| Arc::new(tables.clone()));
        Arc::clone(shared)
    }
}
