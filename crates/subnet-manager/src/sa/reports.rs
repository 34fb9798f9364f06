//! What is reported to whom: ports and groups that come and go, and notices of devices.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use ib_wire::notice::{GidEvent, Notice, Trap};
use ib_wire::{Gid, Guid, LidAddress};

use super::SubnetAdministration;
use super::directory::Directory;
use super::joins::GroupEvent;
use super::subscriptions::Reportable;

/// Numbers of the notices about GIDs that come and go.
const GID_NOTICES: RangeInclusive<u16> = 64..=67;
/// Time in which one notice of a number is forwarded for each port: anybody can send them.
const FORWARD_INTERVAL: Duration = Duration::from_secs(1);

impl SubnetAdministration {
    /// Names the ports that may subscribe to notices about devices, besides the manager's own.
    pub fn set_event_ports(&mut self, ports: BTreeSet<Guid>) {
        self.event_ports = ports;
    }

    /// Forwards a notice that a port sent to the subscribers that may know about devices, at most one of its kind in a second.
    /// The port is its issuer, whatever it says. Notices about GIDs are the manager's alone.
    pub fn forward(&mut self, now: Duration, sender: LidAddress, notice: &Notice) {
        let (Some(directory), Some(trap)) = (self.directory.clone(), notice.trap()) else { return };
        let (Some(manager), LidAddress::Unicast(lid)) = (directory.manager_port(), sender) else { return };
        let Some(issuer) = directory.port_by_lid(lid).filter(|_| !GID_NOTICES.contains(&trap.number()))
        else {
            return;
        };
        self.forwarded.retain(|_, at| now < *at + FORWARD_INTERVAL);
        if self.forwarded.contains_key(&(issuer.guid, trap.number())) {
            return;
        }
        self.forwarded.insert((issuer.guid, trap.number()), now);
        let notice = Notice { issuer_gid: issuer.gid(), issuer_lid: Some(sender), ..notice.clone() };
        let what = Reportable { notice, about: Some(sender) };
        let subscribers: Vec<Guid> = self.subscriptions.subscribers(trap.number()).collect();
        for port in subscribers {
            if port == manager.guid || self.event_ports.contains(&port) {
                self.subscriptions.report(port, &what);
            }
        }
    }

    /// Reports ports that came and went, to those who may see them.
    pub(super) fn report_ports(&mut self, before: &Directory, after: &Directory) {
        let changed = after.changed_since(before);
        if changed.is_empty() {
            return;
        }
        let [came, went] = [Trap::GidInService, Trap::GidOutOfService];
        for (trap, from, to) in [(came as fn(GidEvent) -> Trap, before, after), (went, after, before)] {
            let number = trap(GidEvent { gid: Gid::default() }).number();
            let subscribers: Vec<Guid> = self.subscriptions.subscribers(number).collect();
            for subscriber in subscribers {
                // Whoever changed may see others than before; the rest only those that changed.
                let all = changed.contains(&subscriber).then(|| to.guids()).into_iter().flatten();
                let some =
                    (!changed.contains(&subscriber)).then_some(&changed).into_iter().flatten().copied();
                let is_new = |port: &Guid| {
                    to.is_visible_to(subscriber, *port) && !from.is_visible_to(subscriber, *port)
                };
                let new = all.chain(some).filter(is_new).filter_map(|guid| to.port_by_guid(guid));
                for port in new {
                    self.report_gid(after, subscriber, trap(GidEvent { gid: port.gid() }));
                }
            }
        }
    }

    /// Reports groups that were created and deleted, to members of their partitions. Returns the number of subscribers that were
    /// considered.
    pub(super) fn report_groups(&mut self, directory: &Directory) -> usize {
        let mut considered = 0;
        while let Some(GroupEvent { mgid, partition, exists }) = self.joins.poll_event() {
            let event = GidEvent { gid: mgid };
            let trap = if exists { Trap::GroupCreated(event) } else { Trap::GroupDeleted(event) };
            considered += self.subscriptions.subscriber_count();
            let subscribers: Vec<Guid> = self.subscriptions.subscribers(trap.number()).collect();
            for subscriber in subscribers {
                if directory.may_see_partition(subscriber, partition) {
                    self.report_gid(directory, subscriber, trap.clone());
                }
            }
        }
        considered
    }

    /// Reports a GID. The manager is the issuer.
    fn report_gid(&mut self, directory: &Directory, subscriber: Guid, trap: Trap) {
        let Some(manager) = directory.manager_port() else { return };
        let notice = Notice { issuer_gid: manager.gid(), ..Notice::generic(trap, Some(manager.lid.into())) };
        self.subscriptions.report(subscriber, &Reportable { notice, about: None });
    }
}
