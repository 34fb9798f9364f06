//! Provides plans: compiles them from the discovered fabric and the partition file, or takes those of a controller.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use control_protocol::PlanRejection;
use fabric_compiler::{Adoption, CompileError, adopt, compile, partitions_conf, recompile_on};
use fabric_model::intent::{PartitionIntent, PartitionOwners, PortAliases, UnenforcedPorts};
use fabric_model::plan::Basis;
use fabric_model::{Decisions, FabricPlan, Intents, ObservedTables};
use ib_wire::Guid;
use subnet_manager::Discovery;

use super::{aliases, handed_over};

/// Who makes the plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanSource {
    /// This subnet manager compiles plans.
    #[default]
    Internal,
    /// A controller sends plans to the control socket.
    External,
}

/// Files that plans are compiled from. They are read again on request.
#[derive(Clone, Debug, Default)]
pub struct IntentFiles {
    pub partitions: Option<PathBuf>,
    pub aliases: Option<PathBuf>,
    pub handed_over: Option<PathBuf>,
}

/// What the files say.
#[derive(Debug)]
struct FileIntents {
    partitions: Vec<PartitionIntent>,
    owners: PartitionOwners,
    aliases: PortAliases,
    handed_over: BTreeSet<Guid>,
}

impl FileIntents {
    fn put(self, intents: &mut Intents) {
        (intents.partitions, intents.owners) = (self.partitions, self.owners);
        (intents.aliases, intents.handed_over) = (self.aliases, self.handed_over);
    }
}

impl IntentFiles {
    fn read(&self) -> anyhow::Result<FileIntents> {
        let partitions = self.read_partitions()?;
        let aliases = self.aliases.as_deref().map(aliases::read).transpose()?.unwrap_or_default();
        let handed_over = self.handed_over.as_deref().map(handed_over::read).transpose()?.unwrap_or_default();
        let owners = handed_over::owners(&partitions, &handed_over)?;
        Ok(FileIntents { partitions, owners, aliases, handed_over })
    }

    fn read_partitions(&self) -> anyhow::Result<Vec<PartitionIntent>> {
        let Some(path) = &self.partitions else { return Ok(Vec::new()) };
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        partitions_conf::parse(&text).with_context(|| format!("in {}", path.display()))
    }
}

/// Compiles plans or keeps the one of a controller.
#[derive(Debug, Default)]
pub struct PlanProvider {
    files: IntentFiles,
    intents: Option<Intents>,
    discovery: Option<Box<Discovery>>,
    /// Digest of topology and intents without partitions; a plan of a controller must have the same digest.
    basis: Option<Basis>,
    /// Decisions of an earlier run, from the state file.
    decisions: Decisions,
    plan: Option<Arc<FabricPlan>>,
    source: PlanSource,
    /// Whether the operator opens ports whose partitions only adapters enforce.
    unenforced_ports: UnenforcedPorts,
}

impl PlanProvider {
    /// Checks the files at once, so that an invalid one is an error at start.
    pub fn new(
        source: PlanSource,
        files: IntentFiles,
        decisions: Decisions,
        unenforced_ports: UnenforcedPorts,
    ) -> anyhow::Result<Self> {
        let planner = Self {
            files,
            intents: None,
            discovery: None,
            basis: None,
            decisions,
            plan: None,
            source,
            unenforced_ports,
        };
        planner.files.read()?;
        Ok(planner)
    }

    /// Records a discovered fabric.
    pub fn found(&mut self, discovery: Box<Discovery>) -> anyhow::Result<()> {
        let mut intents = Intents::new(discovery.manager);
        intents.capabilities = discovery.capabilities.clone();
        intents.standby_managers.clone_from(&discovery.standby_managers);
        match self.intents.take() {
            Some(known) => {
                (intents.partitions, intents.aliases) = (known.partitions, known.aliases);
                (intents.handed_over, intents.owners) = (known.handed_over, known.owners);
            }
            None => self.files.read()?.put(&mut intents),
        }
        intents.unenforced_ports = self.unenforced_ports(&intents.partitions);
        self.basis = Some(Basis::of(&discovery.topology, &intents));
        (self.intents, self.discovery) = (Some(intents), Some(discovery));
        Ok(())
    }

    /// The plan for the discovered fabric; `None` if plans are external and none fits this fabric.
    pub fn decide(&mut self) -> anyhow::Result<Option<Arc<FabricPlan>>> {
        if self.source == PlanSource::External {
            let basis = self.basis;
            return Ok(self.plan.clone().filter(|plan| basis.is_some() && plan.basis() == basis));
        }
        let (discovery, intents) = self.known()?;
        let basis = self.basis.unwrap_or_else(|| Basis::of(&discovery.topology, intents));
        let plan = self.compile(discovery, intents, basis)?;
        Ok(Some(self.keep(plan)))
    }

    /// The plan that keeps as many of the LIDs and routes found as possible.
    pub fn adopt(&mut self, found: &ObservedTables) -> anyhow::Result<(Adoption, Arc<FabricPlan>)> {
        let (discovery, intents) = self.known()?;
        let mut adoption = adopt(&discovery.topology, intents, found)?;
        adoption.decisions.sl_enforcement = self.decisions.sl_enforcement;
        // Tables show no names.
        for (name, number) in &self.decisions.partitions {
            adoption.decisions.partitions.insert(name.clone(), *number);
        }
        let kept = self.decisions.management_partition;
        adoption.decisions.management_partition = kept.or(adoption.decisions.management_partition);
        let plan = compile(&discovery.topology, intents, &adoption.decisions)?;
        let plan = self.keep(plan);
        Ok((adoption, plan))
    }

    /// Accepts a plan of a controller; from then on this provider compiles none.
    pub fn take(&mut self, plan: Arc<FabricPlan>) -> Result<Arc<FabricPlan>, PlanRejection> {
        let basis = self.basis.ok_or(PlanRejection::NotDiscovered)?;
        if plan.basis() != Some(basis) {
            return Err(PlanRejection::OtherFabric);
        }
        self.source = PlanSource::External;
        let plan = match &self.plan {
            Some(older) => Arc::unwrap_or_clone(plan).sharing_tables_with(older),
            None => Arc::unwrap_or_clone(plan),
        };
        Ok(self.keep(plan))
    }

    /// Reads the files again and compiles a plan. On an error, the former plan stays in force.
    pub fn reread(&mut self) -> anyhow::Result<Arc<FabricPlan>> {
        let read = self.files.read()?;
        ensure!(
            self.source == PlanSource::Internal,
            "the partition file is not used: plans come from a controller"
        );
        let (Some(discovery), Some(mut intents)) = (&self.discovery, self.intents.take()) else {
            bail!("the fabric is not discovered yet");
        };
        let before = intents.clone();
        read.put(&mut intents);
        intents.unenforced_ports = self.unenforced_ports(&intents.partitions);
        let basis = Basis::of(&discovery.topology, &intents);
        let plan = self.compile(discovery, &intents, basis);
        if plan.is_ok() {
            (self.intents, self.basis) = (Some(intents), Some(basis));
        } else {
            self.intents = Some(before);
        }
        Ok(self.keep(plan?))
    }

    fn known(&self) -> anyhow::Result<(&Discovery, &Intents)> {
        match (&self.discovery, &self.intents) {
            (Some(discovery), Some(intents)) => Ok((discovery, intents)),
            _ => bail!("the fabric is not discovered yet"),
        }
    }

    /// Whether plans come from a controller.
    pub fn is_external(&self) -> bool {
        self.source == PlanSource::External
    }

    /// The last discovered fabric.
    pub fn discovery(&self) -> Option<&Discovery> {
        self.discovery.as_deref()
    }

    /// The last plan compiled or accepted.
    pub fn plan(&self) -> Option<&Arc<FabricPlan>> {
        self.plan.as_ref()
    }

    /// The partitions that were requested in files.
    pub fn partitions(&self) -> &[PartitionIntent] {
        self.intents.as_ref().map_or(&[], |intents| &intents.partitions)
    }

    /// Compiles a plan that keeps earlier decisions as far as possible.
    fn compile(
        &self,
        discovery: &Discovery,
        intents: &Intents,
        basis: Basis,
    ) -> Result<FabricPlan, CompileError> {
        let began = Instant::now();
        let plan = match &self.plan {
            Some(previous) => recompile_on(basis, &discovery.topology, intents, previous),
            None => compile(&discovery.topology, intents, &self.decisions),
        };
        tracing::debug!(elapsed = ?began.elapsed(), "compiled");
        plan
    }

    /// On a fabric with the default partition alone, there is nobody to isolate from another. Plans of a controller have
    /// tenants.
    fn unenforced_ports(&self, partitions: &[PartitionIntent]) -> UnenforcedPorts {
        match self.source {
            PlanSource::Internal if partitions.is_empty() => UnenforcedPorts::Open,
            PlanSource::Internal => self.unenforced_ports,
            PlanSource::External => UnenforcedPorts::Closed,
        }
    }

    fn keep(&mut self, plan: FabricPlan) -> Arc<FabricPlan> {
        let plan = Arc::new(plan);
        self.plan = Some(Arc::clone(&plan));
        plan
    }
}
