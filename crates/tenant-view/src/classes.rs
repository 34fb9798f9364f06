//! Classes of service: read from SL-to-VL and arbitration tables, and fitted to the available lanes.

use std::collections::BTreeMap;

use fabric_sim::{Fabric, PortId};
use ib_wire::{PortNum, ServiceLevel, VirtualLane};

use crate::overlay::OverlayClass;
use crate::verdict::{Adaptation, EgressPort};

/// The classes of an output port for packets from an input port: service levels that share a lane, with the lane's
/// weight.
pub(crate) fn of(fabric: &Fabric, input: PortNum, output: PortId) -> Vec<OverlayClass> {
    let lanes = fabric.lanes_of(input, output);
    let (low, high) = fabric.arbitration_of(output);
    let count = fabric.lane_count_of(output);
    let mut classes: BTreeMap<VirtualLane, OverlayClass> = BTreeMap::new();
    for level in (0..16).filter_map(ServiceLevel::from_wire) {
        let lane = lanes.lane(level);
        if lane.to_wire() < count {
            let class = classes.entry(lane).or_insert(OverlayClass { service_levels: Vec::new(), weight: 0 });
            class.service_levels.push(level);
        }
    }
    for entry in low.iter().chain(&high) {
        if let Some(class) = classes.get_mut(&entry.lane) {
            class.weight += u32::from(entry.weight);
        }
    }
    classes.into_values().collect()
}

/// Whether two lists describe the same classes: the same service levels together, with weights in the same
/// proportion.
pub(crate) fn are_alike(these: &[OverlayClass], those: &[OverlayClass]) -> bool {
    let by_levels = |classes: &[OverlayClass]| -> BTreeMap<Vec<ServiceLevel>, u64> {
        classes.iter().map(|class| (class.service_levels.clone(), class.weight.into())).collect()
    };
    let (these, those) = (by_levels(these), by_levels(those));
    let (sum, other_sum) = (these.values().sum::<u64>(), those.values().sum::<u64>());
    these.len() == those.len()
        && these
            .iter()
            .all(|(levels, weight)| those.get(levels).is_some_and(|other| weight * other_sum == other * sum))
}

/// Merges the classes with the least weight until there are at most `max` (at least one).
pub fn fold_classes(classes: &[OverlayClass], max: usize) -> Vec<OverlayClass> {
    fit(classes, max, None).0
}

/// Fits classes to `max` lanes: merges those with the least weight, and raises weight 0 to 1. `link` is named in the
/// adaptation.
pub(crate) fn fit(
    requested: &[OverlayClass],
    max: usize,
    link: Option<EgressPort>,
) -> (Vec<OverlayClass>, Vec<Adaptation>) {
    let mut adaptations = Vec::new();
    let mut classes = requested.to_vec();
    let max = max.max(1);
    if classes.len() > max {
        adaptations.push(Adaptation::ClassesFolded { wanted: classes.len(), given: max, link });
    }
    while classes.len() > max {
        // The heaviest first; classes of equal weight keep their order.
        classes.sort_by_key(|class| std::cmp::Reverse(class.weight));
        if let (Some(last), Some(before)) = (classes.pop(), classes.last_mut()) {
            before.weight = before.weight.saturating_add(last.weight);
            before.service_levels.extend(last.service_levels);
            before.service_levels.sort_unstable();
        }
    }
    for class in classes.iter_mut().filter(|class| class.weight == 0) {
        class.weight = 1;
        let levels = class.service_levels.iter().map(|level| level.to_wire()).collect();
        adaptations.push(Adaptation::WeightRaised { service_levels: levels });
    }
    classes.sort_by(|a, b| a.service_levels.cmp(&b.service_levels));
    (classes, adaptations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(levels: &[u8], weight: u32) -> OverlayClass {
        OverlayClass {
            service_levels: levels.iter().filter_map(|level| ServiceLevel::from_wire(*level)).collect(),
            weight,
        }
    }

    #[test]
    fn the_lightest_classes_are_merged() {
        let requested = [class(&[0], 8), class(&[1], 1), class(&[2], 4), class(&[3], 2)];
        let (given, adaptations) = fit(&requested, 2, None);
        assert_eq!(given, [class(&[0], 8), class(&[1, 2, 3], 7)]);
        assert_eq!(adaptations, [Adaptation::ClassesFolded { wanted: 4, given: 2, link: None }]);
        assert_eq!(fit(&requested, 4, None), (requested.to_vec(), Vec::new()));
    }

    #[test]
    fn weight_zero_is_raised() {
        let (given, adaptations) = fit(&[class(&[0], 0), class(&[1], 4)], 8, None);
        assert_eq!(given, [class(&[0], 1), class(&[1], 4)]);
        assert_eq!(adaptations, [Adaptation::WeightRaised { service_levels: vec![0] }]);
    }

    #[test]
    fn classes_are_compared_by_proportion() {
        let requested = [class(&[0], 3), class(&[1], 1)];
        assert!(are_alike(&requested, &[class(&[0], 192), class(&[1], 64)]));
        assert!(!are_alike(&requested, &[class(&[0], 64), class(&[1], 192)]));
        assert!(!are_alike(&requested, &[class(&[0, 1], 4)]));
    }
}
