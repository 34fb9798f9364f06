//! Rotation of M_Keys: every node gets the key of another version, a batch of nodes at a time.
//!
//! It is stored which nodes are about to change before the first of them does. So at any instant a node holds the old key or
//! the new one, and a manager that starts in between knows which nodes to try both at. A key is changed by one
//! Set(PortInfo) with the old key, and the node then has to answer to the new one. Nothing else is sent to a node meanwhile,
//! because requests in flight would carry the wrong key.

use std::collections::BTreeSet;
use std::time::Duration;

use fabric_model::intent::PortName;
use ib_wire::{Attribute, Guid, MKeyProtection, Method, PortInfo, PortNum, SMP_DATA_LEN};
use serde::Serialize;
use thiserror::Error;

use crate::attribute_key::AttributeRef;
use crate::event::SmEvent;
use crate::key_ring::{KeyKind, KeyVersion, KeyVersions};
use crate::keys::{OperatorKey, SiteSecret};
use crate::manager::{Manager, Phase};
use crate::program::without_state;
use crate::purpose::Purpose;

/// Smallest number of nodes that change at a time.
const BATCH_MIN: usize = 64;

/// Number of batches of a large fabric: each is stored.
const BATCHES: usize = 32;

/// Time before nodes that did not change are tried again.
const RETRY: Duration = Duration::from_secs(10);

/// A rotation, as far as it is not stored.
#[derive(Debug, Default)]
pub(crate) struct Rotation {
    /// Nodes that change now.
    batch: Vec<Guid>,
    /// Nodes that did not change in this round.
    failed: BTreeSet<Guid>,
    retry_at: Option<Duration>,
    /// Whether its end has to be reported.
    is_open: bool,
}

impl Rotation {
    pub fn new(stored: &KeyVersions) -> Self {
        Self { is_open: !stored.behind.is_empty(), ..Self::default() }
    }
}

/// The M_Keys that nodes get.
#[derive(Clone, Debug)]
pub enum RotationTarget {
    /// Those of the next epoch.
    NextEpoch,
    /// Those derived from another secret.
    Secret(SiteSecret),
    /// One for all nodes, before another manager gets the fabric.
    Operator(OperatorKey),
    /// None, before another manager gets the fabric.
    Removed,
}

/// Why a rotation does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RotationRefused {
    #[error("nodes have no M_Keys: the manager was started without --secret")]
    NoKeys,
    #[error("the fabric is not programmed yet")]
    NotProgrammed,
    #[error("a rotation is in progress: {left} nodes that answer have not changed yet")]
    InProgress { left: usize },
    #[error("this is the secret that keys are derived from already")]
    SameSecret,
    #[error("the fabric is released")]
    Released,
    #[error("there are no more epochs: use a new secret")]
    NoMoreEpochs,
}

/// The M_Keys of a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyStatus {
    /// Number of rotations since the secret was first used.
    pub epoch: u32,
    /// Whether nodes have keys of their own, that of an operator, or none.
    pub kind: KeyKind,
    /// Nodes that hold an older key or may do so.
    pub behind: usize,
    /// Nodes among them that do not answer: they get the current key when they come back.
    pub absent: Vec<Guid>,
}

impl Manager {
    /// Gives every node another M_Key: that of the next epoch, or of a new secret. [`SmEvent::KeysRotated`] reports the end.
    ///
    /// # Errors
    ///
    /// Nothing is changed, for the reason given.
    pub fn rotate_keys(
        &mut self,
        now: Duration,
        new_secret: Option<SiteSecret>,
    ) -> Result<KeyVersion, RotationRefused> {
        self.rotate_to(now, new_secret.map_or(RotationTarget::NextEpoch, RotationTarget::Secret))
    }

    /// Gives every node another M_Key, or takes them away. [`SmEvent::KeysRotated`] reports the end, also if all nodes hold an
    /// operator key, or no key, already.
    ///
    /// # Errors
    ///
    /// Nothing is changed, for the reason given.
    pub fn rotate_to(
        &mut self,
        now: Duration,
        target: RotationTarget,
    ) -> Result<KeyVersion, RotationRefused> {
        let left = self.reachable_behind().count();
        let keys = self.keys.as_mut().ok_or(RotationRefused::NoKeys)?;
        if self.persistence.is_released {
            return Err(RotationRefused::Released);
        }
        if self.in_force.is_none() {
            return Err(RotationRefused::NotProgrammed);
        }
        let current = keys.current();
        let version = match &target {
            RotationTarget::NextEpoch => {
                let epoch = current.epoch.checked_add(1).ok_or(RotationRefused::NoMoreEpochs)?;
                KeyVersion { secret: keys.site(), epoch, kind: KeyKind::Derived }
            }
            RotationTarget::Secret(secret) if secret.fingerprint() == keys.site() => {
                return Err(RotationRefused::SameSecret);
            }
            RotationTarget::Secret(secret) => {
                KeyVersion { secret: secret.fingerprint(), epoch: 0, kind: KeyKind::Derived }
            }
            RotationTarget::Operator(key) => {
                KeyVersion { secret: key.fingerprint(), kind: KeyKind::Operator, ..current }
            }
            RotationTarget::Removed => KeyVersion { secret: 0, kind: KeyKind::Removed, ..current },
        };
        if left > 0 && version != current {
            return Err(RotationRefused::InProgress { left });
        }
        match target {
            RotationTarget::Secret(secret) => keys.add_secret(secret),
            RotationTarget::Operator(key) => keys.add_operator_key(key),
            RotationTarget::NextEpoch | RotationTarget::Removed => {}
        }
        if version == current {
            self.rotation.is_open = true;
        } else {
            keys.begin(version, &self.bound);
            self.rotation = Rotation { is_open: true, ..Rotation::default() };
            self.state_is_new = true;
        }
        self.proceed(now);
        Ok(version)
    }

    /// The M_Keys that nodes hold; `None` without any.
    pub fn key_status(&self) -> Option<KeyStatus> {
        let keys = self.keys.as_ref()?;
        let is_absent = |node: &&Guid| !self.observed.nodes.contains_key(node);
        Some(KeyStatus {
            epoch: keys.current().epoch,
            kind: keys.current().kind,
            behind: keys.behind().len(),
            absent: keys.behind().keys().filter(is_absent).copied().collect(),
        })
    }

    pub(crate) fn reachable_behind(&self) -> impl Iterator<Item = Guid> {
        let behind = self.keys.iter().flat_map(|keys| keys.behind().keys().copied());
        behind.filter(|node| self.observed.nodes.contains_key(node))
    }

    /// Starts to change the next nodes, if there are any. Returns whether it did.
    pub(crate) fn begin_rotation_batch(&mut self, now: Duration) -> bool {
        let is_due = self.rotation.retry_at.is_none_or(|at| at <= now);
        if !is_due || self.in_force.is_none() || self.plan_is_new() {
            return false;
        }
        self.rotation.retry_at = None;
        let behind: Vec<Guid> = self.reachable_behind().collect();
        let untried = behind.iter().filter(|node| !self.rotation.failed.contains(node)).copied();
        let batch: Vec<Guid> = untried.take(BATCH_MIN.max(behind.len() / BATCHES)).collect();
        let Some(keys) = &mut self.keys else { return false };
        if batch.is_empty() {
            self.rotation.failed.clear();
            if !behind.is_empty() {
                self.rotation.retry_at = Some(now + RETRY);
            } else if std::mem::take(&mut self.rotation.is_open) {
                let (version, absent) = (keys.current(), keys.behind().len());
                self.emit(SmEvent::KeysRotated { version, absent });
            }
            return false;
        }
        for node in &batch {
            self.state_is_new |= keys.mark_changing(*node);
        }
        self.rotation.batch = batch;
        self.phase = Phase::PersistingRotation;
        if !self.state_is_new {
            self.send_rekeys();
        }
        true
    }

    /// It is stored which nodes are about to change: changes them.
    pub(crate) fn send_rekeys(&mut self) {
        self.phase = Phase::Rotating;
        for port in self.batch_ports() {
            let Some(keys) = self.keys.as_ref().filter(|keys| !keys.is_changed(port)) else { continue };
            let seen = self.observed.nodes.get(&port.node).and_then(|node| node.ports.get(&port.port));
            let current = keys.current();
            let Some(info) = seen.filter(|_| keys.holds(current)) else { continue };
            let info = PortInfo {
                m_key: keys.key_in(current, &self.bound, port),
                m_key_protection: match current.kind {
                    KeyKind::Derived | KeyKind::Operator => MKeyProtection::Closed,
                    KeyKind::Removed => MKeyProtection::ReadAll,
                },
                m_key_lease_period_s: 0,
                ..info.clone()
            };
            let (held, data) = (keys.key(&self.bound, port), without_state(info.encode()));
            self.request_as(held, Method::SET, port_info_of(port), data, Purpose::Rekey { port });
        }
    }

    /// The ports of the batch that hold an M_Key.
    fn batch_ports(&self) -> Vec<PortName> {
        self.rotation.batch.iter().flat_map(|node| self.key_ports(*node)).collect()
    }

    /// The ports of a node that hold an M_Key: port 0 of a switch, each discovered port of an adapter.
    pub(crate) fn key_ports(&self, guid: Guid) -> Vec<PortName> {
        let port = |port| PortName { node: guid, port };
        match self.observed.nodes.get(&guid) {
            Some(node) if node.is_switch() => vec![port(PortNum::MANAGEMENT)],
            Some(node) => node.routes.keys().copied().map(port).collect(),
            None => Vec::new(),
        }
    }

    /// A Set of an M_Key was answered or not: the port says which key it holds.
    pub(crate) fn check_rekeyed(&mut self, port: PortName) {
        if let Some(version) = self.keys.as_ref().map(|keys| keys.current()) {
            self.check_version(port, version);
        }
    }

    fn check_version(&mut self, port: PortName, version: KeyVersion) {
        let Some(keys) = self.keys.as_ref().filter(|keys| keys.holds(version)) else { return };
        let key = keys.key_in(version, &self.bound, port);
        let purpose = Purpose::RekeyCheck { port, version };
        self.request_as(key, Method::GET, port_info_of(port), [0; SMP_DATA_LEN], purpose);
    }

    /// A port does not answer to the key of a version: it holds the other one, or does not answer at all.
    pub(crate) fn handle_silent_check(&mut self, now: Duration, port: PortName, version: KeyVersion) {
        let Some(keys) = &self.keys else { return };
        match keys.behind().get(&port.node).map(|behind| behind.version) {
            Some(old) if version == keys.current() && old != version => self.check_version(port, old),
            _ => self.handle_silent_attribute(now, port_info_of(port)),
        }
    }

    /// A port answered to the key of a version. At protection levels 0 and 1 that says little, but what it shows does.
    pub(crate) fn record_version(
        &mut self,
        now: Duration,
        port: PortName,
        version: KeyVersion,
        data: &[u8; SMP_DATA_LEN],
    ) {
        let Some(keys) = &mut self.keys else { return };
        match PortInfo::decode(data) {
            Ok(info) if !keys.is_confirmed(port, version, &info, &self.bound) => {
                self.handle_silent_check(now, port, version);
            }
            _ => keys.record_found(port, version),
        }
    }

    /// PortInfo was read: if another manager left the port at a protection level at which it answers to every key, that tells
    /// which key it holds.
    pub(crate) fn review_key(&mut self, target: AttributeRef, data: &[u8; SMP_DATA_LEN]) {
        let (node, port, (attribute, _)) = target;
        let port = PortName { node, port };
        let is_guard = attribute == Attribute::PORT_INFO && port_info_of(port) == target;
        let (Some(keys), Ok(info)) = (&mut self.keys, PortInfo::decode(data)) else { return };
        if is_guard && keys.review(port, &info, &self.bound) {
            self.read(target);
        }
    }

    /// A port that was probed answered to the key of a version.
    pub(crate) fn record_presented(&mut self, port: PortName, version: KeyVersion) {
        let Some(keys) = &mut self.keys else { return };
        if keys.record_answer(port, version, &self.bound) {
            self.state_is_new = true;
            self.rotation.is_open = true;
        }
    }

    /// All nodes of a batch answered or were given up.
    pub(crate) fn conclude_rotation_batch(&mut self, now: Duration) {
        self.phase = Phase::Idle;
        for node in std::mem::take(&mut self.rotation.batch) {
            let ports = self.key_ports(node);
            let Some(keys) = &mut self.keys else { return };
            if !ports.is_empty() && ports.iter().all(|port| keys.is_changed(*port)) {
                keys.finish(node);
                self.state_is_new = true;
            } else {
                self.rotation.failed.insert(node);
            }
        }
        for node in std::mem::take(&mut self.silent) {
            self.sweeps.schedule_recheck_of_silent(now, node);
        }
        if self.plan_is_new() {
            self.begin_programming();
        }
    }

    /// The state could not be stored: nodes keep their keys until later.
    pub(crate) fn put_off_rotation(&mut self, until: Duration) {
        if self.phase == Phase::PersistingRotation {
            self.phase = Phase::Idle;
            self.rotation.batch.clear();
            self.rotation.retry_at = Some(until);
            if self.plan_is_new() {
                self.begin_programming();
            }
        }
    }

    /// When nodes that did not change are tried again.
    pub(crate) fn rotation_timeout(&self) -> Option<Duration> {
        self.rotation.retry_at.filter(|at| self.phase == Phase::Idle && *at > self.now)
    }
}

/// PortInfo of a port that holds an M_Key.
pub(crate) fn port_info_of(port: PortName) -> AttributeRef {
    (port.node, port.port, (Attribute::PORT_INFO, port.port.to_wire().into()))
}
