//! A controller with a fake subnet manager and fake agents, without virtual machines.
#![allow(dead_code, reason = "not every test needs all of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod http;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path as UrlPath, Query, State};
use axum::http::StatusCode;
use axum::{Json, Router, routing};
use control_protocol::sm::EntryLack;
use controller::Clock;
use controller_api::agent::{
    Accelerator, HostReport, HostSpec, NetworkCheck, OTHER_SITE, ResourceUse, STALE_SPEC, UnlistedVmDetails,
    VmReport, VmSpec, VmState,
};
use controller_api::cluster::{CpuMode, NewCluster, PacketStop};
use controller_api::host::NewHost;
use controller_api::image::NewImage;
use controller_api::operation::{Operation, OperationState};
use controller_api::tenant::{IssuedToken, NewToken, TokenLifetime};
use controller_api::{ApiClient, ClusterRef, ControllerAddress, MemorySize, Name, Problem, TrustedUsers};
use fabric_model::generate::FatTree;
use fabric_model::intent::Capabilities;
use fabric_model::{FabricPlan, Topology, ibnetdiscover};
use ib_wire::{Guid, PartitionNumber};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use uuid::Uuid;

/// Longest wait for any condition before a test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// Request for a cluster of nodes with one core each.
pub fn new_cluster(name: &str, size: u32) -> NewCluster {
    NewCluster {
        name: name.parse().unwrap(),
        size,
        cores: 1,
        memory: MemorySize::from_mib(384),
        class: Default::default(),
        sl_mode: Default::default(),
        adapter: None,
        partitions: Vec::new(),
        mode: CpuMode::Shared,
        image: "debian-mpi".parse().unwrap(),
        ssh_keys: Vec::new(),
        tenant: None,
    }
}

/// Reference to a cluster of the caller.
pub fn by_name(name: &str) -> ClusterRef {
    ClusterRef { name: name.parse().unwrap(), tenant: None }
}

/// Reaction of fake agents to a spec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conduct {
    #[default]
    Obeys,
    /// Follow the spec without answering.
    TakesAndIsSilent,
    /// Neither follow the spec nor answer.
    IsSilent,
}

/// State of the fake subnet manager and the fake agents.
#[derive(Default)]
pub struct World {
    /// Last programmed plan.
    pub plan: Option<FabricPlan>,
    /// Last spec of each host.
    pub specs: BTreeMap<String, HostSpec>,
    /// Members of the partitions of clusters.
    pub members: BTreeSet<(PartitionNumber, Guid)>,
    /// P_Keys of all virtual machines that ever ran.
    pub ran: BTreeMap<Uuid, u16>,
    /// Virtual machines that ran while their port was not in their partition.
    pub unsafe_vms: Vec<Uuid>,
    /// Capabilities of the devices, as the subnet manager reports them.
    pub capabilities: Capabilities,
    /// What devices did not take, as the subnet manager reports it.
    pub lacks: Vec<EntryLack>,
    /// The subnet manager accepts connections and answers nothing.
    pub manager_hangs: bool,
    /// Hosts whose agents accept connections and answer nothing.
    pub silent: BTreeSet<String>,
    /// Reason with which virtual machines fail.
    pub failure: Option<String>,
    /// Result of the network check that guests report.
    pub network: Option<NetworkCheck>,
    pub stop: Option<PacketStop>,
    pub conduct: Conduct,
    /// Virtual machines that a spec has removed; they are never started again.
    pub removed: BTreeSet<Uuid>,
    /// Running virtual machines with their hosts.
    pub vms: BTreeMap<Uuid, (String, VmSpec)>,
    number: u64,
}

pub type SharedWorld = Arc<Mutex<World>>;

/// A controller with a fake subnet manager and fake agents.
pub struct Site {
    pub directory: tempfile::TempDir,
    pub world: SharedWorld,
    /// Control sockets of the subnet managers.
    managers: Vec<PathBuf>,
    fakes: Runtime,
    controller: Option<Runtime>,
    clock: Arc<dyn Clock>,
    pub hosts: Vec<Name>,
}

impl Site {
    /// A site with `hosts` hosts on a fat tree.
    pub fn new(hosts: usize) -> Self {
        Self::with_store(hosts, tempfile::tempdir().unwrap(), controller::SystemClock::start())
    }

    /// A site with a clock that the test sets.
    pub fn with_clock(hosts: usize, clock: Arc<dyn Clock>) -> Self {
        Self::with_store(hosts, tempfile::tempdir().unwrap(), clock)
    }

    /// A site in a directory that may hold a store.
    pub fn with_store(hosts: usize, directory: tempfile::TempDir, clock: Arc<dyn Clock>) -> Self {
        let tree = FatTree { radix: 8, ..FatTree::with_hosts(hosts as u32) }.generate().unwrap();
        Self::on_fabric(tree, directory, clock)
    }

    /// A site on a fabric; all adapters belong to hosts.
    pub fn on(fabric: Topology) -> Self {
        Self::on_fabric(fabric, tempfile::tempdir().unwrap(), controller::SystemClock::start())
    }

    fn on_fabric(tree: Topology, directory: tempfile::TempDir, clock: Arc<dyn Clock>) -> Self {
        let (world, fakes) = (SharedWorld::default(), Runtime::new().unwrap());
        let names = tree.end_nodes().map(|(_, node)| node.description.parse().unwrap()).collect();
        let path = directory.path().join("sm");
        {
            let _inside = fakes.enter();
            let manager = UnixListener::bind(&path).unwrap();
            fakes.spawn(serve_manager(manager, Arc::new(tree), Arc::clone(&world)));
        }
        Self::with(directory, world, fakes, vec![path], names, clock)
    }

    /// A site on a fabric that has a subnet manager already.
    pub fn managed_by(manager: PathBuf, hosts: Vec<Name>) -> Self {
        Self::managed_by_one_of(vec![manager], hosts)
    }

    /// The same with several, one of which is the master.
    pub fn managed_by_one_of(managers: Vec<PathBuf>, hosts: Vec<Name>) -> Self {
        let clock = controller::SystemClock::start();
        Self::with(
            tempfile::tempdir().unwrap(),
            SharedWorld::default(),
            Runtime::new().unwrap(),
            managers,
            hosts,
            clock,
        )
    }

    fn with(
        directory: tempfile::TempDir,
        world: SharedWorld,
        fakes: Runtime,
        managers: Vec<PathBuf>,
        hosts: Vec<Name>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        {
            let _inside = fakes.enter();
            let agent = UnixListener::bind(directory.path().join("agent")).unwrap();
            fakes.spawn(serve_agent(agent, Arc::clone(&world)));
        }
        let mut site = Self { directory, world, managers, fakes, controller: None, clock, hosts };
        site.start();
        site.prepare();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Settings of the controller.
    pub fn settings(&self) -> controller::ControllerSettings {
        controller::ControllerSettings {
            hardware: Default::default(),
            database: self.path("store"),
            socket: self.path("api/heddle.sock"),
            listen: Some("127.0.0.1:0".parse().unwrap()),
            sm_controls: self.managers.clone(),
            // A controller that is killed here closes its socket a moment later.
            view_socket: self.path(&format!("views-{}", Uuid::new_v4().simple())),
            key_file: self.path("store.key"),
            operator_token_file: self.path("token"),
            address_file: self.path("endpoint"),
            best_effort_percent: 0,
            clock: self.clock.clone(),
        }
    }

    pub fn start(&mut self) {
        let (runtime, settings) = (Runtime::new().unwrap(), self.settings());
        let _ = std::fs::remove_file(&settings.socket);
        runtime.spawn(async {
            controller::serve(settings, std::future::pending()).await.expect("the controller serves");
        });
        self.controller = Some(runtime);
    }

    /// Ends the controller at an arbitrary point.
    pub fn kill(&mut self) {
        self.controller.take().unwrap().shutdown_background();
        self.wait_until_closed();
    }

    /// Ends the controller, and waits for its end.
    pub fn stop(&mut self) {
        self.controller.take().unwrap().shutdown_timeout(PATIENCE);
        self.wait_until_closed();
    }

    /// Waits until the store is closed. A real process closes it when it ends; here, tasks and the threads of SQLite,
    /// which checkpoint the file when they close it, end a moment later.
    fn wait_until_closed(&self) {
        let files = self.store_files();
        let is_of_store = |entry: std::fs::DirEntry| {
            let open = std::fs::read_link(entry.path()).unwrap_or_default();
            let open = open.to_string_lossy();
            let path = Path::new(open.strip_suffix(" (deleted)").unwrap_or(&open));
            files.iter().any(|file| file == path)
        };
        eventually("the store is closed", || {
            !std::fs::read_dir("/proc/self/fd").unwrap().flatten().any(is_of_store)
        });
        let lock = std::fs::File::open(self.path("store.lock")).unwrap();
        eventually("the lock is released", || lock.try_lock().is_ok());
    }

    /// Files of the store, including those that SQLite creates.
    pub fn store_files(&self) -> Vec<PathBuf> {
        ["store", "store-wal", "store-shm"].map(|name| self.path(name)).into()
    }

    /// The error with which the controller fails to start.
    pub fn refusal_to_start(&self) -> String {
        let served = controller::serve(self.settings(), std::future::pending());
        let served = self.ask(async { tokio::time::timeout(PATIENCE, served).await });
        format!("{:#}", served.expect("it does not serve").unwrap_err())
    }

    /// A client with this token.
    pub fn client(&self, token: String) -> ApiClient {
        eventually("the controller listens", || self.socket().exists());
        ApiClient::new(self.controller_address(), TrustedUsers::new(None), token)
    }

    pub fn controller_address(&self) -> ControllerAddress {
        ControllerAddress::Unix(self.socket())
    }

    /// Unix socket of the REST interface.
    pub fn socket(&self) -> PathBuf {
        self.path("api/heddle.sock")
    }

    /// TCP address of the REST interface.
    pub fn address(&self) -> String {
        let endpoint = std::fs::read_to_string(self.path("endpoint")).unwrap();
        endpoint.trim().strip_prefix("http://").unwrap().to_owned()
    }

    /// A client with the operator token.
    pub fn operator(&self) -> ApiClient {
        self.client(self.operator_token())
    }

    pub fn operator_token(&self) -> String {
        let token = self.path("token");
        eventually("there is a token", || token.exists());
        std::fs::read_to_string(token).unwrap().trim().to_owned()
    }

    /// Runs a request to completion.
    pub fn ask<T>(&self, question: impl Future<Output = T>) -> T {
        self.fakes.block_on(question)
    }

    /// Adds the hosts and an image, and waits until they are usable.
    pub fn prepare(&self) {
        let operator = self.operator();
        for name in &self.hosts {
            let host = NewHost {
                name: name.clone(),
                port_guid: None,
                agent: self.path("agent").display().to_string(),
                cores: 4,
                memory: MemorySize::from_mib(4096),
            };
            self.ask(operator.host_add(&host)).unwrap();
        }
        self.ask(operator.image_add(&image(self.directory.path()))).unwrap();
        eventually("hosts are up", || {
            let hosts = self.ask(operator.host_list()).unwrap();
            hosts.iter().all(|host| host.state == controller_api::host::HostState::Up)
        });
        eventually("the fabric is programmed", || {
            self.ask(operator.fabric_show()).unwrap().state == controller_api::fabric::FabricState::Programmed
        });
    }

    /// Creates a tenant; returns its client.
    pub fn tenant(&self, name: &str) -> ApiClient {
        self.client(self.tenant_token(name))
    }

    /// Creates a tenant; returns its token.
    pub fn tenant_token(&self, name: &str) -> String {
        let operator = self.operator();
        let tenant: Name = name.parse().unwrap();
        self.ask(
            operator.tenant_create(&controller_api::tenant::NewTenant {
                name: tenant,
                quota: Default::default(),
            }),
        )
        .unwrap();
        self.token_of(name)
    }

    /// A new token of a tenant.
    pub fn token_of(&self, tenant: &str) -> String {
        self.issue(tenant, TokenLifetime::DEFAULT).secret
    }

    /// A revoked token of a tenant.
    pub fn revoked_token(&self, tenant: &str) -> String {
        let issued = self.issue(tenant, TokenLifetime::DEFAULT);
        self.ask(self.operator().token_revoke(issued.token.id)).unwrap();
        issued.secret
    }

    /// An expired token of a tenant.
    pub fn expired_token(&self, tenant: &str) -> String {
        let issued = self.issue(tenant, TokenLifetime::Seconds(1));
        let client = self.client(issued.secret.clone());
        eventually("the token has expired", || self.ask(client.cluster_list()).is_err());
        issued.secret
    }

    /// A new token of a tenant, with its lifetime.
    pub fn issue(&self, tenant: &str, lifetime: TokenLifetime) -> IssuedToken {
        let new = NewToken { tenant: Some(tenant.parse().unwrap()), lifetime, ..NewToken::default() };
        self.ask(self.operator().token_create(&new)).unwrap()
    }

    /// Waits until an operation has ended.
    pub fn wait(&self, client: &ApiClient, operation: &Operation) -> Operation {
        let mut last = operation.clone();
        eventually("the operation ends", || {
            last = self.ask(client.operation_show(operation.id)).unwrap();
            last.state != OperationState::Running
        });
        last
    }
}

/// Whether a stream stays open for a while; discards its bytes.
pub async fn stays_open(stream: &mut controller_api::Upgraded) -> bool {
    use tokio::io::AsyncReadExt as _;
    loop {
        match tokio::time::timeout(Duration::from_millis(500), stream.read(&mut [0; 4096])).await {
            Err(_) => return true,
            Ok(Ok(0) | Err(_)) => return false,
            Ok(Ok(_)) => {}
        }
    }
}

/// Waits until a condition holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An image that consists of its manifest only.
pub fn image(directory: &Path) -> NewImage {
    let file = json!({ "file": "x", "sha256": "00" });
    let manifest =
        json!({ "root": file, "root_format": "raw", "kernel": file, "initrd": file, "command_line": "" });
    let text = serde_json::to_vec(&manifest).unwrap();
    std::fs::write(directory.join("image.json"), &text).unwrap();
    NewImage {
        name: "debian-mpi".parse().unwrap(),
        directory: directory.display().to_string(),
        digest: Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

async fn serve_manager(listener: UnixListener, tree: Arc<Topology>, world: SharedWorld) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(manage(stream, Arc::clone(&tree), Arc::clone(&world)));
    }
}

async fn manage(stream: UnixStream, tree: Arc<Topology>, world: SharedWorld) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let Some(line) = lines.next_line().await? else { return Ok(()) };
    let mut request: Value = serde_json::from_str(&line).unwrap();
    if request["command"] == "watch" {
        let manager = tree.end_nodes().next().unwrap().1.ports().next().unwrap().1.guid;
        let topology = ibnetdiscover::write(&tree);
        let mut last = None;
        loop {
            let (capabilities, lacks) = {
                let world = world.lock().unwrap();
                (world.capabilities.clone(), world.lacks.clone())
            };
            if last.as_ref() != Some(&capabilities) {
                let event = json!({
                    "event": "discovered", "manager": manager, "topology": topology, "capabilities": capabilities,
                    "lacks": lacks,
                });
                write.write_all(format!("{}\n", json!({ "ok": event })).as_bytes()).await?;
                last = Some(capabilities);
            }
            if let Ok(line) = tokio::time::timeout(Duration::from_millis(20), lines.next_line()).await {
                return line.map(drop);
            }
        }
    }
    if request["command"] == "ping" {
        let hangs = world.lock().unwrap().manager_hangs;
        if hangs {
            std::future::pending::<()>().await;
        }
        return write.write_all(b"{\"ok\":\"pong\"}\n").await;
    }
    if request["command"] == "read-back" {
        // The fake devices match the plan at once.
        let held = world.lock().unwrap().plan.clone();
        return write.write_all(format!("{}\n", json!({ "ok": held })).as_bytes()).await;
    }
    let plan: FabricPlan = serde_json::from_value(request["plan"].take()).unwrap();
    {
        let mut world = world.lock().unwrap();
        world.plan = Some(plan.clone());
        world.members = plan
            .partitions()
            .filter(|partition| partition.number != PartitionNumber::DEFAULT)
            .flat_map(|partition| partition.members.keys().map(|port| (partition.number, *port)))
            .collect();
        world.look();
    }
    write.write_all(b"{\"ok\":\"up\"}\n").await
}

async fn serve_agent(listener: UnixListener, world: SharedWorld) {
    let router = Router::new().route("/v1/hosts/{host}", routing::put(take_spec).get(tell)).with_state(world);
    axum::serve(listener, router).await.unwrap();
}

/// An agent that hangs answers later.
async fn wait_while_silent(world: &SharedWorld, host: &str) {
    while world.lock().unwrap().silent.contains(host) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn take_spec(
    State(world): State<SharedWorld>,
    UrlPath(host): UrlPath<String>,
    Json(spec): Json<HostSpec>,
) -> Result<StatusCode, (StatusCode, Json<Box<Problem>>)> {
    wait_while_silent(&world, &host).await;
    let conduct = world.lock().unwrap().conduct;
    if conduct != Conduct::IsSilent {
        let taken = world.lock().unwrap().take(host, spec)?;
        if conduct == Conduct::Obeys {
            return Ok(taken);
        }
    }
    // The answer never comes; in the end the connection breaks.
    while world.lock().unwrap().conduct != Conduct::Obeys {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err((StatusCode::SERVICE_UNAVAILABLE, Json(Box::new(refusal("gone")))))
}

fn refusal(kind: &str) -> Problem {
    Problem {
        kind: kind.to_owned(),
        title: "refused".to_owned(),
        status: 409,
        detail: None,
        field: None,
        hint: None,
    }
}

async fn tell(
    State(world): State<SharedWorld>,
    UrlPath(host): UrlPath<String>,
    Query(query): Query<HashMap<String, u64>>,
) -> Json<HostReport> {
    wait_while_silent(&world, &host).await;
    let after = query.get("after").copied().unwrap_or(0);
    for _ in 0..200 {
        {
            let world = world.lock().unwrap();
            if world.number + 1 > after {
                return Json(world.report(&host));
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Json(world.lock().unwrap().report(&host))
}

impl World {
    /// Changes what agents report.
    pub fn change(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        self.number += 1;
    }

    /// Accepts a spec like an agent: only a newer one of the same site; removes only what it lists as removed.
    fn take(&mut self, host: String, spec: HostSpec) -> Result<StatusCode, (StatusCode, Json<Box<Problem>>)> {
        let refused = |kind: &str| Err((StatusCode::CONFLICT, Json(Box::new(refusal(kind)))));
        if let Some(kept) = self.specs.get(&host).map(|kept| kept.version) {
            if kept.site != spec.version.site {
                return refused(OTHER_SITE);
            }
            if spec.version.precedence() < kept.precedence() {
                return refused(STALE_SPEC);
            }
        }
        for vm in spec.vms.iter().filter(|vm| !self.removed.contains(&vm.id)) {
            self.ran.insert(vm.id, u16::from(vm.adapter.pkey));
            self.vms.insert(vm.id, (host.clone(), vm.clone()));
        }
        self.vms.retain(|id, _| !spec.removed.contains(id));
        self.removed.extend(&spec.removed);
        self.specs.insert(host, spec);
        self.number += 1;
        self.look();
        Ok(StatusCode::NO_CONTENT)
    }

    fn report(&self, host: &str) -> HostReport {
        let kept = self.specs.get(host);
        let is_listed = |id: Uuid| kept.is_some_and(|kept| kept.vms.iter().any(|vm| vm.id == id));
        let vm = |order: &VmSpec| VmReport {
            id: order.id,
            state: if self.failure.is_some() { VmState::Failed } else { VmState::Running },
            ready: self.failure.is_none().then_some(order.context.generation),
            reason: self.failure.clone(),
            pinned: Vec::new(),
            network: self.network,
            stop: self.stop.clone(),
            unlisted: (!is_listed(order.id)).then(|| UnlistedVmDetails {
                label: order.label.clone(),
                partitions: order.adapter.partitions().collect(),
            }),
        };
        let vms = self.vms.values().filter(|(at, _)| at == host).map(|(_, order)| vm(order));
        let refused = kept.into_iter().flat_map(|kept| &kept.vms).filter(|vm| self.removed.contains(&vm.id));
        let refused = refused.map(|order| VmReport {
            state: VmState::Failed,
            ready: None,
            reason: Some("it was removed by an earlier spec".to_owned()),
            ..vm(order)
        });
        HostReport {
            number: self.number + 1,
            acknowledged: kept.map(|kept| kept.version),
            cores: ResourceUse { total: 1, used: 0 },
            memory_mib: ResourceUse { total: 65_536, used: 0 },
            accelerator: Some(Accelerator::Tcg),
            fabric: true,
            vms: vms.chain(refused).collect(),
        }
    }

    /// Records virtual machines that run outside their partition.
    fn look(&mut self) {
        let running = self.vms.values().map(|(_, vm)| vm);
        let outside = running.filter(|vm| {
            let partition = PartitionNumber::from_wire(u16::from(vm.adapter.pkey) & 0x7fff).unwrap();
            !self.members.contains(&(partition, vm.adapter.port_guid))
        });
        self.unsafe_vms.extend(outside.map(|vm| vm.id).collect::<Vec<_>>());
    }
}
