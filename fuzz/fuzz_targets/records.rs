//! Records of the subnet administration: tables of any record length, and patterns of any mask.
#![no_main]

use ib_wire::notice::InformInfoRecord;
use ib_wire::sa::{self, Record};
use ib_wire::{MAD_LEN, Mad};
use libfuzzer_sys::fuzz_target;

fn check<R: Record>(mad: &Mad) {
    for record in sa::records::<R>(mad.sa_data(), mad.sa_record_len()).flatten() {
        let mut table = Vec::new();
        record.append_to(&mut table);
        assert_eq!(table.len(), R::LEN);
        let again = R::decode(&table).expect("what was written can be read");
        assert!(sa::matches(&again, mad.sa_data(), sa::ComponentMask::NONE));
        let _ = sa::matches(&again, mad.sa_data(), mad.component_mask());
    }
}

fuzz_target!(|raw: &[u8]| {
    let Some(raw) = raw.first_chunk::<MAD_LEN>() else { return };
    let mad = Mad(*raw);
    check::<sa::NodeRecord>(&mad);
    check::<sa::PortInfoRecord>(&mad);
    check::<sa::SwitchInfoRecord>(&mad);
    check::<sa::SmInfoRecord>(&mad);
    check::<sa::LinkRecord>(&mad);
    check::<sa::GuidInfoRecord>(&mad);
    check::<sa::PathRecord>(&mad);
    check::<sa::McMemberRecord>(&mad);
    check::<sa::ServiceRecord>(&mad);
    check::<sa::PkeyTableRecord>(&mad);
    check::<sa::SlToVlRecord>(&mad);
    check::<sa::VlArbitrationRecord>(&mad);
    check::<sa::LinearForwardingRecord>(&mad);
    check::<sa::MulticastForwardingRecord>(&mad);
    check::<InformInfoRecord>(&mad);
});
