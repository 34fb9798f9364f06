//! The state machine of a view: datagrams of the tenant's programs and time go in, deliveries and overlays come out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fabric_compiler::{CompileError, compile};
use fabric_model::{BuildError, FabricPlan, Topology};
use fabric_sim::{BadCapacity, BareDatagram, DeviceId, DropReason, Fabric, InstallError, PortId};
use ib_wire::{Datagram, DirectedRoute, Guid, LidAddress, ManagementClass, PortInfo, PortNum};
use serde::Serialize;
use subnet_manager::{Directory, ManagerFacts, NodeFacts, PortMap, SubnetAdministration};
use thiserror::Error;

use crate::change_set::OverlayState;
use crate::default_sm::{DefaultSm, Master, MasterChange, TenantManager};
use crate::names::{Names, NamesError};
use crate::projection::{ADAPTER_PORT, NodeAlias, Projection};
use crate::slice::{Slice, WireClass, WireParameters};
use crate::token_bucket::{PER_SECOND, TokenBucket};

/// Outputs that wait to be taken. Callers take them after every call; more are dropped.
const OUTPUTS_MAX: usize = 4096;

/// Tokens for a change of the IsSM capability: all managers are polled for it.
const ROLE_COST: usize = 64;

/// The adapter of a virtual machine. Stays the same as long as [`Names`] keeps the virtual machine's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterId(pub(crate) u32);

/// What the caller has to do for the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewOutput {
    /// Hand the datagram to the software behind the adapter.
    Deliver { adapter: AdapterId, datagram: Datagram },
    /// Tell the software behind the adapter that a datagram it sent was lost.
    Lost {
        adapter: AdapterId,
        /// The datagram as it was when it was dropped.
        datagram: Datagram,
        reason: DropReason,
    },
}

/// Why a datagram is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ViewSendError {
    #[error("the virtual machine is no longer in the view")]
    NoAdapter,
    #[error("the datagram has no destination, or a P_Key that is not in the table of the port")]
    InvalidDatagram,
    #[error("the tenant has sent more than {PER_SECOND} datagrams per second")]
    RateLimited,
}

/// Datagrams that programs sent to a view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DatagramCounts {
    pub accepted: u64,
    /// Datagrams beyond the rate limit.
    pub refused: u64,
}

/// The master subnet manager of a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ViewManager {
    /// The view's own; the default is in force.
    Default,
    /// A subnet manager on this virtual machine of the tenant.
    Tenant { node: String },
}

/// Why a slice cannot be shown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ViewError {
    #[error(transparent)]
    Names(#[from] NamesError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Capacity(#[from] BadCapacity),
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error(transparent)]
    Install(#[from] InstallError),
}

/// The network of one cluster, as its tenant sees and manages it.
///
/// A state machine without I/O and clock. `now` is the time since an epoch of the caller's choice; a value lower than
/// an earlier one counts as the earlier one.
///
/// # Order of calls
///
/// 1. [`View::new`] with the stored [`Names`]; store [`View::names`] afterwards.
/// 2. Inputs, in any order: [`View::handle_bare`] and [`View::handle_datagram`] for what programs send,
///    [`View::set_is_sm`] when a program announces or withdraws a subnet manager, [`View::handle_timeout`] when
///    [`View::poll_timeout`] says, [`View::set_slice`] when the plan of the cluster changes, [`View::reset`] and
///    [`View::commit`] on request of the tenant.
/// 3. After each input: empty [`View::poll_output`] (of more than 4096 waiting outputs, the rest is dropped), take
///    [`View::poll_overlay`], and ask [`View::poll_timeout`] again.
/// 4. For each overlay taken: plan and program the physical network, then call [`View::put_in_force`], or
///    [`View::refuse`] if it cannot be planned; [`View::adapt`] may come before. If a newer overlay was taken meanwhile,
///    answer only the newer one. Call [`View::judge_again`] if the physical network no longer implements the overlay in
///    force.
///
/// # Guarantees
///
/// Nothing that programs send changes anything but this view: overlays leave it as data, after all checks. What
/// programs see depends on the slice alone, not on other tenants or on physical names. Memory is bounded by the
/// slice; the rate of datagrams by a [`TokenBucket`]. While no manager of the tenant is master, the view is up and
/// configured, and the default SM answers SA queries.
#[derive(Debug)]
pub struct View {
    pub(crate) fabric: Fabric,
    pub(crate) slice: Slice,
    pub(crate) names: Names,
    pub(crate) projection: Projection,
    /// The default plan of the view.
    pub(crate) plan: Arc<FabricPlan>,
    pub(crate) default_sm: DefaultSm,
    pub(crate) overlays: OverlayState,
    sa: SubnetAdministration,
    /// Whether the SA has the current devices and plan.
    pub(crate) is_published: bool,
    pub(crate) adapters: BTreeMap<AdapterId, PortId>,
    by_port: BTreeMap<PortId, AdapterId>,
    outputs: VecDeque<ViewOutput>,
    bucket: TokenBucket,
    counts: DatagramCounts,
    /// Entries of the linear forwarding tables.
    pub(crate) linear: u16,
    pub(crate) now: Duration,
}

impl View {
    /// Makes the view of a slice, up and configured by default. `names` are the stored ones, or `Names::default()`
    /// for a new cluster.
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
            sa: SubnetAdministration::new(),
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

    /// The aliases, to be stored with the cluster.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// The addresses of the virtual machines in the view.
    pub fn aliases(&self) -> Vec<NodeAlias> {
        self.projection.aliases()
    }

    /// P_Key and service level on the physical network.
    pub fn wire_parameters(&self) -> WireParameters {
        self.slice.wire_parameters()
    }

    /// Classes of service on the physical network, in the order of the classes of the overlay in force; none if the
    /// cluster is not divided.
    pub fn wire_classes(&self) -> &[WireClass] {
        self.slice.classes()
    }

    /// The topology that the view shows.
    pub fn topology(&self) -> &Topology {
        &self.projection.topology
    }

    /// The emulated devices, for reading.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Finds an adapter by the name of its virtual machine, by node id, or by a GUID in the view. An empty name is
    /// the first one.
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

    /// The port of an adapter, for use with [`View::fabric`].
    pub fn port(&self, adapter: AdapterId) -> Option<PortId> {
        self.adapters.get(&adapter).copied()
    }

    /// The master subnet manager.
    pub fn managed_by(&self) -> ViewManager {
        match self.default_sm.master() {
            Master::Own => ViewManager::Default,
            Master::Tenant(adapter, _) => {
                let node = self.projection.nodes.iter().find(|node| node.number == adapter.0);
                ViewManager::Tenant { node: node.map(|node| node.name.clone()).unwrap_or_default() }
            }
        }
    }

    /// Datagrams sent by programs so far.
    pub fn counts(&self) -> DatagramCounts {
        self.counts
    }

    /// Handles a datagram of software that sets only LIDs, queue pairs and the MAD. Other headers are completed as an
    /// adapter does.
    pub fn handle_bare(
        &mut self,
        now: Duration,
        from: AdapterId,
        bare: BareDatagram,
    ) -> Result<(), ViewSendError> {
        let port = self.admit(now, from)?;
        let datagram = self.fabric.complete_datagram(port, bare).ok_or(ViewSendError::InvalidDatagram)?;
        self.transmit(port, datagram);
        Ok(())
    }

    /// Handles a complete datagram of software behind an adapter. Its source address is replaced by that of the
    /// adapter.
    pub fn handle_datagram(
        &mut self,
        now: Duration,
        from: AdapterId,
        datagram: Datagram,
    ) -> Result<(), ViewSendError> {
        let port = self.admit(now, from)?;
        let datagram = self.fabric.with_own_source(port, datagram).ok_or(ViewSendError::InvalidDatagram)?;
        self.transmit(port, datagram);
        Ok(())
    }

    /// If the rate limit is reached, the time until which no datagrams are accepted: a server need not read before.
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

    /// Sets whether software behind an adapter is a subnet manager (the IsSM capability bit).
    pub fn set_is_sm(&mut self, now: Duration, adapter: AdapterId, is_sm: bool) {
        self.now = self.now.max(now);
        let Some(port) = self.port(adapter).filter(|port| self.fabric.is_sm(*port) != is_sm) else { return };
        self.bucket.charge(ROLE_COST);
        self.fabric.set_is_sm(self.now, port, is_sm);
        self.is_published = false;
        self.update_managers();
        self.forward_outputs();
    }

    /// Installs the default again and makes the default SM master, for example when a tenant has locked itself out by
    /// an M_Key. A manager of the tenant that is still there is polled and may take over again.
    pub fn reset(&mut self, now: Duration) {
        self.now = self.now.max(now);
        self.default_sm.reclaim(self.now);
        self.restore_default();
        self.forward_outputs();
    }

    /// Lets time pass. Must be called at [`View::poll_timeout`] at the latest; may be called earlier.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.now = self.now.max(now);
        self.fabric.handle_timeout(self.now);
        self.sa.handle_timeout(self.now);
        let change = self.default_sm.handle_timeout(self.now);
        self.apply(change);
        self.close_if_due();
        self.forward_outputs();
    }

    /// The next output, if any.
    pub fn poll_output(&mut self) -> Option<ViewOutput> {
        self.outputs.pop_front()
    }

    /// When [`View::handle_timeout`] must be called at the latest; `None` if nothing is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let all = [
            self.fabric.poll_timeout(),
            self.default_sm.poll_timeout(),
            self.sa.poll_timeout(),
            self.overlays.poll_timeout(),
        ];
        all.into_iter().flatten().min()
    }

    /// Moves outputs of the devices: to the default SM what is addressed to it, the rest to programs.
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

    fn handle_fabric_output(&mut self, output: fabric_sim::FabricOutput) {
        let output = match output {
            fabric_sim::FabricOutput::Deliver { port, datagram } => match self.by_port.get(&port) {
                Some(adapter) => {
                    ViewOutput::Deliver { adapter: *adapter, datagram: with_zero_hop_pointer(datagram) }
                }
                None if Some(port) == self.default_sm_port() => return self.handle_sm_datagram(&datagram),
                None => return,
            },
            // No function is attached to the fabric of a view.
            fabric_sim::FabricOutput::Packet { .. } | fabric_sim::FabricOutput::Frame { .. } => return,
            fabric_sim::FabricOutput::Lost { port, datagram, reason } => match self.by_port.get(&port) {
                Some(adapter) => ViewOutput::Lost { adapter: *adapter, datagram, reason },
                None => return,
            },
        };
        if self.outputs.len() < OUTPUTS_MAX {
            self.outputs.push_back(output);
        }
    }

    /// Handles a datagram addressed to the default SM: subnet management, or SA queries while it is master.
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

    /// Reports to the sender that there will be no response: programs without a timer wait for that.
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

    /// Restarts every device and installs the default plan.
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
        debug_assert_eq!(installed, Ok(()), "the plan was compiled for these devices");
        self.is_published = false;
    }

    /// Publishes devices and plan to the SA, if they have changed.
    fn publish(&mut self) {
        if std::mem::replace(&mut self.is_published, true) {
            return;
        }
        let facts = self.fabric.device_ids().filter_map(|device| node_facts(&self.fabric, device));
        let manager = ManagerFacts::default();
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

    /// Reports to the default SM which adapters announce a subnet manager.
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

    /// Shortest directed routes from the default SM's switch to every node, by node GUID. They do not depend on
    /// tables, which the tenant may have broken.
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

/// Clears the hop pointer of a directed-route datagram, as software behind an adapter sees it.
fn with_zero_hop_pointer(mut datagram: Datagram) -> Datagram {
    if datagram.mad.class() == ManagementClass::SUBNET_DIRECTED {
        datagram.mad.set_hop_pointer(0);
    }
    datagram
}

/// The default plan of a view: LIDs of its aliases, the routes of the cluster, one partition.
pub(crate) fn default_plan(projection: &Projection, slice: &Slice) -> Result<FabricPlan, CompileError> {
    let intents = projection.intents();
    let own = compile(&projection.topology, &intents, &projection.decisions())?;
    // Routes are adopted into an existing order of switches.
    let mut decisions = own.decisions().clone();
    decisions.adopted = projection.adopted_tables(slice);
    compile(&projection.topology, &intents, &decisions)
}

/// What a node reports of itself; `None` if it is disconnected.
fn node_facts(fabric: &Fabric, device: DeviceId) -> Option<NodeFacts> {
    let (mut ports, mut port_guids) = (PortMap::default(), PortMap::default());
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
