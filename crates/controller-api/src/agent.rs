//! What the controller orders from the agent of a host, and what the agent reports.
//!
//! The agent serves HTTP at a unix socket that only its owner can open:
//!
//! | request | meaning |
//! |---|---|
//! | `GET /v1/hosts` | names of the hosts this agent serves |
//! | `PUT /v1/hosts/{host}` with [`HostSpec`] | the desired virtual machines; on disk before the answer, 204. 409 if the agent has newer orders, or those of another site |
//! | `GET /v1/hosts/{host}?after=N` | [`HostReport`], as soon as its number is above `N` or a few seconds have passed |
//! | `POST /v1/hosts/{host}/vms/{id}/sessions` with [`crate::session::SessionRequest`] | 101, then a session; see [`crate::session`] |
//!
//! A virtual machine is removed only if it is listed in [`HostSpec::removed`]. One that is in neither list keeps running with its
//! last order, and is reported as unlisted: its absence may be the mistake of a controller that lost its store.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use fabric_model::MacAddress;
use ib_wire::{Guid, MulticastLid, PartitionNumber, Pkey, PortNum, ServiceLevel};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::cluster::CpuMode;
use crate::{MemorySize, Name};

/// The problem of an agent that has accepted newer orders.
pub const STALE_SPEC: &str = "older-orders";

/// The problem of an agent that belongs to another site.
pub const OTHER_SITE: &str = "other-site";

/// The problem of an agent that has accepted other orders of the same version.
pub const AMBIGUOUS_SPEC: &str = "ambiguous-orders";

/// Which orders: those of one site are ordered by epoch, then sequence. An agent accepts only newer ones than it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpecVersion {
    /// The site that the controller's store belongs to.
    pub site: Uuid,
    /// Grows each time an operator accepts a store that was lost or restored.
    pub epoch: u64,
    /// Grows with every change of orders; in the controller's store before orders are sent.
    pub sequence: u64,
}

impl SpecVersion {
    /// What decides which of two versions of one site is newer.
    pub fn precedence(&self) -> (u64, u64) {
        (self.epoch, self.sequence)
    }
}

impl std::fmt::Display for SpecVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "epoch {}, sequence {} of site {}", self.epoch, self.sequence, self.site)
    }
}

/// The desired state of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Which orders these are.
    pub version: SpecVersion,
    /// Virtual machines that run, by id.
    pub vms: Vec<VmSpec>,
    /// Tombstones: virtual machines that are removed. Listed until the agent has reported that they are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<Uuid>,
    /// Images that may be asked for: looked at before somebody waits for them.
    #[serde(default)]
    pub images: Vec<ImageSpec>,
}

/// A virtual machine that is to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmSpec {
    /// Its id.
    pub id: Uuid,
    /// For people who look at the host: tenant, cluster and number.
    pub label: String,
    /// Virtual cores.
    pub cores: u32,
    /// Memory.
    pub memory: MemorySize,
    /// How it gets them.
    pub mode: CpuMode,
    /// What it boots from.
    pub image: ImageSpec,
    /// How it is on the fabric.
    pub adapter: AdapterSpec,
    /// What it is told about itself and its cluster. May change while it runs; nothing else may.
    pub context: Context,
}

/// An image, as agents need it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// What people call it.
    pub name: Name,
    /// Where it is.
    pub directory: PathBuf,
    /// SHA-256 of its `image.json`.
    pub digest: String,
}

/// A virtual function of an emulated adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterSpec {
    /// GUID of the adapter's port.
    pub port_guid: Guid,
    /// Number of the port.
    pub port: PortNum,
    /// Which virtual function, from 1.
    pub function: u8,
    /// Its address as an Ethernet device.
    pub mac: MacAddress,
    /// The key of the cluster's partition: the first it may use.
    pub pkey: Pkey,
    /// Where broadcasts go.
    pub group: Option<MulticastLid>,
    /// The partitions inside the cluster that it is in.
    #[serde(rename = "further", default, skip_serializing_if = "Vec::is_empty")]
    pub inner_keys: Vec<PartitionKeySpec>,
}

impl AdapterSpec {
    /// Numbers of the partitions it may use.
    pub fn partitions(&self) -> impl Iterator<Item = PartitionNumber> {
        let further = self.inner_keys.iter().map(|key| key.pkey);
        std::iter::once(self.pkey).chain(further).map(Pkey::partition)
    }

    /// Which function it is and by what address: what stays while its virtual machine lives. Keys come and go.
    pub fn identity(&self) -> (Guid, PortNum, u8, MacAddress) {
        (self.port_guid, self.port, self.function, self.mac)
    }
}

/// A partition that a virtual function is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionKeySpec {
    /// The key it may use.
    pub pkey: Pkey,
    /// Where broadcasts go.
    pub group: Option<MulticastLid>,
}

/// What a virtual machine is told about itself and its cluster.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// Grows with every change. A guest says for which one it is ready.
    pub generation: u64,
    /// Name of the cluster.
    pub cluster: Name,
    /// Host name.
    pub hostname: String,
    /// Address and prefix length, such as `10.128.0.1/16`.
    pub address: String,
    /// Largest packet of its network device.
    pub mtu: u16,
    /// All nodes of the cluster, in order.
    pub peers: Vec<Peer>,
    /// Who may log in.
    pub authorized_keys: Vec<String>,
    /// Key pair by which the nodes of the cluster trust each other.
    pub cluster_key: ClusterKey,
    /// What applications use on the wire.
    pub pkey: Pkey,
    /// Likewise; none if each path has its own, which path records tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sl: Option<ServiceLevel>,
    /// The partitions inside the cluster that it is in, in the order of their keys in its table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<NamedKey>,
    /// The classes into which the cluster's packets are divided.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassLevel>,
    /// What it has to find out about its network; none in orders of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<Probes>,
}

/// Whom a node has to reach and hear before its cluster is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probes {
    /// Has to answer it; none if it may talk to nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor: Option<Ipv4Addr>,
    /// Is asked for a broadcast; none if nobody's reaches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcaster: Option<Ipv4Addr>,
}

/// A class of a cluster's packets, as its nodes are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassLevel {
    /// Its service levels in the network that the tenant sees.
    #[serde(rename = "seen")]
    pub view_sls: Vec<ServiceLevel>,
    /// What applications use on the wire.
    pub sl: ServiceLevel,
}

/// A partition inside a cluster, as a node in it is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedKey {
    /// What it is called.
    pub name: Name,
    /// The key of the node in it.
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

/// A node of a cluster, as the others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Host name.
    pub hostname: String,
    /// Address, without prefix length.
    pub address: String,
    /// MPI ranks it can take.
    pub slots: u32,
}

/// A key pair of OpenSSH. The private half does not print.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterKey {
    /// One line, as in `authorized_keys`.
    pub public: String,
    /// The file `id_ed25519`.
    pub private: String,
}

impl std::fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClusterKey({})", self.public)
    }
}

/// What a host runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReport {
    /// Grows with every change, also over restarts of the agent.
    pub number: u64,
    /// The orders that the agent has on disk, and that this report follows from. None if it has had none with a version.
    pub acknowledged: Option<SpecVersion>,
    /// Cores of the machine that dedicated virtual machines may have, and how many of them do.
    pub cores: ResourceUse,
    /// MiB of memory, likewise.
    pub memory_mib: ResourceUse,
    /// How virtual machines run, once that was found out.
    pub accelerator: Option<Accelerator>,
    /// Whether the emulated fabric takes frames.
    pub fabric: bool,
    /// Virtual machines that are ordered, or still there.
    pub vms: Vec<VmReport>,
}

/// How much of something is given away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceUse {
    /// In all.
    pub total: u32,
    /// Given away.
    pub used: u32,
}

/// How virtual machines run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// On the processor itself: a probe guest really ran.
    Kvm,
    /// By translation.
    Tcg,
}

/// How a virtual machine stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmReport {
    /// Which.
    pub id: Uuid,
    /// How far it is.
    pub state: VmState,
    /// The context for which its guest said that it is ready.
    pub ready: Option<u64>,
    /// Why it is not well: one sentence, with numbers.
    pub reason: Option<String>,
    /// Cores of the machine that it has to itself.
    pub pinned: Vec<u32>,
    /// What its guest has found out about its network for the context it is ready for; none if it does not check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkCheck>,
    /// Where packets that it sends stop, while they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<PacketStop>,
    /// Set if the orders list it neither as desired nor as removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlisted: Option<UnlistedVmDetails>,
}

/// What a guest has found out about its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkCheck {
    /// Its successor has answered.
    pub reached: bool,
    /// It has heard a broadcast.
    pub heard: bool,
}

impl NetworkCheck {
    /// Whether nothing is left to find out.
    pub const fn is_complete(self) -> bool {
        self.reached && self.heard
    }
}

/// Where packets stop on the fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PacketStop {
    /// Switch or adapter.
    pub node: String,
    /// Number of its port that the packets came to.
    #[schema(value_type = u8)]
    pub port: PortNum,
    /// Reason, as `heddle sim-ctl … functions` counts it.
    pub reason: String,
}

impl std::fmt::Display for PacketStop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} port {} ({})", self.node, self.port, self.reason)
    }
}

/// What an agent knows of a virtual machine that its orders do not list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnlistedVmDetails {
    /// Tenant and host name, as in its last order; empty if there is none.
    pub label: String,
    /// Numbers of the partitions it may use: nobody else may have them while it exists.
    pub partitions: Vec<PartitionNumber>,
}

/// How far a virtual machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VmState {
    /// Its disk and domain are being made.
    Preparing,
    /// It runs.
    Running,
    /// It has ended by itself, and is started again.
    Stopped,
    /// It cannot be; the reason says why. Tried again when orders change.
    Failed,
    /// It is not ordered any more and is being removed.
    Removing,
}
