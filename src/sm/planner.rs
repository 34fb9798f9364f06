//! Decides what the fabric is to be, from what was found and what is asked for.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use fabric_compiler::{Adoption, CompileError, adopt, compile, partitions_conf, recompile_on};
use fabric_model::plan::Basis;
use fabric_model::{Decisions, FabricPlan, Found, Intents};
use subnet_manager::Discovery;

use crate::control_socket::ControlError;

/// Why a plan of somebody else is not taken, or not carried out to its end. Whoever made it looks at the fabric again
/// and makes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanRejection {
    /// The fabric is being looked at for the first time.
    NotDiscovered,
    /// It was made for other cables, devices, or a manager elsewhere.
    OtherFabric,
    /// It was taken, and the fabric has changed since.
    FabricChanged,
}

impl PlanRejection {
    /// What programs tell it by.
    pub const fn code(self) -> &'static str {
        match self {
            Self::NotDiscovered => "not-discovered",
            Self::OtherFabric => "other-fabric",
            Self::FabricChanged => "fabric-changed",
        }
    }
}

impl fmt::Display for PlanRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotDiscovered => "the fabric is not known yet",
            Self::OtherFabric => "the plan was made for another fabric than this one",
            Self::FabricChanged => "the fabric changed before it was equal to the plan",
        })
    }
}

impl From<PlanRejection> for ControlError {
    fn from(why: PlanRejection) -> Self {
        Self { text: why.to_string(), code: Some(why.code()) }
    }
}

/// Who makes the plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanSource {
    /// This subnet manager compiles plans.
    Internal,
    /// A controller sends plans to the control socket.
    External,
}

/// Where plans come from.
#[derive(Debug)]
pub struct PlanProvider {
    partitions: Option<PathBuf>,
    intents: Option<Intents>,
    discovery: Option<Box<Discovery>>,
    /// What stands for both, but for partitions.
    basis: Option<Basis>,
    /// What was decided before the first plan.
    decisions: Decisions,
    plan: Option<Arc<FabricPlan>>,
    source: PlanSource,
}

impl PlanProvider {
    /// Reads partitions from a file, if there is one; a file that makes no sense is told at once.
    pub fn new(
        source: PlanSource,
        partitions: Option<PathBuf>,
        decisions: Decisions,
    ) -> anyhow::Result<Self> {
        let planner =
            Self { partitions, intents: None, discovery: None, basis: None, decisions, plan: None, source };
        planner.read_partitions()?;
        Ok(planner)
    }

    /// Notes a fabric that was found, or found to have changed.
    pub fn found(&mut self, discovery: Box<Discovery>) -> anyhow::Result<()> {
        let mut intents = Intents::new(discovery.manager);
        intents.capabilities = discovery.capabilities.clone();
        intents.partitions = match self.intents.take() {
            Some(known) => known.partitions,
            None => self.read_partitions()?,
        };
        self.basis = Some(Basis::of(&discovery.topology, &intents));
        (self.intents, self.discovery) = (Some(intents), Some(discovery));
        Ok(())
    }

    /// The plan for what was found; `None` if somebody else decides, and has not done so for this fabric.
    pub fn decide(&mut self) -> anyhow::Result<Option<Arc<FabricPlan>>> {
        if self.source == PlanSource::External {
            let basis = self.basis;
            return Ok(self.plan.clone().filter(|plan| basis.is_some() && plan.basis() == basis));
        }
        let (discovery, intents) = self.known()?;
        let plan = self.compile(discovery, intents)?;
        Ok(Some(self.keep(plan)))
    }

    /// The plan that changes as little as it can of what was found.
    pub fn adopt(&mut self, found: &Found) -> anyhow::Result<(Adoption, Arc<FabricPlan>)> {
        let (discovery, intents) = self.known()?;
        let adoption = adopt(&discovery.topology, intents, found)?;
        let plan = compile(&discovery.topology, intents, &adoption.decisions)?;
        let plan = self.keep(plan);
        Ok((adoption, plan))
    }

    /// Takes a plan of somebody else, who decides from now on.
    pub fn take(&mut self, plan: FabricPlan) -> Result<Arc<FabricPlan>, PlanRejection> {
        let basis = self.basis.ok_or(PlanRejection::NotDiscovered)?;
        if plan.basis() != Some(basis) {
            return Err(PlanRejection::OtherFabric);
        }
        self.source = PlanSource::External;
        let plan = match &self.plan {
            Some(older) => plan.sharing_tables_with(older),
            None => plan,
        };
        Ok(self.keep(plan))
    }

    /// The plan after the file of partitions has changed. If there is none, everything stays as it is.
    pub fn reread(&mut self) -> anyhow::Result<Arc<FabricPlan>> {
        let partitions = self.read_partitions()?;
        ensure!(self.source == PlanSource::Internal, "plans come from outside");
        let (Some(discovery), Some(mut intents)) = (&self.discovery, self.intents.take()) else {
            bail!("the fabric is not known yet");
        };
        let before = std::mem::replace(&mut intents.partitions, partitions);
        let plan = self.compile(discovery, &intents);
        if plan.is_err() {
            intents.partitions = before;
        }
        self.intents = Some(intents);
        Ok(self.keep(plan?))
    }

    fn known(&self) -> anyhow::Result<(&Discovery, &Intents)> {
        match (&self.discovery, &self.intents) {
            (Some(discovery), Some(intents)) => Ok((discovery, intents)),
            _ => bail!("the fabric is not known yet"),
        }
    }

    /// What was last found.
    pub fn discovery(&self) -> Option<&Discovery> {
        self.discovery.as_deref()
    }

    /// The plan that was last made or taken.
    pub fn plan(&self) -> Option<&Arc<FabricPlan>> {
        self.plan.as_ref()
    }

    /// Keeps what was decided before, as far as it can.
    fn compile(&self, discovery: &Discovery, intents: &Intents) -> Result<FabricPlan, CompileError> {
        let began = Instant::now();
        let plan = match &self.plan {
            Some(previous) => {
                let basis = self.basis.unwrap_or_else(|| Basis::of(&discovery.topology, intents));
                recompile_on(basis, &discovery.topology, intents, previous)
            }
            None => compile(&discovery.topology, intents, &self.decisions),
        };
        tracing::debug!(elapsed = ?began.elapsed(), "compiled");
        plan
    }

    fn keep(&mut self, plan: FabricPlan) -> Arc<FabricPlan> {
        let plan = Arc::new(plan);
        self.plan = Some(Arc::clone(&plan));
        plan
    }

    fn read_partitions(&self) -> anyhow::Result<Vec<fabric_model::intent::PartitionIntent>> {
        let Some(path) = &self.partitions else { return Ok(Vec::new()) };
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        partitions_conf::parse(&text).with_context(|| format!("in {}", path.display()))
    }
}
