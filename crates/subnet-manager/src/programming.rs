//! A programming run: from the tables that devices hold to those of a plan, stage by stage.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fabric_model::FabricPlan;
use ib_wire::Guid;

use crate::backlog::{Job, JobKind};
use crate::event::SmEvent;
use crate::manager::{Manager, Phase};
use crate::manager_settings::ManagerSettings;
use crate::observed::ObservedNode;
use crate::program::{Stage, WeightWrite, without_state};
use crate::sa::{Directory, ManagerFacts};
use crate::scope::Scope;

impl Manager {
    pub(crate) fn plan_is_new(&self) -> bool {
        match (&self.plan, &self.in_force) {
            (Some(plan), Some(in_force)) => !Arc::ptr_eq(plan, in_force),
            (plan, _) => plan.is_some(),
        }
    }

    /// Reports attributes that something else changed; not those of new nodes or of a new plan.
    pub(crate) fn report_drift(&mut self) {
        let Some(plan) = self.in_force.clone() else { return };
        let changed = self.changed.difference(&self.fresh).copied().collect();
        let scope = Scope::between(Some(&plan), &plan, &changed, &self.observed.nodes);
        let mut differences = self.comparison(&plan, &scope).known_differences();
        // What a device never took was not changed by somebody else.
        differences.retain(|write| !self.lacks.contains(&write.target()));
        let drifts = differences.into_iter().map(|write| {
            let (attribute, modifier) = write.key;
            SmEvent::Drift { node: write.node, attribute, modifier }
        });
        drifts.for_each(|drift| self.emit(drift));
    }

    /// Whether every node of a plan is known. If not, the fabric has changed, and another plan has to follow.
    pub(crate) fn can_reach_all_of(&self, plan: &FabricPlan) -> bool {
        let nodes = &self.observed.nodes;
        plan.switches().all(|switch| nodes.contains_key(&switch.guid))
            && plan.adapter_ports().all(|port| nodes.contains_key(&port.name.node))
    }

    pub(crate) fn begin_programming(&mut self) {
        let Some(plan) = self.plan.clone().filter(|plan| self.can_reach_all_of(plan)) else { return };
        self.phase = Phase::Reading;
        self.sets_before = self.window.counts.sets;
        self.written.clear();
        self.closing.clear();
        self.scope = Scope::between(self.in_force.as_deref(), &plan, &self.changed, &self.observed.nodes);
        let scope = std::mem::take(&mut self.scope);
        let reads = self.comparison(&plan, &scope).reads();
        self.scope = scope;
        self.backlog.fill(reads.into_iter().map(|target| Job { target, kind: JobKind::Read }));
    }

    /// Before a run is abandoned: marks the devices in its scope as changed, because they may hold parts of
    /// it.
    pub(crate) fn distrust_interrupted_run(&mut self) {
        if let (Phase::Writing(_) | Phase::Verifying, Some(plan)) = (self.phase, &self.plan) {
            let ports = self.scope.adapter_ports.iter().filter_map(|port| plan.adapter_port(*port));
            self.changed.extend(ports.map(|port| port.name.node));
            self.changed.extend(&self.scope.switches);
        }
    }

    /// All tables are read: waits until the state is stored, then starts writing.
    pub(crate) fn persist_decisions(&mut self, now: Duration) {
        if !self.silent.is_empty() {
            return self.interrupt(now);
        }
        self.announce();
        if self.state_is_new {
            self.phase = Phase::Persisting;
        } else {
            self.begin_stage(Stage::ALL[0]);
        }
    }

    /// Restricts subnet administration to what the plan in force and the next plan both allow.
    fn announce(&mut self) {
        if self.group_trees.is_only_change {
            return;
        }
        if let (Some(directory), Some(plan), true) = (&self.directory, &self.plan, self.plan_is_new()) {
            let next = Arc::new(directory.after(Arc::clone(plan)));
            self.sa.announce(Arc::clone(&next));
            self.directory = Some(next);
        }
    }

    /// Subnet administration answers from the plan now.
    pub(crate) fn publish(&mut self) {
        let Some(plan) = &self.plan else { return };
        if let (Some(directory), true) = (&self.directory, self.group_trees.is_only_change) {
            let amended = Arc::new(directory.with_multicast_tables_of(Arc::clone(plan)));
            self.directory = Some(Arc::clone(&amended));
            self.sa.amend(amended);
            if !self.facts_are_new {
                return;
            }
        }
        if std::mem::take(&mut self.facts_are_new) || self.directory.is_none() {
            let ManagerSettings { priority, gid_prefix, .. } = self.settings;
            let facts = ManagerFacts { priority, activity: self.activity, gid_prefix };
            let nodes = self.observed.nodes.values().filter_map(ObservedNode::facts);
            self.directory = Some(Arc::new(Directory::new(Arc::clone(plan), facts, nodes)));
        }
        if let Some(directory) = &self.directory {
            self.sa.publish(Arc::clone(directory));
        }
    }

    pub(crate) fn begin_stage(&mut self, stage: Stage) {
        self.bound.seal();
        self.phase = Phase::Writing(stage);
        let Some(plan) = self.plan.clone() else { return };
        if stage == Stage::ALL[0] {
            self.persistence.record_safe_plan(&plan);
        }
        if stage == Stage::Closed {
            self.retrained = self.comparison(&plan, &self.scope).retrained_nodes();
        }
        let comparison = self.comparison(&plan, &self.scope);
        if stage == Stage::Routes {
            self.route_steps = comparison.route_steps().into();
            return;
        }
        if stage == Stage::Weights {
            self.weight_steps = comparison.weight_steps().into();
            return;
        }
        let mut writes = comparison.writes(stage);
        if stage == Stage::Addresses {
            self.ask_with_new_manager(&mut writes);
        }
        let data = |data| if stage.keeps_state() { without_state(data) } else { data };
        self.backlog.fill(
            writes
                .into_iter()
                .map(|write| Job { target: write.target(), kind: JobKind::Write(data(write.data)) }),
        );
    }

    /// Starts the next step of the VL arbitration tables. Returns whether there is one.
    fn begin_weight_step(&mut self) -> bool {
        let Some(step) = self.weight_steps.pop_front() else { return false };
        let kind = |write: WeightWrite| JobKind::Write(write.block.encode());
        self.backlog.fill(step.into_iter().map(|write| Job { target: write.target, kind: kind(write) }));
        true
    }

    /// Starts the next step of the linear forwarding tables. Returns whether there is one.
    fn begin_route_step(&mut self, now: Duration) -> bool {
        let (Some(plan), Some(step)) = (self.plan.clone(), self.route_steps.pop_front()) else {
            return false;
        };
        let writes = self.comparison(&plan, &self.scope).writes_of_step(&step);
        self.backlog.fill(
            writes.into_iter().map(|write| Job { target: write.target(), kind: JobKind::Write(write.data) }),
        );
        if step.drain {
            self.drained_at = Some(now + self.settings.drain_time);
        }
        true
    }

    pub(crate) fn conclude_stage(&mut self, now: Duration, stage: Stage) {
        self.drained_at = None;
        if self.close_ports() {
            return;
        }
        // What a link is after it went down has to be read: the run starts over.
        self.silent.append(&mut self.retrained);
        if !self.silent.is_empty() {
            return self.interrupt(now);
        }
        if stage == Stage::Weights && self.begin_weight_step() {
            return;
        }
        if stage == Stage::Routes && self.begin_route_step(now) {
            return;
        }
        match stage.next() {
            Some(Stage::Active) if self.begin_verification() => {}
            Some(next) => self.begin_stage(next),
            None => self.conclude_programming(now),
        }
    }

    /// Ends the run because a node did not answer: a step relies on the completion of the one before.
    pub(crate) fn interrupt(&mut self, now: Duration) {
        for node in std::mem::take(&mut self.silent) {
            self.changed.insert(node);
            self.sweeps.schedule_recheck_of_silent(now, node);
        }
        self.in_force = None;
        self.phase = Phase::Idle;
        self.emit(SmEvent::Interrupted);
    }

    /// Nodes with ports that should be active and are not, because their links went down meanwhile. The next
    /// discovery run tries again.
    fn not_active(&self) -> BTreeSet<Guid> {
        let Some(plan) = &self.plan else { return BTreeSet::new() };
        let comparison = self.comparison(plan, &self.scope);
        let steps = [Stage::Armed, Stage::Active].into_iter().flat_map(|stage| comparison.writes(stage));
        steps.map(|write| write.node).collect()
    }

    fn conclude_programming(&mut self, now: Duration) {
        self.phase = Phase::Idle;
        let is_new = self.plan_is_new() || self.window.counts.sets > self.sets_before;
        if is_new {
            self.publish();
        }
        self.in_force = self.plan.clone();
        self.state_is_new |= std::mem::take(&mut self.has_learned);
        self.fresh.clear();
        self.doubted.clear();
        for guid in std::mem::take(&mut self.changed) {
            if let Some(node) = self.observed.nodes.get_mut(&guid) {
                node.strikes = 0;
            }
        }
        self.changed = self.not_active();
        let is_only_trees = std::mem::take(&mut self.group_trees.is_only_change);
        if is_only_trees {
            // Ports join and leave as often as they like; that must not put off sweeps.
            self.put_off_group_trees(now);
        } else if is_new {
            self.sweeps.put_off_sweep(now);
        }
        // If a device did not take what the plan needs, another plan follows.
        if !self.settle_lacks(now) && is_new && !is_only_trees {
            self.emit(SmEvent::Programmed(self.window.counts));
        }
        self.ask_evicted();
        if !is_only_trees {
            self.ask_peers_of_moved();
        }
        self.begin_registration();
    }
}
