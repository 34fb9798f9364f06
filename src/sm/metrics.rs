//! What a manager did, in the text format of Prometheus.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::ledger::Ledger;

/// The metrics of a manager, as text.
pub fn text(ledger: &Ledger) -> anyhow::Result<String> {
    let mut registry = Registry::with_prefix("heddle_sm");
    let mut count = |name: &str, help: &str, value: u64| {
        registry.register(name, help, ConstCounter::new(value));
    };
    count("gets", "Reads sent", ledger.gets);
    count("sets", "Writes sent", ledger.sets);
    count("retries", "Requests sent again", ledger.retries);
    count("programmed", "Times the fabric was made equal to the plan", ledger.programmed);
    count("interruptions", "Passes that began again because somebody did not answer", ledger.interruptions);
    count("state_write_failures", "Times what was decided could not be kept", ledger.state_write_failures);
    count("silent", "Requests that were never answered", ledger.silent.count);
    count("refused", "Requests that were refused", ledger.refused.count);
    count("unsupported", "Attributes that devices do not take", ledger.unsupported.count);
    count("drift", "Attributes that somebody else changed", ledger.drift.count);
    let mut gauge = |name: &str, help: &str, value: usize| {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    };
    gauge("switches", "Switches found", ledger.switches);
    gauge("adapters", "Adapters and routers found", ledger.adapters);
    gauge("lids", "LIDs in use", ledger.lids);
    gauge("partitions", "Partitions in force", ledger.partitions);
    gauge("unmet_locations", "Ports behind which somebody does not answer as itself", ledger.unmet.len());
    gauge("foreign_managers", "Other subnet managers seen", ledger.foreign_managers.len());
    let unsaved = usize::from(ledger.unsaved.is_some());
    gauge("state_unsaved", "1 while what was decided cannot be kept, and is not done", unsaved);
    let traps = Family::<Vec<(String, String)>, Gauge<i64, std::sync::atomic::AtomicI64>>::default();
    for (number, seen) in &ledger.traps {
        let labels = vec![("number".to_owned(), number.to_string())];
        traps.get_or_create(&labels).set(i64::try_from(*seen).unwrap_or(i64::MAX));
    }
    registry.register("traps_seen", "Traps received, by number", traps);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}
