//! Devices that lack a capability, one after the other: a manager, a guaranteed cluster and a partition on an emulated
//! fabric. If isolation or a guarantee needs what is missing, the plan is refused, ports are closed, or the guarantee is
//! withdrawn. What the devices hold in the end keeps every rule of the verifier.

use std::collections::BTreeMap;
use std::time::Duration;

use fabric_model::generate::FatTree;
use fabric_model::intent::ClusterIntent;
use fabric_model::plan::PlanFinding;
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Intents, Topology};
use fabric_sim::{BuiltInProfile, DeviceCapability, DeviceProfile};
use fabric_verifier::{is_acknowledged, verify};
use ib_wire::{Attribute, Guid, PortState};
use subnet_manager::{PersistentState, SmEvent};

use crate::in_process::running_manager::RunningManager;

const KINDS: [BuiltInProfile; 3] =
    [BuiltInProfile::Strict, BuiltInProfile::ConnectX3SwitchX, BuiltInProfile::ConnectX6Quantum];

/// How the lack of a capability shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The plan is refused.
    Refused,
    /// Ports of hosts are closed: they carry no data of tenants.
    Closed,
    /// The cluster has no guarantee, and is reported as such.
    Withdrawn,
    /// The plan is in force; it or the manager has reported what a device lacks or does not take.
    Reported,
    /// The plan is in force, as if nothing were missing.
    InForce,
    /// The plan is in force, and the tables of the devices break a rule.
    Broken,
}

/// What a plan with a guaranteed cluster, a partition and keys needs a capability for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Isolation or guarantees: without it, the plan must not be in force.
    Promise,
    /// Packets of one kind do not arrive without it, which the manager reports.
    Delivery,
    /// The plan is as good without it.
    Nothing,
    /// Isolation is weaker without it, and sites have such switches: raw packets pass (A-PORT-12). The plan says so.
    Tolerated,
}

impl Need {
    fn of(capability: DeviceCapability) -> Self {
        match capability {
            DeviceCapability::EnforcementTable
            | DeviceCapability::InboundEnforcement
            | DeviceCapability::OutboundEnforcement
            | DeviceCapability::SwitchSlToVl
            | DeviceCapability::AdapterSlToVl
            | DeviceCapability::SwitchArbitration
            | DeviceCapability::AdapterArbitration
            | DeviceCapability::SwitchLanes
            | DeviceCapability::AdapterLanes
            | DeviceCapability::AdapterPkeys
            | DeviceCapability::Lifetimes
            | DeviceCapability::ManagementKeys => Self::Promise,
            DeviceCapability::MulticastTable => Self::Delivery,
            DeviceCapability::OptimisedSlToVl
            | DeviceCapability::AliasGuids
            | DeviceCapability::ClientReregister
            | DeviceCapability::SlCounters
            | DeviceCapability::ExtendedSpeeds
            | DeviceCapability::ExtendedPortInfo => Self::Nothing,
            DeviceCapability::InboundRawFilter | DeviceCapability::OutboundRawFilter => Self::Tolerated,
        }
    }

    fn permits(self, outcome: Outcome) -> bool {
        match outcome {
            Outcome::Refused | Outcome::Closed | Outcome::Withdrawn => self != Self::Nothing,
            Outcome::Reported => matches!(self, Self::Delivery | Self::Tolerated),
            Outcome::InForce => self == Self::Nothing,
            Outcome::Broken => false,
        }
    }
}

fn tree() -> Topology {
    FatTree { radix: 8, ..FatTree::with_hosts(12) }.generate().unwrap()
}

/// A manager for a partition with a multicast group and a guaranteed cluster, on hosts of their own.
fn run_on(profile: &DeviceProfile) -> RunningManager {
    let mut run = idle_on(profile);
    let topology = tree();
    let ports: Vec<Guid> =
        topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect();
    run.partitions = format!("best=0x11, ipoib : {}=full, {}=full, {}=full;\n", ports[1], ports[2], ports[3]);
    run.clusters = vec![ClusterIntent {
        name: "paid".to_owned(),
        ports: ports[5..9].to_vec(),
        class: Class::Guaranteed { bandwidth: Bandwidth::from_bits_per_s(1_000_000_000), latency_ns: None },
        sl_mode: SlMode::Cluster,
    }];
    run.run_for(Duration::from_secs(30));
    run
}

fn idle_on(profile: &DeviceProfile) -> RunningManager {
    let mut run = RunningManager::with_devices(&tree(), profile, true, PersistentState::default());
    run.may_be_refused = true;
    run
}

fn outcome(run: &mut RunningManager) -> Outcome {
    if run.refusal.is_some() {
        return Outcome::Refused;
    }
    let plan = run.plan.clone().unwrap();
    assert!(run.told(|event| matches!(event, SmEvent::Programmed(_))) > 0, "{:?}", run.events);
    assert!(run.manager.read_back(run.now));
    run.run_for(Duration::from_secs(5));
    let held = run.events.iter().rev().find_map(|event| match event {
        SmEvent::ReadBack(held) => Some(held),
        _ => None,
    });
    let discovery = run.discovery.as_ref().unwrap();
    let mut intents = Intents::new(discovery.manager);
    intents.capabilities = discovery.capabilities.clone();
    intents.partitions = fabric_compiler::partitions_conf::parse(&run.partitions).unwrap();
    intents.clusters = run.clusters.clone();
    let held = held.unwrap();
    let findings = verify(&discovery.topology, &intents, held);
    if findings.iter().any(|finding| !is_acknowledged(finding, &plan)) {
        return Outcome::Broken;
    }
    let is_found = |is: fn(&PlanFinding) -> bool| plan.findings().iter().any(is);
    if is_found(|finding| matches!(finding, PlanFinding::Unenforced { .. })) {
        return Outcome::Closed;
    }
    if is_found(|finding| matches!(finding, PlanFinding::GuaranteeViolated { .. })) {
        return Outcome::Withdrawn;
    }
    let is_report = |event: &SmEvent| match event {
        SmEvent::Unsupported { .. } => true,
        SmEvent::RequestRefused { attribute, .. } => *attribute != Attribute::MLNX_EXT_PORT_INFO,
        _ => false,
    };
    let is_unfiltered = is_found(|finding| matches!(finding, PlanFinding::RawUnfiltered { .. }));
    if is_unfiltered || run.told(is_report) > 0 { Outcome::Reported } else { Outcome::InForce }
}

/// Devices of every kind come up with a partition. Those of ibsim enforce none, so that its members stay closed; switches of
/// the old kind do not filter raw packets, have another manager's LMC, two lanes and cables of all rates.
#[test]
fn devices_of_every_profile_are_programmed() {
    for kind in BuiltInProfile::ALL {
        let mut run = idle_on(&kind.profile());
        run.partitions = "best=0x11, ipoib : ALL_CAS=full;\n".to_owned();
        run.run_for(Duration::from_secs(30));
        let expected = match kind {
            BuiltInProfile::Ibsim => Outcome::Closed,
            BuiltInProfile::OldAndOdd => Outcome::Reported,
            _ => Outcome::InForce,
        };
        assert_eq!(outcome(&mut run), expected, "{}", kind.name());
        let plan = run.plan.clone().unwrap();
        let open = plan.adapter_ports().filter(|port| {
            let found = run.fabric.find_port(&format!("{:#x}", port.guid)).unwrap();
            run.fabric.state_of(found) == PortState::Active
        });
        assert_eq!(open.count(), plan.adapter_ports().count(), "{}: planned ports are open", kind.name());
    }
}

#[test]
fn no_lack_of_a_capability_goes_unnoticed() {
    let mut outcomes: BTreeMap<Outcome, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for kind in KINDS {
        let profile = kind.profile();
        assert_eq!(outcome(&mut run_on(&profile)), Outcome::InForce, "{}: nothing is missing", kind.name());
        for capability in profile.capabilities() {
            let found = outcome(&mut run_on(&profile.without(capability)));
            *outcomes.entry(found).or_default() += 1;
            if !Need::of(capability).permits(found) {
                wrong.push(format!("{} without {capability}: {found:?}", kind.name()));
            }
        }
    }
    println!("cases by outcome: {outcomes:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn hosts_stay_closed_where_nothing_enforces_partitions() {
    const ENFORCEMENT: [DeviceCapability; 3] = [
        DeviceCapability::EnforcementTable,
        DeviceCapability::InboundEnforcement,
        DeviceCapability::OutboundEnforcement,
    ];
    for kind in KINDS {
        let cases = ENFORCEMENT.map(|lacking| (Some(lacking), Outcome::Closed));
        for (lacking, expected) in cases.into_iter().chain([(None, Outcome::InForce)]) {
            let profile = lacking.map_or(kind.profile(), |lacking| kind.profile().without(lacking));
            let mut run = idle_on(&profile);
            run.run_for(Duration::from_secs(30));
            assert_eq!(outcome(&mut run), expected, "{} without {lacking:?}", kind.name());
            let topology = tree();
            for (_, host) in topology.end_nodes().skip(1) {
                let state = run.fabric.state_of(run.fabric.find_port(&host.id).unwrap());
                assert_eq!(state == PortState::Active, lacking.is_none(), "{}: {state:?}", host.id);
            }
        }
    }
}
