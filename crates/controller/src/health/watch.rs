//! Checks for faults every second, and records changes together with their events.

use std::sync::Arc;
use std::time::Duration;

use super::Monitor;
use super::fault_events::{FaultChange, fault_events};
use crate::clock::ClockReading;
use crate::faults::{Fault, Faults};
use crate::site::Site;
use crate::store::StoreError;

/// Interval of the checks: far below the shortest limit.
const INTERVAL: Duration = Duration::from_secs(1);

/// Control loop: checks for faults, and records those that began or ended.
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
        // Faults of a removed host end without an event.
        let is_known = |fault: &&Fault| match fault {
            Fault::AgentSilent(host) | Fault::OffFabric(host) | Fault::PortClosed(host) => {
                hosts.iter().any(|known| known.name == *host)
            }
            Fault::ManagerSilent | Fault::FabricStuck | Fault::GuaranteeWithdrawn(_) => true,
        };
        let begun = difference(&after, &before);
        let ended = difference(&before, &after);
        let known_ended: Vec<&Fault> = ended.iter().copied().filter(|fault| is_known(fault)).collect();
        let clusters = site.store.cluster_list().await?;
        let mut events = fault_events(&begun, FaultChange::Begins, &clusters, now.wall);
        events.extend(fault_events(&known_ended, FaultChange::Ends, &clusters, now.wall));
        site.store.fault_save(&after, &events).await?;
        for event in events.iter().filter(|it| it.tenant.is_none()) {
            tracing::warn!(kind = event.kind, "{}", event.text);
        }
        site.set_faults(after);
        events.iter().for_each(|event| site.noted(event.tenant.as_ref()));
        site.wake();
        Ok(())
    }
}

/// Faults that are in `of` and not in `without`.
fn difference<'a>(of: &'a Faults, without: &Faults) -> Vec<&'a Fault> {
    of.keys().filter(|fault| !without.contains_key(fault)).collect()
}
