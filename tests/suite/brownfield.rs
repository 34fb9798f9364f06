//! A fabric that is in use under opensm becomes one that tenants share: some hosts are handed over, and those that were not
//! keep every pair that they had.
//!
//! The programs are real and talk to a fabric of this process, where the tables of all devices are judged after every Set.

use std::collections::BTreeSet;
use std::path::Path;

use fabric_model::{Topology, ibnetdiscover};
use fabric_sim::BuiltInProfile;
use ib_wire::Guid;

use crate::in_process::pairs::PairSet;
use crate::in_process::served::{PortPairs, ServedFabric};
use crate::in_process::tables::Places;
use crate::rig::{self, SmDaemon};

/// Hosts that tenants get: 20 of each of two.
const HANDED_OVER: usize = 40;

/// A host of the fabric, by its place in the tables.
#[derive(Clone, Debug)]
struct Host {
    place: usize,
    /// What tools attach to.
    id: String,
    port: Guid,
}

/// The 2014 fabric with roles for its hosts.
struct Site {
    fabric: ServedFabric,
    manager: Host,
    storage: Vec<Host>,
    login: Vec<Host>,
    metal: Vec<Host>,
    /// Hosts that are in no partition but those of all.
    rest: Vec<Host>,
    blue: Vec<Host>,
    red: Vec<Host>,
}

impl Site {
    fn new() -> Self {
        let topology = fixture();
        let places = Places::of(&topology);
        let mut hosts: Vec<Host> = topology
            .end_nodes()
            .filter_map(|(_, node)| {
                let (_, port) = node.ports().find(|(_, port)| port.peer.is_some())?;
                Some(Host { place: places.ends[&port.guid], id: node.id.to_string(), port: port.guid })
            })
            .collect();
        assert!(hosts.len() > 100, "{} hosts", hosts.len());
        let half = HANDED_OVER / 2;
        // Hosts in the order of the file are neighbours: every third is handed over, so that leaves are shared.
        let (handed_over, kept): (Vec<_>, Vec<_>) =
            hosts.drain(..).enumerate().partition(|(index, _)| index % 3 == 1 && *index < 3 * HANDED_OVER);
        let plain =
            |hosts: Vec<(usize, Host)>| hosts.into_iter().map(|(_, host)| host).collect::<Vec<Host>>();
        let (mut blue, mut kept) = (plain(handed_over), plain(kept));
        let red = blue.split_off(half);
        assert_eq!((blue.len(), red.len()), (half, half));
        let mut next = |count: usize| kept.drain(..count).collect::<Vec<Host>>();
        let (manager, storage, login, metal) = (next(1).remove(0), next(4), next(3), next(6));
        let fabric = ServedFabric::new(&topology, BuiltInProfile::Strict);
        Self { fabric, manager, storage, login, metal, rest: kept, blue, red }
    }

    /// The file that opensm runs with; Heddle reads the same lines.
    fn partitions(&self) -> String {
        // Half of the blue hosts use the storage, also when they are handed over.
        let clients = [members(&self.rest, "limited"), members(&self.blue[..10], "limited")].join(",\n    ");
        let (storage, metal, login) =
            (members(&self.storage, "full"), members(&self.metal, "full"), members(&self.login, "full"));
        format!(
            "Default=0x7fff, ipoib, defmember=full : ALL;\n\
             storage=0x20, ipoib : {storage},\n    {clients};\n\
             login=0x30, defmember=limited : ALL_CAS,\n    {login};\n\
             metal=0x40 : {metal};\n"
        )
    }

    /// The same with the partitions of two tenants.
    fn partitions_with_tenants(&self) -> String {
        let (blue, red) = (members(&self.blue, "full"), members(&self.red, "full"));
        format!("{}blue=0x101, indx0, ipoib : {blue};\nred=0x102 : {red};\n", self.partitions())
    }

    fn handed_over(&self) -> Vec<Host> {
        [self.blue.clone(), self.red.clone()].concat()
    }

    fn handed_over_file(&self) -> String {
        let ports = self.handed_over().into_iter().map(|host| format!("{} # {}\n", host.port, host.id));
        std::iter::once("# given to tenants\n".to_owned()).chain(ports).collect()
    }

    /// The pairs among ports that were not handed over.
    fn of_others(&self, pairs: &PairSet) -> PortPairs {
        let handed_over = places_of(&self.handed_over());
        let is_other = |(a, b): &(usize, usize)| !handed_over.contains(a) && !handed_over.contains(b);
        pairs.iter().filter(is_other).collect()
    }

    /// opensm brings the fabric up with its partitions, and ends.
    fn run_opensm(&self) {
        let file = self.fabric.file("partitions.conf", &self.partitions());
        let opensm = self.fabric.sockets().opensm(&self.manager.id, &["-P", path(&file)]);
        opensm.wait_for("SUBNET UP");
    }

    /// Heddle takes the fabric over.
    fn take_over(&self, partitions: &Path, handed_over: &Path) -> SmDaemon {
        let options =
            ["--adopt", "--apply", "--partitions", path(partitions), "--handed-over", path(handed_over)];
        let state = self.fabric.scratch().join("state.json");
        let device = self.fabric.device_spec(&self.manager.id);
        let mut daemon = SmDaemon::start_at(&[], &device, self.fabric.scratch(), (path(&state), &options));
        daemon.wait_for_up(1);
        daemon
    }

    /// Whether saquery on one host finds the node record of another.
    fn shows(&self, viewer: &Host, host: &Host) -> bool {
        let lid = self.fabric.lid(host.place).to_string();
        let printed = self.fabric.tool(&viewer.id, "saquery", &["NR", &lid]);
        printed.stdout.contains(&host.port.to_string())
    }
}

/// A list of members with one role, a line for each: opensm reads lines of up to 4 KiB.
fn members(hosts: &[Host], role: &str) -> String {
    hosts.iter().map(|host| format!("{}={role}", host.port)).collect::<Vec<_>>().join(",\n    ")
}

fn fixture() -> Topology {
    let bytes = std::fs::read(rig::fixture("loginoff-2014.ibnetdiscover")).unwrap();
    ibnetdiscover::read(&bytes).unwrap()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn places_of(hosts: &[Host]) -> BTreeSet<usize> {
    hosts.iter().map(|host| host.place).collect()
}

/// The pairs from some hosts to others.
fn across(pairs: &PairSet, from: &BTreeSet<usize>, to: &BTreeSet<usize>) -> PortPairs {
    pairs.iter().filter(|(a, b)| from.contains(a) && to.contains(b)).collect()
}

#[test]
fn a_takeover_from_opensm_loses_no_pair_and_hands_hosts_over() {
    let site = Site::new();
    site.run_opensm();
    let before = site.fabric.reachable();
    let kept = site.of_others(&before.honest);
    let everybody = before.honest.len();
    assert!(
        everybody > 20_000,
        "controls: in the default partition of opensm all reach each other, got {everybody}"
    );

    site.fabric.watch(kept.clone());
    let partitions = site.fabric.file("site.conf", &site.partitions_with_tenants());
    let handed_over = site.fabric.file("handed-over", &site.handed_over_file());
    let daemon = site.take_over(&partitions, &handed_over);
    let watched = site.fabric.watched();
    println!("{} Sets, {} of them changed a table", watched.sets, watched.judged);
    assert!(
        watched.judged > 2 * HANDED_OVER as u64,
        "{} of {} Sets were judged",
        watched.judged,
        watched.sets
    );
    assert_eq!(watched.lost, None, "no pair of others is lost while Heddle takes over");

    let after = site.fabric.reachable();
    let lost: PortPairs = kept.into_iter().filter(|pair| !after.honest.contains(*pair)).collect();
    assert_eq!(lost, PortPairs::new(), "no pair of others is lost");

    let tenants = places_of(&site.handed_over());
    let others: BTreeSet<usize> =
        before.honest.iter().map(|(a, _)| a).filter(|it| !tenants.contains(it)).collect();
    let manager = BTreeSet::from([site.manager.place]);
    let (storage, clients) = (places_of(&site.storage), places_of(&site.blue[..10]));
    let (blue, red) = (places_of(&site.blue), places_of(&site.red));
    let beyond = |pairs: &PairSet, reached: &BTreeSet<usize>| -> PortPairs {
        let is_allowed =
            |from: &usize, to: &usize| manager.contains(to) || clients.contains(from) && reached.contains(to);
        across(pairs, &tenants, &others).into_iter().filter(|(from, to)| !is_allowed(from, to)).collect()
    };
    assert_eq!(beyond(&after.honest, &storage), PortPairs::new(), "nothing arrives at ports of the site");
    // An adapter that sends with any key gets no further than the partitions of its port.
    let of_storage = storage.union(&places_of(&site.rest)).copied().collect();
    assert_eq!(beyond(&after.hostile, &of_storage), PortPairs::new(), "whatever keys an adapter sends");
    assert_eq!(across(&after.honest, &blue, &red), PortPairs::new(), "tenants do not reach each other");
    // Controls.
    for (from, to, count) in [
        (&blue, &blue, 20 * 19),
        (&red, &red, 20 * 19),
        (&clients, &storage, 10 * 4),
        (&storage, &clients, 4 * 10),
        (&tenants, &manager, HANDED_OVER),
    ] {
        assert_eq!(across(&after.honest, from, to).len(), count);
    }

    // Requests of a handed-over port are answered, whichever key is at index 0; it sees its partitions only.
    for (host, neighbour, stranger) in
        [(&site.blue[0], &site.blue[1], &site.red[0]), (&site.red[0], &site.red[1], &site.blue[0])]
    {
        assert!(site.shows(host, host) && site.shows(host, neighbour) && site.shows(host, &site.manager));
        assert!(!site.shows(host, stranger) && !site.shows(host, &site.metal[0]));
    }
    assert!(site.shows(&site.metal[0], &site.rest[0]), "a control");
    drop(daemon);
}
