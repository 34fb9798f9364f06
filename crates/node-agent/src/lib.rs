//! Runs the virtual machines of one or more hosts: the daemon `heddle-agent`.
//!
//! The controller sends host specs over HTTP ([`http`]); each is on disk before it is acknowledged ([`agent`]). One task per virtual
//! machine reconciles it with its desired state ([`vm`]): it verifies the image, creates disks, starts the domain with libvirt,
//! attaches its adapter to the emulated fabric, and talks to its guest. After a restart, running domains are adopted. A virtual
//! machine is removed only if a host spec lists it as removed; its disk is then retained for a while ([`retention`]).
//!
//! | module | contents |
//! |---|---|
//! | [`agent`], [`host_spec`] | accepted host specs, and the virtual machines that follow from them |
//! | [`vm`], [`context`] | life cycle of one virtual machine; state shared by all |
//! | [`state_dir`], [`users`] | files and sockets; user ids of QEMU processes |
//! | [`image`], [`disk`], [`disk_space`], [`retention`] | verified images; overlays and seeds; space accounting; disks of removed virtual machines |
//! | [`capacity`], [`cpu_set`], [`pinning_check`] | cores and memory of the machine; whether guarantees are met |
//! | [`domain`], [`xml`], [`hypervisor`], [`accelerator`] | libvirt domains; whether KVM works |
//! | [`fabric`] | attachments to the emulated fabric |
//! | [`link`], [`session`] | channel to a guest; sessions of users and tools |
//! | [`reports`], [`http`] | reports to the controller; HTTP API |

pub mod accelerator;
pub mod agent;
pub mod capacity;
pub mod context;
pub mod cpu_set;
pub mod disk;
pub mod disk_space;
pub mod domain;
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

/// An error and its sources in one line, separated by colons.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
