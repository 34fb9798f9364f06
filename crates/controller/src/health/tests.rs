//! Limits and durations, with clocks that the tests set.

use std::collections::HashMap;
use std::time::Duration;

use super::*;
use crate::observed::ObservedFabric;

fn observed() -> Observed {
    let fabric = ObservedFabric { state: FabricState::Programmed, ..ObservedFabric::default() };
    Observed { agents: HashMap::new(), fabric, ..Observed::default() }
}

fn host(name: &str) -> NewHost {
    NewHost {
        name: name.parse().unwrap(),
        port_guid: None,
        agent: "/run/agent".to_owned(),
        cores: 1,
        memory: controller_api::MemorySize::from_mib(1024),
    }
}

/// `seconds` after an instant, with the wall clock off by `step` seconds.
fn after(start: ClockReading, seconds: u64, step: i64) -> ClockReading {
    let wall = start.wall + jiff::SignedDuration::from_secs(seconds as i64 + step);
    ClockReading { at: start.at + Duration::from_secs(seconds), wall }
}

#[test]
fn clock_steps_do_not_change_fault_detection() {
    let start = ClockReading::now();
    for step in [-3600, 0, 3600] {
        let (mut monitor, hosts) = (Monitor::default(), [host("host-1")]);
        let mut observed = observed();
        observed.fabric.heard = Some(after(start, 1000, 0));
        let mut faults =
            |seconds| monitor.examine(&observed, &hosts, &Faults::new(), after(start, seconds, step));
        assert_eq!(faults(0), Faults::new());
        assert_eq!(faults(AGENT_SILENCE_LIMIT.as_secs()), Faults::new());
        let found = faults(AGENT_SILENCE_LIMIT.as_secs() + 1);
        let expected = Fault::AgentSilent("host-1".parse().unwrap());
        assert_eq!(found.keys().collect::<Vec<_>>(), [&expected], "{step}");
    }
}

#[test]
fn faults_keep_their_start_across_restarts() {
    let start = ClockReading::now();
    let long_ago = start.wall - jiff::SignedDuration::from_hours(5);
    let fault = Fault::AgentSilent("host-1".parse().unwrap());
    let before = Faults::from([(fault.clone(), long_ago), (Fault::ManagerSilent, long_ago)]);
    let found = Monitor::default().examine(&observed(), &[host("host-1")], &before, start);
    assert_eq!(found, before);
}

#[test]
fn a_fabric_that_is_programmed_now_and_then_is_not_stuck() {
    let start = ClockReading::now();
    let mut monitor = Monitor::default();
    let mut observed = observed();
    observed.fabric.state = FabricState::Programming;
    observed.fabric.heard = Some(after(start, 1000, 0));
    let limit = PROGRAMMING_LIMIT.as_secs();
    assert_eq!(monitor.examine(&observed, &[], &Faults::new(), start), Faults::new());
    observed.fabric.settled = Some(after(start, limit, 0));
    assert_eq!(monitor.examine(&observed, &[], &Faults::new(), after(start, limit + 10, 0)), Faults::new());
    let stuck = monitor.examine(&observed, &[], &Faults::new(), after(start, 2 * limit + 1, 0));
    assert_eq!(stuck.keys().collect::<Vec<_>>(), [&Fault::FabricStuck]);
}
