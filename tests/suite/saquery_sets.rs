//! saquery against OpenSM, and then against `heddle sm` on the same fabric: both know the same records.

use std::collections::{BTreeMap, BTreeSet};

use crate::preload::preload;
use crate::rig::{self, Printed, Server, SmDaemon};

/// Number of hosts, to repeat the comparison on a large fabric: `HEDDLE_SAQUERY_HOSTS=1008 cargo nextest run …`.
const HOSTS: &str = "HEDDLE_SAQUERY_HOSTS";
const MANAGER: &str = "host-00001";
const PARTITIONS: &str = "Default=0x7fff, ipoib : ALL=full;\n";

/// A record as saquery prints it: values by field, and lines without a field in order.
type Shown = BTreeMap<String, String>;

/// A kind of record that saquery lists.
struct Kind {
    arguments: &'static [&'static str],
    /// The fields that name a record.
    key: &'static [&'static str],
    agreement: Agreement,
}

/// What both managers must agree on.
enum Agreement {
    /// Every field of every record.
    Whole,
    /// Every record, but for these fields.
    Except(&'static [&'static str]),
    /// Which records there are.
    Keys,
    /// The records of OpenSM are there.
    Included,
}

use Agreement::{Except, Included, Keys, Whole};

const KINDS: [Kind; 11] = [
    Kind { arguments: &["NR"], key: &["lid"], agreement: Whole },
    Kind { arguments: &["LR"], key: &["FromLID", "FromPort"], agreement: Whole },
    Kind { arguments: &["GUIDInfoRecord"], key: &["LID", "Block"], agreement: Whole },
    Kind { arguments: &["-g"], key: &["MGID"], agreement: Whole },
    // OpenSM 3.3 does not ask for extended speeds: rates of paths and ports differ. Timeouts and tables are each manager's own.
    Kind { arguments: &["PR", "--slid", "7"], key: &["dlid"], agreement: Except(&["rate", "pkt_life"]) },
    Kind { arguments: &["PIR"], key: &["EndPortLid", "PortNum"], agreement: Keys },
    Kind { arguments: &["SWIR"], key: &["LID"], agreement: Keys },
    Kind { arguments: &["SL2VL"], key: &["LID", "InPort", "OutPort"], agreement: Keys },
    Kind { arguments: &["VLAR"], key: &["LID", "Port", "Block"], agreement: Keys },
    Kind { arguments: &["LFTR"], key: &["LID", "Block"], agreement: Keys },
    // OpenSM wants an SM_Key, any, and has none for switch ports without a cable.
    Kind { arguments: &["--smkey", "1", "PKTR"], key: &["LID", "Port", "Block"], agreement: Included },
];

fn saquery(server: &Server, arguments: &[&str]) -> Printed {
    let mut command = server.command(MANAGER, "saquery", arguments);
    let printed = Printed::of(command.env("LD_PRELOAD", preload()).output().unwrap());
    assert!(printed.success, "{arguments:?}: {printed:?}");
    printed
}

/// The records of a kind, by their key.
fn records(server: &Server, kind: &Kind) -> BTreeMap<Vec<String>, Shown> {
    let printed = saquery(server, kind.arguments);
    let mut all: Vec<Shown> = Vec::new();
    for line in printed.stdout.lines() {
        if line.ends_with("dump:") && !line.starts_with(['\t', ' ']) {
            all.push(Shown::new());
        } else if let Some(record) = all.last_mut() {
            let line = line.trim();
            let (field, value) = line.split_once("..").unwrap_or((line, ""));
            record.insert(field.trim_end_matches(':').to_owned(), value.trim_start_matches('.').to_owned());
        }
    }
    let key = |record: &Shown| {
        let part = |field: &&str| match record.get(*field).map(String::as_str) {
            // OpenSM sends the block of a P_Key table in its own byte order, and saquery reads it so: a correct 1 is shown as 256.
            Some("256") if kind.arguments.contains(&"PKTR") && *field == "Block" => "1".to_owned(),
            Some(value) => value.to_owned(),
            None => panic!("{field} of {record:?}"),
        };
        kind.key.iter().map(part).collect::<Vec<String>>()
    };
    let count = all.len();
    let by_key: BTreeMap<_, _> = all.into_iter().map(|record| (key(&record), record)).collect();
    assert_eq!(by_key.len(), count, "{:?}: some records have the same key", kind.arguments);
    by_key
}

fn all_records(server: &Server) -> Vec<BTreeMap<Vec<String>, Shown>> {
    KINDS.iter().map(|kind| records(server, kind)).collect()
}

#[test]
fn saquery_shows_the_records_that_opensm_has() {
    let directory = tempfile::tempdir().unwrap();
    // By default, each leaf has a port without a cable.
    let net = match std::env::var(HOSTS) {
        Ok(hosts) => rig::generate(directory.path(), &["fat-tree", "--hosts", &hosts]),
        Err(_) => rig::generate(directory.path(), &["fat-tree", "--hosts", "45", "--radix", "12"]),
    };
    let server = Server::heddle(&net, &[]);
    let partitions = server.file("partitions.conf");
    std::fs::write(&partitions, PARTITIONS).unwrap();
    let theirs = {
        let _opensm = server.opensm_through(&preload(), MANAGER, &["-Q", "-P", &partitions]);
        all_records(&server)
    };
    let options = ["--qos", "--partitions", &partitions, "--adopt", "--apply"];
    let _manager = SmDaemon::up(&server, MANAGER, &options);
    for ((kind, theirs), ours) in KINDS.iter().zip(theirs).zip(all_records(&server)) {
        let what = kind.arguments;
        println!("{what:?}: {} records of opensm, {} of heddle", theirs.len(), ours.len());
        assert!(!theirs.is_empty(), "{what:?}");
        let keys = |records: &BTreeMap<Vec<String>, Shown>| records.keys().cloned().collect::<BTreeSet<_>>();
        if let Included = kind.agreement {
            let missing: Vec<_> = keys(&theirs).difference(&keys(&ours)).cloned().collect();
            assert!(missing.is_empty(), "{what:?}: {missing:?}");
            continue;
        }
        assert_eq!(keys(&ours), keys(&theirs), "{what:?}");
        let except = match kind.agreement {
            Whole => &[][..],
            Except(fields) => fields,
            Keys | Included => continue,
        };
        for (key, mut record) in ours {
            let mut other = theirs[&key].clone();
            for field in except {
                assert!(
                    record.remove(*field).is_some() && other.remove(*field).is_some(),
                    "{what:?}: {field}"
                );
            }
            assert_eq!(record, other, "{what:?} {key:?}");
        }
    }
}
