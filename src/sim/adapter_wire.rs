//! Messages between the emulation and an InfiniBand adapter of software in a virtual machine: Ethernet frames with a whole packet,
//! or with the state of the port. `guest-module/wire.h` is the other side.

use fabric_sim::FunctionPort;
use ib_wire::Gid;

/// IEEE 802: for local experiments.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const ETHERNET_LEN: usize = 14;
/// Kind, version, length of the body.
const HEADER_LEN: usize = 4;
const VERSION: u8 = 1;

const PACKET: u8 = 1;
const PORT: u8 = 2;
const HELLO: u8 = 3;
const HELLO_LEN: usize = 80;
/// Flag of a hello, in the word after the sequence number: a subnet manager has opened `issm`.
const HELLO_IS_SM: u32 = 1;

const PORT_LEN: usize = 456;
const KEYS_MAX: usize = 128;

/// Address of the emulation. Machines send to broadcast.
const OWN_ADDRESS: [u8; 6] = [0x06, 0x68, 0x63, 0xff, 0xff, 0xff];

/// What a machine sent.
#[derive(Debug, PartialEq, Eq)]
pub enum FromGuest<'a> {
    Packet(&'a [u8]),
    /// Its driver started, or something about it has changed. The answer is the state of its port.
    Hello {
        sequence: u32,
        /// A subnet manager has opened the device for it.
        is_sm: bool,
    },
}

/// Reads a frame of a machine; `None` if it is no message.
pub fn read(frame: &[u8]) -> Option<FromGuest<'_>> {
    let (ethernet, message) = frame.split_at_checked(ETHERNET_LEN)?;
    let (header, rest) = message.split_first_chunk::<HEADER_LEN>()?;
    let [kind, version, high, low] = *header;
    // What follows is padding of Ethernet.
    let body = rest.get(..usize::from(u16::from_be_bytes([high, low])))?;
    if ethernet[12..] != ETHERTYPE || version != VERSION {
        return None;
    }
    match kind {
        PACKET => Some(FromGuest::Packet(body)),
        HELLO if body.len() >= HELLO_LEN => {
            let (sequence, flags) = body.split_first_chunk()?;
            let is_sm = u32::from_be_bytes(*flags.first_chunk()?) & HELLO_IS_SM != 0;
            Some(FromGuest::Hello { sequence: u32::from_be_bytes(*sequence), is_sm })
        }
        _ => None,
    }
}

/// A message with a packet.
pub fn packet(packet: &[u8]) -> Vec<u8> {
    message(PACKET, packet)
}

/// A message with the state of a port. `hello` is the sequence number of the message that it answers, or 0.
pub fn port(port: &FunctionPort, hello: u32) -> Vec<u8> {
    let FunctionPort { guid, info, registrations, first_queue_pair, queue_pairs, keys, .. } = port;
    let mut body = [0; PORT_LEN];
    let mut put = |at: usize, bytes: &[u8]| body[at..at + bytes.len()].copy_from_slice(bytes);
    let guid = guid.to_wire().to_be_bytes();
    put(0, &guid);
    // Not that of the adapter: tenants could tell which of their machines share a host, and which host it is.
    put(8, &guid);
    put(16, &guid);
    put(24, &if info.gid_prefix == 0 { Gid::DEFAULT_PREFIX } else { info.gid_prefix }.to_be_bytes());
    put(32, &info.capability.without(ib_wire::Capability::IS_SM).0.to_be_bytes());
    put(36, &registrations.to_be_bytes());
    put(40, &first_queue_pair.to_be_bytes());
    put(44, &queue_pairs.to_be_bytes());
    put(48, &hello.to_be_bytes());
    put(52, &info.lid.map_or(0, ib_wire::Lid::to_wire).to_be_bytes());
    put(54, &info.master_sm_lid.map_or(0, ib_wire::Lid::to_wire).to_be_bytes());
    put(56, &[info.lmc.to_wire(), info.master_sm_sl.to_wire()]);
    put(58, &[info.state.to_wire(), info.physical_state.to_wire()]);
    put(60, &[info.mtu_cap.to_wire(), info.neighbor_mtu.to_wire()]);
    put(62, &[info.link_width_active.0, info.subnet_timeout]);
    put(64, &speed(info).to_be_bytes());
    let count = keys.len().min(KEYS_MAX);
    put(66, &[1, count as u8]);
    put(72, &guid);
    for (index, key) in keys.iter().take(count).enumerate() {
        put(200 + 2 * index, &key.to_wire().to_be_bytes());
    }
    message(PORT, &body)
}

/// The active speed as one bit: 1 SDR, 2 DDR, 4 QDR, 16 FDR, 32 EDR, 64 HDR, 128 NDR.
fn speed(info: &ib_wire::PortInfo) -> u16 {
    match info.extended_speed_active.0 {
        0 => u16::from(info.link_speed_active.0.max(1)),
        extended => u16::from(extended) << 4,
    }
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    // Bodies are shorter than 64 KiB: packets have a length of 11 bits in words.
    let [high, low] = (body.len() as u16).to_be_bytes();
    [&[0xff; 6][..], &OWN_ADDRESS, &ETHERTYPE, &[kind, VERSION, high, low], body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_and_others_are_not() {
        let sent = packet(&[1, 2, 3, 4]);
        assert_eq!(read(&sent), Some(FromGuest::Packet(&[1, 2, 3, 4])));
        let padded = [&sent[..], &[0; 40]].concat();
        assert_eq!(read(&padded), Some(FromGuest::Packet(&[1, 2, 3, 4])));
        let hello = message(HELLO, &[&[0, 0, 0, 9][..], &[0; 76]].concat());
        assert_eq!(read(&hello), Some(FromGuest::Hello { sequence: 9, is_sm: false }));
        let of_manager = message(HELLO, &[&[0, 0, 0, 9, 0, 0, 0, 1][..], &[0; 72]].concat());
        assert_eq!(read(&of_manager), Some(FromGuest::Hello { sequence: 9, is_sm: true }));
        for length in 0..sent.len() {
            assert_eq!(read(&sent[..length]), None);
        }
        assert_eq!(read(&hello[..hello.len() - 1]), None);
        for (byte, change) in [(12, 1), (14, 8), (15, 1), (16, 1)] {
            let mut wrong = sent.clone();
            wrong[byte] ^= change;
            assert_eq!(read(&wrong), None, "byte {byte}");
        }
        assert_eq!(read(&message(PORT, &[0; PORT_LEN])), None, "only the emulation sends it");
    }
}
