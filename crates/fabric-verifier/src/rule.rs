//! The rules, and the assumptions about hardware that each relies on.

use std::fmt;

/// A property that every plan must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Every end port has a unique LID, and the plan matches the devices and cables of the topology.
    Addresses,
    /// No packet loops, and every two ports that may talk reach each other.
    Forwarding,
    /// No cycle of links can wait for each other's buffer credits.
    CreditLoops,
    /// End ports, and the switch ports in front of them, hold exactly the P_Keys of their partitions.
    Isolation,
    /// Ports that were handed over to tenants and ports of the site share no partition, except those of the site in which
    /// handed-over ports are limited members. While a port besides the managers is a full member of the default partition,
    /// no handed-over port holds a key of it.
    HandedOver,
    /// Packets to a multicast group reach each member once, and no other port.
    Multicast,
    /// No plan exceeds the table sizes, lanes or MTU of a device.
    Capacities,
    /// Every service level that a link carries has a lane with weight, no lane has strict priority, and a service
    /// level that is carried in one direction is also carried back.
    Sharing,
    /// A partition number belongs to one owner. Ports, partitions, lanes and service levels of a guaranteed cluster
    /// are used by no other cluster.
    Ownership,
    /// Guaranteed clusters get their bandwidth on every link and their latency on every path, whatever others send.
    Guarantees,
}

impl Rule {
    /// All rules, in the order in which findings are reported.
    pub const ALL: [Self; 10] = [
        Self::Addresses,
        Self::Forwarding,
        Self::CreditLoops,
        Self::Isolation,
        Self::HandedOver,
        Self::Multicast,
        Self::Capacities,
        Self::Sharing,
        Self::Ownership,
        Self::Guarantees,
    ];

    /// Ids of the entries of `docs/assumptions.md` that the rule relies on.
    pub const fn assumptions(self) -> &'static [&'static str] {
        match self {
            Self::Addresses => &["A-ROUTE-6", "A-ROUTE-9"],
            Self::Forwarding => &["A-ROUTE-1", "A-ROUTE-2", "A-ROUTE-9", "A-PART-2", "A-PART-5"],
            Self::CreditLoops => &["A-LANE-4", "A-LANE-8", "A-LANE-9"],
            Self::Isolation => &["A-PART-1", "A-PART-2", "A-PART-3", "A-PART-4", "A-PART-6"],
            Self::HandedOver => &["A-PART-1", "A-PART-2", "A-PART-3"],
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
            Self::HandedOver => "handed-over",
            Self::Multicast => "multicast",
            Self::Capacities => "capacities",
            Self::Sharing => "sharing",
            Self::Ownership => "ownership",
            Self::Guarantees => "guarantees",
        })
    }
}
