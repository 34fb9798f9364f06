//! The built-in profiles. `docs/assumptions.md` marks where their values come from.

use fabric_model::{LinkRate, Speed, Width};
use ib_wire::{DataLanes, Mtu};

use super::{
    AdapterDescription, AdapterProfile, DeviceBehaviour, DeviceProfile, InheritedState, LinkProfile,
    SwitchDescription, SwitchProfile,
};

/// A profile that every emulation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BuiltInProfile {
    Strict,
    Ibsim,
    ConnectX3SwitchX,
    ConnectX6Quantum,
    OldAndOdd,
}

impl BuiltInProfile {
    pub const ALL: [Self; 5] =
        [Self::Strict, Self::Ibsim, Self::ConnectX3SwitchX, Self::ConnectX6Quantum, Self::OldAndOdd];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Ibsim => "ibsim",
            Self::ConnectX3SwitchX => "connectx3-switchx",
            Self::ConnectX6Quantum => "connectx6-quantum",
            Self::OldAndOdd => "old-and-odd",
        }
    }

    /// The profile with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// One line for lists of profiles.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Strict => "the table sizes of ibsim, everything supported, strict in everything",
            Self::Ibsim => "as forgiving as the devices of ibsim: no keys, no enforcement",
            Self::ConnectX3SwitchX => "ConnectX-3 adapters and SwitchX switches, FDR",
            Self::ConnectX6Quantum => "ConnectX-6 adapters and Quantum switches with aggregation nodes, HDR",
            Self::OldAndOdd => "small tables, slow and mixed links, leftovers of another manager",
        }
    }

    /// The profile itself.
    pub fn profile(self) -> DeviceProfile {
        match self {
            Self::Strict => DeviceProfile::default(),
            Self::Ibsim => ibsim(),
            Self::ConnectX3SwitchX => connectx3_switchx(),
            Self::ConnectX6Quantum => connectx6_quantum(),
            Self::OldAndOdd => old_and_odd(),
        }
    }
}

fn ibsim() -> DeviceProfile {
    let strict = DeviceProfile::default();
    DeviceProfile {
        adapters: AdapterProfile { client_reregister: false, ..strict.adapters },
        switches: SwitchProfile {
            arbitration_at_port_0: true,
            multicast_fdb_top: false,
            inbound_enforcement: false,
            outbound_enforcement: false,
            ..strict.switches
        },
        behaviour: DeviceBehaviour::FORGIVING,
        ..strict
    }
}

fn connectx3_switchx() -> DeviceProfile {
    let strict = DeviceProfile::default();
    DeviceProfile {
        adapters: AdapterProfile {
            device_id: 0x1003,
            lanes: DataLanes::Eight,
            arbitration_entries: 8,
            pkeys: 128,
            guids: 128,
            mtu: Mtu::B4096,
            speed_max: Speed::Fdr,
            sl_to_vl: true,
            client_reregister: true,
            m_key_nvram: false,
            description: AdapterDescription::Mlx4,
        },
        switches: SwitchProfile {
            device_id: 0xc738,
            lanes: DataLanes::Eight,
            arbitration_entries: 16,
            mtu: Mtu::B4096,
            speed_max: Speed::Fdr,
            own_pkeys: 32,
            enforced_pkeys: 32,
            linear_forwarding: 49152,
            multicast_forwarding: 4096,
            hoq_life: 7,
            vl_stall_count: 3,
            life_time: 18,
            enhanced_port_0: true,
            description: SwitchDescription::SwitchX,
            ..strict.switches
        },
        ..strict
    }
}

fn connectx6_quantum() -> DeviceProfile {
    let strict = DeviceProfile::default();
    DeviceProfile {
        adapters: AdapterProfile {
            device_id: 0x101b,
            lanes: DataLanes::Four,
            arbitration_entries: 16,
            pkeys: 128,
            guids: 8,
            mtu: Mtu::B4096,
            speed_max: Speed::Hdr,
            sl_to_vl: true,
            client_reregister: true,
            m_key_nvram: false,
            description: AdapterDescription::Mlx5,
        },
        switches: SwitchProfile {
            device_id: 0xd2f0,
            lanes: DataLanes::Eight,
            arbitration_entries: 64,
            mtu: Mtu::B4096,
            speed_max: Speed::Hdr,
            own_pkeys: 32,
            enforced_pkeys: 32,
            optimised_sl_to_vl: true,
            linear_forwarding: 49152,
            multicast_forwarding: 16383,
            hoq_life: 19,
            vl_stall_count: 7,
            life_time: 19,
            adaptive_routing: true,
            aggregation_nodes: true,
            description: SwitchDescription::Quantum,
            ..strict.switches
        },
        behaviour: DeviceBehaviour { extended_speeds_on_request: false, ..DeviceBehaviour::STRICT },
        ..strict
    }
}

fn old_and_odd() -> DeviceProfile {
    let strict = DeviceProfile::default();
    let rate = |width, speed| LinkRate { width, speed };
    DeviceProfile {
        adapters: AdapterProfile {
            device_id: 0,
            lanes: DataLanes::Two,
            arbitration_entries: 16,
            pkeys: 4,
            guids: 5,
            mtu: Mtu::B4096,
            speed_max: Speed::Fdr,
            sl_to_vl: true,
            client_reregister: true,
            m_key_nvram: false,
            description: AdapterDescription::TwoPerHost,
        },
        switches: SwitchProfile {
            device_id: 0xcf08,
            lanes: DataLanes::Four,
            arbitration_entries: 8,
            mtu: Mtu::B2048,
            speed_max: Speed::Fdr,
            own_pkeys: 8,
            enforced_pkeys: 8,
            filter_raw_inbound: false,
            filter_raw_outbound: false,
            linear_forwarding: 49152,
            multicast_forwarding: 256,
            adaptive_routing: true,
            ..strict.switches
        },
        links: LinkProfile {
            sl_counters: false,
            rates: vec![
                rate(Width::X4, Speed::Qdr),
                rate(Width::X4, Speed::Fdr10),
                rate(Width::X4, Speed::Sdr),
                rate(Width::X4, Speed::Fdr),
                rate(Width::X1, Speed::Ddr),
            ],
            ..strict.links
        },
        inherited: InheritedState { lmc: 2, adaptive_routing: true, congestion_control: true },
        ..strict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_profiles_are_valid_and_have_names() {
        for built_in in BuiltInProfile::ALL {
            assert_eq!(built_in.profile().check(), Ok(()), "{}", built_in.name());
            assert_eq!(BuiltInProfile::named(built_in.name()), Some(built_in));
        }
        assert_eq!(BuiltInProfile::named("loose"), None);
    }
}
