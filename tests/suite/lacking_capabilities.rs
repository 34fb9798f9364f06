//! Devices that lack a capability, one after the other: a manager, a guaranteed cluster and a partition on an emulated
//! fabric. Whatever is missing, the plan is refused, ports stay closed, or the manager reports it; a fabric that it calls
//! programmed without a word keeps every rule of the verifier.

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
    /// The plan leaves out the ports of hosts, which stay closed.
    Closed,
    /// The manager reports a Set that was refused or had no effect.
    Reported,
    /// The plan does not need it: it is in force, and the tables of the devices keep every rule.
    NotNeeded,
    /// The plan is in force, nobody says anything, and the tables of the devices break a rule.
    Silent,
}

/// Whether a plan with a guaranteed cluster, a partition and keys needs a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Without it, isolation, a guarantee or something else that was planned does not exist.
    Required,
    /// The plan is the same or equally good without it.
    Optional,
    /// Isolation is weaker without it, and sites have such switches: raw packets pass (A-PORT-12). A manager may refuse it.
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
            | DeviceCapability::MulticastTable
            | DeviceCapability::Lifetimes
            | DeviceCapability::ManagementKeys => Self::Required,
            DeviceCapability::OptimisedSlToVl
            | DeviceCapability::AliasGuids
            | DeviceCapability::ExtendedSpeeds
            | DeviceCapability::ExtendedPortInfo => Self::Optional,
            DeviceCapability::InboundRawFilter | DeviceCapability::OutboundRawFilter => Self::Tolerated,
        }
    }

    fn permits(self, outcome: Outcome) -> bool {
        match outcome {
            Outcome::Refused | Outcome::Closed | Outcome::Reported => self != Self::Optional,
            Outcome::NotNeeded => self != Self::Required,
            Outcome::Silent => false,
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
    if plan.findings().iter().any(|finding| matches!(finding, PlanFinding::Unenforced { .. })) {
        return Outcome::Closed;
    }
    let is_report = |event: &SmEvent| match event {
        SmEvent::Unsupported { .. } => true,
        SmEvent::RequestRefused { attribute, .. } => *attribute != Attribute::MLNX_EXT_PORT_INFO,
        _ => false,
    };
    if run.told(is_report) > 0 {
        return Outcome::Reported;
    }
    assert!(run.told(|event| matches!(event, SmEvent::Programmed(_))) > 0, "{:?}", run.events);
    assert!(run.manager.read_back(run.now));
    run.run_for(Duration::from_secs(5));
    let held = run.events.iter().find_map(|event| match event {
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
    let is_sound = findings.iter().all(|finding| is_acknowledged(finding, held));
    if is_sound { Outcome::NotNeeded } else { Outcome::Silent }
}

#[test]
fn no_lack_of_a_capability_goes_unnoticed() {
    let mut outcomes: BTreeMap<Outcome, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for kind in KINDS {
        let profile = kind.profile();
        assert_eq!(outcome(&mut run_on(&profile)), Outcome::NotNeeded, "{}: nothing is missing", kind.name());
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
        for (lacking, expected) in cases.into_iter().chain([(None, Outcome::NotNeeded)]) {
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
