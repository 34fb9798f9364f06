//! Which rule a finding breaks.

use super::Finding;
use crate::Rule;

impl Finding {
    /// The rule that is broken.
    pub const fn rule(&self) -> Rule {
        match self {
            Self::More { rule, .. } => *rule,
            Self::ManagerMissing { .. }
            | Self::ManagerDiffers { .. }
            | Self::LidTwice { .. }
            | Self::PortMissing { .. }
            | Self::PortUnknown { .. }
            | Self::GuidDiffers { .. }
            | Self::CableDiffers { .. } => Rule::Addresses,
            Self::ForwardingLoop { .. }
            | Self::ExitWithoutCable { .. }
            | Self::NotForwarded { .. }
            | Self::Astray { .. } => Rule::Forwarding,
            Self::CreditLoop { .. } => Rule::CreditLoops,
            Self::PartitionMissing { .. }
            | Self::MemberDiffers { .. }
            | Self::KeyMissing { .. }
            | Self::KeyUnwanted { .. }
            | Self::IndexZero { .. }
            | Self::EnforcementOff { .. }
            | Self::EnforcementInside { .. }
            | Self::IsolationBroken { .. } => Rule::Isolation,
            Self::GroupMissing { .. }
            | Self::GroupUnwanted { .. }
            | Self::GroupDiffers { .. }
            | Self::GroupMemberDiffers { .. }
            | Self::GroupLoop { .. }
            | Self::GroupOneWay { .. }
            | Self::GroupAstray { .. }
            | Self::GroupUnreached { .. }
            | Self::GroupsMeet { .. } => Rule::Multicast,
            Self::TableTooLong { .. }
            | Self::GroupBeyondTable { .. }
            | Self::LinkBeyondEnds { .. }
            | Self::ArbitrationEntry { .. }
            | Self::LaneBeyondLink { .. } => Rule::Capacities,
            Self::LaneWithoutWeight { .. }
            | Self::BestEffortDiscarded { .. }
            | Self::LevelOneWay { .. }
            | Self::HighPriority { .. }
            | Self::GroupLevelDiscarded { .. } => Rule::Sharing,
            Self::NumberOfTwo(_)
            | Self::ClusterTwice { .. }
            | Self::ClusterUnwanted { .. }
            | Self::PortOfTwo { .. }
            | Self::KeyOfTwo { .. }
            | Self::LaneOfTwo { .. }
            | Self::LevelOfTwo { .. }
            | Self::BestEffortGranted { .. }
            | Self::ManagementGranted { .. }
            | Self::ManagementAstray { .. }
            | Self::PortUnguarded { .. }
            | Self::LevelNotGranted { .. }
            | Self::LaneOfOther { .. } => Rule::Ownership,
            Self::PromiseMissing { .. }
            | Self::ClusterPortMissing { .. }
            | Self::LevelMissing { .. }
            | Self::GrantWithoutLink { .. }
            | Self::GrantAstray { .. }
            | Self::GrantMissing { .. }
            | Self::ClusterUnreached { .. }
            | Self::LevelLost { .. }
            | Self::LaneUnserved { .. }
            | Self::ShareShort { .. }
            | Self::BufferShort { .. }
            | Self::TooLate { .. } => Rule::Promises,
        }
    }
}
