//! `heddle-bench bring-up`: opensm configures the same fabric on `heddle sim` and on ibsim, and other tools check the result.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use fabric_model::generate::FatTree;
use fabric_model::{Topology, ibnetdiscover};
use ib_transport::ibsim::SocketName;
use serde::Serialize;

use crate::Programs;
use crate::process::{Emulator, ServerProcess};
use crate::scratch::{ScratchDir, unique};
use crate::stock::Stock;

/// Let opensm bring up fat-trees on `heddle sim` and on ibsim, and check what it left in the emulated switches.
///
/// After SUBNET UP on `heddle sim`, ibdmchk scans all paths in the tables that dump_fts reads from the switches (up to
/// `--check-hosts` hosts), and random pairs are traced with ibtracert. Any failure ends the run.
#[derive(Debug, Args)]
pub struct BringUpArgs {
    /// Sizes of the fat-trees, in hosts.
    #[arg(long, value_delimiter = ',', default_values_t = [324, 1944, 11664])]
    pub hosts: Vec<u32>,
    /// Pairs of hosts to trace with ibtracert.
    #[arg(long, default_value_t = 200)]
    pub pairs: u32,
    /// Largest fabric, in hosts, whose routes ibdmchk checks path by path.
    #[arg(long, default_value_t = 2000)]
    pub check_hosts: u32,
    /// Measure `heddle sim` only, without ibsim.
    #[arg(long)]
    pub alone: bool,
    /// Print the figures as JSON instead of Markdown.
    #[arg(long)]
    pub json: bool,
}

/// Results of one fabric.
#[derive(Debug, Serialize)]
pub struct BringUpRow {
    pub hosts: u32,
    /// `None` if ibsim was left out.
    pub ibsim: Option<BringUpCost>,
    pub heddle: BringUpCost,
    /// Paths ibdmchk scanned, without a credit loop.
    pub paths_scanned: Option<u64>,
    pub pairs_traced: u32,
}

/// Cost of a bring-up by opensm on one server.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BringUpCost {
    pub bring_up_s: f64,
    pub server_cpu_s: f64,
    pub server_mib: f64,
}

/// Lets opensm bring up every fabric of `args`, and checks what it left on `heddle sim`.
///
/// # Errors
/// The first fabric that is not right, with what was found; an emulator or a stock tool that is missing or fails.
pub fn measure(args: &BringUpArgs, programs: &Programs) -> anyhow::Result<Vec<BringUpRow>> {
    let scratch = ScratchDir::new("bring-up")?;
    let mut rows = Vec::new();
    for hosts in &args.hosts {
        rows.push(
            measure_one(*hosts, args, programs, scratch.path()).with_context(|| format!("{hosts} hosts"))?,
        );
    }
    Ok(rows)
}

fn measure_one(
    hosts: u32,
    args: &BringUpArgs,
    programs: &Programs,
    scratch: &Path,
) -> anyhow::Result<BringUpRow> {
    let topology = FatTree::with_hosts(hosts).generate()?;
    let net = scratch.join(format!("net-{hosts}"));
    std::fs::write(&net, ibnetdiscover::write(&topology))?;
    let ibsim = match args.alone {
        true => None,
        false => Some(bring_up(programs, Emulator::Ibsim, &topology, &net)?.0),
    };
    let (heddle, stock, _server) = bring_up(programs, Emulator::Heddle, &topology, &net)?;
    let paths_scanned = if hosts <= args.check_hosts {
        eprintln!("{hosts} hosts: ibdmchk scans all paths");
        let scanned = stock.check_routes()?;
        let pairs = u64::from(hosts) * u64::from(hosts - 1);
        ensure!(scanned == pairs, "ibdmchk scanned {scanned} paths, there are {pairs}");
        Some(scanned)
    } else {
        None
    };
    trace_pairs(&stock, &topology, args.pairs)?;
    Ok(BringUpRow { hosts, ibsim, heddle, paths_scanned, pairs_traced: args.pairs })
}

fn bring_up(
    programs: &Programs,
    emulator: Emulator,
    topology: &Topology,
    net: &Path,
) -> anyhow::Result<(BringUpCost, Stock, ServerProcess)> {
    let name = unique(&format!("bring-up-{emulator:?}"));
    let server = ServerProcess::start(&mut emulator.command(programs, net, &name), &SocketName::new(&name)?)?;
    let (_, host) = topology.end_nodes().next().context("a fabric without hosts")?;
    let stock = Stock::new(&name, &host.id, &net.with_extension(format!("{emulator:?}")))?;
    eprintln!("{} nodes: opensm on {emulator:?}", topology.node_count());
    let cpu_before = server.cpu_time()?;
    let started = Instant::now();
    stock.bring_up()?;
    let elapsed: Duration = started.elapsed();
    let cost = BringUpCost {
        bring_up_s: elapsed.as_secs_f64(),
        server_cpu_s: (server.cpu_time()? - cpu_before).as_secs_f64(),
        server_mib: server.resident_kib()? as f64 / 1024.0,
    };
    Ok((cost, stock, server))
}

/// Traces pairs of hosts, spread over the fabric by steps that share no factor with their number.
fn trace_pairs(stock: &Stock, topology: &Topology, pairs: u32) -> anyhow::Result<()> {
    eprintln!("{} nodes: {pairs} pairs traced by ibtracert", topology.node_count());
    let guids: Vec<String> = topology
        .end_nodes()
        .filter_map(|(_, node)| node.ports().find(|(_, port)| port.peer.is_some()))
        .map(|(_, port)| port.guid.to_string())
        .collect();
    for pair in 0..pairs as usize {
        let from = &guids[pair * 7919 % guids.len()];
        let to = &guids[(pair * 104_729 + guids.len() / 2) % guids.len()];
        let (from_lid, to_lid) = (lid_of(stock, from)?, lid_of(stock, to)?);
        let traced = stock.run("ibtracert", &[&from_lid, &to_lid])?;
        ensure!(
            traced.contains("To ca") || from == to,
            "ibtracert {from_lid} {to_lid} does not arrive: {traced}"
        );
    }
    Ok(())
}

/// The LID that opensm gave a port, from the file it left.
fn lid_of(stock: &Stock, guid: &str) -> anyhow::Result<String> {
    let text = stock.read_file("guid2lid")?;
    let line = text.lines().find_map(|line| line.strip_prefix(guid));
    let lid = line.and_then(|rest| rest.split_whitespace().next());
    Ok(lid.with_context(|| format!("opensm gave {guid} no LID"))?.to_owned())
}

/// The results as a table.
pub fn markdown(rows: &[BringUpRow]) -> String {
    let mut text = String::from(
        "opensm -o from start to end; server CPU and memory are those of the emulation.\n\n\
         | hosts | on ibsim s | on heddle s | ratio | ibsim CPU s | heddle CPU s | ratio | ibsim MiB | heddle MiB | ratio \
         | paths without credit loop | pairs traced |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for row in rows {
        let missing = BringUpCost { bring_up_s: f64::NAN, server_cpu_s: f64::NAN, server_mib: f64::NAN };
        let (ibsim, heddle) = (row.ibsim.unwrap_or(missing), row.heddle);
        text += &format!(
            "| {} | {} | {} | **{}** | {} | {} | **{}** | {} | {} | **{}** | {} | {} |\n",
            row.hosts,
            figure(ibsim.bring_up_s),
            figure(heddle.bring_up_s),
            figure(heddle.bring_up_s / ibsim.bring_up_s),
            figure(ibsim.server_cpu_s),
            figure(heddle.server_cpu_s),
            figure(heddle.server_cpu_s / ibsim.server_cpu_s),
            figure(ibsim.server_mib),
            figure(heddle.server_mib),
            figure(heddle.server_mib / ibsim.server_mib),
            row.paths_scanned.map_or("not scanned".into(), |paths| paths.to_string()),
            row.pairs_traced,
        );
    }
    text
}

/// A figure, or a dash where there is none.
fn figure(value: f64) -> String {
    if value.is_nan() { "–".to_owned() } else { format!("{value:.2}") }
}
