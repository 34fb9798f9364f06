//! What was said about a wish, and what of it is in force.

use fabric_model::tenancy::Bandwidth;
use ib_wire::PortNum;
use serde::Serialize;

use crate::overlay::ViewOverlay;
use crate::view::ViewManager;

/// Whether a wish can be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub enum Verdict {
    /// As it was written.
    Approved,
    /// With changes.
    Adapted {
        /// What was changed, and why.
        adaptations: Vec<Adaptation>,
    },
    /// Not at all: what was in force stays.
    Refused {
        /// Why, with what shows it.
        refusal: OverlayRefusal,
    },
}

/// Something that was changed so that a wish can be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "adaptation")]
pub enum Adaptation {
    /// Every port has one LID; only routes to the first of each are taken.
    LmcFolded {
        /// A virtual machine whose port was given several.
        node: String,
    },
    /// There are fewer lanes or service levels left than classes: the lightest were put together.
    ClassesFolded {
        /// Classes that were wished for.
        wanted: usize,
        /// Classes that there are.
        given: usize,
        /// The link with the fewest lanes; `None` if the cluster has no lane of its own anywhere, or lanes are not what is
        /// short.
        link: Option<EgressPort>,
    },
    /// A class without weight would never be served: it was given the least there is.
    WeightRaised {
        /// Its service levels.
        service_levels: Vec<u8>,
    },
    /// Ports were given different classes: those of the first virtual machine's hold everywhere.
    ClassesDiffer {
        /// A port that was given others.
        port: String,
    },
    /// Routes to a virtual machine would take a link in a direction in which the cluster has no share of it: they stay as
    /// they are.
    RouteKept {
        /// The virtual machine.
        node: String,
        /// The link.
        link: EgressPort,
    },
    /// Every virtual machine stays in the partition of the cluster, by which it is told what to do: as a limited member, if it
    /// was to be none.
    MembershipKept {
        /// The virtual machine.
        node: String,
    },
    /// Routes to a port that others use too cannot be chosen: they stay as they are.
    NotRouted {
        /// The virtual machine.
        node: String,
    },
}

/// What becomes of a wish whose routes take links in directions in which the cluster has no share of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UngrantedRoutes {
    /// It is refused.
    #[default]
    Refuse,
    /// Routes to the virtual machines concerned stay as they are by default; the rest of the wish counts. For tenants whose
    /// manager chooses routes by itself while they care for partitions and classes.
    KeepDefault,
}

/// Why a wish cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "refusal")]
pub enum OverlayRefusal {
    /// A port has no LID.
    NoLid {
        /// The virtual machine.
        node: String,
    },
    /// Two ports have LIDs in common.
    DuplicateLid {
        /// A virtual machine.
        node: String,
        /// Another.
        other: String,
    },
    /// Packets to a virtual machine go round in circles.
    ForwardingLoop {
        /// The virtual machine.
        to: String,
        /// The switches of the circle, in order.
        switches: Vec<String>,
    },
    /// Two virtual machines that may talk do not reach each other.
    Unreachable {
        /// The virtual machine that sends.
        from: String,
        /// The one that is not reached.
        to: String,
        /// The switch at which packets end.
        at: String,
    },
    /// A ring of links can wait for each other for ever.
    CreditLoop {
        /// The links, in order.
        links: Vec<EgressPort>,
    },
    /// A route takes a link in a direction in which the cluster has no share of it.
    NoGrant {
        /// The link.
        link: EgressPort,
        /// A virtual machine that would send over it.
        from: String,
        /// And to whom.
        to: String,
    },
    /// More sub-partitions than a cluster may have.
    TooManyPartitions {
        /// How many are wished for.
        wanted: usize,
        /// How many there may be.
        allowed: usize,
    },
    /// The physical network could not be planned so.
    NotPlannable {
        /// Why.
        reason: String,
    },
}

/// A port by which packets leave a switch of the view.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct EgressPort {
    /// The switch.
    pub switch: String,
    /// The port.
    pub port: PortNum,
}

/// A wish and what was said about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JudgedOverlay {
    /// DatagramCounts up with every change set that closes.
    pub number: u64,
    /// What was wished.
    pub overlay: ViewOverlay,
    /// What was said.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// What every virtual machine can send to all others evenly, if the wish is in force and the cluster is promised
    /// something.
    pub all_to_all: Option<Bandwidth>,
}

/// What is going on in a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ViewStatus {
    /// Who manages it.
    pub managed_by: ViewManager,
    /// Whether something was written that has not been judged for good.
    pub is_open: bool,
    /// The last wish that was judged since the default was last in force.
    pub last: Option<JudgedOverlay>,
    /// The number of the wish that is in force; `None` is the default.
    pub in_force: Option<u64>,
}
