//! A manager, an emulated fabric and a judge in one process: datagrams are handed over, time is a number.

use std::collections::{BTreeSet, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use fabric_compiler::{compile, partitions_conf};
use fabric_model::intent::PortAliases;
use fabric_model::plan::Enforcement;
use fabric_model::{FabricPlan, Intents, NodeIndex, Topology};
use fabric_sim::{BuiltInProfile, DeviceId, Fabric, FabricOutput, PortId};
use ib_wire::{Datagram, Guid, Mad, ManagementClass, Method, Pkey, PortState};
use subnet_manager::{
    Discovery, MadLimits, Manager, ManagerSettings, PersistentState, SECRET_LEN_MIN, SiteSecret, SmEvent,
};

use super::pairs::Pairs;
use super::tables::{Behind, End, Places, Port, Switch, Tables, Violation};

/// Steps of one run, so that a manager that never ends fails a test instead of stopping it.
const STEPS_MAX: usize = 200_000;

/// Time after the last step of [`World::play`]: longer than the manager collects joins.
const AFTERWARDS: Duration = Duration::from_secs(3);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The manager says that the fabric is equal to the plan.
    Programmed { troubles: usize },
    /// It was killed right after a datagram left.
    Killed,
    /// It gave up: no node answered, or the topology was inconsistent.
    GaveUp,
}

/// A quick hash for fingerprints: most of a test's time went into a better one.
#[derive(Default)]
struct Folder(u64);

impl Folder {
    fn fold(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Folder {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.fold(u64::from_le_bytes(word));
        }
    }

    fn write_u16(&mut self, word: u16) {
        self.fold(word.into());
    }

    fn write_isize(&mut self, word: isize) {
        self.fold(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// Looks at the tables after every Set.
#[derive(Default)]
pub struct Judge {
    /// Sets after which the tables were checked.
    pub sets: u64,
    /// States that were seen before under the same permissions need no second look.
    seen: HashSet<u64>,
    /// The tables that were judged last, and the fingerprint of the permissions.
    last: Option<(Tables, u64)>,
    /// The first thing that went wrong, with the number of the Set.
    pub verdict: Option<(u64, Violation)>,
}

impl Judge {
    /// Whether tables with this fingerprint have to be checked.
    pub fn is_new(&mut self, fingerprint: u64) -> bool {
        self.sets += 1;
        self.verdict.is_none() && self.seen.insert(fingerprint)
    }

    /// Checks tables, or what differs from those that were checked before with the same permissions.
    pub fn look(&mut self, tables: Tables, allowed: &Pairs, permissions: u64) {
        let violation = match &self.last {
            Some((last, known)) if *known == permissions => tables.violation_since(last, allowed),
            _ => tables.violation(allowed),
        };
        self.verdict = violation.map(|violation| (self.sets, violation));
        self.last = Some((tables, permissions));
    }
}

pub struct World {
    pub fabric: Fabric,
    topology: Topology,
    pub places: Places,
    port: PortId,
    now: Duration,
    settings: ManagerSettings,
    /// The state that a program keeps on disk for the next manager.
    pub kept: PersistentState,
    /// The last plan that was made.
    pub plan: Option<Arc<FabricPlan>>,
    /// Pairs that the last completely programmed plan allows, and those that plans begun since then allow.
    allowed: Pairs,
    allowed_fingerprint: u64,
    pub judge: Judge,
    /// Whether the judge checks. What the same seed did before need not be checked again.
    pub judging: bool,
    /// Datagrams that managers sent.
    pub sent: usize,
    /// Alias GUIDs of the next plan.
    aliases: PortAliases,
    discovery: Option<Discovery>,
    /// Datagrams of subnet administration that arrived at ports other than the manager's.
    pub heard: Vec<(PortId, Datagram)>,
}

/// What happens after a fabric is programmed for the first time.
#[derive(Clone)]
pub enum Step {
    /// A port sends a request to subnet administration.
    Ask(PortId, Box<Mad>),
    /// Ports get other aliases.
    Aliases(PortAliases),
}

impl World {
    /// A fabric of devices of a profile.
    pub fn new(topology: &Topology, profile: BuiltInProfile, seed: u64) -> Self {
        let profile = profile.profile();
        let topology = profile.furnish(topology).unwrap();
        let fabric = Fabric::new(topology.clone(), profile, seed).unwrap();
        let (_, host) = topology.end_nodes().next().unwrap();
        let port = fabric.find_port(&host.id).unwrap();
        Self {
            fabric,
            places: Places::of(&topology),
            topology,
            port,
            now: Duration::ZERO,
            settings: ManagerSettings {
                limits: MadLimits { timeout: Duration::from_millis(100), ..MadLimits::default() },
                ..ManagerSettings::default()
            },
            kept: PersistentState::default(),
            plan: None,
            allowed: Pairs::default(),
            allowed_fingerprint: 0,
            judge: Judge::default(),
            judging: true,
            sent: 0,
            aliases: PortAliases::new(),
            discovery: None,
            heard: Vec::new(),
        }
    }

    /// A manager starts and works until it is done, or until it has sent `kill_after` datagrams. `meanwhile` is called
    /// after each, with how many this manager has sent.
    pub fn configure(
        &mut self,
        partitions: &str,
        kill_after: Option<usize>,
        meanwhile: impl FnMut(&mut Fabric, Duration, usize),
    ) -> Ended {
        self.play(partitions, &[], kill_after, meanwhile)
    }

    /// As [`World::configure`]; then the steps happen, each when the manager has nothing more to send, and what follows from
    /// them in the seconds after.
    pub fn play(
        &mut self,
        partitions: &str,
        steps: &[Step],
        kill_after: Option<usize>,
        mut meanwhile: impl FnMut(&mut Fabric, Duration, usize),
    ) -> Ended {
        let mut steps = steps.iter();
        let mut is_up = false;
        let mut end = None;
        let secret = SiteSecret::new(vec![0x5a; SECRET_LEN_MIN]).unwrap();
        let mut manager = Manager::new(self.settings, Some(secret), &self.kept);
        let (mut sent, mut troubles) = (0, 0);
        for _ in 0..STEPS_MAX {
            if let Some(memory) = manager.poll_persist() {
                self.kept = memory;
                manager.handle_persisted(self.now);
            }
            while let Some(event) = manager.poll_event() {
                match event {
                    SmEvent::Discovered(discovery) => self.decide(&mut manager, *discovery, partitions),
                    SmEvent::Programmed(_) if steps.len() == 0 && !is_up => return self.settle(troubles),
                    SmEvent::Programmed(_) => is_up = true,
                    SmEvent::LocalNodeSilent | SmEvent::Inconsistent(_) => return Ended::GaveUp,
                    _ => troubles += 1,
                }
            }
            if let Some(datagram) = manager.poll_transmit(self.now) {
                sent += 1;
                self.sent += 1;
                self.send(datagram);
                if kill_after == Some(sent) {
                    self.judging = true;
                    while self.fabric.poll_output().is_some() {}
                    return Ended::Killed;
                }
                meanwhile(&mut self.fabric, self.now, sent);
                self.deliver(&mut manager);
            } else if let Some(step) = if is_up { steps.next() } else { None } {
                self.take(step, &mut manager, partitions);
                self.deliver(&mut manager);
            } else {
                let due = [manager.poll_timeout(), self.fabric.poll_timeout()].into_iter().flatten().min();
                let Some(due) = due else { return Ended::GaveUp };
                if is_up && due > *end.get_or_insert(self.now + AFTERWARDS) {
                    return self.settle(troubles);
                }
                self.now = self.now.max(due);
                self.fabric.handle_timeout(self.now);
                self.deliver(&mut manager);
                manager.handle_timeout(self.now);
            }
        }
        panic!("a manager that does not come to an end");
    }

    fn take(&mut self, step: &Step, manager: &mut Manager, partitions: &str) {
        match step {
            Step::Ask(port, mad) => {
                let lid = |port| self.fabric.port_forwarding(port).lid.unwrap().into();
                let key = Pkey::from_wire(0x7fff).unwrap();
                let datagram = Datagram::general_management(lid(*port), lid(self.port), key, Mad::clone(mad));
                self.fabric.handle_datagram(self.now, *port, datagram);
            }
            Step::Aliases(aliases) => {
                self.aliases.clone_from(aliases);
                let discovery = self.discovery.clone().unwrap();
                self.decide(manager, discovery, partitions);
            }
        }
    }

    fn decide(&mut self, manager: &mut Manager, discovery: Discovery, partitions: &str) {
        self.discovery = Some(discovery.clone());
        let mut intents = Intents::new(discovery.manager);
        intents.capabilities = discovery.capabilities;
        intents.partitions = partitions_conf::parse(partitions).unwrap();
        intents.aliases.clone_from(&self.aliases);
        let previous = &self.kept.decisions;
        let plan = Arc::new(compile(&discovery.topology, &intents, previous).unwrap());
        let before = std::mem::take(&mut self.allowed);
        self.allow(before.or(&Pairs::of_plan(&plan, &self.places)));
        self.plan = Some(Arc::clone(&plan));
        manager.apply(self.now, plan);
    }

    /// The plan is there: from now on nothing of the one before is allowed.
    fn settle(&mut self, troubles: usize) -> Ended {
        if let Some(plan) = &self.plan
            && troubles == 0
        {
            self.allow(Pairs::of_plan(plan, &self.places));
            self.look();
        }
        Ended::Programmed { troubles }
    }

    fn send(&mut self, datagram: Datagram) {
        let is_set = datagram.mad.method() == Method::SET;
        self.fabric.handle_datagram(self.now, self.port, datagram);
        if is_set {
            self.look();
        }
    }

    fn look(&mut self) {
        if self.judging && self.judge.is_new(self.reader().fingerprint(self.allowed_fingerprint)) {
            let tables = self.tables();
            self.judge.look(tables, &self.allowed, self.allowed_fingerprint);
        }
    }

    fn allow(&mut self, pairs: Pairs) {
        let fingerprint = pairs_fingerprint(&pairs);
        (self.allowed, self.allowed_fingerprint) = (pairs, fingerprint);
    }

    /// Losses are not reported: a manager has to notice them by itself.
    fn deliver(&mut self, manager: &mut Manager) {
        while let Some(output) = self.fabric.poll_output() {
            let FabricOutput::Deliver { port, datagram } = output else { continue };
            if port == self.port {
                manager.handle_datagram(self.now, &datagram);
            } else if datagram.mad.class() == ManagementClass::SUBNET_ADMINISTRATION {
                self.heard.push((port, datagram));
            }
        }
    }

    /// The tables of all devices as they are.
    pub fn tables(&self) -> Tables {
        self.reader().tables()
    }

    fn reader(&self) -> TableReader<'_> {
        TableReader { fabric: &self.fabric, topology: &self.topology, places: &self.places }
    }

    /// The first device that is not as the plan says.
    pub fn difference(&self) -> Option<String> {
        let (tables, plan) = (self.tables(), self.plan.as_ref()?);
        for planned in plan.switches() {
            let held = &tables.switches[self.places.switches[&planned.guid]];
            if let Some(what) = switch_difference(planned, held) {
                return Some(format!("switch {}: {what}", planned.guid));
            }
        }
        plan.adapter_ports().find_map(|planned| {
            let held = &tables.ends[self.places.ends[&planned.guid]];
            let equal =
                held.lid == Some(planned.lid.to_wire()) && same_keys(&held.keys, planned.pkeys.entries());
            (!equal).then(|| format!("adapter port {}: LID or keys", planned.guid))
        })
    }

    /// Distinguishes the manager's port from the others: faults there would only disconnect the manager.
    pub fn devices_but_own(&self) -> Vec<DeviceId> {
        let own = self.fabric.device_id_of(self.port);
        self.fabric.device_ids().filter(|device| *device != own).collect()
    }

    pub fn host_guids(&self) -> Vec<Guid> {
        let hosts = self.topology.end_nodes().filter(|(_, node)| node.is_host_adapter());
        hosts.map(|(_, node)| node.ports().next().unwrap().1.guid).collect()
    }
}

/// A fingerprint of permissions.
pub fn pairs_fingerprint(pairs: &Pairs) -> u64 {
    let mut hasher = Folder::default();
    pairs.hash(&mut hasher);
    hasher.finish()
}

/// Reads the tables of an emulated fabric.
#[derive(Clone, Copy)]
pub struct TableReader<'a> {
    pub fabric: &'a Fabric,
    pub topology: &'a Topology,
    pub places: &'a Places,
}

impl TableReader<'_> {
    /// A fingerprint of the tables and of the allowed pairs, computed faster than the tables.
    pub fn fingerprint(&self, allowed: u64) -> u64 {
        let mut hasher = Folder::default();
        allowed.hash(&mut hasher);
        for device in self.fabric.device_ids() {
            for port in self.fabric.ports_of(device) {
                let gate = self.fabric.port_forwarding(port);
                (gate.lid, gate.keys, gate.enforces, gate.peer).hash(&mut hasher);
                std::mem::discriminant(&gate.state).hash(&mut hasher);
            }
            self.fabric.linear_of(device).hash(&mut hasher);
            self.fabric.groups_of(device).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The tables of all devices as they are.
    pub fn tables(&self) -> Tables {
        let mut tables = Tables::default();
        for (index, device) in self.fabric.device_ids().enumerate() {
            if self.topology[NodeIndex::new(index as u32)].is_switch() {
                tables.switches.push(self.switch(device));
            } else {
                tables.ends.extend(self.fabric.ports_of(device).map(|port| self.end(port)));
            }
        }
        tables
    }

    fn switch(&self, device: DeviceId) -> Switch {
        let (linear, top) = self.fabric.linear_of(device).unwrap();
        let groups = self.fabric.groups_of(device).into_iter();
        Switch {
            top,
            linear: linear.to_vec(),
            groups: groups.map(|(mlid, ports)| (mlid, ports.into_iter().collect::<BTreeSet<u8>>())).collect(),
            ports: self.fabric.ports_of(device).map(|port| self.port(port)).collect(),
        }
    }

    fn port(&self, id: PortId) -> Port {
        let gate = self.fabric.port_forwarding(id);
        Port {
            behind: gate.peer.map(|peer| self.behind(peer)),
            active: gate.peer.is_some_and(|peer| self.passes(id, peer) || self.passes(peer, id)),
            // A port that checks one direction only is counted as open: nobody plans that.
            enforcing: gate.enforces == (true, true),
            keys: gate.keys.to_vec(),
        }
    }

    /// Whether data passes a link in one direction.
    fn passes(&self, out: PortId, into: PortId) -> bool {
        self.fabric.state_of(out) == PortState::Active
            && matches!(self.fabric.state_of(into), PortState::Active | PortState::Armed)
    }

    fn behind(&self, peer: PortId) -> Behind {
        let gate = self.fabric.port_forwarding(peer);
        match self.places.switches.get(&self.fabric.node_of(peer).node_guid) {
            Some(switch) => Behind::Switch(*switch, gate.number.to_wire()),
            None => Behind::End(self.places.ends[&gate.guid]),
        }
    }

    fn end(&self, id: PortId) -> End {
        let gate = self.fabric.port_forwarding(id);
        let at = gate.peer.and_then(|peer| {
            let switch = self.places.switches.get(&self.fabric.node_of(peer).node_guid)?;
            Some((*switch, self.fabric.port_forwarding(peer).number.to_wire()))
        });
        End { lid: gate.lid.map(|lid| lid.to_wire()), keys: gate.keys.to_vec(), at }
    }
}

fn switch_difference(planned: &fabric_model::plan::SwitchPlan, held: &Switch) -> Option<&'static str> {
    let exits = planned.linear.to_exits();
    let linear = (1..exits.len()).all(|lid| held.linear.get(lid).copied().unwrap_or(0xff) == exits[lid]);
    let groups = planned.multicast.exits().map(|(mlid, ports)| {
        (mlid.to_wire(), ports.iter().map(|port| port.to_wire()).collect::<BTreeSet<u8>>())
    });
    let port = |port: &fabric_model::plan::SwitchPortPlan| {
        let held = &held.ports[port.number.index()];
        held.active
            && match &port.enforcement {
                Enforcement::Both(table) => held.enforcing && same_keys(&held.keys, table.entries()),
                Enforcement::Off => !held.enforcing,
            }
    };
    if !linear || held.top != planned.linear.top() {
        Some("routes")
    } else if groups.collect::<std::collections::BTreeMap<_, _>>() != held.groups {
        Some("groups")
    } else {
        (!planned.ports.iter().all(port)).then_some("ports")
    }
}

/// Empty entries at the end do not count.
fn same_keys(a: &[Option<ib_wire::Pkey>], b: &[Option<ib_wire::Pkey>]) -> bool {
    (0..a.len().max(b.len())).all(|place| a.get(place).copied().flatten() == b.get(place).copied().flatten())
}
