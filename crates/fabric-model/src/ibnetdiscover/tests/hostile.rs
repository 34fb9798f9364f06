//! The reader handles any text, in bounded time and memory.

use proptest::prelude::*;

use super::*;
use crate::topology::NODES_MAX;

/// A test file with some bytes changed, removed or inserted.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), prop::option::of(any::<u8>()), any::<bool>());
    let seeds = prop::sample::select(vec![SHORT, MODULES, TREE]);
    (seeds, prop::collection::vec(change, 1..12)).prop_map(|(text, changes)| {
        let mut bytes = text.as_bytes().to_vec();
        for (index, byte, insert) in changes {
            let at = index.index(bytes.len());
            match byte {
                Some(byte) if insert => bytes.insert(at, byte),
                Some(byte) => bytes[at] = byte,
                None => drop(bytes.remove(at)),
            }
        }
        bytes
    })
}

/// Tokens of the format in random order.
fn tokens() -> impl Strategy<Value = String> {
    let tokens = [
        "Switch ",
        "Ca ",
        "Rt ",
        "[",
        "]",
        "(",
        ")",
        "\"",
        "\"s\"",
        "@",
        "#",
        "1",
        "2",
        "254",
        "0x",
        "=",
        "+",
        "\n",
        "\n\n",
        " lid ",
        "lmc ",
        "4xEDR",
        "switchguid",
        "caguid",
        "module",
        "w=",
        "s=",
        "18446744073709551615",
        "ü",
        "\r",
        "\t",
    ];
    prop::collection::vec(prop::sample::select(tokens.to_vec()), 0..60).prop_map(|tokens| tokens.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn any_bytes_are_parsed_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes);
    }

    #[test]
    fn mutated_files_are_parsed_or_rejected(bytes in mutated()) {
        if let Ok(topology) = read(&bytes) {
            prop_assert_eq!(parse(&write(&topology)).map(|again| again.links().count()), Ok(topology.links().count()));
        }
    }

    #[test]
    fn tokens_in_random_order_are_parsed_or_rejected(text in tokens()) {
        if let Err(error) = parse(&text) {
            let lines = text.lines().count();
            prop_assert!((1..=lines).contains(&error.line), "{error} in {lines} lines");
        }
    }
}

#[test]
fn long_lines_are_rejected() {
    let line = format!("# {}", "x".repeat(LINE_BYTES_MAX));
    let expected = "line 1, column 1: a line has at most 4096 bytes, got 4098";
    assert_eq!(message(&line), expected);
}

#[test]
fn too_many_nodes_are_rejected_at_the_first_excess_node() {
    let mut text = String::new();
    for number in 0..=NODES_MAX {
        text.push_str(&format!("Ca 1 \"h{number}\"\n"));
    }
    assert_eq!(message(&text), "line 65537, column 6: a topology has at most 65536 nodes");
}

#[test]
fn a_small_file_cannot_allocate_gigabytes_of_ports() {
    let text: String = (0..NODES_MAX).map(|number| format!("Switch 254 \"s{number}\"\n")).collect();
    assert!(message(&text).ends_with("the nodes of a topology have at most 1048576 ports together"));
}

#[test]
fn overflowing_guids_are_rejected() {
    let text = "switchguid=0xffffffffffffffff\nSwitch 1 \"a\"\n\nSwitch 1 \"b\"\n";
    assert!(message(text).starts_with("line 4, column 10: expected a GUID before the node"));
}
