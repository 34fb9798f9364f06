//! What a lane loses at the inputs of switches, by switch model. Derived from the models of `fabric_model::SwitchModel`
//! alone; the compiler has formulas of its own.
//!
//! Method, for an input with limited speed-up `s` into which `lanes` lanes lead. The input moves one packet of each lane in
//! turn, so a packet that finds its lane empty waits for at most one packet of each other lane, each 1/s of its time on the
//! link. A lane whose packets keep coming gets every `lanes`-th turn, s/lanes of the link, while all others have packets
//! too. They cannot always have some: together they receive what the link brings beside the lane, and the input moves it
//! (lanes − 1)/lanes · s times as fast as a link. The rate that the lane keeps follows for each share; the least is searched
//! for over all shares.

use fabric_model::SwitchModel;

use super::arbitration::PACKET_BYTES;

/// Shares of a link, in parts of this number, for which the kept rate is computed.
const STEPS: u32 = 4096;

/// A full-size packet without optional headers, in bytes.
const PLAIN_BYTES: f64 = 4122.0;

/// The most bytes that the weight of an entry stands for.
const VISIT_BYTES: f64 = 255.0 * 64.0;

/// Seconds that a packet waits at most at an input for lanes other than its own. `lanes` lead into it over a link of `link`
/// bits per second.
pub(super) fn longest_wait_s(model: SwitchModel, lanes: usize, link: u64) -> f64 {
    let SwitchModel::LimitedSpeedup(speedup) = model else { return 0.0 };
    let packet_s = (8 * PACKET_BYTES) as f64 / link as f64;
    lanes.saturating_sub(1) as f64 * packet_s / f64::from(speedup.factor())
}

/// The part of its rate that a lane keeps at least behind inputs into which `lanes` lanes lead.
pub(super) fn kept_part(model: SwitchModel, lanes: usize) -> f64 {
    match model {
        SwitchModel::IdealOutputs => 1.0,
        SwitchModel::FifoInputs => 1.0,
        SwitchModel::LimitedSpeedup(_) if lanes < 2 => 1.0,
        SwitchModel::LimitedSpeedup(speedup) => {
            let (lanes, speedup) = (lanes as f64, f64::from(speedup.factor()));
            let turn = speedup / lanes;
            let kept = |step: u32| {
                let share = f64::from(step) / f64::from(STEPS);
                // While all others have packets, they leave with this rate, and come with at most 1 − share.
                let contended = ((1.0 - share) / (turn * (lanes - 1.0))).min(1.0);
                (1.0 - contended) + contended * (turn / share).min(1.0)
            };
            (1..=STEPS).map(kept).fold(1.0, f64::min)
        }
    }
}

/// The part of its rate that a cluster of so many ports keeps while all send to all others evenly.
///
/// A FIFO input waits at every output for a visit of its own, in the worst case for one packet: the next packet goes elsewhere.
/// Where a port has one other to send to, all packets take the same output.
pub(super) fn kept_by_cluster(model: SwitchModel, ports: usize) -> f64 {
    let outputs = ports.saturating_sub(1);
    if model == SwitchModel::FifoInputs && outputs > 1 {
        PLAIN_BYTES / (VISIT_BYTES * outputs as f64)
    } else {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use fabric_model::Speedup;

    use super::*;

    #[test]
    fn an_input_costs_less_the_faster_it_is_read() {
        let limited = |factor| SwitchModel::LimitedSpeedup(Speedup::new(factor).unwrap());
        for lanes in 2..=15 {
            for factor in 1..15 {
                let [slow, fast] = [factor, factor + 1].map(limited);
                assert!(kept_part(slow, lanes) <= kept_part(fast, lanes), "{lanes} {factor}");
                assert!(longest_wait_s(slow, lanes, 1000) > longest_wait_s(fast, lanes, 1000));
                assert_eq!(kept_part(slow, lanes) == 1.0, usize::from(factor) >= lanes, "{lanes} {factor}");
            }
        }
        assert!((kept_part(limited(2), 8) - 0.857).abs() < 0.001);
        // Seven packets at 1 GB/s, twice as fast.
        let wait_s = longest_wait_s(limited(2), 8, 8_000_000_000);
        assert!((wait_s * 1e9 - 3.5 * PACKET_BYTES as f64).abs() < 1e-3);
    }

    #[test]
    fn other_lanes_do_not_delay_packets_in_the_other_models() {
        for model in [SwitchModel::IdealOutputs, SwitchModel::FifoInputs] {
            assert_eq!(longest_wait_s(model, 15, 1000), 0.0);
        }
        assert_eq!(kept_part(SwitchModel::IdealOutputs, 15), 1.0);
        assert_eq!(kept_by_cluster(SwitchModel::IdealOutputs, 15), 1.0);
        let kept = [1, 2, 3, 5].map(|ports| kept_by_cluster(SwitchModel::FifoInputs, ports));
        assert!(
            kept[..2] == [1.0, 1.0] && (kept[2] - 0.126).abs() < 0.001 && (kept[3] - 0.063).abs() < 0.001
        );
    }
}
