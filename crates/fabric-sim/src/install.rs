//! Installs a plan in all devices at once, as a subnet manager would leave them.
//!
//! Every table goes through the agent that a manager's datagrams reach, so the same values are accepted and
//! in force. No M_Key is set, because keys are secrets of the subnet manager.

use fabric_model::FabricPlan;
use fabric_model::plan::{AdapterPortPlan, Enforcement, PkeyTable, PortQos, SwitchPlan, SwitchPortPlan};
use ib_wire::{
    Attribute, Guid, Lid, MulticastBlock, PhysicalState, PkeyBlock, PkeyBlockSelector, PortInfo, PortNum,
    PortState, SMP_DATA_LEN, SlToVl, SlToVlSelector, Status, VlArbBlock, VlArbPart,
};
use thiserror::Error;

use crate::agent::{Access, Operation};
use crate::device::{DeviceId, PortId};
use crate::fabric::Fabric;
use crate::forwarding::Arrival;

/// SubnetTimeout as an exponent of 4.096 µs, the value that Heddle's subnet manager sets.
const SUBNET_TIMEOUT: u8 = 18;

/// HOQLife and LifeTimeValue as exponents of 4.096 µs, likewise.
const LIFE_TIME: u8 = 15;

/// Why a plan cannot be installed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InstallError {
    /// The plan names a node that the fabric does not have.
    #[error("the fabric has no node {0}")]
    NoSuchNode(Guid),
    /// The plan names a port that the node does not have.
    #[error("node {node} has no port {port}")]
    NoSuchPort { node: Guid, port: PortNum },
    /// The device rejected a Set: the table is larger than its capacity or has an invalid entry.
    #[error("node {node} rejected a Set of {attribute:?} with modifier {modifier:#x}: {status:?}")]
    Refused { node: Guid, attribute: Attribute, modifier: u32, status: Status },
}

impl Fabric {
    /// Installs a plan: LIDs, forwarding tables, P_Keys, multicast groups, lanes and VL arbitration; then
    /// activates all planned links.
    ///
    /// Links that the plan does not contain carry no data afterwards. On an error the devices hold a part of
    /// the plan.
    pub fn install(&mut self, plan: &FabricPlan) -> Result<(), InstallError> {
        let manager = plan.manager().lid;
        for switch in plan.switches() {
            let device = self.device_with(switch.guid)?;
            self.close_others(device, switch)?;
        }
        for switch in plan.switches() {
            let device = self.device_with(switch.guid)?;
            self.install_switch(device, switch, manager)?;
        }
        for port in plan.adapter_ports() {
            let id = self.planned_port(port.name.node, port.name.port)?;
            self.install_adapter(id, port, manager)?;
        }
        for state in [PortState::Armed, PortState::Active] {
            for switch in plan.switches() {
                for port in switch.ports.iter() {
                    let id = self.planned_port(switch.guid, port.number)?;
                    self.step_up(id, state)?;
                }
            }
            for port in plan.adapter_ports() {
                let id = self.planned_port(port.name.node, port.name.port)?;
                self.step_up(id, state)?;
            }
        }
        Ok(())
    }

    fn device_with(&self, guid: Guid) -> Result<DeviceId, InstallError> {
        self.device_by_guid(guid).ok_or(InstallError::NoSuchNode(guid))
    }

    fn planned_port(&self, node: Guid, port: PortNum) -> Result<PortId, InstallError> {
        let device = self.device_with(node)?;
        self.port_of(device, port).ok_or(InstallError::NoSuchPort { node, port })
    }

    /// Takes links down that the plan does not contain.
    fn close_others(&mut self, device: DeviceId, plan: &SwitchPlan) -> Result<(), InstallError> {
        let ports: Vec<PortId> = self.ports_of(device).collect();
        for id in ports {
            let number = self.port(id).number;
            let carries = matches!(self.port(id).info.state, PortState::Armed | PortState::Active);
            if number != PortNum::MANAGEMENT && plan.port(number).is_none() && carries {
                self.change_port(id, |info| info.state = PortState::Down)?;
            }
        }
        Ok(())
    }

    fn install_switch(
        &mut self,
        device: DeviceId,
        plan: &SwitchPlan,
        manager: Lid,
    ) -> Result<(), InstallError> {
        let end = self.planned_port(plan.guid, PortNum::MANAGEMENT)?;
        self.change_port(end, |info| address(info, plan.lid, manager))?;
        for port in plan.ports.iter() {
            let id = self.planned_port(plan.guid, port.number)?;
            self.install_external(end, id, port)?;
        }
        for block in 0..plan.linear.block_count() {
            self.write(end, Attribute::LINEAR_FORWARDING, block.into(), plan.linear_block(block))?;
        }
        let (held, positions) = self.multicast_extent(device);
        for block in 0..plan.multicast.block_count().max(held) {
            for position in 0..positions {
                let modifier = MulticastBlock::to_modifier(block, position);
                let data = plan.multicast_block(block, position).encode();
                self.write(end, Attribute::MULTICAST_FORWARDING, modifier, data)?;
            }
        }
        self.write_keys(end, end, &plan.pkeys)?;
        let mut info = self.read(end, Attribute::SWITCH_INFO, 0)?;
        if let Ok(mut switch) = ib_wire::SwitchInfo::decode(&info) {
            (switch.linear_fdb_top, switch.life_time) = (plan.linear.top(), LIFE_TIME);
            info = switch.encode();
        }
        self.write(end, Attribute::SWITCH_INFO, 0, info)
    }

    /// The number of blocks of the multicast table that are in use, and the number of positions of a block.
    fn multicast_extent(&self, device: DeviceId) -> (u16, u8) {
        let table = self.devices[device.index()].switch.as_ref().map(|switch| &switch.multicast);
        table.map_or((0, 0), |table| {
            let blocks = table.group_end().div_ceil(MulticastBlock::ENTRIES);
            (blocks as u16, table.positions() as u8)
        })
    }

    fn install_external(
        &mut self,
        end: PortId,
        id: PortId,
        plan: &SwitchPortPlan,
    ) -> Result<(), InstallError> {
        let enforces = matches!(plan.enforcement, Enforcement::Both(_));
        if let Enforcement::Both(keys) = &plan.enforcement {
            self.write_keys(end, id, keys)?;
        }
        self.change_port(id, |info| {
            (info.neighbor_mtu, info.operational_vls) = (plan.mtu, plan.lanes);
            (info.enforce_inbound, info.enforce_outbound) = (enforces, enforces);
            (info.filter_raw_inbound, info.filter_raw_outbound) = (enforces, enforces);
            info.hoq_life = LIFE_TIME;
        })?;
        let Some(sharing) = &plan.qos else { return Ok(()) };
        self.write_weights(end, id, sharing)?;
        let port_count = self.device_of(end).info.port_count;
        for input in (0..=port_count).filter_map(PortNum::new).filter(|input| *input != plan.number) {
            let map = sharing.by_input.get(&input).unwrap_or(&sharing.otherwise);
            let selector = SlToVlSelector::Hop { input: input.to_wire(), output: plan.number.to_wire() };
            self.write(end, Attribute::SL_TO_VL, selector.to_modifier(), lanes(map))?;
        }
        Ok(())
    }

    fn install_adapter(
        &mut self,
        id: PortId,
        plan: &AdapterPortPlan,
        manager: Lid,
    ) -> Result<(), InstallError> {
        self.change_port(id, |info| {
            address(info, plan.lid, manager);
            (info.neighbor_mtu, info.operational_vls) = (plan.mtu, plan.lanes);
        })?;
        if let Some(sharing) = &plan.qos {
            self.write_weights(id, id, sharing)?;
            self.write(id, Attribute::SL_TO_VL, 0, lanes(&sharing.otherwise))?;
        }
        self.write_keys(id, id, &plan.pkeys)
    }

    /// Writes the VL arbitration tables of a port. Lanes that the plan does not name get no weight; the
    /// high-priority table becomes empty.
    fn write_weights(&mut self, end: PortId, id: PortId, sharing: &PortQos) -> Result<(), InstallError> {
        let (number, info) = (self.port(id).number, &self.port(id).info);
        let capacities = (usize::from(info.vl_arb_low_cap), usize::from(info.vl_arb_high_cap));
        for part in [VlArbPart::LowFirst, VlArbPart::LowSecond, VlArbPart::HighFirst, VlArbPart::HighSecond] {
            let capacity = if part.is_high() { capacities.1 } else { capacities.0 };
            if part.first_entry() >= capacity {
                continue;
            }
            let entry = |offset| sharing.low.get(part.first_entry() + offset).filter(|_| !part.is_high());
            let block = VlArbBlock(std::array::from_fn(|offset| entry(offset).copied().unwrap_or_default()));
            self.write(end, Attribute::VL_ARBITRATION, part.to_modifier(number), block.encode())?;
        }
        Ok(())
    }

    /// Writes all blocks of a P_Key table; entries that the plan does not name become empty.
    fn write_keys(&mut self, end: PortId, id: PortId, table: &PkeyTable) -> Result<(), InstallError> {
        let port = if self.is_switch(id) { self.port(id).number.to_wire().into() } else { 0 };
        let blocks = self.pkey_capacity(id).div_ceil(PkeyBlock::ENTRIES) as u16;
        for block in 0..blocks {
            let modifier = PkeyBlockSelector { port, block }.to_modifier();
            self.write(end, Attribute::PKEY_TABLE, modifier, table.block(block).encode())?;
        }
        Ok(())
    }

    /// Sets the logical state, if the port is in the state before it.
    fn step_up(&mut self, id: PortId, state: PortState) -> Result<(), InstallError> {
        let below = if state == PortState::Armed { PortState::Initialize } else { PortState::Armed };
        if self.port(id).info.state != below {
            return Ok(());
        }
        self.change_port(id, |info| info.state = state)
    }

    /// Changes fields of PortInfo; the port state stays unless `change` sets it.
    fn change_port(&mut self, id: PortId, change: impl FnOnce(&mut PortInfo)) -> Result<(), InstallError> {
        let mut info = self.port(id).info.clone();
        (info.state, info.physical_state) = (PortState::NoChange, PhysicalState::NoChange);
        let size = (info.neighbor_mtu, info.operational_vls);
        change(&mut info);
        let is_live = matches!(self.port(id).info.state, PortState::Armed | PortState::Active);
        if is_live && size != (info.neighbor_mtu, info.operational_vls) {
            // Takes the link down; it is activated at the end.
            info.state = PortState::Down;
        }
        let number = self.port(id).number;
        self.write(self.end_port(id), Attribute::PORT_INFO, number.to_wire().into(), info.encode())
    }

    fn write(
        &mut self,
        end: PortId,
        attribute: Attribute,
        modifier: u32,
        mut data: [u8; SMP_DATA_LEN],
    ) -> Result<(), InstallError> {
        self.access(end, attribute, Operation::Set, modifier, &mut data)
    }

    fn read(
        &mut self,
        end: PortId,
        attribute: Attribute,
        modifier: u32,
    ) -> Result<[u8; SMP_DATA_LEN], InstallError> {
        let mut data = [0; SMP_DATA_LEN];
        self.access(end, attribute, Operation::Get, modifier, &mut data)?;
        Ok(data)
    }

    fn access(
        &mut self,
        end: PortId,
        attribute: Attribute,
        operation: Operation,
        modifier: u32,
        data: &mut [u8; SMP_DATA_LEN],
    ) -> Result<(), InstallError> {
        let arrival = Arrival { entered: end, end };
        let done = self.access_attribute(arrival, attribute, operation, modifier, Access::Full, data);
        let node = self.device_of(end).info.node_guid;
        done.map_err(|status| InstallError::Refused { node, attribute, modifier, status })
    }
}

fn address(info: &mut PortInfo, lid: Lid, manager: Lid) {
    info.lid = Some(lid);
    info.lmc = AdapterPortPlan::LMC;
    info.master_sm_lid = Some(manager);
    info.subnet_timeout = SUBNET_TIMEOUT;
}

/// An SLtoVLMappingTable as attribute data.
fn lanes(map: &SlToVl) -> [u8; SMP_DATA_LEN] {
    let mut data = [0; SMP_DATA_LEN];
    data[..SlToVl::LEN].copy_from_slice(&map.encode());
    data
}
