//! InfiniBand adapters of real virtual machines while the fabric and its managers fail: how long `ib0` is silent, and what becomes of MPI.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod site;

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use site::{HEDDLE, Site, TENANT, eventually};

/// Interval of pings in seconds.
const INTERVAL: f64 = 0.25;

/// Seconds of pings around a fault, and the time before the fault.
const WATCHED_SECS: u32 = 45;
const BEFORE: Duration = Duration::from_secs(10);

/// How long an MPI job is to last, longer than a fault, and the rounds that tell how many that takes.
const JOB_MS: f64 = 30_000.0;
const TRIED_ROUNDS: u32 = 300;

const CLUSTER: &str = "rdma";

/// What node 1 saw of node 2 around a fault.
struct Seen {
    /// Longest time without an answer, beyond the interval.
    silent_secs: f64,
    sent: u32,
    answered: u32,
    /// Seconds from the last answer to the end.
    end_secs: f64,
    mpi: String,
}

/// A command in node 1 that runs beside the test.
fn spawn(site: &Site, command: &[&str]) -> Child {
    let start = ["cluster", "exec", CLUSTER, "--tenant", TENANT, "--node", "1", "--"];
    let mut heddle = Command::new(HEDDLE);
    heddle.args(start).args(command).env("HEDDLE_HOME", site.directory()).stdin(Stdio::null());
    heddle.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Rounds of mpi-ring that last for a while on this machine.
fn rounds(site: &Site) -> u32 {
    let text = site.exec(CLUSTER, 1, &["mpirun", "-np", "2", "mpi-ring", &TRIED_ROUNDS.to_string()]);
    let per_round = text.split_once("ok (").and_then(|(_, rest)| rest.split(' ').next());
    let ms: f64 = per_round.unwrap_or_else(|| panic!("{text}")).parse().unwrap();
    (JOB_MS / ms.max(0.1)) as u32
}

/// Pings and an MPI job while `fault` happens.
fn watch(site: &Site, fault: impl FnOnce(&Site)) -> Seen {
    let rounds = rounds(site).to_string();
    let (peer, interval) = (format!("{CLUSTER}-2"), INTERVAL.to_string());
    let seconds = WATCHED_SECS.to_string();
    let ping = spawn(site, &["ping", "-D", "-I", "ib0", "-i", &interval, "-w", &seconds, &peer]);
    let ring = spawn(site, &["timeout", "300", "mpirun", "-np", "2", "mpi-ring", &rounds]);
    sleep(BEFORE);
    fault(site);
    let ping = String::from_utf8(ping.wait_with_output().unwrap().stdout).unwrap();
    let ring = ring.wait_with_output().unwrap();
    let said = [ring.stdout, ring.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    let verdict =
        said.lines().find(|line| line.starts_with("ring:") || line.contains("rror")).map(str::to_owned);
    let times: Vec<f64> = ping
        .lines()
        .filter(|line| line.contains("bytes from"))
        .map(|line| line[1..].split(']').next().unwrap().parse().unwrap())
        .collect();
    assert!(times.len() > 10, "{ping}");
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    let sent = ping.lines().find_map(|line| line.split_once(" packets transmitted"));
    Seen {
        silent_secs: (gaps.fold(0.0, f64::max) - INTERVAL).max(0.0),
        sent: sent.unwrap_or_else(|| panic!("{ping}")).0.parse().unwrap(),
        answered: times.len() as u32,
        end_secs: times[0] + f64::from(WATCHED_SECS) - times.last().unwrap(),
        mpi: verdict.unwrap_or_else(|| format!("no result: {said}")),
    }
}

fn report(what: &str, seen: &Seen) {
    let Seen { silent_secs, sent, answered, mpi, .. } = seen;
    println!("{what}: ib0 silent for {silent_secs:.1} s, {answered} of {sent} pings answered; MPI: {mpi}");
    assert!(seen.end_secs < 5.0, "{what}: ib0 was silent for the last {} s", seen.end_secs);
}

fn control(site: &Site, manager: &str) -> String {
    site.directory().join(format!("run/{manager}.sock")).display().to_string()
}

/// The program of the manager that is the master.
fn master(site: &Site) -> &'static str {
    let mut found = None;
    eventually("a manager is the master", || {
        let is_master = |name: &&str| {
            let output = site.attempt(&["sm", "status", "--control", &control(site, name)]);
            serde_json::from_slice::<Value>(&output.stdout).is_ok_and(|status| status["role"] == "master")
        };
        found = ["sm", "sm-2"].into_iter().find(is_master);
        found.is_some()
    });
    found.unwrap()
}

/// Where the adapter of a node is: node of the topology and port.
fn port_of(site: &Site, number: usize) -> (String, String) {
    let mut adapters: Vec<Value> = serde_json::from_str(&site.sim_ctl(&["adapters"])).unwrap();
    let guid = site.exec(CLUSTER, number as u32, &["cat", "/sys/class/infiniband/heddle0/node_guid"]);
    let guid = format!("0x{}", guid.trim().replace(':', ""));
    adapters.retain(|adapter| adapter["guid"] == guid.as_str());
    let [adapter] = adapters.as_slice() else { panic!("{guid}: {adapters:?}") };
    (adapter["node"].as_str().unwrap().to_owned(), adapter["port"].to_string())
}

#[test]
fn ib0_and_mpi_survive_managers_keys_and_links_that_fail() {
    let site = Site::up_with(&["--managers", "2", "--hosts", "6"]);
    site.order(CLUSTER, &["--nodes", "2", "--adapter", "infiniband"]);
    site.wait_ready(CLUSTER, 2);
    let calm = watch(&site, |_| {});
    report("control, nothing fails", &calm);
    assert!(calm.mpi.contains(": ok"), "{}", calm.mpi);

    let seen = watch(&site, |site| site.kill(master(site)));
    report("the master is killed, and the other manager takes over", &seen);
    assert!(seen.mpi.contains(": ok"), "{}", seen.mpi);

    let seen = watch(&site, |site| {
        site.kill("sm");
        site.kill("sm-2");
    });
    report("both managers are killed, and started again", &seen);
    assert!(seen.mpi.contains(": ok"), "{}", seen.mpi);

    let seen = watch(&site, |site| {
        let socket = control(site, master(site));
        println!("{}", site.run(&["sm", "rotate-keys", "--control", &socket]).trim());
    });
    report("every node gets another M_Key", &seen);
    assert!(seen.mpi.contains(": ok"), "{}", seen.mpi);

    let (node, port) = port_of(&site, 2);
    let seen = watch(&site, |site| {
        site.sim_ctl(&["link", "down", &node, &port]);
        sleep(Duration::from_secs(1));
        site.sim_ctl(&["link", "up", &node, &port]);
    });
    report("the cable of a node is pulled for 1 s", &seen);

    let seen = watch(&site, |site| {
        site.run(&[
            "cluster",
            "partition",
            CLUSTER,
            "--tenant",
            TENANT,
            "--set",
            "one=1",
            "--set",
            "two=2",
            "--wait",
        ]);
        sleep(Duration::from_secs(3));
        site.run(&["cluster", "partition", CLUSTER, "--tenant", TENANT, "--clear", "--wait"]);
    });
    report("both nodes leave the partition of each other, and come back", &seen);
    let ring = site.exec(CLUSTER, 1, &["mpirun", "-np", "2", "mpi-ring"]);
    assert!(ring.contains(": ok"), "{ring}");

    // A link between switches fails under the traffic: the manager routes around it.
    let seen = watch(&site, |site| {
        let started = Instant::now();
        for (switch, port) in uplinks(site, &node) {
            site.sim_ctl(&["link", "down", &switch, &port]);
            sleep(Duration::from_secs(2));
            site.sim_ctl(&["link", "up", &switch, &port]);
            sleep(Duration::from_secs(2));
        }
        println!("links failed one after the other for {:.0} s", started.elapsed().as_secs_f64());
    });
    report("each link above a node's switch fails for 2 s", &seen);
    site.delete(CLUSTER);
    site.wait_gone(CLUSTER);
    assert!(site.functions().is_empty());
}

/// Ports from the switch of an adapter to other switches.
fn uplinks(site: &Site, adapter: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(site.directory().join("fabric.topo")).unwrap();
    let topology = fabric_model::ibnetdiscover::parse(&text).unwrap();
    let adapter = topology.node(topology.by_id(adapter).unwrap()).unwrap();
    let (_, end) = adapter.cabled_ports().next().unwrap();
    let switch = topology.node(end.node).unwrap();
    let up = switch.cabled_ports().filter(|(_, end)| topology.node(end.node).unwrap().is_switch());
    up.map(|(port, _)| (switch.id.clone(), port.to_string())).collect()
}
