//! A plan together with the intermediate results that serve the next one.

use std::sync::Arc;

use fabric_model::plan::{Basis, Draft};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};

use crate::CompileError;
use crate::fabric::Fabric;
use crate::guarantees::Guarantees;
use crate::partitions::{KeyTables, Partitions};
use crate::routing::RoutingContext;
use crate::{
    addressing, aliases, assembly, guarantees, multicast, partitions, recompile, route_overrides, routing,
};

/// A plan, and the intermediate results that a [`Planner`](crate::Planner) reuses.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub plan: Arc<FabricPlan>,
    pub fabric: Fabric,
    /// `None` if there is no switch.
    pub context: Option<RoutingContext>,
    pub partitions: Partitions,
    pub keys: KeyTables,
    /// `None` if no cluster ever had a guarantee.
    pub guarantees: Option<Guarantees>,
}

impl Compiled {
    /// Compiles everything, with the previous decisions.
    pub fn from_decisions(
        topology: &Topology,
        intents: &Intents,
        previous: &Decisions,
    ) -> Result<Self, CompileError> {
        partitions::check(intents)?;
        let fabric = Fabric::around(topology, intents)?;
        let lids = addressing::assign(&fabric, &intents.capabilities, previous)?;
        let (partitions, numbers) = partitions::resolve(&fabric, intents, previous)?;
        let keys = partitions::lay_out(&fabric, &partitions, &intents.capabilities, previous)?;
        let routes = routing::route(&fabric, &lids.present, previous);
        let groups = multicast::plan(
            &fabric,
            (&routes.order, &routes.core_tree),
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
        let context = RoutingContext::kept(&fabric, &plan.decisions().routing);
        aliases::check(&plan, &intents.aliases)?;
        let mut draft = Draft::from(plan);
        let mut guarantees = guarantees::establish(&mut draft, topology, &fabric, context.as_ref(), intents)?;
        guarantees::apply_classes(&mut draft, guarantees.as_mut(), &intents.class_weights);
        route_overrides::apply(&mut draft, &fabric, &intents.route_overrides);
        aliases::apply(&mut draft, intents);
        Ok(Self { plan: Arc::new(draft.finish()), fabric, context, partitions, keys, guarantees })
    }

    /// Compiles with the LIDs and routes of a plan if its basis is equal, otherwise in full.
    pub fn from_plan(
        basis: Basis,
        topology: &Topology,
        intents: &Intents,
        previous: &FabricPlan,
    ) -> Result<Self, CompileError> {
        partitions::check(intents)?;
        if previous.basis() == Some(basis)
            && let fabric = Fabric::around(topology, intents)?
            && let Some(context) = RoutingContext::kept(&fabric, &previous.decisions().routing)
            && let Some((mut draft, partitions, keys)) =
                recompile::recompile(&fabric, &context, intents, previous)?
        {
            let mut guarantees =
                guarantees::establish(&mut draft, topology, &fabric, Some(&context), intents)?;
            guarantees::apply_classes(&mut draft, guarantees.as_mut(), &intents.class_weights);
            route_overrides::apply(&mut draft, &fabric, &intents.route_overrides);
            aliases::apply(&mut draft, intents);
            let plan = Arc::new(draft.finish().sharing_tables_with(previous));
            return Ok(Self { plan, fabric, context: Some(context), partitions, keys, guarantees });
        }
        let compiled = Self::from_decisions(topology, intents, previous.decisions())?;
        let plan = Arc::unwrap_or_clone(compiled.plan).sharing_tables_with(previous);
        Ok(Self { plan: Arc::new(plan), ..compiled })
    }
}
