//! Memory and CPU time of idle views.

use std::time::Duration;

use serde::Serialize;

use super::start_views;
use bench::Programs;

/// Virtual machines of each.
pub const NODES: u32 = 16;

/// Time after which a started process is idle.
const SETTLED: Duration = Duration::from_millis(500);

/// Cost of views that get no requests.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Idle {
    pub views: u32,
    /// Resident memory of a process with one view, in MiB.
    pub before_mib: f64,
    /// Resident memory of a process with all views, in MiB.
    pub after_mib: f64,
    /// Memory of each view, in KiB.
    pub kib_each: f64,
    /// Time to build all views, in seconds.
    pub build_s: f64,
    /// CPU time of all views together, in ms per second.
    pub cpu_ms_per_s: f64,
}

/// Measures a process with one view, and one with `views` more.
pub fn measure(programs: &Programs, views: u32, watch_s: f64) -> anyhow::Result<Idle> {
    eprintln!("{views} views of {NODES} nodes");
    let (one, _) = start_views(programs, "one", NODES, 1)?;
    let (before_s, before_kib) = (one.load_time.as_secs_f64(), one.resident_kib()?);
    drop(one);
    let (all, _) = start_views(programs, "idle", NODES, views + 1)?;
    std::thread::sleep(SETTLED);
    let after_kib = all.resident_kib()?;
    let before = all.cpu_time()?;
    std::thread::sleep(Duration::from_secs_f64(watch_s));
    let cpu = all.cpu_time()? - before;
    Ok(Idle {
        views,
        before_mib: before_kib as f64 / 1024.0,
        after_mib: after_kib as f64 / 1024.0,
        kib_each: after_kib.saturating_sub(before_kib) as f64 / f64::from(views),
        build_s: (all.load_time.as_secs_f64() - before_s).max(0.0),
        cpu_ms_per_s: cpu.as_secs_f64() * 1e3 / watch_s,
    })
}
