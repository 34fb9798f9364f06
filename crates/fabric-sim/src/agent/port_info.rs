//! PortInfo and SwitchInfo: the port state machine and the fields that a subnet manager may set.

use fabric_model::Speed;
use ib_wire::{
    Capability, DataLanes, ExtendedSpeed, LinkDownDefault, LinkSpeed, LinkWidth, Mtu, PhysicalState,
    PortInfo, PortNum, PortState, Status, SwitchInfo,
};

use super::{Access, AttributeData, Operation};
use crate::device::PortId;
use crate::fabric::Fabric;
use crate::forwarding::Arrival;

impl Fabric {
    pub(super) fn access_port_info(
        &mut self,
        arrival: Arrival,
        operation: Operation,
        modifier: u32,
        access: Access,
        data: &mut AttributeData,
    ) -> Result<(), Status> {
        let port = self.selected_port(arrival, modifier)?;
        let knows_extended_speeds = modifier & PortInfo::EXTENDED_SPEEDS_KNOWN != 0;
        let is_strict = self.profile.behaviour.extended_speeds_on_request;
        // A device without extended speeds does not know the bit.
        if is_strict && knows_extended_speeds && !self.has_extended_speeds(port) {
            return Err(Status::INVALID_FIELD);
        }
        let shows_extended_speeds = knows_extended_speeds || !is_strict;
        if operation == Operation::Set {
            // Through an adapter port only that port can be configured.
            if !self.is_switch(port) && port != arrival.end {
                return Err(Status::INVALID_FIELD);
            }
            let mut wanted = PortInfo::decode(data).map_err(|_| Status::INVALID_FIELD)?;
            if !shows_extended_speeds {
                wanted.extended_speed_enabled = ExtendedSpeed::default();
            }
            self.set_port_info(port, &wanted)?;
        }
        *data = self.port_info(port, arrival.entered, access);
        if !shows_extended_speeds {
            // The extended speeds are shown only to requesters that understand them (A-PORT-4).
            data[62..].fill(0);
        }
        Ok(())
    }

    /// PortInfo of `port`, as read through `entered`.
    pub(crate) fn port_info(&self, port: PortId, entered: PortId, access: Access) -> AttributeData {
        let mut data = self.port(port).info.encode();
        data[28] = self.port(entered).number.to_wire();
        if access == Access::ReadAllButKey {
            data[..8].fill(0);
        }
        data
    }

    /// The port that a modifier selects. On an adapter, 0 selects the port that was reached.
    pub(super) fn selected_port(&self, arrival: Arrival, modifier: u32) -> Result<PortId, Status> {
        let number = PortInfo::port_of_modifier(modifier).ok_or(Status::INVALID_FIELD)?;
        if number == PortNum::MANAGEMENT && !self.is_switch(arrival.end) {
            return Ok(arrival.end);
        }
        self.device_of(arrival.end).port(number).ok_or(Status::INVALID_FIELD)
    }

    /// Whether the device of a port has extended speeds. Switches say so at port 0.
    fn has_extended_speeds(&self, port: PortId) -> bool {
        self.port(self.end_port(port)).info.capability.has(Capability::EXTENDED_SPEEDS)
    }

    /// Whether the link of a port runs at FDR10. Only the Mellanox vendor attribute distinguishes it from
    /// QDR.
    pub(crate) fn is_fdr10(&self, port: PortId) -> bool {
        let trained = |end: PortId| {
            let speed_max = self.profile.speed_max(self.is_switch(end));
            self.model_port(end).rate.map(|rate| rate.speed.min(speed_max))
        };
        let ends = [Some(port), self.port(port).peer];
        ends.into_iter().flatten().filter_map(trained).min() == Some(Speed::Fdr10)
    }

    /// Applies all settable fields of `wanted`, or none of them if one is invalid.
    fn set_port_info(&mut self, port: PortId, wanted: &PortInfo) -> Result<(), Status> {
        let current = self.port(port).info.clone();
        let is_switch = self.is_switch(port);
        let is_end_port = self.end_port(port) == port;
        let mut next = current.clone();
        set_link_limits(&mut next, wanted)?;
        let is_live =
            matches!(current.state, PortState::Armed | PortState::Active) && self.port(port).peer.is_some();
        let is_resized =
            (next.neighbor_mtu, next.operational_vls) != (current.neighbor_mtu, current.operational_vls);
        let is_refused = self.profile.behaviour.resize_below_armed && is_live && is_resized;
        if is_refused && wanted.state != PortState::Down {
            // Buffers of a live link are not divided anew (A-PORT-10).
            return Err(Status::INVALID_FIELD);
        }
        match &self.device_of(port).switch {
            Some(switch) if !is_end_port => set_switch_filters(&mut next, wanted, &switch.info),
            _ => {}
        }
        if !is_switch || self.profile.switches.writable_lifetimes {
            next.vl_stall_count = wanted.vl_stall_count;
            next.hoq_life = wanted.hoq_life;
        }
        if is_end_port {
            set_addresses(&mut next, wanted)?;
            if self.profile.behaviour.management_keys {
                set_key(&mut next, wanted);
            }
        }
        reset_counters(&mut next, wanted);
        let step = self.state_step(port, &current, wanted)?;
        let port_state = self.port_mut(port);
        port_state.info = next;
        port_state.registrations = port_state.registrations.wrapping_add(u32::from(wanted.client_reregister));
        self.take_step(port, step);
        Ok(())
    }

    /// The state transition that a Set requests. An error if the port state machine has no such transition.
    fn state_step(&self, port: PortId, current: &PortInfo, wanted: &PortInfo) -> Result<StateStep, Status> {
        let is_linked = current.physical_state == PhysicalState::LinkUp && self.port(port).peer.is_some();
        let logical = match (wanted.state, current.state) {
            (PortState::NoChange, _) => StateStep::None,
            // A port that is Active already answers an error (A-PORT-9): it may have become so by itself.
            (PortState::Active, PortState::Active) if self.profile.behaviour.active_twice_is_refused => {
                return Err(Status::INVALID_FIELD);
            }
            (wanted, current) if wanted == current && wanted != PortState::Down => StateStep::None,
            (PortState::Down, _) => StateStep::Retrain,
            (PortState::Armed, PortState::Initialize) if is_linked => StateStep::To(PortState::Armed),
            (PortState::Active, PortState::Armed) if is_linked => StateStep::To(PortState::Active),
            _ => return Err(Status::INVALID_FIELD),
        };
        match wanted.physical_state {
            PhysicalState::NoChange => Ok(logical),
            // A physical state change is valid only with logical state Down or NoChange in the same Set.
            _ if !matches!(logical, StateStep::None | StateStep::Retrain) => Err(Status::INVALID_FIELD),
            PhysicalState::Disabled => Ok(StateStep::Disable),
            PhysicalState::Polling | PhysicalState::Sleep => Ok(StateStep::Poll),
            PhysicalState::LinkUp if is_linked => Ok(logical),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn take_step(&mut self, port: PortId, step: StateStep) {
        match step {
            StateStep::None => {}
            StateStep::To(state) => self.port_mut(port).info.state = state,
            StateStep::Retrain => {
                self.take_link_down(port);
                self.train_link(port);
            }
            StateStep::Disable => {
                self.take_link_down(port);
                self.port_mut(port).info.physical_state = PhysicalState::Disabled;
            }
            StateStep::Poll => {
                self.take_link_down(port);
                if self.port(port).peer.is_some() || self.end_port(port) != port || !self.is_switch(port) {
                    self.port_mut(port).info.physical_state = PhysicalState::Polling;
                }
                self.train_link(port);
            }
        }
    }

    pub(super) fn access_switch_info(
        &mut self,
        end: PortId,
        operation: Operation,
        data: &mut AttributeData,
    ) -> Result<(), Status> {
        let has_lifetimes = self.profile.switches.writable_lifetimes;
        let switch = self.device_of_mut(end).switch.as_mut().ok_or(Status::UNSUPPORTED_ATTRIBUTE)?;
        if operation == Operation::Set {
            let wanted = SwitchInfo::decode(data).map_err(|_| Status::INVALID_FIELD)?;
            if wanted.linear_fdb_top >= switch.info.linear_fdb_capacity {
                return Err(Status::INVALID_FIELD);
            }
            let info = &mut switch.info;
            info.linear_fdb_top = wanted.linear_fdb_top;
            info.multicast_fdb_top = wanted.multicast_fdb_top;
            if has_lifetimes {
                info.life_time = wanted.life_time;
            }
            info.default_port = wanted.default_port;
            info.default_multicast_primary_port = wanted.default_multicast_primary_port;
            info.default_multicast_not_primary_port = wanted.default_multicast_not_primary_port;
            // Writing 1 clears PortStateChange.
            info.port_state_change &= !wanted.port_state_change;
        }
        *data = switch.info.encode();
        Ok(())
    }
}

/// A transition of the port state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StateStep {
    None,
    /// One step up in the logical state.
    To(PortState),
    /// The link goes down and trains again.
    Retrain,
    /// The link goes down and stays down.
    Disable,
    /// The port polls for its peer.
    Poll,
}

fn set_link_limits(next: &mut PortInfo, wanted: &PortInfo) -> Result<(), Status> {
    next.link_width_enabled = choose_width(next, wanted.link_width_enabled)?;
    next.link_speed_enabled = choose_speed(next, wanted.link_speed_enabled)?;
    next.extended_speed_enabled = choose_extended_speed(next, wanted.extended_speed_enabled);
    next.neighbor_mtu = match wanted.neighbor_mtu {
        Mtu::NoChange => next.neighbor_mtu,
        mtu if mtu.bytes() == 0 || mtu.bytes() > next.mtu_cap.bytes() => return Err(Status::INVALID_FIELD),
        mtu => mtu,
    };
    next.operational_vls = match wanted.operational_vls {
        DataLanes::NoChange => next.operational_vls,
        lanes if lanes.count() == 0 || lanes.count() > next.vl_cap.count() => {
            return Err(Status::INVALID_FIELD);
        }
        lanes => lanes,
    };
    next.link_down_default = match wanted.link_down_default {
        LinkDownDefault::NoChange => next.link_down_default,
        LinkDownDefault::Unknown(_) => return Err(Status::INVALID_FIELD),
        state => state,
    };
    next.vl_high_limit = wanted.vl_high_limit;
    next.local_phy_errors = wanted.local_phy_errors;
    next.overrun_errors = wanted.overrun_errors;
    Ok(())
}

/// Width to enable: 0 keeps the current value, 255 enables all supported widths, anything else must be
/// supported.
fn choose_width(current: &PortInfo, wanted: LinkWidth) -> Result<LinkWidth, Status> {
    match wanted.0 {
        0 => Ok(current.link_width_enabled),
        0xff => Ok(current.link_width_supported),
        bits if bits & !current.link_width_supported.0 == 0 => Ok(wanted),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Speed to enable: 0 keeps the current value, 15 enables all supported speeds, anything else must be
/// supported.
fn choose_speed(current: &PortInfo, wanted: LinkSpeed) -> Result<LinkSpeed, Status> {
    match wanted.0 {
        0 => Ok(current.link_speed_enabled),
        0xf => Ok(current.link_speed_supported),
        bits if bits & !current.link_speed_supported.0 == 0 => Ok(wanted),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Extended speed to enable: 0 keeps the current value; unsupported bits are ignored.
fn choose_extended_speed(current: &PortInfo, wanted: ExtendedSpeed) -> ExtendedSpeed {
    match wanted.0 {
        0 => current.extended_speed_enabled,
        bits => ExtendedSpeed(bits & current.extended_speed_supported.0),
    }
}

/// Sets the partition and raw-packet filters of an external switch port. A filter that the switch does not
/// have stays off (A-PROF-1).
fn set_switch_filters(next: &mut PortInfo, wanted: &PortInfo, switch: &SwitchInfo) {
    next.enforce_inbound = wanted.enforce_inbound && switch.inbound_enforcement;
    next.enforce_outbound = wanted.enforce_outbound && switch.outbound_enforcement;
    next.filter_raw_inbound = wanted.filter_raw_inbound && switch.filter_raw_inbound;
    next.filter_raw_outbound = wanted.filter_raw_outbound && switch.filter_raw_outbound;
}

fn set_addresses(next: &mut PortInfo, wanted: &PortInfo) -> Result<(), Status> {
    if let Some(lid) = wanted.lid {
        let below = wanted.lmc.lid_count() - 1;
        let last = lid.to_wire().checked_add(below).filter(|last| *last <= ib_wire::Lid::MAX);
        if lid.to_wire() & below != 0 || last.is_none() {
            return Err(Status::INVALID_FIELD);
        }
    }
    next.lid = wanted.lid;
    next.lmc = wanted.lmc;
    next.master_sm_lid = wanted.master_sm_lid;
    next.master_sm_sl = wanted.master_sm_sl;
    next.gid_prefix = wanted.gid_prefix;
    next.subnet_timeout = wanted.subnet_timeout;
    next.multicast_pkey_trap_suppression = wanted.multicast_pkey_trap_suppression;
    Ok(())
}

fn set_key(next: &mut PortInfo, wanted: &PortInfo) {
    next.m_key = wanted.m_key;
    next.m_key_protection = wanted.m_key_protection;
    next.m_key_lease_period_s = wanted.m_key_lease_period_s;
}

/// Resets the violation counters that are written as 0. Writing back the value that was read changes nothing.
fn reset_counters(next: &mut PortInfo, wanted: &PortInfo) {
    if wanted.m_key_violations == 0 {
        next.m_key_violations = 0;
    }
    if wanted.pkey_violations == 0 {
        next.pkey_violations = 0;
    }
    if wanted.qkey_violations == 0 {
        next.qkey_violations = 0;
    }
}
