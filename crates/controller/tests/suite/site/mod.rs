//! A whole site but for virtual machines: a controller, a subnet manager and agents that do what they are told.
#![allow(dead_code, reason = "not every test needs all of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up its world has failed")]

pub mod http;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path as UrlPath, Query, State};
use axum::http::StatusCode;
use axum::{Json, Router, routing};
use controller::Clock;
use controller_api::agent::{
    Accelerator, HostReport, HostSpec, NetworkCheck, OTHER_SITE, PacketStop, ResourceUse, STALE_SPEC,
    UnlistedVmDetails, VmReport, VmSpec, VmState,
};
use controller_api::cluster::{CpuMode, NewCluster};
use controller_api::host::NewHost;
use controller_api::image::NewImage;
use controller_api::operation::{Operation, OperationState};
use controller_api::tenant::{IssuedToken, NewToken, TokenLifetime};
use controller_api::{ApiClient, ClusterRef, ControllerAddress, MemorySize, Name, Problem, TrustedUsers};
use fabric_model::generate::FatTree;
use fabric_model::{FabricPlan, Topology, ibnetdiscover};
use ib_wire::{Guid, PartitionNumber};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use uuid::Uuid;

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// A cluster of nodes with one core each.
pub fn new_cluster(name: &str, size: u32) -> NewCluster {
    NewCluster {
        name: name.parse().unwrap(),
        size,
        cores: 1,
        memory: MemorySize::from_mib(384),
        class: Default::default(),
        sl_mode: Default::default(),
        partitions: Vec::new(),
        mode: CpuMode::Shared,
        image: "debian-mpi".parse().unwrap(),
        ssh_keys: Vec::new(),
        tenant: None,
    }
}

/// A cluster of the caller's.
pub fn by_name(name: &str) -> ClusterRef {
    ClusterRef { name: name.parse().unwrap(), tenant: None }
}

/// How agents treat orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conduct {
    /// They follow them.
    #[default]
    Obeys,
    /// They follow them, but nobody hears of it.
    TakesAndIsSilent,
    /// They neither follow nor answer.
    IsSilent,
}

/// What the fakes know.
#[derive(Default)]
pub struct World {
    /// What the fabric was last made equal to.
    pub plan: Option<FabricPlan>,
    /// What hosts were told to run.
    pub orders: BTreeMap<String, HostSpec>,
    /// Who is in which partition of a cluster.
    pub members: BTreeSet<(PartitionNumber, Guid)>,
    /// Every virtual machine that ever ran, with the partition key it was given.
    pub ran: BTreeMap<Uuid, u16>,
    /// Virtual machines that ran while their port was not in their partition.
    pub unsafe_vms: Vec<Uuid>,
    /// The subnet manager takes connections and answers nobody.
    pub manager_hangs: bool,
    /// Agents of these hosts take connections and answer nobody.
    pub silent: BTreeSet<String>,
    /// What virtual machines are to fail with.
    pub failure: Option<String>,
    /// What guests say of their network.
    pub network: Option<NetworkCheck>,
    /// Where packets stop.
    pub stop: Option<PacketStop>,
    /// How agents treat orders.
    pub conduct: Conduct,
    /// Virtual machines that agents were told to remove: they are not started again.
    pub removed: BTreeSet<Uuid>,
    /// Virtual machines that agents run: those that were ordered and not removed.
    pub vms: BTreeMap<Uuid, (String, VmSpec)>,
    number: u64,
}

pub type Shared = Arc<Mutex<World>>;

/// A site.
pub struct Site {
    pub directory: tempfile::TempDir,
    pub world: Shared,
    /// Where the subnet manager takes commands.
    manager: PathBuf,
    fakes: Runtime,
    controller: Option<Runtime>,
    clock: Arc<dyn Clock>,
    pub hosts: Vec<Name>,
}

impl Site {
    /// A site with a fat-tree of hosts.
    pub fn new(hosts: usize) -> Self {
        Self::with_store(hosts, tempfile::tempdir().unwrap(), controller::SystemClock::start())
    }

    /// A site whose clock is a test's.
    pub fn with_clock(hosts: usize, clock: Arc<dyn Clock>) -> Self {
        Self::with_store(hosts, tempfile::tempdir().unwrap(), clock)
    }

    /// A site in a directory that may hold a store already.
    pub fn with_store(hosts: usize, directory: tempfile::TempDir, clock: Arc<dyn Clock>) -> Self {
        let (world, fakes) = (Shared::default(), Runtime::new().unwrap());
        let tree = FatTree { radix: 8, ..FatTree::with_hosts(hosts as u32) }.generate().unwrap();
        let names = tree.end_nodes().map(|(_, node)| node.description.parse().unwrap()).collect();
        let path = directory.path().join("sm");
        {
            let _inside = fakes.enter();
            let manager = UnixListener::bind(&path).unwrap();
            fakes.spawn(serve_manager(manager, Arc::new(tree), Arc::clone(&world)));
        }
        Self::with(directory, world, fakes, path, names, clock)
    }

    /// A site on a fabric that has a subnet manager already.
    pub fn managed_by(manager: PathBuf, hosts: Vec<Name>) -> Self {
        let clock = controller::SystemClock::start();
        Self::with(
            tempfile::tempdir().unwrap(),
            Shared::default(),
            Runtime::new().unwrap(),
            manager,
            hosts,
            clock,
        )
    }

    fn with(
        directory: tempfile::TempDir,
        world: Shared,
        fakes: Runtime,
        manager: PathBuf,
        hosts: Vec<Name>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        {
            let _inside = fakes.enter();
            let agent = UnixListener::bind(directory.path().join("agent")).unwrap();
            fakes.spawn(serve_agent(agent, Arc::clone(&world)));
        }
        let mut site = Self { directory, world, manager, fakes, controller: None, clock, hosts };
        site.start();
        site.prepare();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What a controller of this site is told.
    pub fn settings(&self) -> controller::ControllerSettings {
        controller::ControllerSettings {
            database: self.path("store"),
            socket: self.path("api/heddle.sock"),
            listen: Some("127.0.0.1:0".parse().unwrap()),
            sm_control: self.manager.clone(),
            // One that is killed here gives its socket up a moment later.
            view_socket: self.path(&format!("views-{}", Uuid::new_v4().simple())),
            key_file: self.path("store.key"),
            operator_token_file: self.path("token"),
            address_file: self.path("endpoint"),
            clock: self.clock.clone(),
        }
    }

    /// Starts the controller.
    pub fn start(&mut self) {
        let (runtime, settings) = (Runtime::new().unwrap(), self.settings());
        let _ = std::fs::remove_file(&settings.socket);
        runtime.spawn(async {
            controller::serve(settings, std::future::pending()).await.expect("the controller serves");
        });
        self.controller = Some(runtime);
    }

    /// Ends the controller wherever it is.
    pub fn kill(&mut self) {
        self.controller.take().unwrap().shutdown_background();
        self.wait_until_closed();
    }

    /// Ends the controller, and waits until it is.
    pub fn stop(&mut self) {
        self.controller.take().unwrap().shutdown_timeout(PATIENCE);
        self.wait_until_closed();
    }

    /// A process that has ended has closed its store and given its lock back. Here tasks, and the threads of SQLite, which write
    /// what is left into the file of the store when they close it, end a moment later.
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
        eventually("the store is given up", || lock.try_lock().is_ok());
    }

    /// Files of the store, with what SQLite puts beside it.
    pub fn store_files(&self) -> Vec<PathBuf> {
        ["store", "store-wal", "store-shm"].map(|name| self.path(name)).into()
    }

    /// Why the controller does not start.
    pub fn refusal_to_start(&self) -> String {
        let served = controller::serve(self.settings(), std::future::pending());
        let served = self.ask(async { tokio::time::timeout(PATIENCE, served).await });
        format!("{:#}", served.expect("it does not serve").unwrap_err())
    }

    /// Asks as whoever a token belongs to.
    pub fn client(&self, token: String) -> ApiClient {
        eventually("the controller listens", || self.socket().exists());
        ApiClient::new(self.controller_address(), TrustedUsers::new(None), token)
    }

    /// Where the controller listens.
    pub fn controller_address(&self) -> ControllerAddress {
        ControllerAddress::Unix(self.socket())
    }

    /// The socket at which it listens.
    pub fn socket(&self) -> PathBuf {
        self.path("api/heddle.sock")
    }

    /// The address at which it listens besides.
    pub fn address(&self) -> String {
        let endpoint = std::fs::read_to_string(self.path("endpoint")).unwrap();
        endpoint.trim().strip_prefix("http://").unwrap().to_owned()
    }

    /// Asks as the operator.
    pub fn operator(&self) -> ApiClient {
        self.client(self.operator_token())
    }

    /// The operator's token.
    pub fn operator_token(&self) -> String {
        let token = self.path("token");
        eventually("there is a token", || token.exists());
        std::fs::read_to_string(token).unwrap().trim().to_owned()
    }

    /// Waits for an answer.
    pub fn ask<T>(&self, question: impl Future<Output = T>) -> T {
        self.fakes.block_on(question)
    }

    /// Makes hosts and an image known, and waits until they are.
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

    /// A tenant, and who asks for it.
    pub fn tenant(&self, name: &str) -> ApiClient {
        self.client(self.tenant_token(name))
    }

    /// A tenant, by its token.
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

    /// Another token of a tenant.
    pub fn token_of(&self, tenant: &str) -> String {
        self.issue(tenant, TokenLifetime::DEFAULT).secret
    }

    /// A token of a tenant that is not valid any more.
    pub fn revoked_token(&self, tenant: &str) -> String {
        let issued = self.issue(tenant, TokenLifetime::DEFAULT);
        self.ask(self.operator().token_revoke(issued.token.id)).unwrap();
        issued.secret
    }

    /// A token of a tenant whose time is over.
    pub fn expired_token(&self, tenant: &str) -> String {
        let issued = self.issue(tenant, TokenLifetime::Seconds(1));
        let client = self.client(issued.secret.clone());
        eventually("the token has expired", || self.ask(client.cluster_list()).is_err());
        issued.secret
    }

    /// A new token of a tenant.
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

/// Whether a stream is open: what comes is read until nothing comes for a while.
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

/// Waits until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An image of which only the description exists.
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

async fn serve_manager(listener: UnixListener, tree: Arc<Topology>, world: Shared) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(manage(stream, Arc::clone(&tree), Arc::clone(&world)));
    }
}

async fn manage(stream: UnixStream, tree: Arc<Topology>, world: Shared) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let Some(line) = lines.next_line().await? else { return Ok(()) };
    let mut request: Value = serde_json::from_str(&line).unwrap();
    if request["command"] == "watch" {
        let manager = tree.end_nodes().next().unwrap().1.ports().next().unwrap().1.guid;
        let capabilities = fabric_model::intent::Capabilities::default();
        let topology = ibnetdiscover::write(&tree);
        let event = json!({ "event": "discovered", "manager": manager, "topology": topology, "capabilities": capabilities });
        write.write_all(format!("{}\n", json!({ "ok": event })).as_bytes()).await?;
        let _ = lines.next_line().await;
        return Ok(());
    }
    if request["command"] == "ping" {
        let hangs = world.lock().unwrap().manager_hangs;
        if hangs {
            std::future::pending::<()>().await;
        }
        return write.write_all(b"{\"ok\":\"pong\"}\n").await;
    }
    if request["command"] == "read-back" {
        // Devices that do what they are told.
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

async fn serve_agent(listener: UnixListener, world: Shared) {
    let router =
        Router::new().route("/v1/hosts/{host}", routing::put(take_orders).get(tell)).with_state(world);
    axum::serve(listener, router).await.unwrap();
}

/// An agent that hangs answers when it goes on.
async fn wait_while_silent(world: &Shared, host: &str) {
    while world.lock().unwrap().silent.contains(host) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn take_orders(
    State(world): State<Shared>,
    UrlPath(host): UrlPath<String>,
    Json(orders): Json<HostSpec>,
) -> Result<StatusCode, (StatusCode, Json<Box<Problem>>)> {
    wait_while_silent(&world, &host).await;
    let conduct = world.lock().unwrap().conduct;
    if conduct != Conduct::IsSilent {
        let taken = world.lock().unwrap().take(host, orders)?;
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
    State(world): State<Shared>,
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
    /// Changes what is told from now on.
    pub fn change(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        self.number += 1;
    }

    /// Takes orders as an agent does: newer ones of the same site, and removes only what they say is removed.
    fn take(
        &mut self,
        host: String,
        orders: HostSpec,
    ) -> Result<StatusCode, (StatusCode, Json<Box<Problem>>)> {
        let refused = |kind: &str| Err((StatusCode::CONFLICT, Json(Box::new(refusal(kind)))));
        if let Some(kept) = self.orders.get(&host).map(|kept| kept.version) {
            if kept.site != orders.version.site {
                return refused(OTHER_SITE);
            }
            if orders.version.precedence() < kept.precedence() {
                return refused(STALE_SPEC);
            }
        }
        for vm in orders.vms.iter().filter(|vm| !self.removed.contains(&vm.id)) {
            self.ran.insert(vm.id, u16::from(vm.adapter.pkey));
            self.vms.insert(vm.id, (host.clone(), vm.clone()));
        }
        self.vms.retain(|id, _| !orders.removed.contains(id));
        self.removed.extend(&orders.removed);
        self.orders.insert(host, orders);
        self.number += 1;
        self.look();
        Ok(StatusCode::NO_CONTENT)
    }

    fn report(&self, host: &str) -> HostReport {
        let kept = self.orders.get(host);
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
            reason: Some("it was removed by earlier orders".to_owned()),
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

    /// Notes virtual machines that run without their network.
    fn look(&mut self) {
        let running = self.vms.values().map(|(_, vm)| vm);
        let outside = running.filter(|vm| {
            let partition = PartitionNumber::from_wire(u16::from(vm.adapter.pkey) & 0x7fff).unwrap();
            !self.members.contains(&(partition, vm.adapter.port_guid))
        });
        self.unsafe_vms.extend(outside.map(|vm| vm.id).collect::<Vec<_>>());
    }
}
