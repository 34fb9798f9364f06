//! What runs inside virtual machines, and the words the host shares with it.
//!
//! | module | what | who uses it |
//! |---|---|---|
//! | [`channel`] | frames and messages on the virtio-serial port between guest and host | both |

pub mod apply;
pub mod channel;
pub mod seed;
