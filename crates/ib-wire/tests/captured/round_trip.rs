//! Decoding and encoding every captured datagram: only reserved bits may change.

use ib_wire::notice::{GidEvent, InformInfo, InformInfoRecord, LocalChange, Notice, RawNotice, SwitchEvent};
use ib_wire::perf::{PortCounters, PortCountersExtended};
use ib_wire::sa;
use ib_wire::{
    Attribute, ClassPortInfo, DirectedRoute, Field, ForwardingBlock, GuidBlock, LayoutError, Mad,
    ManagementClass, Method, MlnxExtPortInfo, MulticastBlock, NodeInfo, PkeyBlock, PortInfo, PortNum,
    SMP_DATA_LEN, SlToVl, SmInfo, Status, SwitchInfo, VlArbBlock, bits, bytes,
};

use super::capture::{exchanges, is_directed};

const FILES: [&str; 4] = ["smp.json", "perf.json", "sa.json", "notice.json"];

/// Datagrams whose data is not compared, with the reason.
const NOT_COMPARED: &[(&str, &str)] = &[
    ("set-guidinfo-ca response", "refused with status 0x08; the data is not a GUIDInfo"),
    (
        "gettable-pkeytablerecord-untrusted response",
        "refused; the bytes after the record are uninitialised memory",
    ),
];

/// The fields of a layout, shifted to its offset in the data.
type Fields = Vec<Field>;

#[test]
fn captured_headers_survive_a_round_trip() {
    let mut compared = 0;
    for file in FILES {
        for exchange in exchanges(file) {
            for (name, mad) in exchange.datagrams() {
                let header_len = match mad.class() {
                    ManagementClass::SUBNET_ADMINISTRATION => 56,
                    _ => 64,
                };
                let written = rewrite_header(mad);
                assert_eq!(written.0[..header_len], mad.0[..header_len], "{file} {name}");
                if is_directed(mad) {
                    let hops = usize::from(mad.hop_count());
                    // Stock software does not clear the path behind the last hop.
                    assert_eq!(written.0[128..=128 + hops], mad.0[128..=128 + hops], "{file} {name}: path");
                }
                compared += 1;
            }
        }
    }
    assert!(compared >= 150, "{compared} headers");
}

#[test]
fn captured_data_survives_a_round_trip() {
    let (mut compared, mut excepted) = (0, 0);
    for file in FILES {
        for exchange in exchanges(file) {
            for (name, mad) in exchange.datagrams() {
                // The data of a Get is undefined.
                if mad.method() == Method::GET && mad.class() != ManagementClass::SUBNET_ADMINISTRATION {
                    continue;
                }
                if NOT_COMPARED.iter().any(|(excepted, _)| *excepted == name) {
                    excepted += 1;
                    continue;
                }
                compared += compare_data(mad, &format!("{file} {name}"));
            }
        }
    }
    assert_eq!(excepted, NOT_COMPARED.len(), "NOT_COMPARED names a datagram that does not exist");
    assert!(compared >= 100, "{compared} attributes");
}

/// Builds a new header from the values of the accessors.
fn rewrite_header(mad: &Mad) -> Mad {
    let mut new = if is_directed(mad) {
        let hops = (1..=mad.hop_count()).map(|hop| PortNum::new(mad.initial_path(hop).unwrap()).unwrap());
        let route = DirectedRoute::new(hops).unwrap();
        let mut new = Mad::directed(mad.method(), mad.attribute(), mad.modifier(), &route);
        new.set_directed_ends(mad.directed_source().unwrap(), mad.directed_destination().unwrap());
        new.set_hop_pointer(mad.hop_pointer());
        if mad.is_returning() {
            new.set_returning();
        }
        new
    } else {
        Mad::new(mad.class(), mad.method(), mad.attribute(), mad.modifier())
    };
    assert!(mad.has_known_versions());
    new.set_status(mad.status());
    new.set_transaction(mad.transaction());
    if mad.class().is_subnet_management() {
        new.set_m_key(mad.m_key());
    } else if mad.class() == ManagementClass::SUBNET_ADMINISTRATION {
        new.set_rmpp(&mad.rmpp());
        new.set_sm_key(mad.sm_key());
        new.set_sa_record_len(mad.sa_record_len());
        new.set_component_mask(mad.component_mask());
    }
    new
}

/// Compares the data of a datagram with its encoding; returns the number of attributes in it.
fn compare_data(mad: &Mad, name: &str) -> usize {
    match mad.class() {
        ManagementClass::SUBNET_ADMINISTRATION if mad.attribute() == Attribute::NOTICE => {
            let rewrite: Rewrite = |raw| Notice::decode(raw).map(|notice| notice.encode().to_vec());
            compare(mad.sa_data(), rewrite, &notice_fields(mad.sa_data(), RawNotice::LEN), name)
        }
        _ if mad.attribute() == Attribute::NOTICE => {
            let rewrite: Rewrite =
                |raw| Notice::decode_smp(raw.try_into().unwrap()).map(|n| n.encode_smp().to_vec());
            compare(mad.smp_data(), rewrite, &notice_fields(mad.smp_data(), SMP_DATA_LEN), name)
        }
        ManagementClass::SUBNET_ADMINISTRATION => compare_records(mad, name),
        ManagementClass::PERFORMANCE => {
            let (rewrite, fields) = perf_attribute(mad.attribute());
            compare(mad.perf_data(), rewrite, &fields, name)
        }
        _ => {
            let (rewrite, fields) = smp_attribute(mad.attribute());
            compare(mad.smp_data(), rewrite, &fields, name)
        }
    }
}

fn compare_records(mad: &Mad, name: &str) -> usize {
    let (rewrite, fields) = sa_attribute(mad.attribute());
    if mad.method() == Method::GET_TABLE {
        // The pattern of a request need not be a valid record; `matches` is tested with it.
        return 0;
    }
    if mad.method() != Method::GET_TABLE_RESP {
        return compare(mad.sa_data(), rewrite, &fields, name);
    }
    if mad.status() != Status::OK || mad.sa_record_len() == 0 {
        return 0;
    }
    // The captured bytes behind the last record are zero.
    let records =
        mad.sa_data().chunks_exact(mad.sa_record_len()).filter(|record| record.iter().any(|byte| *byte != 0));
    records.map(|record| compare(record, rewrite, &fields, name)).sum()
}

/// Decodes and encodes a layout.
type Rewrite = fn(&[u8]) -> Result<Vec<u8>, LayoutError>;

fn compare(raw: &[u8], rewrite: Rewrite, fields: &Fields, name: &str) -> usize {
    let written = rewrite(raw).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut expected = vec![0; written.len()];
    for field in fields {
        if field.width() <= 64 {
            field.put(&mut expected, field.get(raw));
        } else {
            let range = field.first_byte()..field.end_byte();
            expected[range.clone()].copy_from_slice(&raw[range]);
        }
    }
    assert_eq!(written, expected, "{name}");
    1
}

macro_rules! layout {
    ($ty:ty) => {
        (
            |raw| <$ty>::decode(raw).map(|value| value.encode().to_vec()),
            shifted_fields(<$ty>::FIELDS, 0, usize::MAX),
        )
    };
    // A layout that holds another one at `$at`.
    ($ty:ty, $inner:ty, $at:literal) => {{
        let mut all = shifted_fields(<$ty>::FIELDS, 0, usize::MAX);
        all.retain(|field| field.first_byte() != $at);
        all.extend(shifted_fields(<$inner>::FIELDS, $at, usize::MAX));
        (|raw| <$ty>::decode(raw).map(|value| value.encode().to_vec()), all)
    }};
}

macro_rules! block {
    ($ty:ty, $len:literal) => {
        (
            |raw| Ok(<$ty>::decode(raw[..$len].try_into().unwrap()).encode().to_vec()),
            (0..$len).map(|byte| bytes(byte, 1)).collect(),
        )
    };
}

fn smp_attribute(attribute: Attribute) -> (Rewrite, Fields) {
    match attribute {
        Attribute::NODE_INFO => layout!(NodeInfo),
        Attribute::PORT_INFO => layout!(PortInfo),
        Attribute::SWITCH_INFO => layout!(SwitchInfo),
        Attribute::SM_INFO => layout!(SmInfo),
        Attribute::MLNX_EXT_PORT_INFO => layout!(MlnxExtPortInfo),
        Attribute::NODE_DESCRIPTION => {
            (|raw| Ok(raw[..64].to_vec()), shifted_fields(&[("text", bytes(0, 64))], 0, 64))
        }
        Attribute::GUID_INFO => block!(GuidBlock, 64),
        Attribute::PKEY_TABLE => block!(PkeyBlock, 64),
        Attribute::SL_TO_VL => block!(SlToVl, 8),
        Attribute::VL_ARBITRATION => {
            let (rewrite, _): (Rewrite, Fields) = block!(VlArbBlock, 64);
            (rewrite, (0..32).flat_map(|i| [bits(2 * i, 3, 0), bytes(2 * i + 1, 1)]).collect())
        }
        Attribute::LINEAR_FORWARDING => block!(ForwardingBlock, 64),
        Attribute::MULTICAST_FORWARDING => block!(MulticastBlock, 64),
        other => panic!("{other:?} of subnet management is not decoded by the crate"),
    }
}

fn perf_attribute(attribute: Attribute) -> (Rewrite, Fields) {
    match attribute {
        Attribute::CLASS_PORT_INFO => layout!(ClassPortInfo),
        Attribute::PORT_COUNTERS => layout!(PortCounters),
        Attribute::PORT_COUNTERS_EXT => layout!(PortCountersExtended),
        other => panic!("{other:?} of performance management is not decoded by the crate"),
    }
}

fn sa_attribute(attribute: Attribute) -> (Rewrite, Fields) {
    match attribute {
        Attribute::CLASS_PORT_INFO => layout!(ClassPortInfo),
        Attribute::NODE_RECORD => layout!(sa::NodeRecord, NodeInfo, 4),
        Attribute::PORT_INFO_RECORD => layout!(sa::PortInfoRecord, PortInfo, 4),
        Attribute::SWITCH_INFO_RECORD => layout!(sa::SwitchInfoRecord, SwitchInfo, 4),
        Attribute::SM_INFO_RECORD => layout!(sa::SmInfoRecord, SmInfo, 4),
        Attribute::LINK_RECORD => layout!(sa::LinkRecord),
        Attribute::GUID_INFO_RECORD => layout!(sa::GuidInfoRecord),
        Attribute::PATH_RECORD => layout!(sa::PathRecord),
        Attribute::MC_MEMBER_RECORD => layout!(sa::McMemberRecord),
        Attribute::SERVICE_RECORD => layout!(sa::ServiceRecord),
        Attribute::PKEY_TABLE_RECORD => layout!(sa::PkeyTableRecord),
        Attribute::SL_TO_VL_RECORD => layout!(sa::SlToVlRecord),
        Attribute::VL_ARBITRATION_RECORD => layout!(sa::VlArbitrationRecord),
        Attribute::LINEAR_FORWARDING_RECORD => layout!(sa::LinearForwardingRecord),
        Attribute::MULTICAST_FORWARDING_RECORD => layout!(sa::MulticastForwardingRecord),
        Attribute::INFORM_INFO_RECORD => layout!(InformInfoRecord, InformInfo, 24),
        other => panic!("{other:?} of subnet administration is not decoded by the crate"),
    }
}

/// The fields of a notice, and of the details of its trap.
fn notice_fields(raw: &[u8], len: usize) -> Fields {
    const DETAILS: usize = 10;
    let mut all = shifted_fields(RawNotice::FIELDS, 0, len);
    all.retain(|field| field.first_byte() != DETAILS);
    let details = match u16::from_be_bytes([raw[4], raw[5]]) {
        64 | 65 => GidEvent::FIELDS,
        128 => SwitchEvent::FIELDS,
        144 => LocalChange::FIELDS,
        other => panic!("trap {other} has no layout in this test"),
    };
    all.extend(shifted_fields(details, DETAILS, len));
    all
}

/// The fields of a layout that starts `at` bytes later, as far as they end before `len`.
fn shifted_fields(fields: &[(&str, Field)], at: usize, len: usize) -> Fields {
    fields.iter().map(|(_, field)| field.moved_by(at)).filter(|field| field.end_byte() <= len).collect()
}
