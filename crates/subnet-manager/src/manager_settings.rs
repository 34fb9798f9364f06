//! The settings of a subnet manager.

use std::time::Duration;

use ib_wire::{Gid, SmKey};

use crate::lifetimes::DRAIN_TIME;
use crate::link_health::LinkHealthSettings;
use crate::mad_window::MadLimits;
use crate::sweep::SweepSettings;

/// Settings of a subnet manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagerSettings {
    pub limits: MadLimits,
    pub sweeps: SweepSettings,
    /// SMInfo priority, 0 to 15; the highest becomes master.
    pub priority: u8,
    /// SM_Key in SMInfo, with which subnet managers recognise each other. It protects nothing, because every
    /// port can read it.
    pub sm_key: Option<SmKey>,
    /// GID prefix of the subnet, with which the GIDs of all ports begin.
    pub gid_prefix: u64,
    /// Drain time: after withdrawing routes, wait this long for packets in flight before installing routes
    /// that could deadlock with them.
    pub drain_time: Duration,
    /// When links are damped.
    pub link_health: LinkHealthSettings,
}

impl Default for ManagerSettings {
    fn default() -> Self {
        let (limits, sweeps) = (MadLimits::default(), SweepSettings::default());
        // OpenSM's default. OpenSM yields only to a manager with the same SM_Key.
        let sm_key = SmKey::from_wire(1);
        let (gid_prefix, link_health) = (Gid::DEFAULT_PREFIX, LinkHealthSettings::default());
        Self { limits, sweeps, priority: 15, sm_key, gid_prefix, drain_time: DRAIN_TIME, link_health }
    }
}
