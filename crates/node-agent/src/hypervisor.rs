//! Client of libvirt. Calls block, so each runs on the blocking thread pool. The connection is opened on demand, and reopened after it
//! broke.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use quick_xml::Reader;
use quick_xml::events::Event;
use thiserror::Error;
use uuid::Uuid;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::ErrorNumber;
use virt::sys;

use crate::cpu_set::CpuSet;
use crate::domain::{DomainMetadata, METADATA_NAMESPACE, domain_name};
use crate::state_dir::QemuUser;

/// Most characters of a libvirt message that are kept: QEMU's output may fill pages.
const MESSAGE_CHARS_MAX: usize = 400;

/// libvirt at a URI. Clones share one connection.
#[derive(Clone)]
pub struct Hypervisor {
    inner: Arc<Inner>,
}

struct Inner {
    uri: String,
    connection: Mutex<Option<Connect>>,
}

/// Why a libvirt call failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HypervisorError {
    /// libvirt does not answer: the operation may or may not have been carried out.
    #[error("libvirt does not answer at {uri}: {message}")]
    Unreachable { uri: String, message: String },
    #[error("libvirt: {message}")]
    Refused { message: String },
}

/// State of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainState {
    Gone,
    Running,
    /// Exists, but its vCPUs do not run.
    Halted(HaltReason),
}

/// Why a domain is halted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HaltReason {
    #[error("its disk cannot be written; the host's file system may be full")]
    DiskError,
    #[error("paused by an administrator")]
    Paused,
    #[error("crashed")]
    Crashed,
    #[error("unknown reason")]
    Unknown,
}

impl std::fmt::Debug for Hypervisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hypervisor({})", self.inner.uri)
    }
}

impl Hypervisor {
    /// libvirt at a URI such as `qemu:///system`. Does not connect yet.
    pub fn new(uri: String) -> Self {
        // Otherwise the library prints every error, including expected ones.
        virt::error::clear_error_callback();
        Self { inner: Arc::new(Inner { uri, connection: Mutex::new(None) }) }
    }

    /// Starts a transient domain.
    pub async fn create(&self, xml: String) -> Result<(), HypervisorError> {
        self.call(move |connection| Domain::create_xml(connection, &xml, sys::VIR_DOMAIN_NONE).map(drop))
            .await
    }

    /// Destroys a domain of an agent; succeeds if it does not exist. QEMU gets time to flush its caches.
    pub async fn destroy(&self, instance: &str, id: Uuid) -> Result<(), HypervisorError> {
        let name = domain_name(instance, id);
        self.call(move |connection| match Domain::lookup_by_name(connection, &name) {
            Ok(domain) => ignore_missing(domain.destroy()),
            Err(error) => ignore_missing(Err(error)),
        })
        .await
    }

    /// Resumes a paused domain.
    pub async fn resume(&self, instance: &str, id: Uuid) -> Result<(), HypervisorError> {
        let name = domain_name(instance, id);
        self.call(move |connection| {
            ignore_missing(Domain::lookup_by_name(connection, &name)?.resume().map(drop))
        })
        .await
    }

    /// Ids of an agent's running virtual machines.
    pub async fn running(&self, instance: &str) -> Result<BTreeSet<Uuid>, HypervisorError> {
        let prefix = domain_prefix(instance);
        self.call(move |connection| {
            let domains = connection.list_all_domains(sys::VIR_CONNECT_LIST_DOMAINS_RUNNING)?;
            Ok(domains.iter().filter_map(|domain| id_of(domain, &prefix)).collect())
        })
        .await
    }

    /// Metadata of all active domains of an agent.
    pub async fn domains(&self, instance: &str) -> Result<Vec<DomainMetadata>, HypervisorError> {
        let (instance, prefix) = (instance.to_owned(), domain_prefix(instance));
        self.call(move |connection| {
            let domains = connection.list_all_domains(sys::VIR_CONNECT_LIST_DOMAINS_ACTIVE)?;
            let ours = domains.iter().filter(|domain| id_of(domain, &prefix).is_some());
            // A domain that ended meanwhile, or a foreign one of the same name, has no metadata.
            let found = ours.filter_map(|domain| read_metadata(domain).ok().flatten());
            Ok(found.filter(|metadata| metadata.instance == instance).collect())
        })
        .await
    }

    /// Metadata of a virtual machine's domain, if it exists.
    pub async fn domain_metadata(
        &self,
        instance: &str,
        id: Uuid,
    ) -> Result<Option<DomainMetadata>, HypervisorError> {
        let name = domain_name(instance, id);
        self.call(move |connection| match Domain::lookup_by_name(connection, &name) {
            Ok(domain) => read_metadata(&domain),
            Err(error) if error.code() == ErrorNumber::NoDomain => Ok(None),
            Err(error) => Err(error),
        })
        .await
    }

    /// State of a virtual machine's domain.
    pub async fn state(&self, instance: &str, id: Uuid) -> Result<DomainState, HypervisorError> {
        let name = domain_name(instance, id);
        self.call(move |connection| {
            let found = Domain::lookup_by_name(connection, &name).and_then(|domain| domain.get_state());
            match found {
                Ok((state, reason)) => Ok(domain_state(state, reason)),
                Err(error) if error.code() == ErrorNumber::NoDomain => Ok(DomainState::Gone),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Pins all vCPUs and the emulator threads of a running domain to a CPU set.
    pub async fn pin_domain(
        &self,
        instance: &str,
        id: Uuid,
        vcpus: u32,
        cores: &CpuSet,
    ) -> Result<(), HypervisorError> {
        let (name, bits) = (domain_name(instance, id), cores.to_bitmap());
        self.call(move |connection| {
            let domain = Domain::lookup_by_name(connection, &name)?;
            for vcpu in 0..vcpus {
                domain.pin_vcpu(vcpu, &bits)?;
            }
            domain.pin_emulator(&bits, sys::VIR_DOMAIN_AFFECT_CURRENT).map(drop)
        })
        .await
    }

    /// Pins the emulator threads of a running domain to a CPU set; its vCPUs stay pinned.
    pub async fn pin_emulator(
        &self,
        instance: &str,
        id: Uuid,
        cores: &CpuSet,
    ) -> Result<(), HypervisorError> {
        let (name, bits) = (domain_name(instance, id), cores.to_bitmap());
        self.call(move |connection| {
            let domain = Domain::lookup_by_name(connection, &name)?;
            domain.pin_emulator(&bits, sys::VIR_DOMAIN_AFFECT_CURRENT).map(drop)
        })
        .await
    }

    /// User and group of QEMU processes, if libvirt's capabilities name them.
    pub async fn qemu_user(&self) -> Result<Option<QemuUser>, HypervisorError> {
        self.call(|connection| Ok(qemu_user(&connection.get_capabilities()?))).await
    }

    /// Version of the hypervisor, as numbered by libvirt.
    pub async fn version(&self) -> Result<u32, HypervisorError> {
        self.call(|connection| connection.get_hyp_version()).await
    }

    async fn call<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Connect) -> Result<T, virt::error::Error> + Send + 'static,
    ) -> Result<T, HypervisorError> {
        let inner = Arc::clone(&self.inner);
        let result = tokio::task::spawn_blocking(move || inner.call(operation));
        result.await.expect("libvirt calls neither panic nor are cancelled")
    }
}

impl Inner {
    fn call<T>(
        &self,
        operation: impl FnOnce(&Connect) -> Result<T, virt::error::Error>,
    ) -> Result<T, HypervisorError> {
        let connection = self.connection().map_err(|error| self.unreachable(&error))?;
        operation(&connection).map_err(|error| {
            if connection.is_alive().unwrap_or(false) {
                return HypervisorError::Refused { message: shorten(error.message()) };
            }
            *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = None;
            self.unreachable(&error)
        })
    }

    fn connection(&self) -> Result<Connect, virt::error::Error> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        match &*connection {
            Some(connection) => Ok(connection.clone()),
            None => Ok(connection.insert(Connect::open(Some(&self.uri))?).clone()),
        }
    }

    fn unreachable(&self, error: &virt::error::Error) -> HypervisorError {
        HypervisorError::Unreachable { uri: self.uri.clone(), message: shorten(error.message()) }
    }
}

fn domain_prefix(instance: &str) -> String {
    format!("heddle-{instance}-")
}

fn id_of(domain: &Domain, prefix: &str) -> Option<Uuid> {
    domain.get_name().ok()?.strip_prefix(prefix)?.parse().ok()
}

fn read_metadata(domain: &Domain) -> Result<Option<DomainMetadata>, virt::error::Error> {
    let kind = sys::VIR_DOMAIN_METADATA_ELEMENT.cast_signed();
    match domain.get_metadata(kind, Some(METADATA_NAMESPACE), sys::VIR_DOMAIN_AFFECT_CURRENT) {
        Ok(xml) => Ok(DomainMetadata::read(&xml)),
        Err(error) if [ErrorNumber::NoDomainMetadata, ErrorNumber::NoDomain].contains(&error.code()) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn ignore_missing(done: Result<(), virt::error::Error>) -> Result<(), virt::error::Error> {
    match done {
        // The domain ended in the meantime.
        Err(error) if [ErrorNumber::NoDomain, ErrorNumber::OperationInvalid].contains(&error.code()) => {
            Ok(())
        }
        done => done,
    }
}

fn domain_state(state: sys::virDomainState, reason: i32) -> DomainState {
    match state {
        sys::VIR_DOMAIN_RUNNING | sys::VIR_DOMAIN_BLOCKED => DomainState::Running,
        sys::VIR_DOMAIN_PAUSED if reason == sys::VIR_DOMAIN_PAUSED_IOERROR.cast_signed() => {
            DomainState::Halted(HaltReason::DiskError)
        }
        // libvirt reports a starting domain as paused for a moment.
        sys::VIR_DOMAIN_PAUSED if reason == sys::VIR_DOMAIN_PAUSED_STARTING_UP.cast_signed() => {
            DomainState::Running
        }
        sys::VIR_DOMAIN_PAUSED => DomainState::Halted(HaltReason::Paused),
        sys::VIR_DOMAIN_CRASHED => DomainState::Halted(HaltReason::Crashed),
        sys::VIR_DOMAIN_SHUTDOWN | sys::VIR_DOMAIN_SHUTOFF => DomainState::Gone,
        _ => DomainState::Halted(HaltReason::Unknown),
    }
}

/// The message on one line, truncated.
fn shorten(message: &str) -> String {
    let plain = message.split_whitespace().collect::<Vec<_>>().join(" ");
    plain.chars().take(MESSAGE_CHARS_MAX).collect()
}

/// Parses `<secmodel><model>dac</model>…<baselabel>+64055:+64055</baselabel>` of libvirt's capabilities.
fn qemu_user(capabilities: &str) -> Option<QemuUser> {
    let mut reader = Reader::from_str(capabilities);
    let (mut element, mut model) = (String::new(), String::new());
    loop {
        match reader.read_event().ok()? {
            Event::Start(start) => element = start.name().as_ref().to_owned(),
            Event::End(_) => element.clear(),
            Event::Text(text) if element == "model" => model = text.to_string(),
            Event::Text(text) if element == "baselabel" && model == "dac" => {
                let (uid, gid) = text.trim().split_once(':')?;
                let number = |text: &str| text.strip_prefix('+').and_then(|digits| digits.parse().ok());
                return Some(QemuUser { uid: number(uid)?, gid: number(gid)? });
            }
            Event::Eof => return None,
            _ => {}
        }
    }
}
