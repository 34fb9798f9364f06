//! The machine: what programs of a tenant send goes in, what reaches them and what they wish comes out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fabric_compiler::{CompileError, compile};
use fabric_model::{BuildError, FabricPlan, Topology};
use fabric_sim::{BadCapacity, BareDatagram, DeviceId, DropReason, Fabric, InstallError, PortId};
use ib_wire::{Datagram, DirectedRoute, Guid, LidAddress, ManagementClass, PortInfo, PortNum};
use serde::Serialize;
use subnet_manager::{Administration, Directory, ManagerFacts, NodeFacts};
use thiserror::Error;

use crate::change_set::OverlayState;
use crate::default_sm::{DefaultSm, Master, MasterChange, TenantManager};
use crate::names::{Names, NamesError};
use crate::projection::{ADAPTER_PORT, NodeAlias, Projection};
use crate::slice::{Slice, WireClass, WireParameters};
use crate::token_bucket::TokenBucket;

/// What reaches programs that waits to be taken. Callers take after every call; what is beyond is dropped.
const OUTPUTS_MAX: usize = 4096;

/// What a change of role costs, in datagrams: everybody who is a manager is looked for.
const ROLE_COST: usize = 64;

/// The adapter of a virtual machine. Unchanged the same as long as the view remembers the virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterId(pub(crate) u32);

/// What the view wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewOutput {
    /// A datagram arrived at an adapter and is for the software behind it.
    Deliver {
        /// The adapter.
        adapter: AdapterId,
        /// What arrived.
        datagram: Datagram,
    },
    /// A datagram that software behind an adapter sent came to nothing.
    Lost {
        /// The adapter.
        adapter: AdapterId,
        /// What was left of it.
        datagram: Datagram,
        /// Why.
        reason: DropReason,
    },
}

/// Why an adapter does not send a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ViewSendError {
    /// There is no such adapter any more.
    #[error("the virtual machine is no longer in the view")]
    NoAdapter,
    /// It names no destination, or a partition that the port is not in.
    #[error("an adapter does not send such a datagram")]
    InvalidDatagram,
    /// The tenant has sent too much.
    #[error("more datagrams than a view takes")]
    RateLimited,
}

/// What programs sent to a view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DatagramCounts {
    /// Datagrams that were taken.
    pub accepted: u64,
    /// Datagrams that were too many.
    pub refused: u64,
}

/// Who manages a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ViewManager {
    /// Nobody of the tenant's: it is as it is by default.
    Default,
    /// A subnet manager on this virtual machine.
    Tenant {
        /// The virtual machine.
        node: String,
    },
}

/// Why there is no view of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ViewError {
    /// Something cannot be named.
    #[error(transparent)]
    Names(#[from] NamesError),
    /// What results is no topology.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Devices cannot be so.
    #[error(transparent)]
    Capacity(#[from] BadCapacity),
    /// There is no default configuration.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The default configuration does not fit.
    #[error(transparent)]
    Install(#[from] InstallError),
}

/// The network of one cluster, as its tenant sees it.
///
/// Feed it with the `handle_` verbs and [`View::set_is_sm`]; after each, empty [`View::poll_output`] and arrange to come
/// back at [`View::poll_timeout`]. It knows no clock: `now` is the time since any moment of the caller's choosing and must
/// not run backwards.
#[derive(Debug)]
pub struct View {
    pub(crate) fabric: Fabric,
    pub(crate) slice: Slice,
    pub(crate) names: Names,
    pub(crate) projection: Projection,
    /// What the view holds by default.
    pub(crate) plan: Arc<FabricPlan>,
    pub(crate) default_sm: DefaultSm,
    pub(crate) overlays: OverlayState,
    sa: Administration,
    /// Whether the sa knows what is there now.
    pub(crate) is_published: bool,
    pub(crate) adapters: BTreeMap<AdapterId, PortId>,
    by_port: BTreeMap<PortId, AdapterId>,
    outputs: VecDeque<ViewOutput>,
    bucket: TokenBucket,
    counts: DatagramCounts,
    /// Entries of the forwarding tables.
    pub(crate) linear: u16,
    pub(crate) now: Duration,
}

impl View {
    /// The view of a slice, up and configured. `names` are those of before, or none.
    pub fn new(slice: Slice, mut names: Names) -> Result<Self, ViewError> {
        names.learn(&slice)?;
        let projection = Projection::of(&slice, &names)?;
        let plan = default_plan(&projection, &slice)?;
        let mut fabric = Fabric::new(projection.topology.clone(), projection.capacities(), 0)?;
        fabric.install(&plan)?;
        let default_sm = DefaultSm::new(projection.first_switch);
        let mut view = Self {
            fabric,
            slice,
            names,
            plan: Arc::new(plan),
            default_sm,
            overlays: OverlayState::default(),
            sa: Administration::new(),
            is_published: false,
            adapters: BTreeMap::new(),
            by_port: BTreeMap::new(),
            outputs: VecDeque::new(),
            bucket: TokenBucket::new(),
            counts: DatagramCounts::default(),
            linear: projection.capacities().linear_forwarding,
            now: Duration::ZERO,
            projection,
        };
        view.index_adapters();
        view.attach_default_sm(Duration::ZERO);
        Ok(view)
    }

    /// The aliases, to be kept with the cluster.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// What the virtual machines are called in the view.
    pub fn aliases(&self) -> Vec<NodeAlias> {
        self.projection.aliases()
    }

    /// What packets of the cluster carry on the wire.
    pub fn wire_parameters(&self) -> WireParameters {
        self.slice.wire_parameters()
    }

    /// The classes of the cluster's packets on the wire, in the order of the wish that is in force; none if all are alike.
    pub fn wire_classes(&self) -> &[WireClass] {
        self.slice.classes()
    }

    /// The network that it shows.
    pub fn topology(&self) -> &Topology {
        &self.projection.topology
    }

    /// The devices, to be looked at.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The adapter of a virtual machine; of the first if the name is empty. Also by its node id or a GUID in the view.
    pub fn adapter(&self, name: &str) -> Option<AdapterId> {
        let nodes = &self.projection.nodes;
        let node = match name {
            "" => nodes.first(),
            _ => nodes.iter().find(|node| node.name == name).or_else(|| {
                let guid = self.fabric.node_of(self.fabric.find_port(name)?).node_guid;
                nodes.iter().find(|node| node.guid == guid)
            }),
        };
        node.map(|node| AdapterId(node.number))
    }

    /// The port of an adapter, for questions to [`View::fabric`].
    pub fn port(&self, adapter: AdapterId) -> Option<PortId> {
        self.adapters.get(&adapter).copied()
    }

    /// Who manages the view.
    pub fn managed_by(&self) -> ViewManager {
        match self.default_sm.master() {
            Master::Own => ViewManager::Default,
            Master::Tenant(adapter, _) => {
                let node = self.projection.nodes.iter().find(|node| node.number == adapter.0);
                ViewManager::Tenant { node: node.map(|node| node.name.clone()).unwrap_or_default() }
            }
        }
    }

    /// What programs sent so far.
    pub fn counts(&self) -> DatagramCounts {
        self.counts
    }

    /// Takes a datagram of software behind an adapter that knows of LIDs and queue pairs only.
    pub fn handle_bare(
        &mut self,
        now: Duration,
        from: AdapterId,
        bare: BareDatagram,
    ) -> Result<(), ViewSendError> {
        let port = self.admit(now, from)?;
        let datagram = self.fabric.complete(port, bare).ok_or(ViewSendError::InvalidDatagram)?;
        self.transmit(port, datagram);
        Ok(())
    }

    /// Takes a whole datagram of software behind an adapter. Whatever it says of its origin, it comes from the adapter.
    pub fn handle_datagram(
        &mut self,
        now: Duration,
        from: AdapterId,
        datagram: Datagram,
    ) -> Result<(), ViewSendError> {
        let port = self.admit(now, from)?;
        let datagram = self.fabric.own(port, datagram).ok_or(ViewSendError::InvalidDatagram)?;
        self.transmit(port, datagram);
        Ok(())
    }

    /// Until when it takes no datagrams, if the tenant has sent too much: whoever serves it need not read more before.
    pub fn paused_until(&self) -> Option<Duration> {
        self.bucket.empty_until()
    }

    fn admit(&mut self, now: Duration, from: AdapterId) -> Result<PortId, ViewSendError> {
        self.now = self.now.max(now);
        let port = self.port(from).ok_or(ViewSendError::NoAdapter)?;
        if !self.bucket.take(self.now) {
            self.counts.refused += 1;
            return Err(ViewSendError::RateLimited);
        }
        self.counts.accepted += 1;
        Ok(port)
    }

    fn transmit(&mut self, port: PortId, datagram: Datagram) {
        let before = self.outputs.len();
        self.overlays.note(self.now, &datagram.mad);
        self.fabric.handle_datagram(self.now, port, datagram);
        self.forward_outputs();
        self.bucket.charge(self.outputs.len().saturating_sub(before + 1));
    }

    /// Software behind an adapter says whether it is a subnet manager.
    pub fn set_is_sm(&mut self, now: Duration, adapter: AdapterId, is_sm: bool) {
        self.now = self.now.max(now);
        let Some(port) = self.port(adapter).filter(|port| self.fabric.is_sm(*port) != is_sm) else { return };
        self.bucket.charge(ROLE_COST);
        self.fabric.set_is_sm(self.now, port, is_sm);
        self.is_published = false;
        self.update_managers();
        self.forward_outputs();
    }

    /// The default again, whoever manages the view: also a way out for a tenant who has locked itself out by a key. A manager
    /// that is still there is asked again and may take over anew.
    pub fn reset(&mut self, now: Duration) {
        self.now = self.now.max(now);
        self.default_sm.reclaim(self.now);
        self.restore_default();
        self.forward_outputs();
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.now = self.now.max(now);
        self.fabric.handle_timeout(self.now);
        self.sa.handle_timeout(self.now);
        let change = self.default_sm.handle_timeout(self.now);
        self.apply(change);
        self.close_if_due();
        self.forward_outputs();
    }

    /// The next thing to do, if any.
    pub fn poll_output(&mut self) -> Option<ViewOutput> {
        self.outputs.pop_front()
    }

    /// When [`View::handle_timeout`] has to be called again at the latest.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let all = [
            self.fabric.poll_timeout(),
            self.default_sm.poll_timeout(),
            self.sa.poll_timeout(),
            self.overlays.poll_timeout(),
        ];
        all.into_iter().flatten().min()
    }

    /// Moves what the devices hand out: to the default_sm what is for it, the rest to programs of the tenant's.
    pub(crate) fn forward_outputs(&mut self) {
        loop {
            while let Some(output) = self.fabric.poll_output() {
                self.handle_fabric_output(output);
            }
            let answer = self.default_sm.poll_transmit().or_else(|| self.sa.poll_transmit(self.now));
            let Some(answer) = answer else { return };
            if let Some(port) = self.default_sm_port() {
                self.fabric.handle_datagram(self.now, port, answer);
            }
        }
    }

    fn handle_fabric_output(&mut self, output: fabric_sim::Output) {
        let output = match output {
            fabric_sim::Output::Deliver { port, datagram } => match self.by_port.get(&port) {
                Some(adapter) => {
                    ViewOutput::Deliver { adapter: *adapter, datagram: with_zero_hop_pointer(datagram) }
                }
                None if Some(port) == self.default_sm_port() => return self.handle_sm_datagram(&datagram),
                None => return,
            },
            fabric_sim::Output::Lost { port, datagram, reason } => match self.by_port.get(&port) {
                Some(adapter) => ViewOutput::Lost { adapter: *adapter, datagram, reason },
                None => return,
            },
        };
        if self.outputs.len() < OUTPUTS_MAX {
            self.outputs.push_back(output);
        }
    }

    /// What is for the default_sm.
    fn handle_sm_datagram(&mut self, datagram: &Datagram) {
        let class = datagram.mad.class();
        if class.is_subnet_management() {
            let own = self.default_sm_port().and_then(|port| self.fabric.lid(port));
            let own = own.map_or(LidAddress::Permissive, LidAddress::from);
            let change = self.default_sm.handle_datagram(self.now, datagram, own);
            self.apply(change);
            return;
        }
        let dropped = self.sa.counts().dropped;
        if class == ManagementClass::SUBNET_ADMINISTRATION && self.default_sm.master() == Master::Own {
            self.publish();
            self.sa.handle_datagram(self.now, datagram);
            if self.sa.counts().dropped == dropped {
                return;
            }
        }
        self.report_lost(datagram);
    }

    /// Programs without a clock of their own wait for word that there will be no answer.
    fn report_lost(&mut self, datagram: &Datagram) {
        let LidAddress::Unicast(lid) = datagram.slid else { return };
        let sender = self.adapters.iter().find(|(_, port)| self.fabric.owns(**port, lid));
        if let Some((adapter, _)) = sender.filter(|_| self.outputs.len() < OUTPUTS_MAX) {
            let (adapter, datagram) = (*adapter, datagram.clone());
            self.outputs.push_back(ViewOutput::Lost { adapter, datagram, reason: DropReason::Unanswered });
        }
    }

    fn apply(&mut self, change: MasterChange) {
        match change {
            MasterChange::Unchanged => {}
            MasterChange::Yielded => self.is_published = false,
            MasterChange::Returned => self.restore_default(),
        }
    }

    /// The default again: every device starts anew and is given the default plan.
    fn restore_default(&mut self) {
        let devices: Vec<DeviceId> = self.fabric.device_ids().collect();
        for device in devices {
            self.fabric.reboot(self.now, device);
        }
        self.install();
        self.overlays.withdraw();
    }

    pub(crate) fn install(&mut self) {
        let installed = self.fabric.install(&self.plan);
        debug_assert_eq!(installed, Ok(()), "the plan was made for these devices");
        self.is_published = false;
    }

    /// Tells the sa what there is, if that has changed.
    fn publish(&mut self) {
        if std::mem::replace(&mut self.is_published, true) {
            return;
        }
        let facts = self.fabric.device_ids().filter_map(|device| node_facts(&self.fabric, device));
        let manager = ManagerFacts { priority: 0, activity: 0 };
        let directory = Directory::new(Arc::clone(&self.plan), manager, facts.collect::<Vec<_>>());
        self.sa.publish(Arc::new(directory.open()));
    }

    pub(crate) fn default_sm_port(&self) -> Option<PortId> {
        let device = self.fabric.device_by_guid(self.projection.first_switch)?;
        self.fabric.port_of(device, PortNum::MANAGEMENT)
    }

    pub(crate) fn attach_default_sm(&mut self, now: Duration) {
        self.default_sm.set_port_guid(self.projection.first_switch);
        if let Some(port) = self.default_sm_port() {
            self.fabric.set_is_sm(now, port, true);
        }
    }

    pub(crate) fn index_adapters(&mut self) {
        self.adapters.clear();
        for node in &self.projection.nodes {
            let device = self.fabric.device_by_guid(node.guid);
            if let Some(port) = device.and_then(|device| self.fabric.port_of(device, ADAPTER_PORT)) {
                self.adapters.insert(AdapterId(node.number), port);
            }
        }
        self.by_port = self.adapters.iter().map(|(adapter, port)| (*port, *adapter)).collect();
    }

    /// Tells the default_sm which adapters have managers behind them.
    pub(crate) fn update_managers(&mut self) {
        let routes = self.routes_from_default_sm();
        let managers = (self.adapters.iter()).filter(|(_, port)| self.fabric.is_sm(**port)).filter_map(
            |(adapter, port)| {
                let guid = self.fabric.guid_of(*port);
                let route = routes.get(&self.fabric.node_of(*port).node_guid)?.clone();
                Some(TenantManager { adapter: *adapter, guid, route })
            },
        );
        let managers: Vec<TenantManager> = managers.collect();
        let change = self.default_sm.set_managers(self.now, managers);
        self.apply(change);
    }

    /// The shortest directed routes from the default_sm's switch to every node, by node GUID: tables may be anything.
    fn routes_from_default_sm(&self) -> BTreeMap<Guid, DirectedRoute> {
        let topology = &self.projection.topology;
        let start = self.projection.first_switch;
        let mut routes = BTreeMap::from([(start, DirectedRoute::default())]);
        let mut open = VecDeque::from([start]);
        while let Some(guid) = open.pop_front() {
            let Some(node) = topology.by_guid(guid).map(|index| &topology[index]) else { continue };
            let route = routes[&guid].clone();
            for (exit, peer) in node.cabled_ports().filter(|_| node.is_switch()) {
                let next = topology[peer.node].guid;
                if let Some(route) = route.then(exit).filter(|_| !routes.contains_key(&next)) {
                    routes.insert(next, route);
                    open.push_back(next);
                }
            }
        }
        routes
    }
}

/// A datagram as software sees it: the hop pointer is between agents, programs see and send 0.
fn with_zero_hop_pointer(mut datagram: Datagram) -> Datagram {
    if datagram.mad.class() == ManagementClass::SUBNET_DIRECTED {
        datagram.mad.set_hop_pointer(0);
    }
    datagram
}

/// The plan of a view that nobody manages: its own names, the routes of the cluster, one partition.
pub(crate) fn default_plan(projection: &Projection, slice: &Slice) -> Result<FabricPlan, CompileError> {
    let intents = projection.intents();
    let own = compile(&projection.topology, &intents, &projection.decisions())?;
    // Routes are taken over into an order of switches that is there already.
    let mut decisions = own.decisions().clone();
    decisions.adopted = projection.walked(slice);
    compile(&projection.topology, &intents, &decisions)
}

/// What a node says of itself; `None` if it is left behind without a cable.
fn node_facts(fabric: &Fabric, device: DeviceId) -> Option<NodeFacts> {
    let mut ports = BTreeMap::new();
    let mut port_guids = BTreeMap::new();
    let first = fabric.ports_of(device).next()?;
    for port in fabric.ports_of(device) {
        let number = fabric.number_of(port);
        let info = fabric.port_info_of(port, number.to_wire())?;
        ports.insert(number, PortInfo::decode(&info).ok()?);
        port_guids.insert(number, fabric.guid_of(port));
    }
    Some(NodeFacts {
        info: fabric.node_of(first).clone(),
        description: fabric.description_of(device),
        switch: fabric.switch_info_of(device).cloned(),
        ports,
        port_guids,
    })
}
