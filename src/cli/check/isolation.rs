//! Isolation, tried from inside: what a tenant can send and ask with the addresses that it could guess.
//!
//! A tenant does not see other tenants, so what it can observe is its own side: forged packets do not even arrive within its own
//! cluster, nobody outside of the cluster answers, and subnet administration tells of its own nodes only. Each attempt has a control
//! that gets through. Operators see the drops in `heddle sim-ctl … adapters`.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, ensure};
use controller_api::cluster::AdapterKind;

use super::nodes::NodeCommands;
use super::parse::{self, Answer, Arrived, Listening, short};
use super::report::CheckFinding;

/// Limit of an attempt.
const LIMIT: Duration = Duration::from_secs(120);

/// Seconds that nodes listen for packets.
const LISTEN_SECONDS: u32 = 6;

/// Seconds to wait for answers.
const ANSWER_SECONDS: u32 = 3;

/// Packets of each kind.
const COPIES: u32 = 20;

/// LIDs that a tenant would guess: managers number them from 1.
const LIDS_GUESSED: u16 = 64;

/// Partitions on each side of its own that a tenant would guess: numbers are given one after the other.
const KEYS_BESIDE: u16 = 8;

/// Beginning of the GUIDs that devices have in views, locally administered.
const VIEW_GUIDS: &str = "0x024845";

/// Addresses beyond those of the cluster that are tried.
const ADDRESSES_GUESSED: usize = 4;

/// A kind of attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Packets past the driver, with forged fields.
    ForgedPackets,
    /// Datagrams to QP0: reading and changing devices.
    SubnetManagement,
    /// Questions to the agents of other ports.
    PerformanceManagement,
    /// Questions about others, and joins of their groups.
    SubnetAdministration,
    /// Ethernet frames with a forged source.
    ForgedFrames,
    /// Addresses in the network of the cluster that no node has.
    ForeignAddresses,
}

impl Attempt {
    /// The attempts that make sense with a kind of adapter.
    pub const fn of(adapter: AdapterKind) -> &'static [Self] {
        match adapter {
            AdapterKind::Ethernet => &[Self::ForgedFrames, Self::ForeignAddresses],
            AdapterKind::Infiniband => &[
                Self::ForgedPackets,
                Self::SubnetManagement,
                Self::PerformanceManagement,
                Self::SubnetAdministration,
                Self::ForeignAddresses,
            ],
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::ForgedPackets => "forged packets",
            Self::SubnetManagement => "subnet management",
            Self::PerformanceManagement => "performance management",
            Self::SubnetAdministration => "subnet administration",
            Self::ForgedFrames => "forged frames",
            Self::ForeignAddresses => "foreign addresses",
        }
    }

    pub const fn tools(self) -> &'static [&'static str] {
        match self {
            Self::ForgedPackets => &["packet-send", "packet-count"],
            Self::SubnetManagement | Self::PerformanceManagement | Self::SubnetAdministration => {
                &["packet-send", "packet-count"]
            }
            Self::ForgedFrames => &["frame-send", "frame-count"],
            Self::ForeignAddresses => &["ping"],
        }
    }
}

pub async fn run(nodes: &NodeCommands<'_>, attempt: Attempt) -> anyhow::Result<CheckFinding> {
    match attempt {
        Attempt::ForgedPackets => forged_packets(nodes).await,
        Attempt::SubnetManagement => subnet_management(nodes).await,
        Attempt::PerformanceManagement => performance_management(nodes).await,
        Attempt::SubnetAdministration => subnet_administration(nodes).await,
        Attempt::ForgedFrames => forged_frames(nodes).await,
        Attempt::ForeignAddresses => foreign_addresses(nodes).await,
    }
}

/// The adapters of the first two nodes.
async fn adapters(nodes: &NodeCommands<'_>) -> anyhow::Result<(Listening, Listening)> {
    let script = "packet-count --mark none --seconds 1";
    let first = parse::listening(&nodes.ok(nodes.first(), script, LIMIT).await?)?;
    let second = parse::listening(&nodes.ok(nodes.second()?, script, LIMIT).await?)?;
    Ok((first, second))
}

/// The options of packet-send for each forged field. The receiver counts packets by their marks.
fn forgeries(own: &Listening, peer: &Listening) -> Vec<(&'static str, String)> {
    // Never that of the function itself, and never a group.
    let other_gid = format!("{}{}", own.gid, if own.gid.ends_with('1') { "2" } else { "1" });
    let other_gid =
        other_gid.parse::<std::net::Ipv6Addr>().map_or("fe80::1".to_owned(), |gid| gid.to_string());
    let other_gid = if other_gid == own.gid { "fe80::1".to_owned() } else { other_gid };
    let other_key = own.pkey ^ 0x0101;
    // The range of another function of the port.
    let other_pair = (own.first_qpn ^ (1 << 23)) + 5;
    vec![
        ("check-pkey", format!("--pkey {other_key:#06x}")),
        ("check-guid", format!("--sgid {other_gid} --dgid {}", peer.gid)),
        ("check-qpn", format!("--sqp {other_pair}")),
        ("check-cut", "--cut 40".to_owned()),
        ("check-long", "--bytes 4200".to_owned()),
    ]
}

async fn forged_packets(nodes: &NodeCommands<'_>) -> anyhow::Result<CheckFinding> {
    let (own, peer) = adapters(nodes).await?;
    let to = format!("packet-send --dlid {} --qpn {} --count {COPIES}", peer.lid, peer.first_qpn + 5);
    let forged_lid = if own.lid == 1 { 2 } else { 1 };
    let mut commands = vec![format!("{to} --mark check-lid --slid {forged_lid}")];
    let forgeries = forgeries(&own, &peer);
    commands.extend(forgeries.iter().map(|(mark, options)| format!("{to} --mark {mark} {options}")));
    let listener = format!("packet-count --mark check- --seconds {LISTEN_SECONDS}");
    let sender = commands.join(" && ");
    let (heard, _) = nodes.while_listening((&listener, "listening"), &sender, LIMIT).await?;
    let kinds: Vec<&str> = forgeries.iter().map(|(mark, _)| *mark).collect();
    judge_forged(&heard, own.lid, &kinds)
}

/// Packets with a forged SLID arrive, but with the true one; those with other forged fields do not.
fn judge_forged(heard: &str, own_lid: u16, kinds: &[&str]) -> anyhow::Result<CheckFinding> {
    let arrived = parse::arrived(heard)?;
    let control = arrived.get("check-lid").cloned().unwrap_or_default();
    ensure!(control.packets > 0, "control: valid packets to the next node did not arrive");
    ensure!(
        control.slids == [own_lid],
        "packets arrived with the LIDs {:?} of others; the sender has LID {own_lid}",
        control.slids
    );
    for kind in kinds {
        let Arrived { packets, .. } = arrived.get(kind).cloned().unwrap_or_default();
        ensure!(packets == 0, "{packets} of {COPIES} packets of the kind {kind} arrived");
    }
    let sent = COPIES * kinds.len() as u32;
    Ok(CheckFinding::note(format!(
        "{sent} with a forged P_Key, GUID, queue pair or length: none arrived; {} of {COPIES} with a forged LID arrived, with the true \
         one",
        control.packets
    )))
}

/// Sends management datagrams from the first node to guessed LIDs.
async fn ask(nodes: &NodeCommands<'_>, options: &str) -> anyhow::Result<(u64, Vec<Answer>)> {
    let script = format!("packet-send --seconds {ANSWER_SECONDS} {options}");
    parse::answers(&nodes.ok(nodes.first(), &script, LIMIT).await?)
}

async fn subnet_management(nodes: &NodeCommands<'_>) -> anyhow::Result<CheckFinding> {
    let before = adapters(nodes).await?;
    let (asked, answers) = ask(nodes, &format!("--dlid 1-{LIDS_GUESSED} --mad node-info")).await?;
    judge_devices(&answers, &nodes.own_guids().await?)?;
    if !answers.is_empty() {
        let count = answers.len();
        return Ok(CheckFinding::note(format!(
            "{asked} Gets: {count} answers, all of the view of this cluster"
        )));
    }
    // Only where nobody answers: a tenant may change its own view, and this is no place to do so.
    let (set, accepted) =
        ask(nodes, &format!("--dlid 1-{LIDS_GUESSED} --mad set-port-info --m-key 1")).await?;
    ensure!(accepted.is_empty(), "{} Sets of PortInfo with a guessed M_Key were answered", accepted.len());
    let after = adapters(nodes).await?;
    ensure!(before == after, "the ports of the nodes have changed: {before:?}, then {after:?}");
    Ok(CheckFinding::note(format!(
        "{asked} Gets and {set} Sets with a guessed M_Key: nobody answered, nothing changed"
    )))
}

/// Devices that answer are those of the view, with GUIDs of its own, or nodes of the cluster.
fn judge_devices(answers: &[Answer], own: &BTreeSet<String>) -> anyhow::Result<()> {
    let is_own = |guid: &str| guid.starts_with(VIEW_GUIDS) || own.contains(guid);
    let guids = answers.iter().map(|answer| answer.guid.as_deref().unwrap_or("unknown"));
    let foreign: BTreeSet<&str> = guids.filter(|guid| !is_own(guid)).collect();
    ensure!(foreign.is_empty(), "devices outside of the view of the cluster answered: {foreign:?}");
    Ok(())
}

async fn performance_management(nodes: &NodeCommands<'_>) -> anyhow::Result<CheckFinding> {
    let (own, _) = adapters(nodes).await?;
    // Counters name no device, so those of the view are found by their NodeInfo.
    let (_, devices) = ask(nodes, &format!("--dlid 1-{LIDS_GUESSED} --mad node-info")).await?;
    judge_devices(&devices, &nodes.own_guids().await?)?;
    let mut known = own_lids(nodes).await?;
    known.extend(devices.iter().map(|device| device.lid));
    let (asked, answers) = ask(nodes, &format!("--dlid 1-{LIDS_GUESSED} --mad counters")).await?;
    judge_counters(asked, &answers, &known, own.lid)
}

/// The LIDs of all nodes.
async fn own_lids(nodes: &NodeCommands<'_>) -> anyhow::Result<BTreeSet<u16>> {
    let mut lids = BTreeSet::new();
    for node in nodes.all() {
        let printed = nodes.ok(node, "echo lid $(cat /sys/class/infiniband/*/ports/1/lid)", LIMIT).await?;
        let facts = parse::facts(&printed);
        let lid = facts.get("lid").and_then(|lid| u16::from_str_radix(lid.strip_prefix("0x")?, 16).ok());
        lids.insert(lid.with_context(|| format!("{} has no LID", node.name))?);
    }
    Ok(lids)
}

/// Ports that answer are those with known LIDs: nodes of the cluster, and devices of its view.
fn judge_counters(
    asked: u64,
    answers: &[Answer],
    known: &BTreeSet<u16>,
    lid: u16,
) -> anyhow::Result<CheckFinding> {
    let answered: BTreeSet<u16> = answers.iter().map(|answer| answer.lid).collect();
    ensure!(answered.contains(&lid), "control: the own port, LID {lid}, did not answer");
    let foreign: Vec<&u16> = answered.difference(known).collect();
    ensure!(foreign.is_empty(), "ports of others answered: LIDs {foreign:?}");
    Ok(CheckFinding::note(format!("{asked} LIDs asked: {} answered, all of this cluster", answered.len())))
}

async fn subnet_administration(nodes: &NodeCommands<'_>) -> anyhow::Result<CheckFinding> {
    let (own, _) = adapters(nodes).await?;
    let manager =
        nodes.ok(nodes.first(), "echo lid $(cat /sys/class/infiniband/*/ports/1/sm_lid)", LIMIT).await?;
    let manager = parse::facts(&manager).get("lid").map(|lid| short(lid)).unwrap_or_default();
    let manager = manager.strip_prefix("0x").and_then(|lid| u16::from_str_radix(lid, 16).ok());
    let manager = manager.context("the port knows no subnet manager")?;
    let join = |key: u16| format!("--dlid {manager} --mad join --pkey {key:#06x}");
    let (_, control) = ask(nodes, &join(own.pkey)).await?;
    ensure!(
        control.iter().any(|answer| answer.status == 0),
        "control: the group of the own partition cannot be joined: {control:?}"
    );
    let (tried, joined) = join_all(nodes, manager, &guessed_keys(own.pkey)).await?;
    ensure!(joined.is_empty(), "broadcast groups of other partitions were joined: {joined:?}");
    let (_, listed) = ask(nodes, &format!("--dlid {manager} --mad nodes")).await?;
    let records = listed.iter().filter_map(|answer| answer.records).max().unwrap_or(0);
    let known = nodes.known_addresses().len() as u32;
    // The default partition shows the manager's own node besides.
    ensure!(records <= known + 1, "subnet administration lists {records} nodes; the cluster has {known}");
    Ok(CheckFinding::note(format!(
        "{tried} joins of guessed partitions were refused, that of the own one was not; {records} nodes listed"
    )))
}

/// P_Keys around the own one, and the first ones.
fn guessed_keys(own: u16) -> BTreeSet<u16> {
    let number = own & 0x7fff;
    let around = number.saturating_sub(KEYS_BESIDE)..=number.saturating_add(KEYS_BESIDE);
    let guessed = (1..=KEYS_BESIDE).chain(around);
    guessed.filter(|key| (1..0x7fff).contains(key) && *key != number).map(|key| key | 0x8000).collect()
}

/// Asks to join the broadcast groups of partitions; returns the number of requests, and the partitions whose group was joined.
async fn join_all(
    nodes: &NodeCommands<'_>,
    manager: u16,
    keys: &BTreeSet<u16>,
) -> anyhow::Result<(usize, Vec<String>)> {
    let list: Vec<String> = keys.iter().map(|key| format!("{key:#06x}")).collect();
    let script = format!(
        "for key in {}; do echo key $key; packet-send --seconds 1 --dlid {manager} --mad join --pkey $key || exit 1; done",
        list.join(" ")
    );
    judge_joins(&nodes.ok(nodes.first(), &script, LIMIT).await?, keys.len())
}

fn judge_joins(printed: &str, count: usize) -> anyhow::Result<(usize, Vec<String>)> {
    let mut joined = Vec::new();
    let parts: Vec<&str> = printed.split("key ").skip(1).collect();
    ensure!(parts.len() == count, "packet-send asked {} times instead of {count}", parts.len());
    for part in parts {
        let (_, answers) = parse::answers(part)?;
        // Without an answer it was not joined either.
        if answers.iter().any(|answer| answer.status == 0) {
            joined.push(short(part.lines().next().unwrap_or_default()));
        }
    }
    Ok((count, joined))
}

async fn forged_frames(nodes: &NodeCommands<'_>) -> anyhow::Result<CheckFinding> {
    let address = nodes.ok(nodes.second()?, "cat /sys/class/net/eth0/address", LIMIT).await?;
    let address = address.trim();
    let is_address =
        address.len() == 17 && address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':');
    ensure!(is_address, "eth0 has no address: {}", short(address));
    let mut heard = Vec::new();
    for (mark, source) in [("check-own", ""), ("check-forged", "--src 02:00:01:00:00:00")] {
        let listener = format!("frame-count --mark {mark} --seconds {LISTEN_SECONDS}");
        let sender = format!("frame-send --dst {address} {source} --count {COPIES} --mark {mark}");
        let (printed, _) = nodes.while_listening((&listener, "listening"), &sender, LIMIT).await?;
        heard.push(parse::marked_frames(&printed)?);
    }
    let [own, forged] = heard[..] else { unreachable!("two kinds of frames") };
    ensure!(own > 0, "control: frames with the true source did not arrive");
    ensure!(forged == 0, "{forged} of {COPIES} frames with a forged source arrived");
    Ok(CheckFinding::note(format!(
        "{COPIES} frames with a forged source: none arrived; {own} of {COPIES} with the true one did"
    )))
}

/// The next addresses after those of the nodes.
fn beyond(nodes: impl Iterator<Item = Ipv4Addr>) -> Vec<Ipv4Addr> {
    let last = nodes.max().map_or(0, u32::from);
    (1..=ADDRESSES_GUESSED as u32).map(|step| Ipv4Addr::from(last.saturating_add(step))).collect()
}

async fn foreign_addresses(nodes: &NodeCommands<'_>) -> anyhow::Result<CheckFinding> {
    let control =
        nodes.run(nodes.first(), &format!("ping -n -c 2 -W 10 {}", nodes.second()?.address), LIMIT).await?;
    parse::ping(&control.text).context("control: the next node does not answer")?;
    let addresses = beyond(nodes.known_addresses().iter().copied());
    let list = addresses.iter().map(Ipv4Addr::to_string).collect::<Vec<_>>().join(" ");
    let script = format!(
        "for address in {list}; do (ping -n -c 2 -i 0.5 -W 3 $address >/dev/null && echo answered $address) & done; wait"
    );
    let printed = nodes.ok(nodes.first(), &script, LIMIT).await?;
    ensure!(!printed.contains("answered"), "addresses that no node has answered: {}", short(&printed));
    Ok(CheckFinding::note(format!("{} addresses beyond those of the nodes: none answered", addresses.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [&str; 2] = ["check-pkey", "check-cut"];

    #[test]
    fn forged_packets_that_arrive_are_a_failure() {
        let clean = "listening …\nmark check-lid packets 20 slids 3\npackets 31 marked 20\n";
        let finding = judge_forged(clean, 3, &KINDS).unwrap();
        assert!(finding.note.unwrap().contains("20 of 20 with a forged LID"));
        let leak = format!("mark check-pkey packets 1 slids 3\n{clean}");
        assert!(judge_forged(&leak, 3, &KINDS).unwrap_err().to_string().contains("check-pkey"));
        let believed = clean.replace("slids 3", "slids 3,1");
        assert!(
            judge_forged(&believed, 3, &KINDS).unwrap_err().to_string().contains("LIDs [3, 1] of others")
        );
        let silent = "packets 0 marked 0\n";
        assert!(judge_forged(silent, 3, &KINDS).unwrap_err().to_string().contains("control"));
        assert!(judge_forged("listening …\n", 3, &KINDS).is_err(), "it was killed");
    }

    #[test]
    fn answers_of_physical_devices_are_a_failure() {
        let answer = |guid: &str| Answer { lid: 1, status: 0, records: None, guid: Some(guid.to_owned()) };
        let own = BTreeSet::from(["0x7666f13c3f92a03c".to_owned()]);
        assert!(judge_devices(&[], &own).is_ok());
        assert!(judge_devices(&[answer("0x0248450000000010"), answer("0x7666f13c3f92a03c")], &own).is_ok());
        assert!(judge_devices(&[answer("0x0002c90300100000")], &own).is_err());
        let unknown = Answer { guid: None, ..answer("") };
        assert!(judge_devices(&[unknown], &own).is_err());
    }

    #[test]
    fn counters_of_others_are_a_failure() {
        let answer = |lid| Answer { lid, status: 0, records: None, guid: None };
        let known = BTreeSet::from([3, 4]);
        assert!(judge_counters(64, &[answer(3), answer(4)], &known, 3).is_ok());
        assert!(judge_counters(64, &[answer(3), answer(9)], &known, 3).is_err());
        assert!(judge_counters(64, &[answer(4)], &known, 3).unwrap_err().to_string().contains("control"));
    }

    #[test]
    fn a_joined_group_of_another_partition_is_found() {
        let refused = "key 0x8101\nsent 1\nanswer lid 5 class 0x03 status 0x0600\nanswers 1\n";
        let silent = "key 0x8102\nsent 1\nanswers 0\n";
        assert_eq!(judge_joins(&[refused, silent].concat(), 2).unwrap(), (2, vec![]));
        let joined = refused.replace("0x0600", "0x0000");
        assert_eq!(judge_joins(&[silent, &joined].concat(), 2).unwrap(), (2, vec!["0x8101".to_owned()]));
        assert!(judge_joins(silent, 2).is_err(), "one was not tried");
    }

    #[test]
    fn guessed_partitions_are_the_neighbours_of_the_own_one() {
        let keys = guessed_keys(0x8101);
        assert!(keys.contains(&0x8100) && keys.contains(&0x8102) && keys.contains(&0x8001));
        assert!(!keys.contains(&0x8101));
        for own in [0x8001, 0xfffe, 0x0003] {
            let keys = guessed_keys(own);
            assert!(!keys.contains(&(own | 0x8000)) && !keys.contains(&0xffff) && !keys.contains(&0x8000));
        }
    }

    #[test]
    fn forged_values_differ_from_the_own_ones() {
        for gid in ["fe80::1", "fe80::600:0:0:2", "fe80::6800:ffff:ffff:ffff"] {
            let own = Listening { lid: 3, first_qpn: 1 << 19, gid: gid.to_owned(), pkey: 0x8101 };
            for (mark, options) in forgeries(&own, &own) {
                assert!(!options.contains("--pkey 0x8101"), "{mark}");
                assert!(!options.contains(&format!("--sgid {gid} ")), "{mark} {options}");
                assert!(!options.contains(&format!("--sqp {} ", own.first_qpn + 5)), "{mark}");
            }
        }
    }

    #[test]
    fn addresses_beyond_the_cluster_belong_to_no_node() {
        let nodes = [Ipv4Addr::new(10, 128, 0, 2), Ipv4Addr::new(10, 128, 0, 255)];
        assert_eq!(beyond(nodes.into_iter())[0], Ipv4Addr::new(10, 128, 1, 0));
        assert_eq!(beyond(nodes.into_iter()).len(), ADDRESSES_GUESSED);
    }
}
