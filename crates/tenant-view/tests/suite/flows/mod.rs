//! Rates on the physical network when all ports send as much as they can.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use fabric_model::{FabricPlan, Topology};
use fabric_sim::traffic::{
    HEADER_BYTES, Message, Service, Simulation, Tag, Time, TrafficNetwork, TrafficSettings, Workload,
    WorkloadActions,
};
use fabric_sim::{Capacities, Fabric, FunctionId};
use ib_wire::{Guid, Membership, PartitionNumber, ServiceLevel};

/// Simulated time of a run, in microseconds.
const RUN_US: u64 = 500;

/// One port sends to another.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    pub from: Guid,
    pub to: Guid,
    pub partition: PartitionNumber,
    pub level: ServiceLevel,
}

/// Sends each message again as soon as it has left.
struct Saturating(Vec<Message>);

impl Workload for Saturating {
    fn start(&mut self, orders: &mut WorkloadActions) {
        self.0.iter().for_each(|message| orders.post(*message));
    }

    fn sent(&mut self, _: Time, message: &Message, orders: &mut WorkloadActions) {
        orders.post(*message);
    }
}

/// Payload of each flow that arrives, in bits per second.
pub fn rates(topology: &Topology, plan: &FabricPlan, flows: &[Flow]) -> Vec<u64> {
    let capacities = Capacities { arbitration_entries: 64, ..Capacities::default() };
    let mut fabric = Fabric::new(topology.clone(), capacities, 0).unwrap();
    fabric.install(plan).unwrap();
    let network = TrafficNetwork::of(&fabric);
    let lid = |port: Guid| plan.adapter_port(port).unwrap().lid;
    let message = |(number, flow): (usize, &Flow)| Message {
        from: FunctionId::new(network.owner(lid(flow.from)).unwrap(), 0),
        to: lid(flow.to),
        service: Service::Data(flow.level),
        pkey: flow.partition.key(Membership::Full),
        bytes: 64 * 1024,
        packet_bytes: None,
        header_bytes: HEADER_BYTES,
        tag: Tag(number as u16),
        token: 0,
    };
    let mut workload = Saturating(flows.iter().enumerate().map(message).collect());
    let mut simulation = Simulation::new(network, TrafficSettings::default()).unwrap();
    simulation.run(&mut workload, Time::from_us(RUN_US));
    let bytes = |tag| simulation.measure(Tag(tag as u16)).unwrap().bytes;
    (0..flows.len()).map(|tag| bytes(tag) * 8 * 1_000_000 / RUN_US).collect()
}
