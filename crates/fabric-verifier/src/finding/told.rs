//! Findings in plain sentences.

mod guarantees;

use std::fmt;

use ib_wire::PortNum;

use super::{Destination, Finding, Guard, Hop, LaneWait, Table, Wait};

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.switch, self.exit)
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lid(lid) => write!(f, "LID {lid}"),
            Self::Group(mlid) => write!(f, "group {mlid}"),
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.link)?;
        if let Some(lane) = self.lane {
            write!(f, " lane {lane}")?;
        }
        write!(f, " with packets to {}", self.packets)
    }
}

impl fmt::Display for LaneWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, lane, entry, wait_ns } = self;
        write!(f, "{port} lane {lane}, {wait_ns} ns for entry {entry}")
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ends => "P_Key table",
            Self::Switches => "enforced table",
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linear => "linear forwarding table",
            Self::Pkeys => "P_Key table",
            Self::EnforcedPkeys => "enforced P_Key table",
            Self::Arbitration => "low-priority arbitration table",
        })
    }
}

/// Hops, one after the other.
struct Way<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Way<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, hop) in self.0.iter().enumerate() {
            write!(f, "{}{hop}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// A value, or a word for none.
struct Or<T>(Option<T>, &'static str);

impl<T: fmt::Display> fmt::Display for Or<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str(self.1),
        }
    }
}

/// Where packets came in.
struct Input(Option<PortNum>);

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(port) => write!(f, "from port {port}"),
            None => f.write_str("from ports that are not listed"),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ManagerMissing { port } => write!(f, "no port has the manager's port GUID {port}"),
            Self::ManagerDiffers { planned, planned_lid, wanted, held } => write!(
                f,
                "devices are told manager {planned} at LID {planned_lid}, but it is {wanted} at LID {}",
                Or(*held, "none")
            ),
            Self::LidTwice { lid, first, second } => {
                write!(f, "ports {first} and {second} both have LID {lid}")
            }
            Self::PortMissing { port } => write!(f, "the manager reaches {port}, but the plan lacks it"),
            Self::PortUnknown { port } => {
                write!(f, "the plan has {port}, which the manager does not reach")
            }
            Self::GuidDiffers { port, planned, found } => {
                write!(f, "port {port} has GUID {found}, but the plan says {planned}")
            }
            Self::CableDiffers { port, planned, found } => write!(
                f,
                "the cable of {port} leads to {}, but the plan says {}",
                Or(*found, "nothing"),
                Or(*planned, "nothing")
            ),
            Self::ForwardingLoop { lid, ring } => {
                write!(f, "packets to LID {lid} circle by {}", Way(ring))
            }
            Self::ExitWithoutCable { lid, exit } => {
                write!(f, "packets to LID {lid} are to leave by {exit}, which has no cable")
            }
            Self::NotForwarded { lid, from, path, at } => write!(
                f,
                "packets from {from} to LID {lid} are dropped at {at}, which has no entry for it, after [{}]",
                Way(path)
            ),
            Self::Astray { lid, from, path, to } => {
                write!(f, "packets from {from} to LID {lid} come to {} by {}", Or(*to, "nobody"), Way(path))
            }
            Self::CreditLoop { ring } => {
                write!(f, "these links can wait for each other for ever: {}", Way(ring))
            }
            Self::PartitionMissing { name } => write!(f, "partition {name:?} has no number in the plan"),
            Self::MemberDiffers { partition, port, wanted, planned } => {
                let role = |role: &Option<_>| match role {
                    Some(role) => format!("{role:?}").to_lowercase(),
                    None => "none".to_owned(),
                };
                let (wanted, planned) = (role(wanted), role(planned));
                write!(f, "{port} is to be a member of {partition}: {wanted}, but the plan says {planned}")
            }
            Self::KeyMissing { port, key, guard } => write!(f, "the {guard} of {port} lacks key {key}"),
            Self::KeyUnwanted { port, key, guard } => {
                write!(f, "the {guard} of {port} has key {key}, which is not its own")
            }
            Self::IndexZero { port, wanted, holds } => write!(
                f,
                "index 0 of {port} is to be partition {wanted}, but holds {}",
                Or(*holds, "nothing")
            ),
            Self::EnforcementOff { port } => {
                write!(f, "switch port {port} faces an adapter and enforces no keys")
            }
            Self::EnforcementInside { port } => {
                write!(f, "switch port {port} faces a switch and enforces keys")
            }
            Self::IsolationBroken { from, to, key, guard, path } => write!(
                f,
                "{from} and {to} share no partition, but the {guard} lets key {key} pass between them by {}",
                Way(path)
            ),
            Self::GroupMissing { partition } => write!(f, "partition {partition} has no broadcast group"),
            Self::GroupUnwanted { mgid } => write!(f, "nobody asked for group {mgid}"),
            Self::GroupDiffers { mgid, partition } => {
                write!(f, "group {mgid} of partition {partition} has other settings than were asked for")
            }
            Self::GroupMemberDiffers { mgid, port, wanted: true } => {
                write!(f, "group {mgid} does not list {port}, which is in its partition")
            }
            Self::GroupMemberDiffers { mgid, port, wanted: false } => {
                write!(f, "group {mgid} lists {port}, which is not in its partition")
            }
            Self::GroupLoop { mlid, ring } => write!(f, "packets to group {mlid} circle by {}", Way(ring)),
            Self::GroupOneWay { mlid, exit, to } => write!(
                f,
                "packets to group {mlid} go by {exit}, but do not come back by {}",
                Or(*to, "nothing")
            ),
            Self::GroupAstray { mlid, exit, to } => {
                write!(f, "packets to group {mlid} leave by {exit} to {}, no member", Or(*to, "nothing"))
            }
            Self::GroupUnreached { mlid, member, at } => {
                write!(f, "packets to group {mlid} do not come to its member {member} at {at}")
            }
            Self::GroupsMeet { mlid, switch, first, second } => {
                write!(f, "the groups of partitions {first} and {second} meet in {switch} as {mlid}")
            }
            Self::TableTooLong { table, port, entries, capacity } => {
                write!(f, "the {table} of {port} has {entries} entries of {capacity} that fit")
            }
            Self::GroupBeyondTable { switch, mlid, capacity } => {
                write!(f, "switch {switch} cannot hold group {mlid}: it has room for {capacity}")
            }
            Self::LinkBeyondEnds { port, mtu, lanes } => write!(
                f,
                "port {port} is to run {} bytes and {} lanes, more than both ends can",
                mtu.bytes(),
                lanes.count()
            ),
            Self::ArbitrationEntry { port, index, lane, weight } => write!(
                f,
                "arbitration entry {index} of {port}, lane {lane} with weight {weight}, cannot be used"
            ),
            Self::LaneBeyondLink { port, input, sl, lane } => write!(
                f,
                "level {sl} leaves by {port} in lane {lane}, which its link lacks, {}",
                Input(*input)
            ),
            Self::LaneWithoutWeight { port, input, sl, lane } => write!(
                f,
                "level {sl} leaves by {port} in lane {lane}, which has no weight, {}",
                Input(*input)
            ),
            Self::BestEffortDiscarded { port, input } => {
                write!(f, "level 0 is discarded at {port} {}", Input(*input))
            }
            Self::LevelOneWay { sl, from, to, path, at, input } => write!(
                f,
                "level {sl} is carried from {from} to {to} by {}, but discarded on the way back at {at}{}",
                Way(path),
                match input {
                    Some(port) => format!(" from port {port}"),
                    None => String::new(),
                }
            ),
            Self::HighPriority { port, index, lane } => {
                write!(f, "lane {lane} goes before all others at {port}, by high-priority entry {index}")
            }
            Self::GroupLevelDiscarded { mlid, sl, at, input } => write!(
                f,
                "level {sl} of group {mlid} is discarded at {at}{}",
                match input {
                    Some(port) => format!(" from port {port}"),
                    None => String::new(),
                }
            ),
            Self::More { count, .. } => write!(f, "and {count} more about the same"),
            _ => guarantees::tell(self, f),
        }
    }
}
