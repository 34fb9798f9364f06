//! Who waits for events: only those concerned are woken, and only so many wait at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use uuid::Uuid;

/// Requests of one tenant, or of operators, that wait at once: a few programs of a few people. Each holds a connection.
pub const WAITING_MAX: usize = 16;

/// Wakes those who wait for events.
#[derive(Clone, Debug, Default)]
pub struct EventWaiters {
    waiting: Arc<Mutex<HashMap<Scope, Waiting>>>,
}

/// Whose events: a tenant's, or everybody's for operators.
type Scope = Option<Uuid>;

#[derive(Debug)]
struct Waiting {
    count: usize,
    notified: watch::Sender<()>,
}

/// A request that waits; counted out when dropped.
#[derive(Debug)]
pub struct Waiter {
    event_waiters: EventWaiters,
    scope: Scope,
    notified: watch::Receiver<()>,
}

impl EventWaiters {
    /// One more that waits for the events of a tenant, or of everybody; `None` if too many do.
    pub fn wait(&self, scope: Scope) -> Option<Waiter> {
        let mut waiting = self.lock();
        let entry =
            waiting.entry(scope).or_insert_with(|| Waiting { count: 0, notified: watch::Sender::new(()) });
        if entry.count >= WAITING_MAX {
            return None;
        }
        entry.count += 1;
        Some(Waiter { event_waiters: self.clone(), scope, notified: entry.notified.subscribe() })
    }

    /// Wakes those who wait for the events of a tenant, and operators. Events of the site concern operators alone.
    pub fn notify(&self, tenant: Option<Uuid>) {
        let waiting = self.lock();
        let concerned = [tenant, None].into_iter().filter_map(|scope| waiting.get(&scope));
        concerned.for_each(|waiting| waiting.notified.send_replace(()));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Scope, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    /// Returns when something was noted since the last call, or since this one waits.
    pub async fn woken(&mut self) {
        // The sender lives for as long as this one is counted.
        let _ = self.notified.changed().await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.event_waiters.lock();
        if let Some(entry) = waiting.get_mut(&self.scope) {
            entry.count -= 1;
            if entry.count == 0 {
                waiting.remove(&self.scope);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_those_concerned_are_woken() {
        let waiters = EventWaiters::default();
        let (blue, red) = (Some(Uuid::from_u128(1)), Some(Uuid::from_u128(2)));
        let (mut of_blue, of_red, mut of_all) =
            (waiters.wait(blue).unwrap(), waiters.wait(red).unwrap(), waiters.wait(None).unwrap());
        waiters.notify(blue);
        of_blue.woken().await;
        of_all.woken().await;
        assert!(!of_red.notified.has_changed().unwrap());
        waiters.notify(None);
        assert!(!of_blue.notified.has_changed().unwrap() && of_all.notified.has_changed().unwrap());
    }

    #[test]
    fn one_tenant_cannot_keep_others_from_waiting() {
        let waiters = EventWaiters::default();
        let (blue, red) = (Some(Uuid::from_u128(1)), Some(Uuid::from_u128(2)));
        let waiting: Vec<_> = (0..WAITING_MAX).map(|_| waiters.wait(blue).unwrap()).collect();
        assert!(waiters.wait(blue).is_none());
        assert!(waiters.wait(red).is_some() && waiters.wait(None).is_some());
        drop(waiting);
        assert!(waiters.wait(blue).is_some());
        assert!(waiters.lock().is_empty(), "nothing is kept of those who have gone");
    }
}
