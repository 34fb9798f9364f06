//! Congestion control (class 0x21): the settings that show whether it is on. Layouts as in libibmad.

use crate::perf::PERF_DATA_LEN;

/// What a switch marks (SwitchCongestionSetting), as far as it shows whether it marks anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCongestionSetting {
    /// Victim_Mask: ports that mark packets even if they are no root of congestion, one bit each.
    pub victim_mask: [u8; 32],
    /// Threshold: how easily a port marks packets, 1 to 15; 0 means never.
    pub threshold: u8,
    /// Marking_Rate: mean number of packets between two marked ones.
    pub marking_rate: u16,
}

impl SwitchCongestionSetting {
    /// Attribute number in class 0x21.
    pub const ATTRIBUTE: crate::Attribute = crate::Attribute(0x0014);
    /// Length in bytes.
    pub const LEN: usize = 76;
    const VICTIM_MASK: usize = 4;
    const THRESHOLD: usize = 68;
    const MARKING_RATE: usize = 74;

    /// Reads the attribute data of a datagram.
    pub fn decode(raw: &[u8; PERF_DATA_LEN]) -> Self {
        let mut victim_mask = [0; 32];
        victim_mask.copy_from_slice(&raw[Self::VICTIM_MASK..Self::VICTIM_MASK + 32]);
        let marking_rate = u16::from_be_bytes([raw[Self::MARKING_RATE], raw[Self::MARKING_RATE + 1]]);
        Self { victim_mask, threshold: raw[Self::THRESHOLD] >> 4, marking_rate }
    }

    /// Writes the attribute data of a datagram.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut raw = [0; Self::LEN];
        raw[Self::VICTIM_MASK..Self::VICTIM_MASK + 32].copy_from_slice(&self.victim_mask);
        raw[Self::THRESHOLD] = self.threshold << 4;
        raw[Self::MARKING_RATE..].copy_from_slice(&self.marking_rate.to_be_bytes());
        raw
    }

    /// Whether the switch marks packets.
    pub fn is_on(&self) -> bool {
        self.threshold > 0
    }
}
