//! Queries: SA records by stock tools, and requests at the control socket of a subnet manager.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::rig::tree::*;
use crate::rig::{self, Printed, Server, SmDaemon, eventually};

// Subnet administration.

/// The values behind a key in what saquery prints.
fn values(printed: &Printed, key: &str) -> Vec<String> {
    let value = |line: &str| {
        let rest = line.trim().strip_prefix(key)?.trim_start_matches(':');
        rest.starts_with("..").then(|| rest.trim_start_matches('.').to_owned())
    };
    printed.stdout.lines().filter_map(value).collect()
}

/// A manager with a partition of 2, 3 (full), 6 and 7 (limited), and one of 4 and 5. Hosts have their number as LID.
fn administered() -> (Server, SmDaemon) {
    let server = tree();
    let conf = server.file("partitions.conf");
    let text = partition("blue", 0x123, &[2, 3], &[6, 7]) + &partition("red", 0x124, &[4, 5], &[]);
    std::fs::write(&conf, text).unwrap();
    let manager = SmDaemon::up(&server, HOST, &["--partitions", &conf]);
    for number in 1..=16 {
        let printed = server.tool(&host(number), "smpquery", &["-D", "portinfo", "0"]);
        assert_eq!(printed.value("Lid"), Some(number.to_string().as_str()), "{printed:?}");
    }
    (server, manager)
}

#[test]
fn saquery_shows_the_manager_and_its_capabilities() {
    let (server, _manager) = administered();
    for number in [2, 7, 16] {
        let class = server.tool(&host(number), "saquery", &["-c"]);
        assert!(class.success && class.stdout.contains("SA ClassPortInfo"), "{class:?}");
        let managers = server.tool(&host(number), "saquery", &["-s"]);
        assert_eq!(values(&managers, "EndPortLid"), ["1"], "{managers:?}");
        let info = server.tool(&host(number), "saquery", &["SMIR"]);
        assert_eq!((values(&info, "LID"), values(&info, "Priority")), (vec!["1".into()], vec!["15".into()]));
        assert_eq!(values(&info, "SM_Key"), ["0x0000000000000000"]);
    }
}

#[test]
fn saquery_agrees_with_smpquery_about_every_host() {
    let (server, _manager) = administered();
    for number in 1..=16 {
        let lid = number.to_string();
        let direct = server.tool(HOST, "smpquery", &["nodeinfo", &lid]);
        let record = server.tool(HOST, "saquery", &["NR", &lid]);
        for (key, shown) in [("Guid", "node_guid"), ("PortGuid", "port_guid"), ("SystemGuid", "sys_guid")] {
            assert_eq!(values(&record, shown), [direct.value(key).unwrap()], "{lid} {key}");
        }
        assert_eq!(values(&record, "NodeDescription"), [host(number)]);
        assert_eq!(values(&record, "lid"), [lid.as_str()]);
        let direct = server.tool(HOST, "smpquery", &["portinfo", &lid]);
        let record = server.tool(HOST, "saquery", &["PIR", &lid]);
        for key in ["Lid", "SMLid", "LinkState", "NeighborMTU", "LinkWidthActive", "VLCap", "LMC"] {
            assert_eq!(values(&record, key), [direct.value(key).unwrap()], "{lid} {key}");
        }
    }
}

/// A-PART-9: stock saquery sends with the key at index 0.
#[test]
fn saquery_is_answered_if_the_manager_has_the_key_at_index_zero() {
    for (of_manager, is_answered) in [("", false), (", SELF=limited", true)] {
        let server = tree();
        let conf = server.file("partitions.conf");
        let text = partition("blue", 0x123, &[2, 3], &[]).replacen("0x123", "0x123, indx0", 1);
        std::fs::write(&conf, text.replacen(';', &format!("{of_manager};"), 1)).unwrap();
        let _manager = SmDaemon::up(&server, HOST, &["--partitions", &conf]);
        for (number, expected) in [(2, is_answered), (3, is_answered), (4, true), (16, true)] {
            let class = server.tool(&host(number), "saquery", &["-c"]);
            assert_eq!(class.success, expected, "{of_manager:?} {number}: {class:?}");
        }
    }
}

#[test]
fn saquery_shows_ports_to_members_of_their_partition_only() {
    let (server, _manager) = administered();
    let asked = |from: u64, arguments: &[&str]| server.tool(&host(from), "saquery", arguments);
    for (from, about, is_told) in [
        (2, 3, true),
        (2, 6, true),
        (6, 2, true),
        (4, 5, true),
        (2, 4, false),
        (4, 2, false),
        (2, 9, false),
        (6, 7, false),
        (16, 2, false),
        (1, 16, true),
    ] {
        let lid = about.to_string();
        let named = values(&asked(from, &["NR", &lid]), "NodeDescription");
        assert_eq!(named.contains(&host(about)), is_told, "{from} asks about node {about}: {named:?}");
        let port = values(&asked(from, &["PIR", &lid]), "EndPortLid");
        assert_eq!(!port.is_empty(), is_told, "{from} asks about port {about}: {port:?}");
    }
    for (from, about, is_told) in [(2, 2, true), (2, 3, false), (16, 2, false), (1, 2, true), (1, 16, true)] {
        let keys = asked(from, &["--smkey", "1", "PKTR", &about.to_string()]).stdout;
        assert_eq!(keys.contains("PKey Table"), is_told, "{from} asks for the keys of {about}: {keys}");
        assert_eq!(keys.contains("0x8123"), is_told && about == 2, "{from} and {about}: {keys}");
    }
}

#[test]
fn paths_exist_inside_partitions_only_and_carry_their_key() {
    let (server, _manager) = administered();
    let path = |asker: u64, from: u64, to: u64| {
        let (from, to) = (from.to_string(), to.to_string());
        server.tool(&host(asker), "saquery", &["PR", "--slid", &from, "--dlid", &to])
    };
    for (from, to, key) in [
        (2, 3, "0x8123"),
        (2, 6, "0x8123"),
        (6, 2, "0x123"),
        (4, 5, "0x8124"),
        (16, 1, "0x7FFF"),
        (1, 16, "0xFFFF"),
    ] {
        let printed = path(from, from, to);
        let value = |key: &str| values(&printed, key);
        assert_eq!(value("pkey"), [key], "{from} to {to}: {printed:?}");
        assert_eq!((value("slid"), value("dlid")), (vec![from.to_string()], vec![to.to_string()]));
        assert_eq!((value("sl"), value("mtu")), (vec!["0x0".into()], vec!["0x84".into()]), "{printed:?}");
    }
    for (asker, from, to) in [(2, 2, 4), (4, 4, 2), (6, 6, 7), (16, 16, 2), (16, 2, 3)] {
        let printed = path(asker, from, to);
        assert!(values(&printed, "dlid").is_empty(), "{asker} asks for {from} to {to}: {printed:?}");
    }
    assert_eq!(values(&path(1, 2, 3), "pkey"), ["0x8123"], "the manager's port is told of everybody");
}

// The control socket.

/// Sends bytes to a control socket, and returns the whole reply.
fn say(manager: &SmDaemon, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(manager.socket()).unwrap();
    // A client that is disconnected while it sends garbage gets an error here.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn an_invalid_control_request_gets_an_error() {
    let server = tree();
    let manager = SmDaemon::up(&server, HOST, &[]);
    let before = snapshot(&server);
    for nonsense in [
        &b"nonsense\n"[..],
        b"\n",
        b"{\"command\":\"obey\"}\n",
        b"{\"command\":\"plan\",\"plan\":{}}\n",
        b"{\"command\":\"adopt-node\",\"node\":\"0x0\"}\n",
        b"{\"command\":\"adopt-node\",\"node\":\"0x1\",\"where\":\"there\"}\n",
        b"[[[[[[[[[[[[[[[[",
    ] {
        let answer = say(&manager, nonsense);
        assert!(answer.starts_with("{\"error\":\"invalid request"), "{nonsense:?}: {answer:?}");
    }
    assert!(say(&manager, b"\xff\xfe\xfd\n").is_empty(), "what is no text is not read");
    assert!(say(&manager, b"{\"command\":\"status\"}\n").starts_with("{\"ok\":{"), "the control");
    let gone = Command::new(rig::HEDDLE).args(["sm", "status", "--control", "/no/such"]).output().unwrap();
    assert!(String::from_utf8_lossy(&gone.stderr).contains("no process listens at /no/such"), "{gone:?}");
    assert_eq!(changed(&before, &snapshot(&server)), Vec::<String>::new());
    assert_eq!(manager.ups().len(), 1);
}

#[test]
fn watchers_get_the_fabric_first_and_then_events() {
    let server = tree();
    let conf = server.file("partitions.conf");
    std::fs::write(&conf, "").unwrap();
    let manager = SmDaemon::up(&server, HOST, &["--partitions", &conf]);
    let mut watcher = manager.command(&["watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watcher.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let first = next();
    assert_eq!(first["event"], "discovered");
    assert_eq!(first["manager"], json!(guids(1).1));
    let topology = first["topology"].as_str().unwrap();
    assert_eq!(topology.matches("\nSwitch\t").count() + topology.matches("\nCa\t").count(), 22, "{topology}");

    std::fs::write(&conf, partition("blue", 0x123, &[2, 3], &[])).unwrap();
    assert!(manager.control(&["reload"]).success);
    let later = next();
    assert_eq!(later["event"], "programmed", "{later}");
    assert_eq!(later["sets"], manager.status()["sets"]);
    watcher.kill().unwrap();
    watcher.wait().unwrap();
    assert!(manager.control(&["reload"]).success, "a watcher that is gone stops nobody");
}

#[test]
fn metrics_report_and_status_agree() {
    let server = tree();
    let (report, metrics) = (server.file("report.json"), server.file("metrics.prom"));
    let manager = SmDaemon::up(&server, HOST, &["--report", &report, "--metrics", &metrics]);
    let status = manager.status();
    let shown = manager.control(&["metrics"]).stdout;
    let sets = format!("\nheddle_sm_sets_total {}\n", status["sets"]);
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    eventually("metrics are written", || read(&metrics).contains(&sets));
    for text in [shown, read(&metrics)] {
        assert!(text.contains(&sets) && text.contains("\nheddle_sm_adapters 16\n"), "{sets:?}: {text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
    let written = || -> Value { serde_json::from_str(&read(&report)).unwrap_or_default() };
    eventually("the report is written", || written()["programmed"] == status["programmed"]);
    let written = written();
    let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&written), fields(&status));
    for field in ["adapters", "drift", "findings", "foreign_managers", "gets", "partitions", "traps", "unmet"]
    {
        assert!(written.get(field).is_some(), "{field}: {written}");
    }
    for field in ["switches", "adapters", "lids", "partitions", "sets", "programmed"] {
        assert_eq!(written[field], status[field], "{field}");
    }
}

#[test]
fn no_secret_and_no_key_is_ever_printed() {
    let server = tree();
    let secret: Vec<u8> = (0..32).map(|index: u8| index.wrapping_mul(37).wrapping_add(11)).collect();
    let path = server.secret(&secret);
    let report = server.file("report.json");
    let manager = SmDaemon::up(&server, HOST, &["--secret", &path, "--report", &report]);
    // Attempts with a wrong key, and without a key, are reported, too.
    let key = node_key(&guids(7).0, &path);
    assert!(!server.tool(&host(7), "smpquery", &["-D", "-y", &key, "nodeinfo", "0,1"]).success);
    assert!(server.tool(&host(7), "smpquery", &["-D", "-y", &key, "nodeinfo", "0"]).success);
    eventually("the attempt is told", || manager.status()["traps"]["256"].as_u64() >= Some(1));
    assert!(server.control(&["reboot", "host-00009"]).success);
    eventually("it is repaired", || manager.ups().len() >= 2);

    let broken = once(&server, &["--secret", &path, "--state", &report]);
    assert!(!broken.success);
    let said = [
        manager.stdout(),
        manager.stderr(),
        manager.status().to_string(),
        manager.control(&["metrics"]).stdout,
        std::fs::read_to_string(&report).unwrap(),
        std::fs::read_to_string(server.file("state.json")).unwrap(),
        broken.stderr,
    ]
    .concat()
    .to_lowercase();
    assert!(said.contains(guids(9).0.trim_start_matches("0x")), "what is looked for would be found");
    assert!(manager.stderr().contains("TRACE") || manager.stderr().contains("DEBUG"), "it talks a lot");
    let hex: String = secret[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let list: Vec<String> = secret[..4].iter().map(u8::to_string).collect();
    assert!(!said.contains(&hex) && !said.contains(&list.join(", ")) && !said.contains(&list.join(",")));
    let switches = (0..6).map(|index| leaf_guid(index + 1));
    for guid in (1..=16).map(|number| guids(number).0).chain(switches) {
        let key = node_key(&guid, &path);
        let raw = u64::from_str_radix(key.trim_start_matches("0x"), 16).unwrap();
        let bytes = raw.to_be_bytes().map(|byte| byte.to_string()).join(", ");
        for needle in [format!("{raw:x}"), raw.to_string(), bytes] {
            assert!(!said.contains(&needle), "the key of {guid} is told");
        }
    }
}
