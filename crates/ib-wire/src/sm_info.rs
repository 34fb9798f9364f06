//! SMInfo: how subnet managers tell each other who is master.

use crate::address::Guid;
use crate::bits::{bits, bytes};
use crate::keys::SmKey;

wire_enum! {
    /// What a subnet manager is doing.
    pub enum SmState {
        /// Not active.
        NotActive = 0,
        /// Looking for others.
        Discovering = 1,
        /// Another one is master.
        Standby = 2,
        /// It is master.
        Master = 3,
    }
}

layout! {
    /// SMInfo (attribute 0x0020).
    pub struct SmInfo[64] {
        /// The port the manager runs behind.
        guid: Option<Guid> = bytes(0, 8),
        /// SM_Key; the managers' own trust, sent as 0 where it is not asked for.
        sm_key: Option<SmKey> = bytes(8, 8),
        /// Counts up while the manager lives.
        activity: u32 = bytes(16, 4),
        /// 0..=15, the higher becomes master.
        priority: u8 = bits(20, 7, 4),
        /// What it is doing.
        state: SmState = bits(20, 3, 0),
    }
}
