//! The service that an arbitration table guarantees a lane, and the delay bound along a path.

use ib_wire::{VirtualLane, VlArbEntry};

use super::arbitration::{OVERSHOOT_BYTES, PACKET_BYTES_MAX, WEIGHT_BYTES};

/// The rate-latency service curve of a lane at one port, whatever other lanes send (network calculus, Le Boudec and
/// Thiran): from any instant on, a lane that always has packets to send gets at least `rate_bytes_per_s · (t − wait_s)`
/// bytes in `t` seconds.
///
/// # Proof
///
/// Let the visits of the lane in a round send at least `q₁ … qₙ` bytes, and let the other lanes send at most `gᵢ` bytes
/// before visit `i`. With `Q = Σ q` and `G = Σ g`, the rate is `R·Q / (Q + G)` on a link of rate `R`. From the start of gap
/// `s` on, the lane has got `q_s + … + q_(s+m−1)` bytes when gap `s+m` ends, after at most
/// `(g_s + … + g_(s+m) + q_s + … + q_(s+m−1)) / R` seconds. So `wait_s` must be at least
/// `(Σ g + Σ q) / R − Σ q / rate` for each `s` and `m`, and it is their maximum: `m < n` suffices, since a whole round adds
/// `(G + Q) / R − Q / rate = 0`. Between ends of gaps the lane is served at `R ≥ rate` or the gap is not over yet, a visit
/// that sends more than `q` does so at `R`, and an instant inside a gap or a visit is no worse than the start of the next
/// gap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceCurve {
    pub rate_bytes_per_s: f64,
    pub wait_s: f64,
    /// The longest time that other lanes take between two visits.
    pub gap_s: f64,
}

impl ServiceCurve {
    /// The service curve of a lane by the entries of a table, on a link of the given rate; `None` if it has no entry.
    pub fn of(entries: &[VlArbEntry], lane: VirtualLane, link_bytes_per_s: f64) -> Option<Self> {
        let first = entries.iter().position(|entry| entry.lane == lane && entry.weight != 0)?;
        let (mut gap, mut visits) = (0, Vec::new());
        // One round, from behind the lane's first entry up to and including it.
        for entry in entries[first + 1..].iter().chain(&entries[..=first]).filter(|entry| entry.weight != 0) {
            let least = WEIGHT_BYTES * u64::from(entry.weight);
            if entry.lane == lane {
                visits.push(Visit { gap: gap as f64, own: least as f64 });
                gap = 0;
            } else {
                gap += least + OVERSHOOT_BYTES;
            }
        }
        let own: f64 = visits.iter().map(|visit| visit.own).sum();
        let gaps: f64 = visits.iter().map(|visit| visit.gap).sum();
        let rate_bytes_per_s = link_bytes_per_s * own / (own + gaps);
        let mut wait_s = 0.0;
        for start in 0..visits.len() {
            let mut late_s = 0.0;
            for visit in visits[start..].iter().chain(&visits[..start]) {
                late_s += visit.gap / link_bytes_per_s;
                wait_s = f64::max(wait_s, late_s);
                late_s += visit.own / link_bytes_per_s - visit.own / rate_bytes_per_s;
            }
        }
        let gap_s = visits.iter().map(|visit| visit.gap).fold(0.0, f64::max) / link_bytes_per_s;
        Some(Self { rate_bytes_per_s, wait_s, gap_s })
    }
}

/// A visit of a lane, in bytes.
#[derive(Clone, Copy, Debug)]
struct Visit {
    /// The most that others send before it.
    gap: f64,
    /// The least that it sends.
    own: f64,
}

/// The delays at one port of a packet's path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopDelay {
    /// The longest time that other lanes take before the lane's next visit.
    pub wait_s: f64,
    pub link_bytes_per_s: f64,
    /// The time through the device to its output queue, and along the cable.
    pub passage_s: f64,
}

/// An upper bound on the time, in seconds, of a packet of the largest size along a path, if its own lane is empty and its
/// receiver accepts at link rate. At each hop it waits for all other lanes once, since a visit sends a packet of any size.
pub fn packet_bound_s(hops: &[HopDelay]) -> f64 {
    let packet_s = |hop: &HopDelay| PACKET_BYTES_MAX as f64 / hop.link_bytes_per_s;
    hops.iter().map(|hop| hop.wait_s + packet_s(hop) + hop.passage_s).sum()
}
