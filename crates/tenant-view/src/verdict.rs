//! The verdict on an overlay, and the status of a view.

use fabric_model::tenancy::Bandwidth;
use ib_wire::PortNum;
use serde::Serialize;
use thiserror::Error;

use crate::overlay::ViewOverlay;
use crate::view::ViewManager;

/// Whether an overlay can be applied to the physical network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub enum Verdict {
    /// It is applied as written.
    Approved,
    /// It is applied with these changes.
    Adapted { adaptations: Vec<Adaptation> },
    /// It is not applied; the overlay that was in force stays in force.
    Refused { refusal: OverlayRefusal },
}

/// A change that makes an overlay applicable. Strings name virtual machines (`node`) and ports of the view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "adaptation")]
pub enum Adaptation {
    /// A port has several LIDs (LMC > 0). Physical ports have one, so only the routes to the first LID count. Names one such
    /// port.
    LmcFolded { node: String },
    /// There are more classes than free lanes or service levels: those with the least weight were merged.
    ClassesFolded {
        wanted: usize,
        given: usize,
        /// The link with the fewest lanes; `None` if the cluster has no lane of its own, or lanes are not the limit.
        link: Option<EgressPort>,
    },
    /// A class without arbitration weight would never be served: it was given weight 1.
    WeightRaised { service_levels: Vec<u8> },
    /// Ports have different classes: those of the first virtual machine's port apply everywhere. Names a port that differs.
    ClassesDiffer { port: String },
    /// Routes to a virtual machine use a link direction on which the cluster is granted nothing: the default routes are
    /// kept. See [`UngrantedRoutes::KeepDefault`].
    RouteKept { node: String, link: EgressPort },
    /// A virtual machine was removed from the cluster's own partition. It stays a limited member, so that it can be
    /// managed.
    MembershipKept { node: String },
    /// The port is used by other virtual machines, too, so routes to it cannot be chosen: the default routes are kept.
    NotRouted { node: String },
}

/// What happens to an overlay whose routes use link directions on which the cluster is granted nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UngrantedRoutes {
    /// The overlay is refused with [`OverlayRefusal::NoGrant`].
    #[default]
    Refuse,
    /// Routes to the virtual machines concerned stay as by default, and the rest of the overlay is applied. For tenants
    /// whose subnet manager computes routes itself while they only set partitions and classes.
    KeepDefault,
}

/// Why an overlay cannot be applied. All names are those of the view.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "refusal")]
pub enum OverlayRefusal {
    #[error("the port of {node} has no LID")]
    NoLid { node: String },
    #[error("the ports of {node} and {other} have the same LID")]
    DuplicateLid { node: String, other: String },
    #[error("forwarding loop: packets to {to} pass {} again and again", .switches.join(", "))]
    ForwardingLoop { to: String, switches: Vec<String> },
    /// Both are in a common partition in which at least one is a full member.
    #[error("{from} and {to} may talk, but packets from {from} to {to} end at {at}")]
    Unreachable { from: String, to: String, at: String },
    /// Each link waits for the next, and the last for the first.
    #[error("credit loop: packets can wait for buffers in a cycle of {} links", .links.len())]
    CreditLoop { links: Vec<EgressPort> },
    #[error(
        "packets from {from} to {to} would leave {} by port {}, where the cluster is granted nothing",
        .link.switch, .link.port
    )]
    NoGrant { link: EgressPort, from: String, to: String },
    #[error("a cluster can have at most {allowed} sub-partitions, got {wanted}")]
    TooManyPartitions { wanted: usize, allowed: usize },
    /// The caller of [`View::refuse`](crate::View::refuse) gave this reason.
    #[error("the physical network cannot be planned with the overlay: {reason}")]
    NotPlannable { reason: String },
}

/// An output port of a switch of the view, or the directed link behind it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct EgressPort {
    pub switch: String,
    pub port: PortNum,
}

/// An overlay with its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JudgedOverlay {
    /// Increases with every new overlay and every withdrawal. An equal overlay that is judged again keeps its number.
    pub number: u64,
    pub overlay: ViewOverlay,
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Bandwidth that every virtual machine can send evenly to all others while the overlay is in force; `None` for
    /// best-effort clusters and for overlays that the checks refused.
    pub all_to_all: Option<Bandwidth>,
}

/// The state of a view with respect to its overlays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OverlayStatus {
    pub managed_by: ViewManager,
    /// Whether a change set is open: something was written that has no final verdict yet.
    pub is_open: bool,
    /// The last overlay that was judged since the default was last installed.
    pub last: Option<JudgedOverlay>,
    /// Number of the overlay that the physical network implements; `None` for the default.
    pub in_force: Option<u64>,
}
