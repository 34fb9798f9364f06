//! Long polling of events: wakes only the queries concerned, and bounds their number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use uuid::Uuid;

/// Most concurrent event queries of one tenant, or of operators: a few programs of a few people. Each holds a connection.
pub const WAITING_MAX: usize = 16;

/// Queries that wait for events, by scope.
#[derive(Clone, Debug, Default)]
pub struct EventWaiters {
    waiting: Arc<Mutex<HashMap<Scope, Waiting>>>,
}

/// Events of one tenant; `None` for all events, which only operators see.
type Scope = Option<Uuid>;

#[derive(Debug)]
struct Waiting {
    count: usize,
    notified: watch::Sender<()>,
}

/// A waiting query; counted until it is dropped.
#[derive(Debug)]
pub struct Waiter {
    event_waiters: EventWaiters,
    scope: Scope,
    notified: watch::Receiver<()>,
}

impl EventWaiters {
    /// Registers a query; `None` if [`WAITING_MAX`] of this scope wait already.
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

    /// Wakes the queries of a tenant and of operators; with `None`, an event of the site, only those of operators.
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
    /// Returns when an event was recorded since the last call, or since the registration.
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
    async fn only_waiters_of_the_scope_are_woken() {
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
    fn one_tenant_cannot_exhaust_the_event_waiters() {
        let waiters = EventWaiters::default();
        let (blue, red) = (Some(Uuid::from_u128(1)), Some(Uuid::from_u128(2)));
        let waiting: Vec<_> = (0..WAITING_MAX).map(|_| waiters.wait(blue).unwrap()).collect();
        assert!(waiters.wait(blue).is_none());
        assert!(waiters.wait(red).is_some() && waiters.wait(None).is_some());
        drop(waiting);
        assert!(waiters.wait(blue).is_some());
        assert!(waiters.lock().is_empty(), "dropped waiters leave no entry");
    }
}
