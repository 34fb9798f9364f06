//! The rules, and the beliefs about hardware that each stands on.

use std::fmt;

/// What a plan has to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Every end port has a LID of its own, and the plan speaks of the devices and cables there are.
    Addresses,
    /// No packet circles, and every two ports that may talk reach each other.
    Forwarding,
    /// No ring of links can wait for each other.
    CreditLoops,
    /// Ports hold the keys of their partitions and no others, at the ends and at the switch ports in front of them.
    Isolation,
    /// Packets to a group reach its members once, and nobody else.
    Multicast,
    /// Devices can hold what they are to hold.
    Capacities,
    /// Every level that a link takes has a lane with weight, none goes before all others, and each is carried back where it
    /// is carried to.
    Sharing,
    /// A partition number belongs to one owner, and what belongs to a guaranteed cluster is used by nobody else: ports, keys,
    /// lanes and service levels.
    Ownership,
    /// Guaranteed clusters get what they were promised on every link, and no packet is later than was promised.
    Guarantees,
}

impl Rule {
    /// All of them, in the order in which findings are told.
    pub const ALL: [Self; 9] = [
        Self::Addresses,
        Self::Forwarding,
        Self::CreditLoops,
        Self::Isolation,
        Self::Multicast,
        Self::Capacities,
        Self::Sharing,
        Self::Ownership,
        Self::Guarantees,
    ];

    /// The entries of `docs/assumptions.md` that it stands on.
    pub const fn assumptions(self) -> &'static [&'static str] {
        match self {
            Self::Addresses => &["A-ROUTE-6", "A-ROUTE-9"],
            Self::Forwarding => &["A-ROUTE-1", "A-ROUTE-2", "A-ROUTE-9", "A-PART-2", "A-PART-5"],
            Self::CreditLoops => &["A-LANE-4", "A-LANE-8", "A-LANE-9"],
            Self::Isolation => &["A-PART-1", "A-PART-2", "A-PART-3", "A-PART-4", "A-PART-6"],
            Self::Multicast => &["A-ROUTE-3", "A-ROUTE-8", "A-PART-4"],
            Self::Capacities => &["A-ROUTE-2", "A-PART-7", "A-LANE-2", "A-LANE-5", "A-LANE-6", "A-LANE-10"],
            Self::Sharing => &["A-LANE-1", "A-LANE-2", "A-LANE-4", "A-LANE-10", "A-LANE-11", "A-LANE-15"],
            Self::Ownership => &["A-PART-2", "A-LANE-1", "A-LANE-4", "A-LANE-9"],
            Self::Guarantees => {
                &["A-LANE-4", "A-LANE-9", "A-LANE-10", "A-LANE-12", "A-LANE-13", "A-LANE-14", "A-LANE-15"]
            }
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Addresses => "addresses",
            Self::Forwarding => "forwarding",
            Self::CreditLoops => "credit-loops",
            Self::Isolation => "isolation",
            Self::Multicast => "multicast",
            Self::Capacities => "capacities",
            Self::Sharing => "sharing",
            Self::Ownership => "ownership",
            Self::Guarantees => "guarantees",
        })
    }
}
