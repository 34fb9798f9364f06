//! Combined writes of SLtoVL maps for switches with optimized programming.

use std::collections::BTreeMap;

use ib_wire::{Attribute, Guid, PortNum, SlToVlSelector};

use super::Write;
use crate::attribute_key::AttributeKey;
use crate::observed::ObservedNode;

/// Replaces the writes of all inputs of an output by one, if the switch supports that and all values are
/// equal. Other writes stay. A single write for all hops would also change those to port 0, which plans do
/// not define.
pub(super) fn together(writes: Vec<Write>, nodes: &BTreeMap<Guid, ObservedNode>) -> Vec<Write> {
    let mut outputs: BTreeMap<(Guid, u8), Vec<Write>> = BTreeMap::new();
    let mut all = Vec::with_capacity(writes.len());
    for write in writes {
        match output(&write).filter(|_| nodes.get(&write.node).is_some_and(takes_outputs)) {
            Some(output) => outputs.entry((write.node, output)).or_default().push(write),
            None => all.push(write),
        }
    }
    for ((guid, output), writes) in outputs {
        match nodes.get(&guid).and_then(|node| joined(node, output, &writes)) {
            Some(write) => all.push(write),
            None => all.extend(writes),
        }
    }
    all
}

/// The hops that a combined write stands for.
pub(crate) fn hops(
    node: &ObservedNode,
    key: AttributeKey,
) -> Option<impl Iterator<Item = AttributeKey> + use<>> {
    let SlToVlSelector::AllInputs { output } = SlToVlSelector::from_modifier(key.1)? else { return None };
    let is_hop = key.0 == Attribute::SL_TO_VL && node.is_switch();
    is_hop.then(|| inputs(node, output).map(move |input| hop(input, output)))
}

/// The combined write of an output, if all inputs get the same value and more than one has to be written.
fn joined(node: &ObservedNode, output: u8, writes: &[Write]) -> Option<Write> {
    let first = writes.first().filter(|_| writes.len() > 1)?;
    let is_same = |input: u8| {
        let key = hop(input, output);
        let wanted = writes.iter().find(|write| write.key == key).map(|write| write.data);
        wanted.or_else(|| node.held(PortNum::MANAGEMENT, key)) == Some(first.data)
    };
    let selector = SlToVlSelector::AllInputs { output };
    let write = || Write { key: (Attribute::SL_TO_VL, selector.to_modifier()), ..first.clone() };
    inputs(node, output).all(is_same).then(write)
}

fn takes_outputs(node: &ObservedNode) -> bool {
    node.switch.as_ref().is_some_and(|switch| switch.optimised_sl_to_vl != 0)
}

fn output(write: &Write) -> Option<u8> {
    match SlToVlSelector::from_modifier(write.key.1).filter(|_| write.key.0 == Attribute::SL_TO_VL)? {
        SlToVlSelector::Hop { output, .. } => Some(output),
        _ => None,
    }
}

fn hop(input: u8, output: u8) -> AttributeKey {
    (Attribute::SL_TO_VL, SlToVlSelector::Hop { input, output }.to_modifier())
}

/// All inputs of an output.
fn inputs(node: &ObservedNode, output: u8) -> impl Iterator<Item = u8> + use<> {
    (0..=node.info.port_count).filter(move |input| *input != output)
}
