//! What is taken of every link: rate, lanes, service levels, entries of its arbitration table.

use fabric_model::tenancy::Bandwidth;
use ib_wire::VirtualLane;

use super::arbitration::{OVERSHOOT_BYTES, PACKET_BYTES_MAX, Table, TableError, WEIGHT_BYTES};
use super::ledger::{LinkMoves, LinkShare, Refusal};
use super::network::{LinkIndex, Network};

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
#[derive(Clone, Debug)]
struct Link {
    usable: u64,
    taken: u64,
    lanes_taken: u16,
    levels_taken: u16,
    /// Lanes for guaranteed clusters, as bits.
    lanes: u16,
    scale: Scale,
    table: Option<Box<Table>>,
}

/// What is taken of every link.
#[derive(Clone, Debug)]
pub(super) struct Books {
    links: Vec<Link>,
    table_entries: u8,
}

impl Books {
    pub fn new(network: &Network) -> Self {
        let table_entries = network.limits().table_entries;
        let links = network.links().iter().map(|link| {
            let scale = Scale::of(table_entries, link.lanes + link.first_lane);
            Link {
                usable: link.rate.part(scale.usable).bits_per_s(),
                taken: 0,
                lanes_taken: 0,
                levels_taken: 0,
                lanes: (((1u32 << link.lanes) - 1) << link.first_lane) as u16 & 0x7fff,
                scale,
                table: None,
            }
        });
        Self { links: links.collect(), table_entries }
    }

    pub fn usable(&self, link: LinkIndex) -> u64 {
        self.links[link.index()].usable
    }

    pub fn left(&self, link: LinkIndex) -> u64 {
        let link = &self.links[link.index()];
        link.usable - link.taken
    }

    pub fn table(&self, link: LinkIndex) -> Option<&Table> {
        self.links[link.index()].table.as_deref()
    }

    #[inline]
    pub fn levels_taken(&self, link: LinkIndex) -> u16 {
        self.links[link.index()].levels_taken
    }

    /// How many ordered pairs of a cluster the link can carry if each host sends at a rate to so many others; 0 if it has
    /// no lane left, or one of some service levels belongs to another.
    #[inline]
    pub fn pairs_left(&self, link: LinkIndex, rate: u64, others: u64, levels: u16) -> u64 {
        let link = &self.links[link.index()];
        if link.lanes & !link.lanes_taken == 0 || link.levels_taken & levels != 0 {
            return 0;
        }
        if rate == 0 {
            return u64::MAX;
        }
        // A share is rounded down, so this many and a bit less than one bit more fit.
        ((u128::from(link.usable - link.taken) + 1) * u128::from(others)).div_ceil(u128::from(rate)) as u64
            - 1
    }

    /// How much of a link others have: of its lanes if nobody asks for rate, else what is free counts, so that links which
    /// are free altogether stay so.
    #[inline]
    pub fn taken(&self, link: LinkIndex, rate: u64) -> u32 {
        let link = &self.links[link.index()];
        if rate == 0 {
            return link.lanes_taken.count_ones();
        }
        ((link.usable - link.taken) * 1000 / link.usable.max(1)) as u32
    }

    /// Whether a link has a lane and so much rate left.
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
        Ok(())
    }

    /// Takes a lane, levels, rate and entries.
    pub fn take(
        &mut self,
        at: LinkIndex,
        share: u64,
        levels: u16,
        moves: &mut Vec<LinkMoves>,
    ) -> Result<LinkShare, Refusal> {
        self.check(at, share)?;
        let entries = self.table_entries;
        let link = &mut self.links[at.index()];
        let lane = (link.lanes & !link.lanes_taken).trailing_zeros() as u8;
        let part =
            (u128::from(share) * u128::from(link.scale.weight)).div_ceil(u128::from(link.usable.max(1)));
        let weight = LEAST_WEIGHT + part as u32;
        let count = (weight.div_ceil(ENTRY_WEIGHT_MAX).next_power_of_two() as u8).min(entries);
        let table = link.table.get_or_insert_with(|| Box::new(started(entries, link.lanes)));
        let lane = VirtualLane::from_wire(lane).expect("a lane is free");
        let sequence = match table.request(lane, entries / count, weight) {
            Err(TableError::Full { needed, free }) if needed <= free => {
                moves.push((at, table.defragment()));
                table.request(lane, entries / count, weight)
            }
            answer => answer,
        };
        let sequence =
            sequence.map_err(|_| Refusal::Arbitration { link: at, needed: count, free: table.free() })?;
        link.taken += share;
        link.lanes_taken |= 1 << lane.to_wire();
        link.levels_taken |= levels;
        Ok(LinkShare {
            link: at,
            lane,
            service_levels: levels,
            share: Bandwidth::from_bits_per_s(share),
            entries: sequence.entries(),
            weight: sequence.weight,
        })
    }

    /// Takes what a cluster had before; `None`, and nothing is taken, if that is not free.
    pub fn take_again(&mut self, share: &LinkShare) -> Option<()> {
        let entries = self.table_entries;
        let link = &mut self.links[share.link.index()];
        let lane = 1u16 << share.lane.to_wire();
        let is_free = link.lanes & !link.lanes_taken & lane != 0
            && link.levels_taken & share.service_levels == 0
            && share.share.bits_per_s() <= link.usable - link.taken
            && share.entries.is_power_of_two()
            && share.entries <= entries;
        if !is_free {
            return None;
        }
        let table = link.table.get_or_insert_with(|| Box::new(started(entries, link.lanes)));
        let weight = u32::from(share.entries) * u32::from(share.weight);
        if table.request(share.lane, entries / share.entries, weight).is_err() {
            table.defragment();
            table.request(share.lane, entries / share.entries, weight).ok()?;
        }
        link.taken += share.share.bits_per_s();
        link.lanes_taken |= lane;
        link.levels_taken |= share.service_levels;
        Some(())
    }

    /// Takes back what [`Self::take`] gave.
    pub fn give_back(&mut self, share: &LinkShare) {
        let link = &mut self.links[share.link.index()];
        link.taken -= share.share.bits_per_s();
        link.lanes_taken &= !(1 << share.lane.to_wire());
        link.levels_taken &= !share.service_levels;
        if let Some(table) = &mut link.table {
            table.release(share.lane);
        }
        if link.lanes_taken == 0 {
            link.table = None;
        }
    }
}

/// A table in which best effort, and management where it has a lane of its own, have their entry.
fn started(entries: u8, cluster_lanes: u16) -> Table {
    let mut table = Table::new(entries).unwrap_or_else(|_| Table::new(8).expect("8 entries are possible"));
    for lane in (0..cluster_lanes.trailing_zeros() as u8).filter_map(VirtualLane::from_wire) {
        table.request(lane, table.length(), LEAST_WEIGHT).expect("an empty table has room");
    }
    table
}
