//! Arbitrary input: no harm, no response to unknown senders, at most one response per request.

use ib_wire::{Datagram, Gid, Grh, LidAddress, Mad, Pkey, QKey, QueuePair, ServiceLevel, Status};
use proptest::collection::vec;
use proptest::prelude::*;
use subnet_manager::SubnetAdministration;

use crate::visibility::overlapping;
use crate::world::NOW;

const ATTRIBUTES: [u16; 16] =
    [1, 0x11, 0x12, 0x13, 0x14, 0x15, 0x17, 0x18, 0x20, 0x30, 0x31, 0x33, 0x35, 0x36, 0x38, 0xf3];
const METHODS: [u8; 9] = [1, 2, 3, 5, 6, 0x12, 0x13, 0x14, 0x15];

/// A datagram of random bytes, often with a valid header.
fn mads() -> impl Strategy<Value = Mad> {
    let attribute = prop_oneof![4 => proptest::sample::select(&ATTRIBUTES[..]), 1 => any::<u16>()];
    let method = prop_oneof![4 => proptest::sample::select(&METHODS[..]), 1 => any::<u8>()];
    let mask = prop_oneof![
        Just(0),
        any::<u64>(),
        any::<u64>().prop_map(|mask| mask & 0x3f),
        (0u32..60).prop_map(|bit| 1 << bit)
    ];
    (vec(any::<u8>(), 256), any::<(bool, bool, bool)>(), attribute, method, mask).prop_map(
        |(raw, (sane, rmpp, zeros), attribute, method, mask): (Vec<u8>, (bool, bool, bool), u16, u8, u64)| {
            let mut raw: [u8; 256] = raw.try_into().unwrap();
            if sane {
                raw[..4].copy_from_slice(&[1, 3, 2, method]);
                raw[16..18].copy_from_slice(&attribute.to_be_bytes());
                raw[48..56].copy_from_slice(&mask.to_be_bytes());
            }
            if !rmpp {
                raw[24..36].fill(0);
            }
            if zeros {
                // Small numbers: LIDs that exist, selectors that mean something.
                raw[56..].iter_mut().for_each(|byte| *byte &= 0x07);
            }
            Mad(raw)
        },
    )
}

fn datagrams() -> impl Strategy<Value = Datagram> {
    let grh = proptest::option::weighted(0.2, (any::<[u8; 16]>(), any::<bool>(), 0u8..20));
    (mads(), prop_oneof![0u16..24, any::<u16>()], prop_oneof![Just(0x7fff), Just(0xffff), any::<u16>()], grh)
        .prop_map(|(mad, slid, key, grh)| Datagram {
            slid: LidAddress::from_wire(slid).unwrap_or(LidAddress::Permissive),
            dlid: LidAddress::from_wire(1).unwrap(),
            sl: ServiceLevel::default(),
            grh: grh.map(|(mut source, near, last)| {
                if near {
                    source = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0x10, 0, last];
                }
                Grh {
                    source: Gid(source),
                    destination: Gid(source),
                    traffic_class: 0,
                    flow_label: 0,
                    hop_limit: 0,
                }
            }),
            pkey: Pkey::from_wire(key).unwrap_or(Pkey::DEFAULT_FULL),
            qkey: QKey::GENERAL_MANAGEMENT,
            sqp: QueuePair::GENERAL_MANAGEMENT,
            dqp: QueuePair::GENERAL_MANAGEMENT,
            mad,
        })
}

proptest! {
    #[test]
    fn arbitrary_datagrams_do_no_harm(datagrams in vec(datagrams(), 1..60)) {
        let world = overlapping();
        let mut sa = world.sa();
        let mut now = NOW;
        for datagram in &datagrams {
            sa.handle_datagram(now, datagram);
            let requester = match datagram.slid {
                LidAddress::Unicast(lid) => world.keys.get(&lid.to_wire()),
                _ => None,
            };
            let is_member = requester.is_some_and(|keys| {
                keys.iter().any(|key| key & 0x7fff == datagram.pkey.partition().to_wire())
            });
            let mut sent = 0;
            while let Some(answer) = sa.poll_transmit(now) {
                prop_assert!(answer.mad.method().is_response() || answer.mad.rmpp().version == 1);
                prop_assert!(world.keys.contains_key(&answer.dlid.to_wire()));
                if answer.dlid == datagram.slid && answer.mad.transaction() == datagram.mad.transaction() {
                    prop_assert!(is_member, "an unknown sender was answered");
                }
                sent += 1;
            }
            prop_assert!(sent <= 2000, "an answer has an end");
            if sent == 0 && let Some(next) = sa.poll_timeout() {
                now = now.max(next);
                sa.handle_timeout(now);
            }
        }
        prop_assert!(sa.counts().requests <= datagrams.len() as u64);
    }

    #[test]
    fn senders_outside_the_plan_get_no_response(datagrams in vec(datagrams(), 1..60)) {
        let mut sa = overlapping().sa();
        for datagram in datagrams {
            let stranger = Datagram { slid: LidAddress::from_wire(0x1234).unwrap(), ..datagram };
            sa.handle_datagram(NOW, &stranger);
            prop_assert_eq!(sa.poll_transmit(NOW), None);
        }
    }
}

#[test]
fn the_generated_datagrams_cover_success_and_refusal() {
    // Otherwise the properties above would hold vacuously.
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut sa, mut statuses): (SubnetAdministration, Vec<Status>) = (overlapping().sa(), Vec::new());
    for _ in 0..5000 {
        let datagram = datagrams().new_tree(&mut runner).unwrap().current();
        sa.handle_datagram(NOW, &datagram);
        while let Some(answer) = sa.poll_transmit(NOW) {
            statuses.push(answer.mad.status());
        }
    }
    for status in
        [Status::OK, Status::SA_NO_RECORDS, Status::UNSUPPORTED_METHOD, Status::UNSUPPORTED_ATTRIBUTE]
    {
        assert!(statuses.contains(&status), "{status:?} was never answered");
    }
    assert!(sa.counts().transfers > 0 && sa.counts().dropped > 0);
}
