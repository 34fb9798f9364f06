//! Runs the virtual machines of hosts: the agent `heddle-agent`.
//!
//! Orders come in by HTTP ([`http`]) and are on disk before they are answered ([`agent`]). A task per virtual machine
//! makes it so ([`vm`]): image checked, disks made, domain started by libvirt, adapter put on the emulated fabric,
//! guest heard and spoken to. What is found running after a restart is adopted. A virtual machine is removed only by a
//! tombstone in the orders; its disk then rests for a while ([`resting`]).
//!
//! | module | what |
//! |---|---|
//! | [`agent`], [`orders`] | orders, and which virtual machines follow from them |
//! | [`vm`], [`shared`] | one virtual machine; what all have in common |
//! | [`place`], [`durable`], [`users`] | files, sockets, and writing so that it lasts; whose files they are |
//! | [`image`], [`disk`], [`room`], [`resting`] | images that are what they say; overlays and seeds; where they fit; removed ones |
//! | [`capacity`], [`cores`], [`promise`] | what the machine has; whether promises are kept |
//! | [`domain`], [`xml`], [`hypervisor`], [`accelerator`] | libvirt, and whether KVM works |
//! | [`fabric`] | the emulated fabric |
//! | [`link`], [`session`] | the guest's channel; sessions of people and tools |
//! | [`reports`], [`http`] | reports; the interface |

pub mod accelerator;
pub mod agent;
pub mod capacity;
pub mod context;
pub mod cpu_set;
pub mod disk;
pub mod disk_space;
pub mod domain;
pub mod durable;
pub mod fabric;
pub mod host_spec;
pub mod http;
pub mod hypervisor;
pub mod image;
pub mod link;
pub mod pinning_check;
pub mod reports;
pub mod retention;
pub mod session;
pub mod state_dir;
pub mod users;
pub mod vm;
pub mod xml;

/// An error with all it came from, in one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
