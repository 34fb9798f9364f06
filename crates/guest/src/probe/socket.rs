//! The socket of a prober, at the device of the cluster's network.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use nix::sys::socket::{setsockopt, sockopt};

use super::packet::PACKET_BYTES;
use super::{ProbeDestination, Prober, UDP_PORT};

/// Packets that are read at once, so that sessions have their turn.
const PACKETS_MAX: usize = 64;

/// A UDP socket that hears and sends on one device only.
#[derive(Debug)]
pub(crate) struct ProbeSocket(UdpSocket);

impl ProbeSocket {
    /// At a network device, which has to be there.
    pub(crate) fn open(device: &str) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, UDP_PORT))?;
        setsockopt(&socket, sockopt::BindToDevice, &OsString::from(device))?;
        socket.set_broadcast(true)?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// SessionRequest to wait for.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Hands packets that have come to a prober.
    pub(crate) fn receive(&self, prober: &mut Prober, now: Instant) {
        // One byte more, so that a longer packet is not taken for a whole one.
        let mut buffer = [0; PACKET_BYTES + 1];
        for _ in 0..PACKETS_MAX {
            match self.0.recv_from(&mut buffer) {
                Ok((length, SocketAddr::V4(from))) if from.port() == UDP_PORT => {
                    prober.receive(*from.ip(), &buffer[..length], now);
                }
                Ok(_) => {}
                // An earlier packet came to nothing, and the kernel says so here.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => return,
            }
        }
    }

    /// Sends what a prober has to send. SessionRequest cannot be sent now is lost, and asked for again.
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
