//! The topology reader: what it accepts, it writes, and reads the same again.
#![no_main]

use fabric_model::ibnetdiscover;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    if let Ok(topology) = ibnetdiscover::read(text) {
        let written = ibnetdiscover::write(&topology);
        assert_eq!(ibnetdiscover::parse(&written).expect("what was written can be read"), topology);
    }
});
