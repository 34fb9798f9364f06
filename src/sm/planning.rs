//! Plans are made beside the loop: on a large fabric that takes seconds, and meanwhile hosts and the other managers are answered.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;

use control_protocol::PlanRejection;
use fabric_model::FabricPlan;
use subnet_manager::Survey;

use super::daemon::Daemon;
use super::planner::PlanProvider;
use super::{adoption, link_health};

impl Daemon {
    /// Lets the planner work. Meanwhile the manager goes on, in a thread of its own; what it reports is handled afterwards.
    ///
    /// The planner works in this thread, whose memory can be used again for other things than plans.
    fn plan<T>(&mut self, work: impl FnOnce(&mut PlanProvider) -> T) -> anyhow::Result<T> {
        let mut planner = std::mem::take(&mut self.planner);
        let waker = self.waker.clone();
        let (working, ended) = mpsc::channel::<()>();
        let done = thread::scope(|scope| {
            let daemon = &mut *self;
            let meanwhile = scope.spawn(move || {
                // It ends if the planner panics, too.
                while ended.try_recv() == Err(TryRecvError::Empty) && !daemon.manager.has_yielded() {
                    daemon.go_on()?;
                }
                anyhow::Ok(())
            });
            let done = work(&mut planner);
            drop(working);
            waker.wake();
            match meanwhile.join() {
                Ok(gone_on) => gone_on.map(|()| done),
                Err(panic) => resume_unwind(panic),
            }
        });
        self.planner = planner;
        done
    }

    /// Plans for the discovered fabric, and programs that plan.
    pub fn decide(&mut self, once: bool) -> anyhow::Result<()> {
        match self.plan(PlanProvider::decide)? {
            Ok(Some(plan)) => self.apply(plan),
            Ok(None) => {
                for answers in self.waiting.drain(..) {
                    answers.send(Err(PlanRejection::FabricChanged.into()));
                }
                self.print("waiting for a plan")
            }
            Err(error) if once => Err(error),
            Err(error) => {
                tracing::error!("no plan for this fabric: {error:#}");
                for answers in self.waiting.drain(..) {
                    answers.send(Err(format!("no plan for this fabric: {error:#}").into()));
                }
                Ok(())
            }
        }
    }

    /// Plans with the LIDs and routes that were found, and compares the fabric with that plan.
    pub fn adopt(&mut self, found: Survey) -> anyhow::Result<()> {
        self.adoption_report.posture = found.posture;
        if !self.outputs.json {
            self.bar.clear();
            self.adoption_report.print_posture()?;
        }
        let (adoption, plan) = self.plan(|planner| planner.adopt(&found.tables))??;
        self.adoption_report.kept = adoption::Kept {
            lids: adoption.lids_kept,
            lids_total: plan.lids().len(),
            routes: adoption.routes_kept,
            routes_total: adoption.routes,
        };
        self.print(&format!(
            "adopted: {} of {} LIDs and {} of {} routes to adapters stay",
            adoption.lids_kept,
            plan.lids().len(),
            adoption.routes_kept,
            adoption.routes,
        ))?;
        self.manager.compare(self.now(), plan);
        Ok(())
    }

    /// Reads the limits of link health and the partition file again. Returns the resulting plan; `None` if there is no
    /// partition file, because plans come from a controller. On an error nothing is changed.
    pub fn reread(&mut self) -> anyhow::Result<Option<Arc<FabricPlan>>> {
        let limits = self.link_health.as_deref().map(link_health::read).transpose()?;
        let plan = match limits {
            Some(_) if self.planner.is_external() => None,
            _ => Some(self.plan(PlanProvider::reread)??),
        };
        if let Some(limits) = limits {
            self.manager.set_link_health(limits);
        }
        Ok(plan)
    }
}
