//! Division of a cluster's entries in an arbitration table among its classes.
//!
//! An arbiter finishes the packet it began, so weights that are no multiple of the largest packet come out in other
//! proportions. Entries therefore carry whole packets of the usual full size. Of some numbers of packets, from what the
//! cluster sends in a round on, the one whose shares come closest to the wanted weights is taken, if the table still keeps
//! what was sold to all; shares are rounded by largest remainder. In a table without room for that, whole entries are dealt
//! out to the classes.

use crate::tenancy::arbitration::WEIGHT_BYTES;

/// Weight of one packet with 4096 bytes of payload, LRH, BTH and CRCs. With the largest headers it has the weight of one
/// more unit, and an entry for some packets still sends that many.
const PACKET: u32 = (4096_u64 + 26).div_ceil(WEIGHT_BYTES) as u32;

/// The largest weight of an entry.
const ENTRY_MAX: u32 = 255;

/// The most packets of an entry; the last one is begun with the rest of the weight.
const ENTRY_PACKETS: u32 = ENTRY_MAX.div_ceil(PACKET);

/// A cluster with a small share gets up to this many packets in a round, if that lets its classes come closer to their weights.
const PACKETS_TRIED: u32 = 16;

/// The entries of a cluster in a table, and the free ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterEntries<'a> {
    /// Positions of its entries.
    pub own: &'a [u8],
    /// Unused positions, the best first.
    pub free: &'a [u8],
    /// Weights of its entries, in the order of `own`.
    pub weights: &'a [u8],
    /// Whether the first class keeps all positions of the cluster, so that its packets wait no longer than before.
    pub keeps_own: bool,
}

/// An entry and the class it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub position: u8,
    pub class: usize,
    pub weight: u8,
}

/// The entries of all classes of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Division {
    pub entries: Vec<Entry>,
}

impl Division {
    /// The weight of each class per round.
    pub fn weights(&self, classes: usize) -> Vec<u32> {
        let mut weights = vec![0; classes];
        self.entries.iter().for_each(|entry| weights[entry.class] += u32::from(entry.weight));
        weights
    }

    fn weight(&self) -> u32 {
        self.entries.iter().map(|entry| u32::from(entry.weight)).sum()
    }
}

impl ClusterEntries<'_> {
    /// The division that comes closest to the weights, of those that `is_kept` accepts; `None` if there are too few entries.
    pub fn divided(&self, wanted: &[u32], is_kept: impl Fn(&Division) -> bool) -> Option<Division> {
        let least: u32 = self.weights.iter().map(|weight| u32::from(*weight)).sum();
        let first = (least / PACKET).max(wanted.len() as u32);
        let last = first + (wanted.len() + self.own.len()) as u32;
        let mut best: Option<(u128, u128, Division)> = None;
        for packets in first..=last.max(PACKETS_TRIED) {
            let of_classes = shared_out(packets, wanted);
            let Some(division) = self.laid_out(&of_classes, least) else { continue };
            let (off, whole) = distance(&of_classes, wanted);
            if best.as_ref().is_none_or(|(best, of, _)| off * of < best * whole) && is_kept(&division) {
                best = Some((off, whole, division));
            }
        }
        let dealt = || self.dealt(wanted).filter(&is_kept);
        best.map(|(.., division)| division).or_else(dealt)
    }

    /// The entries of the cluster as they are, dealt out to the classes; `None` if there are fewer than classes, or if the
    /// first class needs all of them.
    fn dealt(&self, wanted: &[u32]) -> Option<Division> {
        if self.keeps_own || self.own.len() < wanted.len() {
            return None;
        }
        let counts: Vec<usize> =
            shared_out(self.own.len() as u32, wanted).iter().map(|count| *count as usize).collect();
        let entries = self
            .own
            .iter()
            .zip(self.weights)
            .zip(interleaved(&counts))
            .map(|((position, weight), class)| Entry { position: *position, class, weight: *weight });
        Some(Division { entries: entries.collect() })
    }

    /// Entries for the given packets of each class, with a total weight of at least `least` where that is possible; `None`
    /// if there are too few entries.
    fn laid_out(&self, packets: &[u32], least: u32) -> Option<Division> {
        let (own, all) = (self.own.len(), self.own.len() + self.free.len());
        let mut counts: Vec<usize> =
            packets.iter().map(|packets| packets.div_ceil(ENTRY_PACKETS) as usize).collect();
        if self.keeps_own {
            if (packets[0] as usize) < own || counts[0] > own {
                return None;
            }
            counts[0] = own;
        }
        let mut division = self.with_entries(packets, &counts);
        // Until the cluster's own entries are used up and the weight suffices, further entries go to the class whose
        // entries carry the most packets. A full entry weighs less than its packets (255 instead of 260), so splitting it
        // adds weight; splitting others adds none.
        while counts.iter().sum::<usize>() < own
            || division.weight() < least && counts.iter().sum::<usize>() < all
        {
            let carries = |class: usize| packets[class].div_ceil(counts[class] as u32);
            let fullest =
                (usize::from(self.keeps_own)..counts.len()).rev().max_by_key(|class| carries(*class))?;
            if counts.iter().sum::<usize>() >= own && carries(fullest) < ENTRY_PACKETS {
                break;
            }
            counts[fullest] += 1;
            division = self.with_entries(packets, &counts);
        }
        (counts.iter().sum::<usize>() <= all).then_some(division)
    }

    /// `counts` entries that carry `packets` for each class, in own positions first and then in free ones.
    fn with_entries(&self, packets: &[u32], counts: &[usize]) -> Division {
        let order = if self.keeps_own { in_class_order(counts) } else { interleaved(counts) };
        let mut left: Vec<(u32, usize)> = packets.iter().copied().zip(counts.iter().copied()).collect();
        let entries = self.own.iter().chain(self.free).zip(order).map(|(position, class)| {
            let (packets, entries) = &mut left[class];
            let carried = packets.div_ceil(*entries as u32);
            (*packets, *entries) = (*packets - carried, *entries - 1);
            Entry { position: *position, class, weight: (carried * PACKET).min(ENTRY_MAX) as u8 }
        });
        Division { entries: entries.collect() }
    }
}

/// Packets for each class in proportion to the weights, at least one each.
fn shared_out(packets: u32, wanted: &[u32]) -> Vec<u32> {
    let all: u64 = wanted.iter().map(|weight| u64::from(*weight)).sum::<u64>().max(1);
    let part = |weight: &u32| u64::from(*weight) * u64::from(packets);
    let mut shares: Vec<u32> = wanted.iter().map(|weight| ((part(weight) / all) as u32).max(1)).collect();
    let missing = |class: usize, has: u32| part(&wanted[class]) as i128 - i128::from(has) * i128::from(all);
    loop {
        let total: u32 = shares.iter().sum();
        let classes = (0..shares.len()).rev();
        let chosen = match total.cmp(&packets) {
            std::cmp::Ordering::Equal => return shares,
            std::cmp::Ordering::Less => classes.max_by_key(|class| missing(*class, shares[*class])),
            std::cmp::Ordering::Greater => {
                classes.filter(|class| shares[*class] > 1).min_by_key(|class| missing(*class, shares[*class]))
            }
        };
        match chosen {
            Some(class) if total < packets => shares[class] += 1,
            Some(class) => shares[class] -= 1,
            None => return shares,
        }
    }
}

/// The distance of the packets' proportions from the weights', as numerator and denominator.
fn distance(packets: &[u32], wanted: &[u32]) -> (u128, u128) {
    let sum = |of: &[u32]| of.iter().map(|it| u128::from(*it)).sum::<u128>();
    let (packets_sum, wanted_sum) = (sum(packets), sum(wanted));
    let apart = |(packets, wanted): (&u32, &u32)| {
        (u128::from(*packets) * wanted_sum).abs_diff(u128::from(*wanted) * packets_sum)
    };
    (packets.iter().zip(wanted).map(apart).sum(), packets_sum * wanted_sum)
}

/// Each class `counts` times, class by class.
fn in_class_order(counts: &[usize]) -> Vec<usize> {
    (0..counts.len()).flat_map(|class| std::iter::repeat_n(class, counts[class])).collect()
}

/// Each class `counts` times, as evenly spread as possible.
fn interleaved(counts: &[usize]) -> Vec<usize> {
    let total = counts.iter().sum::<usize>();
    let mut credit: Vec<i64> = vec![0; counts.len()];
    let next_class = |_| {
        credit.iter_mut().zip(counts).for_each(|(credit, count)| *credit += *count as i64);
        let next = (0..credit.len()).rev().max_by_key(|class| credit[*class]).unwrap_or_default();
        credit[next] -= total as i64;
        next
    };
    (0..total).map(next_class).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn three_to_one_is_divided_in_whole_packets() {
        let own: Vec<u8> = (0..8).map(|at| 3 + 8 * at).collect();
        let entries = ClusterEntries { own: &own, free: &[1, 2], weights: &[215; 8], keeps_own: false };
        let division = entries.divided(&[3, 1], |_| true).unwrap();
        let weights = division.weights(2);
        assert!(weights.iter().sum::<u32>() >= 8 * 215, "{weights:?}");
        let ratio = f64::from(weights[0]) / f64::from(weights[1]);
        assert!((2.85..3.15).contains(&ratio), "{weights:?}");
        let lighter = entries.divided(&[1, 3], |_| true).unwrap().weights(2);
        assert!(lighter[0] < lighter[1], "{lighter:?}");
    }

    #[test]
    fn each_class_gets_a_packet_while_entries_are_free() {
        let entries = ClusterEntries { own: &[5], free: &[7], weights: &[65], keeps_own: false };
        let first = Entry { position: 5, class: 0, weight: 195 };
        let second = Entry { position: 7, class: 1, weight: 65 };
        assert_eq!(entries.divided(&[3, 1], |_| true), Some(Division { entries: vec![first, second] }));
        let equal = Division { entries: vec![Entry { weight: 65, ..first }, second] };
        assert_eq!(entries.divided(&[3, 1], |division| division.weight() < 195), Some(equal));
        assert_eq!(entries.divided(&[1, 1, 1], |_| true), None);
        assert_eq!(ClusterEntries { free: &[], ..entries }.divided(&[3, 1], |_| true), None);
    }

    #[test]
    fn the_first_class_keeps_its_positions_if_asked() {
        let entries =
            ClusterEntries { own: &[1, 33], free: &[9, 17, 25], weights: &[200; 2], keeps_own: true };
        let division = entries.divided(&[3, 1], |_| true).unwrap();
        let first = division.entries.iter().filter(|entry| entry.class == 0).map(|entry| entry.position);
        assert_eq!(first.collect::<Vec<u8>>(), [1, 33]);
        // With less than a packet for each of its entries it could not.
        assert_eq!(entries.divided(&[1, 9], |_| true), None);
        assert!(ClusterEntries { keeps_own: false, ..entries }.divided(&[1, 9], |_| true).is_some());
    }

    #[test]
    fn full_entries_that_weigh_too_little_are_split() {
        // 3 and 4 packets weigh 195 and 255, less than the previous 452, so that the 4 need two entries.
        let entries = ClusterEntries { own: &[0, 32], free: &[1, 2], weights: &[226; 2], keeps_own: false };
        let division = entries.divided(&[543, 699], |division| division.weight() < 452 + 65).unwrap();
        assert_eq!(division.weights(2), [195, 260]);
        assert_eq!(division.entries.len(), 3);
    }

    #[test]
    fn entries_are_dealt_out_if_their_weights_must_stay() {
        let own: Vec<u8> = (0..8).collect();
        let entries = ClusterEntries { own: &own, free: &[], weights: &[255; 8], keeps_own: false };
        let stays = |division: &Division| division.entries.iter().all(|entry| entry.weight == 255);
        assert_eq!(entries.divided(&[3, 1], stays).unwrap().weights(2), [6 * 255, 2 * 255]);
        assert_eq!(entries.divided(&[1; 9], stays), None);
    }

    proptest! {
        #[test]
        fn classes_keep_the_weight_of_their_cluster(
            power in 0..6_u32,
            weight in 65..=255_u8,
            free in 0..40_usize,
            wanted in proptest::collection::vec(1..=1000_u32, 2..6),
            keeps_own: bool,
        ) {
            let count = 1_u8 << power;
            let own: Vec<u8> = (0..count).map(|at| at * (64 / count)).collect();
            let free: Vec<u8> = (0..64).filter(|at| !own.contains(at)).take(free).collect();
            let weights = vec![weight; count.into()];
            let entries = ClusterEntries { own: &own, free: &free, weights: &weights, keeps_own };
            let least = u32::from(count) * u32::from(weight);
            let is_packets = |division: &Division| {
                division.weight() >= least && division.entries.iter().all(|entry| entry.weight >= 65)
            };
            let Some(division) = entries.divided(&wanted, is_packets) else {
                // Never for lack of weight.
                prop_assert!(keeps_own || free.len() < wanted.len());
                return Ok(());
            };
            prop_assert!(division.weights(wanted.len()).iter().all(|weight| *weight >= 65));
            let mut positions: Vec<u8> = division.entries.iter().map(|entry| entry.position).collect();
            positions.sort_unstable();
            positions.dedup();
            prop_assert_eq!(positions.len(), division.entries.len());
            prop_assert!(own.iter().all(|position| positions.contains(position)));
            prop_assert!(division.entries.iter().all(|entry| entry.weight > 0));
        }
    }
}
