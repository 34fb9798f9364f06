//! Orders are checked before they are kept, and kept with what must outlive them.

use std::collections::BTreeSet;

use controller_api::agent::{ImageOrder, Orders, Unlisted, Version, VmOrder};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

/// Virtual machines of one host: what a machine can hold many times over.
const VMS_MAX: usize = 256;

/// ImageCache that may be asked for.
const IMAGES_MAX: usize = 1024;

/// Virtual cores of one virtual machine: what QEMU's q35 has without further ado.
const CORES_MAX: u32 = 255;

/// Removed virtual machines that a host remembers, so that an older store cannot revive them: years of a busy host.
const REMOVED_MAX: usize = 4096;

/// Least memory, in MiB: less does not boot.
const MEMORY_MIB_MIN: u32 = 64;

/// Longest text for people.
const LABEL_CHARS_MAX: usize = 200;

/// Letters of a SHA-256.
const DIGEST_CHARS: usize = 64;

/// Orders that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct InvalidHostSpec {
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}

/// What a host keeps on disk: the last orders it accepted, and what they do not list any more.
///
/// Files of versions before orders had a version hold `vms` and `images` only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredSpec {
    /// Which orders were accepted last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    pub vms: Vec<VmOrder>,
    /// Last orders of virtual machines that are neither desired nor removed: they keep running.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unlisted: Vec<VmOrder>,
    /// Virtual machines that were removed, oldest first. They are never started again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<Uuid>,
    /// Tombstones of the orders that were accepted last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tombstones: Vec<Uuid>,
    /// ImageCache that may be asked for.
    #[serde(default)]
    pub images: Vec<ImageOrder>,
}

impl StoredSpec {
    /// What is kept once `orders` are accepted.
    pub fn updated_by(&self, orders: Orders) -> Self {
        let Orders { version, vms, removed: tombstones, images } = orders;
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

    /// Whether these are the orders that were accepted last.
    pub fn matches(&self, orders: &Orders) -> bool {
        let Orders { version, vms, removed, images } = orders;
        (self.version.as_ref(), &self.vms, &self.tombstones, &self.images)
            == (Some(version), vms, removed, images)
    }

    /// Orders of all virtual machines that may run.
    pub fn all(&self) -> impl Iterator<Item = &VmOrder> {
        self.vms.iter().chain(&self.unlisted)
    }
}

/// What is reported of a virtual machine that is not listed.
pub fn unlisted_vm(order: &VmOrder) -> Unlisted {
    Unlisted { label: order.label.clone(), partitions: order.adapter.partitions().collect() }
}

/// Checks orders and puts virtual machines in the order of their ids.
pub fn check(mut orders: Orders) -> Result<Orders, InvalidHostSpec> {
    let bad = |field: String, reason: String| Err(InvalidHostSpec { field, reason });
    if orders.vms.len() > VMS_MAX {
        return bad(
            "vms".to_owned(),
            format!("{} virtual machines; a host takes {VMS_MAX}", orders.vms.len()),
        );
    }
    if orders.images.len() > IMAGES_MAX {
        return bad(
            "images".to_owned(),
            format!("{} images; a host looks at {IMAGES_MAX}", orders.images.len()),
        );
    }
    let (mut ids, mut functions) = (BTreeSet::new(), BTreeSet::new());
    for (index, order) in orders.vms.iter().enumerate() {
        let field = |field: &str| format!("vms[{index}].{field}");
        if order.id == Uuid::nil() || !ids.insert(order.id) {
            return bad(field("id"), format!("{} is no id, or there twice", order.id));
        }
        if !(1..=CORES_MAX).contains(&order.cores) {
            return bad(field("cores"), format!("{} cores; from 1 to {CORES_MAX} are possible", order.cores));
        }
        if order.memory.mib() < MEMORY_MIB_MIN {
            return bad(
                field("memory"),
                format!("{} of memory; at least {MEMORY_MIB_MIN}M are needed", order.memory),
            );
        }
        let printable = order.label.chars().all(|c| !c.is_control());
        if !printable || order.label.chars().count() > LABEL_CHARS_MAX {
            return bad(
                field("label"),
                format!("not a label: up to {LABEL_CHARS_MAX} letters that can be printed"),
            );
        }
        let plain = |text: &str| text.chars().all(|c| !c.is_control());
        if !order.image.directory.is_absolute() || !order.image.directory.to_str().is_some_and(plain) {
            return bad(field("image.directory"), "not an absolute path".to_owned());
        }
        let digest = &order.image.digest;
        if digest.len() != DIGEST_CHARS || !digest.bytes().all(|c| c.is_ascii_hexdigit()) {
            return bad(field("image.digest"), format!("not {DIGEST_CHARS} hexadecimal digits"));
        }
        let adapter = &order.adapter;
        if adapter.function == 0 || adapter.mac.is_group() {
            let what = "a function is numbered from 1, and its address is one receiver's".to_owned();
            return bad(field("adapter"), what);
        }
        if !functions.insert((adapter.port, adapter.function)) {
            return bad(field("adapter.function"), format!("function {} is there twice", adapter.function));
        }
    }
    if orders.removed.len() > REMOVED_MAX {
        let found = orders.removed.len();
        return bad("removed".to_owned(), format!("removed must list at most {REMOVED_MAX}, got {found}"));
    }
    if let Some(index) = orders.removed.iter().position(|id| ids.contains(id)) {
        let what = format!("{} is listed as desired and as removed", orders.removed[index]);
        return bad(format!("removed[{index}]"), what);
    }
    orders.vms.sort_by_key(|order| order.id);
    orders.removed.sort();
    orders.removed.dedup();
    Ok(orders)
}

/// What differs between two orders for one virtual machine that may not.
pub fn immutable_change(before: &VmOrder, after: &VmOrder) -> Option<&'static str> {
    let differences = [
        ("number of cores", before.cores != after.cores),
        ("memory", before.memory != after.memory),
        ("mode", before.mode != after.mode),
        ("image", before.image != after.image),
        ("adapter", before.adapter.seat() != after.adapter.seat()),
    ];
    differences.into_iter().find(|(_, differs)| *differs).map(|(what, _)| what)
}
