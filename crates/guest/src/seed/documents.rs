//! The documents of a seed as typed values.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CONTEXT_FILE, ContextFile};

/// The parsed documents of a seed.
#[derive(Clone, Debug)]
pub struct SeedDocuments {
    pub meta: MetaData,
    pub user: UserData,
    pub network: NetworkConfig,
}

/// The document `meta-data`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MetaData {
    /// Identifies the virtual machine for cloud-init.
    pub instance_id: String,
    pub local_hostname: String,
}

/// The document `user-data`, as far as `heddle-guest` supports it; cloud-init knows many more keys.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserData {
    pub hostname: String,
    /// For cloud-init. `heddle-guest` ignores it: root can always log in.
    #[serde(default)]
    pub disable_root: bool,
    /// Public keys that may log in as root.
    #[serde(default)]
    pub ssh_authorized_keys: Vec<String>,
    /// Types of host keys that cloud-init generates. `heddle-guest` generates one of type ed25519 if `ssh_keys` is absent.
    #[serde(default)]
    pub ssh_genkeytypes: Vec<String>,
    /// The SSH host key. Absent in seeds of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_keys: Option<HostKeys>,
    /// Files in the order in which they are written. One holds a private key.
    #[serde(default)]
    pub write_files: Vec<WriteFile>,
    /// Commands for cloud-init. `heddle-guest` ignores them: they only start `heddle-guest serve`.
    #[serde(default)]
    pub runcmd: Vec<Vec<String>>,
    /// Unsupported keys, which `heddle-guest` ignores.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// SSH host keys under cloud-init's names. `Debug` does not show the private key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostKeys {
    pub ed25519_private: String,
    pub ed25519_public: String,
}

impl fmt::Debug for HostKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostKeys({})", self.ed25519_public)
    }
}

impl UserData {
    /// Generation of the context file among `write_files`; `None` if there is no valid one.
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

/// A file owned by root. Unknown keys are rejected, because in cloud-init they change the meaning of the content.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    pub path: String,
    /// File mode in octal digits, such as `0644`.
    pub permissions: String,
    pub content: String,
}

impl fmt::Debug for WriteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {} bytes)", self.path, self.permissions, self.content.len())
    }
}

/// The document `network-config`, version 2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkConfig {
    pub version: u32,
    /// Devices by an arbitrary name, or by that of the device.
    pub ethernets: BTreeMap<String, Ethernet>,
}

impl NetworkConfig {
    /// A configuration with one device.
    pub fn one(name: String, device: Ethernet) -> Self {
        Self { version: 2, ethernets: BTreeMap::from([(name, device)]) }
    }
}

/// Configuration of a network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Ethernet {
    /// Absent for an InfiniBand device, which is the one with the name of the entry.
    #[serde(rename = "match", default, skip_serializing_if = "Option::is_none")]
    pub matching: Option<DeviceMatch>,
    /// Name that the device gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_name: Option<String>,
    /// IPv4 addresses with prefix length. `heddle-guest` supports one.
    pub addresses: Vec<String>,
    pub mtu: u16,
}

/// Selects a network device by its MAC address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceMatch {
    pub macaddress: String,
}

/// A document, in error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeedDocument {
    MetaData,
    UserData,
    NetworkConfig,
    /// All documents in one message of the channel.
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

/// A document that cannot be parsed. The message quotes no content, which may be secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSeedDocument {
    #[error(
        "{document}, line {line}, column {column}: {problem}; expected JSON as written by the node agent"
    )]
    Malformed {
        document: SeedDocument,
        line: usize,
        /// Where in the line.
        column: usize,
        /// What kind of error.
        problem: &'static str,
    },
    #[error("the first line of user-data must be #cloud-config")]
    NoCloudConfig,
}

impl InvalidSeedDocument {
    pub(super) fn malformed(document: SeedDocument, error: &serde_json::Error) -> Self {
        let problem = match error.classify() {
            serde_json::error::Category::Syntax => "not JSON",
            serde_json::error::Category::Eof => "unexpected end of document",
            // serde's own message may quote values.
            serde_json::error::Category::Data | serde_json::error::Category::Io => "unexpected key or value",
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
