//! The rule for ports of tenants and of the site, on plans that break it.

use std::sync::Arc;

use fabric_compiler::recompile;
use fabric_model::plan::{Enforcement, PkeyTable, PlanParts};
use fabric_model::{FabricPlan, Intents, Topology};
use fabric_verifier::{Finding, PkeyTableKind, Rule, Verified, verify, verify_rule};
use ib_wire::{Guid, PartitionNumber, Pkey};

use crate::world::mutant::mutant;
use crate::world::{below, brownfield, dice, fabric, hosts, planned};

/// A fabric with an open default partition, a partition of the site and one of a tenant.
struct Site {
    topology: Topology,
    intents: Intents,
    plan: FabricPlan,
    tenant: Guid,
    other: Guid,
}

fn site() -> Site {
    let mut dice = dice(7);
    let topology = fabric(&mut dice);
    let mut intents = brownfield(&mut dice, &topology);
    crate::world::open_default(&mut intents);
    let plan = planned(&topology, &intents);
    assert_eq!(verify(&topology, &intents, &plan), []);
    let tenant = *intents.handed_over.first().unwrap();
    let is_other = |guid: &Guid| *guid != intents.manager && !intents.handed_over.contains(guid);
    let other = hosts(&topology).into_iter().find(is_other).unwrap();
    Site { topology, intents, plan, tenant, other }
}

fn key(raw: u16) -> Pkey {
    Pkey::from_wire(raw).unwrap()
}

fn with(table: &PkeyTable, added: Pkey) -> Arc<PkeyTable> {
    Arc::new(PkeyTable::from_keys(table.entries().iter().copied().chain([Some(added)]).collect()))
}

/// The plan with one more key in the table of a port.
fn with_key(plan: &FabricPlan, port: Guid, added: Pkey) -> FabricPlan {
    let mut parts: PlanParts = plan.parts().clone();
    for adapter in parts.adapter_ports.iter_mut().filter(|adapter| adapter.guid == port) {
        adapter.pkeys = with(&adapter.pkeys, added);
    }
    FabricPlan::from_parts(parts)
}

/// The plan with one more key that the switch port in front of a port lets pass.
fn with_enforced_key(plan: &FabricPlan, port: Guid, added: Pkey) -> FabricPlan {
    let at = plan.adapter_port(port).unwrap().peer;
    let mut parts: PlanParts = plan.parts().clone();
    for switch in parts.switches.iter_mut().filter(|switch| switch.guid == at.node) {
        let mut ports = switch.ports.to_vec();
        for port in ports.iter_mut().filter(|it| it.number == at.port) {
            if let Enforcement::Both(table) = &port.enforcement {
                port.enforcement = Enforcement::Both(with(table, added));
            }
        }
        switch.ports = ports.into();
    }
    FabricPlan::from_parts(parts)
}

impl Site {
    fn findings(&self, plan: &FabricPlan) -> Vec<Finding> {
        verify_rule(Rule::HandedOver, &self.topology, &self.intents, plan)
    }
}

#[test]
fn a_key_of_an_open_default_partition_is_found_in_both_tables() {
    let site = site();
    assert_eq!(site.findings(&site.plan), [], "the control");
    for (wrong, kind) in [
        (with_key(&site.plan, site.tenant, key(0x7fff)), PkeyTableKind::EndPort),
        (with_enforced_key(&site.plan, site.tenant, key(0x7fff)), PkeyTableKind::SwitchPort),
    ] {
        let found = site.findings(&wrong);
        assert!(
            matches!(found[..], [Finding::HandedOverInDefault { port, table, .. }] if port == site.tenant && table == kind),
            "{found:?}"
        );
    }
}

#[test]
fn a_full_key_of_the_site_is_found_at_a_handed_over_port() {
    let site = site();
    for raw in [0xffff, 0x8020, 0x8000 | site.plan.decisions().management_partition.unwrap().to_wire()] {
        let found = site.findings(&with_key(&site.plan, site.tenant, key(raw)));
        let expected =
            Finding::HandedOverFull { port: site.tenant, key: key(raw), table: PkeyTableKind::EndPort };
        assert_eq!(found, [expected]);
    }
    assert_eq!(
        site.findings(&with_key(&site.plan, site.tenant, key(0x20))),
        [],
        "a limited key is no violation"
    );
}

#[test]
fn a_key_of_a_tenant_is_found_at_a_port_of_the_site() {
    let site = site();
    let owned = *site.intents.owners.keys().next().unwrap();
    for full in [0, 0x8000] {
        let wrong = key(full | owned.to_wire());
        let found = site.findings(&with_key(&site.plan, site.other, wrong));
        assert!(
            matches!(&found[..], [Finding::SitePortInOwnedPartition { port, key, .. }] if *port == site.other && *key == wrong),
            "{found:?}"
        );
    }
}

#[test]
fn a_key_of_the_management_partition_is_found_at_a_port_of_the_site() {
    let site = site();
    let wrong = key(site.plan.decisions().management_partition.unwrap().to_wire());
    let found = site.findings(&with_enforced_key(&site.plan, site.other, wrong));
    let (port, table) = (site.other, PkeyTableKind::SwitchPort);
    assert_eq!(found, [Finding::SitePortInManagement { port, key: wrong, table }]);
}

#[test]
fn limited_keys_stay_allowed_while_nobody_is_full_in_the_default_partition() {
    let mut site = site();
    site.intents.partitions.retain(|partition| partition.number != Some(PartitionNumber::DEFAULT));
    let plan = planned(&site.topology, &site.intents);
    assert_eq!(verify(&site.topology, &site.intents, &plan), []);
    let holds = plan.adapter_port(site.tenant).unwrap().pkeys.keys().any(|held| held == key(0x7fff));
    assert!(holds, "as without partitions of the site");
}

/// Changes of intents and plans, with and without wrong entries.
#[test]
fn a_delta_beside_a_site_has_the_findings_of_a_whole_verification() {
    for seed in 0..40 {
        let mut dice = dice(3000 + seed);
        let topology = Arc::new(fabric(&mut dice));
        let mut intents = brownfield(&mut dice, &topology);
        let mut plan = planned(&topology, &intents);
        let mut verified = Verified::of(&topology, &intents, Arc::new(plan.clone()));
        for change in 0..20 {
            match below(&mut dice, 6) {
                0 => {
                    let manager = intents.manager;
                    intents = brownfield(&mut dice, &topology);
                    intents.manager = manager;
                    intents.handed_over.remove(&manager);
                    intents.partitions.retain(|partition| {
                        partition.members.iter().all(|member| {
                            partition.number.is_none_or(|number| !intents.owners.contains_key(&number))
                                || member.selector != fabric_model::intent::MemberSelector::Port(manager)
                        })
                    });
                    if let Ok(next) = recompile(&topology, &intents, &plan) {
                        plan = next;
                    }
                }
                1 => drop(intents.owners.pop_first()),
                _ => {
                    if let Some((wrong, _)) = mutant(&mut dice, &plan) {
                        plan = wrong;
                    }
                }
            }
            verified = verified.delta(&topology, &intents, Arc::new(plan.clone()));
            let found: Vec<Finding> = verified.findings().cloned().collect();
            assert_eq!(found, verify(&topology, &intents, &plan), "seed {seed}, change {change}");
        }
    }
}
