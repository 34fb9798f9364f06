//! Devices that lack a capability, one after the other: a manager, a guaranteed cluster and a partition on an emulated
//! fabric. Whatever is missing, the plan is refused, ports stay closed, or the manager reports it; a fabric that it calls
//! programmed without a word keeps every rule of the verifier.

use std::time::Duration;

use fabric_model::generate::FatTree;
use fabric_model::intent::ClusterIntent;
use fabric_model::plan::PlanFinding;
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Intents, Topology};
use fabric_sim::{BuiltInProfile, DeviceCapability, DeviceProfile};
use fabric_verifier::{is_acknowledged, verify};
use ib_wire::{Attribute, Guid};
use subnet_manager::{PersistentState, SmEvent};

use crate::in_process::running_manager::RunningManager;

const KINDS: [BuiltInProfile; 3] =
    [BuiltInProfile::Strict, BuiltInProfile::ConnectX3SwitchX, BuiltInProfile::ConnectX6Quantum];

/// How the lack of a capability shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

fn expected(capability: DeviceCapability) -> Outcome {
    match capability {
        DeviceCapability::EnforcementTable
        | DeviceCapability::InboundEnforcement
        | DeviceCapability::OutboundEnforcement => Outcome::Closed,
        DeviceCapability::SwitchLanes
        | DeviceCapability::AdapterLanes
        | DeviceCapability::AdapterPkeys
        | DeviceCapability::MulticastTable => Outcome::Refused,
        DeviceCapability::SwitchSlToVl
        | DeviceCapability::AdapterSlToVl
        | DeviceCapability::SwitchArbitration
        | DeviceCapability::AdapterArbitration
        | DeviceCapability::Lifetimes
        | DeviceCapability::ManagementKeys => Outcome::Reported,
        DeviceCapability::OptimisedSlToVl
        | DeviceCapability::AliasGuids
        | DeviceCapability::ExtendedSpeeds
        | DeviceCapability::ExtendedPortInfo
        // Raw packets pass; the plan does not ask for more than the switches have (A-PORT-12).
        | DeviceCapability::InboundRawFilter
        | DeviceCapability::OutboundRawFilter => Outcome::NotNeeded,
    }
}

fn tree() -> Topology {
    FatTree { radix: 8, ..FatTree::with_hosts(12) }.generate().unwrap()
}

/// A partition with a multicast group and a guaranteed cluster, on hosts of their own.
fn run_on(profile: &DeviceProfile) -> RunningManager {
    let topology = tree();
    let ports: Vec<Guid> =
        topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect();
    let mut run = RunningManager::with_devices(&topology, profile, true, PersistentState::default());
    run.may_be_refused = true;
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
    let mut cases = 0;
    let mut wrong = Vec::new();
    for kind in KINDS {
        let profile = kind.profile();
        assert_eq!(outcome(&mut run_on(&profile)), Outcome::NotNeeded, "{}: nothing is missing", kind.name());
        for capability in profile.capabilities() {
            cases += 1;
            let found = outcome(&mut run_on(&profile.without(capability)));
            if found != expected(capability) {
                wrong.push(format!("{} without {capability}: {found:?}", kind.name()));
            }
        }
    }
    println!("{cases} cases");
    assert!(wrong.is_empty(), "of {cases} cases:\n{}", wrong.join("\n"));
}
