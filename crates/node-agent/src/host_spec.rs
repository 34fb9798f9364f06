//! Validation of host specs, and the form in which they are stored on disk.

use std::collections::BTreeSet;

use controller_api::agent::{HostSpec, ImageSpec, SpecVersion, UnlistedVmDetails, VmSpec};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

/// Most virtual machines of a host; far more than a machine can run.
const VMS_MAX: usize = 256;

/// Most images in a host spec.
const IMAGES_MAX: usize = 1024;

/// Most vCPUs of a virtual machine: the limit of QEMU's q35 without an extended APIC.
const CORES_MAX: u32 = 255;

/// Most removed virtual machines that a host remembers, so that a restored store cannot revive them. Enough for years.
const REMOVED_MAX: usize = 4096;

/// Least memory of a virtual machine, in MiB; less does not boot.
const MEMORY_MIB_MIN: u32 = 64;

/// Most characters of a label.
const LABEL_CHARS_MAX: usize = 200;

/// Hexadecimal digits of a SHA-256 digest.
const DIGEST_CHARS: usize = 64;

/// An invalid value in a host spec.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct InvalidHostSpec {
    /// Path of the field, such as `vms[0].cores`.
    pub field: String,
    pub reason: String,
}

/// Content of `orders/HOST.json`: the last accepted host spec, and what must be remembered of earlier ones.
///
/// Files of versions before host specs were versioned have `vms` and `images` only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredSpec {
    /// Version of the last accepted host spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<SpecVersion>,
    pub vms: Vec<VmSpec>,
    /// Last known specs of virtual machines that the host spec lists neither as desired nor as removed. They keep
    /// running.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unlisted: Vec<VmSpec>,
    /// Removed virtual machines, oldest first. They are never started again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<Uuid>,
    /// The removed virtual machines listed by the last accepted spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tombstones: Vec<Uuid>,
    /// Images to verify in advance.
    #[serde(default)]
    pub images: Vec<ImageSpec>,
}

impl StoredSpec {
    /// The stored spec after a new one is accepted: virtual machines that the new spec does not list become unlisted.
    pub fn updated_by(&self, spec: HostSpec) -> Self {
        let HostSpec { version, vms, removed: tombstones, images } = spec;
        let listed: BTreeSet<Uuid> =
            vms.iter().map(|order| order.id).chain(tombstones.iter().copied()).collect();
        let unlisted = self.all().filter(|order| !listed.contains(&order.id));
        let mut removed: Vec<Uuid> =
            self.removed.iter().copied().filter(|id| !tombstones.contains(id)).collect();
        let forgotten = (removed.len() + tombstones.len()).saturating_sub(REMOVED_MAX).min(removed.len());
        removed.drain(..forgotten);
        removed.extend(&tombstones);
        let unlisted = unlisted.filter(|order| !removed.contains(&order.id)).cloned().collect();
        Self { version: Some(version), vms, unlisted, removed, tombstones, images }
    }

    /// Whether this is the last accepted spec.
    pub fn matches(&self, spec: &HostSpec) -> bool {
        let HostSpec { version, vms, removed, images } = spec;
        (self.version.as_ref(), &self.vms, &self.tombstones, &self.images)
            == (Some(version), vms, removed, images)
    }

    /// Specs of all virtual machines that may run, listed and unlisted.
    pub fn all(&self) -> impl Iterator<Item = &VmSpec> {
        self.vms.iter().chain(&self.unlisted)
    }
}

/// The report entry of an unlisted virtual machine.
pub fn unlisted_vm(order: &VmSpec) -> UnlistedVmDetails {
    UnlistedVmDetails { label: order.label.clone(), partitions: order.adapter.partitions().collect() }
}

/// Validates a host spec; sorts its virtual machines and removed ids, without duplicates among the latter.
pub fn check(mut spec: HostSpec) -> Result<HostSpec, InvalidHostSpec> {
    let bad = |field: String, reason: String| Err(InvalidHostSpec { field, reason });
    if spec.vms.len() > VMS_MAX {
        return bad(
            "vms".to_owned(),
            format!("vms must list at most {VMS_MAX} virtual machines, got {}", spec.vms.len()),
        );
    }
    if spec.images.len() > IMAGES_MAX {
        return bad(
            "images".to_owned(),
            format!("images must list at most {IMAGES_MAX} images, got {}", spec.images.len()),
        );
    }
    let (mut ids, mut functions) = (BTreeSet::new(), BTreeSet::new());
    for (index, order) in spec.vms.iter().enumerate() {
        let field = |field: &str| format!("vms[{index}].{field}");
        if order.id == Uuid::nil() || !ids.insert(order.id) {
            return bad(field("id"), format!("id must be unique and not nil, got {}", order.id));
        }
        if !(1..=CORES_MAX).contains(&order.cores) {
            return bad(
                field("cores"),
                format!("cores must be between 1 and {CORES_MAX}, got {}", order.cores),
            );
        }
        if order.memory.mib() < MEMORY_MIB_MIN {
            return bad(
                field("memory"),
                format!("memory must be at least {MEMORY_MIB_MIN}M, got {}", order.memory),
            );
        }
        let printable = order.label.chars().all(|c| !c.is_control());
        if !printable || order.label.chars().count() > LABEL_CHARS_MAX {
            return bad(
                field("label"),
                format!("label must have at most {LABEL_CHARS_MAX} characters and no control characters"),
            );
        }
        let plain = |text: &str| text.chars().all(|c| !c.is_control());
        if !order.image.directory.is_absolute() || !order.image.directory.to_str().is_some_and(plain) {
            return bad(
                field("image.directory"),
                "directory must be an absolute path without control characters".to_owned(),
            );
        }
        let digest = &order.image.digest;
        if digest.len() != DIGEST_CHARS || !digest.bytes().all(|c| c.is_ascii_hexdigit()) {
            return bad(field("image.digest"), format!("digest must be {DIGEST_CHARS} hexadecimal digits"));
        }
        let adapter = &order.adapter;
        if adapter.function == 0 || adapter.mac.is_group() {
            let reason = "function must be at least 1, and mac must be a unicast address".to_owned();
            return bad(field("adapter"), reason);
        }
        if !functions.insert((adapter.port, adapter.function)) {
            return bad(
                field("adapter.function"),
                format!("function {} of the port is listed twice", adapter.function),
            );
        }
    }
    if spec.removed.len() > REMOVED_MAX {
        let found = spec.removed.len();
        return bad(
            "removed".to_owned(),
            format!("removed must list at most {REMOVED_MAX} ids, got {found}"),
        );
    }
    if let Some(index) = spec.removed.iter().position(|id| ids.contains(id)) {
        let reason = format!("{} is listed as desired and as removed", spec.removed[index]);
        return bad(format!("removed[{index}]"), reason);
    }
    spec.vms.sort_by_key(|order| order.id);
    spec.removed.sort();
    spec.removed.dedup();
    Ok(spec)
}

/// The immutable property that differs between two specs of the same virtual machine; `None` if only the context
/// differs.
pub fn immutable_change(before: &VmSpec, after: &VmSpec) -> Option<&'static str> {
    let differences = [
        ("number of cores", before.cores != after.cores),
        ("memory", before.memory != after.memory),
        ("mode", before.mode != after.mode),
        ("image", before.image != after.image),
        ("adapter", before.adapter.identity() != after.adapter.identity()),
    ];
    differences.into_iter().find(|(_, differs)| *differs).map(|(property, _)| property)
}
