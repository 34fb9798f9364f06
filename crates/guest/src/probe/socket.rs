//! The UDP socket of a prober, bound to the network device of the cluster.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use nix::sys::socket::{setsockopt, sockopt};

use super::packet::PACKET_BYTES;
use super::{ProbeDestination, Prober, UDP_PORT};

/// Most packets read per call, so that sessions are not starved.
const PACKETS_MAX: usize = 64;

/// A UDP socket that sends and receives on one device only.
#[derive(Debug)]
pub(crate) struct ProbeSocket(UdpSocket);

impl ProbeSocket {
    /// Binds to an existing network device.
    pub(crate) fn open(device: &str) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, UDP_PORT))?;
        setsockopt(&socket, sockopt::BindToDevice, &OsString::from(device))?;
        socket.set_broadcast(true)?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// The descriptor to poll for readability.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Passes received packets to a prober.
    pub(crate) fn receive(&self, prober: &mut Prober, now: Instant) {
        // One byte more than a packet, so that longer datagrams are detected.
        let mut buffer = [0; PACKET_BYTES + 1];
        for _ in 0..PACKETS_MAX {
            match self.0.recv_from(&mut buffer) {
                Ok((length, SocketAddr::V4(from))) if from.port() == UDP_PORT => {
                    prober.receive(*from.ip(), &buffer[..length], now);
                }
                Ok(_) => {}
                // An ICMP error for a packet sent earlier.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => return,
            }
        }
    }

    /// Sends the packets of a prober. Packets that cannot be sent are lost; the prober retries.
    pub(crate) fn send(&self, prober: &mut Prober, now: Instant) {
        while let Some((to, bytes)) = prober.transmit(now) {
            let to = match to {
                ProbeDestination::Node(address) => address,
                ProbeDestination::Broadcast => Ipv4Addr::BROADCAST,
            };
            let _ = self.0.send_to(&bytes, (to, UDP_PORT));
        }
    }
}
