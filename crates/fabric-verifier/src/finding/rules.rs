//! The rule that each finding belongs to.

use super::Finding;
use crate::Rule;

impl Finding {
    pub const fn rule(&self) -> Rule {
        match self {
            Self::Omitted { rule, .. } => *rule,
            Self::ManagerMissing { .. }
            | Self::ManagerDiffers { .. }
            | Self::DuplicateLid { .. }
            | Self::PortMissing { .. }
            | Self::PortUnknown { .. }
            | Self::GuidDiffers { .. }
            | Self::CableDiffers { .. }
            | Self::AliasDiffers { .. }
            | Self::AliasShared { .. } => Rule::Addresses,
            Self::ForwardingLoop { .. }
            | Self::ExitWithoutCable { .. }
            | Self::NotForwarded { .. }
            | Self::Misrouted { .. } => Rule::Forwarding,
            Self::CreditLoop { .. } => Rule::CreditLoops,
            Self::PartitionMissing { .. }
            | Self::MemberDiffers { .. }
            | Self::KeyMissing { .. }
            | Self::KeyUnwanted { .. }
            | Self::IndexZeroDiffers { .. }
            | Self::EnforcementOff { .. }
            | Self::EnforcementBetweenSwitches { .. }
            | Self::IsolationBroken { .. } => Rule::Isolation,
            Self::HandedOverInDefault { .. }
            | Self::HandedOverFull { .. }
            | Self::SitePortInOwnedPartition { .. }
            | Self::SitePortInManagement { .. } => Rule::HandedOver,
            Self::GroupMissing { .. }
            | Self::GroupUnwanted { .. }
            | Self::GroupDiffers { .. }
            | Self::GroupMemberDiffers { .. }
            | Self::GroupLoop { .. }
            | Self::GroupOneWay { .. }
            | Self::GroupMisrouted { .. }
            | Self::GroupMemberUnreached { .. }
            | Self::GroupTreesMeet { .. } => Rule::Multicast,
            Self::TableTooLong { .. }
            | Self::GroupBeyondTable { .. }
            | Self::LinkBeyondEnds { .. }
            | Self::ArbitrationEntryInvalid { .. }
            | Self::LaneBeyondLink { .. } => Rule::Capacities,
            Self::LaneWithoutWeight { .. }
            | Self::BestEffortDiscarded { .. }
            | Self::ServiceLevelOneWay { .. }
            | Self::HighPriorityWeight { .. }
            | Self::GroupServiceLevelDiscarded { .. } => Rule::Sharing,
            Self::PartitionNumberShared { .. }
            | Self::DuplicateCluster { .. }
            | Self::ClusterUnwanted { .. }
            | Self::RoutedAdaptively { .. }
            | Self::PortShared { .. }
            | Self::PartitionShared { .. }
            | Self::LaneShared { .. }
            | Self::ServiceLevelShared { .. }
            | Self::BestEffortGranted { .. }
            | Self::ManagementGranted { .. }
            | Self::ManagementLaneDiffers { .. }
            | Self::SharingMissing { .. }
            | Self::ServiceLevelNotGranted { .. }
            | Self::ForeignLane { .. } => Rule::Ownership,
            Self::GuaranteeMissing { .. }
            | Self::ClusterPortMissing { .. }
            | Self::ServiceLevelMissing { .. }
            | Self::GrantWithoutLink { .. }
            | Self::GrantOnForeignPort { .. }
            | Self::GrantMissing { .. }
            | Self::ClusterPortUnreached { .. }
            | Self::ServiceLevelDiscarded { .. }
            | Self::LaneUnserved { .. }
            | Self::ShareTooSmall { .. }
            | Self::BufferTooSmall { .. }
            | Self::LatencyExceeded { .. } => Rule::Guarantees,
        }
    }
}
