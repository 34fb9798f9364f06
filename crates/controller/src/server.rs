//! Accepts connections, and bounds their number, rate and duration.
//!
//! A connection carries one request, so one deadline bounds everything a client can do slowly: send its headers, send its
//! body, read the response. An upgraded connection leaves that deadline and keeps its slot. Connections of a peer that
//! exceed [`Rates`] are delayed before anything is read from them.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::rate::Rates;

/// Most connections of one user or address: more than the sessions of a large cluster, far fewer than all.
const PEER_CONNECTIONS_MAX: usize = 256;

/// Most connections in total. An upgraded one uses two more descriptors, and the process has 4,096.
const CONNECTIONS_MAX: usize = 1024;

/// Connections beyond `CONNECTIONS_MAX` for root and the user of the controller, so that others cannot lock them out.
const RESERVED_CONNECTIONS: usize = 64;

/// Longest time until the headers are complete.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time for a request and its response: longer than reading a fabric back (`PLAN_TIMEOUT`).
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(300);

/// Pause when `accept` fails for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Response to a connection over a limit, whatever its request.
const TOO_MANY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n\
    Content-Length: 161\r\nConnection: close\r\n\r\n\
    {\"type\":\"too-many-connections\",\"title\":\"Service Unavailable\",\"status\":503,\
    \"detail\":\"too many connections are open\",\"hint\":\"close some, or try again in a moment\"}";

/// Account that a connection is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionPeer {
    /// User of the peer process of a unix socket, from `SO_PEERCRED`.
    User(u32),
    Address(IpAddr),
}

/// Open connections by peer.
#[derive(Debug)]
pub struct Connections {
    own: u32,
    open: Mutex<HashMap<ConnectionPeer, usize>>,
    /// Rate limit of new connections, one unit each.
    rates: Rates<ConnectionPeer>,
}

/// A counted connection; released when dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    connections: Arc<Connections>,
    peer: ConnectionPeer,
}

impl Connections {
    /// No connections; `own` is the user that runs the controller.
    pub fn new(own: u32) -> Arc<Self> {
        Arc::new(Self { own, open: Mutex::default(), rates: Rates::default() })
    }

    /// Whether the peer is root or the user that runs the controller.
    fn is_operator(&self, peer: ConnectionPeer) -> bool {
        matches!(peer, ConnectionPeer::User(uid) if uid == 0 || uid == self.own)
    }

    fn take(self: &Arc<Self>, peer: ConnectionPeer) -> Option<ConnectionSlot> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let most = CONNECTIONS_MAX + if self.is_operator(peer) { RESERVED_CONNECTIONS } else { 0 };
        let all: usize = open.values().sum();
        let of_peer = open.get(&peer).copied().unwrap_or_default();
        if all >= most || of_peer >= PEER_CONNECTIONS_MAX {
            return None;
        }
        open.insert(peer, of_peer + 1);
        Some(ConnectionSlot { connections: Arc::clone(self), peer })
    }
}

impl ConnectionSlot {
    /// Waits until the rate limit admits the connection; `false` if it is rejected.
    async fn is_admitted(&self) -> bool {
        let Connections { rates, .. } = &*self.connections;
        self.connections.is_operator(self.peer) || rates.admit(&self.peer, 1).await.is_ok()
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_peer) = open.get_mut(&self.peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                open.remove(&self.peer);
            }
        }
    }
}

/// Serves the connections of a unix socket. Never returns.
pub async fn serve_unix(listener: UnixListener, router: Router, connections: Arc<Connections>) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => match stream.peer_cred() {
                    Ok(user) => take(stream, ConnectionPeer::User(user.uid()), &router, &connections, &mut tasks).await,
                    Err(error) => tracing::debug!("cannot read the user of a connection: {error}"),
                },
                Err(error) => pause(&error).await,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// Serves the connections of a TCP address. Never returns.
pub async fn serve_tcp(listener: TcpListener, router: Router, connections: Arc<Connections>) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    // Frames of interactive sessions are small and must not be delayed.
                    let _ = stream.set_nodelay(true);
                    take(stream, ConnectionPeer::Address(address.ip()), &router, &connections, &mut tasks).await;
                }
                Err(error) => pause(&error).await,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

async fn pause(error: &io::Error) {
    tracing::warn!("cannot accept connections: {error}");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Serves or refuses a connection.
async fn take<S>(
    stream: S,
    peer: ConnectionPeer,
    router: &Router,
    connections: &Arc<Connections>,
    tasks: &mut JoinSet<()>,
) where
    S: Accepted,
{
    match connections.take(peer) {
        Some(slot) => drop(tasks.spawn(exchange(stream, Arc::new(slot), router.clone()))),
        None => {
            tracing::debug!(?peer, "too many connections");
            stream.refuse();
            // A flood is refused one by one, in turns with the requests that wait for this thread.
            tokio::task::yield_now().await;
        }
    }
}

/// An accepted connection.
trait Accepted: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Sends [`TOO_MANY`] without a task of its own, because a flood of connections is refused here. It never waits: the
    /// socket does not block, and the response fits into its empty buffer.
    fn refuse(self);
}

impl Accepted for TcpStream {
    fn refuse(self) {
        let _ = self.into_std().and_then(|mut stream| stream.write_all(TOO_MANY.as_bytes()));
    }
}

impl Accepted for UnixStream {
    fn refuse(self) {
        let _ = self.into_std().and_then(|mut stream| stream.write_all(TOO_MANY.as_bytes()));
    }
}

/// Serves one request. An upgraded request takes the slot out of its extensions and keeps it.
async fn exchange<S>(stream: S, slot: Arc<ConnectionSlot>, router: Router)
where
    S: Accepted,
{
    if !slot.is_admitted().await {
        return stream.refuse();
    }
    let inner = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&slot));
        inner.call(request)
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).keep_alive(false);
    let connection = server.serve_connection(TokioIo::new(stream), service).with_upgrades();
    match tokio::time::timeout(EXCHANGE_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("connection failed: {error}"),
        Err(_) => tracing::debug!("a request took longer than {EXCHANGE_TIMEOUT:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_slots_are_limited_per_peer() {
        let connections = Connections::new(7);
        let mut slots = Vec::new();
        let fill = |peer, slots: &mut Vec<ConnectionSlot>| {
            let before = slots.len();
            slots.extend(std::iter::from_fn(|| connections.take(peer)));
            slots.len() - before
        };
        for uid in 1000..1004 {
            assert_eq!(fill(ConnectionPeer::User(uid), &mut slots), PEER_CONNECTIONS_MAX);
        }
        assert_eq!(fill(ConnectionPeer::User(1004), &mut slots), 0, "all are taken");
        assert_eq!(fill(ConnectionPeer::User(0), &mut slots), RESERVED_CONNECTIONS);
        assert_eq!(fill(ConnectionPeer::User(7), &mut slots), 0);
        slots.clear();
        assert_eq!(
            fill(ConnectionPeer::User(7), &mut slots),
            PEER_CONNECTIONS_MAX,
            "a released slot is free again"
        );
        assert_eq!(connections.open.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn connection_rates_limit_everyone_but_operators() {
        let connections = Connections::new(7);
        let admitted = async |peer| {
            let slots: Vec<ConnectionSlot> =
                (0..PEER_CONNECTIONS_MAX).map(|_| connections.take(peer).unwrap()).collect();
            let mut turns: JoinSet<bool> = JoinSet::new();
            // Several times at once: more than a burst and the delayed ones.
            let slots: Vec<Arc<ConnectionSlot>> = slots.into_iter().map(Arc::new).collect();
            for slot in slots.iter().cycle().take(8 * PEER_CONNECTIONS_MAX) {
                let slot = Arc::clone(slot);
                turns.spawn(async move { slot.is_admitted().await });
            }
            turns.join_all().await.into_iter().filter(|is_admitted| *is_admitted).count()
        };
        assert!(admitted(ConnectionPeer::User(1000)).await < 4 * PEER_CONNECTIONS_MAX);
        for operator in [0, 7] {
            assert_eq!(admitted(ConnectionPeer::User(operator)).await, 8 * PEER_CONNECTIONS_MAX);
        }
    }

    #[test]
    fn the_too_many_response_is_valid_http() {
        let (head, body) = TOO_MANY.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{}", body.len());
        let problem: controller_api::Problem = serde_json::from_str(body).unwrap();
        assert_eq!(problem.status, 503);
    }
}
