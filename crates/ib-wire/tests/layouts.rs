//! Every layout, by its own table: each field is read from the range it is written to, and from nowhere else.
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::fs;
use std::path::Path;

use ib_wire::notice::{
    BadMKey, BadPkey, BadQKey, GidEvent, InformInfo, InformInfoRecord, LocalChange, PortEvent, RawNotice,
    SwitchBadPkey, SwitchEvent, SystemGuidChange,
};
use ib_wire::perf::{PortCounters, PortCountersExtended};
use ib_wire::rmpp::RmppHeader;
use ib_wire::sa::{
    GuidInfoRecord, LinearForwardingRecord, LinkRecord, McMemberRecord, MulticastForwardingRecord,
    NodeRecord, PathRecord, PkeyTableRecord, PortInfoRecord, ServiceRecord, SlToVlRecord, SmInfoRecord,
    SwitchInfoRecord, VlArbitrationRecord,
};
use ib_wire::{ClassPortInfo, Field, MlnxExtPortInfo, NodeInfo, PortInfo, SmInfo, SwitchInfo};
use proptest::collection::vec;
use proptest::prelude::*;

/// A layout without its type: its name, its table, its length, and what its bytes become when read and written again.
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
    BadMKey,
    BadPkey,
    BadQKey,
    ClassPortInfo,
    GidEvent,
    GuidInfoRecord,
    InformInfo,
    InformInfoRecord,
    LinearForwardingRecord,
    LinkRecord,
    LocalChange,
    McMemberRecord,
    MlnxExtPortInfo,
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
fn each_field_alone_reads_back_and_touches_no_other_bit() {
    for layout in LAYOUTS {
        let base = smallest_valid(layout);
        for (name, field) in layout.fields.iter().filter(|(_, field)| field.width() <= 64) {
            let mut accepted = 0;
            // The largest value where the type has it; identifiers do not have all numbers.
            for number in
                [field.max(), field.max() >> 1, 0x1122_3344_5566_7788 & field.max(), 0xc000 & field.max(), 1]
            {
                let mut raw = base.clone();
                field.put(&mut raw, number);
                let Some(rewritten) = (layout.rewrite)(&raw) else { continue };
                accepted += 1;
                assert_eq!(rewritten, raw, "{}.{name} = {number:#x}", layout.name);
            }
            assert!(accepted > 0, "{}.{name} takes no value", layout.name);
        }
    }
}

#[test]
fn a_layout_fits_in_no_less_than_its_length() {
    for layout in LAYOUTS {
        let base = smallest_valid(layout);
        assert!((layout.rewrite)(&base[..layout.len - 1]).is_none(), "{} read beyond its end", layout.name);
        let mut longer = base.clone();
        longer.extend([0xff; 9]);
        assert_eq!((layout.rewrite)(&longer), Some(base), "{} read what follows it", layout.name);
    }
}

proptest! {
    #[test]
    fn reserved_bits_are_written_as_0_and_all_others_as_read(raw in vec(any::<u8>(), 176)) {
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

/// All zero, but for the fields that 0 is no value of.
fn smallest_valid(layout: &Layout) -> Vec<u8> {
    let mut raw = vec![0; layout.len];
    if (layout.rewrite)(&raw).is_none() {
        match layout.name {
            "NodeInfo" => (raw[19], raw[27]) = (1, 1),
            "NodeRecord" => (raw[4 + 19], raw[4 + 27]) = (1, 1),
            other => panic!("{other} does not take zeros"),
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
