//! `heddle-bench judge`: `heddle sm` configures fabrics of every topology on both emulators, and independent tools check them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use fabric_model::generate::{DragonflyPlus, FatTree, RandomFabric, Torus};
use fabric_model::{Endpoint, NodeIndex, Topology, ibnetdiscover};
use ib_transport::ibsim::SocketName;
use ib_wire::{ForwardingBlock, PortNum};
use serde::Serialize;

use crate::probe::{FabricSnapshot, Probe};
use crate::process::{Emulator, ServerProcess};
use crate::scratch::{ScratchDir, unique};
use crate::stock::Stock;
use crate::{Programs, subnet_list, walk};

/// Let `heddle sm --once` configure fabrics on ibsim and on `heddle sim`, and check the tables of the nodes.
///
/// Every cabled port has to be active, every adapter has to reach every other through the tables read back from the
/// switches, and there must be no credit loop. ibdmchk checks the same for fabrics of up to `--check-hosts` hosts;
/// ibtracert traces pairs; ibroute and smpquery have to print what was read. The first failure ends the run.
#[derive(Debug, Args)]
pub struct JudgeArgs {
    /// Fabric to configure, may be repeated: `fat-tree:HOSTS[:RADIX]`, `torus:AxBxC`, `dragonfly-plus:GROUPS`, `random:SWITCHES:DEGREE:SEED`, or
    /// a topology file.
    #[arg(long = "fabric", default_values = DEFAULT_FABRICS)]
    pub fabrics: Vec<FabricSpec>,
    /// Pairs of adapters to trace with ibtracert.
    #[arg(long, default_value_t = 200)]
    pub pairs: usize,
    /// Largest fabric, in hosts, that ibdmchk checks: it takes minutes for larger ones.
    #[arg(long, default_value_t = 2000)]
    pub check_hosts: usize,
    /// Check on `heddle sim` only, without ibsim.
    #[arg(long)]
    pub alone: bool,
    /// Print the figures as JSON instead of Markdown.
    #[arg(long)]
    pub json: bool,
}

const DEFAULT_FABRICS: [&str; 7] = [
    "fat-tree:324",
    "fat-tree:1944",
    "fat-tree:4860",
    "fat-tree:11664",
    "torus:4x4x4",
    "dragonfly-plus:6",
    "random:40:5:7",
];

/// Switch ports that stock tools confirm one by one.
const SAMPLES: usize = 8;

/// A fabric by rule or from a file.
#[derive(Clone, Debug)]
pub struct FabricSpec {
    text: String,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    FatTree(FatTree),
    Torus(Torus),
    Dragonfly(DragonflyPlus),
    Random(RandomFabric),
    File(PathBuf),
}

impl FromStr for FabricSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let source = match parts[..] {
            ["fat-tree", hosts] => Source::FatTree(FatTree::with_hosts(hosts.parse()?)),
            ["fat-tree", hosts, radix] => {
                Source::FatTree(FatTree { radix: radix.parse()?, ..FatTree::with_hosts(hosts.parse()?) })
            }
            ["torus", sides] => {
                let sides = sides.split('x').map(str::parse).collect::<Result<Vec<u16>, _>>()?;
                Source::Torus(Torus::new(sides))
            }
            ["dragonfly-plus", groups] => Source::Dragonfly(DragonflyPlus::new(groups.parse()?)),
            ["random", switches, degree, seed] => {
                Source::Random(RandomFabric::new(switches.parse()?, degree.parse()?, seed.parse()?))
            }
            [path] if Path::new(path).exists() => Source::File(path.into()),
            _ => bail!(
                "expected fat-tree:HOSTS[:RADIX], torus:AxBxC, dragonfly-plus:GROUPS, random:SWITCHES:DEGREE:SEED or a topology \
             file, got {text:?}"
            ),
        };
        Ok(Self { text: text.to_owned(), source })
    }
}

impl FabricSpec {
    fn topology(&self) -> anyhow::Result<Topology> {
        Ok(match &self.source {
            Source::FatTree(tree) => tree.generate()?,
            Source::Torus(torus) => torus.generate()?,
            Source::Dragonfly(dragonfly) => dragonfly.generate()?,
            Source::Random(random) => random.generate()?,
            Source::File(path) => ibnetdiscover::read(&std::fs::read(path)?)?,
        })
    }

    /// Its name in a table.
    fn name(&self) -> &str {
        Path::new(&self.text).file_name().and_then(|name| name.to_str()).unwrap_or(&self.text)
    }
}

/// One fabric on one emulator that passed all checks.
#[derive(Debug, Serialize)]
pub struct JudgedFabric {
    pub fabric: String,
    pub server: Emulator,
    pub switches: usize,
    pub adapters: usize,
    /// Cabled ports; all of them are active.
    pub ports_active: usize,
    /// Ordered pairs of adapter ports; all of them reach each other.
    pub pairs_reached: u64,
    pub longest_path_switches: u32,
    /// Paths that ibdmchk scanned; `None` above `--check-hosts`.
    pub ibdmchk_paths: Option<u64>,
    pub pairs_traced: usize,
}

/// Configures every fabric of `args` on every emulator and checks it.
///
/// # Errors
/// The first fabric that is not right, with what was found; an emulator or a stock tool that is missing or fails.
pub fn judge(args: &JudgeArgs, programs: &Programs) -> anyhow::Result<Vec<JudgedFabric>> {
    let scratch = ScratchDir::new("judge")?;
    let emulators: &[Emulator] =
        if args.alone { &[Emulator::Heddle] } else { &[Emulator::Ibsim, Emulator::Heddle] };
    let mut rows = Vec::new();
    for (number, spec) in args.fabrics.iter().enumerate() {
        let topology = spec.topology().with_context(|| spec.text.clone())?;
        let net = scratch.path().join(format!("net-{number}"));
        std::fs::write(&net, ibnetdiscover::write(&topology))?;
        for emulator in emulators {
            eprintln!("{}: heddle sm on {emulator:?}", spec.name());
            let judged = judge_one(args, programs, spec, &topology, &net, *emulator);
            rows.push(judged.with_context(|| format!("{} on {emulator:?}", spec.text))?);
        }
    }
    Ok(rows)
}

fn judge_one(
    args: &JudgeArgs,
    programs: &Programs,
    spec: &FabricSpec,
    topology: &Topology,
    net: &Path,
    emulator: Emulator,
) -> anyhow::Result<JudgedFabric> {
    let name = unique(&format!("judge-{emulator:?}"));
    let socket = SocketName::new(&name)?;
    let server = ServerProcess::start(&mut emulator.command(programs, net, &name), &socket)?;
    let (host_index, host) = topology.end_nodes().next().context("a fabric without hosts")?;
    let stock = Stock::new(&name, &host.id, &net.with_extension(format!("{emulator:?}")))?;
    configure(&programs.heddle, &name, &host.id, net)?;

    let seen = Probe::attach(&socket, host_index, topology)?.snapshot()?;
    if let Some(end) = seen.inactive.first() {
        bail!("{} cabled ports are not active, the first {}", seen.inactive.len(), place(topology, *end));
    }
    let walked = walk::walk(topology, &seen)?;
    let adapters = topology.end_nodes().count();
    let ibdmchk_paths = if adapters <= args.check_hosts {
        stock.write_file(Stock::SUBNET_LIST, &subnet_list::write(topology, &seen)?)?;
        let paths = stock.check_routes()?;
        ensure!(paths == walked.pairs, "ibdmchk scanned {paths} paths, there are {}", walked.pairs);
        Some(paths)
    } else {
        None
    };
    trace(&stock, topology, &seen, args.pairs)?;
    compare_samples(&stock, topology, &seen)?;
    drop(server);
    Ok(JudgedFabric {
        fabric: spec.name().to_owned(),
        server: emulator,
        switches: topology.switches().count(),
        adapters,
        ports_active: seen.active,
        pairs_reached: walked.pairs,
        longest_path_switches: walked.longest,
        ibdmchk_paths,
        pairs_traced: args.pairs,
    })
}

/// Runs `heddle sm --once`.
fn configure(heddle: &Path, name: &str, node: &str, net: &Path) -> anyhow::Result<()> {
    let state = net.with_extension("state");
    // A fabric that was switched off and on again remembers nothing.
    let _ = std::fs::remove_file(&state);
    let output = Command::new(heddle)
        .args(["sm", "--once", "--device", &format!("ibsim:{name}@{node}"), "--state"])
        .arg(state)
        .output()?;
    ensure!(output.status.success(), "heddle sm: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Traces pairs of adapters with ibtracert, spread over the fabric by steps that share no factor with their number.
fn trace(stock: &Stock, topology: &Topology, seen: &FabricSnapshot, pairs: usize) -> anyhow::Result<()> {
    let ends = walk::adapter_ports(topology, seen)?;
    for pair in 0..pairs {
        let (_, from) = ends[pair * 7919 % ends.len()];
        let (_, to) = ends[(pair * 104_729 + ends.len() / 2) % ends.len()];
        let printed = stock.run("ibtracert", &[&from.to_string(), &to.to_string()])?;
        ensure!(printed.contains("To ca") || from == to, "ibtracert {from} {to} does not arrive: {printed}");
    }
    Ok(())
}

/// Reads some of the tables again with ibroute and smpquery, LID-routed, and compares.
fn compare_samples(stock: &Stock, topology: &Topology, seen: &FabricSnapshot) -> anyhow::Result<()> {
    let tables: Vec<_> = seen.linear.iter().collect();
    for (index, table) in tables.iter().step_by(tables.len().div_ceil(SAMPLES)) {
        let lid = switch_lid(seen, **index)?;
        let printed = walk::printed_routes(&stock.run("ibroute", &["-n", &lid])?);
        let held = table.iter().enumerate().filter(|(_, exit)| **exit != u8::MAX);
        let held = held.filter_map(|(lid, exit)| Some((u16::try_from(lid).ok()?, PortNum::new(*exit)?)));
        let last = held.clone().map(|(lid, _)| lid).max().unwrap_or(0);
        // ibroute omits the last LID if it is the first of its block.
        let held = held.filter(|(lid, _)| *lid != last || last % ForwardingBlock::ENTRIES as u16 != 0);
        let held: BTreeMap<u16, PortNum> = held.collect();
        if let Some((other, port)) = held.iter().find(|(lid, port)| printed.get(*lid) != Some(*port)) {
            bail!("ibroute {lid} does not print that LID {other} leaves by port {port}");
        }
        ensure!(
            held.len() == printed.len(),
            "ibroute {lid} prints {} routes, {} were read",
            printed.len(),
            held.len()
        );
    }
    let ends = walk::adapter_ports(topology, seen)?;
    for (end, lid) in ends.iter().step_by(ends.len().div_ceil(SAMPLES)) {
        let printed = stock.run("smpquery", &["portinfo", &lid.to_string(), &end.port.to_string()])?;
        let says = |key: &str, value: &str| {
            printed
                .lines()
                .any(|line| line.starts_with(key) && line.trim_end().ends_with(&format!(".{value}")))
        };
        ensure!(
            says("Lid:", &lid.to_string()) && says("LinkState:", "Active"),
            "smpquery portinfo {lid}: {printed}"
        );
    }
    Ok(())
}

fn switch_lid(seen: &FabricSnapshot, index: NodeIndex) -> anyhow::Result<String> {
    let lid = seen.lids.get(&Endpoint::new(index, PortNum::MANAGEMENT));
    Ok(lid.ok_or_else(|| anyhow!("a switch without a LID"))?.to_string())
}

fn place(topology: &Topology, end: Endpoint) -> String {
    format!("{}[{}]", topology.node(end.node).map_or("?", |node| node.id.as_str()), end.port)
}

/// The results as a table.
pub fn markdown(rows: &[JudgedFabric]) -> String {
    let mut text = String::from(
        "`heddle sm --once`, then read back: every cabled port active, every pair of adapters reached, no credit loop.\n\n\
         | fabric | on | switches | adapters | ports active | pairs reached | longest path, switches | ibdmchk paths | traced |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for row in rows {
        text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            row.fabric,
            if row.server == Emulator::Ibsim { "ibsim" } else { "heddle sim" },
            row.switches,
            row.adapters,
            row.ports_active,
            row.pairs_reached,
            row.longest_path_switches,
            row.ibdmchk_paths.map_or("not run".into(), |paths| paths.to_string()),
            row.pairs_traced,
        );
    }
    text
}
