//! Unicast routing: the exit port of every switch for every LID. Balanced, free of deadlocks, and stable under changes.
//!
//! # Method
//!
//! 1. [`order`]: every link between switches gets an upper and a lower end. In trees the height of a switch is its distance
//!    from the leaves (scheme `Tiers`); elsewhere, or where that does not connect all hosts, minus its distance from one
//!    root (scheme `Root`).
//! 2. [`distances`]: for each destination switch, the shortest paths that go up and then down. A switch with a path down
//!    takes it, even if one up and down is shorter. So no packet goes up after it went down, wherever it starts: this is
//!    up*/down* routing, whose channel dependency graph has no cycle (Dally and Seitz), so one virtual lane suffices.
//! 3. [`down_paths`]: in trees each destination gets one link per tier, the least used one, for packets that come down. All
//!    sources climb towards the top of that path ([`up_next_hops`]). On a full tree the result is d-mod-k routing
//!    (Zahavi): every shift permutation loads each link with one flow. Unlike d-mod-k it is stored, so that changes of the
//!    tree move only the destinations that they affect.
//! 4. [`hash`]: where no down path decides (other topologies, missing cables), the port with the highest hash of switch,
//!    port and LID is taken (rendezvous hashing), which also moves only what a change affects.
//! 5. [`down_up_hops`]: pairs of switches that up-then-down paths do not connect, such as two core switches, are connected
//!    by hops from a downward to an upward link that provably close no cycle.
//! 6. [`core_tree`]: the same for multicast groups whose members have no common switch above them.
//! 7. [`adopted`]: routes found on a fabric that another manager configured take precedence where they are valid.
//!
//! [`columns`] fills the forwarding tables destination by destination.
//!
//! # Complexity
//!
//! With `s` switches, `e` links between them and `d` destinations: O(s·e) for the distances, O(s·d) for the tables, and
//! O(e) for each down-up hop that is searched, limited to 20 million steps in total. Memory is O(s·d) for the tables and
//! O(s·t) for the next hops towards the `t` tops.
//!
//! # Guarantees
//!
//! Every LID is reached from every switch if the reached fabric is connected, except pairs of switches without hosts that
//! are reported as a finding. The channel dependency graph is acyclic. The result depends only on the fabric, the LIDs and
//! the previous decisions, not on the order in which nodes are listed.

pub(crate) mod adopted;
mod columns;
pub(crate) mod core_tree;
mod distances;
mod down_paths;
mod down_up_hops;
pub(crate) mod hash;
pub(crate) mod order;
mod up_next_hops;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use fabric_model::decisions::{Decisions, HeightScheme, RoutingDecision, SwitchDecision};
use fabric_model::plan::{LinearTable, PlanFinding};
use ib_wire::{Guid, Lid};

use crate::fabric::{Fabric, SwitchIndex};
use columns::Columns;
pub(crate) use columns::NO_PORT;
use core_tree::CoreTree;
use distances::UpNeighbours;
use down_paths::{Uplinks, assign_down_paths, reassign_down_paths};
use down_up_hops::DownUpHops;
use order::Order;
use up_next_hops::{ParallelPorts, UpNextHops};

/// Absent switches whose decisions are kept: as many as the largest fabrics have switches.
const ABSENT_SWITCHES_MAX: usize = 4096;

/// What route computations on one fabric have in common. It depends on the fabric and the routing decision only, so it is
/// valid for all changes that keep these.
#[derive(Debug)]
pub(crate) struct RoutingContext {
    pub order: Order,
    pub core_tree: CoreTree,
    uplinks: Uplinks,
    up_neighbours: UpNeighbours,
    parallel_ports: ParallelPorts,
    /// Towards every switch that may be the top of a down path. Computed when first needed.
    up_next_hops: OnceLock<UpNextHops>,
    /// By switch: the seed of its hashes.
    seeds: Vec<u64>,
}

impl RoutingContext {
    /// With the order of switches of a decision; `None` if it has none.
    pub fn kept(fabric: &Fabric, decision: &RoutingDecision) -> Option<Self> {
        Order::kept(fabric, decision).map(|order| Self::of(fabric, order, decision))
    }

    fn of(fabric: &Fabric, order: Order, decision: &RoutingDecision) -> Self {
        let uplinks = Uplinks::of(fabric, &order, decision);
        let up_neighbours = UpNeighbours::of(fabric, &order);
        let parallel_ports = up_next_hops::parallel_ports(fabric, &order, &uplinks);
        let seeds = fabric.switches.iter().map(|switch| hash::seed(switch.guid)).collect();
        let core_tree = CoreTree::kept(fabric, decision);
        Self {
            order,
            core_tree,
            uplinks,
            up_neighbours,
            parallel_ports,
            up_next_hops: OnceLock::new(),
            seeds,
        }
    }

    fn up_next_hops(&self, fabric: &Fabric) -> &UpNextHops {
        let find = || UpNextHops::of(fabric, &self.order, &self.parallel_ports, &self.uplinks.tops());
        self.up_next_hops.get_or_init(find)
    }
}

/// The routes of a fabric.
#[derive(Debug)]
pub(crate) struct Routes {
    pub order: Order,
    pub core_tree: CoreTree,
    /// By switch: exit ports by LID.
    pub rows: Vec<Vec<u8>>,
    pub decision: RoutingDecision,
    /// By port GUID: the down path of an end port, as indices of up-links.
    pub ups: BTreeMap<Guid, Vec<u8>>,
    /// Adopted routes to store.
    pub adopted: BTreeMap<Guid, Arc<LinearTable>>,
    pub finding: Option<PlanFinding>,
}

/// Computes routes from every switch to every LID. Tries the previous order of switches, then tiers, then one root.
pub(crate) fn route(fabric: &Fabric, lids: &BTreeMap<Guid, Lid>, previous: &Decisions) -> Routes {
    let kept =
        Order::kept(fabric, &previous.routing).and_then(|order| attempt(fabric, order, lids, previous));
    let fresh = Decisions::default();
    let by_tiers = || Order::by_tiers(fabric).and_then(|order| attempt(fabric, order, lids, &fresh));
    let by_root = || routes(fabric, Order::by_root(fabric), lids, &fresh).0;
    let mut routes = kept.or_else(by_tiers).unwrap_or_else(by_root);
    remember_absent(&mut routes.decision, previous);
    routes
}

/// Routes by an order of switches; `None` if hosts, the manager or groups are not connected by it.
fn attempt(
    fabric: &Fabric,
    order: Order,
    lids: &BTreeMap<Guid, Lid>,
    previous: &Decisions,
) -> Option<Routes> {
    let scheme = order.scheme;
    let (routes, missing) = routes(fabric, order, lids, previous);
    let is_good = match scheme {
        HeightScheme::Tiers => !missing.is_critical,
        HeightScheme::Root => missing.pairs == 0,
    };
    (is_good && !missing.groups).then_some(routes)
}

fn routes(
    fabric: &Fabric,
    order: Order,
    lids: &BTreeMap<Guid, Lid>,
    previous: &Decisions,
) -> (Routes, columns::Missing) {
    let context = RoutingContext::of(fabric, order, &previous.routing);
    let (order, uplinks) = (&context.order, &context.uplinks);
    let (destinations, ups) = assign_down_paths(fabric, uplinks, lids, previous);
    let hops = DownUpHops::of(fabric, order, previous.routing.down_up_switch);
    let all: Vec<SwitchIndex> = (0..fabric.switches.len()).collect();
    let (mut rows, mut hops, mut missing) = Columns::new(fabric, &context, &destinations, hops).fill(&all);
    hops.refresh();
    let core_tree = CoreTree::of(fabric, order, &mut hops, &context.core_tree);
    missing.groups = core_tree.is_none();
    let core_tree = core_tree.unwrap_or_default();
    if !previous.adopted.is_empty() {
        adopted::apply(fabric, order, &hops, lids, &previous.adopted, &mut rows);
    }
    let switches = fabric.switches.iter().enumerate();
    let decision = RoutingDecision {
        scheme: order.scheme,
        switches: switches
            .map(|(index, switch)| (switch.guid, uplinks.decision(index, order.heights[index])))
            .collect(),
        down_up_switch: hops.pivot(),
        down_up_turns: hops.hops(),
        core_tree: core_tree.decision(fabric),
    };
    let guid = |index: usize| fabric.switches[index].guid;
    let finding = missing.witness.map(|(from, to)| PlanFinding::NoRoute {
        pairs: missing.pairs,
        from: guid(from),
        to: guid(to),
    });
    let adopted = still_adopted(fabric, previous);
    let order = context.order;
    (Routes { order, core_tree, rows, decision, ups, adopted, finding }, missing)
}

/// Recomputes the columns of some adapter ports whose down paths were changed, as [`route`] would.
///
/// `ports` has each port with its previous down path, `decisions` the new ones, and `rows` the exit ports of every switch
/// towards these ports, in the order of `ports`. Returns the new rows; `None` if more than these columns would change.
pub(crate) fn reroute(
    fabric: &Fabric,
    context: &RoutingContext,
    decisions: &Decisions,
    ports: &[(Guid, Vec<u8>)],
    rows: Vec<Vec<u8>>,
) -> Option<Vec<Vec<u8>>> {
    if !context.order.is_strict {
        return None;
    }
    let destinations = reassign_down_paths(fabric, &context.uplinks, decisions, ports)?;
    let hops = DownUpHops::of(fabric, &context.order, decisions.routing.down_up_switch);
    let targets: Vec<SwitchIndex> =
        (0..destinations.len()).filter(|index| !destinations[*index].is_empty()).collect();
    let columns = Columns::over(rows, fabric, context, &destinations, hops);
    let (rows, hops, missing) = columns.fill(&targets);
    let is_alone = hops.pivot() == decisions.routing.down_up_switch
        && hops.hops().is_subset(&decisions.routing.down_up_turns)
        && decisions.adopted.is_empty();
    (is_alone && missing.pairs == 0).then_some(rows)
}

/// The adopted routes to keep, including those of some absent switches.
fn still_adopted(fabric: &Fabric, previous: &Decisions) -> BTreeMap<Guid, Arc<LinearTable>> {
    let is_present = |guid: &Guid| fabric.switch_index(*guid).is_some();
    let absent = previous.adopted.iter().filter(|(guid, _)| !is_present(guid)).take(ABSENT_SWITCHES_MAX);
    let present = previous.adopted.iter().filter(|(guid, _)| is_present(guid));
    present.chain(absent).map(|(guid, table)| (*guid, Arc::clone(table))).collect()
}

/// Keeps the decisions of absent switches, so that they return as they were.
fn remember_absent(decision: &mut RoutingDecision, previous: &Decisions) {
    if decision.scheme != previous.routing.scheme {
        return;
    }
    let absent: Vec<(Guid, SwitchDecision)> = (previous.routing.switches.iter())
        .filter(|(guid, _)| !decision.switches.contains_key(guid))
        .take(ABSENT_SWITCHES_MAX)
        .map(|(guid, switch)| (*guid, switch.clone()))
        .collect();
    decision.switches.extend(absent);
}
