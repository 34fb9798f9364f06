//! Stock opensm gets a fabric with a key per node and partitions, and gives it back: LIDs and reachability stay.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ib_wire::{Membership, Pkey};
use serde_json::Value;

use crate::rig::tree::{
    HOST, guids, host, json, leaf_guid, node_key, once, partition, sets_asked, snapshot, tree,
};
use crate::rig::{OpenSm, Printed, Server, SmDaemon, eventually};

const KEY: &str = "0x1122334455667788";

/// What data can do, by a walk over the tables of all devices.
#[derive(Debug, PartialEq, Eq)]
struct Reach {
    lids: BTreeMap<String, u64>,
    /// Pairs of hosts, in both directions, that a path connects and that share a P_Key with a full member, with the numbers
    /// of these partitions.
    pairs: BTreeMap<(String, String), BTreeSet<u16>>,
}

impl Reach {
    fn of(server: &Server) -> Self {
        let names = crate::rig::tree::tree_nodes();
        let tables: BTreeMap<String, Value> =
            names.iter().map(|name| (name.clone(), json(&server.control(&["tables", name])))).collect();
        let shown: BTreeMap<&String, Value> =
            names.iter().map(|name| (name, json(&server.control(&["counters", name])))).collect();
        let name_of = |id: &str| shown.iter().find(|(_, shown)| shown["id"] == id).unwrap().0;
        let mut peers: BTreeMap<(String, u64), (String, u64)> = BTreeMap::new();
        let mut lids = BTreeMap::new();
        for name in &names {
            let shown = &shown[name];
            for port in shown["ports"].as_array().unwrap() {
                let number = port["number"].as_u64().unwrap();
                if let Some(lid) = port["lid"].as_u64() {
                    lids.insert(name.clone(), lid);
                }
                let is_active = port["state"] == "Active";
                let peer = port["peer"].as_str().filter(|_| is_active).and_then(|peer| peer.split_once('['));
                if let Some((peer, at)) = peer {
                    let at = at.trim_end_matches(']').parse().unwrap();
                    peers.insert((name.clone(), number), ((*name_of(peer)).clone(), at));
                }
            }
        }
        let walk = |from: &str, to: &str| {
            let mut at = peers.get(&(from.to_owned(), 1)).cloned();
            for _ in 0..8 {
                let (node, _) = at.clone()?;
                if node == to {
                    return Some(());
                }
                let exit = tables[&node]["linear_forwarding"][lids[to].to_string()].as_u64()?;
                at = peers.get(&(node, exit)).cloned();
            }
            None
        };
        let keys = |name: &str| -> Vec<Pkey> {
            let held = tables[name]["pkeys"]["1"].as_array().unwrap().iter();
            held.filter_map(|key| Pkey::from_wire(key.as_u64()? as u16)).collect()
        };
        let mut pairs = BTreeMap::new();
        let hosts: Vec<&String> = names.iter().filter(|name| name.starts_with("host")).collect();
        for from in &hosts {
            for to in hosts.iter().filter(|to| to != &from) {
                let ours = keys(from);
                let shared = keys(to).into_iter().filter(|key| {
                    ours.iter().any(|own| {
                        own.partition() == key.partition()
                            && [own, key].iter().any(|key| key.membership() == Membership::Full)
                    })
                });
                let shared: BTreeSet<u16> = shared.map(|key| key.partition().to_wire()).collect();
                if !shared.is_empty() && walk(from, to).is_some() {
                    pairs.insert(((*from).clone(), (*to).clone()), shared);
                }
            }
        }
        Self { lids, pairs }
    }
}

/// A fabric with a key per node and two partitions with IPoIB under `heddle sm`, and what to start it with.
struct Site {
    manager: SmDaemon,
    server: Server,
    options: Vec<String>,
    before: Reach,
}

impl Site {
    fn up() -> Self {
        let server = tree();
        let conf = server.file("site-partitions.conf");
        let blue = partition("blue", 0x101, &[2, 6], &[9, 13]);
        let red = partition("red", 0x102, &[3, 7], &[2]);
        let ipoib = |rule: String| rule.replacen(" :", ", ipoib :", 1);
        std::fs::write(&conf, [ipoib(blue), ipoib(red)].concat()).unwrap();
        let options =
            ["--secret", &server.secret(&[0x5a; 32]), "--partitions", &conf].map(str::to_owned).to_vec();
        let manager = start(&server, &options, &[]);
        let before = Reach::of(&server);
        assert_eq!(before.lids.len(), 22);
        let pair = |a: u64, b: u64| before.pairs.get(&(host(a), host(b))).map(|shared| shared.len());
        // Through the default partition every host reaches the manager, and only it.
        assert_eq!((pair(1, 5), pair(4, 5)), (Some(1), None));
        assert_eq!((pair(2, 6), pair(2, 3), pair(9, 13)), (Some(1), Some(1), None));
        Self { manager, server, options, before }
    }

    /// The command, and the end of the manager.
    fn release(&mut self, options: &[&str]) -> Printed {
        let export = self.server.file("export");
        let printed = self.manager.control(&[&["release", "--export", &export], options].concat());
        assert!(printed.success, "{printed:?}\n{}", self.manager.stderr());
        assert_eq!(self.manager.wait_for_end(), Some(0), "{}", self.manager.stderr());
        printed
    }

    /// opensm on what was exported, once the subnet is up.
    fn opensm(&self, m_key: &str, lookup: &str) -> OpenSm {
        let export = self.server.file("export");
        let config = self.server.file("opensm.conf");
        let text = format!(
            "m_key {m_key}\nm_key_lookup {lookup}\nm_key_protection_level 2\nallow_both_pkeys TRUE\n\
             honor_guid2lid_file TRUE\npartition_config_file {export}/partitions.conf\n"
        );
        std::fs::write(&config, text).unwrap();
        self.server.opensm_with_cache(HOST, Path::new(&export), &["-F", &config])
    }

    fn operator_key(&self, text: &str) -> String {
        let path = self.server.file("operator.key");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Whether a node answers to a key; leaf 1 is one hop away, and host 2 behind it.
    fn answers(&self, path: &str, key: &str) -> bool {
        self.server.tool(HOST, "smpquery", &["-y", key, "-D", "nodeinfo", path]).success
    }

    /// Takes the fabric back, and checks that it is as it was, but for keys of the next epoch.
    fn reclaim(&mut self, options: &[&str]) {
        let refused =
            once(&self.server, &[&["--state", &self.server.file("state.json")], &*self.known()].concat());
        assert!(!refused.success && refused.stderr.contains("--reclaim"), "{refused:?}");
        self.manager = start(&self.server, &self.options, &[&["--reclaim"], options].concat());
        eventually("nodes have their own keys", || {
            let keys = &self.manager.status()["keys"];
            keys["kind"] == "derived" && keys["behind"] == 0 && keys["epoch"] == 1
        });
        assert_eq!(Reach::of(&self.server), self.before);
        let secret = &self.options[1];
        for (path, guid) in [("0,1", leaf_guid(1)), ("0,1,2", guids(2).0)] {
            assert!(
                !self.answers(path, KEY) && !self.answers(path, &node_key(&guid, secret)),
                "{path}: old keys"
            );
            let key = crate::rig::tree::node_key_in(&guid, secret, 1);
            assert!(self.answers(path, &key), "{path}: a key of its own, of the next epoch");
        }
    }

    fn known(&self) -> Vec<&str> {
        self.options.iter().map(String::as_str).collect()
    }
}

fn start(server: &Server, options: &[String], more: &[&str]) -> SmDaemon {
    let options: Vec<&str> = options.iter().map(String::as_str).chain(more.iter().copied()).collect();
    SmDaemon::up(server, HOST, &options)
}

/// The cache files that opensm writes have these lines, whatever their order.
fn lines(path: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn opensm_gets_a_fabric_with_a_single_key_and_gives_it_back() {
    let mut site = Site::up();
    let key = site.operator_key(&format!("{KEY}\n"));
    let printed = site.release(&["--single-key", &key]);
    let export = site.server.file("export");
    assert!(
        !printed.stdout.contains(&KEY[2..]) && !site.manager.stderr().contains(&KEY[2..]),
        "no key is printed"
    );
    assert!(site.answers("0,1", KEY) && site.answers("0,1,2", KEY), "every node has it");
    let (lids, keys, neighbors) =
        ["guid2lid", "guid2mkey", "neighbors"].map(|name| lines(&format!("{export}/{name}"))).into();
    let opensm = site.opensm(KEY, "FALSE");
    let during = Reach::of(&site.server);
    assert_eq!(during, site.before, "LIDs, pairs and their partitions stay");
    drop(opensm);
    // opensm wrote the files anew: in our format, with the same content.
    assert_eq!(lines(&format!("{export}/guid2lid")), lids);
    assert_eq!(lines(&format!("{export}/guid2mkey")), keys);
    assert_eq!(lines(&format!("{export}/neighbors")), neighbors);
    site.reclaim(&["--operator-key", &key]);
}

#[test]
fn opensm_gets_a_fabric_with_a_key_per_node_and_gives_it_back() {
    let mut site = Site::up();
    let own = node_key(&guids(2).0, &site.options[1]);
    site.release(&[]);
    assert!(site.answers("0,1,2", &own) && !site.answers("0,1,2", KEY), "nodes kept their keys");
    let export = site.server.file("export");
    let keys = lines(&format!("{export}/guid2mkey"));
    assert!(keys.contains(&format!("{} {own}", guids(2).1)), "{keys:?}");
    let opensm = site.opensm(KEY, "TRUE");
    assert_eq!(Reach::of(&site.server), site.before);
    drop(opensm);
    // It knows one key for the subnet, and gives it to every node.
    assert!(site.answers("0,1,2", KEY) && !site.answers("0,1,2", &own));
    let key = site.operator_key(KEY);
    site.reclaim(&["--operator-key", &key]);
}

#[test]
fn opensm_gets_a_fabric_without_keys_and_gives_it_back() {
    let mut site = Site::up();
    site.release(&["--remove-keys"]);
    assert!(
        site.server.tool(HOST, "smpquery", &["-D", "nodeinfo", "0,1,2"]).success,
        "it answers to everybody"
    );
    let opensm = site.opensm("0x0", "TRUE");
    assert_eq!(Reach::of(&site.server), site.before);
    drop(opensm);
    site.reclaim(&[]);
}

#[test]
fn opensm_gets_nothing_without_a_release() {
    let site = Site::up();
    let Site { manager, server, before, .. } = site;
    drop(manager);
    let tables = snapshot(&server);
    let sets = sets_asked(&server);
    let opensm = server.opensm_beside(HOST, &["-F", "/dev/null"]);
    eventually("opensm gives up", || {
        let log = opensm.log();
        assert!(!log.contains("SUBNET UP"), "{log}");
        log.contains("mkey") || log.contains("ERR")
    });
    // It goes on trying; nothing comes of it.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(!opensm.log().contains("SUBNET UP"), "{}", opensm.log());
    drop(opensm);
    println!("{} Sets were sent, none was accepted", sets_asked(&server) - sets);
    assert!(crate::rig::tree::changed(&tables, &snapshot(&server)).is_empty());
    assert_eq!(Reach::of(&server), before);
}

#[test]
fn a_released_fabric_is_not_taken_back_by_accident() {
    let mut site = Site::up();
    let key = site.operator_key(KEY);
    site.release(&["--single-key", &key]);
    let state = site.server.file("state.json");
    let tables = snapshot(&site.server);
    let restarted =
        |more: &[&str]| once(&site.server, &[&["--state", &state], &*site.known(), more].concat());
    let plain = restarted(&[]);
    assert!(!plain.success && plain.stderr.contains("was released"), "{plain:?}");
    let keyless = restarted(&["--reclaim"]);
    assert!(!keyless.success && keyless.stderr.contains("--operator-key"), "{keyless:?}");
    assert_eq!(crate::rig::tree::changed(&tables, &snapshot(&site.server)), Vec::<String>::new());
    site.reclaim(&["--operator-key", &key]);
}

#[test]
fn releases_are_refused_with_a_reason_and_change_nothing() {
    let site = Site::up();
    let tables = snapshot(&site.server);
    let export = site.server.file("export");
    let refused = |options: &[&str]| {
        let printed = site.manager.control(&[&["release", "--export", &export], options].concat());
        assert!(!printed.success, "{printed:?}");
        printed.stderr
    };
    let zero = site.operator_key("0x0000000000000000");
    assert!(refused(&["--single-key", &zero]).contains("a key of 0 is none"));
    assert!(refused(&["--single-key", "/nowhere"]).contains("/nowhere"));
    std::fs::set_permissions(&zero, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(refused(&["--single-key", &zero]).contains("chmod 600"));
    std::fs::set_permissions(&export, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(refused(&[]).contains("only its owner"));
    std::fs::remove_dir(&export).unwrap();
    std::os::unix::fs::symlink(site.server.scratch(), &export).unwrap();
    assert!(refused(&[]).contains("only its owner"), "a symbolic link");
    assert!(crate::rig::tree::changed(&tables, &snapshot(&site.server)).is_empty());
    assert_eq!(site.manager.status()["keys"]["kind"], "derived", "it still runs");
}
