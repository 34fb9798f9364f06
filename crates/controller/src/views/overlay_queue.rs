//! Changes that tenants made in their views, on their way from the view server to the control loop that applies them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tenant_view::OverlayChange;
use tokio::sync::Notify;
use uuid::Uuid;

/// Changes that wait to be applied. A newer change of a cluster replaces an older one.
#[derive(Debug, Default)]
pub struct OverlayQueue {
    changes: Mutex<BTreeMap<Uuid, OverlayChange>>,
    come: Notify,
}

impl OverlayQueue {
    /// Adds a change and wakes [`Self::wait`].
    pub fn put(&self, cluster: Uuid, change: OverlayChange) {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).insert(cluster, change);
        self.come.notify_one();
    }

    /// Returns a change that could not be applied, unless there is a newer one.
    pub fn put_back(&self, cluster: Uuid, change: OverlayChange) {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).entry(cluster).or_insert(change);
    }

    /// Takes all changes out of the queue.
    pub fn take(&self) -> BTreeMap<Uuid, OverlayChange> {
        std::mem::take(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Resolves after a call of [`Self::put`], also one before this call.
    pub async fn wait(&self) {
        self.come.notified().await;
    }
}
