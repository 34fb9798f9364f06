//! What the inputs of switches cost: the wait of a packet at an input, and the part of a link that can be sold.
//!
//! The switch models are those of [`SwitchModel`]; decision 0031 derives the formulas. The verifier has its own.

use fabric_model::SwitchModel;

use super::arbitration::PACKET_BYTES_MAX;

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
        SwitchModel::IdealOutputs => 1.0,
        SwitchModel::FifoInputs => FIFO_RATE_FACTOR,
        SwitchModel::LimitedSpeedup(speedup) if speedup.factor() >= lanes => 1.0,
        SwitchModel::LimitedSpeedup(speedup) => {
            let (lanes, speedup) = (f64::from(lanes), f64::from(speedup.factor()));
            1.0 - lanes * (1.0 - (speedup / lanes).sqrt()).powi(2) / ((lanes - 1.0) * speedup)
        }
    }
}

/// The part of a link that FIFO inputs leave to uniform traffic.
const FIFO_RATE_FACTOR: f64 = 0.5857;

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
