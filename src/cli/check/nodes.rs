//! Commands in the nodes of a cluster. Their output is bounded, and so is their time.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use controller_api::cluster::{Cluster, ClusterNode, NodeState};
use controller_api::session::NewSession;
use controller_api::{ApiClient, ClusterRef};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::super::exec::carry;
use super::parse::short;

/// Longest output of a command that is kept. The tools print a few KiB; the rest is read and dropped.
const OUTPUT_BYTES_MAX: usize = 128 * 1024;

/// Nodes that take part: more would make the checks long without showing more.
const NODES_MAX: usize = 32;

/// Time for a node to end a command that `timeout` has killed.
const GRACE: Duration = Duration::from_secs(20);

/// Time that servers need until they listen. Clients that come earlier try again.
const SERVER_START: Duration = Duration::from_secs(1);

/// Attempts of a client to reach its server, a second apart.
const CLIENT_ATTEMPTS: u32 = 6;

/// The nodes of a cluster that are ready, and a way to run commands in them.
pub struct NodeCommands<'a> {
    client: &'a ApiClient,
    cluster: ClusterRef,
    nodes: Vec<CheckedNode>,
    known_addresses: Vec<Ipv4Addr>,
}

/// A node, with values that may stand in a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedNode {
    pub number: u32,
    pub name: String,
    pub address: Ipv4Addr,
}

/// What a command in a node printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    pub status: i32,
    /// Standard output and error, at most [`OUTPUT_BYTES_MAX`].
    pub text: String,
}

impl Printed {
    /// The output of a command that succeeded.
    pub fn ok(self, what: &str) -> anyhow::Result<String> {
        match self.status {
            0 => Ok(self.text),
            124 | 137 => bail!("{what} did not end in time; it printed: {}", last_lines(&self.text)),
            status => bail!("{what} ended with status {status}: {}", last_lines(&self.text)),
        }
    }
}

/// The end of an output, where tools say what is wrong.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.len() {
        0 => "nothing".to_owned(),
        count => short(&lines[count.saturating_sub(3)..].join("; ")),
    }
}

impl<'a> NodeCommands<'a> {
    /// The ready nodes of a cluster.
    ///
    /// # Errors
    ///
    /// If there are none, or the controller gives an address that is none.
    pub fn new(client: &'a ApiClient, cluster: ClusterRef, known: &Cluster) -> anyhow::Result<Self> {
        let ready = known.nodes.iter().filter(|node| node.state == NodeState::Ready).take(NODES_MAX);
        let nodes = ready.map(CheckedNode::new).collect::<anyhow::Result<Vec<_>>>()?;
        let name = &cluster.name;
        ensure!(!nodes.is_empty(), "cluster {name} has no ready node; see `heddle cluster show {name}`");
        let known_addresses = known.nodes.iter().filter_map(|node| node.address.parse().ok()).collect();
        Ok(Self { client, cluster, nodes, known_addresses })
    }

    /// The addresses of all nodes, also of those that take no part.
    pub fn known_addresses(&self) -> &[Ipv4Addr] {
        &self.known_addresses
    }

    /// The GUIDs of the nodes: of their adapters, and those that they have in the view of the cluster.
    pub async fn own_guids(&self) -> anyhow::Result<BTreeSet<String>> {
        let view = self.client.view_show(&self.cluster).await.context("the view of the cluster")?;
        let seen = view.nodes.iter().flat_map(|node| [node.guid, node.port_guid]);
        let mut guids: BTreeSet<String> = seen.map(|guid| guid.to_string()).collect();
        for node in &self.nodes {
            // "8672:8285:940f:5111"
            let printed = self.ok(node, "cat /sys/class/infiniband/*/node_guid", GRACE).await?;
            guids.insert(format!("0x{}", short(&printed).replace(':', "")));
        }
        Ok(guids)
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    pub fn all(&self) -> &[CheckedNode] {
        &self.nodes
    }

    /// The node that serves in checks between two nodes.
    pub fn first(&self) -> &CheckedNode {
        &self.nodes[0]
    }

    /// The other node in checks between two nodes.
    pub fn second(&self) -> anyhow::Result<&CheckedNode> {
        self.nodes.get(1).context("the cluster has one node only")
    }

    /// Runs a shell script in a node, for at most `limit`.
    pub async fn run(&self, node: &CheckedNode, script: &str, limit: Duration) -> anyhow::Result<Printed> {
        self.run_announced(node, script, limit, None).await
    }

    /// The output of a script that has to succeed.
    pub async fn ok(&self, node: &CheckedNode, script: &str, limit: Duration) -> anyhow::Result<String> {
        self.run(node, script, limit).await?.ok(&node.name)
    }

    /// Runs a script, and says when its output contains a word.
    async fn run_announced(
        &self,
        node: &CheckedNode,
        script: &str,
        limit: Duration,
        announced: Option<(&str, oneshot::Sender<()>)>,
    ) -> anyhow::Result<Printed> {
        let seconds = limit.as_secs().to_string();
        let argv = ["timeout", "-k", "5", &seconds, "sh", "-c", script].map(str::to_owned).to_vec();
        let stream = self.client.session(&self.cluster, node.number, &NewSession::Exec { argv }).await;
        let stream = stream.with_context(|| node.name.clone())?;
        let mut kept = Kept::default();
        let (word, mut sender) = announced.map_or(("", None), |(word, sender)| (word, Some(sender)));
        let carried = carry(stream, None::<tokio::io::Empty>, |_, bytes| {
            kept.push(bytes);
            if sender.is_some() && kept.contains(word) {
                // Nobody waits any longer if the client has failed before.
                let _ = sender.take().map(|sender| sender.send(()));
            }
            io::Result::Ok(())
        });
        let ended = timeout(limit + GRACE, carried).await;
        let status = ended.with_context(|| format!("{} does not end a command", node.name))??;
        Ok(Printed { status, text: kept.into_text() })
    }

    /// Runs a server in the first node and a client in the second; the client tries again until the server listens.
    pub async fn pair(
        &self,
        server: &str,
        client: &str,
        limit: Duration,
    ) -> anyhow::Result<(String, String)> {
        let (first, second) = (self.first(), self.second()?);
        let client = format!(
            "tries=0; until {client}; do tries=$((tries + 1)); [ $tries -lt {CLIENT_ATTEMPTS} ] || exit 1; sleep 1; done"
        );
        let serve = self.run(first, server, limit);
        let ask = async {
            sleep(SERVER_START).await;
            self.run(second, &client, limit).await
        };
        both(serve, ask, first, second).await
    }

    /// Runs `listener` in the second node, and `sender` in the first as soon as the listener has printed `ready`.
    pub async fn while_listening(
        &self,
        (listener, ready): (&str, &str),
        sender: &str,
        limit: Duration,
    ) -> anyhow::Result<(String, String)> {
        let (first, second) = (self.first(), self.second()?);
        let (announce, is_ready) = oneshot::channel();
        let listen = self.run_announced(second, listener, limit, Some((ready, announce)));
        let send = async {
            is_ready.await.with_context(|| format!("{} does not listen", second.name))?;
            self.run(first, sender, limit).await
        };
        both(listen, send, second, first).await
    }
}

/// Waits for a server and its client. If one fails the other is not waited for: closing its session ends it.
async fn both(
    serve: impl Future<Output = anyhow::Result<Printed>>,
    ask: impl Future<Output = anyhow::Result<Printed>>,
    server: &CheckedNode,
    client: &CheckedNode,
) -> anyhow::Result<(String, String)> {
    let serve = async { serve.await?.ok(&format!("the server in {}", server.name)) };
    let ask = async { ask.await?.ok(&format!("the client in {}", client.name)) };
    tokio::try_join!(serve, ask)
}

impl CheckedNode {
    fn new(node: &ClusterNode) -> anyhow::Result<Self> {
        let address = node.address.parse();
        let address =
            address.with_context(|| format!("{} has no IPv4 address: {}", node.name, node.address))?;
        Ok(Self { number: node.number, name: node.name.clone(), address })
    }
}

/// The beginning of an output.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
}

impl Kept {
    fn push(&mut self, bytes: &[u8]) {
        let room = OUTPUT_BYTES_MAX - self.bytes.len();
        self.bytes.extend(&bytes[..bytes.len().min(room)]);
    }

    fn contains(&self, word: &str) -> bool {
        self.bytes.windows(word.len().max(1)).any(|window| window == word.as_bytes())
    }

    fn into_text(self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_output_is_cut_off() {
        let mut kept = Kept::default();
        for _ in 0..100 {
            kept.push(&[b'x'; 10_000]);
        }
        assert_eq!(kept.into_text().len(), OUTPUT_BYTES_MAX);
    }

    #[test]
    fn a_word_is_found_across_pieces() {
        let mut kept = Kept::default();
        kept.push(b"is liste");
        assert!(!kept.contains("listening"));
        kept.push(b"ning now");
        assert!(kept.contains("listening"));
    }

    #[test]
    fn failures_say_what_was_printed_last() {
        let printed = |status, text: &str| Printed { status, text: text.to_owned() };
        assert_eq!(printed(0, "fine").ok("it").unwrap(), "fine");
        let text = printed(2, "a\nb\n\nc\nd\n").ok("the client").unwrap_err().to_string();
        assert_eq!(text, "the client ended with status 2: b; c; d");
        let text = printed(124, "").ok("the client").unwrap_err().to_string();
        assert_eq!(text, "the client did not end in time; it printed: nothing");
    }
}
