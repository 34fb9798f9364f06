//! What the inputs of switches cost: the wait of a packet at an input, and the part of a link that can be sold.
//!
//! The switch models are those of [`SwitchModel`]; decision 0031 derives the formulas. The verifier has its own.

use fabric_model::SwitchModel;

use super::arbitration::{PACKET_BYTES_MAX, WEIGHT_BYTES};

/// The longest time, in seconds, that a packet waits at the input of a switch for packets of other lanes to other outputs, if
/// its own lane is empty. `other_lanes` is the number of other lanes that the link into the switch serves, and
/// `link_bytes_per_s` the rate of that link.
///
/// With limited speed-up an input moves one packet of each lane in turn, each in its time on the link divided by the
/// speed-up. Where outputs are ideal no packet waits at an input. In FIFO inputs it waits for its own lane only.
pub fn input_wait_s(model: SwitchModel, other_lanes: u8, link_bytes_per_s: f64) -> f64 {
    match model {
        SwitchModel::IdealOutputs | SwitchModel::FifoInputs => 0.0,
        SwitchModel::LimitedSpeedup(speedup) => {
            let bytes = u64::from(other_lanes) * PACKET_BYTES_MAX;
            bytes as f64 / (f64::from(speedup.factor()) * link_bytes_per_s)
        }
    }
}

/// The part, between 0 and 1, that a lane keeps of what the arbitration tables give it, whatever other lanes send. `lanes` is
/// the number of lanes that the links into the switch serve, the lane's own included.
///
/// With limited speed-up `s` and `V` lanes, others keep an input busy with what they send: while they do, a lane gets 1/V of
/// the input. If it has the share r of its link, they send at most 1 − r, so this lasts for at most (1 − r)·V/((V − 1)·s) of
/// the time, and costs at most 1 − s/(V·r) of what the lane would get. The product is largest for r = √(s/V).
pub fn rate_factor(model: SwitchModel, lanes: u8) -> f64 {
    match model {
        SwitchModel::IdealOutputs | SwitchModel::FifoInputs => 1.0,
        SwitchModel::LimitedSpeedup(speedup) if speedup.factor() >= lanes => 1.0,
        SwitchModel::LimitedSpeedup(speedup) => {
            let (lanes, speedup) = (f64::from(lanes), f64::from(speedup.factor()));
            1.0 - lanes * (1.0 - (speedup / lanes).sqrt()).powi(2) / ((lanes - 1.0) * speedup)
        }
    }
}

/// The part of a reserved rate that a cluster of `nodes` nodes keeps if all send to all others evenly.
///
/// In FIFO inputs consecutive packets go to different outputs, and each waits for a visit of its own. So a visit of up to 255
/// units sends one packet of an input, and an input whose packets go to k outputs waits for k visits in the time of one. A
/// cluster of n nodes has at most n − 1 destinations; with one, packets follow each other through the same output.
pub fn uniform_part(model: SwitchModel, nodes: usize) -> f64 {
    match model {
        SwitchModel::FifoInputs if nodes > 2 => {
            PLAIN_PACKET_BYTES as f64 / (WEIGHT_MAX * WEIGHT_BYTES) as f64 / (nodes - 1) as f64
        }
        _ => 1.0,
    }
}

/// The largest weight of an entry (8 bits).
const WEIGHT_MAX: u64 = 255;

/// A full-size packet with the headers that plain data needs, in bytes. Rates are stated for such packets.
const PLAIN_PACKET_BYTES: u64 = 4122;

#[cfg(test)]
mod tests {
    use fabric_model::Speedup;

    use super::*;

    fn limited(speedup: u8) -> SwitchModel {
        SwitchModel::LimitedSpeedup(Speedup::new(speedup).unwrap())
    }

    #[test]
    fn a_packet_waits_for_one_packet_of_each_other_lane() {
        // At 1 GB/s a byte takes a nanosecond.
        let wait_ns = |model, lanes| (input_wait_s(model, lanes, 1e9) * 1e9).round() as u64;
        assert_eq!(wait_ns(limited(1), 1), PACKET_BYTES_MAX);
        assert_eq!(wait_ns(limited(2), 7), 7 * PACKET_BYTES_MAX / 2);
        assert_eq!(wait_ns(limited(14), 14), PACKET_BYTES_MAX);
        for model in [SwitchModel::IdealOutputs, SwitchModel::FifoInputs] {
            assert_eq!(wait_ns(model, 14), 0);
        }
    }

    #[test]
    fn a_faster_input_leaves_more_and_one_as_fast_as_its_lanes_leaves_all() {
        for lanes in 2..=15 {
            let factors: Vec<f64> = (1..=lanes).map(|speedup| rate_factor(limited(speedup), lanes)).collect();
            assert!(factors.is_sorted() && factors[0] > 0.0, "{lanes}: {factors:?}");
            assert_eq!(factors.last(), Some(&1.0), "{lanes}");
        }
        assert!((rate_factor(limited(2), 8) - 6.0 / 7.0).abs() < 1e-9);
        assert_eq!(rate_factor(SwitchModel::IdealOutputs, 15), 1.0);
    }

    #[test]
    fn only_fifo_inputs_cost_a_cluster_more_with_every_destination() {
        for nodes in 1..20 {
            assert_eq!(uniform_part(SwitchModel::IdealOutputs, nodes), 1.0);
            assert_eq!(uniform_part(limited(2), nodes), 1.0);
            let parts = [nodes, nodes + 1].map(|nodes| uniform_part(SwitchModel::FifoInputs, nodes));
            assert!(parts[0] >= parts[1] && (nodes < 2 || parts[0] > parts[1]), "{nodes}: {parts:?}");
        }
        assert_eq!(uniform_part(SwitchModel::FifoInputs, 2), 1.0);
        assert!((uniform_part(SwitchModel::FifoInputs, 3) - 0.126).abs() < 0.001);
    }

    /// The closed form is the least over all shares of a link.
    #[test]
    fn no_share_of_a_link_keeps_less_than_the_factor() {
        for (lanes, speedup) in [(3u8, 2u8), (4, 1), (8, 2), (8, 5), (15, 2), (15, 3)] {
            let (many, fast) = (f64::from(lanes), f64::from(speedup));
            let kept = (1..1000).map(|part| f64::from(part) / 1000.0).map(|share| {
                let busy = (1.0 - share) * many / ((many - 1.0) * fast);
                1.0 - busy * (1.0 - fast / (many * share)).max(0.0)
            });
            let least = kept.fold(1.0, f64::min);
            let factor = rate_factor(limited(speedup), lanes);
            assert!(least >= factor && least - factor < 1e-5, "{lanes} {speedup}: {least} {factor}");
        }
    }
}
