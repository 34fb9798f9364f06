//! Ports that were handed over to tenants, and ports that the site keeps.
//!
//! Reads the tables alone: which keys end ports hold, and which keys the switch ports in front of them let pass. Whether
//! these are the keys that the intents require is the concern of `isolation`.

use ib_wire::{Guid, Membership, PartitionNumber, Pkey};

use crate::bounded::bounded;
use crate::isolation::enforced;
use crate::{Finding, PkeyTableKind, Reading, Rule};

/// Who uses an end port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    Manager,
    Tenants,
    Site,
}

/// A key in one of the two tables that decide what an end port sends and receives.
#[derive(Clone, Copy, Debug)]
struct HeldKey {
    port: Guid,
    user: User,
    key: Pkey,
    table: PkeyTableKind,
}

/// Reports every key of a handed-over port that could reach the site, and every key of a port of the site that could reach
/// tenants.
pub(crate) fn check(read: &Reading<'_>) -> Vec<Finding> {
    if read.intended.site().handed_over.is_empty() {
        return Vec::new();
    }
    let full_in_default = held_keys(read)
        .find(|held| held.user == User::Site && held.key == PartitionNumber::DEFAULT.key(Membership::Full));
    let full_in_default = full_in_default.map(|held| held.port);
    bounded(Rule::HandedOver, held_keys(read).filter_map(|held| wrong(read, held, full_in_default)).collect())
}

fn held_keys<'a>(read: &'a Reading<'_>) -> impl Iterator<Item = HeldKey> + 'a {
    read.network.ends().iter().enumerate().flat_map(|(index, end)| {
        let user = user(read, end.guid);
        let held = move |table| move |key| HeldKey { port: end.guid, user, key, table };
        let own = read.network.pkeys(index).keys().map(held(PkeyTableKind::EndPort));
        let enforced = enforced(read, index).into_iter().flat_map(|table| table.keys());
        own.chain(enforced.map(held(PkeyTableKind::SwitchPort)))
    })
}

fn user(read: &Reading<'_>, port: Guid) -> User {
    let site = read.intended.site();
    if site.managers.contains(&port) {
        User::Manager
    } else if site.handed_over.contains(&port) {
        User::Tenants
    } else {
        User::Site
    }
}

/// What is wrong with a key; `full_in_default` is a port of the site that is a full member of the default partition.
fn wrong(read: &Reading<'_>, held: HeldKey, full_in_default: Option<Guid>) -> Option<Finding> {
    let HeldKey { port, user, key, table } = held;
    let partition = key.partition();
    let owner = read.intents.owners.get(&partition).and_then(|owners| owners.keys().next());
    match (user, owner) {
        (User::Manager, _) | (User::Tenants, Some(_)) => None,
        (User::Tenants, None) if key.membership() == Membership::Full => {
            Some(Finding::HandedOverFull { port, key, table })
        }
        (User::Tenants, None) => {
            let reached = full_in_default.filter(|_| partition == PartitionNumber::DEFAULT)?;
            Some(Finding::HandedOverInDefault { port, table, reached })
        }
        (User::Site, Some(owner)) => {
            Some(Finding::SitePortInOwnedPartition { port, key, table, owner: owner.clone() })
        }
        (User::Site, None) => {
            let is_management = read.intended.site().management == Some(partition);
            is_management.then_some(Finding::SitePortInManagement { port, key, table })
        }
    }
}
