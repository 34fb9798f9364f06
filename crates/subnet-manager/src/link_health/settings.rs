//! Limits of link health, as operators write them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::counters::{ErrorCounts, LinkErrorCounter};

/// Largest limit of flaps. It bounds the times that are remembered for each end of a link.
const FLAPS_MAX: u64 = 1000;

/// The longest window or quiet time.
const SECONDS_MAX: u64 = 30 * 24 * 3600;

/// The most ports whose counters a sweep reads.
const PORTS_MAX: u64 = 65_536;

/// When a link is damped, and for how long.
///
/// Reads and writes as a flat table with times in seconds (`docs/link-health.toml`); fields that are missing
/// have their defaults. A limit of 0 is never reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SettingsFile", into = "SettingsFile")]
pub struct LinkHealthSettings {
    /// Flaps within [`Self::flap_window`] that damp a link.
    pub flaps: u64,
    pub flap_window: Duration,
    /// Growth of an error counter of one port within [`Self::error_window`] that damps its link.
    pub errors: ErrorCounts,
    pub error_window: Duration,
    /// Quiet time after which a link returns when it is damped for the first time. Doubles each time.
    pub quiet_first: Duration,
    pub quiet_max: Duration,
    /// Ports whose counters each sweep reads. Consecutive sweeps cover all of them in turn. With 0, only
    /// flaps count.
    pub ports_per_sweep: usize,
    /// Bytes per second that an adapter port may send at the service level of management before it is named.
    pub management_bytes_per_second: u64,
}

impl Default for LinkHealthSettings {
    fn default() -> Self {
        Self {
            flaps: 5,
            flap_window: Duration::from_secs(600),
            errors: ErrorCounts::default_limits(),
            error_window: Duration::from_secs(3600),
            quiet_first: Duration::from_secs(600),
            quiet_max: Duration::from_secs(24 * 3600),
            ports_per_sweep: 512,
            management_bytes_per_second: 32 << 20,
        }
    }
}

impl LinkHealthSettings {
    /// The quiet time of a link that is damped for the `times`-th time in a row.
    pub(super) fn quiet_time(&self, times: u32) -> Duration {
        let factor = 1_u32 << times.saturating_sub(1).min(20);
        self.quiet_first.saturating_mul(factor).min(self.quiet_max)
    }
}

/// A limit of link health that is out of range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LinkHealthError {
    #[error("{field} must be between {min} and {max}, got {value}")]
    OutOfRange { field: &'static str, min: u64, max: u64, value: u64 },
    #[error("quiet_max_seconds must be at least quiet_first_seconds ({first}), got {value}")]
    QuietOrder { first: u64, value: u64 },
}

/// The settings as they are written.
#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SettingsFile {
    flaps: u64,
    flap_window_seconds: u64,
    symbol_errors: u64,
    link_recoveries: u64,
    link_downed: u64,
    receive_errors: u64,
    link_integrity_errors: u64,
    buffer_overrun_errors: u64,
    error_window_seconds: u64,
    quiet_first_seconds: u64,
    quiet_max_seconds: u64,
    ports_per_sweep: u64,
    management_bytes_per_second: u64,
}

impl Default for SettingsFile {
    fn default() -> Self {
        LinkHealthSettings::default().into()
    }
}

impl From<LinkHealthSettings> for SettingsFile {
    fn from(settings: LinkHealthSettings) -> Self {
        let limit = |counter| u64::from(settings.errors.get(counter));
        Self {
            flaps: settings.flaps,
            flap_window_seconds: settings.flap_window.as_secs(),
            symbol_errors: limit(LinkErrorCounter::SymbolErrors),
            link_recoveries: limit(LinkErrorCounter::LinkRecoveries),
            link_downed: limit(LinkErrorCounter::LinkDowned),
            receive_errors: limit(LinkErrorCounter::ReceiveErrors),
            link_integrity_errors: limit(LinkErrorCounter::LinkIntegrityErrors),
            buffer_overrun_errors: limit(LinkErrorCounter::BufferOverrunErrors),
            error_window_seconds: settings.error_window.as_secs(),
            quiet_first_seconds: settings.quiet_first.as_secs(),
            quiet_max_seconds: settings.quiet_max.as_secs(),
            ports_per_sweep: settings.ports_per_sweep as u64,
            management_bytes_per_second: settings.management_bytes_per_second,
        }
    }
}

impl TryFrom<SettingsFile> for LinkHealthSettings {
    type Error = LinkHealthError;

    fn try_from(file: SettingsFile) -> Result<Self, LinkHealthError> {
        let seconds = |field, value| within(field, value, 1, SECONDS_MAX).map(Duration::from_secs);
        let mut errors = ErrorCounts::default();
        for (counter, field, value) in [
            (LinkErrorCounter::SymbolErrors, "symbol_errors", file.symbol_errors),
            (LinkErrorCounter::LinkRecoveries, "link_recoveries", file.link_recoveries),
            (LinkErrorCounter::LinkDowned, "link_downed", file.link_downed),
            (LinkErrorCounter::ReceiveErrors, "receive_errors", file.receive_errors),
            (LinkErrorCounter::LinkIntegrityErrors, "link_integrity_errors", file.link_integrity_errors),
            (LinkErrorCounter::BufferOverrunErrors, "buffer_overrun_errors", file.buffer_overrun_errors),
        ] {
            // A counter cannot grow by more between two resets.
            let limit = within(field, value, 0, counter.saturation().into())?;
            errors.set(counter, u32::try_from(limit).unwrap_or(u32::MAX));
        }
        let settings = Self {
            flaps: within("flaps", file.flaps, 0, FLAPS_MAX)?,
            flap_window: seconds("flap_window_seconds", file.flap_window_seconds)?,
            errors,
            error_window: seconds("error_window_seconds", file.error_window_seconds)?,
            quiet_first: seconds("quiet_first_seconds", file.quiet_first_seconds)?,
            quiet_max: seconds("quiet_max_seconds", file.quiet_max_seconds)?,
            ports_per_sweep: within("ports_per_sweep", file.ports_per_sweep, 0, PORTS_MAX)? as usize,
            management_bytes_per_second: file.management_bytes_per_second,
        };
        if settings.quiet_max < settings.quiet_first {
            return Err(LinkHealthError::QuietOrder {
                first: file.quiet_first_seconds,
                value: file.quiet_max_seconds,
            });
        }
        Ok(settings)
    }
}

fn within(field: &'static str, value: u64, min: u64, max: u64) -> Result<u64, LinkHealthError> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(LinkHealthError::OutOfRange { field, min, max, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> serde_json::Result<LinkHealthSettings> {
        serde_json::from_str(json)
    }

    #[test]
    fn an_empty_file_means_the_defaults() {
        assert_eq!(read("{}").unwrap(), LinkHealthSettings::default());
        let written = serde_json::to_string(&LinkHealthSettings::default()).unwrap();
        assert_eq!(read(&written).unwrap(), LinkHealthSettings::default());
    }

    #[test]
    fn values_out_of_range_are_rejected_with_the_range() {
        for (json, message) in [
            (r#"{"flaps": 1001}"#, "flaps must be between 0 and 1000, got 1001"),
            (r#"{"flap_window_seconds": 0}"#, "flap_window_seconds must be between 1 and 2592000, got 0"),
            (r#"{"link_integrity_errors": 16}"#, "link_integrity_errors must be between 0 and 15, got 16"),
            (
                r#"{"quiet_first_seconds": 100, "quiet_max_seconds": 99}"#,
                "quiet_max_seconds must be at least quiet_first_seconds (100), got 99",
            ),
        ] {
            assert_eq!(read(json).unwrap_err().to_string(), message);
        }
        assert!(read(r#"{"flap": 3}"#).unwrap_err().to_string().contains("unknown field `flap`"));
    }

    #[test]
    fn quiet_times_double_up_to_the_longest() {
        let settings = LinkHealthSettings::default();
        let minutes = |times| settings.quiet_time(times).as_secs() / 60;
        assert_eq!([1, 2, 3, 8, 9, 1000].map(minutes), [10, 20, 40, 1280, 1440, 1440]);
    }
}
