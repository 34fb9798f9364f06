//! `heddle topology`: generates topologies and shows topology files.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use fabric_drawing::diagram;
use fabric_model::generate::{
    self, DEFAULT_RADIX, DragonflyPlus, FatTree, FatTreeSize, GenerateError, Oversubscription, RandomFabric,
    Torus,
};
use fabric_model::{Document, LinkRate, Topology, TopologySummary, ibnetdiscover};

/// Commands of `heddle topology`.
#[derive(Debug, Subcommand)]
pub enum TopologyCommand {
    /// Generate a fabric and write it as a topology file
    ///
    /// The file is in the format of ibnetdiscover, which heddle and ibsim read. The same arguments always generate the same
    /// fabric.
    #[command(subcommand)]
    Generate(GenerateCommand),

    /// Show the contents of a topology file
    ///
    /// Reads the formats of ibnetdiscover and ibsim, and checks that both ends of each link agree and that ids and GUIDs are
    /// unique.
    #[command(after_help = "Examples:
  heddle topology show fabric.topo
  heddle topology show fabric.topo --format svg -o fabric.svg
  ibnetdiscover | heddle topology show -")]
    Show(ShowArgs),
}

/// The topologies that can be generated.
#[derive(Debug, Subcommand)]
pub enum GenerateCommand {
    /// Generate a fat-tree: leaves and spines, and with three tiers also pods and cores
    #[command(after_help = "Examples:
  heddle topology generate fat-tree --hosts 324 -o fabric.topo
  heddle topology generate fat-tree --hosts 16 --radix 8
  heddle topology generate fat-tree --pods 6 --missing-links 20 --seed 7

With 36-port switches, 648 hosts fit into two tiers and 11,664 into three.")]
    FatTree(FatTreeArgs),

    /// Generate a torus: a grid of switches with wrap-around links
    #[command(after_help = "Example:
  heddle topology generate torus --dimensions 4x4x4 --hosts-per-switch 2 -o torus.topo")]
    Torus(GridArgs),

    /// Generate a mesh: a grid of switches without wrap-around links
    #[command(after_help = "Example:
  heddle topology generate mesh --dimensions 8x8 -o mesh.topo")]
    Mesh(GridArgs),

    /// Generate a Dragonfly+: groups of leaves and spines, with links between the spines of every two groups
    #[command(after_help = "Example:
  heddle topology generate dragonfly-plus --groups 6 --leaves 4 --spines 4 --global-links 2 -o dragonfly.topo")]
    DragonflyPlus(DragonflyArgs),

    /// Generate a connected random graph of switches
    #[command(after_help = "Example:
  heddle topology generate random --switches 40 --degree 5 --seed 7 -o random.topo")]
    Random(RandomArgs),
}

/// Arguments of all generators.
#[derive(Debug, Args)]
pub struct CommonArgs {
    /// Number of ports of every switch
    #[arg(long, default_value_t = DEFAULT_RADIX)]
    radix: u8,

    /// Width and speed of every link, such as 4xQDR, 4xEDR, 2xHDR, 4xNDR
    #[arg(long, default_value_t = LinkRate::DEFAULT)]
    rate: LinkRate,

    /// Remove K random cables between switches; every host stays reachable
    #[arg(long, value_name = "K", default_value_t = 0)]
    missing_links: usize,

    /// Seed of random choices; the same seed gives the same fabric
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("size").required(true).args(["hosts", "leaves", "pods"])))]
pub struct FatTreeArgs {
    /// Generate the smallest tree for N hosts, and spread them evenly over its leaves
    #[arg(long, value_name = "N")]
    hosts: Option<u32>,

    /// Generate N full leaves, in two tiers
    #[arg(long, value_name = "N")]
    leaves: Option<u16>,

    /// Generate N full pods, in three tiers
    #[arg(long, value_name = "N")]
    pods: Option<u16>,

    /// Tiers of switches, 2 or 3 [default: the fewest that hold the hosts]
    #[arg(long, value_name = "2|3", value_parser = clap::value_parser!(u8).range(2..=3), requires = "hosts")]
    levels: Option<u8>,

    /// Ratio of down-ports to up-ports of a leaf; 2:1 halves the uplinks and the bisection bandwidth
    #[arg(long, value_name = "DOWN:UP", default_value = "1:1")]
    oversubscription: Oversubscription,

    #[command(flatten)]
    common: CommonArgs,
}

/// Arguments of `torus` and `mesh`.
#[derive(Debug, Args)]
pub struct GridArgs {
    /// Number of switches in each dimension, such as 4x4 or 4x4x8
    #[arg(long, value_name = "AxBxC", value_parser = read_dimensions)]
    dimensions: Dimensions,

    /// Number of hosts at each switch
    #[arg(long, value_name = "N", default_value_t = 1)]
    hosts_per_switch: u8,

    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
pub struct DragonflyArgs {
    /// Number of groups
    #[arg(long, value_name = "N")]
    groups: u16,

    /// Number of leaves in each group
    #[arg(long, value_name = "N", default_value_t = 4)]
    leaves: u8,

    /// Number of spines in each group; every leaf has a link to each
    #[arg(long, value_name = "N", default_value_t = 4)]
    spines: u8,

    /// Number of hosts at each leaf
    #[arg(long, value_name = "N", default_value_t = 4)]
    hosts_per_leaf: u8,

    /// Number of links between every two groups
    #[arg(long, value_name = "N", default_value_t = 1)]
    global_links: u8,

    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
pub struct RandomArgs {
    /// Number of switches
    #[arg(long, value_name = "N")]
    switches: u32,

    /// Number of links from each switch to others; some switches may get one or two fewer
    #[arg(long, value_name = "N", default_value_t = 4)]
    degree: u8,

    /// Number of hosts at each switch
    #[arg(long, value_name = "N", default_value_t = 1)]
    hosts_per_switch: u8,

    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Topology file; - reads standard input
    file: PathBuf,

    /// Output format
    #[arg(long, value_enum, default_value_t = ShowFormat::TopologySummary)]
    format: ShowFormat,

    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Output formats of `heddle topology show`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ShowFormat {
    /// Counts, rates, tiers, diameter
    TopologySummary,
    /// Summary, nodes and links as JSON
    Json,
    /// Graph in the DOT language of Graphviz
    Dot,
    /// Drawing as SVG
    Svg,
}

/// The number of switches in each dimension of a grid.
#[derive(Clone, Debug)]
pub struct Dimensions(Vec<u16>);

/// Runs `heddle topology …`.
pub fn run(command: TopologyCommand) -> Result<()> {
    match command {
        TopologyCommand::Generate(command) => {
            let (topology, output) = generate(command)?;
            write_output(output.as_deref(), &ibnetdiscover::write(&topology))
        }
        TopologyCommand::Show(args) => {
            let topology = read_topology(&args.file)?;
            let shown = show(&topology, args.format, &title(&args.file))?;
            write_output(args.output.as_deref(), &shown)
        }
    }
}

/// Generates a fabric; returns it with the output file.
fn generate(command: GenerateCommand) -> Result<(Topology, Option<PathBuf>)> {
    let (topology, common) = match command {
        GenerateCommand::FatTree(args) => (fat_tree(&args).generate(), args.common),
        GenerateCommand::Torus(args) => (grid(&args, true).generate(), args.common),
        GenerateCommand::Mesh(args) => (grid(&args, false).generate(), args.common),
        GenerateCommand::DragonflyPlus(args) => (dragonfly(&args).generate(), args.common),
        GenerateCommand::Random(args) => (random(&args).generate(), args.common),
    };
    let thinned = topology.and_then(|topology| thin_out(topology, &common));
    Ok((thinned.context("cannot generate this fabric")?, common.output))
}

fn thin_out(topology: Topology, common: &CommonArgs) -> Result<Topology, GenerateError> {
    match NonZeroUsize::new(common.missing_links) {
        Some(count) => generate::without_links(topology, count.get(), common.seed),
        None => Ok(topology),
    }
}

fn fat_tree(args: &FatTreeArgs) -> FatTree {
    let size = match (args.hosts, args.leaves, args.pods) {
        (_, Some(leaves), _) => FatTreeSize::Leaves(leaves),
        (_, _, Some(pods)) => FatTreeSize::Pods(pods),
        (hosts, None, None) => FatTreeSize::Hosts { hosts: hosts.unwrap_or(0), tiers: args.levels },
    };
    let CommonArgs { radix, rate, .. } = args.common;
    FatTree { size, radix, oversubscription: args.oversubscription, rate }
}

fn grid(args: &GridArgs, wrap: bool) -> Torus {
    let CommonArgs { radix, rate, .. } = args.common;
    Torus {
        dimensions: args.dimensions.0.clone(),
        wrap,
        hosts_per_switch: args.hosts_per_switch,
        radix,
        rate,
    }
}

fn dragonfly(args: &DragonflyArgs) -> DragonflyPlus {
    let CommonArgs { radix, rate, .. } = args.common;
    DragonflyPlus {
        groups: args.groups,
        leaves: args.leaves,
        spines: args.spines,
        hosts_per_leaf: args.hosts_per_leaf,
        global_links: args.global_links,
        radix,
        rate,
    }
}

fn random(args: &RandomArgs) -> RandomFabric {
    let CommonArgs { radix, rate, seed, .. } = args.common;
    RandomFabric {
        switches: args.switches,
        degree: args.degree,
        hosts_per_switch: args.hosts_per_switch,
        seed,
        radix,
        rate,
    }
}

fn read_dimensions(text: &str) -> Result<Dimensions, String> {
    let lengths: Option<_> = text.split('x').map(|length| length.parse().ok()).collect();
    lengths.map(Dimensions).ok_or_else(|| "expected numbers separated by x, such as 4x4".to_owned())
}

/// Reads a topology file, or standard input for `-`.
pub fn read_topology(file: &Path) -> Result<Topology> {
    let (name, bytes) = if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
        ("standard input".to_owned(), bytes)
    } else {
        let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        (file.display().to_string(), bytes)
    };
    let topology = ibnetdiscover::read(&bytes).with_context(|| format!("{name} is not a topology file"))?;
    // The parser ignores unknown lines, so any text would pass for an empty fabric.
    ensure!(topology.node_count() > 0, "{name} has no node: expected lines such as `Switch 36 \"S-…\"`");
    Ok(topology)
}

fn show(topology: &Topology, format: ShowFormat, title: &str) -> Result<String> {
    Ok(match format {
        ShowFormat::TopologySummary => TopologySummary::of(topology).to_string(),
        ShowFormat::Json => serde_json::to_string_pretty(&Document::of(topology))? + "\n",
        ShowFormat::Dot => diagram::to_dot(topology),
        ShowFormat::Svg => diagram::to_svg(topology, title),
    })
}

/// The title of a drawing: the name of its file.
fn title(file: &Path) -> String {
    match file.file_stem() {
        Some(stem) if file != Path::new("-") => stem.to_string_lossy().into_owned(),
        _ => "fabric".to_owned(),
    }
}

fn write_output(file: Option<&Path>, text: &str) -> Result<()> {
    if let Some(file) = file {
        return fs::write(file, text).with_context(|| format!("cannot write {}", file.display()));
    }
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader has closed the pipe: `heddle topology generate … | head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}
