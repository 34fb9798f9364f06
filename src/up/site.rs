//! The state directory of `heddle up`.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use controller_api::Name;
use fabric_model::generate::{DEFAULT_RADIX, FatTree, FatTreeSize};
use fabric_model::{Node, Topology, ibnetdiscover};
use ib_wire::Guid;
use sha2::{Digest, Sha256};

use crate::cli::connection::{DEFAULT_HOME, ENDPOINT_FILE};
use crate::files;

/// Bytes of the secret that management keys are derived from.
const SECRET_BYTES: usize = 32;

/// Longest path of a unix socket: `sun_path` without its end.
const SOCKET_PATH_MAX: usize = 107;

/// Hosts that two tiers of 8-port switches hold: small fabrics get leaves and spines too, not one big switch.
const SMALL_HOSTS_MAX: u32 = 32;

/// Ports of the switches of small fabrics.
const SMALL_RADIX: u8 = 8;

/// Default number of hosts.
const DEFAULT_HOSTS: u32 = 16;

/// NodeDescriptions of the adapters that subnet managers run on, the first the only one or the first master. They are not hosts: every
/// port can reach a manager, so a virtual machine behind the same port would be reachable by all tenants.
const MANAGERS: [&str; MANAGERS_MAX] = ["manager", "manager-2", "manager-3"];

/// Most subnet managers of a site: one that serves, and two that wait.
pub const MANAGERS_MAX: usize = 3;

/// The state directory of a site on this machine.
#[derive(Clone, Debug)]
pub struct SiteDir {
    directory: PathBuf,
}

/// An exclusive lock of a site. Released when dropped, also if the process is killed.
#[derive(Debug)]
pub struct SiteLock {
    _file: File,
}

impl SiteDir {
    /// A site in a directory, which may not exist yet.
    pub fn at(directory: &Path) -> anyhow::Result<Self> {
        let directory = std::path::absolute(directory).context("the directory is not a path")?;
        let site = Self { directory };
        let longest = site.socket("sim-control");
        let length = longest.as_os_str().len();
        ensure!(
            length <= SOCKET_PATH_MAX,
            "the path {} is too long: its sockets would have paths of {length} bytes, at most {SOCKET_PATH_MAX} are allowed",
            site.directory.display()
        );
        // The device `heddle:SOCKET@NODE` would be ambiguous.
        ensure!(
            !site.directory.to_string_lossy().contains('@'),
            "the path {} must not contain @: use another directory",
            site.directory.display()
        );
        Ok(site)
    }

    /// Creates the directories that do not exist.
    ///
    /// QEMU runs as another user, so the directories can be traversed; it can read only the files that agents give it.
    pub fn prepare(&self) -> anyhow::Result<()> {
        let place = self.directory.display();
        let is_ours = |entries: fs::ReadDir| entries.count() == 0 || self.directory.join("run").is_dir();
        match fs::read_dir(&self.directory) {
            Ok(entries) => ensure!(
                is_ours(entries),
                "{place} is not a state directory and not empty: use an empty directory"
            ),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot list {place}")),
        }
        for (directory, mode) in [
            (self.path(""), 0o711),
            (self.path("run"), 0o700),
            (self.path("log"), 0o700),
            (self.path("agent"), 0o711),
        ] {
            let place = directory.display();
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&directory)
                .with_context(|| format!("cannot create {place}"))?;
            fs::set_permissions(&directory, Permissions::from_mode(mode))
                .with_context(|| format!("cannot set the mode of {place}"))?;
        }
        for above in self.directory.ancestors().skip(1) {
            let mode = fs::metadata(above).with_context(|| format!("cannot stat {}", above.display()))?;
            ensure!(
                mode.permissions().mode() & 0o001 != 0,
                "virtual machines run as another user, which cannot traverse {}: use another directory, or chmod o+x",
                above.display()
            );
        }
        Ok(())
    }

    /// Locks the site for this process.
    ///
    /// # Errors
    /// If another process has the lock; the message names it.
    pub fn lock(&self) -> anyhow::Result<SiteLock> {
        let path = self.path("run/up.lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = self.pid("up").map_or_else(String::new, |pid| format!(" as process {pid}"));
                bail!(
                    "`heddle up` already runs in {}{holder}; stop it with `heddle down --dir {0}`",
                    self.directory.display()
                );
            }
            Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the directory"),
        }
        self.write_pid("up", std::process::id())?;
        Ok(SiteLock { _file: file })
    }

    /// Whether a process runs the site.
    pub fn is_running(&self) -> bool {
        let file = File::open(self.path("run/up.lock"));
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// The path of the state directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether commands find the site without an argument.
    pub fn is_default(&self) -> bool {
        let home = std::env::var_os("HEDDLE_HOME").unwrap_or_else(|| DEFAULT_HOME.into());
        std::path::absolute(home).is_ok_and(|home| home == self.directory)
    }

    /// A path inside the directory.
    pub fn path(&self, inside: &str) -> PathBuf {
        // Without a slash at the end, so that paths compare and print as people write them.
        if inside.is_empty() { self.directory.clone() } else { self.directory.join(inside) }
    }

    /// The socket of a program.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.path(&format!("run/{name}.sock"))
    }

    /// The file in which the controller writes the address it listens at.
    pub fn endpoint(&self) -> PathBuf {
        self.path(ENDPOINT_FILE)
    }

    /// Name of the emulated fabric for stock tools (`IBSIM_SOCKNAME`), different for every directory.
    pub fn fabric_name(&self) -> String {
        if self.directory == Path::new(DEFAULT_HOME) {
            return "heddle".to_owned();
        }
        let digest = Sha256::digest(self.directory.as_os_str().as_encoded_bytes());
        let [a, b, c, d, ..] = digest[..] else { return "heddle".to_owned() };
        format!("heddle-{a:02x}{b:02x}{c:02x}{d:02x}")
    }

    /// The process id in the pid file of a program.
    pub fn pid(&self, name: &str) -> Option<u32> {
        fs::read_to_string(self.path(&format!("run/{name}.pid"))).ok()?.trim().parse().ok()
    }

    /// Writes the pid file of a program.
    pub fn write_pid(&self, name: &str, pid: u32) -> anyhow::Result<()> {
        files::replace_public(&self.path(&format!("run/{name}.pid")), format!("{pid}\n").as_bytes())
    }

    /// Removes the pid file of a program.
    pub fn remove_pid(&self, name: &str) {
        // A stale file names a process that does not exist.
        let _ = fs::remove_file(self.path(&format!("run/{name}.pid")));
    }

    /// The state file of the first subnet manager.
    pub fn fabric_state(&self) -> PathBuf {
        self.fabric_state_of("sm")
    }

    /// The state file of a subnet manager, by the name of its program.
    pub fn fabric_state_of(&self, manager: &str) -> PathBuf {
        self.path(&format!("fabric{}.json", manager.trim_start_matches("sm")))
    }

    /// The site secret, from which the M_Keys are derived; generated once. A lost secret is never replaced: the keys of
    /// the nodes would be unknown.
    pub fn secret(&self) -> anyhow::Result<PathBuf> {
        let path = self.path("site.secret");
        let is_there = path.try_exists().with_context(|| format!("cannot stat {}", path.display()))?;
        if !is_there {
            let state = self.fabric_state();
            ensure!(
                crate::sm::secret_mark(&state)?.is_none(),
                "{} is missing, and the devices of this fabric have management keys that are derived from it. Restore it from \
                 a backup, with mode 600. Without a backup: reset every device so that it loses its key (an emulated \
                 fabric is reset when `heddle up` ends), then move {} away; the next start generates a new secret",
                path.display(),
                state.display()
            );
            let mut secret = [0; SECRET_BYTES];
            File::open("/dev/urandom")
                .and_then(|mut source| source.read_exact(&mut secret))
                .context("cannot read a secret from /dev/urandom")?;
            files::replace_private(&path, &secret)?;
        }
        Ok(path)
    }

    /// The topology to emulate, and its adapters: that of `file`, else that of an earlier start, else a new one of `hosts` hosts and
    /// `managers` subnet managers.
    pub fn fabric(
        &self,
        file: Option<&Path>,
        hosts: Option<u32>,
        managers: Option<u32>,
    ) -> anyhow::Result<(PathBuf, Adapters)> {
        let path = self.path("fabric.topo");
        let text = match (file, fs::read(&path)) {
            (Some(file), _) => fs::read(file).with_context(|| format!("cannot read {}", file.display()))?,
            (None, Ok(kept)) => kept,
            (None, Err(error)) if error.kind() == ErrorKind::NotFound => {
                generate(hosts.unwrap_or(DEFAULT_HOSTS), managers.unwrap_or(1))?.into_bytes()
            }
            (None, Err(error)) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let source = file.unwrap_or(&path).display();
        let topology =
            ibnetdiscover::read(&text).with_context(|| format!("{source} is not a topology file"))?;
        let adapters = Adapters::of(&topology).with_context(|| format!("in {source}"))?;
        if let Some(wanted) = hosts {
            let found = adapters.hosts.len();
            ensure!(
                found as u64 == u64::from(wanted),
                "the fabric in {source} has {found} hosts, not {wanted}: omit --hosts, or use another --dir"
            );
        }
        if let Some(wanted) = managers {
            let found = adapters.managers.len();
            ensure!(
                found as u64 == u64::from(wanted),
                "the fabric in {source} has {found} adapters for subnet managers, not {wanted}: omit --managers, use another \
                 --dir, or call adapters {}",
                MANAGERS.join(", ")
            );
        }
        files::replace_private(&path, &text)?;
        Ok((path, adapters))
    }
}

/// The adapters of a fabric by NodeDescription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapters {
    /// The adapters of subnet managers, at least one.
    pub managers: Vec<ManagerAdapter>,
    /// The adapters of hosts.
    pub hosts: Vec<HostPort>,
}

/// The adapter of a subnet manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerAdapter {
    /// NodeDescription of the adapter.
    pub node: String,
    /// GUID of its first cabled port.
    pub port_guid: Guid,
}

/// A host and its port on the fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// First word of the NodeDescription of its adapter, in lower case.
    pub name: Name,
    /// GUID of its first cabled port.
    pub port_guid: Guid,
}

impl Adapters {
    /// Subnet managers get the adapters called `manager`, `manager-2` and so on, or else the first adapter; all others are hosts.
    /// Routers and aggregation nodes are neither.
    fn of(topology: &Topology) -> anyhow::Result<Self> {
        let end_nodes = topology.end_nodes().map(|(_, node)| node);
        let mut adapters: Vec<&Node> = end_nodes.filter(|node| node.is_host_adapter()).collect();
        ensure!(
            adapters.len() >= 2,
            "the fabric must have at least 2 adapters, one for the subnet manager and one host; it has {}",
            adapters.len()
        );
        let first = adapters.iter().position(|adapter| adapter.description == MANAGERS[0]).unwrap_or(0);
        let mut managers = vec![manager_port(adapters.remove(first))?];
        for name in &MANAGERS[1..] {
            let Some(found) = adapters.iter().position(|adapter| adapter.description == *name) else { break };
            managers.push(manager_port(adapters.remove(found))?);
        }
        let hosts: Vec<HostPort> = adapters.into_iter().map(host_port).collect::<anyhow::Result<_>>()?;
        let mut names: Vec<&Name> = hosts.iter().map(|host| &host.name).collect();
        names.sort();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            bail!("two adapters have the name {}", pair[0]);
        }
        Ok(Self { managers, hosts })
    }
}

fn manager_port(adapter: &Node) -> anyhow::Result<ManagerAdapter> {
    Ok(ManagerAdapter { node: adapter.description.clone(), port_guid: port_guid(adapter)? })
}

fn host_port(adapter: &Node) -> anyhow::Result<HostPort> {
    let name = adapter.host_name().to_ascii_lowercase();
    Ok(HostPort {
        port_guid: port_guid(adapter)?,
        name: name
            .parse()
            .with_context(|| format!("{name:?}, the name of an adapter, cannot be the name of a host"))?,
    })
}

/// GUID of the first cabled port, or of the first one.
fn port_guid(adapter: &Node) -> anyhow::Result<Guid> {
    let cabled = adapter.cabled_ports().next().and_then(|(number, _)| adapter.port(number));
    let port = cabled.or_else(|| adapter.ports().next().map(|(_, port)| port));
    Ok(port.with_context(|| format!("the adapter of {:?} has no port", adapter.description))?.guid)
}

/// Generates a fat-tree of `hosts` hosts and the adapters of `managers` subnet managers, as a topology file.
fn generate(hosts: u32, managers: u32) -> anyhow::Result<String> {
    let topology = fat_tree(hosts + managers).generate()?;
    let adapters: Vec<&str> = topology.end_nodes().map(|(_, node)| node.description.as_str()).collect();
    let of_managers = adapters.iter().rev().zip(MANAGERS).take(managers as usize);
    Ok(of_managers.fold(ibnetdiscover::write(&topology), |text, (adapter, name)| {
        text.replace(&format!("\"{adapter}\""), &format!("\"{name}\""))
    }))
}

fn fat_tree(hosts: u32) -> FatTree {
    let radix = if hosts <= SMALL_HOSTS_MAX { SMALL_RADIX } else { DEFAULT_RADIX };
    FatTree { radix, ..FatTree::new(FatTreeSize::Hosts { hosts, tiers: None }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> (tempfile::TempDir, SiteDir) {
        let scratch = tempfile::tempdir().unwrap();
        fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
        let site = SiteDir::at(&scratch.path().join("site")).unwrap();
        site.prepare().unwrap();
        (scratch, site)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn other_users_can_traverse_but_not_list() {
        let (_scratch, site) = site();
        assert_eq!((mode(&site.path("")), mode(&site.path("agent"))), (0o711, 0o711));
        assert_eq!((mode(&site.path("run")), mode(&site.path("log"))), (0o700, 0o700));
        let secret = site.secret().unwrap();
        assert_eq!(mode(&secret), 0o600);
        let before = fs::read(&secret).unwrap();
        assert_eq!((before.len(), before == [0; SECRET_BYTES]), (SECRET_BYTES, false));
        site.secret().unwrap();
        assert_eq!(fs::read(&secret).unwrap(), before, "it is generated once");
    }

    #[test]
    fn a_lost_secret_is_not_replaced() {
        let (_scratch, site) = site();
        let secret = site.secret().unwrap();
        let key = subnet_manager::SiteSecret::new(fs::read(&secret).unwrap()).unwrap();
        let memory =
            subnet_manager::PersistentState { secret: Some(key.fingerprint()), ..Default::default() };
        fs::write(site.fabric_state(), serde_json::to_string(&memory).unwrap() + "\n").unwrap();
        site.secret().unwrap();
        fs::remove_file(&secret).unwrap();
        let error = site.secret().unwrap_err().to_string();
        assert!(error.contains("from a backup") && error.contains("fabric.json"), "{error}");
        assert!(!secret.exists(), "no secret was generated");

        // Control: devices that never had a key.
        let open = serde_json::to_string(&subnet_manager::PersistentState::default()).unwrap() + "\n";
        fs::write(site.fabric_state(), open).unwrap();
        site.secret().unwrap();
    }

    #[test]
    fn a_directory_that_qemu_cannot_traverse_is_rejected() {
        let scratch = tempfile::tempdir().unwrap();
        let site = SiteDir::at(&scratch.path().join("site")).unwrap();
        fs::set_permissions(scratch.path(), Permissions::from_mode(0o700)).unwrap();
        let error = site.prepare().unwrap_err().to_string();
        assert!(error.contains("another user"), "{error}");
        fs::set_permissions(scratch.path(), Permissions::from_mode(0o711)).unwrap();
        site.prepare().unwrap();
    }

    #[test]
    fn a_directory_with_other_files_is_not_changed() {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("thesis.tex"), "").unwrap();
        let before = mode(scratch.path());
        let error = SiteDir::at(scratch.path()).unwrap().prepare().unwrap_err().to_string();
        assert!(error.contains("not empty"), "{error}");
        assert_eq!(mode(scratch.path()), before);
    }

    #[test]
    fn a_second_process_is_rejected_with_the_pid_of_the_first() {
        let (_scratch, site) = site();
        assert!(!site.is_running());
        let lock = site.lock().unwrap();
        assert!(site.is_running());
        let error = site.lock().unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(lock);
        assert!(!site.is_running());
        site.lock().unwrap();
    }

    #[test]
    fn paths_too_long_for_sockets_are_rejected() {
        let deep = Path::new("/tmp").join("d".repeat(90));
        let error = SiteDir::at(&deep).unwrap_err().to_string();
        assert!(error.contains("107"), "{error}");
        SiteDir::at(&Path::new("/tmp").join("d".repeat(80))).unwrap();
        assert!(SiteDir::at(Path::new("/tmp/a@b")).is_err());
    }

    #[test]
    fn a_fabric_is_generated_once_and_kept() {
        let (_scratch, site) = site();
        let (path, adapters) = site.fabric(None, Some(20), None).unwrap();
        assert_eq!((adapters.hosts.len(), adapters.managers[0].node.as_str()), (20, MANAGERS[0]));
        assert_eq!(
            (adapters.hosts[0].name.as_str(), adapters.hosts[19].name.as_str()),
            ("host-00001", "host-00020")
        );
        let written = fs::read(&path).unwrap();
        assert_eq!(site.fabric(None, None, None).unwrap().1, adapters);
        assert_eq!(fs::read(&path).unwrap(), written);
        let error = site.fabric(None, Some(16), None).unwrap_err().to_string();
        assert!(error.contains("20 hosts, not 16"), "{error}");
    }

    #[test]
    fn the_first_adapter_is_the_managers_if_none_has_its_name() {
        let (scratch, site) = site();
        let file = scratch.path().join("their.topo");
        fs::write(&file, ibnetdiscover::write(&fat_tree(3).generate().unwrap())).unwrap();
        let adapters = site.fabric(Some(&file), None, None).unwrap().1;
        assert_eq!((adapters.managers[0].node.as_str(), adapters.hosts.len()), ("host-00001", 2));
        fs::write(&file, ibnetdiscover::write(&fat_tree(1).generate().unwrap())).unwrap();
        let error = format!("{:#}", site.fabric(Some(&file), None, None).unwrap_err());
        assert!(error.contains("it has 1"), "{error}");
    }

    #[test]
    fn hosts_are_named_by_the_first_word_of_field_descriptions() {
        let (_scratch, site) = site();
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/topologies/loginoff-2014.ibnetdiscover");
        let adapters = site.fabric(Some(&file), None, None).unwrap().1;
        assert_eq!((adapters.managers[0].node.as_str(), adapters.hosts.len()), ("stage97 mlx4_0", 143));
        assert_eq!(adapters.hosts[0].name.as_str(), "stage99");
    }

    #[test]
    fn managers_have_adapters_of_their_own() {
        let (_scratch, site) = site();
        let adapters = site.fabric(None, Some(5), Some(3)).unwrap().1;
        assert_eq!(
            adapters.managers.iter().map(|manager| manager.node.as_str()).collect::<Vec<_>>(),
            MANAGERS
        );
        assert_eq!(adapters.hosts.len(), 5);
        let guids: std::collections::BTreeSet<Guid> =
            adapters.managers.iter().map(|manager| manager.port_guid).collect();
        assert_eq!(guids.len(), 3);
        assert_eq!(site.fabric(None, None, None).unwrap().1, adapters);
        let error = site.fabric(None, None, Some(2)).unwrap_err().to_string();
        assert!(error.contains("3 adapters for subnet managers, not 2"), "{error}");
    }

    #[test]
    fn small_fabrics_have_leaves_and_spines() {
        for hosts in [1, 2, 16, 31, 32, 324] {
            let topology = ibnetdiscover::parse(&generate(hosts, 1).unwrap()).unwrap();
            assert_eq!(topology.end_nodes().count() as u32, hosts + 1);
            assert!(topology.by_description(MANAGERS[0]).is_some());
        }
        assert!(fat_tree(17).generate().unwrap().switches().count() > 4);
    }

    #[test]
    fn sites_do_not_share_a_name_for_stock_tools() {
        assert_eq!(SiteDir::at(Path::new(DEFAULT_HOME)).unwrap().fabric_name(), "heddle");
        let names = ["/tmp/a", "/tmp/b"].map(|path| SiteDir::at(Path::new(path)).unwrap().fabric_name());
        assert_ne!(names[0], names[1]);
    }
}
