//! Frames per second of the emulation, without sockets: `cargo run --release --example frame_rate`.

use std::time::{Duration, Instant};

use fabric_model::{MacAddress, ibnetdiscover};
use fabric_sim::{
    Capacities, Fabric, FabricOutput, FunctionId, FunctionKey, LinkModel, ModelledRate, VirtualFunction,
};
use ib_wire::{
    Attribute, Datagram, DirectedRoute, Lid, LidAddress, Mad, Method, Pkey, PortInfo, PortNum, PortState,
    SwitchInfo,
};

/// The most common path in a fat-tree of two tiers: leaf, spine, leaf.
const NET: &str = r#"
Switch 4 "leaf"
[1] "a"[1]
[2] "spine"[1]

Switch 4 "spine"
[1] "leaf"[2]
[2] "far"[2]

Switch 4 "far"
[1] "b"[1]
[2] "spine"[2]

Hca 1 "a"
[1] "leaf"[1]

Hca 1 "b"
[1] "far"[1]
"#;

/// A node: its LID, the directed route to it from `a`, and for switches the output ports by LID.
type Setup = (u16, &'static [u8], Option<[u8; 6]>);

/// From `a` to `b`, in the order of the path.
const NODES: [Setup; 5] = [
    (1, &[], None),
    (2, &[1], Some([0xff, 1, 0, 2, 2, 2])),
    (3, &[1, 2], Some([0xff, 1, 1, 0, 2, 2])),
    (4, &[1, 2, 2], Some([0xff, 2, 2, 2, 0, 1])),
    (5, &[1, 2, 2, 1], None),
];

const FRAMES: u32 = 3_000_000;

fn main() {
    let topology = ibnetdiscover::parse(NET).expect("the fabric is well formed");
    let mut fabric = Fabric::new(topology, Capacities::default(), 1).expect("usual capacities");
    configure(&mut fabric);
    let [a, b] = [("a", 1), ("b", 5)].map(|(node, lid)| {
        let id = FunctionId::new(fabric.find_port(node).expect("it is there"), 1);
        let mac = MacAddress::of_function(Lid::from_wire(lid).expect("not 0"), 1);
        let function = VirtualFunction {
            id,
            mac,
            keys: [FunctionKey { pkey: Pkey::DEFAULT_FULL, group: None }].into(),
            sl: Default::default(),
        };
        fabric.attach(function.clone()).expect("a good function");
        function
    });
    for length in [64, 2048] {
        let mut frame = vec![0; length];
        frame[..6].copy_from_slice(&b.mac.bytes());
        frame[6..12].copy_from_slice(&a.mac.bytes());
        let (began, mut got, mut receivers) = (Instant::now(), 0, Vec::new());
        for _ in 0..FRAMES {
            fabric.send_frame(Duration::ZERO, a.id, &frame, &mut receivers);
            got += receivers.len();
        }
        let seconds = began.elapsed().as_secs_f64();
        assert_eq!(got, FRAMES as usize, "every frame arrives");
        println!(
            "{length} bytes through 3 switches: {:.2} million frames/s",
            f64::from(FRAMES) / seconds / 1e6
        );
        let rate = with_link_model(&mut fabric, a.id, &frame);
        println!(
            "{length} bytes, with the link model at the rates of links: {:.2} million frames/s",
            rate / 1e6
        );
    }
}

/// Frames per second that the link model handles, whatever time it gives them.
fn with_link_model(fabric: &mut Fabric, from: FunctionId, frame: &[u8]) -> f64 {
    let model = LinkModel { rate: ModelledRate::Divided(1), latency: Duration::from_micros(1) };
    let (mut now, mut got, mut receivers) = (Duration::ZERO, 0, Vec::new());
    fabric.set_link_model(now, Some(model));
    let began = Instant::now();
    while got < FRAMES / 10 {
        while !fabric.is_congested(from) {
            fabric.send_frame(now, from, frame, &mut receivers);
        }
        now = fabric.poll_timeout().map_or(now, |due| now.max(due));
        fabric.handle_timeout(now);
        while let Some(output) = fabric.poll_output() {
            got += u32::from(matches!(output, FabricOutput::Frame { .. }));
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    fabric.set_link_model(now, None);
    while fabric.poll_output().is_some() {}
    f64::from(got) / seconds
}

fn configure(fabric: &mut Fabric) {
    for (lid, hops, exits) in NODES {
        change_port(fabric, hops, 0, |info| info.lid = Lid::from_wire(lid));
        if let Some(exits) = exits {
            let mut table = [0xff; 64];
            table[..6].copy_from_slice(&exits);
            ask(fabric, Method::SET, hops, Attribute::LINEAR_FORWARDING, 0, table);
            let held = ask(fabric, Method::GET, hops, Attribute::SWITCH_INFO, 0, [0; 64]);
            let mut info = SwitchInfo::decode(&held).expect("SwitchInfo");
            (info.linear_fdb_top, info.life_time) = (5, 15);
            ask(fabric, Method::SET, hops, Attribute::SWITCH_INFO, 0, info.encode());
        }
    }
    for state in [PortState::Armed, PortState::Active] {
        for (_, hops, exits) in NODES {
            for port in 1..=if exits.is_some() { 2 } else { 1 } {
                change_port(fabric, hops, port, |info| (info.state, info.hoq_life) = (state, 15));
            }
        }
    }
}

fn change_port(fabric: &mut Fabric, hops: &[u8], port: u32, change: impl Fn(&mut PortInfo)) {
    let held = ask(fabric, Method::GET, hops, Attribute::PORT_INFO, port, [0; 64]);
    let mut info = PortInfo::decode(&held).expect("PortInfo");
    (info.state, info.physical_state) = (PortState::NoChange, ib_wire::PhysicalState::NoChange);
    change(&mut info);
    ask(fabric, Method::SET, hops, Attribute::PORT_INFO, port, info.encode());
}

fn ask(
    fabric: &mut Fabric,
    method: Method,
    hops: &[u8],
    attribute: Attribute,
    modifier: u32,
    data: [u8; 64],
) -> [u8; 64] {
    let hops = hops.iter().map(|hop| PortNum::new(*hop).expect("a port"));
    let route = DirectedRoute::new(hops).expect("a short route");
    let mut mad = Mad::directed(method, attribute, modifier, &route);
    *mad.smp_data_mut() = data;
    let datagram = Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad);
    let from = fabric.find_port("a").expect("it is there");
    fabric.handle_datagram(Duration::ZERO, from, datagram);
    let answers = std::iter::from_fn(|| fabric.poll_output()).filter_map(|output| match output {
        FabricOutput::Deliver { datagram, .. } => Some(*datagram.mad.smp_data()),
        _ => None,
    });
    answers.last().expect("an answer")
}
