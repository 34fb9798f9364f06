//! A manager that programs plans for clusters on an emulated fabric, and a record of everything that it writes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "every test binary uses its own part")]

use std::sync::Arc;
use std::time::Duration;

use fabric_compiler::compile;
use fabric_model::intent::ClusterIntent;
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use fabric_sim::{DeviceProfile, Fabric, FabricOutput, PortId};
use fabric_verifier::{Finding, verify};
use ib_wire::{Guid, Mad, Method};
use subnet_manager::{Discovery, Manager, ManagerSettings, PersistentState, SmEvent};

/// Does what a program does with sockets and a clock.
pub struct RecordedManager {
    pub topology: Topology,
    pub fabric: Fabric,
    pub manager: Manager,
    pub port: PortId,
    pub now: Duration,
    pub discovery: Option<Discovery>,
    pub intents: Option<Intents>,
    pub decisions: Decisions,
    pub held: Option<FabricPlan>,
    /// Sets that were sent since the last plan, in order.
    pub sets: Vec<Mad>,
    pub drifts: usize,
    /// How many times a plan was completely in force.
    pub programmed: usize,
}

impl RecordedManager {
    /// On the first host, once it has seen everything.
    pub fn new(topology: Topology, profile: impl Into<DeviceProfile>) -> Self {
        let mut fabric = Fabric::new(topology.clone(), profile, 1).unwrap();
        let (_, host) = topology.end_nodes().next().unwrap();
        let port = fabric.find_port(&host.id).unwrap();
        fabric.set_is_sm(Duration::ZERO, port, true);
        let mut recorded = Self {
            topology,
            fabric,
            manager: Manager::new(ManagerSettings::default(), None, &PersistentState::default()),
            port,
            now: Duration::ZERO,
            discovery: None,
            intents: None,
            decisions: Decisions::default(),
            held: None,
            sets: Vec::new(),
            drifts: 0,
            programmed: 0,
        };
        recorded.run();
        recorded
    }

    /// Lets a second pass, and everything happen that happens in it.
    pub fn run(&mut self) {
        let end = self.now + Duration::from_secs(1);
        loop {
            self.exchange();
            let due = [self.manager.poll_timeout(), self.fabric.poll_timeout()].into_iter().flatten().min();
            let Some(due) = due.filter(|due| *due <= end) else { break };
            self.now = self.now.max(due);
            self.fabric.handle_timeout(self.now);
            self.manager.handle_timeout(self.now);
        }
        self.now = end;
    }

    fn exchange(&mut self) {
        loop {
            while let Some(output) = self.fabric.poll_output() {
                if let FabricOutput::Deliver { port, datagram } = output
                    && port == self.port
                {
                    self.manager.handle_datagram(self.now, &datagram);
                }
            }
            if self.manager.poll_persist().is_some() {
                self.manager.handle_persisted(self.now);
            }
            while let Some(event) = self.manager.poll_event() {
                match event {
                    SmEvent::Discovered(discovery) => self.discovery = Some(*discovery),
                    SmEvent::ReadBack(held) => self.held = Some(*held),
                    SmEvent::Programmed(_) => self.programmed += 1,
                    SmEvent::Drift { .. } => self.drifts += 1,
                    _ => {}
                }
            }
            let Some(datagram) = self.manager.poll_transmit(self.now) else { break };
            if datagram.mad.method() == Method::SET {
                self.sets.push(datagram.mad.clone());
            }
            self.fabric.handle_datagram(self.now, self.port, datagram);
        }
    }

    /// Programs a plan for some clusters, and clears the record of earlier writes.
    pub fn apply(&mut self, clusters: &[ClusterIntent]) -> FabricPlan {
        let discovery = self.discovery.as_ref().unwrap();
        let mut intents = Intents::new(discovery.manager);
        intents.capabilities = discovery.capabilities.clone();
        intents.clusters = clusters.to_vec();
        let plan = compile(&discovery.topology, &intents, &self.decisions).unwrap();
        self.intents = Some(intents);
        self.decisions = plan.decisions().clone();
        self.sets.clear();
        self.manager.apply(self.now, Arc::new(plan.clone()));
        self.run();
        plan
    }

    /// Findings in the tables that devices hold.
    pub fn found(&mut self) -> Vec<Finding> {
        assert!(self.manager.read_back(self.now));
        self.run();
        let held = self.held.take().unwrap();
        verify(&self.discovery.as_ref().unwrap().topology, self.intents.as_ref().unwrap(), &held)
    }

    /// A cluster on some hosts with a guarantee in bits per second.
    pub fn cluster(&self, name: &str, hosts: &[usize], bits_per_s: u64) -> ClusterIntent {
        let ports: Vec<Guid> =
            self.topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect();
        let bandwidth = Bandwidth::from_bits_per_s(bits_per_s);
        ClusterIntent {
            name: name.to_owned(),
            ports: hosts.iter().map(|host| ports[*host]).collect(),
            class: Class::Guaranteed { bandwidth, latency_ns: None },
            sl_mode: SlMode::Cluster,
        }
    }
}
