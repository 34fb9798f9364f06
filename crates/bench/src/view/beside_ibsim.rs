//! A view and ibsim of the same topology: Gets, and a bring-up by stock opensm.

use std::path::{Path, PathBuf};

use anyhow::Context;
use fabric_model::{Endpoint, NodeIndex, Topology, ibnetdiscover};
use ib_transport::ClientRole;
use ib_transport::ibsim::{DataMessage, DataStatus, IbsimClient, SocketName};
use ib_wire::{Attribute, LidAddress, Mad, ManagementClass, Method, PortInfo, QueuePair};
use serde::Serialize;

use super::host::ViewSite;
use super::{Side, ViewArgs, start_views};
use crate::sim::{Placement, Throughput};
use crate::sm::manager::{ManagerProcess, Setup, Side as Manager};
use bench::Programs;
use bench::probe::{Probe, SmpRead};
use bench::process::{Emulator, ServerProcess};

/// How requests are addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Addressing {
    /// Directed route: the request lists its exit ports.
    Directed,
    /// LID-routed: switches forward by their tables.
    Lid,
}

impl Addressing {
    pub const ALL: [Self; 2] = [Self::Directed, Self::Lid];
}

/// The best figures of one side.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Datagrams {
    pub side: Side,
    pub addressing: Addressing,
    pub placement: Placement,
    pub outstanding: usize,
    #[serde(flatten)]
    pub best: Throughput,
}

impl Datagrams {
    /// The parameters of a measurement, without the side.
    pub fn case(&self) -> (Addressing, Placement, usize) {
        (self.addressing, self.placement, self.outstanding)
    }
}

/// The shortest bring-up of one side: from the start of opensm until it reports that the subnet is up.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BringUp {
    pub side: Side,
    pub up_s: f64,
    pub server_cpu_s: f64,
    pub opensm_cpu_s: f64,
}

/// The network of a view, and the file from which ibsim knows it.
#[derive(Debug)]
pub struct Pair<'a> {
    programs: &'a Programs,
    nodes: u32,
    topology: Topology,
    net: PathBuf,
}

impl<'a> Pair<'a> {
    /// Plans the view of `nodes` machines and writes its topology for ibsim into `directory`.
    pub fn new(nodes: u32, programs: &'a Programs, directory: &Path) -> anyhow::Result<Self> {
        let topology = ViewSite::new(nodes)?.view(0, nodes)?.topology().clone();
        let net = directory.join("net");
        std::fs::write(&net, ibnetdiscover::write(&topology))?;
        Ok(Self { programs, nodes, topology, net })
    }

    /// Switches of the network.
    pub fn switches(&self) -> usize {
        self.topology.switches().count()
    }

    fn start(&self, side: Side) -> anyhow::Result<(ServerProcess, SocketName)> {
        match side {
            Side::View => start_views(self.programs, "view", self.nodes, 1),
            Side::Ibsim => {
                let name = SocketName::new(&format!("heddle-view-ibsim-{}", std::process::id()))?;
                let mut command = Emulator::Ibsim.command(self.programs, &self.net, name.as_str());
                Ok((ServerProcess::start(&mut command, &name)?, name))
            }
        }
    }

    /// Starts opensm on the first adapter, without state.
    fn opensm(&self, name: &SocketName) -> anyhow::Result<ManagerProcess> {
        let directory = self.net.with_extension("opensm");
        if directory.exists() {
            std::fs::remove_dir_all(&directory)?;
        }
        let setup = Setup {
            heddle: &self.programs.heddle,
            name: name.as_str(),
            framed: None,
            node: self.first_id()?,
            directory: &directory,
            qos: false,
            engine: "minhop",
        };
        ManagerProcess::start(Manager::Opensm, &setup)
    }

    /// The adapter that programs are attached to.
    fn first(&self) -> anyhow::Result<NodeIndex> {
        Ok(self.topology.end_nodes().next().context("a view without adapters")?.0)
    }

    fn first_id(&self) -> anyhow::Result<&str> {
        Ok(&self.topology.node(self.first()?).context("no such node")?.id)
    }

    /// The port that is furthest from there.
    fn furthest(&self, probe: &Probe) -> anyhow::Result<Endpoint> {
        let ends = self.topology.end_nodes().filter_map(|(index, node)| {
            let (port, _) = node.cabled_ports().next()?;
            Some(Endpoint::new(index, port))
        });
        let far = ends.filter_map(|end| Some((probe.route(end).ok()?.hops().len(), end)));
        far.max_by_key(|(hops, _)| *hops).map(|(_, end)| end).context("a view without adapters")
    }
}

/// Lets opensm bring up both, in turn.
pub fn bring_up(pair: &Pair, sides: &[Side], rounds: u32) -> anyhow::Result<Vec<BringUp>> {
    let mut best: Vec<BringUp> = Vec::new();
    for round in 0..rounds {
        for side in sides {
            eprintln!("{} nodes, round {} of {rounds}: opensm on {side:?}", pair.nodes, round + 1);
            let (server, name) = pair.start(*side)?;
            let before = server.cpu_time()?;
            let mut opensm = pair.opensm(&name)?;
            let up_s = opensm.wait_up()?.as_secs_f64();
            let server_cpu_s = (server.cpu_time()? - before).as_secs_f64();
            let opensm_cpu_s = opensm.cpu()?.as_secs_f64();
            let seen = BringUp { side: *side, up_s, server_cpu_s, opensm_cpu_s };
            match best.iter_mut().find(|best| best.side == *side) {
                Some(best) if best.up_s <= seen.up_s => {}
                Some(best) => *best = seen,
                None => best.push(seen),
            }
        }
    }
    Ok(best)
}

/// Sends the same requests to both, in turn. ibsim forwards by LID only after a subnet manager has configured it.
pub fn datagrams(
    pair: &Pair,
    sides: &[Side],
    has_opensm: bool,
    args: &ViewArgs,
) -> anyhow::Result<Vec<Datagrams>> {
    let mut best: Vec<Datagrams> = Vec::new();
    for round in 0..args.rounds {
        for side in sides {
            eprintln!("{} nodes, round {} of {}: Gets to {side:?}", pair.nodes, round + 1, args.rounds);
            let (server, name) = pair.start(*side)?;
            let is_up = *side == Side::View || has_opensm;
            if is_up && *side == Side::Ibsim {
                pair.opensm(&name)?.wait_up()?;
            }
            for addressing in
                Addressing::ALL.into_iter().filter(|addressing| is_up || *addressing == Addressing::Directed)
            {
                let template = request(pair, &name, addressing)?;
                let mut client = IbsimClient::connect(&name, pair.first_id()?, ClientRole::Ordinary)?;
                for placement in Placement::ALL {
                    placement.take(&server)?;
                    for outstanding in &args.outstanding {
                        let requests = args.requests;
                        let seen =
                            Throughput::measure(&mut client, &server, &template, requests, *outstanding)?;
                        let seen = Datagrams {
                            side: *side,
                            addressing,
                            placement,
                            outstanding: *outstanding,
                            best: seen,
                        };
                        let same = |best: &&mut Datagrams| best.side == *side && best.case() == seen.case();
                        match best.iter_mut().find(same) {
                            Some(best) => best.best.improve(seen.best),
                            None => best.push(seen),
                        }
                    }
                }
            }
        }
    }
    Ok(best)
}

/// Get(NodeInfo) of the adapter that is furthest from the first one.
fn request(pair: &Pair, name: &SocketName, addressing: Addressing) -> anyhow::Result<DataMessage> {
    let mut probe = Probe::attach(name, pair.first()?, &pair.topology)?;
    let route = probe.route(pair.furthest(&probe)?)?;
    let (mad, dlid, slid) = match addressing {
        Addressing::Directed => {
            let mad = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &route);
            (mad, LidAddress::Permissive, Some(LidAddress::Permissive))
        }
        Addressing::Lid => {
            let read = SmpRead { route, attribute: Attribute::PORT_INFO, modifier: 0 };
            let answers = probe.read(&[read])?;
            let info = answers.first().and_then(|answer| PortInfo::decode(answer).ok());
            let lid = info.and_then(|info| info.lid).context("an adapter without a LID")?;
            let mad = Mad::new(ManagementClass::SUBNET_LID, Method::GET, Attribute::NODE_INFO, 0);
            (mad, LidAddress::from(lid), None)
        }
    };
    Ok(DataMessage {
        dlid: Some(dlid),
        slid,
        dqp: QueuePair::SUBNET_MANAGEMENT,
        sqp: QueuePair::SUBNET_MANAGEMENT,
        status: DataStatus::Ok,
        mad,
    })
}
