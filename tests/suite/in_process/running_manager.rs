//! A subnet manager that runs continuously on an emulated fabric, in one process and in simulated time.

use std::sync::Arc;
use std::time::Duration;

use fabric_compiler::{CompileError, partitions_conf, recompile};
use fabric_model::intent::{ClusterIntent, PortAliases};
use fabric_model::{FabricPlan, Intents, Topology};
use fabric_sim::{DeviceProfile, Fabric, FabricOutput, PortId};
use ib_wire::{
    Attribute, Datagram, DirectedRoute, Mad, ManagementClass, Method, NodeKind, PortNum, SMP_DATA_LEN, SmInfo,
};
use subnet_manager::{
    Discovery, MadCounts, Manager, ManagerSettings, PersistentState, SECRET_LEN_MIN, SiteSecret, SmEvent,
};

/// Does what a program does with sockets and a clock.
pub struct RunningManager {
    pub fabric: Fabric,
    pub manager: Manager,
    pub port: PortId,
    pub now: Duration,
    pub kept: PersistentState,
    pub plan: Option<Arc<FabricPlan>>,
    pub discovery: Option<Discovery>,
    pub partitions: String,
    pub clusters: Vec<ClusterIntent>,
    pub aliases: PortAliases,
    /// Whether a plan that does not compile is kept in `refusal` instead of ending the test.
    pub may_be_refused: bool,
    pub refusal: Option<CompileError>,
    /// Events of the manager, newest last.
    pub events: Vec<SmEvent>,
    /// Traps do not reach the manager.
    pub is_deaf: bool,
    /// Devices do not answer performance management.
    pub has_no_counters: bool,
    /// Writes of the state fail.
    pub is_disk_full: bool,
    /// Every subnet management datagram the manager has sent.
    pub sent: Vec<Datagram>,
    /// Another subnet manager that answers at a port.
    pub other: Option<(PortId, SmInfo)>,
    /// A change of the fabric after this many more datagrams of the manager.
    pub meanwhile: Option<(usize, Fault)>,
}

/// Something that happens to a fabric.
pub type Fault = Box<dyn FnOnce(&mut Fabric, Duration)>;

impl RunningManager {
    pub fn new(topology: Topology, is_guarding: bool, kept: PersistentState) -> Self {
        Self::with_devices(&topology, &DeviceProfile::default(), is_guarding, kept)
    }

    /// A manager on a fabric of devices of a profile.
    pub fn with_devices(
        topology: &Topology,
        profile: &DeviceProfile,
        is_guarding: bool,
        kept: PersistentState,
    ) -> Self {
        let topology = profile.furnish(topology).unwrap();
        let fabric = Fabric::new(topology.clone(), profile.clone(), 1).unwrap();
        Self::on(fabric, &topology, is_guarding, kept)
    }

    /// A manager on a fabric that another manager may have configured.
    pub fn on(mut fabric: Fabric, topology: &Topology, is_guarding: bool, kept: PersistentState) -> Self {
        let (_, host) = topology.end_nodes().next().unwrap();
        let port = fabric.find_port(&host.id).unwrap();
        fabric.set_is_sm(Duration::ZERO, port, true);
        let secret = is_guarding.then(|| SiteSecret::new(vec![0x5a; SECRET_LEN_MIN]).unwrap());
        let manager = Manager::new(ManagerSettings::default(), secret, &kept);
        let (now, plan, discovery) = (Duration::ZERO, None, None);
        let (partitions, events) = (String::new(), Vec::new());
        Self {
            fabric,
            manager,
            port,
            now,
            kept,
            plan,
            discovery,
            partitions,
            clusters: Vec::new(),
            aliases: PortAliases::new(),
            may_be_refused: false,
            refusal: None,
            events,
            is_deaf: false,
            has_no_counters: false,
            is_disk_full: false,
            sent: Vec::new(),
            other: None,
            meanwhile: None,
        }
    }

    /// Lets time pass, and everything happen that happens in it.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
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

    /// Moves datagrams until none is left.
    fn exchange(&mut self) {
        self.exchange_at_most(usize::MAX);
    }

    /// Moves datagrams until none is left, or the manager has sent a given number.
    pub fn exchange_at_most(&mut self, sent: usize) {
        for _ in 0..=sent {
            self.disturb();
            self.deliver();
            self.persist();
            self.take_events();
            let Some(datagram) = self.manager.poll_transmit(self.now) else {
                // A plan that an event led to may wait for nothing but its state to be stored.
                if self.manager.has_more() {
                    continue;
                }
                break;
            };
            self.sent.push(datagram.clone());
            self.fabric.handle_datagram(self.now, self.port, datagram);
        }
    }

    fn disturb(&mut self) {
        match self.meanwhile.take() {
            Some((0, fault)) => fault(&mut self.fabric, self.now),
            later => self.meanwhile = later.map(|(left, fault)| (left - 1, fault)),
        }
    }

    fn persist(&mut self) {
        let Some(memory) = self.manager.poll_persist() else { return };
        if self.is_disk_full {
            return self.manager.handle_not_persisted(self.now);
        }
        self.kept = memory;
        self.manager.handle_persisted(self.now);
    }

    fn deliver(&mut self) {
        while let Some(output) = self.fabric.poll_output() {
            let FabricOutput::Deliver { port, datagram } = output else { continue };
            let is_unheard = self.is_deaf && datagram.mad.method() == Method::TRAP
                || self.has_no_counters && datagram.mad.class() == ManagementClass::PERFORMANCE;
            if port == self.port && !is_unheard {
                self.manager.handle_datagram(self.now, &datagram);
            }
            if let Some((_, info)) = self.other.as_ref().filter(|(other, _)| *other == port)
                && datagram.mad.attribute() == Attribute::SM_INFO
                && datagram.mad.method() == Method::GET
            {
                let mut mad = datagram.mad.clone();
                mad.set_method(Method::GET_RESP);
                mad.set_returning();
                *mad.smp_data_mut() = info.encode();
                let answer = Datagram { slid: datagram.dlid, dlid: datagram.slid, mad, ..datagram };
                self.fabric.handle_datagram(self.now, port, answer);
            }
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.manager.poll_event() {
            if let SmEvent::Discovered(discovery) = &event {
                self.discovery = Some(discovery.as_ref().clone());
                self.decide();
            }
            self.events.push(event);
        }
    }

    /// Lets the manager notice that its own cable is unplugged. There is no plan for the rest of the fabric.
    pub fn run_until_cut_off(&mut self) {
        let last = self.discovery.clone();
        self.run_for(Duration::from_secs(15));
        self.discovery = last;
    }

    /// Compiles a plan for the former fabric, and applies it.
    pub fn apply_anyway(&mut self) {
        self.decide();
    }

    /// Compiles a plan for the discovered fabric, the partitions and the clusters, and applies it.
    pub fn decide(&mut self) {
        let discovery = self.discovery.as_ref().unwrap();
        if discovery.topology.switches().count() == 0 {
            return;
        }
        let mut intents = Intents::new(discovery.manager);
        intents.capabilities = discovery.capabilities.clone();
        intents.partitions = partitions_conf::parse(&self.partitions).unwrap();
        intents.clusters.clone_from(&self.clusters);
        intents.aliases.clone_from(&self.aliases);
        let plan = match &self.plan {
            Some(plan) => recompile(&discovery.topology, &intents, plan),
            None => fabric_compiler::compile(&discovery.topology, &intents, &self.kept.decisions),
        };
        let plan = match plan {
            Ok(plan) => Arc::new(plan),
            Err(error) if self.may_be_refused => {
                self.refusal = Some(error);
                return;
            }
            Err(error) => panic!("{error}"),
        };
        self.plan = Some(Arc::clone(&plan));
        self.manager.apply(self.now, plan);
    }

    /// Pulls a cable between the manager's own switch and another, counted from 0. Returns how long it takes, up to a limit, until the
    /// fabric is programmed without it.
    pub fn break_uplink(&mut self, which: usize, limit: Duration) -> Option<Duration> {
        let before = self.switch_links();
        let own = self.fabric.device_id_of(self.fabric.port_forwarding(self.port).peer.unwrap());
        let is_up = |port: &PortId| {
            let far = self.fabric.port_forwarding(*port).peer;
            far.is_some_and(|far| self.fabric.node_of(far).kind == NodeKind::Switch)
        };
        let cable = self.fabric.ports_of(own).filter(is_up).nth(which).unwrap();
        self.events.clear();
        assert!(self.fabric.unplug(self.now, cable));
        let broken = self.now;
        while self.now < broken + limit {
            self.run_for(Duration::from_millis(250));
            let is_programmed = self.told(|event| matches!(event, SmEvent::Programmed(_))) > 0;
            if is_programmed && self.switch_links() == before - 2 {
                return Some(self.now - broken);
            }
        }
        None
    }

    /// Ends of the discovered cables between switches.
    fn switch_links(&self) -> usize {
        let topology = &self.discovery.as_ref().unwrap().topology;
        let cables = topology.switches().flat_map(|(_, node)| node.cabled_ports());
        cables.filter(|(_, peer)| topology[peer.node].is_switch()).count()
    }

    /// Gets and Sets that were sent since.
    pub fn sent_since(&self, before: MadCounts) -> (u64, u64) {
        let counts = self.manager.counts();
        (counts.gets - before.gets, counts.sets - before.sets)
    }

    pub fn told(&self, is: impl Fn(&SmEvent) -> bool) -> usize {
        self.events.iter().filter(|event| is(event)).count()
    }

    /// Writes an attribute along a route, as software on another host.
    pub fn write_from(
        &mut self,
        host: &str,
        route: &[u8],
        what: (ib_wire::Attribute, u32),
        data: [u8; SMP_DATA_LEN],
    ) {
        let route = DirectedRoute::new(route.iter().map(|port| PortNum::new(*port).unwrap())).unwrap();
        let mut mad = Mad::directed(Method::SET, what.0, what.1, &route);
        *mad.smp_data_mut() = data;
        let permissive = ib_wire::LidAddress::Permissive;
        let port = self.fabric.find_port(host).unwrap();
        self.fabric.handle_datagram(self.now, port, Datagram::subnet_management(permissive, permissive, mad));
    }
}
