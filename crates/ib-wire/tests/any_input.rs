//! Arbitrary bytes make no decoder panic.

use ib_wire::notice::{Notice, Trap};
use ib_wire::rmpp::{Receiver, Sender};
use ib_wire::sa::{self, Record};
use ib_wire::{
    Attribute, ClassPortInfo, ForwardingBlock, Gid, Guid, GuidBlock, LidAddress, MAD_LEN, Mad,
    ManagementClass, Method, MlnxExtPortInfo, MulticastBlock, NodeDescription, NodeInfo, Packet, Pkey,
    PkeyBlock, PkeyBlockSelector, PortInfo, PortNum, SlToVl, SlToVlSelector, SmInfo, SwitchInfo, VlArbBlock,
    VlArbPart, set_packet_source,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn read_as<R: Record>(raw: &[u8], record_len: usize) {
    let _ = R::decode(raw);
    for record in sa::records::<R>(raw, record_len).flatten() {
        let mut table = Vec::new();
        record.append_to(&mut table);
        assert_eq!(table.len(), R::LEN);
    }
}

fn mad(raw: &[u8]) -> Mad {
    Mad(raw.try_into().expect("the strategy generates MAD_LEN bytes"))
}

proptest! {
    #[test]
    fn attributes(raw in vec(any::<u8>(), 0..300)) {
        let _ = NodeInfo::decode(&raw);
        let _ = PortInfo::decode(&raw);
        let _ = SwitchInfo::decode(&raw);
        let _ = SmInfo::decode(&raw);
        let _ = MlnxExtPortInfo::decode(&raw);
        let _ = ClassPortInfo::decode(&raw);
        let _ = ib_wire::perf::PortCounters::decode(&raw);
        let _ = ib_wire::perf::PortCountersExtended::decode(&raw);
    }

    #[test]
    fn packets(mut raw in vec(any::<u8>(), 0..400), next in 0_u8..4) {
        let words = (raw.len() / 4) as u16;
        if let Some(header) = raw.first_chunk_mut::<8>() {
            // Versions and length that let the rest be read.
            header[0] &= 0xf0;
            header[1] = header[1] & 0xf0 | next;
            header[4..6].copy_from_slice(&words.to_be_bytes());
        }
        if next == 3 && let Some(version) = raw.get_mut(8) {
            *version = 0x60 | *version & 0x0f;
        }
        if let Ok(packet) = Packet::read(&raw) {
            prop_assert!(packet.payload.len() < raw.len());
            let _ = packet.to_datagram();
        }
        set_packet_source(&mut raw, LidAddress::Permissive);
    }

    #[test]
    fn table_blocks(raw: [u8; 64], modifier: u32) {
        prop_assert_eq!(MulticastBlock::decode(&raw).encode(), raw);
        prop_assert_eq!(GuidBlock::decode(&raw).encode(), raw);
        prop_assert_eq!(ForwardingBlock::decode(&raw).encode(), raw);
        let eight = raw[..8].try_into().unwrap();
        prop_assert_eq!(&SlToVl::decode(&eight).encode()[..], &raw[..8]);
        let keys = PkeyBlock::decode(&raw);
        prop_assert_eq!(PkeyBlock::decode(&keys.encode()), keys);
        let entries = VlArbBlock::decode(&raw);
        prop_assert_eq!(VlArbBlock::decode(&entries.encode()), entries);
        prop_assert_eq!(PkeyBlockSelector::from_modifier(modifier).to_modifier(), modifier);
        if let Some(selector) = SlToVlSelector::from_modifier(modifier) {
            prop_assert_eq!(SlToVlSelector::from_modifier(selector.to_modifier()), Some(selector));
        }
        if let Some((part, port)) = VlArbPart::from_modifier(modifier) {
            let port = PortNum::new(port as u8);
            prop_assert!(port.is_none_or(|port| VlArbPart::from_modifier(part.to_modifier(port)).is_some()));
        }
        let _ = NodeDescription(raw).text();
    }

    #[test]
    fn records(raw in vec(any::<u8>(), 0..400), record_len: usize) {
        for record_len in [record_len, record_len % 256, raw.len() & !7] {
            read_as::<sa::NodeRecord>(&raw, record_len);
            read_as::<sa::PortInfoRecord>(&raw, record_len);
            read_as::<sa::SwitchInfoRecord>(&raw, record_len);
            read_as::<sa::SmInfoRecord>(&raw, record_len);
            read_as::<sa::LinkRecord>(&raw, record_len);
            read_as::<sa::GuidInfoRecord>(&raw, record_len);
            read_as::<sa::PathRecord>(&raw, record_len);
            read_as::<sa::McMemberRecord>(&raw, record_len);
            read_as::<sa::ServiceRecord>(&raw, record_len);
            read_as::<sa::PkeyTableRecord>(&raw, record_len);
            read_as::<sa::SlToVlRecord>(&raw, record_len);
            read_as::<sa::VlArbitrationRecord>(&raw, record_len);
            read_as::<sa::LinearForwardingRecord>(&raw, record_len);
            read_as::<sa::MulticastForwardingRecord>(&raw, record_len);
            read_as::<ib_wire::notice::InformInfoRecord>(&raw, record_len);
        }
    }

    #[test]
    fn notices(raw in vec(any::<u8>(), 0..120), details in vec(any::<u8>(), 54), number: u16) {
        if let Ok(notice) = Notice::decode(&raw) {
            prop_assert_eq!(Notice::decode(&notice.encode()), Ok(notice));
        }
        let details = details.try_into().unwrap();
        for number in [number, 64 + number % 4, 128 + number % 4, 144 + number % 2, 256 + number % 4] {
            if let Ok(trap) = Trap::decode(number, &details) {
                prop_assert_eq!(Trap::decode(number, &trap.encode()), Ok(trap));
            }
        }
    }

    #[test]
    fn datagrams(raw in vec(any::<u8>(), MAD_LEN), hop: u8) {
        let mut mad = mad(&raw);
        let _ = (mad.initial_path(hop), mad.return_path(hop), mad.directed_source(), mad.directed_destination());
        let _ = (mad.m_key(), mad.sm_key(), mad.sa_record_len(), mad.component_mask(), mad.perf_data()[0]);
        mad.set_return_path(hop, 1);
        let header = mad.rmpp();
        mad.set_rmpp(&header);
        mad.set_status(mad.status());
        mad.set_method(mad.method());
        let _ = format!("{mad:?}");
    }

    #[test]
    fn transfers(raw in vec((vec(any::<u8>(), 12), any::<bool>()), 0..40), data in vec(any::<u8>(), 0..2000)) {
        let header = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET_TABLE_RESP, Attribute::PATH_RECORD, 0);
        let (mut sender, mut receiver) = (Sender::new(header.clone(), data).unwrap(), Receiver::new());
        for (mut rmpp, sane) in raw {
            if sane {
                // Most random headers end a transfer at once; these do not.
                (rmpp[0], rmpp[1], rmpp[2]) = (1, 1 + rmpp[1] % 2, rmpp[2] | 1);
                (rmpp[4], rmpp[5], rmpp[6], rmpp[7]) = (0, 0, 0, rmpp[7] % 4);
                (rmpp[8], rmpp[9]) = (0, 0);
            }
            let mut mad = header.clone();
            mad.0[24..36].copy_from_slice(&rmpp);
            let _ = (receiver.handle(&mad), sender.handle(&mad));
            let _ = (receiver.poll_transmit(), sender.poll_transmit(), sender.handle_timeout());
        }
    }

    #[test]
    fn texts(text in ".*", raw: u16, gid: [u8; 16]) {
        let _ = (text.parse::<Guid>(), text.parse::<Pkey>(), text.parse::<PortNum>());
        let _ = (NodeDescription::new(&text).text(), LidAddress::from_wire(raw));
        let _ = (Gid(gid).to_string(), Gid(gid).guid(), Gid(gid).prefix());
    }
}
