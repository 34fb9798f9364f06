//! Link training, unplugged cables and reboots.

use std::borrow::Cow;
use std::time::Duration;

use fabric_model::{LinkRate, Speed, Width};
use ib_wire::{ExtendedSpeed, LinkSpeed, LinkWidth, NodeDescription, PhysicalState, PortState};

use crate::counters::LinkErrors;
use crate::device::{self, Arbitration, DeviceId, PortId};
use crate::fabric::{Fabric, Timer};
use crate::rates;
use crate::traffic::ArbitrationTables;

impl Fabric {
    /// Unplugs the cable of a port; both ends go down. Returns false if the port has no cable.
    pub fn unplug(&mut self, now: Duration, port: PortId) -> bool {
        self.handle_timeout(now);
        let Some(peer) = self.port(port).peer else { return false };
        self.port_mut(port).plugged = false;
        self.port_mut(peer).plugged = false;
        self.take_link_down(port);
        true
    }

    /// Plugs the cable of a port in again; both ends train to Initialize. Returns false if the port has no
    /// cable.
    pub fn plug(&mut self, now: Duration, port: PortId) -> bool {
        self.handle_timeout(now);
        if self.port(port).peer.is_none() {
            return false;
        }
        self.link_up(port);
        true
    }

    /// Unplugs the cable of a port and plugs it in again after `down_for`. Returns false if the port has no
    /// cable.
    pub fn flap(&mut self, now: Duration, port: PortId, down_for: Duration) -> bool {
        let linked = self.unplug(now, port);
        if linked {
            self.start_timer(self.now + down_for, Timer::LinkUp(port));
        }
        linked
    }

    /// Lets a port count errors of its link, as with a bad cable. No packet is lost.
    pub fn add_link_errors(&mut self, port: PortId, errors: &LinkErrors) {
        self.port_mut(port).counters.add_errors(errors);
    }

    /// Restarts a node: tables, LIDs, keys and counters return to factory defaults, and its links train
    /// again. Nothing survives but cables, attached functions and whether the software behind a port is a
    /// subnet manager.
    pub fn reboot(&mut self, now: Duration, device: DeviceId) {
        self.handle_timeout(now);
        let ports: Vec<PortId> = self.devices[device.index()].ports().collect();
        for port in &ports {
            // A port without a LID sends no traps: only the neighbours report the lost links.
            self.port_mut(*port).info.lid = None;
        }
        for port in &ports {
            self.take_link_down(*port);
        }
        for port in &ports {
            self.restore_port(*port);
        }
        let mut fresh = self.new_device(device, self.devices[device.index()].first_port);
        if let Some(switch) = &mut fresh.switch {
            // Only a manager switches it on.
            switch.adaptive_routing = false;
        }
        self.devices[device.index()] = fresh;
        for port in ports {
            if self.port(port).plugged {
                self.train_link(port);
            }
        }
    }

    /// Changes the node description, as software on the node can; every port raises a trap.
    /// [`Fabric::find_device`] still uses the description in the topology.
    pub fn rename(&mut self, now: Duration, device: DeviceId, description: &str) {
        self.handle_timeout(now);
        self.devices[device.index()].description = NodeDescription::new(device::cut(description));
        let ports: Vec<PortId> = self.devices[device.index()].ports().collect();
        for port in ports {
            self.raise_description_change(port);
        }
    }

    fn restore_port(&mut self, id: PortId) {
        let kind = self.device_of(id).info.kind;
        let (peer, plugged, is_sm) = (self.port(id).peer, self.port(id).plugged, self.port(id).is_sm);
        let port = self.port(id);
        let mut fresh = device::new_port(port.device, kind, port.number, self.model_port(id), &self.profile);
        // LIDs in the topology file apply when the fabric is built; a rebooted node has none.
        fresh.info.lid = None;
        fresh.info.lmc = Default::default();
        (fresh.peer, fresh.plugged, fresh.is_sm) = (peer, plugged, is_sm);
        let before = &port.info;
        if before.capability.has(ib_wire::Capability::M_KEY_NVRAM) {
            fresh.info.m_key = before.m_key;
            fresh.info.m_key_protection = before.m_key_protection;
            fresh.info.m_key_lease_period_s = before.m_key_lease_period_s;
        }
        if is_sm {
            fresh.info.capability = fresh.info.capability.with(ib_wire::Capability::IS_SM);
        }
        *self.port_mut(id) = fresh;
    }

    pub(crate) fn link_up(&mut self, port: PortId) {
        let Some(peer) = self.port(port).peer else { return };
        self.port_mut(port).plugged = true;
        self.port_mut(peer).plugged = true;
        self.train_link(port);
    }

    /// Trains a plugged link if both ends poll: physically LinkUp, logically Initialize.
    pub(crate) fn train_link(&mut self, port: PortId) {
        let Some(peer) = self.port(port).peer else { return };
        let willing =
            |id: PortId| self.port(id).plugged && self.port(id).info.physical_state == PhysicalState::Polling;
        if !willing(port) || !willing(peer) {
            return;
        }
        let (width, speed, extended) = self.negotiate(port, peer);
        for end in [port, peer] {
            let info = &mut self.port_mut(end).info;
            info.physical_state = PhysicalState::LinkUp;
            info.state = PortState::Initialize;
            info.link_width_active = width;
            info.link_speed_active = speed;
            info.extended_speed_active = extended;
        }
        self.link_changed(port, peer);
    }

    /// The width and speeds that both ends enable and the cable carries; at least 1x and SDR.
    fn negotiate(&self, port: PortId, peer: PortId) -> (LinkWidth, LinkSpeed, ExtendedSpeed) {
        let [a, b] = [port, peer].map(|end| &self.port(end).info);
        let [x, y] = [port, peer].map(|end| rates::carried_by_cable(self.model_port(end)));
        let width = LinkWidth(a.link_width_enabled.0 & b.link_width_enabled.0 & x.0.0 & y.0.0).widest();
        let speed = LinkSpeed(a.link_speed_enabled.0 & b.link_speed_enabled.0 & x.1.0 & y.1.0).fastest();
        let extended =
            ExtendedSpeed(a.extended_speed_enabled.0 & b.extended_speed_enabled.0 & x.2.0 & y.2.0).fastest();
        (width.unwrap_or(LinkWidth::X1), speed.unwrap_or(LinkSpeed::SDR), extended.unwrap_or_default())
    }

    /// Takes a link down; both ends poll unless they are disabled.
    pub(crate) fn take_link_down(&mut self, port: PortId) {
        let Some(peer) = self.port(port).peer else { return };
        if self.port(port).info.state == PortState::Down && self.port(peer).info.state == PortState::Down {
            return;
        }
        for end in [port, peer] {
            let port = self.port_mut(end);
            port.counters.link_downed += 1;
            port.info.state = PortState::Down;
            if port.info.physical_state != PhysicalState::Disabled {
                port.info.physical_state = PhysicalState::Polling;
            }
        }
        self.link_changed(port, peer);
    }

    fn link_changed(&mut self, port: PortId, peer: PortId) {
        for end in [port, peer] {
            if let Some(switch) = &mut self.device_of_mut(end).switch {
                switch.info.port_state_change = true;
                self.raise_link_state_change(self.end_port(end));
            }
        }
    }

    /// The rate of a port's link: the slowest one if it has none.
    pub(crate) fn link_rate(&self, port: PortId) -> LinkRate {
        let slowest = LinkRate { speed: Speed::Sdr, width: Width::X1 };
        LinkRate::active(&self.port(port).info, self.is_fdr10(port)).unwrap_or(slowest)
    }

    /// The VL arbitration tables of a port as they are now, up to the entries that it has.
    pub(crate) fn arbitration_tables(&self, port: PortId) -> ArbitrationTables {
        let port = self.port(port);
        let defaults = Arbitration::default;
        let held = port.arbitration.as_deref().map_or_else(|| Cow::Owned(defaults()), Cow::Borrowed);
        let high = &held.high[..usize::from(port.info.vl_arb_high_cap).min(held.high.len())];
        let low = &held.low[..usize::from(port.info.vl_arb_low_cap).min(held.low.len())];
        ArbitrationTables::new(high, low, port.info.vl_high_limit)
    }

    /// The VL arbitration tables of a port, created with defaults on first use.
    pub(crate) fn arbitration_mut(&mut self, port: PortId) -> &mut Arbitration {
        self.port_mut(port).arbitration.get_or_insert_default()
    }
}
