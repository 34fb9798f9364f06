//! Serves views at their socket: datagrams of a stream go to the adapter it is attached to.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use ib_transport::{ClientDatagram, FabricBackend, Outbox, Vendor};
use ib_wire::{Gid, Guid, Lid, ManagementClass, PortState};
use tenant_view::{
    AdapterId, Names, NodeAlias, OverlayStatus, Slice, TokenBucket, UngrantedRoutes, View, ViewError,
    ViewOutput, WireClass, WireParameters,
};
use uuid::Uuid;

use super::{OverlayQueue, Task};

/// Most streams of a cluster beyond one per node (held by its guest): tools and subnet managers that a tenant runs from
/// outside.
const CLUSTER_STREAMS_MAX: usize = 16;

/// The same for all clusters of a tenant: the slots left beside those of guests suffice for fifteen such tenants.
const TENANT_STREAMS_MAX: usize = 64;

/// Node id of an adapter in an attach frame; only the controller writes it.
pub fn node_id(cluster: Uuid, node: u32) -> String {
    format!("{}/{node}", cluster.simple())
}

/// An adapter in one of the views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterRef {
    view: u32,
    adapter: AdapterId,
}

/// The views of all clusters, as the host of an `ib_transport` server.
#[derive(Debug)]
pub struct ViewServer {
    started: Instant,
    tasks: Receiver<Task>,
    overlay_queue: Arc<OverlayQueue>,
    served: BTreeMap<u32, ServedView>,
    numbers: HashMap<Uuid, u32>,
    last_number: u32,
    /// Request budgets by tenant, shared by all its views.
    budgets: HashMap<Uuid, TokenBucket>,
    /// Deadlines of views, earliest first.
    due: BTreeSet<(Duration, u32)>,
    /// Views that may have output.
    dirty: BTreeSet<u32>,
}

/// Ids of the cluster of a view and of its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewOwner {
    pub cluster: Uuid,
    pub tenant: Uuid,
}

/// A view with its cluster.
#[derive(Debug)]
struct ServedView {
    cluster: Uuid,
    tenant: Uuid,
    view: View,
    /// Host names by node number.
    nodes: BTreeMap<u32, String>,
    due: Option<Duration>,
}

/// Status of a view.
#[derive(Clone, Debug)]
pub struct ViewSummary {
    pub status: OverlayStatus,
    pub aliases: Vec<NodeAlias>,
    pub wire: WireParameters,
    pub classes: Vec<WireClass>,
}

impl ViewServer {
    pub fn new(tasks: Receiver<Task>, overlay_queue: Arc<OverlayQueue>) -> Self {
        Self {
            started: Instant::now(),
            tasks,
            overlay_queue,
            served: BTreeMap::new(),
            numbers: HashMap::new(),
            last_number: 0,
            budgets: HashMap::new(),
            due: BTreeSet::new(),
            dirty: BTreeSet::new(),
        }
    }

    /// Creates the view of a cluster, or changes its slice.
    pub fn put(
        &mut self,
        now: Duration,
        ViewOwner { cluster, tenant }: ViewOwner,
        slice: Slice,
        names: Names,
        nodes: BTreeMap<u32, String>,
    ) -> Result<(), ViewError> {
        if let Some(number) = self.numbers.get(&cluster).copied()
            && let Some(served) = self.served.get_mut(&number)
        {
            served.nodes = nodes;
            self.dirty.insert(number);
            return served.view.set_slice(now, slice);
        }
        let mut view = View::new(slice, names)?;
        // Subnet managers choose routes over links on which the cluster has no bandwidth.
        view.set_ungranted_routes(UngrantedRoutes::KeepDefault);
        self.last_number += 1;
        self.numbers.insert(cluster, self.last_number);
        self.budgets.entry(tenant).or_default();
        self.served.insert(self.last_number, ServedView { cluster, tenant, view, nodes, due: None });
        self.dirty.insert(self.last_number);
        Ok(())
    }

    /// Removes the view of a cluster, and closes its streams.
    pub fn remove(&mut self, cluster: Uuid) {
        let Some(number) = self.numbers.remove(&cluster) else { return };
        let Some(served) = self.served.remove(&number) else { return };
        if let Some(due) = served.due {
            self.due.remove(&(due, number));
        }
        if self.served.values().all(|other| other.tenant != served.tenant) {
            self.budgets.remove(&served.tenant);
        }
    }

    /// Status of the view of a cluster, if it has one.
    pub fn summary(&self, cluster: Uuid) -> Option<ViewSummary> {
        let view = &self.served.get(self.numbers.get(&cluster)?)?.view;
        let (aliases, classes) = (view.aliases(), view.wire_classes().to_vec());
        Some(ViewSummary { status: view.status(), aliases, wire: view.wire_parameters(), classes })
    }

    /// Calls `act` on the view of a cluster, if it has one.
    pub fn with(&mut self, cluster: Uuid, act: impl FnOnce(&mut View)) {
        let number = self.numbers.get(&cluster);
        if let Some((number, served)) =
            number.and_then(|number| Some((*number, self.served.get_mut(number)?)))
        {
            act(&mut served.view);
            self.dirty.insert(number);
        }
    }

    fn view(&self, adapter: AdapterRef) -> Option<(&View, AdapterId)> {
        let served = self.served.get(&adapter.view)?;
        Some((&served.view, adapter.adapter))
    }

    fn now(&self, outbox: &Outbox<AdapterRef>) -> Duration {
        outbox.now().duration_since(self.started)
    }

    /// Forwards the output of a view to its streams, and schedules its next deadline.
    fn forward_output(&mut self, number: u32, outbox: &mut Outbox<AdapterRef>) {
        let Some(served) = self.served.get_mut(&number) else { return };
        let mut delivered = 0_usize;
        while let Some(output) = served.view.poll_output() {
            delivered += 1;
            match output {
                ViewOutput::Deliver { adapter, mut datagram } => {
                    if datagram.mad.class() == ManagementClass::SUBNET_DIRECTED {
                        // The hop pointer is between agents; clients of ibsim see and send 0.
                        datagram.mad.set_hop_pointer(0);
                    }
                    outbox.deliver(AdapterRef { view: number, adapter }, datagram);
                }
                ViewOutput::Lost { datagram, .. } => outbox.report_lost_request(datagram),
            }
        }
        // The request has paid for one answer.
        if let Some(budget) = self.budgets.get_mut(&served.tenant) {
            budget.charge(delivered.saturating_sub(1));
        }
        if let Some(change) = served.view.poll_overlay() {
            self.overlay_queue.put(served.cluster, change);
        }
        let due = served.view.poll_timeout();
        if due != served.due {
            if let Some(before) = std::mem::replace(&mut served.due, due) {
                self.due.remove(&(before, number));
            }
            self.due.extend(due.map(|due| (due, number)));
        }
    }
}

impl FabricBackend for ViewServer {
    type Port = AdapterRef;

    fn find_port(&self, node_id: &str) -> Option<AdapterRef> {
        let (cluster, node) = node_id.split_once('/')?;
        let view = *self.numbers.get(&cluster.parse().ok()?)?;
        let served = self.served.get(&view)?;
        let adapter = served.view.adapter(served.nodes.get(&node.parse().ok()?)?)?;
        Some(AdapterRef { view, adapter })
    }

    fn node_id(&self, port: AdapterRef) -> String {
        let id = self.view(port).and_then(|(view, at)| Some(view.fabric().id_of(view.port(at)?).to_owned()));
        id.unwrap_or_default()
    }

    fn vendor(&self, _port: AdapterRef) -> Vendor {
        Vendor::default()
    }

    fn node_info(&self, port: AdapterRef) -> [u8; 64] {
        let info = self.view(port).and_then(|(view, at)| Some(view.fabric().node_info_of(view.port(at)?)));
        info.unwrap_or([0; 64])
    }

    fn port_info(&self, port: AdapterRef, number: u8) -> Option<[u8; 64]> {
        self.view(port).and_then(|(view, at)| view.fabric().port_info_of(view.port(at)?, number))
    }

    fn pkeys(&self, port: AdapterRef) -> [u8; 64] {
        let keys = self.view(port).and_then(|(view, at)| Some(view.fabric().pkeys_of(view.port(at)?)));
        keys.unwrap_or([0; 64])
    }

    fn port_state(&self, port: AdapterRef) -> (Option<Lid>, PortState) {
        let state = self.view(port).and_then(|(view, at)| {
            let (fabric, port) = (view.fabric(), view.port(at)?);
            Some((fabric.lid(port), fabric.state_of(port)))
        });
        state.unwrap_or((None, PortState::Down))
    }

    fn port_guid(&self, port: AdapterRef) -> Guid {
        let guid = self.view(port).and_then(|(view, at)| Some(view.fabric().guid_of(view.port(at)?)));
        guid.unwrap_or(NOBODY)
    }

    fn port_gid(&self, port: AdapterRef) -> Gid {
        let gid = self.view(port).and_then(|(view, at)| Some(view.fabric().gid_of(view.port(at)?)));
        gid.unwrap_or_default()
    }

    fn set_is_sm(&mut self, port: AdapterRef, on: bool) {
        let now = self.started.elapsed();
        if let Some(served) = self.served.get_mut(&port.view) {
            served.view.set_is_sm(now, port.adapter, on);
            self.dirty.insert(port.view);
        }
    }

    fn handle(&mut self, from: AdapterRef, sent: ClientDatagram, outbox: &mut Outbox<AdapterRef>) {
        let now = self.now(outbox);
        // The socket accepts no other kind.
        let ClientDatagram::Framed { client, datagram } = sent else { return };
        let taken = match self.served.get_mut(&from.view) {
            Some(served) if self.budgets.get_mut(&served.tenant).is_some_and(|budget| budget.take(now)) => {
                served.view.handle_datagram(now, from.adapter, datagram.clone()).is_ok()
            }
            _ => false,
        };
        if !taken {
            outbox.report_lost(client, datagram);
        }
        self.forward_output(from.view, outbox);
    }

    fn may_attach(&self, port: AdapterRef, taken: &mut dyn Iterator<Item = AdapterRef>) -> bool {
        let Some(served) = self.served.get(&port.view) else { return false };
        let (mut of_cluster, mut of_tenant) = (0, 0);
        for other in taken {
            of_cluster += usize::from(other.view == port.view);
            let is_same = self.served.get(&other.view).is_some_and(|other| other.tenant == served.tenant);
            of_tenant += usize::from(is_same);
        }
        let own = self.served.values().filter(|other| other.tenant == served.tenant);
        let nodes: usize = own.map(|served| served.nodes.len()).sum();
        of_cluster < served.nodes.len() + CLUSTER_STREAMS_MAX && of_tenant < nodes + TENANT_STREAMS_MAX
    }

    fn port_exists(&self, port: AdapterRef) -> bool {
        self.served.contains_key(&port.view)
    }

    fn charge(&mut self, port: AdapterRef) {
        let now = self.started.elapsed();
        let Some(served) = self.served.get(&port.view) else { return };
        if let Some(budget) = self.budgets.get_mut(&served.tenant) {
            budget.take(now);
        }
    }

    fn paused_until(&self, port: AdapterRef) -> Option<Instant> {
        let served = self.served.get(&port.view)?;
        let of_tenant = self.budgets.get(&served.tenant).and_then(TokenBucket::empty_until);
        Some(self.started + served.view.paused_until().max(of_tenant)?)
    }

    fn tick(&mut self, outbox: &mut Outbox<AdapterRef>) -> Option<Duration> {
        let now = self.now(outbox);
        while let Ok(task) = self.tasks.try_recv() {
            task(self, now);
        }
        let mut touched = std::mem::take(&mut self.dirty);
        touched.extend(self.due.iter().take_while(|(due, _)| *due <= now).map(|(_, number)| *number));
        for number in touched {
            if let Some(served) = self.served.get_mut(&number) {
                served.view.handle_timeout(now);
            }
            self.forward_output(number, outbox);
        }
        self.due.first().map(|(due, _)| due.saturating_sub(now))
    }
}

/// Port GUID of an adapter whose view is gone.
const NOBODY: Guid = match Guid::from_wire(u64::MAX) {
    Some(guid) => guid,
    None => unreachable!(),
};

#[cfg(test)]
mod tests {
    use fabric_compiler::compile;
    use fabric_model::generate::FatTree;
    use fabric_model::{Decisions, Intents};
    use ib_wire::{Attribute, Datagram, DirectedRoute, LidAddress, Mad, Method, PartitionNumber};
    use tenant_view::{ClusterPlacement, NodePlacement, ViewShape};

    use super::*;

    fn slice(name: &str) -> Slice {
        let topology = FatTree::with_hosts(2).generate().unwrap();
        let ports: Vec<Guid> =
            topology.end_nodes().map(|(_, host)| host.ports().next().unwrap().1.guid).collect();
        let plan = compile(&topology, &Intents::new(ports[0]), &Decisions::default()).unwrap();
        let seat = NodePlacement { node: "1".to_owned(), port: ports[1], shared: false, guid: None };
        let partition = PartitionNumber::from_wire(0x123).unwrap();
        let cluster = ClusterPlacement { name: name.to_owned(), partition, nodes: vec![seat] };
        Slice::of(&topology, &plan, &cluster, ViewShape::Network).unwrap()
    }

    /// A view server with one cluster for each tenant listed, and the adapter of each cluster.
    fn server(tenants: &[u128]) -> (ViewServer, Vec<AdapterRef>) {
        let (_, tasks) = std::sync::mpsc::channel();
        let mut server = ViewServer::new(tasks, Arc::default());
        let mut adapters = Vec::new();
        for (number, tenant) in (1..).zip(tenants) {
            let cluster = Uuid::from_u128(number);
            let nodes = BTreeMap::from([(1, "1".to_owned())]);
            let owner = ViewOwner { cluster, tenant: Uuid::from_u128(*tenant) };
            server.put(NOW, owner, slice(&cluster.to_string()), Names::default(), nodes).unwrap();
            adapters.push(server.find_port(&format!("{cluster}/1")).expect("its node"));
        }
        (server, adapters)
    }

    const NOW: Duration = Duration::from_secs(1);
    const BLUE: u128 = 0xb;
    const RED: u128 = 0xa;

    #[test]
    fn only_a_flooding_tenant_is_paused() {
        let (mut server, adapters) = server(&[BLUE, RED]);
        let [flooded, other] = adapters[..] else { panic!("two") };
        assert_eq!((server.paused_until(flooded), server.paused_until(other)), (None, None));
        let mad = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &DirectedRoute::default());
        let get = Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad);
        server.with(Uuid::from_u128(1), |view| {
            while view.handle_datagram(NOW, flooded.adapter, get.clone()).is_ok() {
                while view.poll_output().is_some() {}
            }
        });
        assert!(server.paused_until(flooded).is_some_and(|until| until > server.started + NOW));
        assert_eq!(server.paused_until(other), None);
    }

    #[test]
    fn all_clusters_of_a_tenant_share_one_rate() {
        let (mut server, adapters) = server(&[BLUE, BLUE, RED]);
        let [flooded, same, other] = adapters[..] else { panic!("three") };
        let mut requests = 0_u32;
        while server.paused_until(flooded).is_none() {
            server.charge(flooded);
            requests += 1;
            assert!(requests < 1 << 24, "requests are not counted");
        }
        assert!(server.paused_until(same).is_some(), "another cluster of the same tenant");
        assert_eq!(server.paused_until(other), None);
    }

    #[test]
    fn streams_of_one_tenant_leave_slots_to_others() {
        let (server, adapters) = server(&[BLUE, BLUE, BLUE, BLUE, BLUE, BLUE, RED]);
        let (red, blue) = adapters.split_last().unwrap();
        let mut taken = Vec::new();
        for adapter in blue {
            while server.may_attach(*adapter, &mut taken.iter().copied()) {
                taken.push(*adapter);
                assert!(taken.len() < ib_transport::CLIENTS_MAX / 2, "one tenant takes all slots");
            }
        }
        assert_eq!(taken.iter().filter(|adapter| *adapter == &blue[0]).count(), 1 + CLUSTER_STREAMS_MAX);
        assert_eq!(taken.len(), blue.len() + TENANT_STREAMS_MAX);
        assert!(server.may_attach(*red, &mut taken.iter().copied()));
    }

    #[test]
    fn streams_end_with_their_cluster() {
        let (mut server, adapters) = server(&[BLUE, RED]);
        server.remove(Uuid::from_u128(1));
        assert!(!server.port_exists(adapters[0]) && server.port_exists(adapters[1]));
        assert_eq!(server.budgets.len(), 1);
    }
}
