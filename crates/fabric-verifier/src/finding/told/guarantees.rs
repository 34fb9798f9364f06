//! Findings about guaranteed clusters in plain sentences.

use std::fmt;

use super::{Input, Or, Way};
use crate::{Finding, SharedNumber};

/// Tells what the other findings are told beside.
pub(super) fn tell(finding: &Finding, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match finding {
        Finding::NumberOfTwo(SharedNumber { partition, first, first_port, second, second_port }) => write!(
            f,
            "partition {partition} is used by {first:?}, with port {first_port}, and by {second:?}, with port \
             {second_port}"
        ),
        Finding::ClusterTwice { cluster } => write!(f, "there are two clusters {cluster:?}"),
        Finding::ClusterUnwanted { cluster } => {
            write!(f, "the plan has guarantees for cluster {cluster:?}, which nobody asked for")
        }
        Finding::PortOfTwo { port, first, second } => {
            write!(f, "port {port} is to be in clusters {first:?} and {second:?}")
        }
        Finding::KeyOfTwo { partition, first, first_port, second, second_port } => write!(
            f,
            "partition {partition} has {first_port} of cluster {first:?} and {second_port} of cluster \
             {second:?} as more than limited members"
        ),
        Finding::LaneOfTwo { port, lane, first, second } => {
            write!(f, "lane {lane} of {port} is given to clusters {first:?} and {second:?}")
        }
        Finding::LevelOfTwo { port, sl, first, second } => {
            write!(f, "level {sl} on {port} is given to clusters {first:?} and {second:?}")
        }
        Finding::BestEffortGranted { port, cluster } => {
            write!(f, "level 0 on {port}, which is for everybody, is given to cluster {cluster:?}")
        }
        Finding::ManagementGranted { port, cluster } => {
            write!(f, "the level or the lane of management on {port} is given to cluster {cluster:?}")
        }
        Finding::ManagementAstray { port, input, sl, lane } => write!(
            f,
            "level {sl} leaves by {port} in lane {lane}, which keeps management from a lane of its own, {}",
            Input(*input)
        ),
        Finding::PortUnguarded { port } => {
            write!(f, "lanes are guarded, but {port} is left to its device")
        }
        Finding::LevelNotGranted { port, input, sl, lane, here, there } => write!(
            f,
            "level {sl} leaves by {port} in lane {lane} {}; it belongs to {} there, to {} on the link before",
            Input(*input),
            Or(here.as_ref(), "nobody"),
            Or(there.as_ref(), "nobody")
        ),
        Finding::LaneOfOther { port, input, sl, lane, owner, sender } => write!(
            f,
            "level {sl} of {} leaves by {port} in lane {lane}, which belongs to {}, {}",
            Or(sender.as_ref(), "everybody"),
            Or(owner.as_ref(), "nobody"),
            Input(*input)
        ),
        Finding::PromiseMissing { cluster } => {
            write!(f, "the plan has no guarantees for cluster {cluster:?} as it is asked for")
        }
        Finding::ClusterPortMissing { cluster, port } => {
            write!(f, "port {port} of cluster {cluster:?} is not on the fabric")
        }
        Finding::LevelMissing { cluster, between: None } => {
            write!(f, "cluster {cluster:?} has no service level that all its links know")
        }
        Finding::LevelMissing { cluster, between: Some((a, b)) } => {
            write!(f, "cluster {cluster:?} has no service level between switches {a} and {b}")
        }
        Finding::GrantWithoutLink { cluster, port } => {
            write!(f, "cluster {cluster:?} was given a share of the link out of {port}, which is not there")
        }
        Finding::GrantAstray { cluster, port } => {
            write!(f, "cluster {cluster:?} was given a share of the cable at {port}, which is another's")
        }
        Finding::GrantMissing { cluster, port, from, to } => write!(
            f,
            "packets of cluster {cluster:?} from {from} to {to} leave by {port}, where it was given nothing"
        ),
        Finding::ClusterUnreached { cluster, from, to } => {
            write!(f, "packets of cluster {cluster:?} from {from} do not come to {to}")
        }
        Finding::LevelLost { cluster, sl, from, to, at, input } => {
            write!(f, "packets of cluster {cluster:?} from {from} to {to} at level {sl} ")?;
            write!(f, "do not leave by {at} in its lane")?;
            input.map_or(Ok(()), |input| write!(f, " from port {input}"))
        }
        Finding::LaneUnserved { cluster, port, lane } => {
            write!(f, "lane {lane} of {port}, cluster {cluster:?}'s, is served by no arbitration entry")
        }
        Finding::ShareShort { cluster, port, lane, entry, needed, given } => write!(
            f,
            "cluster {cluster:?} needs {needed} of the link out of {port}, but lane {lane} gets {given} if others \
             do their worst; it waits longest for entry {entry}"
        ),
        Finding::BufferShort { cluster, port, needed, held } => write!(
            f,
            "cluster {cluster:?} needs {needed} bytes of buffer behind the link out of {port}, where a lane has {held}"
        ),
        Finding::TooLate { cluster, from, to, bound_ns, promised_ns, hops } => write!(
            f,
            "a packet of cluster {cluster:?} from {from} to {to} may take {bound_ns} ns, {promised_ns} ns were \
             promised: {}",
            Way(hops)
        ),
        other => write!(f, "{other:?}"),
    }
}
