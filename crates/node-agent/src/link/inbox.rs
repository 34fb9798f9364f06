//! Queue of a session's events, until they are forwarded to the client.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Most queued events. The window bounds their bytes; this bounds the overhead of a guest that alternates single bytes of output
/// and error.
const PIECES_MAX: usize = 4096;

/// Most bytes of a merged event: one frame of a session.
const PIECE_BYTES_MAX: usize = controller_api::session::FRAME_BYTES_MAX;

/// An event of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    Output(Vec<u8>),
    Error(Vec<u8>),
    /// A message of the agent for the user.
    Note(String),
    /// Last event: the exit status.
    Exit(i32),
    /// Last event: why the session was not opened or was ended.
    Refused(String),
}

/// Queue of a session's events.
#[derive(Debug, Default)]
pub struct Inbox {
    pieces: Mutex<VecDeque<SessionEvent>>,
    filled: Notify,
}

/// The inbox has too many events.
#[derive(Debug, PartialEq, Eq)]
pub struct InboxFull;

impl Inbox {
    /// Appends an event; consecutive output or error is merged. The last event always fits.
    pub fn push(&self, piece: SessionEvent) -> Result<(), InboxFull> {
        let mut pieces = self.pieces();
        let joined = match (pieces.back_mut(), &piece) {
            (Some(SessionEvent::Output(last)), SessionEvent::Output(bytes))
            | (Some(SessionEvent::Error(last)), SessionEvent::Error(bytes))
                if last.len() + bytes.len() <= PIECE_BYTES_MAX =>
            {
                last.extend_from_slice(bytes);
                true
            }
            _ => false,
        };
        let is_last_event = matches!(piece, SessionEvent::Exit(_) | SessionEvent::Refused(_));
        if !joined {
            if pieces.len() >= PIECES_MAX && !is_last_event {
                return Err(InboxFull);
            }
            pieces.push_back(piece);
        }
        drop(pieces);
        self.filled.notify_one();
        Ok(())
    }

    /// Waits for the next event.
    pub async fn pop(&self) -> SessionEvent {
        loop {
            if let Some(piece) = self.pieces().pop_front() {
                return piece;
            }
            self.filled.notified().await;
        }
    }

    fn pieces(&self) -> MutexGuard<'_, VecDeque<SessionEvent>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_of_one_kind_become_one_and_order_is_kept() {
        let inbox = Inbox::default();
        let output = |text: &str| SessionEvent::Output(text.into());
        for piece in
            [output("a"), output("b"), SessionEvent::Error(b"e".to_vec()), output("c"), SessionEvent::Exit(0)]
        {
            inbox.push(piece).unwrap();
        }
        let wanted = [output("ab"), SessionEvent::Error(b"e".to_vec()), output("c"), SessionEvent::Exit(0)];
        for piece in wanted {
            assert_eq!(inbox.pop().await, piece);
        }
    }

    #[test]
    fn alternating_bytes_fill_it_and_the_last_event_fits() {
        let inbox = Inbox::default();
        let pieces = (0..)
            .map(|i| if i % 2 == 0 { SessionEvent::Output(vec![0]) } else { SessionEvent::Error(vec![0]) });
        let taken = pieces.map(|piece| inbox.push(piece)).take_while(Result::is_ok).count();
        assert_eq!(taken, PIECES_MAX);
        inbox.push(SessionEvent::Exit(1)).unwrap();
    }
}
