//! Notices and subscriptions: what is read can be written, and reads the same again.
#![no_main]

use ib_wire::SMP_DATA_LEN;
use ib_wire::notice::{InformInfo, Notice};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|raw: &[u8]| {
    if let Ok(notice) = Notice::decode(raw) {
        assert_eq!(Notice::decode(&notice.encode()), Ok(notice));
    }
    if let Some(raw) = raw.first_chunk::<SMP_DATA_LEN>() {
        if let Ok(notice) = Notice::decode_smp(raw) {
            assert_eq!(Notice::decode_smp(&notice.encode_smp()), Ok(notice));
        }
    }
    if let Ok(info) = InformInfo::decode(raw) {
        assert_eq!(InformInfo::decode(&info.encode()), Ok(info));
    }
});
