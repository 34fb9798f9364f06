//! Several declared subnet managers on one emulated fabric, in one process and in simulated time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fabric_compiler::{compile, partitions_conf};
use fabric_model::{FabricPlan, Intents, Topology};
use fabric_sim::{DeviceProfile, Fabric, FabricOutput, PortId};
use ib_wire::{Attribute, Datagram, Guid, Mad, ManagementClass, Method, Pkey, PortInfo, SmInfo};
use subnet_manager::{
    Discovery, ElectionTiming, Manager, ManagerSettings, PersistentState, SECRET_LEN_MIN, SiteSecret,
    SmEvent, Standby,
};

use super::pairs::Pairs;
use super::tables::Places;
use super::world::{Judge, TableReader, pairs_fingerprint};

/// Time without beats after which a stream has no master at its end, as `heddle sm` has it.
const BEATS_MISSING: Duration = Duration::from_secs(1);

/// What a declared manager does.
pub enum Role {
    Waits(Box<Standby>),
    Runs(Box<Manager>),
    /// The process was killed.
    Dead,
}

/// A declared manager.
pub struct Member {
    pub port: PortId,
    pub guid: Guid,
    node: Guid,
    pub role: Role,
    /// What is on its disk.
    pub memory: PersistentState,
    pub priority: u8,
    /// The process was stopped, and datagrams wait for it.
    pub is_stopped: bool,
    inbox: Vec<Datagram>,
    fruitless: u32,
    /// When the beats of a master last arrived, in this wait.
    beat_at: Option<Duration>,
    /// Whether the others' memory reaches it.
    pub is_linked: bool,
    discovery: Option<Discovery>,
    /// Masters it yielded to; `None` where it only noticed that it was stopped.
    pub yields: Vec<Option<Guid>>,
}

impl Member {
    pub fn is_master(&self) -> bool {
        matches!(&self.role, Role::Runs(manager) if manager.is_master())
    }
}

/// A Set that a manager sent.
#[derive(Clone, Debug)]
pub struct SentSet {
    pub at: Duration,
    pub member: usize,
    pub attribute: Attribute,
    /// Whether it asks software to register again.
    pub registers: bool,
}

pub struct Managers {
    pub fabric: Fabric,
    pub topology: Topology,
    pub places: Places,
    pub now: Duration,
    pub members: Vec<Member>,
    pub partitions: String,
    pub sets: Vec<SentSet>,
    pub judge: Judge,
    allowed: Pairs,
    allowed_fingerprint: u64,
    pub is_judging: bool,
    pub timing: ElectionTiming,
    /// Answers of subnet administration that arrived at other ports.
    pub heard: Vec<(PortId, Datagram)>,
    /// When each port got an answer last.
    pub plan: Option<Arc<FabricPlan>>,
    guards: bool,
    /// A manager is killed after this many more Sets.
    pub kill_after_sets: Option<usize>,
    /// A port whose software answers requests for SMInfo with this.
    pub hostile: Option<(PortId, SmInfo)>,
    /// Reports of refused orders.
    pub claims_reported: usize,
}

impl Managers {
    /// Managers with priorities 15, 14, … on the given hosts, counted from 0.
    pub fn new(topology: &Topology, profile: &DeviceProfile, hosts: &[usize], guards: bool) -> Self {
        let topology = profile.furnish(topology).unwrap();
        let mut fabric = Fabric::new(topology.clone(), profile.clone(), 1).unwrap();
        let ends: Vec<_> = topology.end_nodes().filter(|(_, node)| node.is_host_adapter()).collect();
        let mut members = Vec::new();
        for (index, host) in hosts.iter().enumerate() {
            let (_, node) = &ends[*host];
            let port = fabric.find_port(&node.id).unwrap();
            fabric.set_is_sm(Duration::ZERO, port, true);
            members.push(Member {
                port,
                guid: node.ports().next().unwrap().1.guid,
                node: node.guid,
                role: Role::Dead,
                memory: PersistentState::default(),
                priority: 15 - index as u8,
                is_stopped: false,
                inbox: Vec::new(),
                fruitless: 0,
                beat_at: None,
                is_linked: true,
                discovery: None,
                yields: Vec::new(),
            });
        }
        Self {
            places: Places::of(&topology),
            fabric,
            topology,
            now: Duration::ZERO,
            members,
            partitions: String::new(),
            sets: Vec::new(),
            judge: Judge::default(),
            allowed: Pairs::default(),
            allowed_fingerprint: 0,
            is_judging: true,
            timing: ElectionTiming::default(),
            heard: Vec::new(),
            plan: None,
            guards,
            kill_after_sets: None,
            hostile: None,
            claims_reported: 0,
        }
    }

    fn settings(&self, index: usize) -> ManagerSettings {
        ManagerSettings { priority: self.members[index].priority, ..ManagerSettings::default() }
    }

    fn peers(&self, index: usize) -> Vec<Guid> {
        let own = self.members[index].guid;
        self.members.iter().map(|member| member.guid).filter(|guid| *guid != own).collect()
    }

    /// Starts a process: it waits first, in case there is a master.
    pub fn start(&mut self, index: usize) {
        self.wait(index);
        self.members[index].is_stopped = false;
        let port = self.members[index].port;
        self.fabric.set_is_sm(self.now, port, true);
        // A master that runs sends what it remembers to a manager that connects.
        let memory =
            self.members.iter().find(|member| member.is_master()).map(|member| member.memory.clone());
        if let Some(memory) = memory {
            self.remember(index, memory);
        }
    }

    fn wait(&mut self, index: usize) {
        let (settings, peers) = (self.settings(index), self.peers(index));
        let Member { guid, fruitless, .. } = self.members[index];
        let mut standby = Standby::new(settings, self.timing, Some(guid), peers, fruitless, self.now);
        let memory = &self.members[index].memory;
        standby.set_lids(|guid| memory.decisions.end_ports.get(&guid).map(|port| port.lid));
        self.members[index].role = Role::Waits(Box::new(standby));
        self.members[index].beat_at = None;
    }

    pub fn kill(&mut self, index: usize) {
        self.members[index].role = Role::Dead;
        self.members[index].inbox.clear();
        let port = self.members[index].port;
        self.fabric.set_is_sm(self.now, port, false);
    }

    pub fn stop(&mut self, index: usize) {
        self.members[index].is_stopped = true;
    }

    pub fn go_on(&mut self, index: usize) {
        self.members[index].is_stopped = false;
        for datagram in std::mem::take(&mut self.members[index].inbox) {
            self.hand_over(index, &datagram);
        }
    }

    /// The masters, by index.
    pub fn masters(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|index| self.members[*index].is_master()).collect()
    }

    /// What a master remembers arrives at another manager.
    fn remember(&mut self, index: usize, mut memory: PersistentState) {
        let node = self.members[index].node;
        memory.bindings.rebind(None, node);
        if let Role::Waits(standby) = &mut self.members[index].role {
            standby.set_lids(|guid| memory.decisions.end_ports.get(&guid).map(|port| port.lid));
        }
        self.members[index].memory = memory;
    }

    /// Lets time pass, and everything happen that happens in it.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        self.run_until(end, |_| false);
    }

    /// Lets time pass until something is so, at most for a time. Returns how long it took.
    pub fn run_until(&mut self, end: Duration, is_so: impl Fn(&Self) -> bool) -> Option<Duration> {
        let start = self.now;
        loop {
            self.exchange();
            if is_so(self) {
                return Some(self.now - start);
            }
            let awake = self.members.iter().filter(|member| !member.is_stopped);
            let timeouts = awake.filter_map(|member| match &member.role {
                Role::Waits(standby) => Some(standby.poll_timeout()),
                Role::Runs(manager) => manager.poll_timeout(),
                Role::Dead => None,
            });
            let due = timeouts.chain(self.fabric.poll_timeout()).min();
            let Some(due) = due.filter(|due| *due <= end) else {
                self.now = end.max(self.now);
                return None;
            };
            self.now = self.now.max(due);
            self.fabric.handle_timeout(self.now);
            for index in 0..self.members.len() {
                self.time_passes(index);
            }
        }
    }

    fn time_passes(&mut self, index: usize) {
        let now = self.now;
        if self.members[index].is_stopped {
            return;
        }
        let has_beats = self.members[index].is_linked
            && self.members.iter().any(|member| member.is_linked && !member.is_stopped && member.is_master());
        let member = &mut self.members[index];
        if has_beats {
            member.beat_at = Some(now);
        }
        match &mut member.role {
            Role::Waits(standby) => {
                standby.set_abandoned(member.beat_at.is_some_and(|at| now >= at + BEATS_MISSING));
                standby.handle_timeout(now);
                if standby.is_over(now) {
                    let earliest = standby.earliest_set();
                    self.run(index, earliest);
                }
            }
            Role::Runs(manager) => manager.handle_timeout(now),
            Role::Dead => {}
        }
    }

    /// A manager becomes a candidate.
    fn run(&mut self, index: usize, earliest: Duration) {
        let secret = self.guards.then(|| SiteSecret::new(vec![0x5a; SECRET_LEN_MIN]).unwrap());
        let mut manager = Manager::new(self.settings(index), secret, &self.members[index].memory);
        manager.set_peers(self.peers(index), self.timing, earliest);
        manager.handle_timeout(self.now);
        self.members[index].role = Role::Runs(Box::new(manager));
    }

    fn exchange(&mut self) {
        loop {
            let mut has_moved = false;
            for index in 0..self.members.len() {
                has_moved |= self.step(index);
            }
            if !self.deliver() && !has_moved {
                return;
            }
        }
    }

    /// Does what a process does in its loop. Returns whether it did anything.
    fn step(&mut self, index: usize) -> bool {
        if self.members[index].is_stopped {
            return false;
        }
        let now = self.now;
        if let Role::Waits(standby) = &mut self.members[index].role {
            let sent: Vec<Datagram> = std::iter::from_fn(|| standby.poll_transmit()).collect();
            let port = self.members[index].port;
            let has_sent = !sent.is_empty();
            sent.into_iter().for_each(|datagram| self.fabric.handle_datagram(now, port, datagram));
            return has_sent;
        }
        let Role::Runs(manager) = &mut self.members[index].role else { return false };
        if let Some(memory) = manager.poll_persist() {
            self.keep(index, memory);
            let Role::Runs(manager) = &mut self.members[index].role else { return true };
            manager.handle_persisted(now);
        }
        let Role::Runs(manager) = &mut self.members[index].role else { return true };
        let events: Vec<SmEvent> = std::iter::from_fn(|| manager.poll_event()).collect();
        let mut did = !events.is_empty();
        for event in events {
            match event {
                SmEvent::Discovered(discovery) => {
                    self.decide(index, &discovery);
                    self.members[index].discovery = Some(*discovery);
                }
                SmEvent::ClaimRefused { .. } => self.claims_reported += 1,
                SmEvent::Elected => self.members[index].fruitless = 0,
                SmEvent::Yielded { to } => {
                    self.members[index].yields.push(to);
                    self.members[index].fruitless += 1;
                    self.wait(index);
                    self.learn_from_master(index);
                    return true;
                }
                _ => {}
            }
        }
        // A batch, as the program sends it.
        let Role::Runs(manager) = &mut self.members[index].role else { return true };
        let batch: Vec<Datagram> = std::iter::from_fn(|| manager.poll_transmit(now)).collect();
        did |= !batch.is_empty();
        for datagram in batch {
            if !self.send(index, datagram) {
                break;
            }
        }
        did
    }

    /// A new standby manager connects to the master, which sends what it remembers.
    fn learn_from_master(&mut self, index: usize) {
        let master = self.masters().first().map(|master| self.members[*master].memory.clone());
        if let Some(memory) = master.filter(|_| self.members[index].is_linked) {
            self.remember(index, memory);
        }
    }

    fn keep(&mut self, index: usize, memory: PersistentState) {
        for other in (0..self.members.len()).filter(|other| *other != index) {
            let Member { is_linked, is_stopped, .. } = self.members[other];
            if is_linked && self.members[index].is_linked && !is_stopped && !self.members[other].is_master() {
                self.remember(other, memory.clone());
            }
        }
        self.members[index].memory = memory;
    }

    /// Sends a datagram and judges the tables after a Set. Returns whether the sender lives on.
    fn send(&mut self, index: usize, datagram: Datagram) -> bool {
        let mad = &datagram.mad;
        let is_set = mad.method() == Method::SET && mad.class().is_subnet_management();
        if is_set {
            let registers = PortInfo::asks_to_register(mad);
            let (at, attribute) = (self.now, mad.attribute());
            self.sets.push(SentSet { at, member: index, attribute, registers });
        }
        let port = self.members[index].port;
        self.fabric.handle_datagram(self.now, port, datagram);
        if is_set {
            self.look();
            if let Some(left) = &mut self.kill_after_sets {
                *left -= 1;
                if *left == 0 {
                    self.kill_after_sets = None;
                    self.kill(index);
                    return false;
                }
            }
        }
        true
    }

    fn look(&mut self) {
        let reader = TableReader { fabric: &self.fabric, topology: &self.topology, places: &self.places };
        if self.is_judging && self.judge.is_new(reader.fingerprint(self.allowed_fingerprint)) {
            self.judge.look(reader.tables(), &self.allowed, self.allowed_fingerprint);
        }
    }

    /// Judges Sets from now on. Those before were not.
    pub fn judge_from_now(&mut self) {
        self.is_judging = true;
        self.allowed = Pairs::of_plan(self.plan.as_ref().unwrap(), &self.places);
        self.allowed_fingerprint = pairs_fingerprint(&self.allowed);
    }

    /// A manager reads its partitions again.
    pub fn reload(&mut self, index: usize) {
        let discovery = self.members[index].discovery.clone().unwrap();
        self.decide(index, &discovery);
    }

    fn decide(&mut self, index: usize, discovery: &Discovery) {
        if discovery.topology.switches().count() == 0 {
            return;
        }
        let mut intents = Intents::new(discovery.manager);
        intents.capabilities = discovery.capabilities.clone();
        intents.standby_managers.clone_from(&discovery.standby_managers);
        intents.partitions = partitions_conf::parse(&self.partitions).unwrap();
        let previous = &self.members[index].memory.decisions;
        let plan = Arc::new(compile(&discovery.topology, &intents, previous).unwrap());
        if self.is_judging {
            let before = std::mem::take(&mut self.allowed);
            self.allowed = before.or(&Pairs::of_plan(&plan, &self.places));
            self.allowed_fingerprint = pairs_fingerprint(&self.allowed);
        }
        self.plan = Some(Arc::clone(&plan));
        if let Role::Runs(manager) = &mut self.members[index].role {
            manager.apply(self.now, plan);
        }
    }

    /// Moves what the fabric delivers. Returns whether there was anything.
    fn deliver(&mut self) -> bool {
        let mut did = false;
        while let Some(output) = self.fabric.poll_output() {
            did = true;
            let FabricOutput::Deliver { port, datagram } = output else { continue };
            match self.members.iter().position(|member| member.port == port) {
                Some(index) if self.members[index].is_stopped => self.members[index].inbox.push(datagram),
                Some(index) => self.hand_over(index, &datagram),
                None if datagram.mad.class() == ManagementClass::SUBNET_ADMINISTRATION => {
                    self.heard.push((port, datagram));
                }
                None => self.answer_as_stranger(port, &datagram),
            }
        }
        did
    }

    fn answer_as_stranger(&mut self, port: PortId, datagram: &Datagram) {
        let Some((_, info)) = self.hostile.as_ref().filter(|(hostile, _)| *hostile == port) else { return };
        if datagram.mad.attribute() != Attribute::SM_INFO || datagram.mad.method() != Method::GET {
            return;
        }
        let mut mad = datagram.mad.clone();
        mad.set_method(Method::GET_RESP);
        if mad.class() == ManagementClass::SUBNET_DIRECTED {
            mad.set_returning();
        }
        *mad.smp_data_mut() = info.encode();
        let answer = Datagram { slid: datagram.dlid, dlid: datagram.slid, mad, ..datagram.clone() };
        self.fabric.handle_datagram(self.now, port, answer);
    }

    /// Software at a port sends a subnet management datagram to the LID of the master.
    pub fn send_to_master(&mut self, from: PortId, mad: Mad) {
        let gate = self.fabric.port_forwarding(from);
        let (own, manager) = (gate.lid.unwrap(), self.fabric.master_lid_of(from).unwrap());
        let datagram = Datagram::subnet_management(own.into(), manager.into(), mad);
        self.fabric.handle_datagram(self.now, from, datagram);
    }

    fn hand_over(&mut self, index: usize, datagram: &Datagram) {
        match &mut self.members[index].role {
            Role::Waits(standby) => standby.handle_datagram(self.now, datagram),
            Role::Runs(manager) => manager.handle_datagram(self.now, datagram),
            Role::Dead => {}
        }
    }

    /// A host sends a request to the LID that its PortInfo names as that of the manager.
    pub fn ask(&mut self, host: PortId, mad: &Mad) -> bool {
        let gate = self.fabric.port_forwarding(host);
        let (Some(own), Some(manager)) = (gate.lid, self.fabric.master_lid_of(host)) else { return false };
        let key = Pkey::from_wire(0x7fff).unwrap();
        let datagram = Datagram::general_management(own.into(), manager.into(), key, mad.clone());
        self.fabric.handle_datagram(self.now, host, datagram);
        true
    }

    /// Sets sent since a moment, by attribute and sender.
    pub fn sets_since(&self, from: Duration) -> BTreeMap<(usize, Attribute, bool), usize> {
        let mut counts = BTreeMap::new();
        for set in self.sets.iter().filter(|set| set.at >= from) {
            *counts.entry((set.member, set.attribute, set.registers)).or_default() += 1;
        }
        counts
    }
}
