//! Status of the node, and the environment of its sessions.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::apply;
use crate::channel::DATA_BYTES_MAX;
use crate::probe::{ProbeKey, ProbeTask};
use crate::seed::{CONTEXT_FILE, ContextFile, IPOIB_DEVICE, PROBE_KEY_FILE, Seed, UserData};

/// File in which init records why it failed, relative to the root.
const FAILURE_FILE: &str = "run/heddle/failed";

/// Environment variables of every session, before those of /etc/environment.
const BASE_ENVIRONMENT: [(&str, &str); 6] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/root"),
    ("USER", "root"),
    ("LOGNAME", "root"),
    ("SHELL", "/bin/bash"),
    ("LANG", "C.UTF-8"),
];

/// Status of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeStatus {
    /// There is no context yet, or sshd does not listen yet.
    Waiting,
    /// The context of this generation is applied.
    Ready { generation: u64 },
    Failed {
        /// 0 if the context could not be parsed.
        generation: u64,
        reason: String,
    },
}

/// The machine that is served: its files and its status.
#[derive(Debug)]
pub struct GuestNode {
    root: PathBuf,
    /// Whether it is the running machine: sshd must listen before it is ready, and it has a network device.
    is_this_machine: bool,
    status: NodeStatus,
}

/// Environment of a session's process.
#[derive(Clone, Debug)]
pub(super) struct Environment {
    pub(super) variables: Vec<(String, String)>,
    pub(super) directory: PathBuf,
}

impl GuestNode {
    /// The running machine: ready once sshd listens.
    pub fn this_machine() -> Self {
        Self::at("/".into(), true)
    }

    /// A machine whose root is `root`, without sshd and network; for tests.
    pub fn below(root: &Path) -> Self {
        Self::at(root.to_owned(), false)
    }

    fn at(root: PathBuf, is_this_machine: bool) -> Self {
        let mut node = Self { root, is_this_machine, status: NodeStatus::Waiting };
        node.refresh();
        node
    }

    pub fn status(&self) -> NodeStatus {
        self.status.clone()
    }

    /// Leaves [`NodeStatus::Waiting`] if the conditions for that are met.
    pub(super) fn refresh(&mut self) {
        if self.status == NodeStatus::Waiting && (!self.is_this_machine || ssh_is_served()) {
            self.status = self.status_on_disk();
        }
    }

    /// Applies a new context. It is validated before anything is written; see [`apply::write_files`].
    pub(super) fn apply(&mut self, context: &[u8]) {
        // A failure of init is superseded by the result of this context.
        let _ = fs::remove_file(self.root.join(FAILURE_FILE));
        let documents = Seed::from_context(context).and_then(|seed| seed.read());
        self.status = match documents {
            Err(error) => NodeStatus::Failed { generation: 0, reason: error_chain(&error) },
            Ok(documents) => match self.write(&documents.user) {
                Ok(()) => NodeStatus::Waiting,
                Err(error) => {
                    let generation = documents.user.generation().unwrap_or(0);
                    NodeStatus::Failed { generation, reason: error_chain(&*error) }
                }
            },
        };
        self.refresh();
    }

    fn write(&self, user: &UserData) -> Result<(), Box<dyn Error>> {
        apply::write_files(&self.root, user)?;
        if self.root == Path::new("/") {
            nix::unistd::sethostname(&user.hostname)?;
        }
        Ok(())
    }

    fn status_on_disk(&self) -> NodeStatus {
        let generation = self.generation();
        match fs::read_to_string(self.root.join(FAILURE_FILE)) {
            Ok(reason) => NodeStatus::Failed { generation, reason: truncate_reason(reason) },
            Err(_) if generation == 0 => NodeStatus::Waiting,
            Err(_) => NodeStatus::Ready { generation },
        }
    }

    /// Generation of the current context; 0 if there is none.
    fn generation(&self) -> u64 {
        self.context().map_or(0, |context| context.generation)
    }

    fn context(&self) -> Option<ContextFile> {
        ContextFile::read(&self.read(CONTEXT_FILE))
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.root.join(file.trim_start_matches('/'))).unwrap_or_default()
    }

    /// Parameters of the network check that the current context requests, if it does.
    pub(super) fn probe_task(&self) -> Option<ProbeTask> {
        let context = self.context()?;
        let probes = context.probes?;
        let (own_address, _) = context.address.split_once('/')?;
        let (own_address, key) = (own_address.parse().ok()?, ProbeKey::from_hex(&self.read(PROBE_KEY_FILE))?);
        Some(ProbeTask { own_address, generation: context.generation, probes, key })
    }

    /// Network device of the cluster, if there is one.
    pub(super) fn device(&self) -> Option<&'static str> {
        let is_ipoib = self.context()?.device.as_deref() == Some(IPOIB_DEVICE);
        self.is_this_machine.then_some(if is_ipoib { IPOIB_DEVICE } else { "eth0" })
    }

    pub(super) fn boot_id(&self) -> String {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim_end().to_owned()
    }

    /// The environment of a login session: base variables and /etc/environment, in the home directory of root.
    pub(super) fn environment(&self) -> Environment {
        let mut variables: Vec<(String, String)> =
            BASE_ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let text = fs::read_to_string(self.root.join("etc/environment")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once('='));
        variables.extend(lines.map(|(name, value)| (name.trim().to_owned(), value.to_owned())));
        let home = self.root.join("root");
        Environment { variables, directory: if home.is_dir() { home } else { self.root.clone() } }
    }
}

/// Records why init failed, for the channel server to report.
pub(crate) fn report_failure(root: &Path, reason: &str) -> io::Result<()> {
    let file = root.join(FAILURE_FILE);
    fs::create_dir_all(file.parent().expect("the path has a parent directory"))?;
    fs::write(file, reason)
}

/// Whether a process listens on TCP port 22. Read from /proc/net, because a connection would make sshd fork.
pub(crate) fn ssh_is_served() -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|file| fs::read_to_string(file).is_ok_and(|table| listens(&table, 22)))
}

/// Parses /proc/net/tcp: `sl local_address rem_address st …`, where state 0A is LISTEN.
fn listens(table: &str, port: u16) -> bool {
    let at_port = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, _, state) = (fields.next(), fields.next(), fields.next());
        local.is_some_and(|local| local.ends_with(&at_port)) && state == Some("0A")
    })
}

/// An error and its sources in one line, truncated to fit a frame.
pub(crate) fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text += &format!(": {inner}");
        source = inner.source();
    }
    truncate_reason(text)
}

pub(super) fn truncate_reason(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(DATA_BYTES_MAX / 16));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel prints it.
    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:1F90 0100007F:0016 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
";

    #[test]
    fn only_a_listening_socket_counts_as_ssh() {
        assert!(listens(TABLE, 22));
        assert!(!listens(TABLE, 0x1f90));
        assert!(!listens("", 22));
    }

    #[test]
    fn a_failure_of_init_becomes_the_status() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(GuestNode::below(root.path()).status(), NodeStatus::Waiting);
        report_failure(root.path(), "no seed").expect("written");
        let failed = NodeStatus::Failed { generation: 0, reason: "no seed".to_owned() };
        assert_eq!(GuestNode::below(root.path()).status(), failed);
    }

    #[test]
    fn long_reasons_are_truncated_between_characters() {
        let reason = truncate_reason("é".repeat(DATA_BYTES_MAX));
        assert!(reason.len() <= DATA_BYTES_MAX / 16 && reason.ends_with('é'));
    }
}
