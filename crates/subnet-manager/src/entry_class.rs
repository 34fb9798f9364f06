//! What the entries of a plan are for: the one place that decides which of them a port cannot do without.

use ib_wire::{
    Attribute, PkeyBlockSelector, PortInfo, PortNum, SMP_DATA_LEN, SlToVlSelector, SwitchInfo, VirtualLane,
    VlArbPart,
};
use serde::{Deserialize, Serialize};

use crate::attribute_key::AttributeKey;
use crate::transition::lanes;

/// What an entry of a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryClass {
    /// It separates tenants: P_Keys, partition enforcement, filters of raw packets, M_Keys, and service levels that a host
    /// may not use. Without it, a port carries no data of tenants.
    Isolation,
    /// It carries guarantees: lanes, arbitration, and how long packets may wait. Without it, nothing is guaranteed on the
    /// link that the port sends into.
    Guarantee,
    /// Everything else, such as addresses and routes. Without it, packets do not arrive.
    Other,
}

impl EntryClass {
    /// The class of what differs between the value that is wanted and the one that a device has; the strictest, if several
    /// entries differ. Nothing is known to be equal in a value that was never read. Total: attributes that no plan writes
    /// are [`EntryClass::Other`].
    pub(crate) fn of_difference(
        attribute: Attribute,
        wanted: &[u8; SMP_DATA_LEN],
        held: Option<&[u8; SMP_DATA_LEN]>,
    ) -> Self {
        if held == Some(wanted) {
            return Self::Other;
        }
        match attribute {
            Attribute::PKEY_TABLE => Self::Isolation,
            Attribute::VL_ARBITRATION => Self::Guarantee,
            Attribute::SL_TO_VL => of_lanes(wanted, held),
            Attribute::PORT_INFO => of_port(wanted, held),
            Attribute::SWITCH_INFO => {
                let life =
                    |data: &[u8; SMP_DATA_LEN]| SwitchInfo::decode(data).ok().map(|info| info.life_time);
                if held.and_then(life) == life(wanted) { Self::Other } else { Self::Guarantee }
            }
            _ => Self::Other,
        }
    }
}

/// A service level that should be discarded and is not reaches lanes of others.
fn of_lanes(wanted: &[u8; SMP_DATA_LEN], held: Option<&[u8; SMP_DATA_LEN]>) -> EntryClass {
    let held = held.map(|held| lanes::decode(held).0);
    let is_let_through = |(sl, lane): (usize, &VirtualLane)| {
        *lane == VirtualLane::MANAGEMENT && held.is_none_or(|held| held[sl] != VirtualLane::MANAGEMENT)
    };
    if lanes::decode(wanted).0.iter().enumerate().any(is_let_through) {
        EntryClass::Isolation
    } else {
        EntryClass::Guarantee
    }
}

fn of_port(wanted: &[u8; SMP_DATA_LEN], held: Option<&[u8; SMP_DATA_LEN]>) -> EntryClass {
    let (Ok(wanted), Some(Ok(held))) = (PortInfo::decode(wanted), held.map(|held| PortInfo::decode(held)))
    else {
        return EntryClass::Isolation;
    };
    let isolation = |info: &PortInfo| {
        let enforcement = (info.enforce_inbound, info.enforce_outbound);
        let filters = (info.filter_raw_inbound, info.filter_raw_outbound);
        (info.m_key, info.m_key_protection, info.m_key_lease_period_s, enforcement, filters)
    };
    let guarantee =
        |info: &PortInfo| (info.operational_vls, info.vl_high_limit, info.hoq_life, info.vl_stall_count);
    if isolation(&wanted) != isolation(&held) {
        EntryClass::Isolation
    } else if guarantee(&wanted) != guarantee(&held) {
        EntryClass::Guarantee
    } else {
        EntryClass::Other
    }
}

/// The port that an attribute of a node is about; `reached` is the port that it is read through.
pub(crate) fn port_concerned(
    reached: PortNum,
    (attribute, modifier): AttributeKey,
    class: EntryClass,
    is_switch: bool,
) -> PortNum {
    if !is_switch {
        return reached;
    }
    let number = match attribute {
        Attribute::PORT_INFO => return PortInfo::port_of_modifier(modifier).unwrap_or(reached),
        Attribute::PKEY_TABLE => u8::try_from(PkeyBlockSelector::from_modifier(modifier).port).ok(),
        Attribute::VL_ARBITRATION => {
            VlArbPart::from_modifier(modifier).and_then(|(_, port)| u8::try_from(port).ok())
        }
        Attribute::SL_TO_VL => match SlToVlSelector::from_modifier(modifier) {
            // What a host may send is decided where its packets come in.
            Some(SlToVlSelector::Hop { input, .. }) if class == EntryClass::Isolation => Some(input),
            Some(SlToVlSelector::Hop { output, .. } | SlToVlSelector::AllInputs { output }) => Some(output),
            Some(SlToVlSelector::AllHops) | None => None,
        },
        _ => None,
    };
    number.and_then(PortNum::new).unwrap_or(reached)
}

#[cfg(test)]
mod tests {
    use ib_wire::{DataLanes, Lid, MKey, SlToVl};

    use super::*;

    fn info(change: impl Fn(&mut PortInfo)) -> [u8; SMP_DATA_LEN] {
        let mut info = PortInfo::decode(&[0x11; SMP_DATA_LEN]).unwrap();
        change(&mut info);
        info.encode()
    }

    #[test]
    fn every_field_of_a_port_has_its_class() {
        let class = |change: fn(&mut PortInfo)| {
            EntryClass::of_difference(Attribute::PORT_INFO, &info(change), Some(&info(|_| {})))
        };
        let isolation: [fn(&mut PortInfo); 6] = [
            |info| info.enforce_inbound ^= true,
            |info| info.enforce_outbound ^= true,
            |info| info.filter_raw_inbound ^= true,
            |info| info.filter_raw_outbound ^= true,
            |info| info.m_key = MKey::from_wire(7),
            |info| info.m_key_lease_period_s += 1,
        ];
        let guarantee: [fn(&mut PortInfo); 4] = [
            |info| info.operational_vls = DataLanes::Fifteen,
            |info| info.vl_high_limit += 1,
            |info| info.hoq_life += 1,
            |info| info.vl_stall_count += 1,
        ];
        let other: [fn(&mut PortInfo); 3] =
            [|_| {}, |info| info.lid = Lid::from_wire(9), |info| info.subnet_timeout += 1];
        for change in isolation {
            assert_eq!(class(change), EntryClass::Isolation);
        }
        for change in guarantee {
            assert_eq!(class(change), EntryClass::Guarantee);
        }
        for change in other {
            assert_eq!(class(change), EntryClass::Other);
        }
    }

    #[test]
    fn only_a_lane_that_should_discard_isolates() {
        let map = |lane: u8| {
            let mut map = SlToVl([VirtualLane::from_wire(1).unwrap(); 16]);
            map.0[3] = VirtualLane::from_wire(lane).unwrap();
            lanes::encode(&map)
        };
        let class = |wanted: u8, held: Option<u8>| {
            EntryClass::of_difference(Attribute::SL_TO_VL, &map(wanted), held.map(map).as_ref())
        };
        assert_eq!(class(15, Some(2)), EntryClass::Isolation);
        assert_eq!(class(15, None), EntryClass::Isolation);
        assert_eq!(class(2, Some(15)), EntryClass::Guarantee, "the device discards more than it should");
        assert_eq!(class(2, Some(4)), EntryClass::Guarantee);
        assert_eq!(class(15, Some(15)), EntryClass::Other);
    }

    #[test]
    fn tables_have_the_class_of_their_attribute() {
        let class = |attribute| EntryClass::of_difference(attribute, &[1; 64], Some(&[2; 64]));
        assert_eq!(class(Attribute::PKEY_TABLE), EntryClass::Isolation);
        assert_eq!(class(Attribute::VL_ARBITRATION), EntryClass::Guarantee);
        assert_eq!(class(Attribute::LINEAR_FORWARDING), EntryClass::Other);
        assert_eq!(class(Attribute::MULTICAST_FORWARDING), EntryClass::Other);
        assert_eq!(class(Attribute(0xff77)), EntryClass::Other);
    }

    #[test]
    fn an_entry_names_the_port_that_it_is_about() {
        let own = PortNum::MANAGEMENT;
        let port =
            |attribute, modifier, class| port_concerned(own, (attribute, modifier), class, true).to_wire();
        let hop = SlToVlSelector::Hop { input: 3, output: 5 }.to_modifier();
        assert_eq!(port(Attribute::SL_TO_VL, hop, EntryClass::Isolation), 3);
        assert_eq!(port(Attribute::SL_TO_VL, hop, EntryClass::Guarantee), 5);
        let keys = PkeyBlockSelector { port: 7, block: 1 }.to_modifier();
        assert_eq!(port(Attribute::PKEY_TABLE, keys, EntryClass::Isolation), 7);
        assert_eq!(port(Attribute::PORT_INFO, 9, EntryClass::Isolation), 9);
        assert_eq!(port(Attribute::SWITCH_INFO, 0, EntryClass::Guarantee), 0);
        let adapter = PortNum::new(2).unwrap();
        assert_eq!(
            port_concerned(adapter, (Attribute::PKEY_TABLE, 1), EntryClass::Isolation, false),
            adapter
        );
    }
}
