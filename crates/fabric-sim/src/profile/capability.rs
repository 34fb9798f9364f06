//! The capabilities of a profile, by name, so that each can be switched off.

use std::fmt;
use std::str::FromStr;

use ib_wire::DataLanes;
use thiserror::Error;

use super::DeviceProfile;

/// Something that devices may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceCapability {
    /// P_Key table of external switch ports.
    EnforcementTable,
    InboundEnforcement,
    OutboundEnforcement,
    InboundRawFilter,
    OutboundRawFilter,
    SwitchSlToVl,
    AdapterSlToVl,
    OptimisedSlToVl,
    SwitchArbitration,
    AdapterArbitration,
    /// More than one data lane at switches.
    SwitchLanes,
    /// More than one data lane at adapters.
    AdapterLanes,
    /// More than one P_Key at an adapter port.
    AdapterPkeys,
    /// More than one GUID at an adapter port.
    AliasGuids,
    /// Software at adapter ports registers again on request.
    ClientReregister,
    MulticastTable,
    /// Writable HOQLife, VLStallCount and LifeTimeValue.
    Lifetimes,
    ManagementKeys,
    /// Counters of data by service level.
    SlCounters,
    ExtendedSpeeds,
    /// The vendor's ExtendedPortInfo, which tells FDR10 from QDR.
    ExtendedPortInfo,
}

/// A name that is not that of a capability.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no capability {name:?}; there are {}", DeviceCapability::ALL.map(|known| known.name()).join(", "))]
pub struct UnknownCapability {
    name: String,
}

impl DeviceCapability {
    pub const ALL: [Self; 21] = [
        Self::EnforcementTable,
        Self::InboundEnforcement,
        Self::OutboundEnforcement,
        Self::InboundRawFilter,
        Self::OutboundRawFilter,
        Self::SwitchSlToVl,
        Self::AdapterSlToVl,
        Self::OptimisedSlToVl,
        Self::SwitchArbitration,
        Self::AdapterArbitration,
        Self::SwitchLanes,
        Self::AdapterLanes,
        Self::AdapterPkeys,
        Self::AliasGuids,
        Self::ClientReregister,
        Self::MulticastTable,
        Self::Lifetimes,
        Self::ManagementKeys,
        Self::SlCounters,
        Self::ExtendedSpeeds,
        Self::ExtendedPortInfo,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EnforcementTable => "enforcement-table",
            Self::InboundEnforcement => "inbound-enforcement",
            Self::OutboundEnforcement => "outbound-enforcement",
            Self::InboundRawFilter => "inbound-raw-filter",
            Self::OutboundRawFilter => "outbound-raw-filter",
            Self::SwitchSlToVl => "switch-sl-to-vl",
            Self::AdapterSlToVl => "adapter-sl-to-vl",
            Self::OptimisedSlToVl => "optimised-sl-to-vl",
            Self::SwitchArbitration => "switch-arbitration",
            Self::AdapterArbitration => "adapter-arbitration",
            Self::SwitchLanes => "switch-lanes",
            Self::AdapterLanes => "adapter-lanes",
            Self::AdapterPkeys => "adapter-pkeys",
            Self::AliasGuids => "alias-guids",
            Self::ClientReregister => "client-reregister",
            Self::MulticastTable => "multicast-table",
            Self::Lifetimes => "lifetimes",
            Self::ManagementKeys => "management-keys",
            Self::SlCounters => "sl-counters",
            Self::ExtendedSpeeds => "extended-speeds",
            Self::ExtendedPortInfo => "extended-port-info",
        }
    }
}

impl fmt::Display for DeviceCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DeviceCapability {
    type Err = UnknownCapability;

    fn from_str(name: &str) -> Result<Self, UnknownCapability> {
        let unknown = || UnknownCapability { name: name.to_owned() };
        Self::ALL.into_iter().find(|known| known.name() == name).ok_or_else(unknown)
    }
}

impl DeviceProfile {
    /// The profile of devices that lack a capability.
    #[must_use]
    pub fn without(&self, capability: DeviceCapability) -> Self {
        let mut profile = self.clone();
        let Self { adapters, switches, links, behaviour, .. } = &mut profile;
        match capability {
            DeviceCapability::EnforcementTable => switches.enforced_pkeys = 0,
            DeviceCapability::InboundEnforcement => switches.inbound_enforcement = false,
            DeviceCapability::OutboundEnforcement => switches.outbound_enforcement = false,
            DeviceCapability::InboundRawFilter => switches.filter_raw_inbound = false,
            DeviceCapability::OutboundRawFilter => switches.filter_raw_outbound = false,
            DeviceCapability::SwitchSlToVl => switches.sl_to_vl = false,
            DeviceCapability::AdapterSlToVl => adapters.sl_to_vl = false,
            DeviceCapability::OptimisedSlToVl => switches.optimised_sl_to_vl = false,
            DeviceCapability::SwitchArbitration => switches.arbitration_entries = 0,
            DeviceCapability::AdapterArbitration => adapters.arbitration_entries = 0,
            DeviceCapability::SwitchLanes => switches.lanes = DataLanes::One,
            DeviceCapability::AdapterLanes => adapters.lanes = DataLanes::One,
            DeviceCapability::AdapterPkeys => adapters.pkeys = 1,
            DeviceCapability::AliasGuids => adapters.guids = 1,
            DeviceCapability::ClientReregister => adapters.client_reregister = false,
            DeviceCapability::MulticastTable => switches.multicast_forwarding = 0,
            DeviceCapability::Lifetimes => switches.writable_lifetimes = false,
            DeviceCapability::ManagementKeys => behaviour.management_keys = false,
            DeviceCapability::SlCounters => links.sl_counters = false,
            DeviceCapability::ExtendedSpeeds => links.extended_speeds = false,
            DeviceCapability::ExtendedPortInfo => links.extended_port_info = false,
        }
        profile
    }

    /// The capabilities that devices of this profile have.
    pub fn capabilities(&self) -> impl Iterator<Item = DeviceCapability> {
        DeviceCapability::ALL.into_iter().filter(|capability| self.without(*capability) != *self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capability_can_be_named_and_switched_off() {
        let mut profile = DeviceProfile::default();
        profile.switches.optimised_sl_to_vl = true;
        assert_eq!(profile.capabilities().count(), DeviceCapability::ALL.len());
        for capability in DeviceCapability::ALL {
            assert_eq!(capability.name().parse(), Ok(capability));
            let without = profile.without(capability);
            assert_eq!(without.check(), Ok(()), "{capability}");
            assert!(!without.capabilities().any(|left| left == capability), "{capability}");
        }
        let error = "wings".parse::<DeviceCapability>().unwrap_err().to_string();
        assert!(error.contains("\"wings\"") && error.contains("outbound-enforcement"), "{error}");
    }
}
