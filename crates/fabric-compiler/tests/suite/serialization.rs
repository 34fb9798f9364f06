//! Plans and intents survive serialization, and invalid plans are rejected.

use std::sync::Arc;

use fabric_compiler::{adopt, compile, partitions_conf, recompile};
use fabric_model::generate::{FatTree, FatTreeSize, RandomFabric, Torus, without_links};
use fabric_model::intent::{PortCapability, PortName, SwitchCapability};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use ib_wire::PortNum;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::found::{scattered, shortest_paths};
use crate::world::{guid, intents};

const RULES: &str = "blue=0x101, ipoib, sl=3 : ALL_CAS=full; red, indx0, ipoib, Q_Key=0x1234 : ALL=both;
    green=5, indx0 : ALL_CAS;";

fn sample_intents(topology: &Topology) -> Intents {
    let mut sample = intents(topology);
    sample.partitions = partitions_conf::parse(RULES).unwrap();
    let name = PortName { node: guid(7), port: PortNum::new(3).unwrap() };
    sample.capabilities.ports.insert(name, PortCapability { pkeys: 9, ..PortCapability::default() });
    sample.capabilities.switches.insert(guid(8), SwitchCapability::default());
    sample
}

fn small_tree() -> Topology {
    FatTree { radix: 4, ..FatTree::new(FatTreeSize::Pods(3)) }.generate().unwrap()
}

fn plans() -> Vec<(Topology, FabricPlan)> {
    let tree = FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(8)) }.generate().unwrap();
    let degraded = without_links(tree.clone(), 60, 3).unwrap();
    let fabrics = [
        small_tree(),
        tree,
        degraded,
        Torus::new([3, 3]).generate().unwrap(),
        RandomFabric::new(12, 4, 3).generate().unwrap(),
    ];
    fabrics
        .into_iter()
        .map(|fabric| {
            let adoption =
                adopt(&fabric, &sample_intents(&fabric), &shortest_paths(&fabric, scattered)).unwrap();
            let plan = compile(&fabric, &sample_intents(&fabric), &adoption.decisions).unwrap();
            (fabric, plan)
        })
        .collect()
}

#[test]
fn plans_round_trip_and_can_be_recompiled() {
    for (fabric, plan) in plans() {
        let text = serde_json::to_string(&plan).unwrap();
        let read: FabricPlan = serde_json::from_str(&text).unwrap();
        assert_eq!(read, plan);
        assert_eq!(read.basis(), plan.basis());
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        let again = recompile(&fabric, &sample_intents(&fabric), &read).unwrap();
        assert_eq!(again, plan);
        let (old, new) = (read.switches().next().unwrap(), again.switches().next().unwrap());
        assert!(Arc::ptr_eq(&old.linear, &new.linear), "taken over, not made again");
    }
}

#[test]
fn intents_round_trip_and_unknown_fields_are_rejected() {
    let intents = sample_intents(&small_tree());
    let value = serde_json::to_value(&intents).unwrap();
    assert_eq!(serde_json::from_value::<Intents>(value.clone()).unwrap(), intents);
    let short = json!({ "manager": "0x1", "partitions": [{ "name": "a", "members": [
        { "who": "all-adapters", "role": "full" }, { "who": { "port": "0x2" }, "role": "limited", "place": "first" },
    ] }] });
    assert_eq!(serde_json::from_value::<Intents>(short).unwrap().partitions[0].members.len(), 2);
    for (path, wrong) in [
        ("/partitions/0/ipoib/mtu", json!(9)),
        ("/partitions/0/ipoib/rate", json!(1)),
        ("/partitions/0/ipoib/scope", json!(0)),
        ("/partitions/0/number", json!(0)),
        ("/partitions/0/members/0/selector", json!("everyone")),
        ("/capabilities/default_port/lanes", json!(0)),
        ("/manager", json!("0x0")),
        ("/partitions/0", json!({ "name": "a", "members": [], "color": 1 })),
    ] {
        let mut broken = value.clone();
        *broken.pointer_mut(path).expect(path) = wrong;
        assert!(serde_json::from_value::<Intents>(broken).is_err(), "{path}");
    }
}

/// The error of reading a plan after one value was replaced.
fn refusal(value: &Value, path: &str, wrong: Value) -> String {
    let mut broken = value.clone();
    *broken.pointer_mut(path).unwrap_or_else(|| panic!("no {path}")) = wrong;
    serde_json::from_value::<FabricPlan>(broken).expect_err(path).to_string()
}

#[test]
fn invalid_plans_are_rejected_with_the_field_at_fault() {
    let tree = small_tree();
    let plan = compile(&tree, &sample_intents(&tree), &Decisions::default()).unwrap();
    let value = serde_json::to_value(&plan).unwrap();
    assert_eq!(serde_json::from_value::<FabricPlan>(value.clone()).unwrap(), plan, "the control");
    let other = value["switches"][1].clone();
    for (path, wrong, says) in [
        ("/switches/0/lid", json!(0), "LID"),
        ("/switches/0/lid", json!(0xc000), "LID"),
        ("/switches/0/lid", other["lid"].clone(), "duplicate"),
        ("/switches/0/guid", other["guid"].clone(), "duplicate"),
        ("/switches/0/port_guid", other["port_guid"].clone(), "duplicate"),
        ("/adapter_ports/0/guid", value["adapter_ports"][1]["guid"].clone(), "duplicate"),
        ("/adapter_ports/0/name", value["adapter_ports"][1]["name"].clone(), "duplicate"),
        ("/adapter_ports/0/peer/port", json!(77), "does not name this port as its peer"),
        ("/adapter_ports/0/pkeys", json!(999), "P_Key table 999"),
        ("/switches/0/ports/0/number", json!(0), "port 0"),
        (
            "/switches/0/ports/0/peer",
            value["switches"][0]["ports"][1]["peer"].clone(),
            "does not name this port as its peer",
        ),
        ("/switches/0/ports/0/mtu", json!(0), "MTU"),
        ("/switches/0/linear", json!("!"), "linear table of switch"),
        // Port 77 three times and 384 empty entries, beyond the highest LID.
        ("/switches/0/linear", json!("/k0"), "port 77"),
        ("/switches/0/linear", json!("gf+B/4H/"), "more than"),
        ("/switches/0/multicast", json!({ "49152": [99] }), "port 99"),
        ("/switches/0/multicast", json!({ "5": [1] }), "multicast LID"),
        ("/manager/lid", json!(4000), "manager"),
        ("/groups/0/members/0", json!("0x99"), "end port"),
        ("/groups/0/root", json!("0x99"), "switch"),
        ("/groups/0/partition", json!(0x77), "partition"),
        ("/groups/0/mgid", json!("nobody"), "GID"),
        ("/partitions/0/number", value["partitions"][1]["number"].clone(), "duplicate"),
        ("/partitions/0/name", json!("x".repeat(1000)), "256"),
        ("/pkey_tables/0", json!(vec![1; 70_000]), "65535"),
        ("/basis", json!("12"), "basis"),
    ] {
        let said = refusal(&value, path, wrong);
        assert!(said.contains(says), "{path}: {said}");
    }
}

/// Replaces the n-th value of a document by another.
fn replace(value: &mut Value, left: &mut usize, new: &Value) -> bool {
    if *left == 0 {
        *value = new.clone();
        return true;
    }
    *left -= 1;
    match value {
        Value::Array(list) => list.iter_mut().any(|value| replace(value, left, new)),
        Value::Object(map) => map.values_mut().any(|value| replace(value, left, new)),
        _ => false,
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<u16>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0u64..40).prop_map(Value::from),
        "[A-Za-z0-9+/]{0,12}".prop_map(Value::from),
        (1u64..60).prop_map(|raw| json!(format!("{raw:#x}"))),
        Just(json!([])),
        Just(json!({})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn edited_documents_are_rejected_or_usable(edits in prop::collection::vec((0usize..3000, any_value()), 1..4)) {
        let tree = small_tree();
        let plan = compile(&tree, &sample_intents(&tree), &Decisions::default()).unwrap();
        let mut value = serde_json::to_value(&plan).unwrap();
        for (mut place, new) in edits {
            replace(&mut value, &mut place, &new);
        }
        // A document that is accepted is a usable plan.
        if let Ok(read) = serde_json::from_value::<FabricPlan>(value) {
            let text = serde_json::to_string(&read).unwrap();
            prop_assert_eq!(&serde_json::from_str::<FabricPlan>(&text).unwrap(), &read);
            let _ = recompile(&tree, &sample_intents(&tree), &read);
            let _ = compile(&tree, &sample_intents(&tree), read.decisions());
            let _ = plan.same_channel_order(&read);
        }
    }

    #[test]
    fn edited_texts_are_rejected_or_usable(at in 0usize..100_000, with in "[ -~]{0,4}") {
        let tree = small_tree();
        let plan = compile(&tree, &sample_intents(&tree), &Decisions::default()).unwrap();
        let mut text = serde_json::to_string(&plan).unwrap();
        let at = at % text.len();
        text.replace_range(at..(at + with.len()).min(text.len()), &with);
        let _ = serde_json::from_str::<FabricPlan>(&text);
    }
}
