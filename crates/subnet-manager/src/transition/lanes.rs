//! Lane sharing: VL arbitration tables and SLtoVL maps.
//!
//! A service level that loses its lane on a hop is discarded there first, before any weight is removed; a
//! lane gets its weight before a service level gets the lane. So no packet is ever on a lane without weight,
//! or on a lane of another cluster.
//!
//! The arbitration tables of plans are in the first block, which one Set replaces as a whole: a port has the table
//! of the old plan or that of the new one, and both keep what was guaranteed to the clusters that stay
//! (A-LANE-21). The second block, which other managers and earlier versions filled, is emptied after that, so that
//! no lane is without entries in between.

use fabric_model::plan::PortQos;
use ib_wire::{Attribute, PortNum, SMP_DATA_LEN, SlToVl, SlToVlSelector, VirtualLane, VlArbBlock, VlArbPart};

use super::{TwoPhases, two_phases};

/// A table block: attribute, modifier and data.
type Table = ((Attribute, u32), [u8; SMP_DATA_LEN]);

/// The VL arbitration tables of a port with these capacities. Lanes that the plan does not name have no
/// weight; the high-priority table is empty.
pub fn weights(sharing: &PortQos, port: PortNum, low: u8, high: u8) -> impl Iterator<Item = Table> {
    let parts = [VlArbPart::LowFirst, VlArbPart::LowSecond, VlArbPart::HighFirst, VlArbPart::HighSecond];
    let is_there =
        move |part: &VlArbPart| part.first_entry() < usize::from(if part.is_high() { high } else { low });
    parts.into_iter().filter(is_there).map(move |part| {
        let entry = |position: usize| match part.is_high() {
            true => None,
            false => sharing.low.get(part.first_entry() + position).copied(),
        };
        let block = VlArbBlock(std::array::from_fn(|position| entry(position).unwrap_or_default()));
        ((Attribute::VL_ARBITRATION, part.to_modifier(port)), block.encode())
    })
}

/// The SLtoVL maps of all hops to an output port of a switch.
pub fn hops(sharing: &PortQos, output: PortNum, port_count: u8) -> impl Iterator<Item = Table> {
    let inputs = (0..=port_count).filter_map(PortNum::new).filter(move |input| *input != output);
    inputs.map(move |input| {
        let map = sharing.by_input.get(&input).unwrap_or(&sharing.otherwise);
        let selector = SlToVlSelector::Hop { input: input.to_wire(), output: output.to_wire() };
        ((Attribute::SL_TO_VL, selector.to_modifier()), encode(map))
    })
}

/// The SLtoVL map of an adapter port.
pub fn injection(sharing: &PortQos) -> Table {
    ((Attribute::SL_TO_VL, 0), encode(&sharing.otherwise))
}

/// The writes of one SLtoVL map: first the service levels that keep their lane, with all others discarded,
/// then the whole map.
pub fn sl_to_vl(held: Option<SlToVl>, wanted: SlToVl) -> TwoPhases<SlToVl> {
    let common = |held: &SlToVl| {
        let both = |sl: usize| if held.0[sl] == wanted.0[sl] { held.0[sl] } else { VirtualLane::MANAGEMENT };
        SlToVl(std::array::from_fn(both))
    };
    // A map that was not read is written once the lanes have their weights; emptying it would stop all
    // packets.
    let empty = wanted;
    let (shrink, grow) = two_phases(held, common, wanted, empty);
    TwoPhases {
        shrink: shrink.filter(|_| held.is_some()).into_iter().collect(),
        grow: grow.into_iter().collect(),
    }
}

/// Decodes an SLtoVL map from attribute data.
pub fn decode(data: &[u8; SMP_DATA_LEN]) -> SlToVl {
    SlToVl::decode(&std::array::from_fn(|byte| data[byte]))
}

/// Encodes an SLtoVL map as attribute data.
pub fn encode(map: &SlToVl) -> [u8; SMP_DATA_LEN] {
    let mut data = [0; SMP_DATA_LEN];
    data[..SlToVl::LEN].copy_from_slice(&map.encode());
    data
}

#[cfg(test)]
mod tests {
    use ib_wire::VlArbEntry;

    use super::*;

    fn lane(raw: u8) -> VirtualLane {
        VirtualLane::from_wire(raw).unwrap()
    }

    fn sharing() -> PortQos {
        let mut otherwise = SlToVl([VirtualLane::MANAGEMENT; 16]);
        otherwise.0[0] = lane(0);
        let mut granted = otherwise;
        granted.0[4] = lane(2);
        let low =
            (0..40).map(|position| VlArbEntry { lane: lane(position % 3), weight: position + 1 }).collect();
        PortQos { by_input: [(PortNum::new(2).unwrap(), granted)].into(), otherwise, low, high: Vec::new() }
    }

    #[test]
    fn weights_fill_the_low_table_and_the_high_one_is_empty() {
        let port = PortNum::new(9).unwrap();
        let tables: Vec<Table> = weights(&sharing(), port, 64, 32).collect();
        let modifiers: Vec<u32> = tables.iter().map(|((_, modifier), _)| *modifier).collect();
        assert_eq!(modifiers, [0x1_0009, 0x2_0009, 0x3_0009]);
        let second = VlArbBlock::decode(&tables[1].1);
        assert_eq!(second.0[7], VlArbEntry { lane: lane(0), weight: 40 });
        assert!(second.0[8..].iter().all(|entry| entry.weight == 0));
        assert!(VlArbBlock::decode(&tables[2].1).0.iter().all(|entry| entry.weight == 0));
    }

    #[test]
    fn every_hop_but_the_one_back_has_its_own_map() {
        let tables: Vec<Table> = hops(&sharing(), PortNum::new(3).unwrap(), 4).collect();
        let modifiers: Vec<u32> = tables.iter().map(|((_, modifier), _)| *modifier).collect();
        assert_eq!(modifiers, [0x003, 0x103, 0x203, 0x403]);
        assert_eq!(decode(&tables[2].1).0[4], lane(2));
        assert_eq!(decode(&tables[3].1).0[4], VirtualLane::MANAGEMENT);
    }

    #[test]
    fn a_service_level_is_discarded_while_it_changes_its_lane() {
        let before = SlToVl(std::array::from_fn(|sl| lane(sl as u8 % 8)));
        let mut wanted = before;
        (wanted.0[3], wanted.0[5]) = (lane(1), VirtualLane::MANAGEMENT);
        let TwoPhases { shrink, grow } = sl_to_vl(Some(before), wanted);
        let mut between = wanted;
        between.0[3] = VirtualLane::MANAGEMENT;
        assert_eq!((shrink, grow), (vec![between], vec![wanted]));
        assert!(sl_to_vl(Some(wanted), wanted).is_empty());
        assert_eq!(sl_to_vl(None, wanted).shrink, []);
    }
}
