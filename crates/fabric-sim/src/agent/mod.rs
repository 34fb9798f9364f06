//! The subnet management agent: checks the M_Key, then reads or writes the attribute.

mod congestion;
mod forwarding_tables;
mod lane_tables;
mod performance;
mod port_info;

use std::time::Duration;

use ib_wire::{
    AdaptiveRoutingInfo, Attribute, GuidBlock, LidAddress, MKeyProtection, Mad, Method, MlnxExtPortInfo,
    PkeyBlock, PkeyBlockSelector, PortNum, SMP_DATA_LEN, Status,
};

use crate::device::PortId;
use crate::fabric::{DropReason, Fabric, Timer};
use crate::forwarding::Arrival;

/// What the agent did with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentOutcome {
    /// The datagram was turned into its own response.
    Answered,
    /// The datagram is for the software behind the port.
    ForSoftware,
    /// The datagram was consumed; no response is due.
    UsedUp,
    /// The datagram gets no response.
    Dropped(DropReason),
}

/// Access that a datagram has by the M_Key it presents (IBA 14.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Full,
    /// Read access, M_Key included.
    ReadAll,
    /// Read access; the M_Key reads as 0.
    ReadAllButKey,
    Denied,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Get,
    Set,
}

pub(crate) type AttributeData = [u8; SMP_DATA_LEN];

impl Fabric {
    /// Handles a subnet management datagram at the device that `arrival` reached.
    pub(crate) fn subnet_agent(
        &mut self,
        arrival: Arrival,
        source: LidAddress,
        mad: &mut Mad,
    ) -> AgentOutcome {
        if !mad.has_known_versions() {
            return answer(mad, Status::BAD_VERSION);
        }
        let operation = match mad.method() {
            Method::GET => Operation::Get,
            Method::SET => Operation::Set,
            Method::TRAP_REPRESS => return self.repress_trap(arrival.end, source, mad),
            Method::TRAP => return self.for_manager(arrival.end),
            _ => return answer(mad, Status::UNSUPPORTED_METHOD),
        };
        if mad.attribute() == Attribute::SM_INFO {
            return self.for_manager(arrival.end);
        }
        let access = self.check_key(arrival.end, operation, source, mad);
        if access == Access::Denied {
            return AgentOutcome::Dropped(DropReason::ManagementKey);
        }
        let (attribute, modifier) = (mad.attribute(), mad.modifier());
        let mut data = *mad.smp_data();
        let key = (attribute, modifier);
        let status = match self.access_with_faults(arrival, key, operation, access, &mut data) {
            Ok(()) => {
                *mad.smp_data_mut() = data;
                Status::OK
            }
            Err(status) => status,
        };
        answer(mad, status)
    }

    fn for_manager(&self, end: PortId) -> AgentOutcome {
        if self.port(end).is_sm {
            AgentOutcome::ForSoftware
        } else {
            AgentOutcome::Dropped(DropReason::Unanswered)
        }
    }

    /// Reads or writes one attribute. After a successful Set, `data` holds the values in force.
    pub(crate) fn access_attribute(
        &mut self,
        arrival: Arrival,
        attribute: Attribute,
        operation: Operation,
        modifier: u32,
        access: Access,
        data: &mut AttributeData,
    ) -> Result<(), Status> {
        match (attribute, operation) {
            (Attribute::NODE_DESCRIPTION, Operation::Get) => {
                *data = self.device_of(arrival.end).description.0
            }
            (Attribute::NODE_INFO, Operation::Get) => *data = self.node_info(arrival.entered),
            (Attribute::PORT_INFO, _) => self.access_port_info(arrival, operation, modifier, access, data)?,
            (Attribute::SWITCH_INFO, _) => self.access_switch_info(arrival.end, operation, data)?,
            (Attribute::GUID_INFO, _) => self.access_guids(arrival.end, operation, modifier, data)?,
            (Attribute::PKEY_TABLE, _) => self.access_pkeys(arrival.end, operation, modifier, data)?,
            (Attribute::SL_TO_VL, _) => self.access_sl_to_vl(arrival.end, operation, modifier, data)?,
            (Attribute::VL_ARBITRATION, _) => {
                self.access_arbitration(arrival.end, operation, modifier, data)?
            }
            (Attribute::LINEAR_FORWARDING, _) => {
                self.access_linear(arrival.end, operation, modifier, data)?
            }
            (Attribute::MULTICAST_FORWARDING, _) => {
                self.access_multicast(arrival.end, operation, modifier, data)?
            }
            (Attribute::MLNX_EXT_PORT_INFO, Operation::Get) if self.profile.links.extended_port_info => {
                self.mlnx_ext_port_info(arrival, modifier, data)?
            }
            (Attribute::ADAPTIVE_ROUTING_INFO, _) if self.profile.switches.adaptive_routing => {
                self.access_adaptive_routing(arrival.end, operation, data)?
            }
            _ => return Err(Status::UNSUPPORTED_ATTRIBUTE),
        }
        Ok(())
    }

    /// Checks the presented M_Key against the one of `guard`, the port that protects the device. A violation
    /// is counted, starts the lease timer and raises a trap.
    pub(crate) fn check_key(
        &mut self,
        guard: PortId,
        operation: Operation,
        source: LidAddress,
        mad: &Mad,
    ) -> Access {
        let info = &self.port(guard).info;
        let Some(key) = info.m_key else { return Access::Full };
        if mad.m_key() == Some(key) {
            // A datagram with the right key stops the lease timer.
            self.port_mut(guard).lease_ends = None;
            return Access::Full;
        }
        match (operation, info.m_key_protection) {
            (Operation::Get, MKeyProtection::ReadAll) => Access::ReadAll,
            (Operation::Get, MKeyProtection::ReadAllButKey) => Access::ReadAllButKey,
            _ => {
                self.count_key_violation(guard, source, mad);
                Access::Denied
            }
        }
    }

    fn count_key_violation(&mut self, guard: PortId, source: LidAddress, mad: &Mad) {
        let now = self.now;
        let port = self.port_mut(guard);
        port.info.m_key_violations = port.info.m_key_violations.saturating_add(1);
        if port.info.m_key_lease_period_s != 0 && port.lease_ends.is_none() {
            let ends = now + Duration::from_secs(port.info.m_key_lease_period_s.into());
            port.lease_ends = Some(ends);
            self.start_timer(ends, Timer::Lease(guard));
        }
        self.report_bad_key(guard, source, mad);
    }

    /// Ends an expired M_Key lease: the protection level falls back to 0, so that the key can be read.
    pub(crate) fn expire_lease(&mut self, guard: PortId) {
        let now = self.now;
        let port = self.port_mut(guard);
        if port.lease_ends.is_some_and(|ends| ends <= now) {
            port.lease_ends = None;
            port.info.m_key_protection = MKeyProtection::ReadAll;
        }
    }

    /// NodeInfo as read through the port `entered`.
    pub(crate) fn node_info(&self, entered: PortId) -> AttributeData {
        let device = self.device_of(entered);
        let mut data = device.info.encode();
        data[36] = self.port(entered).number.to_wire();
        data[20..28].copy_from_slice(&self.port(entered).guid.to_wire().to_be_bytes());
        data
    }

    fn access_guids(
        &mut self,
        end: PortId,
        operation: Operation,
        modifier: u32,
        data: &mut AttributeData,
    ) -> Result<(), Status> {
        let capacity = usize::from(self.port(end).info.guid_cap);
        let first = table_start(modifier, GuidBlock::ENTRIES, capacity)?;
        let port = self.port_mut(end);
        if operation == Operation::Set {
            let block = GuidBlock::decode(data);
            for (index, guid) in (first..capacity).zip(block.0) {
                // Entry 0 is the port's own GUID and read-only; aliases start at entry 1.
                if let Some(alias) = index.checked_sub(1) {
                    port.aliases.put(alias, guid);
                }
            }
        }
        let entry = |index: usize| match index.checked_sub(1) {
            None => Some(port.guid),
            Some(alias) => port.aliases.get(alias),
        };
        *data = GuidBlock(std::array::from_fn(|i| entry(first + i))).encode();
        Ok(())
    }

    fn access_pkeys(
        &mut self,
        end: PortId,
        operation: Operation,
        modifier: u32,
        data: &mut AttributeData,
    ) -> Result<(), Status> {
        let position = PkeyBlockSelector::from_modifier(modifier);
        let port = if self.is_switch(end) { self.switch_port(end, position.port)? } else { end };
        let capacity = self.pkey_capacity(port);
        let first = table_start(position.block.into(), PkeyBlock::ENTRIES, capacity)?;
        let table = &mut self.port_mut(port).pkeys;
        if operation == Operation::Set {
            for (index, key) in (first..capacity).zip(PkeyBlock::decode(data).0) {
                table.put(index, key);
            }
        }
        *data = PkeyBlock(std::array::from_fn(|i| table.get(first + i))).encode();
        Ok(())
    }

    /// Number of entries in the P_Key table of a port.
    pub(crate) fn pkey_capacity(&self, port: PortId) -> usize {
        let device = self.device_of(port);
        match &device.switch {
            Some(switch) if self.port(port).number != PortNum::MANAGEMENT => {
                usize::from(switch.info.partition_enforcement_capacity)
            }
            _ => usize::from(device.info.partition_capacity),
        }
    }

    fn mlnx_ext_port_info(
        &self,
        arrival: Arrival,
        modifier: u32,
        data: &mut AttributeData,
    ) -> Result<(), Status> {
        let port = self.selected_port(arrival, modifier)?;
        let fdr10 = u8::from(self.is_fdr10(port));
        *data = MlnxExtPortInfo {
            change_enable: 0,
            link_speed_supported: fdr10,
            link_speed_enabled: fdr10,
            link_speed_active: fdr10,
        }
        .encode();
        Ok(())
    }

    /// Reads AdaptiveRoutingInfo of a switch, or switches adaptive routing on or off. Packets keep the paths
    /// of the linear forwarding table either way.
    fn access_adaptive_routing(
        &mut self,
        end: PortId,
        operation: Operation,
        data: &mut AttributeData,
    ) -> Result<(), Status> {
        let switch = self.device_of_mut(end).switch.as_mut().ok_or(Status::UNSUPPORTED_ATTRIBUTE)?;
        if operation == Operation::Set {
            let wanted = AdaptiveRoutingInfo::decode(data).map_err(|_| Status::INVALID_FIELD)?;
            switch.adaptive_routing = wanted.enabled;
        }
        *data = AdaptiveRoutingInfo { enabled: switch.adaptive_routing }.encode();
        Ok(())
    }

    /// The port of a switch that an attribute modifier selects.
    pub(crate) fn switch_port(&self, end: PortId, number: u16) -> Result<PortId, Status> {
        let number = u8::try_from(number).ok().and_then(PortNum::new);
        number.and_then(|number| self.device_of(end).port(number)).ok_or(Status::INVALID_FIELD)
    }
}

fn answer(mad: &mut Mad, status: Status) -> AgentOutcome {
    mad.set_method(Method::GET_RESP);
    mad.set_status(status);
    AgentOutcome::Answered
}

/// Index of the first entry of a block; an error if the table is shorter.
fn table_start(block: u32, entries: usize, capacity: usize) -> Result<usize, Status> {
    let first = usize::try_from(block).ok().and_then(|block| block.checked_mul(entries));
    first.filter(|first| *first < capacity).ok_or(Status::INVALID_FIELD)
}
