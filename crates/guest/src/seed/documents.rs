//! The documents as values: what is written, and what is understood.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CONTEXT_FILE, ContextFile};

/// All documents of a seed.
#[derive(Clone, Debug)]
pub struct SeedDocuments {
    /// `meta-data`
    pub meta: MetaData,
    /// `user-data`
    pub user: UserData,
    /// `network-config`
    pub network: NetworkConfig,
}

/// `meta-data`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MetaData {
    /// Changes with the machine.
    pub instance_id: String,
    /// Host name.
    pub local_hostname: String,
}

/// `user-data`, the part of it that `heddle-guest` understands. Cloud-init knows many more keys.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserData {
    /// Host name.
    pub hostname: String,
    /// Whether root may not log in. `heddle-guest` passes it over: root is who logs in.
    #[serde(default)]
    pub disable_root: bool,
    /// Who may log in.
    #[serde(default)]
    pub ssh_authorized_keys: Vec<String>,
    /// Host keys to make. `heddle-guest` makes one of the kind ed25519 if `ssh_keys` has none.
    #[serde(default)]
    pub ssh_genkeytypes: Vec<String>,
    /// The host key, so that whoever connects knows it before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_keys: Option<HostKeys>,
    /// Files, in the order in which they are written. One may hold a private key.
    #[serde(default)]
    pub write_files: Vec<WriteFile>,
    /// Commands for cloud-init. `heddle-guest` runs none of them: what they start, it is.
    #[serde(default)]
    pub runcmd: Vec<Vec<String>>,
    /// Keys that are not understood.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Keys by which a machine proves who it is, as cloud-init names them. The private half does not print.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostKeys {
    /// The file `ssh_host_ed25519_key`.
    pub ed25519_private: String,
    /// One line.
    pub ed25519_public: String,
}

impl fmt::Debug for HostKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostKeys({})", self.ed25519_public)
    }
}

impl UserData {
    /// That of the context among its files.
    pub fn generation(&self) -> Option<u64> {
        let file = self.write_files.iter().find(|file| file.path == CONTEXT_FILE)?;
        ContextFile::read(&file.content).map(|context| context.generation)
    }
}

impl fmt::Debug for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserData")
            .field("hostname", &self.hostname)
            .field("write_files", &self.write_files)
            .finish_non_exhaustive()
    }
}

/// A file to write, for root. Other keys of cloud-init change what the content means, so they are not passed over.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    /// Absolute path.
    pub path: String,
    /// Mode in octal digits, such as `0644`.
    pub permissions: String,
    /// All of it.
    pub content: String,
}

impl fmt::Debug for WriteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {} bytes)", self.path, self.permissions, self.content.len())
    }
}

/// `network-config`, version 2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkConfig {
    /// 2
    pub version: u32,
    /// Devices, by a name that means nothing.
    pub ethernets: BTreeMap<String, Ethernet>,
}

impl NetworkConfig {
    /// With one device.
    pub fn one(device: Ethernet) -> Self {
        Self { version: 2, ethernets: BTreeMap::from([(device.set_name.clone(), device)]) }
    }
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Ethernet {
    /// Which one.
    #[serde(rename = "match")]
    pub matching: DeviceMatch,
    /// SessionRequest to call it.
    pub set_name: String,
    /// Addresses with prefix lengths.
    pub addresses: Vec<String>,
    /// Largest packet.
    pub mtu: u16,
}

/// How a device is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceMatch {
    /// By its address.
    pub macaddress: String,
}

/// Which document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeedDocument {
    /// `meta-data`
    MetaData,
    /// `user-data`
    UserData,
    /// `network-config`
    NetworkConfig,
    /// All of them, in a message of the channel.
    Context,
}

impl fmt::Display for SeedDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MetaData => "meta-data",
            Self::UserData => "user-data",
            Self::NetworkConfig => "network-config",
            Self::Context => "context",
        })
    }
}

/// A document that is not understood. It tells no content: that may be secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSeedDocument {
    /// Not JSON, or not what is expected in it.
    #[error(
        "{document}, line {line}, column {column}: {problem}; heddle-guest reads JSON as the node agent writes it"
    )]
    Malformed {
        /// Which.
        document: SeedDocument,
        /// Where.
        line: usize,
        /// Where in the line.
        column: usize,
        /// SessionRequest kind of error.
        problem: &'static str,
    },
    /// `user-data` is something else.
    #[error("user-data does not start with the line #cloud-config")]
    NoCloudConfig,
}

impl InvalidSeedDocument {
    pub(super) fn malformed(document: SeedDocument, error: &serde_json::Error) -> Self {
        let problem = match error.classify() {
            serde_json::error::Category::Syntax => "not JSON",
            serde_json::error::Category::Eof => "it ends too early",
            // The error's own text can quote values.
            serde_json::error::Category::Data | serde_json::error::Category::Io => "not what belongs there",
        };
        Self::Malformed { document, line: error.line(), column: error.column(), problem }
    }
}

pub(super) fn read<T: DeserializeOwned>(
    document: SeedDocument,
    text: &str,
) -> Result<T, InvalidSeedDocument> {
    serde_json::from_str(text).map_err(|error| InvalidSeedDocument::malformed(document, &error))
}
