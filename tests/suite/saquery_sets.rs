//! saquery against OpenSM, and then against `heddle sm` on the same fabric: both know the same records.

use std::collections::{BTreeMap, BTreeSet};

use ib_transport::ClientRole;
use ib_wire::sa::{JoinState, McMemberRecord};
use ib_wire::{Datagram, Gid, Lid, LidAddress, Mad, Method, Pkey, QKey, Rate, Status};

use crate::group_trees::{ip_group, request};
use crate::preload::preload;
use crate::rig::adapter::Adapter;
use crate::rig::{self, Printed, Server, SmDaemon};

/// Number of hosts, to repeat the comparison on a large fabric: `HEDDLE_SAQUERY_HOSTS=1008 cargo nextest run …`.
const HOSTS: &str = "HEDDLE_SAQUERY_HOSTS";
const MANAGER: &str = "host-00001";
/// Hosts that create groups, and the groups of each.
const MEMBERS: [&str; 8] = [
    "host-00002",
    "host-00003",
    "host-00007",
    "host-00011",
    "host-00018",
    "host-00019",
    "host-00033",
    "host-00045",
];
const GROUPS_OF_EACH: u16 = 125;
const PARTITIONS: &str = "Default=0x7fff, ipoib : ALL=full;\n";

/// A record as saquery prints it: values by field, and lines without a field in order.
type Shown = BTreeMap<String, String>;

/// The records of a kind, by their key.
type Records = BTreeMap<Vec<String>, Shown>;

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

const KINDS: [Kind; 12] = [
    Kind { arguments: &["NR"], key: &["lid"], agreement: Whole },
    Kind { arguments: &["LR"], key: &["FromLID", "FromPort"], agreement: Whole },
    Kind { arguments: &["GUIDInfoRecord"], key: &["LID", "Block"], agreement: Whole },
    // `heddle sm` gives the IP groups of a partition one tree, and the rate of their partition.
    Kind { arguments: &["-g"], key: &["MGID"], agreement: Except(&["Mlid", "Rate"]) },
    // Only requests with an SM_Key get members.
    Kind { arguments: &["--smkey", "1", "-m"], key: &["MGID", "PortGid"], agreement: Except(&["Mlid"]) },
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

fn records(server: &Server, kind: &Kind) -> Records {
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

fn all_records(server: &Server) -> Vec<Records> {
    KINDS.iter().map(|kind| records(server, kind)).collect()
}

/// What sminfo says of the manager, but for the number that grows.
fn sminfo(server: &Server) -> String {
    let mut command = server.command(MEMBERS[0], "sminfo", &[]);
    let printed = Printed::of(command.env("LD_PRELOAD", preload()).output().unwrap());
    assert!(printed.success, "{printed:?}");
    let parts = printed.stdout.trim().split_once("activity count ").unwrap();
    let (count, state) = parts.1.split_once(' ').unwrap();
    assert!(count.parse::<u32>().unwrap() > 0);
    format!("{}{state}", parts.0)
}

/// The software of hosts that joins groups, and the answers it got.
struct Members {
    adapters: Vec<Adapter>,
    manager: LidAddress,
    answers: Vec<(Status, Option<McMemberRecord>)>,
}

impl Members {
    fn attach(server: &Server) -> Self {
        let said = sminfo(server);
        let lid = said.split_whitespace().skip_while(|word| *word != "lid").nth(1).unwrap();
        let manager = LidAddress::from(Lid::from_wire(lid.parse().unwrap()).unwrap());
        let adapters = MEMBERS.map(|name| Adapter::attach(server, name, ClientRole::Ordinary)).into();
        Self { adapters, manager, answers: Vec::new() }
    }

    fn ask(
        &mut self,
        host: usize,
        method: Method,
        mgid: Gid,
        state: JoinState,
        change: fn(&mut McMemberRecord),
    ) {
        let adapter = &mut self.adapters[host];
        let guid = adapter.device.port_guid().unwrap().unwrap();
        let mut mad = request(method, mgid, guid, state);
        let mut record = McMemberRecord::decode(mad.sa_data()).unwrap();
        change(&mut record);
        mad.sa_data_mut()[..McMemberRecord::LEN].copy_from_slice(&record.encode());
        let own = LidAddress::from(adapter.lid.unwrap());
        let pkey = Pkey::from_wire(0xffff).unwrap();
        let answer: Mad = adapter.ask(Datagram::general_management(own, self.manager, pkey, mad)).unwrap();
        let record = McMemberRecord::decode(answer.sa_data()).unwrap();
        // What a group gets is each manager's own: a LID, and the rate if the request names none. OpenSM repeats refused requests.
        let record = McMemberRecord { mlid: None, rate: Rate::G10, ..record };
        self.answers.push((answer.status(), (answer.status() == Status::OK).then_some(record)));
    }

    /// Creates groups of each host, joins some of another's, and tries what a manager has to refuse.
    fn join(&mut self) {
        let nothing = |_: &mut McMemberRecord| {};
        for host in 0..MEMBERS.len() {
            for number in 0..GROUPS_OF_EACH {
                self.ask(host, Method::SET, group_of(host, number), JoinState::FULL, nothing);
            }
        }
        for (number, state) in
            (0..).zip([JoinState::FULL, JoinState::SEND_ONLY_NON_MEMBER, JoinState::NON_MEMBER])
        {
            self.ask(1, Method::SET, group_of(0, number), state, nothing);
        }
        // Twice.
        self.ask(1, Method::SET, group_of(0, 0), JoinState::FULL, nothing);
        self.ask(2, Method::SET, group_of(0, 0), JoinState::FULL, |record| {
            record.qkey = QKey::from_wire(0xb1b)
        });
        self.ask(2, Method::SET, group_of(0, 0), JoinState::FULL, |record| {
            record.qkey = QKey::from_wire(0x7)
        });
        self.ask(2, Method::SET, group_of(0, 0), JoinState::FULL, |record| {
            record.pkey = Pkey::from_wire(0x8001)
        });
    }

    fn leave(&mut self) {
        let nothing = |_: &mut McMemberRecord| {};
        // It keeps a member.
        self.ask(0, Method::DELETE, group_of(0, 0), JoinState::FULL, nothing);
        // Not a member.
        self.ask(0, Method::DELETE, group_of(0, 0), JoinState::FULL, nothing);
        self.ask(3, Method::DELETE, group_of(0, 1), JoinState::FULL, nothing);
        // Ends with its last full member.
        for number in 1..10 {
            self.ask(0, Method::DELETE, group_of(0, number), JoinState::FULL, nothing);
        }
        self.ask(3, Method::DELETE, group_of(7, GROUPS_OF_EACH), JoinState::FULL, nothing);
    }
}

fn group_of(host: usize, number: u16) -> Gid {
    ip_group(0x100 * (1 + host as u16) + number)
}

fn of_groups() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().filter(|kind| kind.key.contains(&"MGID"))
}

fn compare(kind: &Kind, ours: &Records, theirs: &Records) {
    let what = kind.arguments;
    println!("{what:?}: {} records of opensm, {} of heddle", theirs.len(), ours.len());
    assert!(!theirs.is_empty(), "{what:?}");
    let keys = |records: &Records| records.keys().cloned().collect::<BTreeSet<_>>();
    if let Included = kind.agreement {
        let missing: Vec<_> = keys(theirs).difference(&keys(ours)).cloned().collect();
        assert!(missing.is_empty(), "{what:?}: {missing:?}");
        return;
    }
    assert_eq!(keys(ours), keys(theirs), "{what:?}");
    let except = match kind.agreement {
        Whole => &[][..],
        Except(fields) => fields,
        Keys | Included => return,
    };
    for (key, ours) in ours {
        let (mut ours, mut theirs) = (ours.clone(), theirs[key].clone());
        for field in except {
            assert!(ours.remove(*field).is_some() && theirs.remove(*field).is_some(), "{what:?}: {field}");
        }
        assert_eq!(ours, theirs, "{what:?} {key:?}");
    }
}

/// What a manager shows, and what it answers to joins and leaves.
struct Seen {
    manager: String,
    sets: Vec<Records>,
    answers: Vec<(Status, Option<McMemberRecord>)>,
    after_leaves: Vec<Records>,
}

impl Seen {
    fn of(server: &Server) -> Self {
        let mut members = Members::attach(server);
        members.join();
        let sets = all_records(server);
        members.leave();
        let after_leaves = of_groups().map(|kind| records(server, kind)).collect();
        Self { manager: sminfo(server), sets, answers: members.answers, after_leaves }
    }
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
        let _opensm = server.opensm_through(&preload(), MANAGER, &["-Q", "-p", "15", "-P", &partitions]);
        Seen::of(&server)
    };
    let options = ["--qos", "--partitions", &partitions, "--adopt", "--apply"];
    let _manager = SmDaemon::up(&server, MANAGER, &options);
    let ours = Seen::of(&server);
    assert_eq!(ours.manager, theirs.manager);
    assert_eq!(ours.answers.len(), theirs.answers.len());
    let both = ours.answers.iter().zip(&theirs.answers).enumerate();
    let differing: Vec<_> = both.filter(|(_, (ours, theirs))| ours != theirs).collect();
    assert!(differing.is_empty(), "of {} answers: {differing:#?}", ours.answers.len());
    let granted = ours.answers.iter().filter(|(status, _)| *status == Status::OK).count();
    println!("{} joins and leaves, {granted} granted, answered alike", ours.answers.len());
    for ((kind, theirs), ours) in KINDS.iter().zip(theirs.sets).zip(ours.sets) {
        compare(kind, &ours, &theirs);
    }
    for ((kind, theirs), ours) in of_groups().zip(theirs.after_leaves).zip(ours.after_leaves) {
        compare(kind, &ours, &theirs);
    }
}
