//! `heddle topology`: makes fabrics by rule and shows what is in a topology file.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use fabric_model::generate::{
    self, DEFAULT_RADIX, DragonflyPlus, FatTree, FatTreeSize, GenerateError, Oversubscription, RandomFabric,
    Torus,
};
use fabric_model::{Document, LinkRate, Summary, Topology, ibnetdiscover, picture};

/// Makes and shows topology files.
#[derive(Debug, Subcommand)]
pub enum TopologyCommand {
    /// Make a fabric by rule and write it as a topology file
    ///
    /// The file is in the format of ibnetdiscover: heddle, ibsim and people read it. The same arguments always give
    /// the same fabric.
    #[command(subcommand)]
    Generate(GenerateCommand),

    /// Show what is in a topology file
    ///
    /// Reads what ibnetdiscover prints and what ibsim reads, and checks it: a link has two ends that agree, ids and
    /// GUIDs are unique.
    #[command(after_help = "Examples:
  heddle topology show fabric.topo
  heddle topology show fabric.topo --format svg -o fabric.svg
  ibnetdiscover | heddle topology show -")]
    Show(ShowArgs),
}

/// The kinds of fabric that can be made.
#[derive(Debug, Subcommand)]
pub enum GenerateCommand {
    /// Leaves, spines and, with three levels, pods and cores
    #[command(after_help = "Examples:
  heddle topology generate fat-tree --hosts 324 -o fabric.topo
  heddle topology generate fat-tree --hosts 16 --radix 8
  heddle topology generate fat-tree --pods 6 --missing-links 20 --seed 7

With 36-port switches, 648 hosts fit into two levels and 11,664 into three.")]
    FatTree(FatTreeArgs),

    /// Switches at the points of a grid whose ends are joined
    #[command(after_help = "Example:
  heddle topology generate torus --dimensions 4x4x4 --hosts-per-switch 2 -o torus.topo")]
    Torus(GridArgs),

    /// Switches at the points of a grid
    #[command(after_help = "Example:
  heddle topology generate mesh --dimensions 8x8 -o mesh.topo")]
    Mesh(GridArgs),

    /// Groups of leaves and spines, every two groups joined by cables between their spines
    #[command(after_help = "Example:
  heddle topology generate dragonfly-plus --groups 6 --leaves 4 --spines 4 --global-links 2 -o dragonfly.topo")]
    DragonflyPlus(DragonflyArgs),

    /// Switches cabled at random, in one piece
    #[command(after_help = "Example:
  heddle topology generate random --switches 40 --degree 5 --seed 7 -o random.topo")]
    Random(RandomArgs),
}

/// What every kind of fabric may be told.
#[derive(Debug, Args)]
pub struct CommonArgs {
    /// Ports of every switch
    #[arg(long, default_value_t = DEFAULT_RADIX)]
    radix: u8,

    /// What every link runs at: lanes and speed, such as 4xQDR, 4xEDR, 2xHDR, 4xNDR
    #[arg(long, default_value_t = LinkRate::DEFAULT)]
    rate: LinkRate,

    /// Take out so many cables between switches at random; no host is cut off
    #[arg(long, value_name = "K", default_value_t = 0)]
    missing_links: usize,

    /// Which of the random choices to make; the same seed makes the same fabric
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Write here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Arguments of `fat-tree`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("size").required(true).args(["hosts", "leaves", "pods"])))]
pub struct FatTreeArgs {
    /// Take the smallest tree that holds so many hosts, and spread them evenly over its leaves
    #[arg(long, value_name = "N")]
    hosts: Option<u32>,

    /// Take so many full leaves, in two levels
    #[arg(long, value_name = "N")]
    leaves: Option<u16>,

    /// Take so many full pods, in three levels
    #[arg(long, value_name = "N")]
    pods: Option<u16>,

    /// Levels of switches, 2 or 3; as few as hold the hosts if not given
    #[arg(long, value_name = "2|3", value_parser = clap::value_parser!(u8).range(2..=3), requires = "hosts")]
    levels: Option<u8>,

    /// Ports of a leaf towards hosts for each towards spines; 2:1 has half the uplinks and half the bisection
    #[arg(long, value_name = "DOWN:UP", default_value = "1:1")]
    oversubscription: Oversubscription,

    #[command(flatten)]
    common: CommonArgs,
}

/// Arguments of `torus` and `mesh`.
#[derive(Debug, Args)]
pub struct GridArgs {
    /// How many switches in each direction, such as 4x4 or 4x4x8
    #[arg(long, value_name = "AxBxC", value_parser = read_dimensions)]
    dimensions: Dimensions,

    /// Hosts at every switch
    #[arg(long, value_name = "N", default_value_t = 1)]
    hosts_per_switch: u8,

    #[command(flatten)]
    common: CommonArgs,
}

/// Arguments of `dragonfly-plus`.
#[derive(Debug, Args)]
pub struct DragonflyArgs {
    /// How many groups
    #[arg(long, value_name = "N")]
    groups: u16,

    /// Leaves of each group
    #[arg(long, value_name = "N", default_value_t = 4)]
    leaves: u8,

    /// Spines of each group; every leaf has a cable to each
    #[arg(long, value_name = "N", default_value_t = 4)]
    spines: u8,

    /// Hosts at each leaf
    #[arg(long, value_name = "N", default_value_t = 4)]
    hosts_per_leaf: u8,

    /// Cables between every two groups
    #[arg(long, value_name = "N", default_value_t = 1)]
    global_links: u8,

    #[command(flatten)]
    common: CommonArgs,
}

/// Arguments of `random`.
#[derive(Debug, Args)]
pub struct RandomArgs {
    /// How many switches
    #[arg(long, value_name = "N")]
    switches: u32,

    /// Cables from each switch to others; some switches may get one or two fewer
    #[arg(long, value_name = "N", default_value_t = 4)]
    degree: u8,

    /// Hosts at every switch
    #[arg(long, value_name = "N", default_value_t = 1)]
    hosts_per_switch: u8,

    #[command(flatten)]
    common: CommonArgs,
}

/// Arguments of `show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The topology file; - reads standard input
    file: PathBuf,

    /// In which form
    #[arg(long, value_enum, default_value_t = ShowFormat::Summary)]
    format: ShowFormat,

    /// Write here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Forms in which a topology is shown.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ShowFormat {
    /// Counts, rates, levels, diameter
    Summary,
    /// Summary, nodes and links for other programs
    Json,
    /// A graph for Graphviz
    Dot,
    /// A drawing for people
    Svg,
}

/// The lengths of a grid.
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

/// Makes a fabric and says where it is to be written.
fn generate(command: GenerateCommand) -> Result<(Topology, Option<PathBuf>)> {
    let (topology, common) = match command {
        GenerateCommand::FatTree(args) => (fat_tree(&args).generate(), args.common),
        GenerateCommand::Torus(args) => (grid(&args, true).generate(), args.common),
        GenerateCommand::Mesh(args) => (grid(&args, false).generate(), args.common),
        GenerateCommand::DragonflyPlus(args) => (dragonfly(&args).generate(), args.common),
        GenerateCommand::Random(args) => (random(&args).generate(), args.common),
    };
    let thinned = topology.and_then(|topology| thin_out(topology, &common));
    Ok((thinned.context("cannot make this fabric")?, common.output))
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
        (hosts, None, None) => FatTreeSize::Hosts { hosts: hosts.unwrap_or(0), levels: args.levels },
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
    lengths.map(Dimensions).ok_or_else(|| "numbers with x between, such as 4x4".to_owned())
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
    // Lines that mean nothing are ignored, so any text without a node would pass for an empty fabric.
    ensure!(topology.node_count() > 0, "there is no node in {name}: no line such as `Switch 36 \"S-…\"`");
    Ok(topology)
}

fn show(topology: &Topology, format: ShowFormat, title: &str) -> Result<String> {
    Ok(match format {
        ShowFormat::Summary => Summary::of(topology).to_string(),
        ShowFormat::Json => serde_json::to_string_pretty(&Document::of(topology))? + "\n",
        ShowFormat::Dot => picture::to_dot(topology),
        ShowFormat::Svg => picture::to_svg(topology, title),
    })
}

/// What a drawing is called: the name of its file.
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
        // Whoever reads has seen enough: `heddle topology generate … | head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}
