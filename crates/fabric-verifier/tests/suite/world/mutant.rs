//! Plans with one wrong entry, and whether a finding names it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric_model::FabricPlan;
use fabric_model::intent::{PortName, Role};
use fabric_model::plan::{
    Enforcement, LinearTable, MulticastTable, PkeyTable, PlanParts, PortQos, SwitchPlan, SwitchPortPlan,
};
use fabric_verifier::{Finding, PacketDestination, SwitchExit};
use ib_wire::{
    Guid, Lid, Membership, MulticastLid, PartitionNumber, Pkey, PortNum, ServiceLevel, VirtualLane,
};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use super::{below, level, number, one, rebuilt};

#[derive(Clone, Copy, Debug)]
pub enum Entry {
    Linear { switch: Guid, lid: Lid },
    Group { switch: Guid, mlid: MulticastLid, port: PortNum },
    Key { port: PortName },
    Enforcement { port: PortName },
    Lid { port: Guid, lid: Lid },
    Level { port: PortName, sl: ServiceLevel },
    Weight { port: PortName },
    Member { partition: PartitionNumber, port: Guid },
    GroupMember { port: Guid },
    Cable { port: PortName },
}

impl Entry {
    /// The kind of the entry, for counting.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Linear { .. } => "linear",
            Self::Group { .. } => "multicast",
            Self::Key { .. } => "key",
            Self::Enforcement { .. } => "enforcement",
            Self::Lid { .. } => "LID",
            Self::Level { .. } => "level",
            Self::Weight { .. } => "weight",
            Self::Member { .. } => "member",
            Self::GroupMember { .. } => "group member",
            Self::Cable { .. } => "cable",
        }
    }

    /// Whether a finding names this entry.
    pub fn is_named_by(self, finding: &Finding) -> bool {
        let on = |path: &[SwitchExit], switch: Guid| path.iter().any(|hop| hop.switch == switch);
        match (self, finding) {
            (Self::Linear { switch, lid }, Finding::ForwardingLoop { lid: found, cycle: path })
            | (Self::Linear { switch, lid }, Finding::Misrouted { lid: found, path, .. }) => {
                *found == lid && on(path, switch)
            }
            (Self::Linear { switch, lid }, Finding::NotForwarded { lid: found, path, at, .. }) => {
                *found == lid && (*at == switch || on(path, switch))
            }
            (Self::Linear { switch, lid }, Finding::ExitWithoutCable { lid: found, exit }) => {
                *found == lid && exit.switch == switch
            }
            (Self::Linear { switch, lid }, Finding::CreditLoop { cycle }) => {
                cycle.iter().any(|wait| wait.link.switch == switch)
                    && cycle.iter().any(|wait| wait.packets == PacketDestination::Lid(lid))
            }
            // A misrouted LID may lose the return path of a service level.
            (Self::Linear { switch, .. }, Finding::ServiceLevelOneWay { path, at, .. }) => {
                on(path, switch) || at.node == switch
            }
            (Self::Group { switch, mlid, port }, Finding::GroupOneWay { mlid: found, exit, to }) => {
                let entry = PortName { node: switch, port };
                *found == mlid && (*exit == SwitchExit { switch, exit: port } || *to == Some(entry))
            }
            (Self::Group { switch, mlid, port }, Finding::GroupMisrouted { mlid: found, exit, .. }) => {
                *found == mlid && *exit == SwitchExit { switch, exit: port }
            }
            (Self::Group { switch, mlid, .. }, Finding::GroupLoop { mlid: found, cycle }) => {
                *found == mlid && on(cycle, switch)
            }
            (Self::Group { switch, mlid, port }, Finding::GroupMemberUnreached { mlid: found, at, .. }) => {
                *found == mlid && *at == PortName { node: switch, port }
            }
            (
                Self::Key { port },
                Finding::KeyMissing { port: found, .. }
                | Finding::KeyUnwanted { port: found, .. }
                | Finding::IndexZeroDiffers { port: found, .. },
            )
            | (
                Self::Enforcement { port },
                Finding::EnforcementOff { port: found } | Finding::EnforcementBetweenSwitches { port: found },
            )
            | (
                Self::Weight { port },
                Finding::ArbitrationEntryInvalid { port: found, .. }
                | Finding::LaneWithoutWeight { port: found, .. }
                | Finding::LaneUnserved { port: found, .. }
                | Finding::ShareTooSmall { port: found, .. },
            )
            | (Self::Cable { port }, Finding::CableDiffers { port: found, .. }) => *found == port,
            (Self::Lid { port, lid }, Finding::DuplicateLid { lid: found, first, second }) => {
                *found == lid && (*first == port || *second == port)
            }
            (
                Self::Lid { lid, .. },
                Finding::NotForwarded { lid: found, .. } | Finding::Misrouted { lid: found, .. },
            ) => *found == lid,
            (
                Self::Level { port, sl },
                Finding::LaneWithoutWeight { port: found, sl: level, .. }
                | Finding::LaneBeyondLink { port: found, sl: level, .. },
            ) => *found == port && *level == sl,
            (Self::Level { port, sl }, Finding::BestEffortDiscarded { port: found, .. }) => {
                *found == port && sl == ServiceLevel::default()
            }
            (Self::Level { port, sl }, Finding::ServiceLevelOneWay { sl: level, path, at, .. }) => {
                let hop = SwitchExit { switch: port.node, exit: port.port };
                *level == sl && (*at == port || path.contains(&hop))
            }
            (Self::Level { port, .. }, Finding::GroupServiceLevelDiscarded { at, .. }) => *at == port,
            (
                Self::Level { port, sl },
                Finding::ServiceLevelNotGranted { port: found, sl: level, .. }
                | Finding::ForeignLane { port: found, sl: level, .. }
                | Finding::ManagementLaneDiffers { port: found, sl: level, .. }
                | Finding::ServiceLevelDiscarded { at: found, sl: level, .. },
            ) => *found == port && *level == sl,
            (Self::Weight { port }, Finding::LatencyExceeded { waits, .. }) => {
                waits.iter().any(|wait| wait.port == port)
            }
            // A route over other links may reach one on which its cluster is granted nothing or too little.
            (
                Self::Linear { switch, .. },
                Finding::GrantMissing { port: found, .. }
                | Finding::ShareTooSmall { port: found, .. }
                | Finding::ServiceLevelDiscarded { at: found, .. },
            ) => found.node == switch,
            (Self::Linear { switch, .. }, Finding::LatencyExceeded { waits, .. }) => {
                waits.iter().any(|wait| wait.port.node == switch)
            }
            (
                Self::Member { partition, port },
                Finding::MemberDiffers { partition: found, port: who, .. },
            ) => *found == partition && *who == port,
            (Self::GroupMember { port }, Finding::GroupMemberDiffers { port: found, .. }) => *found == port,
            _ => false,
        }
    }
}

/// A plan with one wrong SL-to-VL or arbitration entry.
pub fn mutant_of_sharing(dice: &mut Pcg64Mcg, plan: &FabricPlan) -> Option<(FabricPlan, Entry)> {
    let mut parts = plan.parts().clone();
    let switch = below(dice, parts.switches.len());
    let adapter = below(dice, parts.adapter_ports.len());
    let entry = sharing(dice, &mut parts, switch, adapter)?;
    let changed = rebuilt(parts, plan);
    (changed.parts() != plan.parts()).then_some((changed, entry))
}

/// A plan with one wrong entry; `None` if there is no entry of the chosen kind, or the change had no effect.
pub fn mutant(dice: &mut Pcg64Mcg, plan: &FabricPlan) -> Option<(FabricPlan, Entry)> {
    let mut parts = plan.parts().clone();
    let kind = below(dice, 16);
    let switch = below(dice, parts.switches.len());
    let adapter = below(dice, parts.adapter_ports.len());
    let entry = match kind {
        0..=3 => linear(dice, &mut parts.switches[switch]),
        4 | 5 => group(dice, plan, &mut parts.switches[switch]),
        6 => {
            let port = &mut parts.adapter_ports[adapter];
            change_key(dice, &mut port.pkeys).then_some(Entry::Key { port: port.name })
        }
        7 => {
            let switch = &mut parts.switches[switch];
            let port = PortName { node: switch.guid, port: PortNum::MANAGEMENT };
            change_key(dice, &mut switch.pkeys).then_some(Entry::Key { port })
        }
        8 | 9 => enforcement(dice, &mut parts.switches[switch]),
        10 => lid(dice, &mut parts, switch, adapter),
        11 | 12 => sharing(dice, &mut parts, switch, adapter),
        13 => member(dice, &mut parts),
        14 => group_member(dice, &mut parts),
        _ => {
            let switch = &mut parts.switches[switch];
            let (guid, port) = (switch.guid, any_port(dice, switch)?);
            port.peer.port = number(dice.random_range(1..20));
            Some(Entry::Cable { port: PortName { node: guid, port: port.number } })
        }
    }?;
    let changed = rebuilt(parts, plan);
    (changed.parts() != plan.parts()).then_some((changed, entry))
}

fn any_port<'a>(dice: &mut Pcg64Mcg, switch: &'a mut SwitchPlan) -> Option<&'a mut SwitchPortPlan> {
    let count = switch.ports.len();
    (count > 0).then(|| &mut Arc::make_mut(&mut switch.ports)[below(dice, count)])
}

fn linear(dice: &mut Pcg64Mcg, switch: &mut SwitchPlan) -> Option<Entry> {
    let mut exits = switch.linear.to_exits();
    let lid = dice.random_range(1..exits.len());
    let ports = switch.ports.last()?.number.to_wire();
    exits[lid] = if below(dice, 5) == 0 { 0xff } else { dice.random_range(0..ports + 2) };
    switch.linear = Arc::new(LinearTable::from_exits(exits));
    Some(Entry::Linear { switch: switch.guid, lid: Lid::from_wire(lid as u16).unwrap() })
}

fn group(dice: &mut Pcg64Mcg, plan: &FabricPlan, switch: &mut SwitchPlan) -> Option<Entry> {
    let groups: Vec<MulticastLid> = plan.groups().map(|group| group.mlid).collect();
    let mlid = if groups.is_empty() { MulticastLid::from_wire(0xc000).unwrap() } else { one(dice, &groups) };
    let ports = switch.ports.last()?.number.to_wire();
    let port = number(dice.random_range(0..ports + 2));
    let mut exits: BTreeMap<_, _> = switch.multicast.exits().collect();
    let held = exits.remove(&mlid).unwrap_or_default();
    let is_held = held.contains(port);
    let kept = held.iter().filter(|other| *other != port).chain((!is_held).then_some(port)).collect();
    exits.insert(mlid, kept);
    switch.multicast = Arc::new(MulticastTable::from_exits(exits));
    Some(Entry::Group { switch: switch.guid, mlid, port })
}

/// Removes, adds or changes one P_Key, or its membership.
fn change_key(dice: &mut Pcg64Mcg, table: &mut Arc<PkeyTable>) -> bool {
    let mut keys = table.entries().to_vec();
    let index = below(dice, keys.len() + 1);
    keys.resize(keys.len().max(index + 1), None);
    let random = PartitionNumber::from_wire(one(dice, &[1, 2, 3, 4, 0x101, 0x7fff])).unwrap();
    let membership = one(dice, &[Membership::Full, Membership::Limited]);
    keys[index] = match (below(dice, 3), keys[index]) {
        (0, _) => None,
        (1, Some(key)) => Some(flipped(key)),
        _ => Some(random.key(membership)),
    };
    *table = Arc::new(PkeyTable::from_keys(keys));
    true
}

fn flipped(key: Pkey) -> Pkey {
    key.partition().key(match key.membership() {
        Membership::Full => Membership::Limited,
        Membership::Limited => Membership::Full,
    })
}

fn enforcement(dice: &mut Pcg64Mcg, switch: &mut SwitchPlan) -> Option<Entry> {
    let guid = switch.guid;
    let port = any_port(dice, switch)?;
    let name = PortName { node: guid, port: port.number };
    let turn_off = below(dice, 4) == 0;
    match &mut port.enforcement {
        Enforcement::Both(keys) if !turn_off => {
            return change_key(dice, keys).then_some(Entry::Key { port: name });
        }
        Enforcement::Both(_) => port.enforcement = Enforcement::Off,
        Enforcement::Off => port.enforcement = Enforcement::Both(Arc::new(PkeyTable::default())),
    }
    Some(Entry::Enforcement { port: name })
}

fn lid(dice: &mut Pcg64Mcg, parts: &mut PlanParts, switch: usize, adapter: usize) -> Option<Entry> {
    let count = parts.switches.len() + parts.adapter_ports.len();
    let lid = Lid::from_wire(dice.random_range(1..=count as u16 + 3)).unwrap();
    let port = if below(dice, 2) == 0 {
        parts.switches[switch].lid = lid;
        parts.switches[switch].port_guid
    } else {
        parts.adapter_ports[adapter].lid = lid;
        parts.adapter_ports[adapter].guid
    };
    Some(Entry::Lid { port, lid })
}

/// Changes one service level of one map, or one arbitration entry.
fn sharing(dice: &mut Pcg64Mcg, parts: &mut PlanParts, switch: usize, adapter: usize) -> Option<Entry> {
    let (port, sharing) = if below(dice, 3) > 0 {
        let switch = &mut parts.switches[switch];
        let guid = switch.guid;
        // Ports with grants are more telling.
        let granted = |port: &SwitchPortPlan| port.qos.as_ref().is_some_and(|s| !s.by_input.is_empty());
        let place = switch.ports.iter().position(granted).filter(|_| below(dice, 2) == 0);
        let port = match place {
            Some(place) => &mut Arc::make_mut(&mut switch.ports)[place],
            None => any_port(dice, switch)?,
        };
        (PortName { node: guid, port: port.number }, &mut port.qos)
    } else {
        let port = &mut parts.adapter_ports[adapter];
        (port.name, &mut port.qos)
    };
    let mut changed: PortQos = sharing.as_deref()?.clone();
    let entry = if below(dice, 4) == 0 {
        let index = below(dice, changed.low.len());
        changed.low[index].weight = one(dice, &[0, 0, 1, 255]);
        Entry::Weight { port }
    } else {
        let sl = level(dice.random_range(0..5));
        let lane = VirtualLane::from_wire(one(dice, &[0, 1, 2, 3, 4, 9, 15, 15])).unwrap();
        let listed: Vec<PortNum> = changed.by_input.keys().copied().collect();
        let map = match below(dice, listed.len() + 1) {
            0 => &mut changed.otherwise,
            place => changed.by_input.get_mut(&listed[place - 1]).unwrap(),
        };
        map.0[sl.index()] = lane;
        Entry::Level { port, sl }
    };
    *sharing = Some(Arc::new(changed));
    Some(entry)
}

fn member(dice: &mut Pcg64Mcg, parts: &mut PlanParts) -> Option<Entry> {
    let place = below(dice, parts.partitions.len());
    let partition = &mut parts.partitions[place];
    let members: Vec<Guid> = partition.members.keys().copied().collect();
    let port = if members.is_empty() { parts.adapter_ports[0].guid } else { one(dice, &members) };
    match below(dice, 2) {
        0 => partition.members.remove(&port),
        _ => partition.members.insert(port, one(dice, &[Role::Full, Role::Limited, Role::Both])),
    };
    Some(Entry::Member { partition: partition.number, port })
}

fn group_member(dice: &mut Pcg64Mcg, parts: &mut PlanParts) -> Option<Entry> {
    let place = below(dice, parts.groups.len().max(1));
    let members = &mut parts.groups.get_mut(place)?.members;
    if members.is_empty() {
        return None;
    }
    let port = members.remove(below(dice, members.len()));
    Some(Entry::GroupMember { port })
}
