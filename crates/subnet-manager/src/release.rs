//! Leaving the fabric to another subnet manager.
//!
//! Before, the caller changes M_Keys to what the other manager can use ([`Manager::rotate_to`]) and exports what it needs. Then
//! [`Manager::release`] stops all writes and has it persisted that the fabric is released. A manager that starts with
//! such a state takes the fabric back: each node may hold the key that it was left with, an operator key or none, and gets its
//! own key of the next epoch.

use std::time::Duration;

use ib_wire::{Guid, MKey};
use thiserror::Error;

use crate::keys::{OperatorKey, SiteSecret};
use crate::manager::{Manager, Phase};
use crate::manager_settings::ManagerSettings;
use crate::persistence::PersistentState;
use crate::rotation::Rotation;

/// The M_Key that a port holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldKey {
    /// GUID of the port: of port 0 of a switch, or of a port of an adapter.
    pub port: Guid,
    pub m_key: Option<MKey>,
}

/// Why the fabric is not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReleaseRefused {
    #[error("the manager is at work: the fabric does not equal the plan, or a sweep is in progress")]
    Busy,
    #[error("{behind} nodes that answer do not hold the key that they are to be released with")]
    KeysChanging { behind: usize },
}

impl Manager {
    /// [`Manager::new`] where nodes may hold operator keys, because the fabric is or was released. A state of a released fabric
    /// makes a manager that takes it back: nodes get their own keys again.
    pub fn with_operator_keys(
        settings: ManagerSettings,
        secrets: impl IntoIterator<Item = SiteSecret>,
        operator_keys: impl IntoIterator<Item = OperatorKey>,
        state: &PersistentState,
    ) -> Self {
        let mut manager = Self::new(settings, secrets, state);
        if let Some(keys) = &mut manager.keys {
            operator_keys.into_iter().for_each(|key| keys.add_operator_key(key));
            if state.released {
                keys.reclaim(&manager.bound);
                manager.rotation = Rotation::new(&keys.versions());
            }
            // The first request has to carry one of these keys.
            let _ = manager.window.drop_waiting(|_| true);
            manager.discover_all();
        }
        manager
    }

    /// Whether [`release`](Self::release) can be called now: no write is pending, and the fabric equals the plan.
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub fn check_release(&self) -> Result<(), ReleaseRefused> {
        let is_settled = self.in_force.is_some() && !self.plan_is_new() && !self.is_holding_back();
        if self.phase != Phase::Idle || !self.window.is_idle() || !is_settled || self.has_state_to_persist() {
            return Err(ReleaseRefused::Busy);
        }
        match self.reachable_behind().count() {
            0 => Ok(()),
            behind => Err(ReleaseRefused::KeysChanging { behind }),
        }
    }

    /// Stops all writes, for good. The next persisted state says so; once it is stored, another manager may start. Queries of
    /// subnet administration are answered as before.
    ///
    /// # Errors
    ///
    /// Nothing is changed, for the reason given.
    pub fn release(&mut self, now: Duration) -> Result<(), ReleaseRefused> {
        self.check_release()?;
        self.now = now;
        self.persistence.is_released = true;
        self.state_is_new = true;
        Ok(())
    }

    /// Whether the fabric is released, and that is persisted.
    pub fn is_released(&self) -> bool {
        self.persistence.is_released && !self.state_is_new && !self.persistence.is_waiting()
    }

    /// The M_Keys that the ports of nodes that answer hold, by port GUID.
    pub fn held_keys(&self) -> Vec<HeldKey> {
        let m_key = |port| self.keys.as_ref().and_then(|keys| keys.key(&self.bound, port));
        let mut held = Vec::new();
        for (guid, node) in &self.observed.nodes {
            for port in self.key_ports(*guid) {
                // A switch has one GUID for port 0, found through whichever port it was reached.
                let found = match node.is_switch() {
                    true => node.port_guids.values().next(),
                    false => node.port_guids.get(&port.port),
                };
                held.extend(found.map(|guid| HeldKey { port: *guid, m_key: m_key(port) }));
            }
        }
        held.sort_by_key(|held| held.port);
        held
    }
}
