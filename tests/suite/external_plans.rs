//! `heddle sm --external-plans`: a subnet manager that programs the plans of a controller.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fabric_compiler::{compile, partitions_conf};
use fabric_model::{Decisions, FabricPlan, Intents, ibnetdiscover};
use serde_json::{Value, json};

use crate::rig::{self, Printed, Server, SmDaemon, eventually};

const NET: &str = "tree-16.ibnetdiscover";
const HOST: &str = "host-00001";

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A partition of all hosts, with a broadcast group.
const BLUE: &str = "blue=0x123, ipoib: ALL=full;\n";

fn json(printed: &Printed) -> Value {
    serde_json::from_str(&printed.stdout).unwrap_or_else(|_| panic!("{printed:?}"))
}

/// Number of Sets that software on any node has sent so far.
fn sets_asked(server: &Server) -> u64 {
    let status = json(&server.control(&["status"]));
    let ports = status["requests"].as_object().unwrap().values();
    ports.flat_map(|asked| asked["set"].as_object().unwrap().values()).filter_map(Value::as_u64).sum()
}

/// Everything that tables of all nodes hold.
fn tables(server: &Server) -> BTreeMap<String, Value> {
    let switches = ["leaf-01", "leaf-02", "leaf-03", "leaf-04", "spine-01", "spine-02"];
    let nodes = (1..=16).map(|number| format!("host-{number:05}")).chain(switches.map(str::to_owned));
    nodes.map(|node| (node.clone(), json(&server.control(&["tables", &node])))).collect()
}

/// A controller that watches a manager and compiles plans for the fabric it reports.
struct Controller {
    lines: Lines<BufReader<UnixStream>>,
    manager: std::path::PathBuf,
    decisions: Decisions,
}

impl Controller {
    /// Starts to watch; the first line describes the fabric.
    fn of(manager: &SmDaemon) -> Self {
        let mut stream = None;
        eventually("the manager takes commands", || {
            stream = UnixStream::connect(manager.socket()).ok();
            stream.is_some()
        });
        let mut stream = stream.unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        writeln!(stream, "{}", json!({ "command": "watch" })).unwrap();
        let lines = BufReader::new(stream).lines();
        Self { lines, manager: manager.socket().to_owned(), decisions: Decisions::default() }
    }

    /// The next event of a kind; the others are passed over.
    fn wait_for(&mut self, event: &str) -> Value {
        loop {
            let line = self.lines.next().expect("the manager goes on").expect("something happens in time");
            let said: Value = serde_json::from_str(&line).unwrap();
            if said["ok"]["event"] == event {
                return said["ok"].clone();
            }
        }
    }

    /// A plan for a fabric as a manager reports it.
    fn plan(&mut self, seen: &Value, partitions: &str) -> FabricPlan {
        let topology = ibnetdiscover::parse(seen["topology"].as_str().unwrap()).unwrap();
        let mut intents = Intents::new(serde_json::from_value(seen["manager"].clone()).unwrap());
        intents.capabilities = serde_json::from_value(seen["capabilities"].clone()).unwrap();
        intents.partitions = partitions_conf::parse(partitions).unwrap();
        let plan = compile(&topology, &intents, &self.decisions).unwrap();
        self.decisions = plan.decisions().clone();
        plan
    }

    /// Hands a plan over and returns the answer, `ok` or `error`.
    fn hand_over(&self, plan: &FabricPlan) -> Value {
        let mut stream = UnixStream::connect(&self.manager).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        writeln!(stream, "{}", json!({ "command": "plan", "plan": plan })).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"))
    }

    fn programs(&self, plan: &FabricPlan) {
        let answer = self.hand_over(plan);
        assert!(answer["ok"].as_str().is_some_and(|text| text.starts_with("up:")), "{answer}");
    }
}

fn sim() -> Server {
    Server::heddle(&rig::fixture(NET), &[])
}

fn start_manager(server: &Server, options: &[&str]) -> SmDaemon {
    SmDaemon::start(server, HOST, &[&["--external-plans"], options].concat())
}

/// Waits for two sweeps, which find whatever there is to find.
fn two_sweeps(manager: &SmDaemon) {
    let gets = || manager.status()["gets"].as_u64().unwrap();
    for _ in 0..2 {
        let before = gets();
        eventually("another sweep", || gets() > before);
    }
}

#[test]
fn nothing_is_written_before_the_first_plan() {
    let server = sim();
    let manager = start_manager(&server, &[]);
    let mut controller = Controller::of(&manager);
    let seen = controller.wait_for("discovered");
    two_sweeps(&manager);
    assert_eq!(sets_asked(&server), 0);
    assert!(manager.stdout().contains("waiting for a plan"), "{}", manager.stdout());
    assert!(!std::path::Path::new(&server.file("state.json")).exists(), "nothing was decided");

    let plan = controller.plan(&seen, BLUE);
    controller.programs(&plan);
    assert!(sets_asked(&server) > 0);
    controller.wait_for("programmed");
    let keys = json(&server.control(&["tables", "host-00007"]));
    assert_eq!(keys["pkeys"]["1"], json!([0x7fff, 0x8123]));
    let leaf = json(&server.control(&["tables", "leaf-01"]));
    assert_eq!(leaf["multicast_forwarding"].as_object().unwrap().len(), 1, "{leaf}");
}

#[test]
fn a_plan_that_changes_nothing_is_answered_too() {
    let server = sim();
    let manager = start_manager(&server, &[]);
    let mut controller = Controller::of(&manager);
    let seen = controller.wait_for("discovered");
    let plan = controller.plan(&seen, BLUE);
    controller.programs(&plan);
    let sets = sets_asked(&server);
    controller.programs(&plan);
    let same = controller.plan(&seen, BLUE);
    controller.programs(&same);
    assert_eq!(sets_asked(&server), sets);
    let other = controller.plan(&seen, "blue=0x123, ipoib: ALL=full;\nred=0x124: ALL=full;\n");
    controller.programs(&other);
    assert!(sets_asked(&server) > sets, "the control");
}

#[test]
fn a_restarted_manager_sends_no_set_for_the_same_plan() {
    let server = sim();
    let secret = server.secret(&[3; 32]);
    let manager = start_manager(&server, &["--secret", &secret]);
    let mut controller = Controller::of(&manager);
    let seen = controller.wait_for("discovered");
    let plan = controller.plan(&seen, BLUE);
    controller.programs(&plan);
    let (sets, held) = (sets_asked(&server), tables(&server));
    let state = std::fs::read(server.file("state.json")).unwrap();
    manager.crash();

    let manager = start_manager(&server, &["--secret", &secret]);
    let mut controller = Controller::of(&manager);
    let seen = controller.wait_for("discovered");
    two_sweeps(&manager);
    assert_eq!(std::fs::read(server.file("state.json")).unwrap(), state, "nothing is forgotten");
    assert_eq!(sets_asked(&server), sets, "while it waits");
    assert!(tables(&server) == held, "while it waits");
    controller.decisions = plan.decisions().clone();
    let again = controller.plan(&seen, BLUE);
    assert_eq!(again.basis(), plan.basis(), "it is the same fabric");
    controller.programs(&again);
    // Every host is asked to register again, because the manager has forgotten what software registered.
    assert_eq!(sets_asked(&server), sets + 16, "and when the plan has come");
    assert!(tables(&server) == held, "and when the plan has come");
}

#[test]
fn a_rebooted_node_is_programmed_without_a_new_plan() {
    let server = sim();
    let manager = start_manager(&server, &[]);
    let mut controller = Controller::of(&manager);
    let seen = controller.wait_for("discovered");
    let plan = controller.plan(&seen, BLUE);
    controller.programs(&plan);
    controller.wait_for("programmed");
    let before = tables(&server);
    for node in ["leaf-02", "host-00005", "spine-01"] {
        manager.pause();
        assert!(server.control(&["reboot", node]).success);
        assert!(tables(&server) != before, "{node} has lost its tables");
        manager.resume();
        eventually("it is as it was", || tables(&server) == before);
    }
}

#[test]
fn a_changed_topology_rejects_the_old_plan_with_a_code() {
    let server = sim();
    let manager = start_manager(&server, &[]);
    let mut controller = Controller::of(&manager);
    let seen = controller.wait_for("discovered");
    let old = controller.plan(&seen, BLUE);
    controller.programs(&old);
    let route = |server: &Server| {
        let leaf = json(&server.control(&["tables", "leaf-01"]));
        leaf["linear_forwarding"].clone()
    };
    let before = route(&server);
    assert!(server.control(&["link", "down", "leaf-01", "5"]).success);
    let seen = controller.wait_for("discovered");
    let refused = controller.hand_over(&old);
    assert_eq!(refused["code"], "other-fabric", "{refused}");
    assert!(refused["error"].as_str().unwrap().contains("other links, devices"), "{refused}");
    assert_eq!(route(&server), before, "nothing was decided");
    let new = controller.plan(&seen, BLUE);
    controller.programs(&new);
    assert_ne!(route(&server), before, "around the cable that is gone");

    // The cable is back: the plan that is kept does not fit, the first one would.
    assert!(server.control(&["link", "up", "leaf-01", "5"]).success);
    let seen = controller.wait_for("discovered");
    assert_eq!(controller.hand_over(&new)["code"], "other-fabric");
    let last = controller.plan(&seen, BLUE);
    assert_eq!(last.basis(), old.basis());
    controller.programs(&last);
}

#[test]
fn a_plan_that_comes_too_early_is_refused_by_code() {
    let server = sim();
    let manager = start_manager(&server, &[]);
    let mut controller = Controller::of(&manager);
    let seen = controller.wait_for("discovered");
    let plan = controller.plan(&seen, BLUE);
    drop(manager);
    // Answers take hours, so that the next manager does not get to know the fabric.
    assert!(server.control(&["delay", "36000000"]).success);
    let manager = start_manager(&server, &[]);
    let controller = Controller::of(&manager);
    let refused = controller.hand_over(&plan);
    assert_eq!(refused["code"], "not-discovered", "{refused}");
}

#[test]
fn the_manager_exits_when_its_device_fails() {
    let mut server = sim();
    let secret = server.secret(&[3; 32]);
    let mut manager = start_manager(&server, &["--secret", &secret]);
    let mut controller = Controller::of(&manager);
    let seen = controller.wait_for("discovered");
    let plan = controller.plan(&seen, BLUE);
    controller.programs(&plan);
    let held = tables(&server);
    server.crash();
    assert_eq!(manager.wait_for_end(), Some(75), "{}", manager.stderr());
    let said = manager.stderr();
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("heddle: the device of the fabric has failed"), "{said}");

    server.restart(&rig::fixture(NET));
    assert!(tables(&server) != held, "it has lost everything");
    let manager = start_manager(&server, &["--secret", &secret]);
    let mut controller = Controller::of(&manager);
    let seen = controller.wait_for("discovered");
    controller.decisions = plan.decisions().clone();
    let again = controller.plan(&seen, BLUE);
    controller.programs(&again);
    assert!(tables(&server) == held, "it is as it was");
}
