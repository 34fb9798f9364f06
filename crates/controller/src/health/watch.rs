//! Looks every second what is not well, and writes down what began and what is over, with the events that tell of it.

use std::sync::Arc;
use std::time::Duration;

use super::fault_events::{FaultChange, fault_events};
use super::{ClockReading, Fault, Faults, Monitor};
use crate::site::Site;
use crate::store::StoreError;

/// How often to look: far below the shortest limit.
const INTERVAL: Duration = Duration::from_secs(1);

/// Looks for as long as it is polled.
pub async fn run(site: Arc<Site>) -> ! {
    let mut watcher = Watcher { monitor: Monitor::default() };
    loop {
        if let Err(error) = watcher.check(&site).await {
            tracing::error!("{}", crate::chain(&error));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

struct Watcher {
    monitor: Monitor,
}

impl Watcher {
    async fn check(&mut self, site: &Site) -> Result<(), StoreError> {
        let hosts = site.store.host_list().await?;
        let before = site.faults();
        let now = ClockReading::now();
        let after = site.with_observed(|observed| self.monitor.examine(observed, &hosts, &before, now));
        if after == *before {
            return Ok(());
        }
        let _writer = site.writer.lock().await;
        // A host that was removed has no faults any more, and nobody waits to hear so.
        let is_known = |fault: &&Fault| match fault {
            Fault::AgentSilent(host) | Fault::OffFabric(host) => {
                hosts.iter().any(|known| known.name == *host)
            }
            Fault::ManagerSilent | Fault::FabricStuck => true,
        };
        let begun = difference(&after, &before);
        let ended = difference(&before, &after);
        let told_ended: Vec<&Fault> = ended.iter().copied().filter(|fault| is_known(fault)).collect();
        let clusters = site.store.cluster_list().await?;
        let mut told = fault_events(&begun, FaultChange::Begins, &clusters, now.wall);
        told.extend(fault_events(&told_ended, FaultChange::Ends, &clusters, now.wall));
        site.store.fault_save(&after, &told).await?;
        for event in told.iter().filter(|it| it.tenant.is_none()) {
            tracing::warn!(kind = event.kind, "{}", event.text);
        }
        site.set_faults(after);
        told.iter().for_each(|event| site.noted(event.tenant.as_ref()));
        site.wake();
        Ok(())
    }
}

/// The faults of one that the other does not have.
fn difference<'a>(of: &'a Faults, without: &Faults) -> Vec<&'a Fault> {
    of.keys().filter(|fault| !without.contains_key(fault)).collect()
}
