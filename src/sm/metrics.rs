//! Metrics of the manager, in the text format of Prometheus.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::stats::SmStatistics;

/// Renders the statistics as Prometheus metrics.
pub fn text(stats: &SmStatistics) -> anyhow::Result<String> {
    let mut registry = Registry::with_prefix("heddle_sm");
    let mut count = |name: &str, help: &str, value: u64| {
        registry.register(name, help, ConstCounter::new(value));
    };
    count("gets", "Get requests sent", stats.gets);
    count("sets", "Set requests sent", stats.sets);
    count("retries", "Requests retransmitted", stats.retries);
    count("programmed", "Completed programming runs", stats.programmed);
    count("interruptions", "Programming runs restarted because a node did not answer", stats.interruptions);
    count("state_write_failures", "Failed writes of the state file", stats.state_write_failures);
    count("silent", "Requests without an answer", stats.silent.count);
    count("refused", "Requests rejected by devices", stats.refused.count);
    count("unsupported", "Attributes not supported by devices", stats.unsupported.count);
    count("counter_reads", "Reads of PortCounters", stats.counter_reads);
    count(
        "counter_reads_unanswered",
        "Reads of PortCounters without an answer",
        stats.counter_reads_unanswered,
    );
    count("counter_resets", "Ports whose saturated error counters were reset", stats.counter_resets);
    count("drift", "Attributes found changed by another writer", stats.drift.count);
    let sa = stats.sa;
    count("sa_requests", "Requests to subnet administration", sa.requests);
    count("sa_path_requests", "Requests for paths among them", sa.path_requests);
    count("sa_records", "Records in responses of subnet administration", sa.records);
    count("sa_refused", "Requests to subnet administration with an error status", sa.refused);
    count("sa_busy", "Requests to subnet administration with status BUSY", sa.busy);
    count("sa_dropped", "Datagrams to subnet administration without response", sa.dropped);
    count("sa_registrations", "Joins, leaves and subscriptions granted", sa.registrations);
    count("sa_registrations_refused", "Joins, leaves and subscriptions refused", sa.registrations_refused);
    count("sa_reports", "Reports sent to subscribers", sa.reports);
    count("sa_reports_dropped", "Reports that no subscriber answered", sa.reports_dropped);
    count("sa_overload", "Times that a port asked for more than its share", stats.overload.count);
    count(
        "management_floods",
        "Times that a port flooded the service level of management",
        stats.management_floods.count,
    );
    let mut gauge = |name: &str, help: &str, value: usize| {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    };
    gauge("switches", "Switches discovered", stats.switches);
    gauge("adapters", "Adapters and routers discovered", stats.adapters);
    gauge("lids", "LIDs in use", stats.lids);
    gauge("partitions", "Partitions in force", stats.partitions);
    gauge(
        "unmet_locations",
        "Locations whose node does not answer or is not the expected one",
        stats.unmet.len(),
    );
    gauge("lacks", "Entries of isolation or guarantees that devices do not take", stats.lacks.len());
    gauge("damped_links", "Links that flap or whose error counters grow", stats.damped_links.len());
    gauge(
        "keys_behind",
        "Nodes that do not hold the current M_Key",
        stats.keys.as_ref().map_or(0, |keys| keys.behind),
    );
    gauge("foreign_managers", "Other subnet managers in the fabric", stats.foreign_managers.len());
    let unsaved = usize::from(stats.unsaved.is_some());
    gauge("state_unsaved", "1 while the state file cannot be written and the fabric is not changed", unsaved);
    let damped = Family::<Vec<(String, String)>, Gauge<i64, std::sync::atomic::AtomicI64>>::default();
    for (link, status) in &stats.damped_links {
        let left_out = status.left_out.to_string();
        damped
            .get_or_create(&vec![("link".to_owned(), link.clone()), ("left_out".to_owned(), left_out)])
            .set(1);
    }
    registry.register("damped_link", "1 for each link that flaps or whose error counters grow", damped);
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
