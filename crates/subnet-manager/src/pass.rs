//! A pass over the fabric: from what devices hold to what a plan says, step by step.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fabric_model::FabricPlan;
use ib_wire::Guid;

use crate::administration::{Directory, ManagerFacts};
use crate::backlog::{Job, Work};
use crate::event::Event;
use crate::manager::{Manager, Phase};
use crate::observed::ObservedNode;
use crate::program::{Stage, WeightWrite, without_state};
use crate::scope::Scope;

impl Manager {
    pub(crate) fn plan_is_new(&self) -> bool {
        match (&self.plan, &self.settled) {
            (Some(plan), Some(settled)) => !Arc::ptr_eq(plan, settled),
            (plan, _) => plan.is_some(),
        }
    }

    /// Tells what nodes hold that should not, unless they are as if new or the plan is.
    pub(crate) fn tell_drift(&mut self) {
        let Some(plan) = self.settled.clone() else { return };
        let touched = self.touched.difference(&self.fresh).copied().collect();
        let scope = Scope::between(Some(&plan), &plan, &touched, &self.observed.nodes);
        let differences = self.comparison(&plan, &scope).known_differences();
        let drifts = differences.into_iter().map(|write| {
            let (attribute, modifier) = write.key;
            Event::Drift { node: write.node, attribute, modifier }
        });
        drifts.for_each(|drift| self.tell(drift));
    }

    /// Whether every node of a plan is there. If not, the fabric has changed and another plan has to come.
    fn can_reach_all_of(&self, plan: &FabricPlan) -> bool {
        let nodes = &self.observed.nodes;
        plan.switches().all(|switch| nodes.contains_key(&switch.guid))
            && plan.adapter_ports().all(|port| nodes.contains_key(&port.name.node))
    }

    pub(crate) fn begin_pass(&mut self) {
        let Some(plan) = self.plan.clone().filter(|plan| self.can_reach_all_of(plan)) else { return };
        self.phase = Phase::Reading;
        self.sets_before = self.exchange.counts.sets;
        self.scope = Scope::between(self.settled.as_deref(), &plan, &self.touched, &self.observed.nodes);
        let scope = std::mem::take(&mut self.scope);
        let reads = self.comparison(&plan, &scope).reads();
        self.scope = scope;
        self.backlog.fill(reads.into_iter().map(|place| Job { place, work: Work::Read }));
    }

    /// A pass ends before its end: what it has written, and what is still under way, need not be what the next plan says.
    pub(crate) fn doubt_pass(&mut self) {
        if let (Phase::Writing(_), Some(plan)) = (self.phase, &self.plan) {
            let ports = self.scope.adapter_ports.iter().filter_map(|port| plan.adapter_port(*port));
            self.touched.extend(ports.map(|port| port.name.node));
            self.touched.extend(&self.scope.switches);
        }
    }

    /// Everything is known: what was decided has to be safe before it is done.
    pub(crate) fn remember(&mut self, now: Duration) {
        if !self.silent.is_empty() {
            return self.interrupt(now);
        }
        self.announce();
        if self.memory_is_new {
            self.phase = Phase::Remembering;
        } else {
            self.begin_stage(Stage::ALL[0]);
        }
    }

    /// From now on nobody is told what the next plan does not allow.
    fn announce(&mut self) {
        if let (Some(directory), Some(plan), true) = (&self.directory, &self.plan, self.plan_is_new()) {
            let next = Arc::new(directory.after(Arc::clone(plan)));
            self.administration.announce(Arc::clone(&next));
            self.directory = Some(next);
        }
    }

    /// From now on everybody may be told what the plan allows.
    pub(crate) fn publish(&mut self) {
        let Some(plan) = &self.plan else { return };
        if std::mem::take(&mut self.facts_are_new) || self.directory.is_none() {
            let facts = ManagerFacts { priority: self.settings.priority, activity: self.activity };
            let nodes = self.observed.nodes.values().filter_map(ObservedNode::facts);
            self.directory = Some(Arc::new(Directory::new(Arc::clone(plan), facts, nodes)));
        }
        if let Some(directory) = &self.directory {
            self.administration.publish(Arc::clone(directory));
        }
    }

    pub(crate) fn begin_stage(&mut self, stage: Stage) {
        self.bound.seal();
        self.phase = Phase::Writing(stage);
        let Some(plan) = self.plan.clone() else { return };
        if stage == Stage::ALL[0] {
            self.persistence.note_safe(&plan);
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
        let writes = comparison.writes(stage);
        let data = |data| if stage.keeps_state() { without_state(data) } else { data };
        self.backlog.fill(
            writes.into_iter().map(|write| Job { place: write.place(), work: Work::Write(data(write.data)) }),
        );
    }

    /// Begins the next step by which arbitration tables change; whether there is one.
    fn begin_weight_step(&mut self) -> bool {
        let Some(step) = self.weight_steps.pop_front() else { return false };
        let work = |write: WeightWrite| Work::Write(write.block.encode());
        self.backlog.fill(step.into_iter().map(|write| Job { place: write.place, work: work(write) }));
        true
    }

    /// Begins the next step by which routes change; whether there is one.
    fn begin_route_step(&mut self, now: Duration) -> bool {
        let (Some(plan), Some(step)) = (self.plan.clone(), self.route_steps.pop_front()) else {
            return false;
        };
        let writes = self.comparison(&plan, &self.scope).writes_of_step(&step);
        self.backlog.fill(
            writes.into_iter().map(|write| Job { place: write.place(), work: Work::Write(write.data) }),
        );
        if step.drain {
            self.drained = Some(now + self.settings.drain);
        }
        true
    }

    pub(crate) fn conclude_stage(&mut self, now: Duration, stage: Stage) {
        self.drained = None;
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
            Some(next) => self.begin_stage(next),
            None => self.conclude_pass(now),
        }
    }

    /// A step may rely on the one before: nothing goes on before everybody did it.
    fn interrupt(&mut self, now: Duration) {
        for node in std::mem::take(&mut self.silent) {
            self.touched.insert(node);
            self.watch.suspect(now, node);
        }
        self.settled = None;
        self.phase = Phase::Watching;
        self.tell(Event::Interrupted);
    }

    /// Nodes with ports that should be active and are not: their links went down meanwhile. The next look tries again.
    fn not_active(&self) -> BTreeSet<Guid> {
        let Some(plan) = &self.plan else { return BTreeSet::new() };
        let comparison = self.comparison(plan, &self.scope);
        let steps = [Stage::Armed, Stage::Active].into_iter().flat_map(|stage| comparison.writes(stage));
        steps.map(|write| write.node).collect()
    }

    fn conclude_pass(&mut self, now: Duration) {
        self.phase = Phase::Watching;
        let is_news = self.plan_is_new() || self.exchange.counts.sets > self.sets_before;
        if is_news {
            self.publish();
        }
        self.settled = self.plan.clone();
        self.memory_is_new |= std::mem::take(&mut self.has_learned);
        self.fresh.clear();
        for guid in std::mem::take(&mut self.touched) {
            if let Some(node) = self.observed.nodes.get_mut(&guid) {
                node.strikes = 0;
            }
        }
        self.touched = self.not_active();
        if is_news {
            self.watch.put_off_sweep(now);
            self.tell(Event::Programmed(self.exchange.counts));
        }
    }
}
