//! Protocol between the controller and the agent of a host.
//!
//! The agent serves HTTP at a unix socket that only its owner can open:
//!
//! | request | meaning |
//! |---|---|
//! | `GET /v1/hosts` | names of the hosts that this agent serves |
//! | `PUT /v1/hosts/{host}` with a [`HostSpec`] | sets the desired virtual machines; on disk before the answer, 204. 409 if the agent has a newer spec, or one of another site |
//! | `GET /v1/hosts/{host}?after=N` | [`HostReport`], as soon as its number is above `N` or a few seconds have passed |
//! | `POST /v1/hosts/{host}/vms/{id}/sessions` with a [`crate::session::AgentSession`] | 101, then a session; see [`crate::session`] |
//!
//! A virtual machine is removed only if it is listed in [`HostSpec::removed`]. One that is in neither list keeps running
//! with its last spec and is reported as unlisted: a controller that lost its store must not remove it by omission.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use fabric_model::MacAddress;
use ib_wire::{Guid, MulticastLid, PartitionNumber, Pkey, PortNum, ServiceLevel};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::cluster::{CpuMode, PacketStop};
use crate::{MemorySize, Name};

/// Problem type of an agent that has accepted a newer spec. The value is part of the protocol.
pub const STALE_SPEC: &str = "older-orders";

/// Problem type of an agent that belongs to another site.
pub const OTHER_SITE: &str = "other-site";

/// Problem type of an agent that has accepted a different spec of the same version. The value is part of the protocol.
pub const AMBIGUOUS_SPEC: &str = "ambiguous-orders";

/// Version of a host spec. Versions of one site are ordered by epoch, then sequence; an agent accepts only a newer one
/// than it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpecVersion {
    /// Id of the site that the controller's store belongs to.
    pub site: Uuid,
    /// Incremented each time an operator accepts a lost or restored store.
    pub epoch: u64,
    /// Incremented with every change of a spec. In the controller's store before a spec is sent.
    pub sequence: u64,
}

impl SpecVersion {
    /// Sort key among versions of one site: the greater one is newer.
    pub fn precedence(&self) -> (u64, u64) {
        (self.epoch, self.sequence)
    }
}

impl std::fmt::Display for SpecVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "epoch {}, sequence {} of site {}", self.epoch, self.sequence, self.site)
    }
}

/// Desired state of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    pub version: SpecVersion,
    /// Virtual machines that must run, ordered by id.
    pub vms: Vec<VmSpec>,
    /// Tombstones: virtual machines to remove. Listed until the agent has reported that they are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<Uuid>,
    /// Images that a later spec may use; the agent verifies them ahead of time.
    #[serde(default)]
    pub images: Vec<ImageSpec>,
}

/// Desired virtual machine. Only `context` may change while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmSpec {
    pub id: Uuid,
    /// Tenant and host name, for people who inspect the host.
    pub label: String,
    pub cores: u32,
    pub memory: MemorySize,
    pub mode: CpuMode,
    pub image: ImageSpec,
    pub adapter: AdapterSpec,
    /// Configuration that the guest reads. May change while the virtual machine runs.
    pub context: Context,
}

/// Image as agents need it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    pub name: Name,
    pub directory: PathBuf,
    /// SHA-256 of `image.json` in hexadecimal.
    pub digest: String,
}

/// Virtual function of an emulated adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterSpec {
    /// GUID of the adapter's physical port.
    pub port_guid: Guid,
    pub port: PortNum,
    /// Number of the virtual function, from 1.
    pub function: u8,
    /// Ethernet address of the guest interface.
    pub mac: MacAddress,
    /// P_Key of the cluster's own partition; first in the P_Key table of the function.
    pub pkey: Pkey,
    /// Multicast LID of the partition's broadcast group.
    pub group: Option<MulticastLid>,
    /// P_Keys of the sub-partitions that the node is a member of, in table order.
    #[serde(rename = "further", default, skip_serializing_if = "Vec::is_empty")]
    pub inner_keys: Vec<PartitionKeySpec>,
    /// GUID of the guest's InfiniBand adapter, an alias of the port; `None` for an Ethernet card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guid: Option<Guid>,
}

impl AdapterSpec {
    /// Partition numbers that the function may use, the cluster's own first.
    pub fn partitions(&self) -> impl Iterator<Item = PartitionNumber> {
        let further = self.inner_keys.iter().map(|key| key.pkey);
        std::iter::once(self.pkey).chain(further).map(Pkey::partition)
    }

    /// Port, function and address. These stay the same for the life of the virtual machine; P_Keys may change.
    pub fn identity(&self) -> (Guid, PortNum, u8, MacAddress) {
        (self.port_guid, self.port, self.function, self.mac)
    }
}

/// P_Key of a virtual function with its broadcast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionKeySpec {
    pub pkey: Pkey,
    /// Multicast LID of the partition's broadcast group.
    pub group: Option<MulticastLid>,
}

/// Configuration that a guest reads about itself and its cluster.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// Incremented with every change. A guest reports the generation it is ready for.
    pub generation: u64,
    pub cluster: Name,
    pub hostname: String,
    /// IPv4 address with prefix length, such as `10.128.0.1/16`.
    pub address: String,
    /// MTU of the guest interface, in bytes.
    pub mtu: u16,
    /// All nodes of the cluster, ordered by number.
    pub peers: Vec<Peer>,
    /// Public ssh keys that may log in, one line each.
    pub authorized_keys: Vec<String>,
    /// Key pair that the nodes of the cluster use to log in to each other.
    pub cluster_key: ClusterKey,
    /// P_Key that applications use on the wire.
    pub pkey: Pkey,
    /// Service level that applications use on the wire; `None` if each path has its own, as path records say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sl: Option<ServiceLevel>,
    /// Sub-partitions that the node is a member of, in the order of its P_Key table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<NamedKey>,
    /// Traffic classes of the cluster's view.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassLevel>,
    /// Network checks to run; `None` in specs of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<Probes>,
}

/// Peers that the network check of a node involves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probes {
    /// Must answer this node; `None` if the node may reach nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor: Option<Ipv4Addr>,
    /// Is asked to send a broadcast; `None` if no broadcast reaches the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcaster: Option<Ipv4Addr>,
}

/// Service levels of a traffic class, in the view and on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassLevel {
    /// Service levels in the tenant's view.
    #[serde(rename = "seen")]
    pub view_sls: Vec<ServiceLevel>,
    /// Service level that applications use on the wire.
    pub sl: ServiceLevel,
}

/// P_Key of a node in a named sub-partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedKey {
    pub name: Name,
    pub pkey: Pkey,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("generation", &self.generation)
            .field("hostname", &self.hostname)
            .field("peers", &self.peers.len())
            .finish_non_exhaustive()
    }
}

/// Node of a cluster as its peers know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    pub hostname: String,
    /// IPv4 address without prefix length.
    pub address: String,
    /// Number of MPI ranks the node can run.
    pub slots: u32,
}

/// OpenSSH key pair. `Debug` prints the public half only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterKey {
    /// One line, as in `authorized_keys`.
    pub public: String,
    /// Contents of the file `id_ed25519`.
    pub private: String,
}

impl std::fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClusterKey({})", self.public)
    }
}

/// Observed state of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReport {
    /// Incremented with every change, also across restarts of the agent.
    pub number: u64,
    /// Version of the spec that the agent has on disk and acts on; `None` if it has never accepted one.
    pub acknowledged: Option<SpecVersion>,
    /// Cores of the machine for dedicated virtual machines.
    pub cores: ResourceUse,
    /// Memory of the machine for virtual machines, in MiB.
    pub memory_mib: ResourceUse,
    /// Virtualization method, once the agent has probed it.
    pub accelerator: Option<Accelerator>,
    /// Whether the emulated fabric accepts frames.
    pub fabric: bool,
    /// Virtual machines that are in the spec, or that still exist.
    pub vms: Vec<VmReport>,
}

/// Total and used amount of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceUse {
    pub total: u32,
    pub used: u32,
}

/// Virtualization method of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// Hardware virtualization; a probe guest has run.
    Kvm,
    /// Binary translation by QEMU.
    Tcg,
}

/// Observed state of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmReport {
    pub id: Uuid,
    pub state: VmState,
    /// Generation of the context that the guest is ready for.
    pub ready: Option<u64>,
    /// Why it is not running normally: one sentence, with numbers.
    pub reason: Option<String>,
    /// Cores of the machine that it has exclusively.
    pub pinned: Vec<u32>,
    /// Result of the network check for the generation it is ready for; `None` if the guest does not check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkCheck>,
    /// Where the fabric drops packets that it sends, while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<PacketStop>,
    /// Set if the spec lists it neither as desired nor as removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlisted: Option<UnlistedVmDetails>,
}

/// Result of the network check of one guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkCheck {
    /// The successor has answered.
    pub reached: bool,
    /// A broadcast was received.
    pub heard: bool,
}

impl NetworkCheck {
    /// Whether both checks have passed.
    pub const fn is_complete(self) -> bool {
        self.reached && self.heard
    }
}

/// What an agent knows of a virtual machine that its spec does not list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnlistedVmDetails {
    /// Tenant and host name from its last spec; empty if there is none.
    pub label: String,
    /// Partition numbers it may use; withheld from clusters while it exists.
    pub partitions: Vec<PartitionNumber>,
}

/// State of a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VmState {
    /// Its disk and domain are being created.
    Preparing,
    Running,
    /// It has ended by itself and is started again.
    Stopped,
    /// It cannot be started; `reason` says why. Retried when the spec changes.
    Failed,
    /// It is no longer in the spec and is being removed.
    Removing,
}
