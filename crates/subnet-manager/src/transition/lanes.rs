//! How links are shared: arbitration tables and the lanes of service levels.
//!
//! A level that loses its lane on a turn is discarded there first, before any weight goes; a lane gets its weight before a
//! level gets the lane. So at no time a packet is on a lane that nobody serves, or on one that belongs to somebody else.

use fabric_model::plan::PortSharing;
use ib_wire::{Attribute, PortNum, SMP_DATA_LEN, SlToVl, SlToVlSelector, VirtualLane, VlArbBlock, VlArbPart};

use super::{TwoPhases, two_phases};

/// A table of lanes or weights: its attribute, modifier and bytes.
type Table = ((Attribute, u32), [u8; SMP_DATA_LEN]);

/// The arbitration tables of a port. What the plan does not name has no weight, and the high-priority table is empty.
pub fn weights(sharing: &PortSharing, port: PortNum, low: u8, high: u8) -> impl Iterator<Item = Table> {
    let parts = [VlArbPart::LowFirst, VlArbPart::LowSecond, VlArbPart::HighFirst, VlArbPart::HighSecond];
    let is_there =
        move |part: &VlArbPart| part.first_entry() < usize::from(if part.is_high() { high } else { low });
    parts.into_iter().filter(is_there).map(move |part| {
        let entry = |place: usize| match part.is_high() {
            true => None,
            false => sharing.low.get(part.first_entry() + place).copied(),
        };
        let block = VlArbBlock(std::array::from_fn(|place| entry(place).unwrap_or_default()));
        ((Attribute::VL_ARBITRATION, part.to_modifier(port)), block.encode())
    })
}

/// The lanes of service levels on every turn of a switch that leaves by a port.
pub fn turns(sharing: &PortSharing, output: PortNum, port_count: u8) -> impl Iterator<Item = Table> {
    let inputs = (0..=port_count).filter_map(PortNum::new).filter(move |input| *input != output);
    inputs.map(move |input| {
        let map = sharing.by_input.get(&input).unwrap_or(&sharing.otherwise);
        let selector = SlToVlSelector::Turn { input: input.to_wire(), output: output.to_wire() };
        ((Attribute::SL_TO_VL, selector.to_modifier()), encode(map))
    })
}

/// The lanes of service levels of an adapter port.
pub fn injection(sharing: &PortSharing) -> Table {
    ((Attribute::SL_TO_VL, 0), encode(&sharing.otherwise))
}

/// One map, by way of what is held and wanted both: levels that change their lane are discarded in between.
pub fn lanes(held: Option<SlToVl>, wanted: SlToVl) -> TwoPhases<SlToVl> {
    let common = |held: &SlToVl| {
        let both = |sl: usize| if held.0[sl] == wanted.0[sl] { held.0[sl] } else { VirtualLane::MANAGEMENT };
        SlToVl(std::array::from_fn(both))
    };
    // A map that nobody has read is left until the lanes have their weights: without it nothing passes.
    let empty = wanted;
    let (shrink, grow) = two_phases(held, common, wanted, empty);
    TwoPhases {
        shrink: shrink.filter(|_| held.is_some()).into_iter().collect(),
        grow: grow.into_iter().collect(),
    }
}

/// Reads a map as a datagram carries it.
pub fn decode(data: &[u8; SMP_DATA_LEN]) -> SlToVl {
    SlToVl::decode(&std::array::from_fn(|byte| data[byte]))
}

/// The map as a datagram carries it.
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

    fn sharing() -> PortSharing {
        let mut otherwise = SlToVl([VirtualLane::MANAGEMENT; 16]);
        otherwise.0[0] = lane(0);
        let mut granted = otherwise;
        granted.0[4] = lane(2);
        let low = (0..40).map(|place| VlArbEntry { lane: lane(place % 3), weight: place + 1 }).collect();
        PortSharing { by_input: [(PortNum::new(2).unwrap(), granted)].into(), otherwise, low }
    }

    #[test]
    fn weights_fill_the_tables_that_a_port_has_and_the_high_one_is_empty() {
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
    fn every_turn_has_its_own_map_but_the_one_back() {
        let tables: Vec<Table> = turns(&sharing(), PortNum::new(3).unwrap(), 4).collect();
        let modifiers: Vec<u32> = tables.iter().map(|((_, modifier), _)| *modifier).collect();
        assert_eq!(modifiers, [0x003, 0x103, 0x203, 0x403]);
        assert_eq!(decode(&tables[2].1).0[4], lane(2));
        assert_eq!(decode(&tables[3].1).0[4], VirtualLane::MANAGEMENT);
    }

    #[test]
    fn a_level_that_changes_its_lane_is_discarded_in_between() {
        let before = SlToVl(std::array::from_fn(|sl| lane(sl as u8 % 8)));
        let mut wanted = before;
        (wanted.0[3], wanted.0[5]) = (lane(1), VirtualLane::MANAGEMENT);
        let TwoPhases { shrink, grow } = lanes(Some(before), wanted);
        let mut between = wanted;
        between.0[3] = VirtualLane::MANAGEMENT;
        assert_eq!((shrink, grow), (vec![between], vec![wanted]));
        assert!(lanes(Some(wanted), wanted).is_empty());
        assert_eq!(lanes(None, wanted).shrink, []);
    }
}
