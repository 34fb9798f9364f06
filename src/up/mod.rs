//! `heddle up`: starts and supervises a whole site on one machine.

pub mod die_with_parent;
mod down;
mod libvirt;
mod liveness;
mod ready;
mod site;
mod store;
pub mod supervisor;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use controller_api::MemorySize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::connection::{API_SOCKET, DEFAULT_HOME};
use crate::cli::output::{count, print, took};
use crate::cli::progress::WaitProgress;
use crate::hardware::HardwareArgs;
use crate::sim::link_model::LinkModelArgs;
use crate::sim::profile::ProfileArgs;
pub use down::{DownArgs, StatusArgs, down, status};
use liveness::LivenessProbe;
use ready::{ImageSource, OfferedCapacity};
use site::{Adapters, HostPort, ManagerAdapter, SiteDir};
use supervisor::{Program, Supervisor};

/// Time for the agent to stop its virtual machines before it is killed.
const AGENT_STOP_LIMIT: Duration = Duration::from_secs(60);

/// Time for the other programs to end before they are killed; they keep their state on disk at all times.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Interval of checking that a libvirt started elsewhere still runs.
const LIBVIRT_INTERVAL: Duration = Duration::from_secs(2);

/// Names of the programs of subnet managers.
const MANAGER_PROGRAMS: [&str; site::MANAGERS_MAX] = ["sm", "sm-2", "sm-3"];

/// Failures of a program in a row after which starting the site is given up.
const FAILURES_MAX: u32 = 3;

/// Start a whole site on this machine and supervise it.
///
/// Starts an emulated InfiniBand fabric, the subnet manager, the controller, an agent that runs virtual machines, and
/// libvirt if it does not run yet. A program that ends or hangs is restarted. All state is in one directory.
///
///     heddle up                                  # in one terminal, as root
///     heddle tenant create acme                  # in another
///     heddle cluster create blue --tenant acme --nodes 2 --memory 384M
///
/// Ctrl-C stops the site and its virtual machines; the next start boots them again from their disks. Fabric and hosts are
/// generated at the first start and kept.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct UpArgs {
    #[command(flatten)]
    home: HomeArgs,
    /// Number of hosts of the emulated fat-tree, 1 to 10000; used at the first start [default: 16]
    #[arg(long, value_name = "N", conflicts_with = "topology", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    hosts: Option<u32>,
    /// Number of subnet managers, 1 to 3: one programs the fabric, the others take over when it ends; used at the first start
    /// [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=site::MANAGERS_MAX as i64))]
    managers: Option<u32>,
    /// Emulate the fabric in this file, in the format of ibnetdiscover. Subnet managers run on the adapters called `manager`,
    /// `manager-2` and `manager-3`, else one runs on the first adapter; the other adapters are hosts, named by the first word of
    /// their NodeDescription
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    link_model: LinkModelArgs,
    /// Let every user of this machine attach tools to the emulated fabric, not only root. A user who attaches has root
    /// rights on every adapter, that of the subnet manager included: tenants are not isolated from it
    #[arg(long)]
    open_fabric_to_everyone: bool,
    /// Let the controller also listen at this loopback address, such as 127.0.0.1:8080, for tunnels. There is no TLS: a
    /// program that listens there while the controller is down receives the tokens of clients
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Part of every link that is kept for best effort beside guaranteed clusters, in percent; with 0, best effort has one
    /// packet per round of a link's arbitration table
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=90))]
    best_effort_share: u8,
    /// Cores that each host offers to virtual machines, at least 1; in shared mode they are not pinned
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    host_cores: u32,
    /// Memory that each host offers to virtual machines, such as 4G
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    host_memory: MemorySize,
    /// Hours to keep the disk of a removed virtual machine; 0 deletes it at once
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    disk_grace_hours: u32,
    #[command(flatten)]
    hardware: HardwareArgs,
    /// Register an image; may be repeated [default: the newest that `make image` built]
    #[arg(long, value_name = "NAME=DIR")]
    image: Vec<ImageSource>,
}

/// The state directory of a site.
#[derive(Clone, Debug, Args)]
pub struct HomeArgs {
    /// State directory of the site [env: HEDDLE_HOME] [default: /var/lib/heddle]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl HomeArgs {
    fn site(&self) -> anyhow::Result<SiteDir> {
        let from_environment = || env::var_os("HEDDLE_HOME").map(PathBuf::from);
        let directory = self.dir.clone().or_else(from_environment);
        SiteDir::at(&directory.unwrap_or_else(|| DEFAULT_HOME.into()))
    }
}

/// Runs a site until a signal stops it.
pub async fn run(args: UpArgs) -> anyhow::Result<ExitCode> {
    let site = args.home.site()?;
    site.prepare()?;
    let _lock = site.lock()?;
    store::check(&site).await?;
    let plan = StartPlan::new(&site, &args)?;
    let heddle = plan.heddle.clone();
    let wrapper = Arc::new(move |program: &Program| die_with_parent::command(&heddle, program));
    let (mut supervisor, mut notices) = Supervisor::new(site.clone(), wrapper);
    let mut stop = StopSignals::new()?;

    let progress = WaitProgress::new("starting");
    let outcome = {
        let starting = plan.start(&mut supervisor, &progress);
        tokio::pin!(starting);
        loop {
            tokio::select! {
                started = &mut starting => break started.map(Some),
                Some(notice) = notices.recv() => match notice.failures {
                    // A restart will not help: an address in use, a file that cannot be read.
                    FAILURES_MAX.. => break Err(anyhow!(notice.text)),
                    _ => progress.reached(&notice.to_string()),
                },
                () = stop.received() => break Ok(None),
            }
        }
    };
    if let Ok(Some(ready)) = &outcome {
        let time = took(progress.elapsed());
        drop(progress);
        print(&format!("ready in {time}: {}", ready.line))?;
        let mut interval = tokio::time::interval(LIBVIRT_INTERVAL);
        let mut has_libvirt = ready.has_libvirt;
        loop {
            tokio::select! {
                Some(notice) = notices.recv() => eprintln!("heddle: {notice}"),
                () = stop.received() => break,
                _ = interval.tick() => {
                    // The process that ran libvirt has ended; it may have been another site.
                    if !has_libvirt && !libvirt::answers() {
                        eprintln!("heddle: libvirt has ended, starting it");
                        libvirt::programs()?.into_iter().for_each(|program| supervisor.start(program));
                        has_libvirt = true;
                    }
                }
            }
        }
    } else {
        drop(progress);
    }
    eprintln!("heddle: stopping; press Ctrl-C again to stop at once");
    {
        let stopping = supervisor.stop();
        tokio::pin!(stopping);
        loop {
            tokio::select! {
                () = &mut stopping => break,
                Some(notice) = notices.recv() => eprintln!("heddle: {notice}"),
                // Everything ends with this process.
                () = stop.received() => break,
            }
        }
    }
    while let Ok(notice) = notices.try_recv() {
        eprintln!("heddle: {notice}");
    }
    // Clients then report that no controller is known, not that it does not answer.
    let _ = fs::remove_file(site.endpoint());
    site.remove_pid("up");
    outcome.map(|_| ExitCode::SUCCESS)
}

/// All programs with their arguments, decided before any is started.
struct StartPlan {
    site: SiteDir,
    heddle: PathBuf,
    agent: PathBuf,
    topology: PathBuf,
    /// Arguments of `heddle sim` that select the kind of devices.
    profile: Vec<String>,
    managers: Vec<ManagerAdapter>,
    /// Arguments of `heddle sim` for the rate of links.
    link_model: Vec<String>,
    hosts: Vec<HostPort>,
    secret: PathBuf,
    open_fabric_to_everyone: bool,
    listen: Option<SocketAddr>,
    best_effort_share: u8,
    hardware: HardwareArgs,
    capacity: OfferedCapacity,
    disk_grace_hours: u32,
    images: Vec<ImageSource>,
}

/// A site that is ready.
struct Ready {
    line: String,
    has_libvirt: bool,
}

impl StartPlan {
    fn new(site: &SiteDir, args: &UpArgs) -> anyhow::Result<Self> {
        // A mistake is reported before any program starts.
        args.profile.load()?;
        args.link_model.model()?;
        let (topology, Adapters { managers, hosts }) =
            site.fabric(args.topology.as_deref(), args.hosts, args.managers)?;
        Ok(Self {
            site: site.clone(),
            heddle: env::current_exe().context("cannot find the path of this program")?,
            agent: find_program("heddle-agent").context(
                "heddle-agent is neither in the directory of heddle nor in PATH: run cargo build --workspace",
            )?,
            topology,
            profile: args.profile.to_arguments()?,
            managers,
            link_model: args.link_model.arguments(),
            hosts,
            secret: site.secret()?,
            open_fabric_to_everyone: args.open_fabric_to_everyone,
            listen: args.listen,
            best_effort_share: args.best_effort_share,
            hardware: args.hardware,
            capacity: OfferedCapacity { cores: args.host_cores, memory: args.host_memory },
            disk_grace_hours: args.disk_grace_hours,
            images: args.image.clone(),
        })
    }

    /// Starts all programs, each as soon as those it needs are ready.
    async fn start(&self, supervisor: &mut Supervisor, progress: &WaitProgress) -> anyhow::Result<Ready> {
        let site = &self.site;
        // The file of an earlier start is stale.
        let _ = fs::remove_file(site.endpoint());
        let has_libvirt = !libvirt::answers();
        if has_libvirt {
            for program in libvirt::programs()? {
                let is_log = program.name == "virtlogd";
                supervisor.start(program);
                if is_log {
                    ready::socket("virtlogd", libvirt::log_socket()).await?;
                }
            }
        }
        supervisor.start(self.sim());
        ready::socket("sim", &site.socket("sim")).await?;
        progress.reached(&format!("fabric emulated: {}", count(self.hosts.len(), "host")));
        for manager in self.subnet_managers() {
            let name = manager.name;
            supervisor.start(manager);
            ready::socket(name, &site.socket(name)).await?;
        }
        supervisor.start(self.controller());
        if has_libvirt {
            ready::socket("libvirtd", libvirt::socket()).await?;
        }
        supervisor.start(self.agent());
        let client = ready::controller(site).await?;
        progress.reached("controller answers");
        ready::socket("agent", &site.socket("agent")).await?;
        let added = ready::add_hosts(&client, &self.hosts, &site.socket("agent"), self.capacity).await?;
        if added > 0 {
            progress.reached(&format!("{} added", count(added, "host")));
        }
        for note in ready::add_images(&client, &self.images).await? {
            progress.reached(&note);
        }
        ready::fabric(&client, &self.hosts, progress).await?;
        progress.reached("fabric programmed, hosts up");
        if has_libvirt {
            progress.waits_for("libvirt probes the capabilities of QEMU");
            ready::libvirt().await?;
            progress.reached("libvirt answers");
        }
        Ok(Ready { line: self.summary(&client).await?, has_libvirt })
    }

    /// The line that tells how to connect and what to try next.
    async fn summary(&self, client: &controller_api::ApiClient) -> anyhow::Result<String> {
        let images = client.image_list().await?;
        // The image that `heddle cluster create` takes by default, if it is there.
        let usual = images.iter().find(|image| image.name.as_str() == "debian-mpi");
        let next = match usual.or(images.first()) {
            Some(image) => format!(
                "heddle tenant create acme; heddle cluster create blue --tenant acme --nodes 2 --memory 384M --image {}",
                image.name
            ),
            None => "make image; heddle image add debian-mpi DIR".to_owned(),
        };
        let home = match self.site.is_default() {
            true => String::new(),
            false => format!("export HEDDLE_HOME={}; ", self.site.directory().display()),
        };
        // Port 0 lets the system choose.
        let also = match self.listen {
            Some(_) => fs::read_to_string(self.site.endpoint())
                .context("the controller did not write its address")
                .map(|url| format!(" and {}", url.trim()))?,
            None => String::new(),
        };
        let socket = self.site.path(API_SOCKET);
        Ok(format!("unix:{}{also}, {}; try: {home}{next}", socket.display(), count(self.hosts.len(), "host")))
    }

    fn sim(&self) -> Program {
        let site = &self.site;
        let mut arguments: Vec<OsString> = vec![
            "sim".into(),
            self.topology.clone().into(),
            "--name".into(),
            site.fabric_name().into(),
            "--socket".into(),
            site.socket("sim").into(),
            "--control".into(),
            site.socket("sim-control").into(),
        ];
        arguments.extend(self.profile.iter().chain(&self.link_model).map(OsString::from));
        if self.open_fabric_to_everyone {
            arguments.push("--open-to-everyone".into());
        }
        self.own("sim", Some(LivenessProbe::Ping(site.socket("sim-control"))), arguments)
    }

    fn subnet_managers(&self) -> Vec<Program> {
        MANAGER_PROGRAMS.iter().zip(&self.managers).map(|(&name, port)| self.sm(name, port)).collect()
    }

    fn sm(&self, name: &'static str, port: &ManagerAdapter) -> Program {
        let site = &self.site;
        let mut device = OsString::from("heddle:");
        device.push(site.socket("sim"));
        device.push(format!("@{}", port.node));
        let mut arguments: Vec<OsString> = vec![
            "sm".into(),
            "--external-plans".into(),
            "--device".into(),
            device,
            "--state".into(),
            site.fabric_state_of(name).into(),
            "--secret".into(),
            self.secret.clone().into(),
            "--control".into(),
            site.socket(name).into(),
        ];
        for (&other, peer) in MANAGER_PROGRAMS.iter().zip(&self.managers).filter(|(other, _)| **other != name)
        {
            let mut declared = OsString::from(format!("{}=", peer.port_guid));
            declared.push(site.socket(other));
            arguments.extend(["--peer".into(), declared]);
        }
        self.own(name, Some(LivenessProbe::Ping(site.socket(name))), arguments)
    }

    fn controller(&self) -> Program {
        let site = &self.site;
        let mut arguments: Vec<OsString> = vec![
            "controller".into(),
            "--state".into(),
            site.directory().into(),
            "--views".into(),
            site.socket("views").into(),
        ];
        for manager in self.subnet_managers() {
            arguments.extend(["--sm-control".into(), site.socket(manager.name).into()]);
        }
        arguments.extend(self.hardware.arguments());
        if let Some(listen) = self.listen {
            arguments.extend(["--listen".into(), listen.to_string().into()]);
        }
        arguments.extend(["--best-effort-share".into(), self.best_effort_share.to_string().into()]);
        let probe = LivenessProbe::Get { socket: site.path(API_SOCKET), path: "/v1/openapi.json" };
        self.own("controller", Some(probe), arguments)
    }

    fn agent(&self) -> Program {
        let site = &self.site;
        let mut arguments: Vec<OsString> = vec![
            "--state".into(),
            site.path("agent").into(),
            "--socket".into(),
            site.socket("agent").into(),
            "--dedicate-threads".into(),
            "--sim-control".into(),
            site.socket("sim-control").into(),
            "--stop-vms-at-exit".into(),
            "--disk-grace-hours".into(),
            self.disk_grace_hours.to_string().into(),
        ];
        for HostPort { name, .. } in &self.hosts {
            arguments.extend(["--host".into(), name.as_str().into()]);
        }
        let (name, path) = ("agent", self.agent.clone());
        let probe = Some(LivenessProbe::Get { socket: site.socket("agent"), path: "/v1/hosts" });
        Program { name, path, arguments, stop_limit: AGENT_STOP_LIMIT, own_network: false, probe }
    }

    fn own(
        &self,
        name: &'static str,
        probe: Option<LivenessProbe>,
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Program {
        let (path, arguments) = (self.heddle.clone(), arguments.into_iter().collect());
        Program { name, path, arguments, stop_limit: STOP_LIMIT, own_network: false, probe }
    }
}

/// Finds a program in the directory of this one, in PATH, or in the sbin directories.
fn find_program(name: &str) -> Option<PathBuf> {
    let beside = env::current_exe().ok().and_then(|heddle| Some(heddle.parent()?.to_owned()));
    let path = env::var_os("PATH").unwrap_or_default();
    let places =
        beside.into_iter().chain(env::split_paths(&path)).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    places.map(|place| place.join(name)).find(|candidate| is_program(candidate))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;

    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// SIGINT, SIGTERM and SIGHUP, which stop the site.
struct StopSignals([Signal; 3]);

impl StopSignals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot handle signals");
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(listen);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    async fn received(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
