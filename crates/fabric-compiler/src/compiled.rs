//! A plan and what it was made with.

use std::sync::Arc;

use fabric_model::plan::{Basis, Draft};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};

use crate::CompileError;
use crate::fabric::Fabric;
use crate::partitions::{KeyTables, Partitions};
use crate::promises::Promises;
use crate::routing::Ground;
use crate::{addressing, assembly, detours, multicast, partitions, promises, recompile, routing};

/// A plan, and everything that was found out while it was made and serves the next one.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub plan: Arc<FabricPlan>,
    pub fabric: Fabric,
    /// `None` if there is no switch.
    pub ground: Option<Ground>,
    pub partitions: Partitions,
    pub keys: KeyTables,
    /// `None` if nobody ever was promised anything.
    pub promises: Option<Promises>,
}

impl Compiled {
    /// From decisions.
    pub fn of(topology: &Topology, intents: &Intents, previous: &Decisions) -> Result<Self, CompileError> {
        partitions::check_owners(intents)?;
        let fabric = Fabric::around(topology, intents.manager)?;
        let lids = addressing::assign(&fabric, &intents.capabilities, previous)?;
        let (partitions, numbers) = partitions::resolve(&fabric, intents, previous)?;
        let keys = partitions::lay_out(&fabric, &partitions, &intents.capabilities, previous)?;
        let routes = routing::route(&fabric, &lids.present, previous);
        let groups = multicast::plan(
            &fabric,
            (&routes.order, &routes.crown),
            &partitions,
            &intents.capabilities,
            previous,
        )?;
        let parts = assembly::Parts {
            topology,
            fabric: &fabric,
            lids,
            partitions: &partitions,
            numbers,
            keys: &keys,
            routes,
            groups,
        };
        let plan = parts.assemble(&intents.capabilities, previous).with_basis(Basis::of(topology, intents));
        let ground = Ground::kept(&fabric, &plan.decisions().routing);
        let mut draft = Draft::from(plan);
        let mut promises = promises::keep(&mut draft, topology, &fabric, ground.as_ref(), intents)?;
        promises::take_classes(&mut draft, promises.as_mut(), &intents.classes);
        detours::take(&mut draft, &fabric, &intents.routes);
        Ok(Self { plan: Arc::new(draft.finish()), fabric, ground, partitions, keys, promises })
    }

    /// From a plan, of which LIDs and routes are taken if its basis fits.
    pub fn after(
        basis: Basis,
        topology: &Topology,
        intents: &Intents,
        previous: &FabricPlan,
    ) -> Result<Self, CompileError> {
        partitions::check_owners(intents)?;
        if previous.basis() == Some(basis)
            && let fabric = Fabric::around(topology, intents.manager)?
            && let Some(ground) = Ground::kept(&fabric, &previous.decisions().routing)
            && let Some((mut draft, partitions, keys)) =
                recompile::recompile(&fabric, &ground, intents, previous)?
        {
            let mut promises = promises::keep(&mut draft, topology, &fabric, Some(&ground), intents)?;
            promises::take_classes(&mut draft, promises.as_mut(), &intents.classes);
            detours::take(&mut draft, &fabric, &intents.routes);
            let plan = Arc::new(draft.finish().sharing_tables_with(previous));
            return Ok(Self { plan, fabric, ground: Some(ground), partitions, keys, promises });
        }
        let compiled = Self::of(topology, intents, previous.decisions())?;
        let plan = Arc::unwrap_or_clone(compiled.plan).sharing_tables_with(previous);
        Ok(Self { plan: Arc::new(plan), ..compiled })
    }
}
