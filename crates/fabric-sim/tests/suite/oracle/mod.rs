//! An oracle for frames: reads the tables by other means than the emulation.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use fabric_model::MacAddress;
use fabric_sim::{Fabric, FunctionId, FunctionKey, PortId, VirtualFunction};
use ib_wire::{Membership, Pkey, PortNum, PortState};

/// Longer than any path through two switches without a loop.
const HOPS: usize = 64;

/// The receiver of a unicast frame, if there is one.
pub fn unicast(fabric: &Fabric, from: FunctionId, to: MacAddress) -> Option<FunctionId> {
    let sender = function(fabric, from);
    let lid = to.lid()?;
    let mut keys = sender.keys.iter().map(|key| key.pkey).filter(|key| holds(fabric, from.port(), *key));
    let receiver = fabric.functions().map(|(function, _)| function).find(|function| function.mac == to)?;
    let key = keys.find(|key| is_taken(fabric, receiver, *key))?;
    let mut at = from.port();
    if !owns(fabric, at, lid.to_wire()) {
        at = far_end(fabric, at)?;
        let mut hops = 0;
        while fabric.node_of(at).kind == ib_wire::NodeKind::Switch {
            hops += 1;
            if hops > HOPS || !lets_in(fabric, at, key) {
                return None;
            }
            let device = fabric.device_id_of(at);
            let (linear, top) = fabric.linear_of(device).unwrap();
            let exit = linear.get(usize::from(lid.to_wire())).filter(|_| lid.to_wire() <= top)?;
            let out = fabric.port_of(device, PortNum::new(*exit)?)?;
            if *exit == 0 {
                // A switch has no functions.
                return None;
            }
            if !lets_out(fabric, out, key) {
                return None;
            }
            at = far_end(fabric, out)?;
        }
        if !owns(fabric, at, lid.to_wire()) {
            return None;
        }
    }
    let mut takers = takers(fabric, at, from, key);
    takers.find(|taker| taker.mac == to).map(|taker| taker.id)
}

/// The receivers of a broadcast frame.
pub fn multicast(fabric: &Fabric, from: FunctionId) -> BTreeSet<FunctionId> {
    let sender = function(fabric, from);
    sender.keys.iter().flat_map(|key| spread(fabric, from, *key)).collect()
}

fn spread(
    fabric: &Fabric,
    from: FunctionId,
    FunctionKey { pkey, group }: FunctionKey,
) -> BTreeSet<FunctionId> {
    let mut got = BTreeSet::new();
    let (Some(group), true) = (group, holds(fabric, from.port(), pkey)) else { return got };
    let joined = |end: PortId| {
        let has_joined = |own: &FunctionKey| {
            own.group == Some(group) && matches(own.pkey, pkey) && holds(fabric, end, own.pkey)
        };
        let others = at(fabric, end).into_iter().filter(|it| it.id != from);
        others.filter(|it| it.keys.iter().any(has_joined)).map(|it| it.id).collect::<Vec<_>>()
    };
    got.extend(joined(from.port()));
    let mut seen = BTreeSet::new();
    let mut pending: Vec<PortId> = far_end(fabric, from.port()).into_iter().collect();
    while let Some(at) = pending.pop() {
        if !seen.insert(at) {
            continue;
        }
        if fabric.node_of(at).kind != ib_wire::NodeKind::Switch {
            got.extend(joined(at));
        } else if lets_in(fabric, at, pkey) {
            let device = fabric.device_id_of(at);
            let exits = fabric.groups_of(device).remove(&group.to_wire()).unwrap_or_default();
            let outs = exits.into_iter().filter(|exit| *exit != 0);
            let outs = outs.map(|exit| fabric.port_of(device, PortNum::new(exit).unwrap()).unwrap());
            let outs = outs.filter(|out| *out != at && lets_out(fabric, *out, pkey));
            pending.extend(outs.filter_map(|out| far_end(fabric, out)));
        }
    }
    got
}

fn function(fabric: &Fabric, id: FunctionId) -> VirtualFunction {
    fabric.functions().find(|(function, _)| function.id == id).unwrap().0.clone()
}

fn at(fabric: &Fabric, end: PortId) -> Vec<VirtualFunction> {
    let all = fabric.functions().map(|(function, _)| function);
    all.filter(|it| it.id.port() == end).cloned().collect()
}

/// Other functions of a port that accept a P_Key by keys that their port holds.
fn takers(
    fabric: &Fabric,
    end: PortId,
    from: FunctionId,
    key: Pkey,
) -> impl Iterator<Item = VirtualFunction> {
    at(fabric, end).into_iter().filter(move |it| it.id != from && is_taken(fabric, it, key))
}

fn is_taken(fabric: &Fabric, receiver: &VirtualFunction, key: Pkey) -> bool {
    let mut keys = receiver.keys.iter().map(|own| own.pkey);
    keys.any(|own| matches(own, key) && holds(fabric, receiver.id.port(), own))
}

fn matches(held: Pkey, sent: Pkey) -> bool {
    let full = |key: Pkey| key.membership() == Membership::Full;
    held.partition() == sent.partition() && (full(held) || full(sent))
}

fn holds(fabric: &Fabric, port: PortId, key: Pkey) -> bool {
    fabric.port_forwarding(port).keys.iter().flatten().any(|held| *held == key)
}

fn owns(fabric: &Fabric, port: PortId, lid: u16) -> bool {
    fabric.port_forwarding(port).lid.is_some_and(|own| own.to_wire() == lid)
}

fn far_end(fabric: &Fabric, out: PortId) -> Option<PortId> {
    let gate = fabric.port_forwarding(out);
    let peer = gate.peer.filter(|_| gate.state == PortState::Active)?;
    matches!(fabric.port_forwarding(peer).state, PortState::Active | PortState::Armed).then_some(peer)
}

fn lets_in(fabric: &Fabric, port: PortId, key: Pkey) -> bool {
    let gate = fabric.port_forwarding(port);
    let may_send = |held: &Pkey| {
        held.partition() == key.partition()
            && (held.membership() == Membership::Full || key.membership() == Membership::Limited)
    };
    !gate.enforces.0 || gate.keys.iter().flatten().any(may_send)
}

fn lets_out(fabric: &Fabric, port: PortId, key: Pkey) -> bool {
    let gate = fabric.port_forwarding(port);
    !gate.enforces.1 || gate.keys.iter().flatten().any(|held| matches(*held, key))
}
