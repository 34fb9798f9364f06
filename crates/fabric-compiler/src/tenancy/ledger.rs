//! Who owns what on every link.
//!
//! On every directed link a lane and a service level belong to one cluster at most. A guest that uses a level of its
//! cluster towards any address stays in its cluster's lane, or is dropped where the level was not granted.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fabric_model::intent::PortName;
use fabric_model::plan::LinearTable;
use fabric_model::tenancy::{Bandwidth, ClusterNumber, LinkGrant, PairLevel, SlMode};
use ib_wire::{Guid, ServiceLevel, VirtualLane};

use super::arbitration::{Move, Table};
use super::books::Moved;
use super::choice::{Chosen, Outlook};
use super::network::{HostIndex, LinkIndex, Network};
use super::shares::{Shares, lowest};
use super::tree::Way;

pub(super) use super::books::Books;
pub use super::refusal::Refusal;

/// Service levels for which other ways are looked for, if none is free on the best ones: bounds how long a decision takes.
const LEVELS_TRIED_MAX: usize = 3;

/// By which ways a cluster's packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routes {
    /// As the forwarding tables say.
    Given,
    /// By ways that are chosen for the cluster, where the switches form a regular tree; else as given.
    Chosen,
}

/// A guaranteed cluster that wants in.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its number, which no other has.
    pub cluster: ClusterNumber,
    /// Its hosts. They belong to it alone.
    pub hosts: &'a [HostIndex],
    /// What every host can sustain while all send to all others evenly.
    pub bandwidth: Bandwidth,
    /// How its packets are told from others'.
    pub mode: SlMode,
    /// By which ways they go.
    pub routes: Routes,
}

/// What a cluster has of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkShare {
    /// The link.
    pub link: LinkIndex,
    /// Its lane.
    pub lane: VirtualLane,
    /// Its service levels here, as bits.
    pub service_levels: u16,
    /// The rate kept for it.
    pub share: Bandwidth,
    /// Entries of the arbitration table that serve its lane.
    pub entries: u8,
    /// The position of the first of them; the others follow at equal distances.
    pub first_entry: u8,
    /// Weight of each.
    pub weight: u8,
}

/// The service levels between the hosts on two switches, the lower place first, in both directions; also of each switch with
/// itself.
pub type PairLevels = BTreeMap<(u32, u32), ServiceLevel>;

/// The service level of a path. All hosts of a leaf use the same towards a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathLevel {
    /// The switch of the senders.
    pub from: u32,
    /// The receiver.
    pub to: HostIndex,
    /// Their level.
    pub service_level: ServiceLevel,
}

/// What a cluster was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whose it is.
    pub cluster: ClusterNumber,
    /// Its hosts in order.
    pub hosts: Vec<HostIndex>,
    /// What every host can sustain.
    pub bandwidth: Bandwidth,
    /// The level of all its packets, unless every two switches have their own.
    pub service_level: Option<ServiceLevel>,
    /// The levels between its switches, where every two have their own.
    pub pairs: PairLevels,
    /// The levels of its paths, where each direction has its own.
    pub paths: Vec<PathLevel>,
    /// The ways to its hosts, if they were chosen.
    pub ways: Option<Vec<Way>>,
    /// Its links in order.
    pub links: Vec<LinkShare>,
}

impl Grant {
    /// The same in the words of plans.
    pub fn link_grants<'a>(&'a self, network: &'a Network) -> impl Iterator<Item = LinkGrant> + 'a {
        self.links.iter().map(|share| LinkGrant {
            port: network.links()[share.link.index()].from,
            lane: share.lane,
            service_levels: levels(share.service_levels).collect(),
            share: share.share,
            entries: share.entries,
            first_entry: Some(share.first_entry),
            weight: share.weight,
        })
    }

    /// The levels between its switches in the words of plans.
    pub fn pair_levels(&self, network: &Network) -> Vec<PairLevel> {
        if self.pairs.is_empty() {
            return Vec::new();
        }
        let guids: HashMap<u32, Guid> =
            self.hosts.iter().map(|host| (network.switch_of(*host), network.switch_guid(*host))).collect();
        let pairs = self.pairs.iter().map(|((a, b), level)| PairLevel {
            switches: PairLevel::between(guids[a], guids[b]),
            service_level: *level,
        });
        let mut pairs: Vec<PairLevel> = pairs.collect();
        pairs.sort_unstable_by_key(|pair| pair.switches);
        pairs
    }

    /// What it has of a link.
    pub fn share(&self, link: LinkIndex) -> Option<&LinkShare> {
        let place = self.links.binary_search_by_key(&link, |share| share.link).ok()?;
        self.links.get(place)
    }
}

/// The service levels of some bits.
pub fn levels(bits: u16) -> impl Iterator<Item = ServiceLevel> {
    (0..16).filter(move |level| bits & (1 << level) != 0).filter_map(ServiceLevel::from_wire)
}

/// What of an earlier grant is to stay.
#[derive(Clone, Copy, Debug)]
enum Keep<'a> {
    Nothing,
    /// Service levels, and lanes and entries where they are free.
    Levels(&'a Grant),
    /// These, and the ways to hosts that stay.
    Ways(&'a Grant),
}

impl Keep<'_> {
    fn grant(&self) -> Option<&Grant> {
        match self {
            Self::Nothing => None,
            Self::Levels(grant) | Self::Ways(grant) => Some(grant),
        }
    }

    fn level(&self) -> Option<ServiceLevel> {
        self.grant()?.service_level
    }

    fn paths(&self) -> BTreeMap<(u32, HostIndex), ServiceLevel> {
        let paths = self.grant().map_or(&[][..], |grant| &grant.paths);
        paths.iter().map(|path| ((path.from, path.to), path.service_level)).collect()
    }

    /// What hosts on two switches had, the one level of all if there was one.
    fn pair(&self, switches: (u32, u32)) -> Option<ServiceLevel> {
        let grant = self.grant()?;
        grant.pairs.get(&switches).copied().or(grant.service_level)
    }

    /// By host.
    fn ways(&self, hosts: &[HostIndex]) -> Vec<Option<Way>> {
        let Self::Ways(Grant { hosts: had, ways: Some(ways), .. }) = self else { return Vec::new() };
        hosts.iter().map(|host| had.binary_search(host).ok().map(|place| ways[place])).collect()
    }
}

/// A table of a link whose sequences had to be moved to make room.
pub type LinkMoves = (LinkIndex, Vec<Move>);

/// Who owns what on every link.
#[derive(Debug)]
pub struct Ledger {
    network: Arc<Network>,
    books: Books,
    shares: Shares,
    /// The owner of each host.
    owners: Vec<Option<ClusterNumber>>,
    grants: BTreeMap<ClusterNumber, Grant>,
    /// Whether levels of paths hold in one direction only.
    has_one_way_levels: bool,
}

impl Ledger {
    /// Nobody owns anything.
    pub fn new(network: Arc<Network>) -> Self {
        let books = Books::new(&network);
        let shares = Shares::new(network.links().len());
        let owners = vec![None; network.hosts().len()];
        Self { network, books, shares, owners, grants: BTreeMap::new(), has_one_way_levels: false }
    }

    /// The same where each direction of a path has a level of its own: what a fabric would take if connections were
    /// answered at another level than they were asked at. Plans have no such levels.
    #[must_use]
    pub fn with_one_way_levels(self) -> Self {
        Self { has_one_way_levels: true, ..self }
    }

    /// The fabric it is about.
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// What clusters have, by number.
    pub fn grants(&self) -> &BTreeMap<ClusterNumber, Grant> {
        &self.grants
    }

    /// Who owns a host.
    pub fn owner(&self, host: HostIndex) -> Option<ClusterNumber> {
        self.owners[host.index()]
    }

    /// What guaranteed clusters may have of a link together.
    pub fn usable(&self, link: LinkIndex) -> Bandwidth {
        Bandwidth::from_bits_per_s(self.books.usable(link))
    }

    /// What a link has left for guaranteed clusters.
    pub fn left(&self, link: LinkIndex) -> Bandwidth {
        Bandwidth::from_bits_per_s(self.books.left(link))
    }

    /// What is taken of every link.
    pub(super) fn books(&self) -> &Books {
        &self.books
    }

    /// The arbitration table of a link; `None` while no cluster uses it.
    pub fn table(&self, link: LinkIndex) -> Option<&Table> {
        self.books.table(link)
    }

    /// Gives a cluster what it wants on all links, or nothing. Entries of arbitration tables that had to be moved to
    /// make room are told; nothing else of other clusters changes.
    pub fn admit(&mut self, request: Request<'_>) -> Result<(&Grant, Vec<LinkMoves>), Refusal> {
        let (grant, moved) = self.decide(request, Keep::Nothing)?;
        let cluster = grant.cluster;
        self.enter(grant);
        let moves = self.note(moved);
        Ok((&self.grants[&cluster], moves))
    }

    /// Gives a cluster that is admitted other hosts or another rate. It keeps its service level, its lanes where it passes
    /// the same links, and its ways to hosts that stay unless the rate needs others. If it is refused, all is as before.
    pub fn change(&mut self, request: Request<'_>) -> Result<(&Grant, Vec<LinkMoves>), Refusal> {
        let saved = self.books.save(self.links_of(request.cluster)?);
        let before = self.release(request.cluster).ok_or(Refusal::Unknown(request.cluster))?;
        match self.decide_keeping(request, &before) {
            Ok((grant, moved)) => {
                self.enter(grant);
                let moves = self.note(moved);
                Ok((&self.grants[&request.cluster], moves))
            }
            Err(refusal) => {
                self.books.restore(saved);
                self.enter(before);
                Err(refusal)
            }
        }
    }

    /// Whether [`Self::change`] would do it; nothing is changed.
    pub fn check_change(&mut self, request: Request<'_>) -> Result<(), Refusal> {
        let saved = self.books.save(self.links_of(request.cluster)?);
        let before = self.release(request.cluster).ok_or(Refusal::Unknown(request.cluster))?;
        let answer = self.decide_keeping(request, &before);
        let answer = answer.map(|(grant, moved)| self.books.undo(&grant.links, moved));
        self.books.restore(saved);
        self.enter(before);
        answer
    }

    fn links_of(&self, cluster: ClusterNumber) -> Result<impl Iterator<Item = LinkIndex> + '_, Refusal> {
        let grant = self.grants.get(&cluster).ok_or(Refusal::Unknown(cluster))?;
        Ok(grant.links.iter().map(|share| share.link))
    }

    fn decide_keeping(
        &mut self,
        request: Request<'_>,
        before: &Grant,
    ) -> Result<(Grant, Vec<Moved>), Refusal> {
        let first = self.decide(request, Keep::Ways(before));
        first.or_else(|refusal| self.decide(request, Keep::Levels(before)).map_err(|_| refusal))
    }

    /// Enters who owns what; the books have it already.
    fn enter(&mut self, grant: Grant) {
        for host in &grant.hosts {
            self.owners[host.index()] = Some(grant.cluster);
        }
        self.grants.insert(grant.cluster, grant);
    }

    /// Enters where the entries of others are now that were moved.
    fn note(&mut self, moved: Vec<Moved>) -> Vec<LinkMoves> {
        let moves: Vec<LinkMoves> = moved.into_iter().map(|moved| moved.moves).collect();
        self.enter_places(&moves);
        moves
    }

    fn enter_places(&mut self, moves: &[LinkMoves]) {
        for (link, _) in moves {
            let Some(table) = self.books.table(*link) else { continue };
            for grant in self.grants.values_mut() {
                let place = grant.links.binary_search_by_key(link, |share| share.link);
                if let Some(share) = place.ok().and_then(|place| grant.links.get_mut(place)) {
                    share.first_entry = table.first_entry(share.lane).unwrap_or(share.first_entry);
                }
            }
        }
    }

    /// Makes moves undone that were told, when everybody who was admitted since has been released again.
    pub(crate) fn take_back_moves(&mut self, moves: &[LinkMoves]) {
        self.books.take_back_moves(moves);
        self.enter_places(moves);
    }

    /// Takes of all links what a cluster wants, or nothing.
    fn decide(&mut self, request: Request<'_>, keep: Keep<'_>) -> Result<(Grant, Vec<Moved>), Refusal> {
        let hosts = self.check_hosts(request)?;
        let chosen = self.chosen(request, &hosts, keep)?;
        let levels = self.network.limits().service_levels.min(15);
        let all_levels = ((1u32 << (levels + 1)) - 2) as u16;
        let rate = request.bandwidth.bits_per_s();
        match &chosen {
            Some((chosen, _)) => self.shares.of_ways(&self.network, &hosts, chosen),
            None => self.shares.of_routes(&self.network, &hosts)?,
        }
        for (link, pairs) in self.shares.pairs() {
            self.books.check(link, share_of(pairs, rate, hosts.len()))?;
        }
        let ways = chosen.as_ref().map(|(chosen, _)| chosen.ways.as_slice());
        let (mut pairs, mut paths) = (PairLevels::new(), Vec::new());
        let service_level = match (request.mode, &chosen) {
            (SlMode::Cluster, Some((_, Some(level)))) => Some(*level),
            (SlMode::Cluster, _) => {
                let kept = keep.level().map_or(all_levels, |level| 1 << level.to_wire());
                Some(self.one_level(all_levels & kept, levels)?)
            }
            (SlMode::Path, _) => {
                let (network, books) = (&self.network, &self.books);
                if self.has_one_way_levels {
                    let had = keep.paths();
                    paths = self.shares.path_levels(network, books, &hosts, ways, all_levels, &had)?;
                } else {
                    let had = |switches| keep.pair(switches);
                    pairs = self.shares.pair_levels(network, books, &hosts, ways, all_levels, had)?;
                }
                None
            }
        };
        let everywhere = service_level.map_or(0, |level| 1 << level.to_wire());
        let mut links = Vec::with_capacity(self.shares.pairs().len());
        let mut moved = Vec::new();
        for (link, pairs, own_levels) in self.shares.sorted() {
            let share = share_of(pairs, rate, hosts.len());
            let had = keep.grant().and_then(|had| had.share(link));
            match self.books.take(link, share, own_levels | everywhere, had, &mut moved) {
                Ok(taken) => links.push(taken),
                Err(refusal) => {
                    self.books.undo(&links, moved);
                    return Err(refusal);
                }
            }
        }
        let ways = chosen.map(|(chosen, _)| chosen.ways);
        let Request { cluster, bandwidth, .. } = request;
        Ok((Grant { cluster, hosts, bandwidth, service_level, pairs, paths, ways, links }, moved))
    }

    /// Gives a cluster what it had before: the same lanes, levels and weights on the same links, and the same entries of
    /// arbitration tables where they are free. `None`, and nothing is given, if its packets take other links by now, or
    /// something of it is not free, or levels between switches are missing. Entries of others that had to be moved are told.
    pub fn admit_again(
        &mut self,
        request: Request<'_>,
        links: &[LinkGrant],
        pairs: &[PairLevel],
    ) -> Option<(&Grant, Vec<LinkMoves>)> {
        let hosts = self.check_hosts(request).ok()?;
        self.shares.of_routes(&self.network, &hosts).ok()?;
        let is_path = request.mode == SlMode::Path;
        let pairs = if is_path { self.pairs_again(&hosts, pairs)? } else { PairLevels::new() };
        let rate = request.bandwidth.bits_per_s();
        let mut had: HashMap<PortName, &LinkGrant> = links.iter().map(|grant| (grant.port, grant)).collect();
        let wanted: Option<Vec<(LinkShare, Option<u8>)>> = (self.shares.sorted().into_iter())
            .map(|(link, pairs, levels)| {
                let grant = had.remove(&self.network.links()[link.index()].from)?;
                let service_levels =
                    grant.service_levels.iter().fold(0, |bits, level| bits | 1 << level.to_wire());
                let share = Bandwidth::from_bits_per_s(share_of(pairs, rate, hosts.len()));
                let LinkGrant { lane, entries, first_entry: first, weight, .. } = *grant;
                let first_entry = first.unwrap_or_default();
                let again = LinkShare { link, lane, service_levels, share, entries, first_entry, weight };
                let is_same = grant.share == share && (!is_path || service_levels == levels);
                is_same.then_some((again, first))
            })
            .collect();
        let wanted = wanted.filter(|_| had.is_empty())?;
        let mut moved = Vec::new();
        let mut links = Vec::with_capacity(wanted.len());
        for (share, first) in wanted {
            let Some(first_entry) = self.books.take_again(&share, first, &mut moved) else {
                self.books.undo(&links, moved);
                return None;
            };
            links.push(LinkShare { first_entry, ..share });
        }
        let everywhere = links.iter().fold(u16::MAX, |bits, share| bits & share.service_levels);
        let Request { cluster, bandwidth, .. } = request;
        let service_level = lowest(everywhere).filter(|_| !is_path);
        let (paths, ways) = (Vec::new(), None);
        self.enter(Grant { cluster, hosts, bandwidth, service_level, pairs, paths, ways, links });
        let moves = self.note(moved);
        Some((self.grants.get(&cluster)?, moves))
    }

    /// The levels that a plan has between the switches of some hosts; `None` if it lacks one, or has others.
    fn pairs_again(&mut self, hosts: &[HostIndex], pairs: &[PairLevel]) -> Option<PairLevels> {
        let network = &self.network;
        let places: HashMap<Guid, u32> =
            hosts.iter().map(|host| (network.switch_guid(*host), network.switch_of(*host))).collect();
        let place = |pair: &PairLevel| {
            let (a, b) = (*places.get(&pair.switches.0)?, *places.get(&pair.switches.1)?);
            Some(((a.min(b), a.max(b)), pair.service_level))
        };
        let had: PairLevels = pairs.iter().map(place).collect::<Option<_>>()?;
        let again = self.shares.put_pair_levels(network, hosts, |switches| had.get(&switches).copied())?;
        (again.len() == pairs.len()).then_some(again)
    }

    /// Takes back all that a cluster had; `None` if it has nothing.
    pub fn release(&mut self, cluster: ClusterNumber) -> Option<Grant> {
        let grant = self.grants.remove(&cluster)?;
        grant.links.iter().for_each(|share| self.books.give_back(share));
        grant.hosts.iter().for_each(|host| self.owners[host.index()] = None);
        Some(grant)
    }

    /// Gives a cluster back what [`Self::release`] took from it, while nobody else has got it.
    pub(crate) fn restore(&mut self, grant: Grant) {
        let mut moved = Vec::new();
        for share in &grant.links {
            let first = self.books.take_again(share, Some(share.first_entry), &mut moved);
            assert_eq!(first, Some(share.first_entry), "what was released is free");
        }
        grant.hosts.iter().for_each(|host| self.owners[host.index()] = Some(grant.cluster));
        self.grants.insert(grant.cluster, grant);
    }

    /// Gives a switch of the network another forwarding table.
    pub(crate) fn set_table(&mut self, switch: usize, table: &Arc<LinearTable>) {
        Arc::make_mut(&mut self.network).set_table(switch, table);
    }

    /// The hosts in order, if the cluster can have them.
    fn check_hosts(&self, request: Request<'_>) -> Result<Vec<HostIndex>, Refusal> {
        if self.grants.contains_key(&request.cluster) {
            return Err(Refusal::Known(request.cluster));
        }
        let mut hosts = request.hosts.to_vec();
        hosts.sort_unstable();
        let exists = hosts.last().is_some_and(|last| last.index() < self.owners.len());
        if !exists || hosts.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Refusal::Hosts);
        }
        for host in &hosts {
            if let Some(cluster) = self.owner(*host) {
                return Err(Refusal::HostTaken { host: self.guid(*host), cluster });
            }
        }
        Ok(hosts)
    }

    /// The ways to the hosts if they are to be chosen, and the service level if the cluster has one.
    fn chosen(
        &self,
        request: Request<'_>,
        hosts: &[HostIndex],
        keep: Keep<'_>,
    ) -> Result<Option<(Chosen, Option<ServiceLevel>)>, Refusal> {
        let Some(tree) = self.network.tree().filter(|_| request.routes == Routes::Chosen) else {
            return Ok(None);
        };
        let kept = keep.ways(hosts);
        let no_way = |to| Refusal::NoWay { to: self.guid(to), bandwidth: request.bandwidth };
        let rate = request.bandwidth.bits_per_s();
        let mut outlook = Outlook::new(tree, &self.books, hosts, rate).map_err(no_way)?;
        if let Some(level) = keep.level().filter(|_| request.mode == SlMode::Cluster) {
            let chosen = outlook.choose(1 << level.to_wire(), &kept).map_err(no_way)?;
            return Ok(Some((chosen, Some(level))));
        }
        if request.mode == SlMode::Path {
            return Ok(Some((outlook.choose(0, &kept).map_err(no_way)?, None)));
        }
        let usable = || levels(u16::MAX).skip(1).take(self.network.limits().service_levels.into());
        let bits = usable().fold(0, |bits, level| bits | 1 << level.to_wire());
        let is_taken = outlook.levels_free(bits) == 0;
        let roomy = if is_taken { outlook.levels_by_room(usable()) } else { Vec::new() };
        // Ways of as many hosts as there are up-ports that are chosen without regard to levels hardly ever leave one free.
        let mut candidates = if is_taken && (roomy.is_empty() || hosts.len() >= tree.leaf_ups) {
            roomy
        } else {
            let any = outlook.choose(0, &kept).map_err(no_way)?;
            let taken = any.pairs.iter().fold(0, |taken, (link, _)| taken | self.books.levels_taken(*link));
            if let Some(level) = lowest(bits & !taken) {
                return Ok(Some((any, Some(level))));
            }
            self.levels_by_conflicts(&any, usable())
        };
        candidates.truncate(LEVELS_TRIED_MAX);
        let mut failed = hosts[0];
        for level in candidates {
            match outlook.choose(1 << level.to_wire(), &kept) {
                Ok(chosen) => return Ok(Some((chosen, Some(level)))),
                Err(host) => failed = host,
            }
        }
        Err(no_way(failed))
    }

    /// Levels, those first that others have on the fewest links, then the lowest.
    fn levels_by_conflicts(
        &self,
        chosen: &Chosen,
        usable: impl Iterator<Item = ServiceLevel>,
    ) -> Vec<ServiceLevel> {
        let mut conflicts = [0u32; 16];
        for (link, _) in &chosen.pairs {
            levels(self.books.levels_taken(*link)).for_each(|level| conflicts[level.index()] += 1);
        }
        let mut levels: Vec<ServiceLevel> = usable.collect();
        levels.sort_by_key(|level| (conflicts[level.index()], *level));
        levels
    }

    /// The lowest level that is free on all links.
    fn one_level(&self, all: u16, count: u8) -> Result<ServiceLevel, Refusal> {
        let (mut free, mut worst) = (all, (u32::MAX, LinkIndex(0)));
        for (link, _) in self.shares.pairs() {
            let here = all & !self.books.levels_taken(link);
            free &= here;
            worst = worst.min((here.count_ones(), link));
        }
        lowest(free).ok_or(Refusal::ServiceLevels { link: worst.1, free: worst.0 as u8, levels: count })
    }

    fn guid(&self, host: HostIndex) -> Guid {
        self.network.hosts()[host.index()].port
    }
}

/// What so many ordered pairs of a cluster's hosts need of a link, if each host sends at a rate to all others evenly;
/// rounded down to whole bits per second.
fn share_of(pairs: u64, rate: u64, hosts: usize) -> u64 {
    let others = hosts.saturating_sub(1).max(1) as u64;
    match pairs.checked_mul(rate) {
        Some(product) => product / others,
        None => (u128::from(pairs) * u128::from(rate) / u128::from(others)) as u64,
    }
}
