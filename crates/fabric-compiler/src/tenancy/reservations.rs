//! Reservations on every link: rate, lanes, service levels and entries of its arbitration table.
//!
//! # How rates become weights
//!
//! A lane gets at least the weight of one packet of the largest size, so that it is never starved. The rest of a table's
//! weight is proportional to the reserved rates. In the worst case the last packet of each visit exceeds the weight of its
//! entry by almost a packet. The *usable* rate of a link is its rate without that overhead for all entries and without the
//! minimum weight of all lanes, and the part of it that the inputs of switches leave ([`rate_factor`]), so reservations up to
//! the usable rate hold whatever packet sizes others send.

use fabric_model::intent::{LaneBuffer, PortName};
use fabric_model::tenancy::Bandwidth;
use ib_wire::{LaneSet, ServiceLevelSet, VirtualLane};

use super::admission::{LinkMoves, LinkShare, Refusal};
use super::arbitration::{
    ArbitrationError, ArbitrationTable, OVERSHOOT_BYTES, PACKET_BYTES_MAX, SparedEntries, WEIGHT_BYTES,
};
use super::link_graph::{DirectedLink, LinkGraph, LinkIndex};
use super::residual::{Residual, Residuals};
use super::switch_inputs::rate_factor;

/// The minimum weight of a lane: one packet of the largest size.
const LEAST_WEIGHT: u32 = PACKET_BYTES_MAX.div_ceil(WEIGHT_BYTES) as u32;

/// The largest weight of an entry (8 bits).
const ENTRY_WEIGHT_MAX: u32 = 255;

/// The relation between the weight of a table and the usable rate of its link.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// The weight that the whole usable rate stands for, beside the minimum weights.
    weight: u32,
    /// The usable part of a link's rate, between 0 and 1.
    usable: f64,
}

impl Scale {
    /// For a table of `entries` that serves `lanes`. A lane has one entry, or at most twice as many as its weight fills,
    /// because their number is a power of two. So all lanes fit, except in tables that are hardly longer than there are
    /// lanes.
    fn of(entries: u8, lanes: u8) -> Self {
        let (entries, lanes) = (u32::from(entries), u32::from(lanes));
        let spare = entries.saturating_sub(lanes) * ENTRY_WEIGHT_MAX / 2;
        let least = lanes * (LEAST_WEIGHT + 1);
        let weight = spare.saturating_sub(least).max(ENTRY_WEIGHT_MAX);
        let overshoot = f64::from(entries) * OVERSHOOT_BYTES as f64 / WEIGHT_BYTES as f64;
        let usable = f64::from(weight) / (f64::from(weight + least) + overshoot);
        Self { weight, usable }
    }
}

/// The reservations on one link. Rates are in bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    usable: u64,
    taken: u64,
    /// The weight that the whole usable rate stands for.
    weight: u32,
    /// The lanes that guaranteed clusters may have.
    lanes: LaneSet,
    lanes_taken: LaneSet,
    sls_taken: ServiceLevelSet,
    /// The buffer of each lane at the receiving end, if known.
    buffer: Option<LaneBuffer>,
}

impl Link {
    fn residual(&self) -> Residual {
        let has_lane = !self.lanes_free().is_empty() && self.buffer_short(0).is_none();
        Residual {
            below: if has_lane { self.left_for_one() + 1 } else { 0 },
            sls_taken: self.sls_taken,
            lanes_taken: self.lanes_taken.len() as u8,
        }
    }

    fn lanes_free(&self) -> LaneSet {
        self.lanes - self.lanes_taken
    }

    /// The rate that one cluster can still reserve: limited by the rest of the rate, and by a lane's buffer, which must hold
    /// what is sent in a credit round trip plus one packet.
    fn left_for_one(&self) -> u64 {
        let left = self.usable - self.taken;
        match self.buffer {
            None => left,
            Some(buffer) => {
                let under_way = u64::from(buffer.bytes).saturating_sub(PACKET_BYTES_MAX);
                left.min(under_way.saturating_mul(BITS_NS) / u64::from(buffer.round_trip_ns).max(1))
            }
        }
    }

    /// The weight of a reserved rate.
    fn weight_of(&self, share: u64) -> u32 {
        LEAST_WEIGHT + product_over(share, self.weight.into(), self.usable.max(1)) as u32
    }

    /// The bytes that a reserved rate needs of a lane's buffer, and the size of the buffer, if it is too small.
    fn buffer_short(&self, share: u64) -> Option<(u64, u64)> {
        let buffer = self.buffer?;
        let needed = PACKET_BYTES_MAX + product_over(share, buffer.round_trip_ns.into(), BITS_NS);
        Some((needed, u64::from(buffer.bytes))).filter(|(needed, held)| held < needed)
    }
}

/// One byte per nanosecond, in bits per second.
const BITS_NS: u64 = 8_000_000_000;

/// The reservations on all links.
#[derive(Clone, Debug)]
pub(super) struct Reservations {
    links: Vec<Link>,
    /// By link: the port that sends into it.
    ports: Vec<PortName>,
    /// By link. Meaningful only while a lane of the link has an owner.
    tables: Vec<ArbitrationTable>,
    table_entries: u8,
    first: Option<First>,
    residuals: Residuals,
}

/// The last reservation on an unused link, cached: a cluster reserves the same on the links of all its hosts.
#[derive(Clone, Debug)]
struct First {
    before: Link,
    share: u64,
    sls: ServiceLevelSet,
    after: (Link, ArbitrationTable),
    given: LinkShare,
}

/// Moves in the table of a link, and the table before them.
#[derive(Debug)]
pub(super) struct Moved {
    pub moves: LinkMoves,
    before: ArbitrationTable,
}

/// Saved states of links.
#[derive(Debug)]
pub(super) struct Saved(Vec<(LinkIndex, Link, ArbitrationTable)>);

impl Reservations {
    pub fn new(graph: &LinkGraph) -> Self {
        let table_entries = graph.limits().table_entries;
        // A packet may have come over any link.
        let input_lanes = graph.links().iter().map(DirectedLink::data_lanes).max().unwrap_or(0);
        let kept = rate_factor(graph.limits().hardware.switch_model, input_lanes);
        let links: Vec<Link> = (graph.links().iter())
            .map(|link| {
                let scale = Scale::of(table_entries, link.data_lanes());
                Link {
                    usable: link.rate.part(scale.usable * kept).bits_per_s(),
                    taken: 0,
                    weight: scale.weight,
                    lanes: link.cluster_lanes(),
                    lanes_taken: LaneSet::EMPTY,
                    sls_taken: ServiceLevelSet::EMPTY,
                    buffer: link.buffer,
                }
            })
            .collect();
        let tables = links.iter().map(|link| started(table_entries, link.lanes)).collect();
        let mut residuals = Residuals::new(graph);
        for (at, link) in (0..).map(LinkIndex).zip(&links) {
            residuals.set(at, || link.residual());
        }
        let ports = graph.links().iter().map(|link| link.from).collect();
        Self { links, ports, tables, table_entries, first: None, residuals }
    }

    pub fn usable(&self, link: LinkIndex) -> u64 {
        self.links[link.index()].usable
    }

    /// The port that sends into a link.
    pub fn port(&self, link: LinkIndex) -> PortName {
        self.ports[link.index()]
    }

    pub fn left(&self, link: LinkIndex) -> u64 {
        let link = &self.links[link.index()];
        link.usable - link.taken
    }

    pub fn table(&self, link: LinkIndex) -> Option<&ArbitrationTable> {
        (!self.links[link.index()].lanes_taken.is_empty()).then(|| &self.tables[link.index()])
    }

    #[inline]
    pub fn sls_taken(&self, link: LinkIndex) -> ServiceLevelSet {
        self.links[link.index()].sls_taken
    }

    /// The residual capacity of the links between switches of a regular tree.
    pub fn residuals(&self) -> &Residuals {
        &self.residuals
    }

    /// Checks that a link has a lane, the rate `share` and arbitration entries for it left.
    pub fn check(&self, at: LinkIndex, share: u64) -> Result<(), Refusal> {
        let link = &self.links[at.index()];
        if link.lanes_free().is_empty() {
            return Err(Refusal::NoLaneFree { port: self.port(at), lanes: link.lanes.len() as u8 });
        }
        if link.usable == 0 {
            return Err(Refusal::RateUnknown { port: self.port(at) });
        }
        let free = link.usable - link.taken;
        if share > free {
            let [needed, free] = [share, free].map(Bandwidth::from_bits_per_s);
            return Err(Refusal::BandwidthShort { port: self.port(at), needed, free });
        }
        if let Some((needed, held)) = link.buffer_short(share) {
            return Err(Refusal::BufferTooSmall { port: self.port(at), needed, held });
        }
        let (needed, free) =
            (entries_for(link.weight_of(share), self.table_entries), self.tables[at.index()].free());
        if needed > free {
            return Err(Refusal::ArbitrationTableFull { port: self.port(at), needed, free });
        }
        Ok(())
    }

    /// Reserves a lane, service levels, a rate and entries on a link that was [checked](Self::check). Prefers the lane and
    /// the entries of the earlier share `had`. Entries moved to make room are appended to `moved`.
    pub fn take(
        &mut self,
        at: LinkIndex,
        share: u64,
        sls: ServiceLevelSet,
        had: Option<&LinkShare>,
        moved: &mut Vec<Moved>,
    ) -> Result<LinkShare, Refusal> {
        debug_assert_eq!(self.check(at, share), Ok(()));
        let port = self.port(at);
        let (link, table) = (&mut self.links[at.index()], &mut self.tables[at.index()]);
        let before = Some(*link).filter(|link| link.lanes_taken.is_empty() && had.is_none());
        if let Some(first) = &self.first
            && before == Some(first.before)
            && (first.share, first.sls) == (share, sls)
        {
            (*link, *table) = first.after;
            self.residuals.set(at, || link.residual());
            return Ok(LinkShare { link: at, ..first.given });
        }
        let weight = link.weight_of(share);
        let count = entries_for(weight, self.table_entries);
        let distance = self.table_entries / count;
        let free = link.lanes_free();
        let lowest = free.first().expect("a lane is free");
        let had_lane = had.map(|had| had.lane).filter(|lane| free.contains(*lane));
        let lane = had_lane.unwrap_or(lowest);
        // With another distance, the sequence that has the most entries in common with the earlier one.
        let first = had.map(|had| had.first_entry % distance);
        let sequence = match table.request_at(lane, distance, weight, first) {
            Err(ArbitrationError::Full { needed, free }) if needed <= free => {
                let before = *table;
                // Its earlier entries are spared, so that all moves can be made before any entry is given up.
                let spared = had.map(|had| table.spared(had.first_entry, had.entries)).unwrap_or_default();
                moved.push(Moved { moves: (at, table.make_room(count, spared)), before });
                table.request(lane, distance, weight)
            }
            answer => answer,
        };
        let sequence = sequence.map_err(|_| Refusal::ArbitrationTableFull {
            port,
            needed: count,
            free: table.free(),
        })?;
        let first_entry = table.first_entry(lane).unwrap_or_default();
        link.taken += share;
        link.lanes_taken.insert(lane);
        link.sls_taken |= sls;
        self.residuals.set(at, || link.residual());
        let given = LinkShare {
            link: at,
            lane,
            service_levels: sls,
            share: Bandwidth::from_bits_per_s(share),
            entries: sequence.entries(),
            first_entry,
            weight: sequence.weight,
        };
        if let Some(before) = before {
            self.first = Some(First { before, share, sls, after: (*link, *table), given });
        }
        Ok(given)
    }

    /// Reserves an earlier share again, and returns the position of its first entry: `first` if those entries are free.
    /// `None`, and nothing is reserved, if the lane, service levels, rate, buffer or number of entries are not available.
    pub fn retake(&mut self, share: &LinkShare, first: Option<u8>, moved: &mut Vec<Moved>) -> Option<u8> {
        let entries = self.table_entries;
        let (link, table) = (&mut self.links[share.link.index()], &mut self.tables[share.link.index()]);
        let is_free = link.lanes_free().contains(share.lane)
            && link.sls_taken.is_disjoint(share.service_levels)
            && share.share.bits_per_s() <= link.usable - link.taken
            && link.buffer_short(share.share.bits_per_s()).is_none()
            && share.entries.is_power_of_two()
            && share.entries <= entries;
        if !is_free {
            return None;
        }
        let weight = u32::from(share.entries) * u32::from(share.weight);
        let distance = entries / share.entries;
        if table.request_at(share.lane, distance, weight, first).is_err() {
            let before = *table;
            moved.push(Moved {
                moves: (share.link, table.make_room(share.entries, SparedEntries::default())),
                before,
            });
            table.request(share.lane, distance, weight).ok()?;
        }
        link.taken += share.share.bits_per_s();
        link.lanes_taken.insert(share.lane);
        link.sls_taken |= share.service_levels;
        self.residuals.set(share.link, || link.residual());
        table.first_entry(share.lane)
    }

    /// Releases what [`Self::take`] reserved.
    pub fn give_back(&mut self, share: &LinkShare) {
        let link = &mut self.links[share.link.index()];
        link.taken -= share.share.bits_per_s();
        link.lanes_taken.remove(share.lane);
        link.sls_taken -= share.service_levels;
        self.residuals.set(share.link, || link.residual());
        self.tables[share.link.index()].release(share.lane);
        if link.lanes_taken.is_empty() {
            self.tables[share.link.index()] = started(self.table_entries, link.lanes);
        }
    }

    /// Undoes the reservations of a request that was refused on a later link, and the moves made for it.
    pub fn undo(&mut self, shares: &[LinkShare], moved: Vec<Moved>) {
        shares.iter().for_each(|share| self.give_back(share));
        for Moved { moves: (link, _), before } in moved {
            self.tables[link.index()] = before;
        }
    }

    /// Undoes moves, the last one first, where the lane still has the entries it was moved to.
    pub fn undo_moves(&mut self, moves: &[LinkMoves]) {
        for (link, moves) in moves.iter().rev() {
            moves.iter().rev().for_each(|step| self.tables[link.index()].undo_move(step));
        }
    }

    pub fn save(&self, links: impl Iterator<Item = LinkIndex>) -> Saved {
        let saved = links.map(|link| (link, self.links[link.index()], self.tables[link.index()]));
        Saved(saved.collect())
    }

    pub fn restore(&mut self, saved: Saved) {
        for (at, link, table) in saved.0 {
            self.links[at.index()] = link;
            self.tables[at.index()] = table;
            self.residuals.set(at, || link.residual());
        }
    }
}

/// The rate that ordered pairs of a cluster's hosts need on a link, prepared for fast division.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairDemand {
    /// The number of hosts that each host sends to.
    others: u64,
    /// Bits per second that the pairs would need if each host sent to one other only; 0 needs nothing.
    rate: u64,
    /// 2⁶⁴ / `rate`, rounded down.
    inverse: u64,
}

impl PairDemand {
    /// For `pairs` pairs of a cluster of `hosts` that each send `rate` bits per second.
    pub fn new(rate: u64, hosts: u64, pairs: u64) -> Self {
        let rate = rate.saturating_mul(pairs.max(1));
        Self {
            others: hosts.saturating_sub(1),
            rate,
            inverse: u64::MAX.checked_div(rate).unwrap_or_default(),
        }
    }

    /// How many times the pairs fit into a rate that is less than `below` bits per second.
    #[inline]
    pub fn times(&self, below: u64) -> u64 {
        if self.rate == 0 {
            return u64::MAX;
        }
        match below.checked_mul(self.others) {
            // Division is slow and this is called for many links: the product with the inverse is at most one too low.
            Some(product) => {
                let whole = product.saturating_sub(1);
                let guess = ((u128::from(whole) * u128::from(self.inverse)) >> 64) as u64;
                guess + u64::from(whole - guess * self.rate >= self.rate)
            }
            None => {
                let whole = (u128::from(below) * u128::from(self.others)).saturating_sub(1);
                (whole / u128::from(self.rate)) as u64
            }
        }
    }
}

/// `a · b / c`, rounded up.
#[inline]
fn product_over(a: u64, b: u64, c: u64) -> u64 {
    // Rates in bits per second times hosts or weights seldom need more than 64 bits, and long division is slow.
    match a.checked_mul(b) {
        Some(product) => product.div_ceil(c),
        None => (u128::from(a) * u128::from(b)).div_ceil(u128::from(c)) as u64,
    }
}

/// The number of entries for a weight in a table of `entries`: a power of two.
fn entries_for(weight: u32, entries: u8) -> u8 {
    (weight.div_ceil(ENTRY_WEIGHT_MAX).next_power_of_two() as u8).min(entries)
}

/// A table with one entry each for best effort and, where it has a lane of its own, management.
fn started(entries: u8, cluster_lanes: LaneSet) -> ArbitrationTable {
    let mut table = ArbitrationTable::new(entries)
        .unwrap_or_else(|_| ArbitrationTable::new(8).expect("8 entries are possible"));
    let reserved = cluster_lanes.first().map_or(0, VirtualLane::to_wire);
    for lane in LaneSet::range(VirtualLane::default(), reserved) {
        table.request(lane, table.length(), LEAST_WEIGHT).expect("an empty table has free entries");
    }
    table
}

#[cfg(test)]
mod tests;
