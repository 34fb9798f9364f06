//! What is taken of every link: rate, lanes, service levels, entries of its arbitration table.

use fabric_model::intent::LaneBuffer;
use fabric_model::tenancy::Bandwidth;
use ib_wire::VirtualLane;

use super::arbitration::{OVERSHOOT_BYTES, PACKET_BYTES_MAX, Spared, Table, TableError, WEIGHT_BYTES};
use super::ledger::{LinkMoves, LinkShare, Refusal};
use super::network::{LinkIndex, Network};
use super::rooms::{Room, Rooms};

/// Weight that every lane has at least: one packet of any size.
const LEAST_WEIGHT: u32 = PACKET_BYTES_MAX.div_ceil(WEIGHT_BYTES) as u32;

/// The largest weight of an entry.
const ENTRY_WEIGHT_MAX: u32 = 255;

/// How the entries and the rate of a table are shared out.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Weight that the whole usable rate stands for, on top of what every lane has at least.
    weight: u32,
    /// The usable part of a link's rate: what is left if all lanes have their least weight, and every entry's last packet
    /// goes beyond it as far as it can.
    usable: f64,
}

impl Scale {
    /// For tables of so many entries that serve so many lanes. A lane has at most twice the entries that its weight fills,
    /// or one; so all have room, except in tables that are hardly longer than there are lanes.
    fn of(entries: u8, lanes: u8) -> Self {
        let (entries, lanes) = (u32::from(entries), u32::from(lanes));
        let room = entries.saturating_sub(lanes) * ENTRY_WEIGHT_MAX / 2;
        let least = lanes * (LEAST_WEIGHT + 1);
        let weight = room.saturating_sub(least).max(ENTRY_WEIGHT_MAX);
        let overshoot = f64::from(entries) * OVERSHOOT_BYTES as f64 / WEIGHT_BYTES as f64;
        let usable = f64::from(weight) / (f64::from(weight + least) + overshoot);
        Self { weight, usable }
    }
}

/// What is taken of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    usable: u64,
    taken: u64,
    /// Weight that the whole usable rate stands for.
    weight: u32,
    /// Lanes for guaranteed clusters, as bits.
    lanes: u16,
    lanes_taken: u16,
    levels_taken: u16,
    /// What a lane has at the other end, if that is known.
    buffer: Option<LaneBuffer>,
}

impl Link {
    /// What it has left.
    fn room(&self) -> Room {
        let has_lane = self.lanes & !self.lanes_taken != 0 && self.buffer_short(0).is_none();
        Room {
            below: if has_lane { self.left_for_one() + 1 } else { 0 },
            levels_taken: self.levels_taken,
            lanes_taken: self.lanes_taken.count_ones() as u8,
        }
    }

    /// What of the rate is left that one cluster can use.
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

    /// The weight of a share.
    fn weight_of(&self, share: u64) -> u32 {
        LEAST_WEIGHT + product_over(share, self.weight.into(), self.usable.max(1)) as u32
    }

    /// Bytes that a share needs of a lane's buffer, and those that there are, if they are too few.
    fn buffer_short(&self, share: u64) -> Option<(u64, u64)> {
        let buffer = self.buffer?;
        let needed = PACKET_BYTES_MAX + product_over(share, buffer.round_trip_ns.into(), BITS_NS);
        Some((needed, u64::from(buffer.bytes))).filter(|(needed, held)| held < needed)
    }
}

/// A byte per nanosecond, in bits per second.
const BITS_NS: u64 = 8_000_000_000;

/// What is taken of every link.
#[derive(Clone, Debug)]
pub(super) struct Books {
    links: Vec<Link>,
    /// By link; what it says counts only while somebody has a lane there.
    tables: Vec<Table>,
    table_entries: u8,
    first: Option<First>,
    rooms: Rooms,
}

/// What was taken last of a link that nobody had anything of. A cluster takes the same of all its hosts' cables.
#[derive(Clone, Debug)]
struct First {
    before: Link,
    share: u64,
    levels: u16,
    /// The link and its table afterwards.
    after: (Link, Table),
    given: LinkShare,
}

/// A link's table before sequences were moved in it, and the moves.
#[derive(Debug)]
pub(super) struct Moved {
    pub moves: LinkMoves,
    before: Table,
}

/// What some links were like.
#[derive(Debug)]
pub(super) struct Saved(Vec<(LinkIndex, Link, Table)>);

impl Books {
    pub fn new(network: &Network) -> Self {
        let table_entries = network.limits().table_entries;
        let links: Vec<Link> = (network.links().iter())
            .map(|link| {
                let scale = Scale::of(table_entries, link.lanes + link.first_lane);
                Link {
                    usable: link.rate.part(scale.usable).bits_per_s(),
                    taken: 0,
                    weight: scale.weight,
                    lanes: (((1u32 << link.lanes) - 1) << link.first_lane) as u16 & 0x7fff,
                    lanes_taken: 0,
                    levels_taken: 0,
                    buffer: link.buffer,
                }
            })
            .collect();
        let tables = links.iter().map(|link| started(table_entries, link.lanes)).collect();
        let mut rooms = Rooms::new(network);
        for (at, link) in (0..).map(LinkIndex).zip(&links) {
            rooms.set(at, || link.room());
        }
        Self { links, tables, table_entries, first: None, rooms }
    }

    pub fn usable(&self, link: LinkIndex) -> u64 {
        self.links[link.index()].usable
    }

    pub fn left(&self, link: LinkIndex) -> u64 {
        let link = &self.links[link.index()];
        link.usable - link.taken
    }

    pub fn table(&self, link: LinkIndex) -> Option<&Table> {
        (self.links[link.index()].lanes_taken != 0).then(|| &self.tables[link.index()])
    }

    #[inline]
    pub fn levels_taken(&self, link: LinkIndex) -> u16 {
        self.links[link.index()].levels_taken
    }

    /// What the links between the switches of a tree have left.
    pub fn rooms(&self) -> &Rooms {
        &self.rooms
    }

    /// Whether a link has a lane, so much rate, and the entries for it left.
    pub fn check(&self, at: LinkIndex, share: u64) -> Result<(), Refusal> {
        let link = &self.links[at.index()];
        if link.lanes & !link.lanes_taken == 0 {
            return Err(Refusal::Lanes { link: at, lanes: link.lanes.count_ones() as u8 });
        }
        let free = link.usable - link.taken;
        if share > free {
            let [needed, free] = [share, free].map(Bandwidth::from_bits_per_s);
            return Err(Refusal::Bandwidth { link: at, needed, free });
        }
        if let Some((needed, held)) = link.buffer_short(share) {
            return Err(Refusal::Buffer { link: at, needed, held });
        }
        let (needed, free) =
            (entries_for(link.weight_of(share), self.table_entries), self.tables[at.index()].free());
        if needed > free {
            return Err(Refusal::Arbitration { link: at, needed, free });
        }
        Ok(())
    }

    /// Takes a lane, levels, rate and entries of a link that was [checked](Self::check); the lane and the entries of an
    /// earlier share, if they are free.
    pub fn take(
        &mut self,
        at: LinkIndex,
        share: u64,
        levels: u16,
        had: Option<&LinkShare>,
        moved: &mut Vec<Moved>,
    ) -> Result<LinkShare, Refusal> {
        debug_assert_eq!(self.check(at, share), Ok(()));
        let (link, table) = (&mut self.links[at.index()], &mut self.tables[at.index()]);
        let before = Some(*link).filter(|link| link.lanes_taken == 0 && had.is_none());
        if let Some(first) = &self.first
            && before == Some(first.before)
            && (first.share, first.levels) == (share, levels)
        {
            (*link, *table) = first.after;
            self.rooms.set(at, || link.room());
            return Ok(LinkShare { link: at, ..first.given });
        }
        let weight = link.weight_of(share);
        let count = entries_for(weight, self.table_entries);
        let distance = self.table_entries / count;
        let free = link.lanes & !link.lanes_taken;
        let lowest = VirtualLane::from_wire(free.trailing_zeros() as u8).expect("a lane is free");
        let had_lane = had.map(|had| had.lane).filter(|lane| free & (1 << lane.to_wire()) != 0);
        let lane = had_lane.unwrap_or(lowest);
        // With other distances, those that have the most entries in common with what there was.
        let first = had.map(|had| had.first_entry % distance);
        let sequence = match table.request_at(lane, distance, weight, first) {
            Err(TableError::Full { needed, free }) if needed <= free => {
                let before = *table;
                // What it has until then stays its own, so that everybody can move before anything is taken.
                let spared = had.map(|had| table.spared(had.first_entry, had.entries)).unwrap_or_default();
                moved.push(Moved { moves: (at, table.make_room(count, spared)), before });
                table.request(lane, distance, weight)
            }
            answer => answer,
        };
        let sequence =
            sequence.map_err(|_| Refusal::Arbitration { link: at, needed: count, free: table.free() })?;
        let first_entry = table.first_entry(lane).unwrap_or_default();
        link.taken += share;
        link.lanes_taken |= 1 << lane.to_wire();
        link.levels_taken |= levels;
        self.rooms.set(at, || link.room());
        let given = LinkShare {
            link: at,
            lane,
            service_levels: levels,
            share: Bandwidth::from_bits_per_s(share),
            entries: sequence.entries(),
            first_entry,
            weight: sequence.weight,
        };
        if let Some(before) = before {
            self.first = Some(First { before, share, levels, after: (*link, *table), given });
        }
        Ok(given)
    }

    /// Takes what a cluster had before, and tells where its entries begin: where they did, if those are free. `None`, and
    /// nothing is taken, if the rest is not free.
    pub fn take_again(&mut self, share: &LinkShare, first: Option<u8>, moved: &mut Vec<Moved>) -> Option<u8> {
        let entries = self.table_entries;
        let (link, table) = (&mut self.links[share.link.index()], &mut self.tables[share.link.index()]);
        let lane = 1u16 << share.lane.to_wire();
        let is_free = link.lanes & !link.lanes_taken & lane != 0
            && link.levels_taken & share.service_levels == 0
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
                moves: (share.link, table.make_room(share.entries, Spared::default())),
                before,
            });
            table.request(share.lane, distance, weight).ok()?;
        }
        link.taken += share.share.bits_per_s();
        link.lanes_taken |= lane;
        link.levels_taken |= share.service_levels;
        self.rooms.set(share.link, || link.room());
        table.first_entry(share.lane)
    }

    /// Takes back what [`Self::take`] gave.
    pub fn give_back(&mut self, share: &LinkShare) {
        let link = &mut self.links[share.link.index()];
        link.taken -= share.share.bits_per_s();
        link.lanes_taken &= !(1 << share.lane.to_wire());
        link.levels_taken &= !share.service_levels;
        self.rooms.set(share.link, || link.room());
        self.tables[share.link.index()].release(share.lane);
        if link.lanes_taken == 0 {
            self.tables[share.link.index()] = started(self.table_entries, link.lanes);
        }
    }

    /// Takes back what somebody was given who then was refused something else: all is as it was before.
    pub fn undo(&mut self, shares: &[LinkShare], moved: Vec<Moved>) {
        shares.iter().for_each(|share| self.give_back(share));
        for Moved { moves: (link, _), before } in moved {
            self.tables[link.index()] = before;
        }
    }

    /// Makes moves undone, the last one first, as far as their lanes still have what they were moved to.
    pub fn take_back_moves(&mut self, moves: &[LinkMoves]) {
        for (link, moves) in moves.iter().rev() {
            moves.iter().rev().for_each(|step| self.tables[link.index()].take_back(step));
        }
    }

    /// What links are like now.
    pub fn save(&self, links: impl Iterator<Item = LinkIndex>) -> Saved {
        let saved = links.map(|link| (link, self.links[link.index()], self.tables[link.index()]));
        Saved(saved.collect())
    }

    /// Makes links what they were like.
    pub fn restore(&mut self, saved: Saved) {
        for (at, link, table) in saved.0 {
            self.links[at.index()] = link;
            self.tables[at.index()] = table;
            self.rooms.set(at, || link.room());
        }
    }
}

/// What some ordered pairs of a cluster's hosts need of a link, if each host sends at a rate to all others evenly.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairDemand {
    /// Hosts that each sends to.
    others: u64,
    /// Bits per second that the pairs need if each host sent to one other only; 0 needs nothing.
    rate: u64,
    /// One over it, in parts of 2⁶⁴, rounded down.
    inverse: u64,
}

impl PairDemand {
    /// So many pairs of a cluster of so many hosts, that each send at a rate.
    pub fn new(rate: u64, hosts: u64, pairs: u64) -> Self {
        let rate = rate.saturating_mul(pairs.max(1));
        Self {
            others: hosts.saturating_sub(1),
            rate,
            inverse: u64::MAX.checked_div(rate).unwrap_or_default(),
        }
    }

    /// How often something below so many bits per second hold them.
    #[inline]
    pub fn times(&self, below: u64) -> u64 {
        if self.rate == 0 {
            return u64::MAX;
        }
        match below.checked_mul(self.others) {
            // Division is slow, and this is asked of many links: a guess that is one too low at most, put right.
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

/// Entries that carry a weight, of a table with so many.
fn entries_for(weight: u32, entries: u8) -> u8 {
    (weight.div_ceil(ENTRY_WEIGHT_MAX).next_power_of_two() as u8).min(entries)
}

/// A table in which best effort, and management where it has a lane of its own, have their entry.
fn started(entries: u8, cluster_lanes: u16) -> Table {
    let mut table = Table::new(entries).unwrap_or_else(|_| Table::new(8).expect("8 entries are possible"));
    let before = if cluster_lanes == 0 { 0 } else { cluster_lanes.trailing_zeros() as u8 };
    for lane in (0..before).filter_map(VirtualLane::from_wire) {
        table.request(lane, table.length(), LEAST_WEIGHT).expect("an empty table has room");
    }
    table
}

#[cfg(test)]
mod tests;
