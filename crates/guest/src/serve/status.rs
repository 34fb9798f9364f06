//! How the node stands, and what its commands find around them.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::apply;
use crate::channel::DATA_BYTES_MAX;
use crate::probe::{ProbeKey, ProbeTask};
use crate::seed::{CONTEXT_FILE, ContextFile, PROBE_KEY_FILE, Seed, UserData};

/// Where init leaves word of what went wrong, below the root.
const FAILURE_FILE: &str = "run/heddle/failed";

/// The device of the cluster's network, as seeds name it.
const DEVICE: &str = "eth0";

/// SessionRequest commands get before anything else.
const BASE_ENVIRONMENT: [(&str, &str); 6] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/root"),
    ("USER", "root"),
    ("LOGNAME", "root"),
    ("SHELL", "/bin/bash"),
    ("LANG", "C.UTF-8"),
];

/// How the node stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeStatus {
    /// There is no context yet, or ssh is not served yet.
    Waiting,
    /// It is as its context says.
    Ready {
        /// Of the context.
        generation: u64,
    },
    /// It is not.
    Failed {
        /// Of the context; 0 if it could not be read.
        generation: u64,
        /// Why.
        reason: String,
    },
}

/// The machine that is served.
#[derive(Debug)]
pub struct GuestNode {
    root: PathBuf,
    /// Whether it is this machine: ssh has to be served before the node is ready, and it has a network.
    is_this_machine: bool,
    status: NodeStatus,
}

/// SessionRequest commands find around them.
#[derive(Clone, Debug)]
pub(super) struct Environment {
    /// Variables.
    pub(super) variables: Vec<(String, String)>,
    /// Where they start.
    pub(super) directory: PathBuf,
}

impl GuestNode {
    /// This machine: ready once ssh is served.
    pub fn this() -> Self {
        Self::at("/".into(), true)
    }

    /// A machine whose files are below a folder, without ssh and network.
    pub fn below(root: &Path) -> Self {
        Self::at(root.to_owned(), false)
    }

    fn at(root: PathBuf, is_this_machine: bool) -> Self {
        let mut node = Self { root, is_this_machine, status: NodeStatus::Waiting };
        node.refresh();
        node
    }

    /// How it stands.
    pub fn status(&self) -> NodeStatus {
        self.status.clone()
    }

    /// Looks whether what was waited for has come.
    pub(super) fn refresh(&mut self) {
        if self.status == NodeStatus::Waiting && (!self.is_this_machine || ssh_is_served()) {
            self.status = self.status_on_disk();
        }
    }

    /// Applies a new context, whole or not at all, as far as it can be told before writing.
    pub(super) fn apply(&mut self, context: &[u8]) {
        // SessionRequest init could not do is out of date: it is done now, or the reason is another.
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

    /// That of the context that is in force; 0 without one.
    fn generation(&self) -> u64 {
        self.context().map_or(0, |context| context.generation)
    }

    fn context(&self) -> Option<ContextFile> {
        ContextFile::read(&self.read(CONTEXT_FILE))
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.root.join(file.trim_start_matches('/'))).unwrap_or_default()
    }

    /// SessionRequest the context in force asks to find out about the network, if it does.
    pub(super) fn probe_task(&self) -> Option<ProbeTask> {
        let context = self.context()?;
        let probes = context.probes?;
        let (own_address, _) = context.address.split_once('/')?;
        let (own_address, key) = (own_address.parse().ok()?, ProbeKey::from_hex(&self.read(PROBE_KEY_FILE))?);
        Some(ProbeTask { own_address, generation: context.generation, probes, key })
    }

    /// The device of the cluster's network.
    pub(super) fn device(&self) -> Option<&'static str> {
        self.is_this_machine.then_some(DEVICE)
    }

    pub(super) fn boot_id(&self) -> String {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim_end().to_owned()
    }

    /// That of a login, without the shell that would read it.
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

/// Leaves word of what init could not do, for the host.
pub(crate) fn report_failure(root: &Path, reason: &str) -> io::Result<()> {
    let file = root.join(FAILURE_FILE);
    fs::create_dir_all(file.parent().expect("it has a folder"))?;
    fs::write(file, reason)
}

/// Whether somebody listens at port 22, by what the kernel says: a connection would make sshd start a process.
pub(crate) fn ssh_is_served() -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|file| fs::read_to_string(file).is_ok_and(|table| listens(&table, 22)))
}

/// Reads a table of the kernel: `sl local_address rem_address st …`, where 0A means that it listens.
fn listens(table: &str, port: u16) -> bool {
    let at_port = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, _, state) = (fields.next(), fields.next(), fields.next());
        local.is_some_and(|local| local.ends_with(&at_port)) && state == Some("0A")
    })
}

/// An error and what it came from, in one line that fits a frame.
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
    fn only_a_listening_socket_counts_as_served() {
        assert!(listens(TABLE, 22));
        assert!(!listens(TABLE, 0x1f90));
        assert!(!listens("", 22));
    }

    #[test]
    fn what_init_could_not_do_is_told() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(GuestNode::below(root.path()).status(), NodeStatus::Waiting);
        report_failure(root.path(), "no seed").expect("written");
        let failed = NodeStatus::Failed { generation: 0, reason: "no seed".to_owned() };
        assert_eq!(GuestNode::below(root.path()).status(), failed);
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let reason = truncate_reason("é".repeat(DATA_BYTES_MAX));
        assert!(reason.len() <= DATA_BYTES_MAX / 16 && reason.ends_with('é'));
    }
}
