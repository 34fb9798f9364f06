//! The state that must survive a restart, and the rule that it is stored before anything that depends on it
//! is written.
//!
//! A programming run waits in [`Phase::Persisting`] until the caller has stored what
//! [`Manager::poll_persist`] returned. If that fails, for example because the disk is full, the new plan is
//! *held back*: the manager returns to the plan whose decisions are stored, keeps the fabric equal to that
//! one, answers queries from it, and tries again later. Nothing that depends on unsaved decisions is written
//! meanwhile, so the process may be killed at any time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fabric_model::{Decisions, FabricPlan};
use ib_wire::Guid;
use serde::{Deserialize, Serialize};

use crate::key_ring::{KeyRing, KeyVersions};
use crate::keys::Bindings;
use crate::lacks::Lacks;
use crate::link_health::DampedLink;
use crate::manager::{Manager, Phase};
use crate::program::Stage;
use crate::sa::RememberedGroup;
use crate::unsupported::Unsupported;

/// Time before a state that could not be stored is offered again.
const PERSIST_RETRY: Duration = Duration::from_secs(5);

/// The state of a manager that must survive a restart. It contains no secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PersistentState {
    pub decisions: Decisions,
    /// Without them, nodes that hold an M_Key do not answer.
    pub bindings: Bindings,
    pub unsupported: Unsupported,
    /// What devices did not take although tenants or guarantees need it.
    #[serde(skip_serializing_if = "Lacks::is_empty")]
    pub lacks: Lacks,
    /// Number of blocks of multicast forwarding tables that groups of ports have used.
    #[serde(skip_serializing_if = "is_zero")]
    pub multicast_blocks: u16,
    /// Groups of ports with trees of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<RememberedGroup>,
    /// Links that flap or whose error counters grow, in the order in which they were damped. Their quiet time
    /// starts anew with the next manager.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damped_links: Vec<DampedLink>,
    /// [`SiteSecret::fingerprint`](crate::SiteSecret::fingerprint) of the site secret; `None` without M_Keys.
    pub secret: Option<u64>,
    /// The versions of the M_Keys that nodes hold.
    #[serde(skip_serializing_if = "KeyVersions::is_first")]
    pub keys: KeyVersions,
    /// Port GUIDs of the standby managers that store everything before it takes effect. The caller sets it.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub standbys: BTreeSet<Guid>,
    /// Another manager may have the fabric ([`Manager::release`]). A manager with such a state takes it back.
    #[serde(skip_serializing_if = "is_false")]
    pub released: bool,
}

fn is_false(is: &bool) -> bool {
    !is
}

fn is_zero(number: &u16) -> bool {
    *number == 0
}

/// How much of the state is stored.
#[derive(Debug, Default)]
pub(crate) struct Persistence {
    /// The state that was offered and not confirmed yet.
    offered: Option<PersistentState>,
    /// The state that was last confirmed.
    safe: Option<PersistentState>,
    /// The plan of the confirmed decisions.
    safe_plan: Option<Arc<FabricPlan>>,
    /// A plan whose decisions could not be stored.
    held_back: Option<Arc<FabricPlan>>,
    /// Another manager may have the fabric from now on.
    pub(crate) is_released: bool,
    /// After a failure: nothing is offered before this time.
    retry_at: Option<Duration>,
}

impl Persistence {
    /// Whether a state was offered and not confirmed yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.offered.is_some()
    }

    /// Whether the last state could not be stored.
    pub(crate) fn is_failing(&self) -> bool {
        self.retry_at.is_some()
    }

    /// Records that a plan is about to be written: its decisions are stored.
    pub(crate) fn record_safe_plan(&mut self, plan: &Arc<FabricPlan>) {
        self.safe_plan = Some(Arc::clone(plan));
    }
}

impl Manager {
    /// The state that must be stored before anything else is written; `None` if nothing has changed. Answer
    /// with [`Manager::handle_persisted`] or [`Manager::handle_not_persisted`].
    pub fn poll_persist(&mut self) -> Option<PersistentState> {
        if !self.has_state_to_persist() {
            return None;
        }
        self.state_is_new = false;
        let state = self.state();
        self.persistence.offered = Some(state.clone());
        Some(state)
    }

    /// The state of the last [`Manager::poll_persist`] is stored durably. Writing continues.
    pub fn handle_persisted(&mut self, now: Duration) {
        self.persistence.safe = self.persistence.offered.take();
        self.persistence.safe_plan.clone_from(&self.plan);
        self.persistence.retry_at = None;
        if let Some(plan) = self.persistence.held_back.take() {
            return self.apply(now, plan);
        }
        match self.phase {
            Phase::Persisting if !self.state_is_new => self.begin_stage(Stage::ALL[0]),
            Phase::PersistingRotation if !self.state_is_new => self.send_rekeys(),
            _ => {}
        }
        self.proceed(now);
    }

    /// The state of the last [`Manager::poll_persist`] could not be stored. It is offered again after 5 s;
    /// until then nothing that depends on it is written, and the fabric is kept equal to the plan whose
    /// decisions are stored, if there is one.
    pub fn handle_not_persisted(&mut self, now: Duration) {
        self.persistence.offered = None;
        self.persistence.retry_at = Some(now + PERSIST_RETRY);
        self.state_is_new = true;
        if self.phase == Phase::Persisting && self.persistence.safe_plan.is_some() {
            self.phase = Phase::Idle;
            self.hold_back();
        }
        self.put_off_rotation(now + PERSIST_RETRY);
        self.proceed(now);
    }

    /// Whether a plan is held back because its decisions could not be stored.
    pub fn is_holding_back(&self) -> bool {
        self.persistence.held_back.is_some()
    }

    /// Returns to the plan whose decisions are stored.
    fn hold_back(&mut self) {
        let Some(safe) = self.persistence.safe_plan.clone() else { return };
        if self.plan.as_ref().is_some_and(|plan| Arc::ptr_eq(plan, &safe)) {
            return;
        }
        let new = self.plan.replace(safe);
        if self.persistence.held_back.is_none() {
            self.persistence.held_back = new;
        }
        self.state_is_new = Some(self.state()) != self.persistence.safe;
        if !self.plan_is_new() {
            // Queries were restricted to what both plans allow; that ends, because the new plan is held back.
            self.facts_are_new = true;
            self.publish();
        }
    }

    /// Tries a held-back plan again, if it is time. Returns whether it did.
    pub(crate) fn resume_held_back(&mut self, now: Duration) -> bool {
        let is_due = self.persistence.retry_at.is_none_or(|at| at <= now);
        let Some(plan) = self.persistence.held_back.take_if(|_| is_due) else { return false };
        self.apply(now, plan);
        true
    }

    /// Drops a held-back plan, because a newer one was given.
    pub(crate) fn forget_held_back(&mut self) {
        self.persistence.held_back = None;
        self.persistence.retry_at = None;
    }

    /// Whether there is a state to store. During a comparison nothing was decided.
    pub(crate) fn has_state_to_persist(&self) -> bool {
        let is_due = self.persistence.retry_at.is_none_or(|at| at <= self.now);
        // A candidate has decided nothing for others yet.
        self.state_is_new
            && is_due
            && self.plan.is_some()
            && self.phase != Phase::Comparing
            && self.is_master()
    }

    /// When a state that could not be stored is offered again.
    pub(crate) fn persist_timeout(&self) -> Option<Duration> {
        let is_waiting = self.state_is_new || self.persistence.held_back.is_some();
        // Once it is due, it waits only for the current phase.
        self.persistence.retry_at.filter(|at| is_waiting && *at > self.now)
    }

    fn state(&mut self) -> PersistentState {
        PersistentState {
            decisions: self.plan.as_ref().map(|plan| plan.decisions().clone()).unwrap_or_default(),
            bindings: self.bound.list(),
            unsupported: self.unsupported.clone(),
            lacks: self.lacks.clone(),
            multicast_blocks: self.group_trees.blocks_used(),
            groups: self.sa.remembered_groups(),
            damped_links: self.health.damped().copied().collect(),
            secret: self.keys.as_ref().map(KeyRing::site),
            keys: self.keys.as_ref().map(KeyRing::versions).unwrap_or_default(),
            standbys: BTreeSet::new(),
            released: self.persistence.is_released,
        }
    }
}
