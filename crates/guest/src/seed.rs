//! The documents a virtual machine starts from: a NoCloud seed.
//!
//! Three files on a volume with the label `cidata`. They are written as JSON, which is YAML too: stock cloud-init and
//! `heddle-guest` read the same bytes. `heddle-guest` understands what is written here and no more; see
//! [`Seed::read`].

mod documents;
mod files;

use std::fmt;
use std::net::Ipv4Addr;

use ib_wire::{Pkey, ServiceLevel};
use serde::{Deserialize, Serialize};

pub use documents::{
    DeviceMatch, Ethernet, HostKeys, InvalidSeedDocument, MetaData, NetworkConfig, SeedDocument,
    SeedDocuments, UserData, WriteFile,
};

/// Where the guest keeps what it was told, without secrets.
pub const CONTEXT_FILE: &str = "/etc/heddle/context.json";

/// Where the guest keeps the key of its network check.
pub const PROBE_KEY_FILE: &str = "/etc/heddle/probe.key";

/// SessionRequest the documents are made of.
#[derive(Clone)]
pub struct SeedInput {
    /// Changes with the machine, not with its context: cloud-init starts over when it does.
    pub instance_id: String,
    /// Address of the network device, such as `02:00:00:00:00:01`.
    pub mac: String,
    /// Of the context; comes back as [`crate::channel::ToHost::Ready`].
    pub generation: u64,
    /// Name of the cluster.
    pub cluster: String,
    /// Host name.
    pub hostname: String,
    /// Address and prefix length, such as `10.128.0.1/16`.
    pub address: String,
    /// Largest packet of the network device.
    pub mtu: u16,
    /// All nodes of the cluster, in order.
    pub peers: Vec<Peer>,
    /// Who may log in.
    pub authorized_keys: Vec<String>,
    /// Key pair by which the nodes of the cluster trust each other, and by which they prove who they are.
    pub cluster_key: KeyPair,
    /// SessionRequest applications use on the wire.
    pub pkey: Pkey,
    /// Likewise; none if each path has its own, which path records tell.
    pub sl: Option<ServiceLevel>,
    /// The partitions inside the cluster that it is in, in the order of their keys in its table.
    pub partitions: Vec<NamedKey>,
    /// The classes into which the cluster's packets are divided.
    pub classes: Vec<ClassLevel>,
    /// SessionRequest it has to find out about its network; none if the controller does not ask.
    pub probes: Option<Probes>,
}

/// Whom a node has to reach and hear before it counts as ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probes {
    /// Has to answer it; none if it may talk to nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor: Option<Ipv4Addr>,
    /// Is asked for a broadcast; none if nobody's reaches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcaster: Option<Ipv4Addr>,
}

/// A class of a cluster's packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassLevel {
    /// Its service levels in the network that the tenant sees.
    pub seen: Vec<ServiceLevel>,
    /// SessionRequest applications use on the wire.
    pub sl: ServiceLevel,
}

/// A partition inside a cluster, as a node in it is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedKey {
    /// SessionRequest it is called.
    pub name: String,
    /// The key of the node in it.
    pub pkey: Pkey,
}

/// A node of a cluster, as the others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Host name.
    pub hostname: String,
    /// Address, without prefix length.
    pub address: String,
    /// MPI ranks it can take.
    pub slots: u32,
}

/// A key pair of OpenSSH. The private half does not print.
#[derive(Clone)]
pub struct KeyPair {
    /// One line, as in `authorized_keys`.
    pub public: String,
    /// The file `id_ed25519`.
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

/// The files of a seed, byte for byte. `user-data` holds a private key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seed {
    /// The file `meta-data`.
    pub meta_data: String,
    /// The file `user-data`. Secret.
    pub user_data: String,
    /// The file `network-config`.
    pub network_config: String,
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seed").field("meta_data", &self.meta_data).finish_non_exhaustive()
    }
}

impl Seed {
    /// SessionRequest the first line of `user-data` has to be for cloud-init to read it.
    const CLOUD_CONFIG: &str = "#cloud-config\n";

    /// Writes the documents. The same input gives the same bytes.
    pub fn new(input: &SeedInput) -> Self {
        let documents = SeedDocuments {
            meta: MetaData { instance_id: input.instance_id.clone(), local_hostname: input.hostname.clone() },
            user: UserData {
                hostname: input.hostname.clone(),
                disable_root: false,
                ssh_authorized_keys: authorized_keys(input),
                ssh_genkeytypes: vec!["ed25519".to_owned()],
                // Every node has that key and may log in everywhere by it: it proves a node of this cluster, and nobody
                // gains anything who proves to be another one.
                ssh_keys: Some(HostKeys {
                    ed25519_private: files::with_newline(&input.cluster_key.private),
                    ed25519_public: files::with_newline(&input.cluster_key.public),
                }),
                write_files: files::all(input),
                runcmd: vec![files::START_SERVICE.map(str::to_owned).to_vec()],
                other: Default::default(),
            },
            network: NetworkConfig::one(Ethernet {
                matching: DeviceMatch { macaddress: input.mac.clone() },
                set_name: "eth0".to_owned(),
                addresses: vec![input.address.clone()],
                mtu: input.mtu,
            }),
        };
        Self {
            meta_data: json(&documents.meta),
            user_data: Self::CLOUD_CONFIG.to_owned() + &json(&documents.user),
            network_config: json(&documents.network),
        }
    }

    /// Understands the documents.
    pub fn read(&self) -> Result<SeedDocuments, InvalidSeedDocument> {
        let user_data = self.user_data.strip_prefix(Self::CLOUD_CONFIG);
        let user_data = user_data.ok_or(InvalidSeedDocument::NoCloudConfig)?;
        Ok(SeedDocuments {
            meta: documents::read(SeedDocument::MetaData, &self.meta_data)?,
            user: documents::read(SeedDocument::UserData, user_data)?,
            network: documents::read(SeedDocument::NetworkConfig, &self.network_config)?,
        })
    }

    /// All documents, for [`crate::channel::ToGuest::Context`]. Secret.
    pub fn to_context(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("three strings are JSON")
    }

    /// SessionRequest [`Seed::to_context`] wrote.
    pub fn from_context(context: &[u8]) -> Result<Self, InvalidSeedDocument> {
        serde_json::from_slice(context)
            .map_err(|error| InvalidSeedDocument::malformed(SeedDocument::Context, &error))
    }
}

/// SessionRequest [`CONTEXT_FILE`] says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextFile {
    /// Of the context.
    pub generation: u64,
    /// Name of the cluster.
    pub cluster: String,
    /// Host name.
    pub hostname: String,
    /// Address and prefix length.
    pub address: String,
    /// Partition key.
    pub pkey: Pkey,
    /// Service level; none if each path has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sl: Option<ServiceLevel>,
    /// The partitions inside the cluster that it is in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<NamedKey>,
    /// The classes into which its packets are divided; none if they are all alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassLevel>,
    /// All nodes of the cluster.
    pub peers: Vec<Peer>,
    /// SessionRequest it has to find out about its network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<Probes>,
}

impl ContextFile {
    /// Reads the file; `None` if it is something else.
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// The user's keys and that of the cluster, one line each.
fn authorized_keys(input: &SeedInput) -> Vec<String> {
    let keys = input.authorized_keys.iter().chain([&input.cluster_key.public]);
    keys.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty()).collect()
}

fn json(document: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(document).expect("documents have string keys only");
    text.push('\n');
    text
}
