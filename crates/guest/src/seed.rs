//! The NoCloud seed that configures a virtual machine.
//!
//! Three files, `meta-data`, `user-data` and `network-config`, on a volume labelled `cidata`. They are written as JSON, a
//! subset of YAML, so that stock cloud-init and `heddle-guest` read the same bytes. `heddle-guest` supports only the keys
//! written here; see [`Seed::read`].

mod documents;
mod files;

use std::fmt;

use ib_wire::{Pkey, ServiceLevel};
use serde::{Deserialize, Serialize};

pub use documents::{
    DeviceMatch, Ethernet, HostKeys, InvalidSeedDocument, MetaData, NetworkConfig, SeedDocument,
    SeedDocuments, UserData, WriteFile,
};

use crate::probe::Probes;

/// File in the guest with its current context, without secrets; see [`ContextFile`].
pub const CONTEXT_FILE: &str = "/etc/heddle/context.json";

/// File in the guest with the key of the network check ([`crate::probe::ProbeKey`]).
pub const PROBE_KEY_FILE: &str = "/etc/heddle/probe.key";

/// The values from which [`Seed::new`] writes the documents.
#[derive(Clone)]
pub struct SeedInput {
    /// Identifies the virtual machine. cloud-init reconfigures from scratch when it changes, so it must not depend on the context.
    pub instance_id: String,
    pub adapter: GuestAdapter,
    /// Generation of the context; the guest repeats it in [`crate::channel::ToHost::Ready`].
    pub generation: u64,
    pub cluster: String,
    pub hostname: String,
    /// IPv4 address and prefix length, such as `10.128.0.1/16`.
    pub address: String,
    /// MTU of the network device, in bytes.
    pub mtu: u16,
    /// All nodes of the cluster, in the order of the MPI host file.
    pub peers: Vec<Peer>,
    /// Public SSH keys that may log in as root.
    pub authorized_keys: Vec<String>,
    /// SSH key pair shared by the nodes of the cluster, both as user key and as host key.
    pub cluster_key: KeyPair,
    /// P_Key of the cluster's partition.
    pub pkey: Pkey,
    /// Service level of the cluster; `None` if it differs by path and must be taken from path records.
    pub sl: Option<ServiceLevel>,
    /// The cluster's sub-partitions that the node belongs to, in the order of its P_Key table.
    pub partitions: Vec<NamedKey>,
    /// The traffic classes of the cluster; empty if there is only one.
    pub classes: Vec<ClassLevel>,
    /// Parameters of the network check; `None` if it is not requested.
    pub probes: Option<Probes>,
}

/// The network adapter of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestAdapter {
    /// An Ethernet card with a MAC address, such as `02:00:00:00:00:01`.
    Ethernet { mac: String },
    /// An InfiniBand adapter, which IPoIB makes a network device.
    Infiniband,
}

impl GuestAdapter {
    /// Name of the network device of the cluster.
    const fn device(&self) -> &'static str {
        match self {
            Self::Ethernet { .. } => "eth0",
            Self::Infiniband => IPOIB_DEVICE,
        }
    }
}

/// Network device of IPoIB, as the kernel names the first.
pub const IPOIB_DEVICE: &str = "ib0";

/// Kernel modules of an InfiniBand adapter, as far as they are not loaded with others: the driver, IPoIB, and the interfaces
/// for programs.
pub const INFINIBAND_MODULES: [&str; 5] = ["ib_umad", "ib_uverbs", "heddle_hca", "ib_ipoib", "rdma_ucm"];

/// A traffic class of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassLevel {
    /// Service levels that select the class in the tenant's network view.
    #[serde(rename = "seen")]
    pub view_sls: Vec<ServiceLevel>,
    /// Service level that applications must use on the physical fabric.
    pub sl: ServiceLevel,
}

/// A node's membership in a sub-partition of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedKey {
    pub name: String,
    pub pkey: Pkey,
}

/// A node of the cluster, as listed in `/etc/hosts` and the MPI host file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    pub hostname: String,
    /// IPv4 address without prefix length.
    pub address: String,
    /// MPI slots of the node.
    pub slots: u32,
}

/// An OpenSSH key pair. `Debug` does not show the private key.
#[derive(Clone)]
pub struct KeyPair {
    /// One line, as in `authorized_keys`.
    pub public: String,
    pub private: String,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({})", self.public)
    }
}

impl fmt::Debug for SeedInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeedInput")
            .field("instance_id", &self.instance_id)
            .field("generation", &self.generation)
            .field("hostname", &self.hostname)
            .field("peers", &self.peers.len())
            .finish_non_exhaustive()
    }
}

/// The files of a seed, byte for byte. `user-data` holds a private key; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seed {
    pub meta_data: String,
    pub user_data: String,
    pub network_config: String,
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seed").field("meta_data", &self.meta_data).finish_non_exhaustive()
    }
}

impl Seed {
    /// First line of `user-data`, required by cloud-init.
    const CLOUD_CONFIG: &str = "#cloud-config\n";

    /// Writes the documents. Deterministic: equal input gives equal bytes.
    pub fn new(input: &SeedInput) -> Self {
        let documents = SeedDocuments {
            meta: MetaData { instance_id: input.instance_id.clone(), local_hostname: input.hostname.clone() },
            user: UserData {
                hostname: input.hostname.clone(),
                disable_root: false,
                ssh_authorized_keys: authorized_keys(input),
                ssh_genkeytypes: vec!["ed25519".to_owned()],
                // The nodes share one key, with which each may log in to all of them. It identifies the cluster, not a node:
                // impersonating another node of the cluster gains nothing.
                ssh_keys: Some(HostKeys {
                    ed25519_private: files::with_newline(&input.cluster_key.private),
                    ed25519_public: files::with_newline(&input.cluster_key.public),
                }),
                write_files: files::all(input),
                runcmd: files::commands(input),
                other: Default::default(),
            },
            network: network(input),
        };
        Self {
            meta_data: json(&documents.meta),
            user_data: Self::CLOUD_CONFIG.to_owned() + &json(&documents.user),
            network_config: json(&documents.network),
        }
    }

    /// Parses the documents. Unknown keys of `user-data` are kept in [`UserData::other`]; elsewhere they are errors.
    pub fn read(&self) -> Result<SeedDocuments, InvalidSeedDocument> {
        let user_data = self.user_data.strip_prefix(Self::CLOUD_CONFIG);
        let user_data = user_data.ok_or(InvalidSeedDocument::NoCloudConfig)?;
        Ok(SeedDocuments {
            meta: documents::read(SeedDocument::MetaData, &self.meta_data)?,
            user: documents::read(SeedDocument::UserData, user_data)?,
            network: documents::read(SeedDocument::NetworkConfig, &self.network_config)?,
        })
    }

    /// All documents as JSON, for [`crate::channel::ToGuest::Context`]. Contains a private key.
    pub fn to_context(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("three strings are JSON")
    }

    /// Parses the output of [`Seed::to_context`].
    pub fn from_context(context: &[u8]) -> Result<Self, InvalidSeedDocument> {
        serde_json::from_slice(context)
            .map_err(|error| InvalidSeedDocument::malformed(SeedDocument::Context, &error))
    }
}

/// Content of [`CONTEXT_FILE`]. Guests of earlier versions lack the optional fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextFile {
    pub generation: u64,
    pub cluster: String,
    pub hostname: String,
    /// IPv4 address and prefix length.
    pub address: String,
    /// Network device of the cluster; `eth0` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    pub pkey: Pkey,
    /// `None` if it differs by path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sl: Option<ServiceLevel>,
    /// The cluster's sub-partitions that the node belongs to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<NamedKey>,
    /// The traffic classes of the cluster; empty if there is only one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassLevel>,
    pub peers: Vec<Peer>,
    /// Parameters of the network check, if it is requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<Probes>,
}

impl ContextFile {
    /// Parses the file; `None` if it is not a context.
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

fn network(input: &SeedInput) -> NetworkConfig {
    let name = input.adapter.device().to_owned();
    let (matching, set_name) = match &input.adapter {
        GuestAdapter::Ethernet { mac } => (Some(DeviceMatch { macaddress: mac.clone() }), Some(name.clone())),
        // The address of an IPoIB device has 20 bytes, of which some change with every start.
        GuestAdapter::Infiniband => (None, None),
    };
    let addresses = vec![input.address.clone()];
    NetworkConfig::one(name, Ethernet { matching, set_name, addresses, mtu: input.mtu })
}

/// The users' public keys and that of the cluster, without empty lines.
fn authorized_keys(input: &SeedInput) -> Vec<String> {
    let keys = input.authorized_keys.iter().chain([&input.cluster_key.public]);
    keys.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty()).collect()
}

fn json(document: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(document).expect("documents have string keys only");
    text.push('\n');
    text
}
