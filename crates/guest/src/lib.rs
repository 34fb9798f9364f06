//! The software inside virtual machines, and the protocol it shares with the node agent.
//!
//! | module | contents | used by |
//! |---|---|---|
//! | [`channel`] | framing and messages on the virtio-serial port between guest and host | guest and agent |
//! | [`seed`] | the NoCloud seed that a virtual machine boots from | guest and agent |
//! | [`probe`] | the network check that the nodes of a cluster run together | guest |
//! | [`apply`] | writes the files that `user-data` lists | guest |
//! | [`serve`] | the guest's end of the channel: reports the node's status, runs sessions | guest |
//! | [`init`] | PID 1 of a virtual machine | guest |
//! | [`view`] | gives InfiniBand tools in the machine access to the cluster's network view | guest |

pub mod apply;
pub mod channel;
pub mod init;
pub mod probe;
pub mod seed;
pub mod serve;
mod sys;
pub mod view;
