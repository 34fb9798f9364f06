//! Every layout against its own field table: each field is decoded from the bits that it is encoded to, and from no others.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use ib_wire::notice::{
    BadMKey, BadPkey, BadQKey, GidEvent, InformInfo, InformInfoRecord, LocalChange, PortEvent, RawNotice,
    SwitchBadPkey, SwitchEvent, SystemGuidChange,
};
use ib_wire::packet::{BaseTransportHeader, DatagramHeader, GlobalRouteHeader, LocalRouteHeader};
use ib_wire::perf::{PortCounters, PortCountersExtended};
use ib_wire::rmpp::RmppHeader;
use ib_wire::sa::{
    GuidInfoRecord, LinearForwardingRecord, LinkRecord, McMemberRecord, MultiPathRecord,
    MulticastForwardingRecord, NodeRecord, PathRecord, PkeyTableRecord, PortInfoRecord, ServiceRecord,
    SlToVlRecord, SmInfoRecord, SwitchInfoRecord, VlArbitrationRecord,
};
use ib_wire::{
    AdaptiveRoutingInfo, ClassPortInfo, Field, MlnxExtPortInfo, NodeInfo, PortInfo, SmInfo, SwitchInfo,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// A layout without its type: name, field table, length, and a function that decodes and encodes its bytes.
struct Layout {
    name: &'static str,
    fields: &'static [(&'static str, Field)],
    len: usize,
    rewrite: fn(&[u8]) -> Option<Vec<u8>>,
}

macro_rules! layouts {
    ($($ty:ident),* $(,)?) => {
        const LAYOUTS: &[Layout] = &[$( Layout {
            name: stringify!($ty),
            fields: $ty::FIELDS,
            len: $ty::LEN,
            rewrite: |raw| {
                let value = $ty::decode(raw).ok()?;
                let bytes = value.encode();
                assert_eq!($ty::decode(&bytes), Ok(value), "decode(encode(x)) is not x");
                Some(bytes.to_vec())
            },
        } ),*];
    };
}

layouts!(
    AdaptiveRoutingInfo,
    BadMKey,
    BadPkey,
    BadQKey,
    BaseTransportHeader,
    ClassPortInfo,
    DatagramHeader,
    GidEvent,
    GlobalRouteHeader,
    GuidInfoRecord,
    InformInfo,
    InformInfoRecord,
    LinearForwardingRecord,
    LinkRecord,
    LocalChange,
    LocalRouteHeader,
    McMemberRecord,
    MlnxExtPortInfo,
    MultiPathRecord,
    MulticastForwardingRecord,
    NodeInfo,
    NodeRecord,
    PathRecord,
    PkeyTableRecord,
    PortCounters,
    PortCountersExtended,
    PortEvent,
    PortInfo,
    PortInfoRecord,
    RawNotice,
    RmppHeader,
    ServiceRecord,
    SlToVlRecord,
    SmInfo,
    SmInfoRecord,
    SwitchBadPkey,
    SwitchEvent,
    SwitchInfo,
    SwitchInfoRecord,
    SystemGuidChange,
    VlArbitrationRecord,
);

#[test]
fn every_layout_of_the_crate_is_in_the_list() {
    let declared = count_layouts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    // Two are declared inside a test of the macro itself.
    assert_eq!(LAYOUTS.len(), declared - 2);
}

#[test]
fn each_field_survives_a_round_trip_alone() {
    for layout in LAYOUTS {
        let base = smallest_valid(layout);
        for (name, field) in layout.fields.iter().filter(|(_, field)| field.width() <= 64) {
            let mut accepted = 0;
            // Identifiers do not accept every number; at least one of these is valid for each.
            for number in
                [field.max(), field.max() >> 1, 0x1122_3344_5566_7788 & field.max(), 0xc000 & field.max(), 1]
            {
                let mut raw = base.clone();
                field.put(&mut raw, number);
                let Some(rewritten) = (layout.rewrite)(&raw) else { continue };
                accepted += 1;
                assert_eq!(rewritten, raw, "{}.{name} = {number:#x}", layout.name);
            }
            assert!(accepted > 0, "{}.{name} accepts none of the numbers", layout.name);
        }
    }
}

#[test]
fn decoding_needs_all_bytes_and_ignores_further_ones() {
    for layout in LAYOUTS {
        let base = smallest_valid(layout);
        assert!(
            (layout.rewrite)(&base[..layout.len - 1]).is_none(),
            "{} was decoded from too few bytes",
            layout.name
        );
        let mut longer = base.clone();
        longer.extend([0xff; 9]);
        assert_eq!((layout.rewrite)(&longer), Some(base), "{} decoded bytes behind its end", layout.name);
    }
}

proptest! {
    #[test]
    fn only_reserved_bits_change_in_a_round_trip(raw in vec(any::<u8>(), 176)) {
        for layout in LAYOUTS {
            let raw = &raw[..layout.len];
            let Some(once) = (layout.rewrite)(raw) else { continue };
            prop_assert_eq!((layout.rewrite)(&once), Some(once.clone()), "{} is not stable", layout.name);
            let mut expected = vec![0; layout.len];
            for (_, field) in layout.fields {
                if field.width() <= 64 {
                    field.put(&mut expected, field.get(raw));
                } else {
                    // Layouts and blocks inside have reserved bits of their own, tested where they are declared.
                    let range = field.first_byte()..field.end_byte();
                    expected[range.clone()].copy_from_slice(&once[range]);
                }
            }
            prop_assert_eq!(once, expected, "{}", layout.name);
        }
    }
}

/// All zero except the fields for which 0 is not valid.
fn smallest_valid(layout: &Layout) -> Vec<u8> {
    let mut raw = vec![0; layout.len];
    if (layout.rewrite)(&raw).is_none() {
        match layout.name {
            "NodeInfo" => (raw[19], raw[27]) = (1, 1),
            "NodeRecord" => (raw[4 + 19], raw[4 + 27]) = (1, 1),
            other => panic!("{other} cannot be all zero"),
        }
    }
    (layout.rewrite)(&raw).expect("these are valid")
}

fn count_layouts(folder: &Path) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            count += count_layouts(&path);
        } else {
            let text = fs::read_to_string(&path).unwrap();
            count += text.lines().filter(|line| line.trim_start().starts_with("layout! {")).count();
        }
    }
    count
}
