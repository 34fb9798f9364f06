//! `heddle plan explain`: shows what a plan assigns to a cluster, and why.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;
use fabric_model::decisions::ClusterDecision;
use fabric_model::intent::PortName;
use fabric_model::plan::{AdapterPortPlan, PortQos};
use fabric_model::tenancy::{Class, Nanoseconds, SlMode};
use fabric_model::{Endpoint, FabricPlan, LinkRate, Topology};
use ib_wire::{Guid, PartitionNumber};
use serde_json::json;

use super::file::PlanFile;
use super::guarantee_terms;
use crate::cli::output::{Format, count, facts, or_dash, table};
use crate::topology::read_topology;

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Cluster, as TENANT/NAME, or NAME if only one tenant has it
    cluster: String,
    /// Topology file of the fabric, in the format of ibnetdiscover; - reads standard input
    #[arg(long, value_name = "NET")]
    topology: PathBuf,
    /// Plan file, as `heddle plan --out` writes it
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

pub fn run(args: &ExplainArgs) -> Result<()> {
    let topology = read_topology(&args.topology)?;
    let file = PlanFile::read(&args.plan)?;
    let name = find(&file, &args.cluster)?;
    let explanation = Explanation { topology: &topology, file: &file, name: &name };
    let decision = decision(&file.plan, &name);
    let value = json!({ "cluster": name, "ports": file.seats[&name], "decision": decision });
    args.output.print(&value, |_| explanation.text())
}

/// The decision for a guaranteed cluster; `None` for best effort.
fn decision<'p>(plan: &'p FabricPlan, name: &str) -> Option<&'p ClusterDecision> {
    plan.decisions().clusters.get(name).map(|decision| &**decision)
}

/// The full name of a cluster.
fn find(file: &PlanFile, text: &str) -> Result<String> {
    let is_it = |name: &&String| *name == text || name.split_once('/').is_some_and(|(_, own)| own == text);
    let found: Vec<&String> = file.seats.keys().filter(is_it).collect();
    match found[..] {
        [name] => Ok(name.clone()),
        [] => {
            let known: Vec<&str> = file.seats.keys().map(String::as_str).collect();
            Err(anyhow!("no cluster is called {text}; the plan has {}", known.join(", ")))
        }
        _ => Err(anyhow!("several tenants have a cluster {text}: use TENANT/NAME")),
    }
}

struct Explanation<'a> {
    topology: &'a Topology,
    file: &'a PlanFile,
    name: &'a str,
}

impl Explanation<'_> {
    fn text(&self) -> String {
        let decision = decision(self.plan(), self.name);
        let mut parts = vec![facts(self.facts(decision)), String::new(), self.nodes()];
        if let Some(decision) = decision {
            if !decision.pairs.is_empty() {
                parts.extend([String::new(), self.pairs(decision)]);
            }
            parts.extend([String::new(), self.links(decision)]);
        }
        parts.join("\n")
    }

    fn plan(&self) -> &FabricPlan {
        &self.file.plan
    }

    fn ports(&self) -> impl Iterator<Item = &AdapterPortPlan> {
        self.file.seats[self.name].iter().filter_map(|port| self.plan().adapter_port(*port))
    }

    fn facts(&self, decision: Option<&ClusterDecision>) -> Vec<(&'static str, String)> {
        let spec = self.file.site.clusters.iter().find(|spec| spec.full_name() == self.name);
        let class = spec.map_or(Class::BestEffort, |spec| spec.class);
        let partitions: Vec<String> =
            self.partitions().map(|(number, name)| format!("{number} ({name})")).collect();
        let mut rows = vec![
            ("cluster", self.name.to_owned()),
            ("guarantee", class.to_string()),
            ("partitions", partitions.join(", ")),
            ("switches", self.switches()),
        ];
        match decision {
            None => rows.push((
                "network",
                "best effort: service level 0 and the shared lane, with the bandwidth that others leave"
                    .to_owned(),
            )),
            Some(decision) => {
                rows.extend([
                    ("service level", self.service_level_text(decision)),
                    ("links", self.why_links(decision)),
                    (
                        "wire bound",
                        format!(
                            "{}: the latest arrival of a packet that finds its own lane empty, whatever other clusters send; \
                             adapters and PCIe are not included",
                            Nanoseconds::from_ns(decision.bound_ns)
                        ),
                    ),
                    ("presupposes", guarantee_terms(&self.file.intents)),
                ]);
            }
        }
        rows
    }

    fn service_level_text(&self, decision: &ClusterDecision) -> String {
        if decision.sl_mode == SlMode::Path {
            return "one for each pair of switches, in path records; see below".to_owned();
        }
        let level = or_dash(decision.service_level().map(|level| level.to_wire()));
        format!("{level}: no other cluster uses it on these links")
    }

    /// The service levels of pairs of switches.
    fn pairs(&self, decision: &ClusterDecision) -> String {
        let rows = decision.pairs.iter().map(|pair| {
            let (a, b) = pair.switches;
            [self.node_name(a), self.node_name(b), pair.service_level.to_wire().to_string()]
        });
        table(["between", "and", "sl, both directions"], rows)
    }

    fn partitions(&self) -> impl Iterator<Item = (PartitionNumber, &str)> {
        let own = self.plan().partitions().filter(|partition| {
            let name = &partition.name;
            name == self.name || name.strip_prefix(self.name).is_some_and(|rest| rest.starts_with('/'))
        });
        own.map(|partition| (partition.number, partition.name.as_str()))
    }

    /// The leaf switches of the nodes.
    fn switches(&self) -> String {
        let leaves: BTreeSet<Guid> = self.ports().map(|port| port.peer.node).collect();
        let names: Vec<String> = leaves.iter().map(|leaf| self.node_name(*leaf)).collect();
        match names.len() {
            1 => format!("all nodes at {}: no link between switches is used", names[0]),
            number => format!("{}: {}", count(number, "switch"), names.join(", ")),
        }
    }

    fn why_links(&self, decision: &ClusterDecision) -> String {
        let chosen = self.ports().filter(|port| self.is_chosen(port)).count();
        let between = decision.links.iter().filter(|grant| self.between_switches(grant.port)).count();
        let paths = match (between, chosen) {
            (0, _) => String::new(),
            (_, 0) => "; packets take the default routes".to_owned(),
            (_, chosen) => {
                format!("; the path to {} was chosen to balance the load of links", count(chosen, "host"))
            }
        };
        format!("{}, {between} of them between switches{paths}", count(decision.links.len(), "link"))
    }

    /// Whether packets to a port come down by another link than the default one, the number of the port at its switch.
    fn is_chosen(&self, port: &AdapterPortPlan) -> bool {
        let decisions = self.plan().decisions();
        let uplinks =
            decisions.routing.switches.get(&port.peer.node).map_or(0, |switch| switch.uplinks.len());
        let at_leaf = self.plan().adapter_ports().filter(|other| other.peer.node == port.peer.node);
        let position = at_leaf.filter(|other| other.peer.port < port.peer.port).count();
        let up = decisions.end_ports.get(&port.guid).and_then(|end| end.uplink_path.first());
        uplinks > 0 && up.is_some_and(|up| usize::from(*up) != position % uplinks)
    }

    fn nodes(&self) -> String {
        let rows = (1..).zip(self.ports()).map(|(number, port): (u32, _)| {
            // The virtual function of the node sees them as index 0, 1 …; these are the indexes in the table of the port.
            let keys: Vec<String> = (self.partitions())
                .filter_map(|(partition, _)| {
                    let held = port
                        .pkeys
                        .entries()
                        .iter()
                        .position(|key| key.is_some_and(|key| key.partition() == partition))?;
                    let key = port.pkeys.entries()[held]?;
                    Some(format!("{key} at {held}"))
                })
                .collect();
            [
                number.to_string(),
                self.node_name(port.name.node),
                port.lid.to_string(),
                self.node_name(port.peer.node),
                port.peer.port.to_string(),
                keys.join(", "),
            ]
        });
        table(["node", "host", "lid", "switch", "port", "keys"], rows)
    }

    /// The share of every link, and the sum of the shares of all guaranteed clusters.
    fn links(&self, decision: &ClusterDecision) -> String {
        let mut taken: BTreeMap<PortName, (u64, usize)> = BTreeMap::new();
        for grant in self.plan().decisions().clusters.values().flat_map(|cluster| &cluster.links) {
            let (bits, clusters) = taken.entry(grant.port).or_default();
            *bits += grant.share.bits_per_s();
            *clusters += 1;
        }
        let rows = decision.links.iter().map(|grant| {
            let rate = self.rate(grant.port) * 1e9;
            let (bits, clusters) = taken[&grant.port];
            let percent = |bits: u64| format!("{:.1} %", bits as f64 / rate * 100.0);
            let levels: Vec<String> =
                grant.service_levels.iter().map(|level| level.to_wire().to_string()).collect();
            let entries = self.sharing(grant.port).map_or(0, |sharing| sharing.low.len());
            [
                format!("{} {}", self.node_name(grant.port.node), grant.port.port),
                self.peer(grant.port).map_or_else(String::new, |peer| self.node_name(peer)),
                grant.lane.to_wire().to_string(),
                levels.join(","),
                grant.share.to_string(),
                percent(grant.share.bits_per_s()),
                format!("{} x {} of {entries}", grant.entries, grant.weight),
                format!("{}: {}", count(clusters, "cluster"), percent(bits)),
            ]
        });
        table(
            ["from", "to", "lane", "sl", "share", "of the link", "entries x weight", "guaranteed in all"],
            rows,
        )
    }

    fn sharing(&self, port: PortName) -> Option<&PortQos> {
        let of_switch = || self.plan().switch(port.node)?.port(port.port)?.qos.as_deref();
        let of_adapter = || self.plan().adapter_ports().find(|it| it.name == port)?.qos.as_deref();
        of_switch().or_else(of_adapter)
    }

    fn end(&self, port: PortName) -> Option<Endpoint> {
        Some(Endpoint::new(self.topology.by_guid(port.node)?, port.port))
    }

    fn peer(&self, port: PortName) -> Option<Guid> {
        let peer = self.topology.peer(self.end(port)?)?;
        Some(self.topology.node(peer.node)?.guid)
    }

    fn between_switches(&self, port: PortName) -> bool {
        let is_switch = |guid: Guid| self.plan().switch(guid).is_some();
        is_switch(port.node) && self.peer(port).is_some_and(is_switch)
    }

    /// Data rate in Gb/s, without line code.
    fn rate(&self, port: PortName) -> f64 {
        let end = self.end(port);
        let rate = end.and_then(|end| self.topology.port(end)?.rate);
        let far = || self.topology.port(self.topology.peer(end?)?)?.rate;
        rate.or_else(far).unwrap_or(LinkRate::DEFAULT).data_rate_gbps()
    }

    fn node_name(&self, node: Guid) -> String {
        let found = self.topology.by_guid(node).and_then(|index| self.topology.node(index));
        found.map_or_else(|| node.to_string(), |node| node.description.clone())
    }
}
