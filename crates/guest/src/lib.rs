//! SessionRequest runs inside virtual machines, and the words the host shares with it.
//!
//! | module | what | who uses it |
//! |---|---|---|
//! | [`channel`] | frames and messages on the virtio-serial port between guest and host | both |
//! | [`seed`] | the documents a machine starts from | both |
//! | [`probe`] | whether the network carries, as nodes of a cluster find out together | the guest |
//! | [`apply`] | makes files of documents | the guest |
//! | [`serve`] | the guest's side of the channel: says how it stands, runs sessions | the guest |
//! | [`init`] | the first process of a machine | the guest |
//! | [`view`] | the network of the cluster, for tools in the machine | the guest |

pub mod apply;
pub mod channel;
pub mod init;
pub mod probe;
pub mod seed;
pub mod serve;
mod sys;
pub mod view;
