//! Where frames may go, read from the tables by other means than the emulation's own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use fabric_model::MacAddress;
use fabric_sim::{Fabric, FunctionId, PortId, VirtualFunction};
use ib_wire::{Membership, Pkey, PortNum, PortState};

/// Longer than any path through two switches that does not circle.
const HOPS: usize = 64;

/// Who gets a frame for one address, if anybody does.
pub fn unicast(fabric: &Fabric, from: FunctionId, to: MacAddress) -> Option<FunctionId> {
    let sender = function(fabric, from);
    let lid = to.lid()?;
    if !holds(fabric, from.port(), sender.pkey) {
        return None;
    }
    let mut at = from.port();
    if !owns(fabric, at, lid.to_wire()) {
        at = far_end(fabric, at)?;
        let mut hops = 0;
        while fabric.node_of(at).kind == ib_wire::NodeKind::Switch {
            hops += 1;
            if hops > HOPS || !lets_in(fabric, at, sender.pkey) {
                return None;
            }
            let device = fabric.device_id_of(at);
            let (linear, top) = fabric.linear_of(device).unwrap();
            let exit = linear.get(usize::from(lid.to_wire())).filter(|_| lid.to_wire() <= top)?;
            let out = fabric.port_of(device, PortNum::new(*exit)?)?;
            if *exit == 0 {
                // No function sits on a switch.
                return None;
            }
            if !lets_out(fabric, out, sender.pkey) {
                return None;
            }
            at = far_end(fabric, out)?;
        }
        if !owns(fabric, at, lid.to_wire()) {
            return None;
        }
    }
    let mut takers = takers(fabric, at, &sender);
    takers.find(|taker| taker.mac == to).map(|taker| taker.id)
}

/// Who gets a frame for everybody.
pub fn multicast(fabric: &Fabric, from: FunctionId) -> BTreeSet<FunctionId> {
    let sender = function(fabric, from);
    let mut got = BTreeSet::new();
    let (Some(group), true) = (sender.group, holds(fabric, from.port(), sender.pkey)) else { return got };
    let joined = |end: PortId| {
        takers(fabric, end, &sender).filter(|taker| taker.group == Some(group)).map(|taker| taker.id)
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
        } else if lets_in(fabric, at, sender.pkey) {
            let device = fabric.device_id_of(at);
            let exits = fabric.groups_of(device).remove(&group.to_wire()).unwrap_or_default();
            let outs = exits.into_iter().filter(|exit| *exit != 0);
            let outs = outs.map(|exit| fabric.port_of(device, PortNum::new(exit).unwrap()).unwrap());
            let outs = outs.filter(|out| *out != at && lets_out(fabric, *out, sender.pkey));
            pending.extend(outs.filter_map(|out| far_end(fabric, out)));
        }
    }
    got
}

fn function(fabric: &Fabric, id: FunctionId) -> VirtualFunction {
    *fabric.functions().find(|(function, _)| function.id == id).unwrap().0
}

/// Other functions at a port that share a partition with the sender, by keys that their port holds.
fn takers(fabric: &Fabric, end: PortId, sender: &VirtualFunction) -> impl Iterator<Item = VirtualFunction> {
    let sender = *sender;
    let at_end = fabric.functions().map(|(function, _)| *function).filter(move |it| it.id.port() == end);
    at_end
        .filter(move |it| it.id != sender.id && matches(it.pkey, sender.pkey) && holds(fabric, end, it.pkey))
}

fn matches(held: Pkey, sent: Pkey) -> bool {
    let full = |key: Pkey| key.membership() == Membership::Full;
    held.partition() == sent.partition() && (full(held) || full(sent))
}

fn holds(fabric: &Fabric, port: PortId, key: Pkey) -> bool {
    fabric.gate(port).keys.iter().flatten().any(|held| *held == key)
}

fn owns(fabric: &Fabric, port: PortId, lid: u16) -> bool {
    fabric.gate(port).lid.is_some_and(|own| own.to_wire() == lid)
}

fn far_end(fabric: &Fabric, out: PortId) -> Option<PortId> {
    let gate = fabric.gate(out);
    let peer = gate.peer.filter(|_| gate.state == PortState::Active)?;
    matches!(fabric.gate(peer).state, PortState::Active | PortState::Armed).then_some(peer)
}

fn lets_in(fabric: &Fabric, port: PortId, key: Pkey) -> bool {
    let gate = fabric.gate(port);
    let may_send = |held: &Pkey| {
        held.partition() == key.partition()
            && (held.membership() == Membership::Full || key.membership() == Membership::Limited)
    };
    !gate.enforces.0 || gate.keys.iter().flatten().any(may_send)
}

fn lets_out(fabric: &Fabric, port: PortId, key: Pkey) -> bool {
    let gate = fabric.gate(port);
    !gate.enforces.1 || gate.keys.iter().flatten().any(|held| matches(*held, key))
}
