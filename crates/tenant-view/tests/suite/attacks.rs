//! Nothing that programs of a tenant send does harm: no panic, no unbounded growth, no change of another view.

use std::time::Duration;

use fabric_sim::BareDatagram;
use ib_wire::{Datagram, Gid, Grh, Lid, LidAddress, Mad, Pkey, QKey, QueuePair, ServiceLevel};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use tenant_view::{View, ViewSendError};

use crate::world::{self, World, second};

/// The observable state of the switches and adapters of a view.
fn state(view: &View) -> String {
    let fabric = view.fabric();
    let devices = fabric.device_ids().map(|device| (fabric.device_view(device), fabric.table_view(device)));
    serde_json::to_string(&devices.collect::<Vec<_>>()).unwrap()
}

/// Values at the edges of the range of fields.
const EDGES_16: [u16; 9] = [0, 1, 2, 0x7fff, 0x8000, 0xbfff, 0xc000, 0xfffe, 0xffff];
const EDGES_32: [u32; 12] =
    [0, 1, 2, 0xff, 0x100, 0xffff, 0x1_0000, 0x00ff_0001, 0x4000_0000, 0x8000_0000, 0xffff_0000, u32::MAX];

fn forged(mad: Mad, rng: &mut Pcg64Mcg) -> Datagram {
    let lid = |raw: u16| LidAddress::from_wire(raw).unwrap_or(LidAddress::Permissive);
    let any = |rng: &mut Pcg64Mcg| EDGES_16[rng.random_range(0..EDGES_16.len())];
    let source = Gid(std::array::from_fn(|_| rng.random()));
    let is_global: bool = rng.random();
    Datagram {
        slid: lid(any(rng)),
        dlid: lid(if rng.random() { rng.random_range(0..12) } else { any(rng) }),
        sl: ServiceLevel::from_wire(rng.random_range(0..16)).unwrap(),
        grh: is_global.then_some(Grh {
            source,
            destination: source,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 0,
        }),
        pkey: Pkey::from_wire(any(rng)).unwrap_or(Pkey::DEFAULT_FULL),
        qkey: QKey::from_wire(rng.random()),
        sqp: QueuePair::from_wire(rng.random_range(0..4)).unwrap(),
        dqp: QueuePair::from_wire(rng.random_range(0..4)).unwrap(),
        mad,
    }
}

/// Sends one datagram in both forms and takes the outputs.
fn send(view: &mut View, now: Duration, mad: &Mad, rng: &mut Pcg64Mcg) -> usize {
    let adapter = view.adapter(["vm-0", "vm-1"][rng.random_range(0..2)]).unwrap();
    let whole = forged(mad.clone(), rng);
    let (slid, dlid) = (Some(whole.slid), Some(whole.dlid));
    let bare = BareDatagram { slid, dlid, sqp: whole.sqp, dqp: whole.dqp, mad: mad.clone() };
    let _ = view.handle_datagram(now, adapter, whole);
    let _ = view.handle_bare(now, adapter, bare);
    let mut taken = 0;
    while view.poll_output().is_some() {
        taken += 1;
    }
    taken
}

#[test]
fn no_class_method_attribute_or_modifier_does_harm() {
    let world = World::tree(32, 8);
    let (mut view, other) = (world.view(&[0, 1, 5, 9]), world.view(&[0, 1, 5, 9]));
    let untouched = state(&other);
    let mut rng = Pcg64Mcg::seed_from_u64(7);
    let classes = [0x01, 0x81, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x21, 0x30, 0x32, 0x4f, 0x00, 0xff];
    let methods =
        [0x01, 0x02, 0x03, 0x05, 0x06, 0x07, 0x12, 0x13, 0x14, 0x15, 0x00, 0x7f, 0x81, 0x86, 0x92, 0xff];
    let attributes: Vec<u16> = (0x00..0x40).chain([0xf3, 0xff90, 0xff91, 0xffb0, 0xffff]).collect();
    let (mut count, mut outputs, mut largest) = (0_u64, 0, 0);
    for class in classes {
        for method in methods {
            for attribute in &attributes {
                // A write may lock a device, so every kind of write is tried on a fresh view.
                if method == 0x02 && (class == 0x01 || class == 0x81) {
                    largest = largest.max(state(&view).len());
                    view = world.view(&[0, 1, 5, 9]);
                }
                for modifier in EDGES_32 {
                    let mut bytes: [u8; 256] = std::array::from_fn(|_| rng.random());
                    match count % 3 {
                        // Garbage behind a valid header, zeros, ones.
                        0 => {}
                        1 => bytes.fill(0),
                        _ => bytes.fill(0xff),
                    }
                    let is_wrong = count % 17 == 0;
                    bytes[0] = if is_wrong { rng.random() } else { 1 };
                    bytes[1] = class;
                    bytes[2] = if is_wrong { rng.random() } else { 1 + u8::from(class == 3) };
                    bytes[3] = method;
                    bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
                    bytes[20..24].copy_from_slice(&modifier.to_be_bytes());
                    if class == 0x81 && count % 4 != 0 {
                        (bytes[6], bytes[7]) = (0, rng.random_range(0..4));
                        bytes[32..36].fill(0xff);
                        bytes[129..133].iter_mut().for_each(|hop| *hop = rng.random_range(0..9));
                    }
                    count += 1;
                    // Slowly enough for the rate limit: every datagram counts.
                    let now = Duration::from_micros(200 * count);
                    outputs += send(&mut view, now, &Mad(bytes), &mut rng);
                    if count % 4096 == 0 {
                        view.handle_timeout(now);
                        view.commit(now);
                    }
                }
            }
        }
    }
    assert!(count > 190_000 && outputs > 10_000, "{count} {outputs}");
    view.handle_timeout(Duration::from_micros(200 * count) + Duration::from_secs(60));
    assert_eq!(state(&other), untouched, "nothing of another view changes");
    // The state is bounded by the table sizes.
    let largest = largest.max(state(&view).len());
    assert!(largest < 40 * untouched.len(), "{largest} bytes after {} bytes", untouched.len());
}

#[test]
fn a_tenant_beyond_its_rate_is_ignored_for_a_while() {
    let world = World::tree(32, 8);
    let mut view = world.view(&[0, 1, 5, 9]);
    let adapter = view.adapter("vm-0").unwrap();
    let mad = world::directed(ib_wire::Method::GET, ib_wire::Attribute::NODE_INFO, 0, &[1]);
    let qp = QueuePair::SUBNET_MANAGEMENT;
    let bare = || BareDatagram { slid: None, dlid: None, sqp: qp, dqp: qp, mad: mad.clone() };
    let mut passed = 0;
    let limit = loop {
        if let Err(unsent) = view.handle_bare(second(1.0), adapter, bare()) {
            break unsent;
        }
        while view.poll_output().is_some() {}
        passed += 1;
    };
    assert_eq!(limit, ViewSendError::RateLimited);
    assert_eq!((view.counts().accepted, view.counts().refused), (passed, 1));
    assert!(passed >= 100_000, "a manager of 256 nodes is not hindered: {passed}");
    assert_eq!(view.handle_bare(second(1.5), adapter, bare()), Ok(()));
}

#[test]
fn untaken_outputs_are_bounded() {
    let world = World::tree(32, 8);
    let mut view = world.view(&[0, 1, 5, 9]);
    let adapter = view.adapter("vm-0").unwrap();
    let mad = world::directed(ib_wire::Method::GET, ib_wire::Attribute::NODE_INFO, 0, &[1]);
    let qp = QueuePair::SUBNET_MANAGEMENT;
    for _ in 0..20_000 {
        let bare = BareDatagram { slid: None, dlid: None, sqp: qp, dqp: qp, mad: mad.clone() };
        view.handle_bare(second(1.0), adapter, bare).unwrap();
    }
    let mut waiting = 0;
    while view.poll_output().is_some() {
        waiting += 1;
    }
    assert!(waiting <= 4096, "{waiting}");
}

#[test]
fn a_forged_source_address_is_replaced() {
    let world = World::tree(32, 8);
    let mut view = world.view(&[0, 1, 5, 9]);
    let (mine, other) = (view.adapter("vm-0").unwrap(), view.adapter("vm-1").unwrap());
    let lid = |view: &View, adapter| view.fabric().lid(view.port(adapter).unwrap()).unwrap();
    let (own, forged) = (lid(&view, mine), lid(&view, other));
    let mad = Mad::new(
        ib_wire::ManagementClass::SUBNET_LID,
        ib_wire::Method::GET,
        ib_wire::Attribute::NODE_INFO,
        0,
    );
    let to = Lid::from_wire(2).unwrap();
    let datagram = Datagram::subnet_management(forged.into(), to.into(), mad);
    view.handle_datagram(second(1.0), mine, datagram).unwrap();
    let answers = world::drain(&mut view);
    assert_eq!(answers.len(), 1);
    assert_eq!((answers[0].0, answers[0].1.dlid), (mine, own.into()), "the answer reaches the requester");
}
