//! The directory that holds everything `heddle up` keeps.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use controller_api::Name;
use fabric_model::generate::{DEFAULT_RADIX, FatTree, FatTreeSize};
use fabric_model::{Topology, ibnetdiscover};
use sha2::{Digest, Sha256};

use crate::cli::connection::{DEFAULT_HOME, ENDPOINT_FILE};

/// Bytes of the secret that management keys are derived from.
const SECRET_BYTES: usize = 32;

/// Longest path of a unix socket: `sun_path` without its end.
const SOCKET_PATH_MAX: usize = 107;

/// Hosts that two levels of 8-port switches hold: small fabrics get leaves and spines too, not one big switch.
const SMALL_HOSTS_MAX: u32 = 32;

/// Ports of the switches of small fabrics.
const SMALL_RADIX: u8 = 8;

/// Hosts if nobody says how many.
const DEFAULT_HOSTS: u32 = 16;

/// The directory of a site that runs on this machine.
#[derive(Clone, Debug)]
pub struct Site {
    directory: PathBuf,
}

/// The right to run a site. Given back when dropped, also by a process that is killed.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Site {
    /// A site in a directory, which may not exist yet.
    pub fn at(directory: &Path) -> anyhow::Result<Self> {
        let directory = std::path::absolute(directory).context("the directory has no path")?;
        let site = Self { directory };
        let longest = site.socket("sim-control");
        let length = longest.as_os_str().len();
        ensure!(
            length <= SOCKET_PATH_MAX,
            "{} is too deep: sockets in it would have paths of {length} bytes, and {SOCKET_PATH_MAX} are possible",
            site.directory.display()
        );
        // `heddle:SOCKET@NODE` would be read in another way.
        ensure!(
            !site.directory.to_string_lossy().contains('@'),
            "{} has an @ in its path: use another directory",
            site.directory.display()
        );
        Ok(site)
    }

    /// Makes the directories that are not there yet.
    ///
    /// QEMU runs as another user: it passes through, and reads only what agents give it.
    pub fn prepare(&self) -> anyhow::Result<()> {
        let place = self.directory.display();
        let is_ours = |entries: fs::ReadDir| entries.count() == 0 || self.directory.join("run").is_dir();
        match fs::read_dir(&self.directory) {
            Ok(entries) => ensure!(is_ours(entries), "{place} holds something else: use an empty directory"),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot look into {place}")),
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
                .with_context(|| format!("cannot make {place}"))?;
            fs::set_permissions(&directory, Permissions::from_mode(mode))
                .with_context(|| format!("cannot set the mode of {place}"))?;
        }
        for above in self.directory.ancestors().skip(1) {
            let mode = fs::metadata(above).with_context(|| format!("cannot look at {}", above.display()))?;
            ensure!(
                mode.permissions().mode() & 0o001 != 0,
                "virtual machines run as another user, who cannot pass through {}: use another directory",
                above.display()
            );
        }
        Ok(())
    }

    /// Takes the right to run the site, unless another process has it.
    pub fn lock(&self) -> anyhow::Result<Lock> {
        let path = self.path("run/up.lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = self.pid("up").map_or_else(String::new, |pid| format!(" as process {pid}"));
                bail!(
                    "`heddle up` already runs in {}{holder}; `heddle down --dir {0}` stops it",
                    self.directory.display()
                );
            }
            Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the directory"),
        }
        self.write_pid("up", std::process::id())?;
        Ok(Lock { _file: file })
    }

    /// Whether a process runs the site.
    pub fn is_running(&self) -> bool {
        let file = File::open(self.path("run/up.lock"));
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Where things are kept.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether commands find it without being told where it is.
    pub fn is_default(&self) -> bool {
        let home = std::env::var_os("HEDDLE_HOME").unwrap_or_else(|| DEFAULT_HOME.into());
        std::path::absolute(home).is_ok_and(|home| home == self.directory)
    }

    /// A place in the directory.
    pub fn path(&self, inside: &str) -> PathBuf {
        // Without a slash at the end, so that paths compare and print as people write them.
        if inside.is_empty() { self.directory.clone() } else { self.directory.join(inside) }
    }

    /// The socket of a part.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.path(&format!("run/{name}.sock"))
    }

    /// Where the controller says where it listens.
    pub fn endpoint(&self) -> PathBuf {
        self.path(ENDPOINT_FILE)
    }

    /// What stock tools call the emulated fabric (`IBSIM_SOCKNAME`); a name of its own for every directory.
    pub fn fabric_name(&self) -> String {
        if self.directory == Path::new(DEFAULT_HOME) {
            return "heddle".to_owned();
        }
        let digest = Sha256::digest(self.directory.as_os_str().as_encoded_bytes());
        let [a, b, c, d, ..] = digest[..] else { return "heddle".to_owned() };
        format!("heddle-{a:02x}{b:02x}{c:02x}{d:02x}")
    }

    /// The process of a part, as it was written down.
    pub fn pid(&self, name: &str) -> Option<u32> {
        fs::read_to_string(self.path(&format!("run/{name}.pid"))).ok()?.trim().parse().ok()
    }

    /// Writes down the process of a part.
    pub fn write_pid(&self, name: &str, pid: u32) -> anyhow::Result<()> {
        write_whole(&self.path(&format!("run/{name}.pid")), format!("{pid}\n").as_bytes(), 0o644)
    }

    /// Forgets the process of a part.
    pub fn remove_pid(&self, name: &str) {
        // Whoever reads one that stayed behind finds no such process.
        let _ = fs::remove_file(self.path(&format!("run/{name}.pid")));
    }

    /// The secret that the keys of nodes are derived from, made once.
    pub fn secret(&self) -> anyhow::Result<PathBuf> {
        let path = self.path("site.secret");
        if !path.exists() {
            let mut secret = [0; SECRET_BYTES];
            File::open("/dev/urandom")
                .and_then(|mut source| source.read_exact(&mut secret))
                .context("cannot draw a secret from /dev/urandom")?;
            write_whole(&path, &secret, 0o600)?;
        }
        Ok(path)
    }

    /// The fabric to emulate: as it is in `file`, or with `hosts` hosts, or as it was.
    pub fn topology(&self, file: Option<&Path>, hosts: Option<u32>) -> anyhow::Result<(PathBuf, Topology)> {
        let path = self.path("fabric.topo");
        let text = match (file, fs::read(&path)) {
            (Some(file), _) => fs::read(file).with_context(|| format!("cannot read {}", file.display()))?,
            (None, Ok(kept)) => kept,
            (None, Err(error)) if error.kind() == ErrorKind::NotFound => {
                let topology = fat_tree(hosts.unwrap_or(DEFAULT_HOSTS)).generate()?;
                ibnetdiscover::write(&topology).into_bytes()
            }
            (None, Err(error)) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let source = file.unwrap_or(&path).display();
        let topology = ibnetdiscover::read(&text).with_context(|| format!("{source} is not a topology"))?;
        let adapters = topology.end_nodes().count();
        ensure!(adapters > 0, "there is no host in {source}");
        if let Some(hosts) = hosts {
            ensure!(
                adapters as u64 == u64::from(hosts),
                "the fabric in {source} has {adapters} hosts, not {hosts}: leave --hosts out, or use another --dir"
            );
        }
        write_whole(&path, &text, 0o644)?;
        Ok((path, topology))
    }
}

/// The hosts of a fabric: what adapters are called.
pub fn hosts(topology: &Topology) -> anyhow::Result<Vec<Name>> {
    let adapters = topology.end_nodes().map(|(_, node)| &node.description);
    let names: anyhow::Result<Vec<Name>> = adapters
        .map(|description| {
            description.parse().with_context(|| format!("the adapter {description:?} cannot be a host"))
        })
        .collect();
    let names = names?;
    let mut sorted = names.clone();
    sorted.sort();
    let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]);
    ensure!(twice.is_none(), "two adapters are called {}", twice.map_or("", |pair| pair[0].as_str()));
    Ok(names)
}

fn fat_tree(hosts: u32) -> FatTree {
    let radix = if hosts <= SMALL_HOSTS_MAX { SMALL_RADIX } else { DEFAULT_RADIX };
    FatTree { radix, ..FatTree::new(FatTreeSize::Hosts { hosts, levels: None }) }
}

/// Writes a file whole or not at all.
fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let draft = path.with_extension("draft");
    let written = || -> std::io::Result<()> {
        // One that a killed process left behind may have another mode.
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> (tempfile::TempDir, Site) {
        let scratch = tempfile::tempdir().unwrap();
        fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
        let site = Site::at(&scratch.path().join("site")).unwrap();
        site.prepare().unwrap();
        (scratch, site)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn others_pass_through_but_see_nothing() {
        let (_scratch, site) = site();
        assert_eq!((mode(&site.path("")), mode(&site.path("agent"))), (0o711, 0o711));
        assert_eq!((mode(&site.path("run")), mode(&site.path("log"))), (0o700, 0o700));
        let secret = site.secret().unwrap();
        assert_eq!(mode(&secret), 0o600);
        let before = fs::read(&secret).unwrap();
        assert_eq!((before.len(), before == [0; SECRET_BYTES]), (SECRET_BYTES, false));
        site.secret().unwrap();
        assert_eq!(fs::read(&secret).unwrap(), before, "it is made once");
    }

    #[test]
    fn a_directory_that_nobody_passes_through_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let site = Site::at(&scratch.path().join("site")).unwrap();
        fs::set_permissions(scratch.path(), Permissions::from_mode(0o700)).unwrap();
        let error = site.prepare().unwrap_err().to_string();
        assert!(error.contains("another user"), "{error}");
        fs::set_permissions(scratch.path(), Permissions::from_mode(0o711)).unwrap();
        site.prepare().unwrap();
    }

    #[test]
    fn a_directory_with_something_else_in_it_is_left_alone() {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("thesis.tex"), "").unwrap();
        let before = mode(scratch.path());
        let error = Site::at(scratch.path()).unwrap().prepare().unwrap_err().to_string();
        assert!(error.contains("something else"), "{error}");
        assert_eq!(mode(scratch.path()), before);
    }

    #[test]
    fn one_process_at_a_time_runs_a_site_and_the_other_is_told_which() {
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
    fn paths_that_no_socket_can_have_are_refused_early() {
        let deep = Path::new("/tmp").join("d".repeat(90));
        let error = Site::at(&deep).unwrap_err().to_string();
        assert!(error.contains("107"), "{error}");
        Site::at(&Path::new("/tmp").join("d".repeat(80))).unwrap();
        assert!(Site::at(Path::new("/tmp/a@b")).is_err());
    }

    #[test]
    fn a_fabric_is_made_once_and_kept() {
        let (_scratch, site) = site();
        let (path, topology) = site.topology(None, Some(20)).unwrap();
        assert_eq!(topology.end_nodes().count(), 20);
        let names = hosts(&topology).unwrap();
        assert_eq!((names[0].as_str(), names.len()), ("host-00001", 20));
        let written = fs::read(&path).unwrap();
        assert_eq!(site.topology(None, None).unwrap().1.end_nodes().count(), 20);
        assert_eq!(fs::read(&path).unwrap(), written);
        let error = site.topology(None, Some(16)).unwrap_err().to_string();
        assert!(error.contains("20 hosts, not 16"), "{error}");
    }

    #[test]
    fn small_fabrics_have_leaves_and_spines() {
        for hosts in [1, 2, 16, 32, 33, 324] {
            let topology = fat_tree(hosts).generate().unwrap();
            assert_eq!(topology.end_nodes().count() as u32, hosts);
        }
        assert_eq!(fat_tree(16).generate().unwrap().switches().count(), 6);
    }

    #[test]
    fn sites_do_not_share_a_name_for_stock_tools() {
        assert_eq!(Site::at(Path::new(DEFAULT_HOME)).unwrap().fabric_name(), "heddle");
        let names = ["/tmp/a", "/tmp/b"].map(|path| Site::at(Path::new(path)).unwrap().fabric_name());
        assert_ne!(names[0], names[1]);
    }
}
