//! Images that virtual machines boot.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Name;

/// Image: a directory with a kernel, an initial RAM disk and a root disk, described by its `image.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Image {
    /// Unique name of the image.
    pub name: Name,
    /// Absolute path of the image on the hosts; visible to operators only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// SHA-256 of `image.json` in hexadecimal. `image.json` lists the digests of the files; agents reject anything else.
    pub digest: String,
    /// Whether virtual machines of the image can have an InfiniBand adapter.
    #[serde(default)]
    pub infiniband: bool,
    /// Time at which the image was added (RFC 3339).
    #[schema(value_type = String)]
    pub created: Timestamp,
}

/// Request to add or replace an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewImage {
    /// Unique name of the image.
    pub name: Name,
    /// Absolute path of the image on the hosts.
    pub directory: String,
    /// SHA-256 of `image.json` in hexadecimal (64 digits).
    pub digest: String,
}

/// Contents of the file `image.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Root disk, raw or qcow2, with one ext4 file system.
    pub root: ImageFile,
    /// Format of the root disk.
    pub root_format: DiskFormat,
    /// Linux kernel, ELF or bzImage.
    pub kernel: ImageFile,
    /// Initial RAM disk of the kernel.
    pub initrd: ImageFile,
    /// Kernel command line; the agent appends `init=` and the console.
    pub command_line: String,
    /// Presence of `heddle-guest`, true by default. Without it, a node counts as ready when its virtual machine runs, its
    /// network stays unchecked, and it accepts no commands.
    #[serde(default = "Manifest::has_guest_by_default")]
    pub guest: bool,
    /// Presence of the kernel module `heddle_hca` for this kernel, false by default. With it, virtual machines can have an
    /// InfiniBand adapter.
    #[serde(default)]
    pub infiniband: bool,
}

impl Manifest {
    const fn has_guest_by_default() -> bool {
        true
    }
}

/// File of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageFile {
    /// Name within the image directory, without a path.
    pub file: String,
    /// SHA-256 in hexadecimal (64 digits).
    pub sha256: String,
}

/// Format of a disk image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DiskFormat {
    Raw,
    Qcow2,
}
