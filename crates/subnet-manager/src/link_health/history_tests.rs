use super::*;
use ib_wire::{Guid, PortNum};

const SECOND: Duration = Duration::from_secs(1);

fn port(node: u64) -> PortName {
    PortName { node: Guid::from_wire(node).unwrap(), port: PortNum::new(1).unwrap() }
}

fn link() -> LinkName {
    LinkName::new(port(1), port(2))
}

fn health() -> LinkHealth {
    LinkHealth::new(LinkHealthSettings::default(), &[])
}

/// The link goes down at both of its ends at a time. The manager has forgotten the cable when it sees the second end.
fn flap(health: &mut LinkHealth, now: Duration) {
    health.handle_down(now, port(1), Some(port(2)));
    health.handle_down(now, port(2), None);
}

fn is_damped(health: &LinkHealth) -> bool {
    health.damped().any(|damped| damped.link == link())
}

fn counts(counter: LinkErrorCounter, count: u32) -> ErrorCounts {
    let mut counts = ErrorCounts::default();
    counts.set(counter, count);
    counts
}

fn read(health: &mut LinkHealth, now: Duration, counter: LinkErrorCounter, count: u32) {
    health.handle_counters(now, port(1), port(2), counts(counter, count));
}

#[test]
fn the_fifth_flap_within_ten_minutes_damps_a_link() {
    let mut health = health();
    for minute in 0..4 {
        flap(&mut health, minute * 60 * SECOND);
        assert!(!is_damped(&health));
    }
    flap(&mut health, 599 * SECOND);
    let damped = health.damped().next().unwrap();
    assert_eq!(damped.reason, DampingReason::Flaps { count: 5, window_seconds: 600 });
    assert!(health.take_changed(599 * SECOND) && !health.take_changed(599 * SECOND), "reported once");
}

#[test]
fn flaps_that_are_further_apart_do_not_damp() {
    let mut health = health();
    for flaps in 0..100 {
        flap(&mut health, flaps * 150 * SECOND);
    }
    assert!(!is_damped(&health));
}

#[test]
fn a_flap_seen_at_both_ends_counts_once() {
    let mut health = health();
    for flaps in 0..4 {
        let now = flaps * SECOND;
        health.handle_down(now, port(1), Some(port(2)));
        health.handle_down(now, port(2), Some(port(1)));
    }
    assert!(!is_damped(&health));
}

#[test]
fn what_the_manager_takes_down_is_no_flap() {
    let mut health = health();
    for flaps in 0..20 {
        health.expect_down([port(1), port(2)]);
        flap(&mut health, flaps * SECOND);
    }
    assert!(!is_damped(&health));
    // Its own downs do not count as growth of LinkDownedCounter either.
    read(&mut health, 30 * SECOND, LinkErrorCounter::LinkDowned, 100);
    for round in 1..=20 {
        health.expect_down([port(1), port(2)]);
        read(&mut health, (30 + round) * SECOND, LinkErrorCounter::LinkDowned, 100 + round);
    }
    assert!(!is_damped(&health));
}

#[test]
fn growing_errors_damp_a_link() {
    use LinkErrorCounter::*;
    for (counter, limit) in [
        (SymbolErrors, 1000),
        (LinkRecoveries, 10),
        (LinkDowned, 10),
        (ReceiveErrors, 100),
        (LinkIntegrityErrors, 5),
        (BufferOverrunErrors, 5),
    ] {
        let mut health = health();
        read(&mut health, SECOND, counter, 3);
        read(&mut health, 2 * SECOND, counter, 2 + limit);
        assert!(!is_damped(&health), "{counter}");
        read(&mut health, 3 * SECOND, counter, 3 + limit);
        let reason = health.damped().next().unwrap().reason;
        let growth = limit;
        assert_eq!(reason, DampingReason::Errors { port: port(1), counter, growth, window_seconds: 3600 });
    }
}

#[test]
fn old_errors_do_not_damp_a_link() {
    let mut health = health();
    for round in 0..100 {
        read(&mut health, round * 10 * SECOND, LinkErrorCounter::SymbolErrors, 60_000);
    }
    assert!(!is_damped(&health), "they are not growing");
}

#[test]
fn slow_growth_does_not_damp_a_link() {
    let mut health = health();
    for hour in 0..50 {
        read(&mut health, hour * 3600 * SECOND, LinkErrorCounter::SymbolErrors, hour * 999);
    }
    // Read too rarely: the growth of two hours.
    read(&mut health, 52 * 3600 * SECOND, LinkErrorCounter::SymbolErrors, 49 * 999 + 1998);
    assert!(!is_damped(&health));
}

#[test]
fn a_saturated_counter_shows_no_growth() {
    let mut health = health();
    for round in 0..10 {
        read(&mut health, round * SECOND, LinkErrorCounter::SymbolErrors, 0xffff);
    }
    assert!(!is_damped(&health));
}

#[test]
fn a_counter_that_others_reset_counts_from_zero() {
    let mut health = health();
    read(&mut health, SECOND, LinkErrorCounter::SymbolErrors, 60_000);
    read(&mut health, 2 * SECOND, LinkErrorCounter::SymbolErrors, 0);
    read(&mut health, 3 * SECOND, LinkErrorCounter::SymbolErrors, 999);
    assert!(!is_damped(&health));
    read(&mut health, 4 * SECOND, LinkErrorCounter::SymbolErrors, 10);
    assert!(is_damped(&health), "999 before the reset and 10 after it");
}

#[test]
fn a_limit_of_zero_is_never_reached() {
    let settings = LinkHealthSettings { flaps: 0, errors: ErrorCounts::default(), ..Default::default() };
    let mut health = LinkHealth::new(settings, &[]);
    for round in 0..100 {
        flap(&mut health, round * SECOND);
        read(&mut health, round * SECOND, LinkErrorCounter::SymbolErrors, 600 * round);
    }
    assert!(!is_damped(&health));
}

/// Damps the link at a time, and returns when it comes back.
fn damp(health: &mut LinkHealth, now: Duration) -> Duration {
    for _ in 0..5 {
        flap(health, now);
    }
    assert!(is_damped(health) && health.take_changed(now));
    health.poll_timeout().unwrap()
}

#[test]
fn a_link_returns_after_a_quiet_time_that_doubles() {
    let mut health = health();
    let mut now = SECOND;
    let mut minutes = Vec::new();
    for _ in 0..9 {
        let until = damp(&mut health, now);
        minutes.push((until - now).as_secs() / 60);
        assert!(!health.take_changed(until - SECOND) && is_damped(&health));
        assert!(health.take_changed(until) && !is_damped(&health));
        now = until;
    }
    assert_eq!(minutes, [10, 20, 40, 80, 160, 320, 640, 1280, 1440]);
    now += Duration::from_secs(24 * 3600);
    health.take_changed(now);
    assert_eq!(damp(&mut health, now) - now, 600 * SECOND, "it was well for a day");
}

#[test]
fn unrest_starts_the_quiet_time_anew() {
    let mut health = health();
    damp(&mut health, SECOND);
    flap(&mut health, 500 * SECOND);
    assert_eq!(health.poll_timeout(), Some(1100 * SECOND));
    read(&mut health, 600 * SECOND, LinkErrorCounter::SymbolErrors, 0);
    read(&mut health, 700 * SECOND, LinkErrorCounter::SymbolErrors, 999);
    assert_eq!(health.poll_timeout(), Some(1100 * SECOND));
    read(&mut health, 800 * SECOND, LinkErrorCounter::SymbolErrors, 1000);
    assert_eq!(health.poll_timeout(), Some(1400 * SECOND));
}

#[test]
fn a_command_restores_a_link_by_either_end() {
    for end in [port(1), port(2)] {
        let mut health = health();
        assert_eq!(health.restore(end), None);
        damp(&mut health, SECOND);
        assert_eq!(health.restore(end), Some(link()));
        assert!(!is_damped(&health) && health.take_changed(SECOND));
        assert_eq!(damp(&mut health, 2 * SECOND), 602 * SECOND, "as for the first time");
    }
}

#[test]
fn damped_links_survive_a_restart_with_their_full_quiet_time() {
    let mut health = health();
    let now = damp(&mut health, SECOND);
    health.take_changed(now);
    damp(&mut health, now);
    let kept: Vec<DampedLink> = health.damped().copied().collect();
    let json = serde_json::to_string(&kept).unwrap();
    let kept: Vec<DampedLink> = serde_json::from_str(&json).unwrap();
    let mut next = LinkHealth::new(LinkHealthSettings::default(), &kept);
    assert!(!next.take_changed(5 * SECOND) && is_damped(&next));
    assert_eq!(next.poll_timeout(), Some(1205 * SECOND), "for the second time");
}

#[test]
fn memory_is_limited() {
    let mut health = health();
    let many = FLAPPING_MAX as u64 + 100;
    for node in 1..=many {
        health.handle_down(SECOND, port(node), Some(port(node + many)));
    }
    assert_eq!(health.flapping.len(), FLAPPING_MAX);
    health.forget_old(300 * SECOND, |_| true);
    assert_eq!(health.flapping.len(), FLAPPING_MAX, "all are within the window");
    for node in 1..=DAMPED_MAX as u64 + 10 {
        let reason = DampingReason::Flaps { count: 5, window_seconds: 600 };
        health.damp(SECOND, LinkName::new(port(node), port(node + many)), reason);
    }
    assert_eq!(health.damped.len(), DAMPED_MAX);
    health.expect_down([port(1)]);
    health.forget_old(1000 * SECOND, |_| false);
    assert!(health.flapping.is_empty() && health.flapping_at.is_empty() && health.ports.is_empty());
}
