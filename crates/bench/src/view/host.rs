//! Views of clusters behind ibsim's sockets, in a process of their own, so that their cost can be measured.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use fabric_compiler::compile;
use fabric_model::generate::FatTree;
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use fabric_sim::{BareDatagram, Fabric, PortId};
use ib_transport::{ClientDatagram, FabricBackend, Outbox, Server, Vendor};
use ib_wire::{Gid, Guid, Lid, PartitionNumber, PortState};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;
use tenant_view::{AdapterId, ClusterPlacement, Names, NodePlacement, Slice, View, ViewOutput, ViewShape};

/// Hosts of the tree that clusters are on, unless they need more.
const HOSTS_MIN: u32 = 324;

/// Serve the views of clusters that are spread over a fat-tree.
#[derive(Debug, Args)]
pub struct ViewsArgs {
    /// Name of the sockets.
    name: String,
    /// Virtual machines of each cluster.
    #[arg(long)]
    nodes: u32,
    /// Number of clusters, each with a view.
    #[arg(long)]
    views: u32,
}

/// Serves views until it is ended.
pub fn serve(args: &ViewsArgs) -> anyhow::Result<()> {
    let site = ViewSite::new(args.nodes)?;
    let views = (0..args.views).map(|number| site.view(number, args.nodes));
    let mut views = Views {
        views: views.collect::<anyhow::Result<_>>()?,
        started: Instant::now(),
        due: BTreeSet::new(),
        due_of: vec![None; args.views as usize],
        restless: (0..args.views).collect(),
    };
    let mut server = Server::bind(&args.name)?;
    server.run(&mut views, &AtomicBool::new(false))?;
    Ok(())
}

/// A fat-tree and the plan it runs by.
pub struct ViewSite {
    topology: Topology,
    plan: FabricPlan,
    ports: Vec<Guid>,
}

impl ViewSite {
    /// A tree that is large enough for clusters of `nodes` nodes.
    pub fn new(nodes: u32) -> anyhow::Result<Self> {
        let topology = FatTree::with_hosts(nodes.max(HOSTS_MIN)).generate()?;
        let adapters = topology.end_nodes().filter_map(|(_, host)| host.ports().next());
        let ports: Vec<Guid> = adapters.map(|(_, port)| port.guid).collect();
        let manager = *ports.first().context("a tree without hosts")?;
        let plan = compile(&topology, &Intents::new(manager), &Decisions::default())?;
        Ok(Self { topology, plan, ports })
    }

    /// The view of a cluster that is spread over the whole tree, on as many switches as it can be. The same for the same
    /// number.
    pub fn view(&self, number: u32, nodes: u32) -> anyhow::Result<View> {
        let mut ports = self.ports.clone();
        ports.shuffle(&mut Pcg64Mcg::seed_from_u64(number.into()));
        let seats = ports.into_iter().take(nodes as usize).enumerate();
        let seats = seats.map(|(index, port)| NodePlacement {
            node: format!("vm-{index}"),
            port,
            shared: false,
            guid: None,
        });
        let cluster = ClusterPlacement {
            name: format!("cluster-{number}"),
            partition: PartitionNumber::from_wire(0x123).context("a partition")?,
            nodes: seats.collect(),
        };
        let slice = Slice::of(&self.topology, &self.plan, &cluster, ViewShape::Network)?;
        Ok(View::new(slice, Names::default())?)
    }
}

/// All views. A view without requests or timeouts is not polled.
struct Views {
    views: Vec<View>,
    started: Instant,
    /// When views are to be polled, the next first.
    due: BTreeSet<(Duration, u32)>,
    due_of: Vec<Option<Duration>>,
    /// Views that may have output.
    restless: BTreeSet<u32>,
}

/// An adapter of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AdapterRef {
    view: u32,
    adapter: AdapterId,
}

impl Views {
    fn at(&self, spot: AdapterRef) -> (&Fabric, PortId) {
        let view = &self.views[spot.view as usize];
        (view.fabric(), view.port(spot.adapter).expect("virtual machines stay where they are"))
    }

    /// Delivers the output of a view to clients.
    fn pass_on(&mut self, number: u32, outbox: &mut Outbox<AdapterRef>) {
        while let Some(output) = self.views[number as usize].poll_output() {
            match output {
                ViewOutput::Deliver { adapter, datagram } => {
                    outbox.deliver(AdapterRef { view: number, adapter }, datagram);
                }
                ViewOutput::Lost { datagram, .. } => outbox.report_lost_request(datagram),
            }
        }
        self.note_due(number);
    }

    fn note_due(&mut self, number: u32) {
        let due = self.views[number as usize].poll_timeout();
        let before = &mut self.due_of[number as usize];
        if *before != due {
            if let Some(before) = before.take() {
                self.due.remove(&(before, number));
            }
            *before = due;
            self.due.extend(due.map(|due| (due, number)));
        }
    }
}

impl FabricBackend for Views {
    type Port = AdapterRef;

    /// `7/vm-1` is a virtual machine of the view with that number; without one it is of the first.
    fn find_port(&self, node_id: &str) -> Option<AdapterRef> {
        let (view, node) = node_id.split_once('/').unwrap_or(("0", node_id));
        let view = view.parse().ok()?;
        let adapter = self.views.get(view as usize)?.adapter(node)?;
        Some(AdapterRef { view, adapter })
    }

    fn node_id(&self, port: AdapterRef) -> String {
        let (fabric, port) = self.at(port);
        fabric.id_of(port).to_owned()
    }

    fn vendor(&self, _: AdapterRef) -> Vendor {
        Vendor::default()
    }

    fn node_info(&self, port: AdapterRef) -> [u8; 64] {
        let (fabric, port) = self.at(port);
        fabric.node_info_of(port)
    }

    fn port_info(&self, port: AdapterRef, number: u8) -> Option<[u8; 64]> {
        let (fabric, port) = self.at(port);
        fabric.port_info_of(port, number)
    }

    fn pkeys(&self, port: AdapterRef) -> [u8; 64] {
        let (fabric, port) = self.at(port);
        fabric.pkeys_of(port)
    }

    fn port_state(&self, port: AdapterRef) -> (Option<Lid>, PortState) {
        let (fabric, port) = self.at(port);
        (fabric.lid(port), fabric.state_of(port))
    }

    fn port_guid(&self, port: AdapterRef) -> Guid {
        let (fabric, port) = self.at(port);
        fabric.guid_of(port)
    }

    fn port_gid(&self, port: AdapterRef) -> Gid {
        let (fabric, port) = self.at(port);
        fabric.gid_of(port)
    }

    fn set_is_sm(&mut self, port: AdapterRef, on: bool) {
        let now = self.started.elapsed();
        self.views[port.view as usize].set_is_sm(now, port.adapter, on);
        self.restless.insert(port.view);
    }

    fn handle(&mut self, from: AdapterRef, sent: ClientDatagram, outbox: &mut Outbox<AdapterRef>) {
        let now = outbox.now().duration_since(self.started);
        let view = &mut self.views[from.view as usize];
        match sent {
            ClientDatagram::Ibsim { client, message } => {
                let bare = BareDatagram {
                    slid: message.slid,
                    dlid: message.dlid,
                    sqp: message.sqp,
                    dqp: message.dqp,
                    mad: message.mad.clone(),
                };
                if view.handle_bare(now, from.adapter, bare).is_err() {
                    outbox.report_lost(client, message);
                }
            }
            ClientDatagram::Framed { client, datagram } => {
                if view.handle_datagram(now, from.adapter, datagram.clone()).is_err() {
                    outbox.report_lost(client, datagram);
                }
            }
        }
        self.pass_on(from.view, outbox);
    }

    fn paused_until(&self, port: AdapterRef) -> Option<Instant> {
        self.views[port.view as usize].paused_until().map(|until| self.started + until)
    }

    fn tick(&mut self, outbox: &mut Outbox<AdapterRef>) -> Option<Duration> {
        let now = outbox.now().duration_since(self.started);
        let mut touched = std::mem::take(&mut self.restless);
        touched.extend(self.due.iter().take_while(|(due, _)| *due <= now).map(|(_, number)| *number));
        for number in touched {
            self.views[number as usize].handle_timeout(now);
            self.pass_on(number, outbox);
        }
        self.due.first().map(|(due, _)| due.saturating_sub(now))
    }
}
