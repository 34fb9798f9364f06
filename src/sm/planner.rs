//! Decides what the fabric is to be, from what was found and what is asked for.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use fabric_compiler::{compile, partitions_conf};
use fabric_model::{Decisions, FabricPlan, Intents};
use subnet_manager::Discovery;

/// Where plans come from.
#[derive(Debug)]
pub struct Planner {
    partitions: Option<PathBuf>,
    intents: Option<Intents>,
    discovery: Option<Box<Discovery>>,
    /// What was decided before the first plan.
    decisions: Decisions,
    plan: Option<Arc<FabricPlan>>,
    /// Somebody else decides: plans come from outside.
    is_guided: bool,
}

impl Planner {
    /// Reads partitions from a file, if there is one; a file that makes no sense is told at once.
    pub fn new(partitions: Option<PathBuf>, decisions: Decisions) -> anyhow::Result<Self> {
        let planner =
            Self { partitions, intents: None, discovery: None, decisions, plan: None, is_guided: false };
        planner.read_partitions()?;
        Ok(planner)
    }

    /// The plan for a fabric that was found, or found to have changed; `None` if somebody else decides.
    pub fn found(&mut self, discovery: Box<Discovery>) -> anyhow::Result<Option<Arc<FabricPlan>>> {
        let mut intents = Intents::new(discovery.manager);
        intents.capabilities = discovery.capabilities.clone();
        intents.partitions = match &self.intents {
            Some(known) => known.partitions.clone(),
            None => self.read_partitions()?,
        };
        let previous = self.plan.as_ref().map_or(&self.decisions, |plan| plan.decisions());
        let plan =
            if self.is_guided { None } else { Some(compile(&discovery.topology, &intents, previous)?) };
        (self.intents, self.discovery) = (Some(intents), Some(discovery));
        Ok(plan.map(|plan| self.keep(plan)))
    }

    /// The plan after the file of partitions has changed.
    pub fn reread(&mut self) -> anyhow::Result<Arc<FabricPlan>> {
        let partitions = self.read_partitions()?;
        let (Some(discovery), Some(intents)) = (&self.discovery, &self.intents) else {
            bail!("the fabric is not known yet");
        };
        let intents = Intents { partitions, ..intents.clone() };
        let previous = self.plan.as_ref().map_or(&self.decisions, |plan| plan.decisions());
        let plan = compile(&discovery.topology, &intents, previous)?;
        self.intents = Some(intents);
        Ok(self.keep(plan))
    }

    /// What was last found.
    pub fn discovery(&self) -> Option<&Discovery> {
        self.discovery.as_deref()
    }

    /// The plan that was last made or taken.
    pub fn plan(&self) -> Option<&Arc<FabricPlan>> {
        self.plan.as_ref()
    }

    fn keep(&mut self, plan: FabricPlan) -> Arc<FabricPlan> {
        let plan = match &self.plan {
            Some(older) => plan.sharing_tables_with(older),
            None => plan,
        };
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
