//! Where packets leave each switch: balanced, free of deadlocks, and the same tomorrow.
//!
//! [`order`] gives every cable an upper and a lower end. A switch that has a way down to a destination takes it; the
//! others go up. So no packet goes up after it went down, from wherever it starts, and no ring of links can wait for
//! each other. Among the ways that are left, [`homes`] (in trees) and [`hash`] (elsewhere, and where cables are
//! missing) choose; both leave alone what a change does not touch. [`turns`] joins what cannot be joined that way.
//! [`crown`] does so for groups. [`adopted`] routes, found on the fabric, go before our own.

pub(crate) mod adopted;
mod columns;
pub(crate) mod crown;
mod distances;
pub(crate) mod hash;
mod homes;
pub(crate) mod order;
mod toward;
mod turns;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use fabric_model::decisions::{Decisions, RoutingDecision, Scheme, SwitchDecision};
use fabric_model::plan::{Finding, LinearTable};
use ib_wire::{Guid, Lid};

use crate::fabric::{Fabric, Place};
use columns::Columns;
pub(crate) use columns::NO_PORT;
use crown::Crown;
use distances::Ways;
use homes::{Uplinks, resettle, settle};
use order::Order;
use toward::{Lanes, Toward};
use turns::Turns;

/// Switches that are absent and still remembered: as many as the largest fabrics have.
const ABSENT_SWITCHES_MAX: usize = 4096;

/// What routes are found on. It follows from the fabric and the routing decision alone, so it serves for every change of
/// routes that keeps them.
#[derive(Debug)]
pub(crate) struct Ground {
    pub order: Order,
    pub crown: Crown,
    uplinks: Uplinks,
    ways: Ways,
    lanes: Lanes,
    /// Towards every switch that a home may lead to, from the first route on.
    toward: OnceLock<Toward>,
    /// What the choices of each switch begin with.
    seeds: Vec<u64>,
}

impl Ground {
    /// By the order of before; `None` if there is none.
    pub fn kept(fabric: &Fabric, decision: &RoutingDecision) -> Option<Self> {
        Order::kept(fabric, decision).map(|order| Self::of(fabric, order, decision))
    }

    fn of(fabric: &Fabric, order: Order, decision: &RoutingDecision) -> Self {
        let uplinks = Uplinks::of(fabric, &order, decision);
        let ways = Ways::of(fabric, &order);
        let lanes = toward::lanes(fabric, &order, &uplinks);
        let seeds = fabric.switches.iter().map(|switch| hash::seed(switch.guid)).collect();
        let crown = Crown::kept(fabric, decision);
        Self { order, crown, uplinks, ways, lanes, toward: OnceLock::new(), seeds }
    }

    fn toward(&self, fabric: &Fabric) -> &Toward {
        let find = || Toward::of(fabric, &self.order, &self.lanes, &self.uplinks.summits());
        self.toward.get_or_init(find)
    }
}

/// The routes of a fabric.
#[derive(Debug)]
pub(crate) struct Routes {
    pub order: Order,
    pub crown: Crown,
    /// Exit ports by LID, for each switch by its place.
    pub rows: Vec<Vec<u8>>,
    pub decision: RoutingDecision,
    /// The homes of end ports, by port GUID.
    pub ups: BTreeMap<Guid, Vec<u8>>,
    /// Routes that were taken over and are to be remembered.
    pub adopted: BTreeMap<Guid, Arc<LinearTable>>,
    pub finding: Option<Finding>,
}

/// Routes every LID from every switch.
pub(crate) fn route(fabric: &Fabric, lids: &BTreeMap<Guid, Lid>, previous: &Decisions) -> Routes {
    let kept =
        Order::kept(fabric, &previous.routing).and_then(|order| attempt(fabric, order, lids, previous));
    let fresh = Decisions::default();
    let by_levels = || Order::by_levels(fabric).and_then(|order| attempt(fabric, order, lids, &fresh));
    let by_root = || routes(fabric, Order::by_root(fabric), lids, &fresh).0;
    let mut routes = kept.or_else(by_levels).unwrap_or_else(by_root);
    remember_absent(&mut routes.decision, previous);
    routes
}

/// Routes by an order of switches, if everyone who matters reaches everyone, also by groups.
fn attempt(
    fabric: &Fabric,
    order: Order,
    lids: &BTreeMap<Guid, Lid>,
    previous: &Decisions,
) -> Option<Routes> {
    let scheme = order.scheme;
    let (routes, missing) = routes(fabric, order, lids, previous);
    let is_good = match scheme {
        Scheme::Levels => !missing.is_critical,
        Scheme::Root => missing.pairs == 0,
    };
    (is_good && !missing.groups).then_some(routes)
}

fn routes(
    fabric: &Fabric,
    order: Order,
    lids: &BTreeMap<Guid, Lid>,
    previous: &Decisions,
) -> (Routes, columns::Missing) {
    let ground = Ground::of(fabric, order, &previous.routing);
    let (order, uplinks) = (&ground.order, &ground.uplinks);
    let (destinations, ups) = settle(fabric, uplinks, lids, previous);
    let turns = Turns::of(fabric, order, previous.routing.turn);
    let all: Vec<Place> = (0..fabric.switches.len()).collect();
    let (mut rows, mut turns, mut missing) = Columns::new(fabric, &ground, &destinations, turns).fill(&all);
    turns.refresh();
    let crown = Crown::of(fabric, order, &mut turns, &ground.crown);
    missing.groups = crown.is_none();
    let crown = crown.unwrap_or_default();
    if !previous.adopted.is_empty() {
        adopted::apply(fabric, order, &turns, lids, &previous.adopted, &mut rows);
    }
    let switches = fabric.switches.iter().enumerate();
    let decision = RoutingDecision {
        scheme: order.scheme,
        switches: switches
            .map(|(place, switch)| (switch.guid, uplinks.decision(place, order.heights[place])))
            .collect(),
        turn: turns.turn(),
        further_turns: turns.further(),
        crown: crown.decision(fabric),
    };
    let guid = |place: usize| fabric.switches[place].guid;
    let finding = missing.witness.map(|(from, to)| Finding::NoRoute {
        pairs: missing.pairs,
        from: guid(from),
        to: guid(to),
    });
    let adopted = still_adopted(fabric, previous);
    let order = ground.order;
    (Routes { order, crown, rows, decision, ups, adopted, finding }, missing)
}

/// What [`route`] makes of other homes of some adapter ports, each given with what was decided of its home before: where
/// packets to each leave every switch, in the order of the ports. `rows` is the same as it was. `None` if more than their
/// columns would change.
pub(crate) fn reroute(
    fabric: &Fabric,
    ground: &Ground,
    decisions: &Decisions,
    ports: &[(Guid, Vec<u8>)],
    rows: Vec<Vec<u8>>,
) -> Option<Vec<Vec<u8>>> {
    if !ground.order.is_strict {
        return None;
    }
    let destinations = resettle(fabric, &ground.uplinks, decisions, ports)?;
    let turns = Turns::of(fabric, &ground.order, decisions.routing.turn);
    let targets: Vec<Place> =
        (0..destinations.len()).filter(|place| !destinations[*place].is_empty()).collect();
    let columns = Columns::over(rows, fabric, ground, &destinations, turns);
    let (rows, turns, missing) = columns.fill(&targets);
    let is_alone = turns.turn() == decisions.routing.turn
        && turns.further().is_subset(&decisions.routing.further_turns)
        && decisions.adopted.is_empty();
    (is_alone && missing.pairs == 0).then_some(rows)
}

/// The routes that were taken over, also of some switches that are absent.
fn still_adopted(fabric: &Fabric, previous: &Decisions) -> BTreeMap<Guid, Arc<LinearTable>> {
    let is_present = |guid: &Guid| fabric.place_of(*guid).is_some();
    let absent = previous.adopted.iter().filter(|(guid, _)| !is_present(guid)).take(ABSENT_SWITCHES_MAX);
    let present = previous.adopted.iter().filter(|(guid, _)| is_present(guid));
    present.chain(absent).map(|(guid, table)| (*guid, Arc::clone(table))).collect()
}

/// Keeps what was known of switches that are absent, so that they come back as they were.
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
