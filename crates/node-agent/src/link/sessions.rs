//! The sessions on one connection to a guest.

use std::collections::BTreeMap;
use std::sync::Arc;

use controller_api::session::NewSession;
use guest::channel::{
    DATA_BYTES_MAX, SESSIONS_MAX, SessionId, SessionRequest, ToGuest, ToHost, WINDOW_BYTES, Window,
};
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::inbox::{Inbox, SessionEvent};
use super::sanitize;

/// Bytes of a message on the wire without its data: kind, session number, checksum and framing.
const MESSAGE_BYTES: usize = 32;

/// A command to the task of a link.
#[derive(Debug)]
pub enum LinkCommand {
    NewSession {
        request: NewSession,
        /// Receives the session.
        answer: oneshot::Sender<Result<Session, SessionError>>,
        /// Given to the session for its further commands.
        commands: mpsc::Sender<LinkCommand>,
    },
    /// Standard input; the session has acquired credit for it.
    Input(SessionKey, Vec<u8>),
    /// Output was forwarded: its credit can be returned.
    Consumed(SessionKey, usize),
    /// The client is gone.
    Close(SessionKey),
}

/// Number of a session, and a serial number that distinguishes it from earlier sessions of that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionKey {
    id: SessionId,
    serial: u64,
}

/// Why a session could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SessionError {
    /// The guest cannot be reached, for this reason.
    #[error("{0}")]
    GuestUnavailable(String),
    #[error("{SESSIONS_MAX} sessions are open, the most that a node allows; end one first")]
    TooManySessions,
}

/// The host's end of a session. Dropping it closes the session.
#[derive(Debug)]
pub struct Session {
    key: SessionKey,
    inbox: Arc<Inbox>,
    send_credit: Arc<Semaphore>,
    commands: mpsc::Sender<LinkCommand>,
}

/// Opens a session through the task of a link.
pub async fn open(
    commands: &mpsc::Sender<LinkCommand>,
    request: NewSession,
) -> Result<Session, SessionError> {
    let gone = || SessionError::GuestUnavailable("it is not running".to_owned());
    let (answer, answered) = oneshot::channel();
    let command = LinkCommand::NewSession { request, answer, commands: commands.clone() };
    commands.send(command).await.map_err(|_| gone())?;
    answered.await.unwrap_or_else(|_| Err(gone()))
}

impl Session {
    /// Sends standard input, waiting for credit; empty means end of input. Returns `false` once the session has ended.
    pub async fn input(&self, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return self.commands.send(LinkCommand::Input(self.key, Vec::new())).await.is_ok();
        }
        for piece in bytes.chunks(DATA_BYTES_MAX) {
            let count = u32::try_from(piece.len()).expect("a piece is smaller than a window");
            match self.send_credit.acquire_many(count).await {
                Ok(send_credit) => send_credit.forget(),
                Err(_) => return false,
            }
            if self.commands.send(LinkCommand::Input(self.key, piece.to_vec())).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Waits for the next event.
    pub async fn recv(&self) -> SessionEvent {
        self.inbox.pop().await
    }

    /// Returns credit for output that was forwarded, so that the guest may send more.
    pub async fn consumed(&self, bytes: usize) {
        // Without a connection the session has ended.
        let _ = self.commands.send(LinkCommand::Consumed(self.key, bytes)).await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let (commands, key) = (self.commands.clone(), self.key);
        if let Err(mpsc::error::TrySendError::Full(close)) = commands.try_send(LinkCommand::Close(key))
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { commands.send(close).await });
        }
    }
}

/// All sessions on one connection.
#[derive(Debug, Default)]
pub struct Sessions {
    open: BTreeMap<SessionId, OpenSession>,
    serial: u64,
}

#[derive(Debug)]
struct OpenSession {
    serial: u64,
    /// Window towards the guest.
    sending: Window,
    /// Window from the guest.
    receiving: Window,
    inbox: Arc<Inbox>,
    send_credit: Arc<Semaphore>,
    /// Close was sent and events are discarded; the number is free once the guest confirms the end.
    closing: bool,
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        self.send_credit.close();
        // Ignored if a last event was already received.
        let _ = self.inbox.push(SessionEvent::Refused("the channel to the guest was closed".to_owned()));
    }
}

impl Sessions {
    /// Whether no session is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Executes a command; returns the message to send to the guest.
    pub fn execute(&mut self, command: LinkCommand) -> Option<ToGuest> {
        match command {
            LinkCommand::NewSession { request, answer, commands } => self.begin(request, answer, commands),
            LinkCommand::Input(key, bytes) => {
                let slot = self.slot(key)?;
                // The session has acquired credit, so this does not fail.
                slot.sending.debit(bytes.len()).ok()?;
                Some(ToGuest::Input { session: key.id, bytes })
            }
            LinkCommand::Consumed(key, bytes) => {
                let bytes = self.slot(key)?.receiving.consume(bytes)?;
                Some(ToGuest::Credit { session: key.id, bytes })
            }
            LinkCommand::Close(key) => {
                self.slot(key)?.closing = true;
                Some(ToGuest::Close { session: key.id })
            }
        }
    }

    fn begin(
        &mut self,
        request: NewSession,
        answer: oneshot::Sender<Result<Session, SessionError>>,
        commands: mpsc::Sender<LinkCommand>,
    ) -> Option<ToGuest> {
        let free = (0..).map(SessionId).find(|id| !self.open.contains_key(id));
        let Some(id) = free.filter(|_| self.open.len() < SESSIONS_MAX) else {
            drop(answer.send(Err(SessionError::TooManySessions)));
            return None;
        };
        self.serial += 1;
        let (inbox, send_credit) = (Arc::default(), Arc::new(Semaphore::new(WINDOW_BYTES as usize)));
        let slot = OpenSession {
            serial: self.serial,
            sending: Window::new(),
            receiving: Window::new(),
            inbox: Arc::clone(&inbox),
            send_credit: Arc::clone(&send_credit),
            closing: false,
        };
        let key = SessionKey { id, serial: self.serial };
        // If the requester is gone, the session is dropped here and closes itself.
        drop(answer.send(Ok(Session { key, inbox, send_credit, commands })));
        self.open.insert(id, slot);
        let request = match request {
            NewSession::Exec { argv } => SessionRequest::Exec { argv },
            NewSession::Ssh {} => SessionRequest::Ssh,
        };
        Some(ToGuest::Open { session: id, request })
    }

    /// Handles a message of the guest; returns how many bytes of it were solicited, and the reply.
    pub fn handle(&mut self, message: ToHost) -> (usize, Option<ToGuest>) {
        match message {
            ToHost::Output { session, bytes } => {
                self.output(session, bytes.len(), SessionEvent::Output(bytes))
            }
            ToHost::Error { session, bytes } => self.output(session, bytes.len(), SessionEvent::Error(bytes)),
            ToHost::Exit { session, status } => self.end(session, SessionEvent::Exit(status)),
            ToHost::Refused { session, reason } => {
                self.end(session, SessionEvent::Refused(sanitize(&reason)))
            }
            ToHost::Credit { session, bytes } => self.credit(session, bytes),
            ToHost::Welcome { .. }
            | ToHost::Ready { .. }
            | ToHost::Network { .. }
            | ToHost::Failed { .. } => (0, None),
        }
    }

    fn output(&mut self, id: SessionId, length: usize, piece: SessionEvent) -> (usize, Option<ToGuest>) {
        let Some(slot) = self.open.get_mut(&id) else { return (0, None) };
        if let Err(overrun) = slot.receiving.debit(length) {
            return (0, self.abort(id, &format!("output of the guest: {overrun}")));
        }
        if slot.closing {
            // In flight while the session was closed: discarded, but credited.
            let credit = slot.receiving.consume(length);
            return (length + MESSAGE_BYTES, credit.map(|bytes| ToGuest::Credit { session: id, bytes }));
        }
        match slot.inbox.push(piece) {
            Ok(()) => (length + MESSAGE_BYTES, None),
            Err(_) => (0, self.abort(id, "the guest sends too many small messages")),
        }
    }

    fn credit(&mut self, id: SessionId, bytes: u32) -> (usize, Option<ToGuest>) {
        let Some(slot) = self.open.get_mut(&id) else { return (0, None) };
        match slot.sending.grant(bytes) {
            // Credit of 0 bytes is not solicited.
            Ok(()) if bytes == 0 => (0, None),
            Ok(()) => {
                slot.send_credit.add_permits(bytes as usize);
                (MESSAGE_BYTES, None)
            }
            Err(overrun) => (0, self.abort(id, &format!("credit of the guest: {overrun}"))),
        }
    }

    /// The guest has confirmed the end of a session.
    fn end(&mut self, id: SessionId, last_event: SessionEvent) -> (usize, Option<ToGuest>) {
        let Some(slot) = self.open.remove(&id) else { return (0, None) };
        let taken = slot.inbox.push(last_event);
        debug_assert_eq!(taken, Ok(()), "the last event always fits");
        (MESSAGE_BYTES, None)
    }

    /// Closes a session whose guest broke the protocol.
    fn abort(&mut self, id: SessionId, why: &str) -> Option<ToGuest> {
        let slot = self.open.get_mut(&id)?;
        if slot.closing {
            return None;
        }
        slot.closing = true;
        slot.send_credit.close();
        let taken = slot.inbox.push(SessionEvent::Refused(why.to_owned()));
        debug_assert_eq!(taken, Ok(()), "the last event always fits");
        Some(ToGuest::Close { session: id })
    }

    /// A message for a session could not be encoded.
    pub fn fail(&mut self, message: &ToGuest, why: &str) {
        if let ToGuest::Open { session, .. } = message {
            self.end(*session, SessionEvent::Refused(why.to_owned()));
        }
    }

    /// Sends a text of the agent to all sessions.
    pub fn notify_all(&mut self, text: &str) {
        for slot in self.open.values().filter(|slot| !slot.closing) {
            // Dropped for a client that does not read.
            let _ = slot.inbox.push(SessionEvent::Note(text.to_owned()));
        }
    }

    /// Ends all sessions of a guest that does not answer; returns the messages to send to it.
    pub fn abort_all(&mut self, why: &str) -> Vec<ToGuest> {
        let ids: Vec<SessionId> = self.open.keys().copied().collect();
        ids.into_iter().filter_map(|id| self.abort(id, why)).collect()
    }

    /// The connection is closed: ends all sessions.
    pub fn end_all(&mut self, why: &str) {
        for id in self.open.keys().copied().collect::<Vec<_>>() {
            self.end(id, SessionEvent::Refused(why.to_owned()));
        }
    }

    fn slot(&mut self, key: SessionKey) -> Option<&mut OpenSession> {
        self.open.get_mut(&key.id).filter(|slot| slot.serial == key.serial && !slot.closing)
    }
}
