//! What a manager did, in the text format of Prometheus.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::stats::SmStatistics;

/// The metrics of a manager, as text.
pub fn text(stats: &SmStatistics) -> anyhow::Result<String> {
    let mut registry = Registry::with_prefix("heddle_sm");
    let mut count = |name: &str, help: &str, value: u64| {
        registry.register(name, help, ConstCounter::new(value));
    };
    count("gets", "Reads sent", stats.gets);
    count("sets", "Writes sent", stats.sets);
    count("retries", "Requests sent again", stats.retries);
    count("programmed", "Times the fabric was made equal to the plan", stats.programmed);
    count("interruptions", "Passes that began again because somebody did not answer", stats.interruptions);
    count("state_write_failures", "Times what was decided could not be kept", stats.state_write_failures);
    count("silent", "Requests that were never answered", stats.silent.count);
    count("refused", "Requests that were refused", stats.refused.count);
    count("unsupported", "Attributes that devices do not take", stats.unsupported.count);
    count("drift", "Attributes that somebody else changed", stats.drift.count);
    let mut gauge = |name: &str, help: &str, value: usize| {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    };
    gauge("switches", "Switches found", stats.switches);
    gauge("adapters", "Adapters and routers found", stats.adapters);
    gauge("lids", "LIDs in use", stats.lids);
    gauge("partitions", "Partitions in force", stats.partitions);
    gauge("unmet_locations", "Ports behind which somebody does not answer as itself", stats.unmet.len());
    gauge("foreign_managers", "Other subnet managers seen", stats.foreign_managers.len());
    let unsaved = usize::from(stats.unsaved.is_some());
    gauge("state_unsaved", "1 while what was decided cannot be kept, and is not done", unsaved);
    let traps = Family::<Vec<(String, String)>, Gauge<i64, std::sync::atomic::AtomicI64>>::default();
    for (number, seen) in &stats.traps {
        let labels = vec![("number".to_owned(), number.to_string())];
        traps.get_or_create(&labels).set(i64::try_from(*seen).unwrap_or(i64::MAX));
    }
    registry.register("traps_seen", "Traps received, by number", traps);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}
