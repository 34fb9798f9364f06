//! What a guest said in a session, until it is handed on.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Pieces that may wait. The window bounds their bytes; without this, a guest that sends single bytes by turns to its
/// output and its error makes each cost many times its size.
const PIECES_MAX: usize = 4096;

/// Longest piece: as much as fits a frame of a session.
const PIECE_BYTES_MAX: usize = controller_api::session::FRAME_BYTES_MAX;

/// What a guest says in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    Output(Vec<u8>),
    Error(Vec<u8>),
    /// The agent's own words, for people.
    Note(String),
    /// The last word: its exit status.
    Exit(i32),
    /// The last word: why there is no session.
    Refused(String),
}

/// What a guest said in a session, until it is handed on.
#[derive(Debug, Default)]
pub struct Inbox {
    pieces: Mutex<VecDeque<SessionEvent>>,
    filled: Notify,
}

/// There are too many pieces.
#[derive(Debug, PartialEq, Eq)]
pub struct InboxFull;

impl Inbox {
    /// Takes a piece; those of one kind that follow each other become one.
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

    /// The next piece, as soon as there is one.
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
    fn single_bytes_by_turns_fill_it_and_the_last_word_still_fits() {
        let inbox = Inbox::default();
        let pieces = (0..)
            .map(|i| if i % 2 == 0 { SessionEvent::Output(vec![0]) } else { SessionEvent::Error(vec![0]) });
        let taken = pieces.map(|piece| inbox.push(piece)).take_while(Result::is_ok).count();
        assert_eq!(taken, PIECES_MAX);
        inbox.push(SessionEvent::Exit(1)).unwrap();
    }
}
