use ib_wire::{Attribute, ManagementClass, Method};
use proptest::prelude::*;

use super::*;

fn datagram(grh: bool) -> Datagram {
    let lid = |raw| LidAddress::from_wire(raw).unwrap();
    let mut mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET, Attribute::PATH_RECORD, 7);
    mad.0[255] = 0x5a;
    let mut datagram =
        Datagram::general_management(lid(0x0102), lid(0x0304), Pkey::from_wire(0x8005).unwrap(), mad);
    datagram.sl = ServiceLevel::from_wire(3).unwrap();
    datagram.sqp = QueuePair::from_wire(0x00_1234).unwrap();
    datagram.grh = grh.then_some(Grh {
        source: Gid([1; 16]),
        destination: Gid([2; 16]),
        traffic_class: 9,
        flow_label: 0xabcde,
        hop_limit: 64,
    });
    datagram
}

fn samples() -> Vec<Frame> {
    vec![
        Frame::Attach(Attach { node_id: String::new(), role: ClientRole::Ordinary }),
        Frame::Attach(Attach { node_id: "node ü".to_owned(), role: ClientRole::SubnetManager }),
        Frame::Attached(Attached { client: 77, lid: Lid::from_wire(5), port_guid: Guid::from_wire(6) }),
        Frame::Attached(Attached { client: 0, lid: None, port_guid: None }),
        Frame::GetPortDetails,
        Frame::PortDetails(Box::new(PortDetails {
            node_info: [1; 64],
            port_info: [2; 64],
            pkeys: [3; 64],
            gid: Gid([4; 16]),
            port_guid: Guid::from_wire(5).unwrap(),
            lid: Lid::from_wire(6),
            state: PortState::Active,
            vendor: Vendor { vendor_id: 6, part_id: 7, hardware_version: 8, firmware_version: 9 },
            node_id: "node ü".to_owned(),
        })),
        Frame::Refused(RefusalCode::UnknownNode),
        Frame::Refused(RefusalCode::Full),
        Frame::Refused(RefusalCode::Malformed),
        Frame::Refused(RefusalCode::Unknown(99)),
        Frame::Datagram(Box::new(datagram(false))),
        Frame::Datagram(Box::new(datagram(true))),
        Frame::Lost(TransactionId(u64::MAX - 1)),
        Frame::SetRole(ClientRole::SubnetManager),
        Frame::GetPortState,
        Frame::PortState { lid: Lid::from_wire(0xbfff), state: PortState::Armed },
    ]
}

/// Reads the frames of a stream that arrives in pieces of `step` bytes.
fn read_all(stream: &[u8], step: usize) -> Result<Vec<Frame>, FrameError> {
    let mut reader = FrameReader::default();
    let mut frames = Vec::new();
    for piece in stream.chunks(step) {
        let room = reader.room();
        room[..piece.len()].copy_from_slice(piece);
        reader.filled(piece.len());
        while let Some(frame) = reader.next_frame()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

#[test]
fn frames_are_found_in_a_stream_of_any_pieces() {
    let mut stream = Vec::new();
    for frame in samples() {
        frame.encode(&mut stream);
    }
    for step in [1, 2, 3, 7, 64, 333, 4096] {
        assert_eq!(read_all(&stream, step), Ok(samples()), "step {step}");
    }
}

#[test]
fn a_datagram_frame_has_the_documented_bytes() {
    let mut raw = Vec::new();
    Frame::encode_datagram(&datagram(true), &mut raw);
    assert_eq!(raw.len(), FRAME_MAX);
    assert_eq!(raw[..8], [0, 0, 1, 0x40, 1, 4, 0, 0]);
    assert_eq!(raw[8..16], [1, 2, 3, 4, 3, 1, 0x80, 5]);
    assert_eq!(raw[16..28], [0x80, 1, 0, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 1]);
    assert_eq!(raw[60..68], [0, 0xa, 0xbc, 0xde, 9, 64, 0, 0]);
    assert_eq!(raw[323], 0x5a);
}

#[test]
fn an_invalid_length_is_rejected_at_once() {
    for length in [0, 3, FRAME_MAX as u32 - 3, u32::MAX] {
        assert_eq!(read_all(&length.to_be_bytes(), 4), Err(FrameError::Length(length)));
    }
}

#[test]
fn decode_errors_name_the_invalid_value() {
    assert_eq!(Frame::decode(&[2, 7, 0, 0]), Err(FrameError::Version(2)));
    assert_eq!(Frame::decode(&[1, 0, 0, 0]), Err(FrameError::Kind(0)));
    assert_eq!(Frame::decode(&[1, 7, 0, 0, 0]), Err(FrameError::BodyLength { kind: 7, length: 1 }));
    assert_eq!(Frame::decode(&[1, 1, 0, 0, 0, 0, 0, 0, 0xff]), Err(FrameError::NodeId));
    let mut raw = Vec::new();
    Frame::encode_datagram(&datagram(false), &mut raw);
    raw[10..12].fill(0);
    assert_eq!(Frame::decode(&raw[4..]), Err(FrameError::Field { field: "the destination LID", value: 0 }));
}

#[test]
fn a_long_node_id_is_truncated_at_a_character() {
    let mut raw = Vec::new();
    Frame::Attach(Attach { node_id: "ü".repeat(40), role: ClientRole::Ordinary }).encode(&mut raw);
    let expected = Attach { node_id: "ü".repeat(32), role: ClientRole::Ordinary };
    assert_eq!(Frame::decode(&raw[4..]), Ok(Frame::Attach(expected)));
}

proptest! {
    #[test]
    fn no_input_panics(mut raw in proptest::collection::vec(any::<u8>(), 0..400), kind in 0..10_u8, step in 1..50_usize) {
        let _ = read_all(&raw, step);
        if raw.len() >= 4 {
            raw[0] = VERSION;
            raw[1] = kind;
            if let Ok(frame) = Frame::decode(&raw) {
                let mut again = Vec::new();
                frame.encode(&mut again);
                prop_assert_eq!(Frame::decode(&again[4..]), Ok(frame));
            }
        }
    }
}
