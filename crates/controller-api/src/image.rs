//! Images that virtual machines boot from.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Name;

/// An image: a directory with a kernel, an initial file system and a root disk, described by its `image.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Image {
    /// What it is called.
    pub name: Name,
    /// Where hosts find it; told to operators only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// SHA-256 of its `image.json`, which lists those of the files; agents refuse anything else.
    pub digest: String,
    /// Since when.
    #[schema(value_type = String)]
    pub created: Timestamp,
}

/// Asks for an image to be known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewImage {
    /// What it is to be called.
    pub name: Name,
    /// Where hosts find it.
    pub directory: String,
    /// SHA-256 of its `image.json`, in hexadecimal.
    pub digest: String,
}

/// The file `image.json` of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// A raw or qcow2 root disk with one ext4 file system on it.
    pub root: ImageFile,
    /// What is on the root disk.
    pub root_format: DiskFormat,
    /// An ELF or bzImage kernel.
    pub kernel: ImageFile,
    /// The initial file system.
    pub initrd: ImageFile,
    /// What the kernel is told; the agent adds `init=` and the console.
    pub command_line: String,
    /// Whether `heddle-guest` is in it. Without, a node counts as ready when its virtual machine runs, its network is
    /// unchecked, and it takes no commands.
    #[serde(default = "Manifest::has_guest_unless_said")]
    pub guest: bool,
}

impl Manifest {
    const fn has_guest_unless_said() -> bool {
        true
    }
}

/// A file of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageFile {
    /// Its name in the directory of the image; no path.
    pub file: String,
    /// Its SHA-256 in hexadecimal.
    pub sha256: String,
}

/// How a disk is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DiskFormat {
    /// Byte for byte.
    Raw,
    /// QEMU's.
    Qcow2,
}
