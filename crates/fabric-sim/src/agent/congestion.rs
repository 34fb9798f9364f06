//! The congestion control agent of switches: shows what an earlier manager left. Nothing can be changed.

use ib_wire::congestion::SwitchCongestionSetting;
use ib_wire::{Mad, Method, Status};

use crate::fabric::Fabric;
use crate::forwarding::Arrival;

impl Fabric {
    /// Turns a request of the congestion control class into its response.
    pub(crate) fn congestion_agent(&mut self, arrival: Arrival, mad: &mut Mad) {
        let is_switch = self.device_of(arrival.end).switch.is_some();
        let status = match mad.method() {
            _ if !mad.has_known_versions() => Status::BAD_VERSION,
            Method::GET if is_switch && mad.attribute() == SwitchCongestionSetting::ATTRIBUTE => {
                let setting = match self.profile.inherited.congestion_control {
                    true => {
                        SwitchCongestionSetting { victim_mask: [0xff; 32], threshold: 15, marking_rate: 1 }
                    }
                    false => SwitchCongestionSetting::default(),
                };
                mad.perf_data_mut()[..SwitchCongestionSetting::LEN].copy_from_slice(&setting.encode());
                Status::OK
            }
            Method::GET => Status::UNSUPPORTED_ATTRIBUTE,
            _ => Status::UNSUPPORTED_METHOD,
        };
        mad.set_method(Method::GET_RESP);
        mad.set_status(status);
    }
}
