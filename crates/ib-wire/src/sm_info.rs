//! SMInfo: state and priority of a subnet manager, from which the managers of a subnet elect the master.

use crate::address::Guid;
use crate::bits::{bits, bytes};
use crate::keys::SmKey;

wire_enum! {
    /// SMState: the state of a subnet manager in the election of the master.
    pub enum SmState {
        NotActive = 0,
        Discovering = 1,
        /// Another subnet manager is the master; this one polls it.
        Standby = 2,
        Master = 3,
    }
}

layout! {
    /// SMInfo (attribute 0x0020): state, priority and key of a subnet manager.
    pub struct SmInfo[64] {
        /// GUID of the port that the manager uses.
        guid: Option<Guid> = bytes(0, 8),
        /// Proves to other managers that this one may be the master; `None` in datagrams to those that have not proved it.
        sm_key: Option<SmKey> = bytes(8, 8),
        /// ActCount: grows while the manager is alive, so that standby managers notice when it stops.
        activity: u32 = bytes(16, 4),
        /// 0 to 15. The manager with the highest priority becomes the master, of several the one with the lowest GUID.
        priority: u8 = bits(20, 7, 4),
        state: SmState = bits(20, 3, 0),
    }
}
