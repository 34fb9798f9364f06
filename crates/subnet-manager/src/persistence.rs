//! What the next manager has to know, and the rule that it is safe before anything that depends on it is written.
//!
//! A pass over the fabric waits in [`Phase::Persisting`] until its caller has kept what [`Manager::poll_persist`] gave
//! out. If that fails, a full disk for example, the new plan is *held back*: the manager returns to the plan whose
//! decisions are safe, keeps the fabric equal to that one and answers queries from it, and tries again later. Nothing
//! that depends on what is not safe is written meanwhile, so a manager may be killed at any time as before.

use std::sync::Arc;
use std::time::Duration;

use fabric_model::{Decisions, FabricPlan};
use serde::{Deserialize, Serialize};

use crate::keys::{Bindings, SiteSecret};
use crate::manager::{Manager, Phase};
use crate::program::Stage;
use crate::unsupported::Unsupported;

/// How long to wait before what could not be kept is given out again.
const PERSIST_RETRY: Duration = Duration::from_secs(5);

/// What the next manager has to know. It holds no secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PersistentState {
    /// What was decided.
    pub decisions: Decisions,
    /// Which node was met where: without it, nodes under a key stay silent.
    pub bindings: Bindings,
    /// What devices do not take.
    pub unsupported: Unsupported,
    /// Tells the site secret from others; [`SiteSecret::fingerprint`].
    pub secret: Option<u64>,
}

/// How far what a manager knows is safe.
#[derive(Debug, Default)]
pub(crate) struct Persistence {
    /// What was given out and not confirmed yet.
    offered: Option<PersistentState>,
    /// What was last confirmed to be safe.
    safe: Option<PersistentState>,
    /// The plan with the decisions in it.
    safe_plan: Option<Arc<FabricPlan>>,
    /// A plan whose decisions could not be kept.
    held_back: Option<Arc<FabricPlan>>,
    /// Keeping failed; nothing is given out before.
    retry_at: Option<Duration>,
}

impl Persistence {
    /// A plan is about to be written: its decisions are safe.
    pub(crate) fn record_safe_plan(&mut self, plan: &Arc<FabricPlan>) {
        self.safe_plan = Some(Arc::clone(plan));
    }
}

impl Manager {
    /// What has to be safe before anything else is written to the fabric; answer with [`Manager::handle_persisted`] or
    /// [`Manager::handle_not_persisted`].
    pub fn poll_persist(&mut self) -> Option<PersistentState> {
        if !self.has_state_to_persist() {
            return None;
        }
        self.state_is_new = false;
        let state = self.state();
        self.persistence.offered = Some(state.clone());
        Some(state)
    }

    /// What [`Manager::poll_persist`] gave out is safe: what depends on it may leave.
    pub fn handle_persisted(&mut self, now: Duration) {
        self.persistence.safe = self.persistence.offered.take();
        self.persistence.safe_plan.clone_from(&self.plan);
        self.persistence.retry_at = None;
        if let Some(plan) = self.persistence.held_back.take() {
            return self.apply(now, plan);
        }
        if self.phase == Phase::Persisting && !self.state_is_new {
            self.begin_stage(Stage::ALL[0]);
        }
        self.proceed(now);
    }

    /// What [`Manager::poll_persist`] gave out could not be kept. It is given out again after a while; until then
    /// nothing is written that depends on it, and the fabric is kept equal to the plan that is safe, if there is one.
    pub fn handle_not_persisted(&mut self, now: Duration) {
        self.persistence.offered = None;
        self.persistence.retry_at = Some(now + PERSIST_RETRY);
        self.state_is_new = true;
        if self.phase == Phase::Persisting && self.persistence.safe_plan.is_some() {
            self.phase = Phase::Idle;
            self.hold_back();
        }
        self.proceed(now);
    }

    /// Whether a plan waits because its decisions cannot be kept.
    pub fn is_holding_back(&self) -> bool {
        self.persistence.held_back.is_some()
    }

    /// Returns to the plan that is safe.
    fn hold_back(&mut self) {
        let Some(safe) = self.persistence.safe_plan.clone() else { return };
        if self.plan.as_ref().is_some_and(|plan| Arc::ptr_eq(plan, &safe)) {
            return;
        }
        self.persistence.held_back = self.plan.replace(safe);
        self.state_is_new = Some(self.state()) != self.persistence.safe;
        if !self.plan_is_new() {
            // Queries were narrowed to what both plans allow; the new one is not coming for now.
            self.facts_are_new = true;
            self.publish();
        }
    }

    /// Tries a plan again that was held back; whether it is time to.
    pub(crate) fn resume_held_back(&mut self, now: Duration) -> bool {
        let is_due = self.persistence.retry_at.is_none_or(|at| at <= now);
        let Some(plan) = self.persistence.held_back.take_if(|_| is_due) else { return false };
        self.apply(now, plan);
        true
    }

    /// A plan was given: it takes the place of one that was held back, and keeping it is tried at once.
    pub(crate) fn forget_held_back(&mut self) {
        self.persistence.held_back = None;
        self.persistence.retry_at = None;
    }

    /// Whether something has to be safe. While a plan is only looked at, nothing was decided.
    pub(crate) fn has_state_to_persist(&self) -> bool {
        let is_due = self.persistence.retry_at.is_none_or(|at| at <= self.now);
        self.state_is_new && is_due && self.plan.is_some() && self.phase != Phase::Comparing
    }

    /// When something that could not be kept is tried again.
    pub(crate) fn persist_timeout(&self) -> Option<Duration> {
        let is_waiting = self.state_is_new || self.persistence.held_back.is_some();
        // Once it is due, it waits for nothing but what is going on.
        self.persistence.retry_at.filter(|at| is_waiting && *at > self.now)
    }

    fn state(&mut self) -> PersistentState {
        PersistentState {
            decisions: self.plan.as_ref().map(|plan| plan.decisions().clone()).unwrap_or_default(),
            bindings: self.bound.list(),
            unsupported: self.unsupported.clone(),
            secret: self.secret.as_ref().map(SiteSecret::fingerprint),
        }
    }
}
