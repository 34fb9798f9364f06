//! Reservations on every link: lanes, service levels, rates and longest waits.
//!
//! What is sold on a link is a list of [`LaneDemand`]s. A cluster is admitted if an arbitration table exists that keeps the
//! whole list ([`TableLimits::fits`]); the rate that is left on a link is the most that one more lane can be sold. What the
//! inputs of a switch may cost is added to the rate of a demand ([`KeptPart`]).

use std::collections::HashMap;

use fabric_model::intent::{LaneBuffer, PortName};
use fabric_model::tenancy::Bandwidth;
use ib_wire::{LaneSet, ServiceLevelSet, VirtualLane, VlArbEntry};

use super::admission::{LinkShare, Refusal};
use super::arbitration::{LaneDemand, PACKET_BYTES_MAX, TableLimits};
use super::link_graph::{DirectedLink, LinkGraph, LinkIndex};
use super::residual::{Residual, Residuals};
use super::switch_inputs::KeptPart;

/// The reservations on one link.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Link {
    table: TableLimits,
    /// What the inputs of the sending switch leave of the rates that its table gives.
    kept: KeptPart,
    /// The lanes that guaranteed clusters may have.
    lanes: LaneSet,
    sls_taken: ServiceLevelSet,
    /// The buffer of each lane at the receiving end, if known.
    buffer: Option<LaneBuffer>,
    /// What the reserved lanes and those of clusters are to get, in order of the lanes.
    sold: Vec<LaneDemand>,
    /// The longest wait of a cluster that has the link for itself, if no other can come.
    gap_bytes_alone: Option<u64>,
}

impl Link {
    fn new(link: &DirectedLink, kept: KeptPart) -> Self {
        Self {
            table: link.table,
            kept: if link.is_from_host() { KeptPart::ALL } else { kept },
            lanes: link.cluster_lanes(),
            sls_taken: ServiceLevelSet::EMPTY,
            buffer: link.buffer,
            sold: link.reserved().collect(),
            gap_bytes_alone: link.is_of_host.then(|| link.reserved_gap_bytes()),
        }
    }

    fn lanes_taken(&self) -> LaneSet {
        self.sold.iter().map(|demand| demand.lane).collect::<LaneSet>() & self.lanes
    }

    fn lanes_free(&self) -> LaneSet {
        self.lanes - self.lanes_taken()
    }

    /// The bytes that a reserved rate needs of a lane's buffer, and the size of the buffer, if it is too small.
    fn buffer_short(&self, share: u64) -> Option<(u64, u64)> {
        let buffer = self.buffer?;
        let needed = PACKET_BYTES_MAX + product_over(share, buffer.round_trip_ns.into(), BITS_NS);
        Some((needed, u64::from(buffer.bytes))).filter(|(needed, held)| held < needed)
    }

    /// The rate that a lane's buffer allows: it must hold what is sent in a credit round trip plus one packet.
    fn buffer_rate(&self) -> u64 {
        let Some(buffer) = self.buffer else { return u64::MAX };
        let under_way = u64::from(buffer.bytes).saturating_sub(PACKET_BYTES_MAX);
        under_way.saturating_mul(BITS_NS) / u64::from(buffer.round_trip_ns).max(1)
    }

    /// What a cluster is sold: a rate, and a wait if it asks for one. On a link of its own the wait costs nobody anything.
    fn demand(&self, lane: VirtualLane, share: u64, wait_ns: Option<u64>) -> LaneDemand {
        let wait_ns = wait_ns.or_else(|| Some(self.table.ns_of(self.gap_bytes_alone?)));
        let gap_bytes = wait_ns.map(|wait_ns| self.table.bytes_in(wait_ns));
        LaneDemand {
            lane,
            rate: self.kept.needed_for(share),
            gap_bytes: gap_bytes.filter(|gap| *gap < self.table.gap_bytes_max()),
        }
    }

    /// The rate that one more lane can be sold beside some demands; `None` if not even an entry is left.
    fn left(&self, sold: &[LaneDemand], lane: VirtualLane) -> Option<u64> {
        self.table.left(sold, lane).map(|left| self.kept.left_of(left))
    }

    /// The least wait that stands for the same demand.
    fn wait_ns(&self, demand: &LaneDemand) -> u64 {
        self.table.ns_of(demand.gap_bytes.unwrap_or_else(|| self.table.gap_bytes_max()))
    }

    fn add(&mut self, demand: LaneDemand, sls: ServiceLevelSet) {
        let at = self.sold.partition_point(|other| other.lane < demand.lane);
        self.sold.insert(at, demand);
        self.sls_taken |= sls;
    }

    fn with(&self, demand: LaneDemand) -> Vec<LaneDemand> {
        let at = self.sold.partition_point(|other| other.lane < demand.lane);
        let mut sold = Vec::with_capacity(self.sold.len() + 1);
        sold.extend_from_slice(&self.sold[..at]);
        sold.push(demand);
        sold.extend_from_slice(&self.sold[at..]);
        sold
    }
}

/// One byte per nanosecond, in bits per second.
const BITS_NS: u64 = 8_000_000_000;

/// Remembered answers for links on which the same was sold. Bounds memory.
const ANSWERS_MAX: usize = 1 << 16;

/// What is left for one more lane, by the limits of a link and the rates and gaps that were sold on it, in whatever lanes:
/// many links carry the same.
type Answers = HashMap<WhatIsSold, Option<u64>>;

type WhatIsSold = (TableLimits, Vec<(u64, Option<u64>)>);

fn what_is_sold(limits: &TableLimits, sold: &[LaneDemand]) -> WhatIsSold {
    let mut sold: Vec<_> = sold.iter().map(|demand| (demand.rate, demand.gap_bytes)).collect();
    sold.sort_unstable();
    (*limits, sold)
}

/// The reservations on all links.
#[derive(Clone, Debug)]
pub(super) struct Reservations {
    links: Vec<Link>,
    /// By link: the port that sends into it.
    ports: Vec<PortName>,
    residuals: Residuals,
    answers: Answers,
}

impl Reservations {
    pub fn new(graph: &LinkGraph) -> Self {
        // A packet may have come over any link.
        let input_lanes = graph.links().iter().map(DirectedLink::data_lanes).max().unwrap_or(0);
        let kept = KeptPart::of(graph.limits().hardware.switch_model, input_lanes);
        let links: Vec<Link> = graph.links().iter().map(|link| Link::new(link, kept)).collect();
        let ports = graph.links().iter().map(|link| link.from).collect();
        let residuals = Residuals::new(graph);
        let mut reservations = Self { links, ports, residuals, answers: HashMap::new() };
        for at in (0..graph.links().len() as u32).map(LinkIndex) {
            reservations.update_residual(at);
        }
        reservations
    }

    /// The rate that one cluster alone can reserve on a link.
    pub fn usable(&self, at: LinkIndex) -> u64 {
        let link = &self.links[at.index()];
        let reserved: Vec<LaneDemand> =
            link.sold.iter().filter(|demand| !link.lanes.contains(demand.lane)).copied().collect();
        let Some(lane) = link.lanes.first() else { return 0 };
        match self.answers.get(&what_is_sold(&link.table, &reserved)) {
            Some(answer) => answer.map_or(0, |left| link.kept.left_of(left)),
            None => link.left(&reserved, lane).unwrap_or(0),
        }
    }

    /// The port that sends into a link.
    pub fn port(&self, link: LinkIndex) -> PortName {
        self.ports[link.index()]
    }

    /// The rate that one more cluster can reserve on a link.
    pub fn left(&self, at: LinkIndex) -> u64 {
        let link = &self.links[at.index()];
        link.lanes_free().first().and_then(|lane| link.left(&link.sold, lane)).unwrap_or(0)
    }

    /// What was sold on a link, in order of the lanes, reserved ones first.
    pub fn sold(&self, link: LinkIndex) -> &[LaneDemand] {
        &self.links[link.index()].sold
    }

    /// The limits of the arbitration table of a link.
    pub fn limits(&self, link: LinkIndex) -> TableLimits {
        self.links[link.index()].table
    }

    /// The arbitration table of a link; `None` while no cluster uses it.
    pub fn table(&self, at: LinkIndex) -> Option<Vec<VlArbEntry>> {
        let link = &self.links[at.index()];
        if link.lanes_taken().is_empty() { None } else { link.table.compose(&link.sold) }
    }

    #[inline]
    pub fn sls_taken(&self, link: LinkIndex) -> ServiceLevelSet {
        self.links[link.index()].sls_taken
    }

    /// The residual capacity of the links between switches of a regular tree.
    pub fn residuals(&self) -> &Residuals {
        &self.residuals
    }

    /// The wait that a cluster is sold on a link if it may wait for `wait_ns`, or if it does not ask for less.
    pub fn wait_ns(&self, at: LinkIndex, wait_ns: Option<u64>) -> u64 {
        let link = &self.links[at.index()];
        let wait_ns = wait_ns.filter(|_| link.gap_bytes_alone.is_none());
        link.wait_ns(&link.demand(VirtualLane::default(), 0, wait_ns))
    }

    /// Checks that a link has a lane and the rate `share` left, with at most `wait_ns` between two visits if given.
    pub fn check(&self, at: LinkIndex, share: u64, wait_ns: Option<u64>) -> Result<(), Refusal> {
        let (link, port) = (&self.links[at.index()], self.port(at));
        if link.lanes.is_empty() {
            return Err(Refusal::NoLanes { port });
        }
        let Some(lane) = link.lanes_free().first() else {
            return Err(Refusal::NoLaneFree { port, lanes: link.lanes.len() as u8 });
        };
        if link.table.link_bits_per_s == 0 {
            return Err(Refusal::RateUnknown { port });
        }
        if let Some((needed, held)) = link.buffer_short(share) {
            return Err(Refusal::BufferTooSmall { port, needed, held });
        }
        let demand = link.demand(lane, share, wait_ns);
        if link.table.fits(&link.with(demand)) {
            return Ok(());
        }
        let is_late = demand.gap_bytes.is_some()
            && link.table.fits(&link.with(LaneDemand { gap_bytes: None, ..demand }));
        match link.left(&link.sold, lane) {
            _ if is_late => Err(Refusal::WaitTooShort { port, wait_ns: link.wait_ns(&demand) }),
            None => Err(Refusal::ArbitrationTableFull { port, needed: 1, free: 0 }),
            Some(free) => {
                let [needed, free] = [share, free].map(Bandwidth::from_bits_per_s);
                Err(Refusal::BandwidthShort { port, needed, free })
            }
        }
    }

    /// Reserves a lane, service levels, a rate and a wait on a link that was [checked](Self::check). Prefers the lane of the
    /// earlier share `had`.
    pub fn take(
        &mut self,
        at: LinkIndex,
        share: u64,
        wait_ns: Option<u64>,
        sls: ServiceLevelSet,
        had: Option<&LinkShare>,
    ) -> LinkShare {
        let link = &mut self.links[at.index()];
        let free = link.lanes_free();
        let had_lane = had.map(|had| had.lane).filter(|lane| free.contains(*lane));
        let lane = had_lane.unwrap_or_else(|| free.first().expect("a lane is free"));
        let demand = link.demand(lane, share, wait_ns);
        link.add(demand, sls);
        let wait_ns = link.wait_ns(&demand);
        self.update_residual(at);
        let share = Bandwidth::from_bits_per_s(share);
        LinkShare { link: at, lane, service_levels: sls, share, wait_ns }
    }

    /// Whether an earlier share can be reserved again.
    pub fn is_available(&self, share: &LinkShare) -> bool {
        let link = &self.links[share.link.index()];
        let rate = share.share.bits_per_s();
        let demand = link.demand(share.lane, rate, Some(share.wait_ns));
        link.lanes_free().contains(share.lane)
            && link.sls_taken.is_disjoint(share.service_levels)
            && link.buffer_short(rate).is_none()
            && link.table.fits(&link.with(demand))
    }

    /// Reserves an earlier share that [is available](Self::is_available).
    pub fn retake(&mut self, share: &LinkShare) {
        let link = &mut self.links[share.link.index()];
        let demand = link.demand(share.lane, share.share.bits_per_s(), Some(share.wait_ns));
        link.add(demand, share.service_levels);
        self.update_residual(share.link);
    }

    /// Releases what [`Self::take`] reserved.
    pub fn give_back(&mut self, share: &LinkShare) {
        let link = &mut self.links[share.link.index()];
        link.sold.retain(|demand| demand.lane != share.lane);
        link.sls_taken -= share.service_levels;
        self.update_residual(share.link);
    }

    fn update_residual(&mut self, at: LinkIndex) {
        let Self { links, residuals, answers, .. } = self;
        residuals.set(at, || residual(&links[at.index()], answers));
    }
}

fn residual(link: &Link, answers: &mut Answers) -> Residual {
    let mut left = None;
    if let Some(lane) = link.lanes_free().first().filter(|_| link.buffer_short(0).is_none()) {
        if answers.len() >= ANSWERS_MAX {
            answers.clear();
        }
        let answer = answers.entry(what_is_sold(&link.table, &link.sold));
        left = *answer.or_insert_with(|| link.table.left(&link.sold, lane));
    }
    let left = left.map(|left| link.kept.left_of(left));
    Residual {
        below: left.map_or(0, |left| left.min(link.buffer_rate()) + 1),
        sls_taken: link.sls_taken,
        lanes_taken: link.lanes_taken().len() as u8,
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
    (u128::from(a) * u128::from(b)).div_ceil(u128::from(c)) as u64
}

#[cfg(test)]
mod tests;
