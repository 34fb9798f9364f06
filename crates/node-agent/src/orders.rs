//! Orders are checked before they are kept.

use std::collections::BTreeSet;

use controller_api::agent::{Orders, VmOrder};
use thiserror::Error;
use uuid::Uuid;

/// Virtual machines of one host: what a machine can hold many times over.
const VMS_MAX: usize = 256;

/// Images that may be asked for.
const IMAGES_MAX: usize = 1024;

/// Virtual cores of one virtual machine: what QEMU's q35 has without further ado.
const CORES_MAX: u32 = 255;

/// Least memory, in MiB: less does not boot.
const MEMORY_MIB_MIN: u32 = 64;

/// Longest text for people.
const LABEL_LETTERS_MAX: usize = 200;

/// Letters of a SHA-256.
const DIGEST_LETTERS: usize = 64;

/// Orders that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what}")]
pub struct BadOrders {
    /// Where: the field.
    pub place: String,
    /// What is wrong with it.
    pub what: String,
}

/// Checks orders and puts virtual machines in the order of their ids.
pub fn check(mut orders: Orders) -> Result<Orders, BadOrders> {
    let bad = |place: String, what: String| Err(BadOrders { place, what });
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
        let place = |field: &str| format!("vms[{index}].{field}");
        if order.id == Uuid::nil() || !ids.insert(order.id) {
            return bad(place("id"), format!("{} is no id, or there twice", order.id));
        }
        if !(1..=CORES_MAX).contains(&order.cores) {
            return bad(place("cores"), format!("{} cores; from 1 to {CORES_MAX} are possible", order.cores));
        }
        if order.memory.mib() < MEMORY_MIB_MIN {
            return bad(
                place("memory"),
                format!("{} of memory; at least {MEMORY_MIB_MIN}M are needed", order.memory),
            );
        }
        let printable = order.label.chars().all(|letter| !letter.is_control());
        if !printable || order.label.chars().count() > LABEL_LETTERS_MAX {
            return bad(
                place("label"),
                format!("not a label: up to {LABEL_LETTERS_MAX} letters that can be printed"),
            );
        }
        let plain = |text: &str| text.chars().all(|letter| !letter.is_control());
        if !order.image.directory.is_absolute() || !order.image.directory.to_str().is_some_and(plain) {
            return bad(place("image.directory"), "not an absolute path".to_owned());
        }
        let digest = &order.image.digest;
        if digest.len() != DIGEST_LETTERS || !digest.bytes().all(|letter| letter.is_ascii_hexdigit()) {
            return bad(place("image.digest"), format!("not {DIGEST_LETTERS} hexadecimal digits"));
        }
        let adapter = &order.adapter;
        if adapter.function == 0 || adapter.mac.is_group() {
            let what = "a function is numbered from 1, and its address is one receiver's".to_owned();
            return bad(place("adapter"), what);
        }
        if !functions.insert((adapter.port, adapter.function)) {
            return bad(place("adapter.function"), format!("function {} is there twice", adapter.function));
        }
    }
    orders.vms.sort_by_key(|order| order.id);
    Ok(orders)
}

/// What differs between two orders for one virtual machine that may not.
pub fn difference(before: &VmOrder, after: &VmOrder) -> Option<&'static str> {
    let differences = [
        ("number of cores", before.cores != after.cores),
        ("memory", before.memory != after.memory),
        ("mode", before.mode != after.mode),
        ("image", before.image != after.image),
        ("adapter", before.adapter.seat() != after.adapter.seat()),
    ];
    differences.into_iter().find(|(_, differs)| *differs).map(|(what, _)| what)
}
