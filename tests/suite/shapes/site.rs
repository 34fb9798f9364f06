//! Everything between what tenants ask for and frames, in one process: planner, verifier, subnet manager and emulated
//! fabric, joined as the programs join them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fabric_compiler::{CompileError, Planner};
use fabric_model::tenancy::SlMode;
use fabric_model::{Decisions, FabricPlan, Intents, MacAddress, Topology};
use fabric_sim::{
    DropReason, Fabric, FabricOutput, FrameCounters, FunctionId, FunctionKey, PortId, VirtualFunction,
};
use fabric_verifier::{Verified, is_acknowledged, verify};
use ib_wire::{Guid, ServiceLevel};
use subnet_manager::{Discovery, Manager, ManagerSettings, PersistentState, SmEvent};

use super::clusters::{Cluster, Clusters, Node};
use super::fabrics;

/// How long a manager may take for a plan, in its own time: drain times and retries are seconds.
const PROGRAMMING_TIMEOUT: Duration = Duration::from_secs(600);

/// Attempts, a second apart, until a manager reads tables back: it is done with reports long before.
const READ_BACK_ATTEMPTS: usize = 100;

/// The shortest frame there is: destination, source, type.
const FRAME_BYTES: usize = 60;

/// A site whose fabric holds the plan for some clusters.
pub struct Site {
    topology: Arc<Topology>,
    managed: Managed,
    /// The port of the manager and the capabilities of devices.
    basis: Intents,
    planner: Planner,
    verified: Verified,
    pub clusters: Clusters,
}

/// A fabric and its manager, which exchange datagrams in a time of their own.
struct Managed {
    fabric: Fabric,
    manager: Manager,
    station: PortId,
    now: Duration,
    events: Vec<SmEvent>,
}

/// An attached virtual function and its owner.
struct Seat<'a> {
    cluster: &'a Cluster,
    node: Node,
    id: FunctionId,
    mac: MacAddress,
}

/// Number of checks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Ordered pairs of functions between which a frame passed, as it should.
    pub talking: u64,
    /// Ordered pairs between which none did, as it should.
    pub silent: u64,
}

impl Site {
    pub fn new(shape: &fabrics::Fabric) -> Self {
        let mut fabric = Fabric::new(shape.topology.clone(), shape.profile.clone(), 1).unwrap();
        let (_, host) = shape.topology.end_nodes().next().unwrap();
        let station = fabric.find_port(&host.id).unwrap();
        fabric.set_is_sm(Duration::ZERO, station, true);
        let manager = Manager::new(ManagerSettings::default(), None, &PersistentState::default());
        let mut managed = Managed { fabric, manager, station, now: Duration::ZERO, events: Vec::new() };
        let discovery = managed.run_until(|event| match event {
            SmEvent::Discovered(discovery) => Some(Discovery::clone(discovery)),
            _ => None,
        });
        let mut basis = Intents::new(discovery.manager);
        basis.capabilities = discovery.capabilities;
        let topology = Arc::new(discovery.topology);
        let planner = Planner::new(Arc::clone(&topology), basis.clone(), &Decisions::default()).unwrap();
        let verified = Verified::of(&topology, planner.intents(), Arc::clone(planner.plan()));
        let clusters = Clusters::default();
        let mut site = Self { topology, managed, basis, planner, verified, clusters };
        site.program();
        site
    }

    /// Ports of all hosts.
    pub fn hosts(&self) -> Vec<Guid> {
        let hosts = self.topology.end_nodes().filter(|(_, node)| node.is_host_adapter());
        hosts.map(|(_, node)| node.ports().next().unwrap().1.guid).collect()
    }

    /// Programs new clusters as a controller does; on an error, changes nothing.
    pub fn change(&mut self, clusters: Clusters) -> Result<(), CompileError> {
        let intents = clusters.intents(&self.basis);
        let plan = Arc::clone(self.planner.change(&intents)?);
        self.verified = self.verified.delta_with_basis(self.planner.basis(), &self.topology, &intents, plan);
        let unsound: Vec<_> = self
            .verified
            .findings()
            .filter(|finding| !is_acknowledged(finding, self.verified.plan()))
            .collect();
        assert!(unsound.is_empty(), "unsound: {unsound:?}");
        // A node that leaves is gone before its port leaves the fabric.
        self.detach_but(&clusters);
        self.clusters = clusters;
        self.program();
        self.attach_all();
        Ok(())
    }

    fn plan(&self) -> &Arc<FabricPlan> {
        self.planner.plan()
    }

    fn program(&mut self) {
        let managed = &mut self.managed;
        managed.events.clear();
        managed.manager.apply(managed.now, Arc::clone(self.planner.plan()));
        managed.run_until(|event| matches!(event, SmEvent::Programmed(_)).then_some(()));
        // Frames to others were reported where they were refused.
        let is_usual =
            |event: &SmEvent| matches!(event, SmEvent::Programmed(_) | SmEvent::TrapReceived { .. });
        let trouble = managed.events.iter().find(|event| !is_usual(event));
        assert!(trouble.is_none(), "{trouble:?}");
    }

    fn detach_but(&mut self, clusters: &Clusters) {
        let stays = |function: &VirtualFunction, fabric: &Fabric| {
            let port = fabric.guid_of(function.id.port());
            let nodes = clusters.each.iter().flat_map(|cluster| &cluster.nodes);
            nodes.into_iter().any(|node| (node.port, node.function) == (port, function.id.number()))
        };
        let gone: Vec<FunctionId> = (self.managed.fabric.functions())
            .filter(|(function, _)| !stays(function, &self.managed.fabric))
            .map(|(function, _)| function.id)
            .collect();
        for id in gone {
            assert!(self.managed.fabric.detach(id));
        }
    }

    /// What agents receive: address, keys, groups and service level of each function.
    fn attach_all(&mut self) {
        let decisions = self.plan().decisions();
        let mut functions = Vec::new();
        for cluster in &self.clusters.each {
            let own = decisions.clusters.get(&cluster.name).and_then(|decision| decision.service_level());
            let sl = own.or((cluster.sl_mode == SlMode::Cluster).then(ServiceLevel::default));
            for node in &cluster.nodes {
                let keys = cluster.keys(node.number).into_iter();
                let keys = keys.map(|pkey| FunctionKey {
                    pkey,
                    group: decisions.groups.get(&pkey.partition()).map(|group| group.mlid),
                });
                let Seat { id, mac, .. } = self.seat(cluster, *node);
                functions.push(VirtualFunction { id, mac, keys: keys.collect(), sl: sl.unwrap_or_default() });
            }
        }
        for function in functions {
            self.managed.fabric.attach(function).unwrap();
        }
    }

    fn seat<'a>(&self, cluster: &'a Cluster, node: Node) -> Seat<'a> {
        let plan = self.plan().adapter_port(node.port).unwrap();
        let device = self.managed.fabric.device_by_guid(plan.name.node).unwrap();
        let id = FunctionId::new(self.managed.fabric.port_of(device, plan.name.port).unwrap(), node.function);
        Seat { cluster, node, id, mac: MacAddress::of_function(plan.lid, node.function) }
    }

    /// Sends a frame from every function to every other, and a broadcast, and compares the receivers with the expected
    /// ones.
    pub fn judge(&mut self) -> Tally {
        let clusters = self.clusters.clone();
        let nodes =
            clusters.each.iter().flat_map(|cluster| cluster.nodes.iter().map(move |node| (cluster, *node)));
        let seats: Vec<Seat> = nodes.map(|(cluster, node)| self.seat(cluster, node)).collect();
        assert_eq!(self.managed.fabric.functions().count(), seats.len());
        let mut tally = Tally::default();
        for from in &seats {
            let may_hear = |to: &&Seat| {
                let same = std::ptr::eq(from.cluster, to.cluster) && from.id != to.id;
                same && from.cluster.may_talk(from.node.number, to.node.number)
            };
            for to in seats.iter().filter(|to| to.id != from.id) {
                let expected: Vec<FunctionId> =
                    Some(to).filter(may_hear).map(|to| to.id).into_iter().collect();
                let got = self.send(from, to.mac);
                assert_eq!(got, expected, "frame of {from} to {to}: {:?}", self.drops(from.id));
                tally.talking += got.len() as u64;
                tally.silent += 1 - got.len() as u64;
            }
            let mut expected: Vec<FunctionId> = seats.iter().filter(may_hear).map(|to| to.id).collect();
            expected.sort_unstable();
            let got = self.send(from, MacAddress::BROADCAST);
            assert_eq!(got, expected, "broadcast of {from}: {:?}", self.drops(from.id));
        }
        tally
    }

    fn send(&mut self, from: &Seat, to: MacAddress) -> Vec<FunctionId> {
        let mut frame = [to.bytes(), from.mac.bytes()].concat();
        frame.resize(FRAME_BYTES, 0);
        let mut receivers = Vec::new();
        self.managed.fabric.send_frame(self.managed.now, from.id, &frame, &mut receivers);
        receivers
    }

    fn drops(&self, id: FunctionId) -> BTreeMap<DropReason, u64> {
        let found = self.managed.fabric.functions().find(|(function, _)| function.id == id);
        found.map(|(_, FrameCounters { drops, .. })| drops.clone()).unwrap_or_default()
    }

    /// The tables that devices hold, read back by the manager, keep every rule.
    pub fn judge_tables(&mut self) {
        // It may be handling traps about frames.
        for _ in 0..READ_BACK_ATTEMPTS {
            if self.managed.manager.read_back(self.managed.now) {
                break;
            }
            self.managed.wait(Duration::from_secs(1));
        }
        let held = self.managed.run_until(|event| match event {
            SmEvent::ReadBack(held) => Some(FabricPlan::clone(held)),
            _ => None,
        });
        let findings = verify(&self.topology, self.planner.intents(), &held);
        let unexpected: Vec<_> = findings.iter().filter(|finding| !is_acknowledged(finding, &held)).collect();
        assert!(unexpected.is_empty(), "held: {unexpected:?}");
    }
}

impl std::fmt::Display for Seat<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cluster, node, mac, .. } = self;
        let keys: Vec<String> = cluster.keys(node.number).iter().map(ToString::to_string).collect();
        write!(f, "{}/{} ({mac}, {:?}, keys {keys:?})", cluster.name, node.number, cluster.class)
    }
}

impl Managed {
    /// Lets everything happen until the manager says something that is waited for.
    fn run_until<T>(&mut self, is_awaited: impl Fn(&SmEvent) -> Option<T>) -> T {
        let (end, mut seen) = (self.now + PROGRAMMING_TIMEOUT, self.events.len());
        loop {
            let is_moving = self.exchange();
            if let Some(awaited) = self.events[seen..].iter().find_map(&is_awaited) {
                return awaited;
            }
            seen = self.events.len();
            assert!(is_moving || self.skip_to_next(end), "the manager waits for ever: {:?}", self.events);
        }
    }

    /// Lets some time pass, and everything happen that happens in it.
    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while self.exchange() || self.skip_to_next(end) {}
        self.now = end;
    }

    /// Hands over what has come for the manager, and the next datagram that it sends; false if it sends none.
    fn exchange(&mut self) -> bool {
        while let Some(output) = self.fabric.poll_output() {
            if let FabricOutput::Deliver { port, datagram } = output
                && port == self.station
            {
                self.manager.handle_datagram(self.now, &datagram);
            }
        }
        if self.manager.poll_persist().is_some() {
            self.manager.handle_persisted(self.now);
        }
        self.events.extend(std::iter::from_fn(|| self.manager.poll_event()));
        let sent = self.manager.poll_transmit(self.now);
        let is_moving = sent.is_some();
        if let Some(datagram) = sent {
            self.fabric.handle_datagram(self.now, self.station, datagram);
        }
        is_moving
    }

    /// Advances the time to the next timeout; false if there is none before `end`.
    fn skip_to_next(&mut self, end: Duration) -> bool {
        let due = [self.manager.poll_timeout(), self.fabric.poll_timeout()].into_iter().flatten().min();
        let Some(due) = due.filter(|due| *due <= end) else { return false };
        self.now = self.now.max(due);
        self.fabric.handle_timeout(self.now);
        self.manager.handle_timeout(self.now);
        true
    }
}
