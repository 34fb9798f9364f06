//! Attributes of subnet and performance management: what is read can be written, and reads the same again.
#![no_main]

use ib_wire::perf::{PortCounters, PortCountersExtended};
use ib_wire::{
    ClassPortInfo, ForwardingBlock, GuidBlock, MAD_LEN, Mad, MlnxExtPortInfo, MulticastBlock,
    NodeDescription, NodeInfo, PkeyBlock, PortInfo, SMP_DATA_LEN, SlToVl, SlToVlSelector, SmInfo, SwitchInfo,
    VlArbBlock, VlArbPart,
};
use libfuzzer_sys::fuzz_target;

macro_rules! stable {
    ($raw:expr, $($ty:ty),*) => { $(
        if let Ok(value) = <$ty>::decode($raw) {
            assert_eq!(<$ty>::decode(&value.encode()), Ok(value));
        }
    )* };
}

macro_rules! stable_block {
    ($raw:expr, $($ty:ty),*) => { $(
        let block = <$ty>::decode($raw);
        assert_eq!(<$ty>::decode(&block.encode()), block);
    )* };
}

fuzz_target!(|raw: &[u8]| {
    stable!(raw, NodeInfo, PortInfo, SwitchInfo, SmInfo, MlnxExtPortInfo, ClassPortInfo);
    stable!(raw, PortCounters, PortCountersExtended);
    if let Some(raw) = raw.first_chunk::<SMP_DATA_LEN>() {
        stable_block!(raw, PkeyBlock, GuidBlock, VlArbBlock, ForwardingBlock, MulticastBlock);
        let _ = NodeDescription::new(&NodeDescription(*raw).text());
    }
    if let Some(raw) = raw.first_chunk::<{ SlToVl::LEN }>() {
        stable_block!(raw, SlToVl);
    }
    if let Some(raw) = raw.first_chunk::<MAD_LEN>() {
        let mut mad = Mad(*raw);
        let hop = mad.hop_pointer();
        let _ = (mad.initial_path(hop), mad.return_path(hop), mad.directed_source(), mad.m_key());
        mad.set_return_path(hop, 1);
        let _ = (SlToVlSelector::from_modifier(mad.modifier()), VlArbPart::from_modifier(mad.modifier()));
        let _ = format!("{mad:?}");
    }
});
