//! The rules of the election, step by step.

use super::*;
use ib_wire::PortNum;

const PEER: Guid = match Guid::from_wire(7) {
    Some(guid) => guid,
    None => unreachable!(),
};

fn at(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// An election with one other manager that the fabric shows.
fn election() -> Election {
    let peers = BTreeMap::from([(PEER, Peer::default())]);
    let mut election = Election { peers, has_looked: true, ..Election::default() };
    let port = PortName { node: PEER, port: PortNum::new(1).unwrap() };
    election.set_port(Duration::ZERO, PEER, Some(port));
    election
}

/// Lets time pass in steps of 50 ms; every question is answered after 1 ms with `answer`, if there is one.
fn pass(election: &mut Election, from: u64, to: u64, answer: Option<SmState>) {
    for now in (from..to).step_by(50).map(at) {
        election.step(now);
        while let Some((transaction, _)) = election.next_question(now) {
            if let Some(state) = answer {
                let (guid, sent) = election.take_question(transaction).unwrap();
                election.record(guid, sent, state, false);
            }
        }
        election.step(now + at(1));
    }
}

#[test]
fn a_lease_counts_from_the_question() {
    let mut election = election();
    assert!(!election.has_lease(at(0)), "nobody has answered");
    let (transaction, _) = election.next_question(at(100)).unwrap();
    let (guid, sent) = election.take_question(transaction).unwrap();
    election.step(at(900));
    election.record(guid, sent, SmState::Standby, false);
    assert!(election.has_lease(at(1099)));
    assert!(!election.has_lease(at(1100)));
}

#[test]
fn candidates_and_masters_give_no_lease() {
    for (state, lease) in [
        (SmState::Standby, true),
        (SmState::NotActive, true),
        (SmState::Discovering, false),
        (SmState::Master, false),
    ] {
        let mut election = election();
        pass(&mut election, 0, 3000, Some(state));
        assert_eq!(election.has_lease(at(2960)), lease, "{state:?}");
    }
}

#[test]
fn a_silent_manager_is_waited_for_once() {
    let mut election = election();
    pass(&mut election, 0, 550, None);
    assert!(!election.has_lease(at(551)));
    pass(&mut election, 550, 700, None);
    assert!(election.has_lease(at(651)));
    assert_eq!(election.standing, Standing::Master);
}

#[test]
fn a_stopped_master_has_no_lease_and_is_a_candidate() {
    let mut election = election();
    pass(&mut election, 0, 1000, Some(SmState::Standby));
    assert!(election.has_lease(at(1300)));
    assert!(!election.has_lease(at(1352)), "checked before each datagram, even if no step noticed it yet");
    election.step(at(1400));
    assert_eq!(election.standing, Standing::Candidate);
    let (transaction, _) = election.next_question(at(1400)).unwrap();
    let (guid, sent) = election.take_question(transaction).unwrap();
    assert_eq!(election.record(guid, sent, SmState::Master, false), Verdict::Yield, "whatever its rank");
}

#[test]
fn of_two_masters_the_lower_rank_yields() {
    for (outranks_us, verdict) in [(true, Verdict::Yield), (false, Verdict::Stay)] {
        let mut election = election();
        pass(&mut election, 0, 1000, None);
        assert_eq!(election.standing, Standing::Master);
        assert_eq!(election.record(PEER, at(990), SmState::Master, outranks_us), verdict);
        assert!(!election.has_lease(at(1000)), "and nobody writes before that");
    }
}

#[test]
fn a_manager_that_was_cut_off_is_a_candidate() {
    let mut election = election();
    pass(&mut election, 0, 1000, None);
    election.set_cut_off(at(1000), true);
    assert_eq!(election.state(), SmState::NotActive);
    election.set_cut_off(at(1010), false);
    assert_eq!(election.state(), SmState::Discovering);
    assert_eq!(election.record(PEER, at(1010), SmState::Master, false), Verdict::Yield);
    election.record(PEER, at(1010), SmState::Standby, false);
    assert!(!election.has_lease(at(1011)), "it gave leases to others until now");
}

#[test]
fn ranks_are_priority_then_the_lower_guid() {
    let rank = |priority, guid| Rank { priority, guid: Guid::from_wire(guid) };
    assert!(rank(5, 9).outranks(rank(4, 1)));
    assert!(rank(5, 1).outranks(rank(5, 9)));
    assert!(!rank(5, 1).outranks(rank(5, 1)));
}
