//! libvirt. Its calls block, so each runs on a thread of its own; the connection is made when it is needed, and again
//! when it broke.

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

/// Longest message of libvirt that is told on: QEMU's words may come with pages of output.
const MESSAGE_CHARS_MAX: usize = 400;

/// libvirt at one address.
#[derive(Clone)]
pub struct Hypervisor {
    inner: Arc<Inner>,
}

struct Inner {
    uri: String,
    connection: Mutex<Option<Connect>>,
}

/// Why libvirt did not do something.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HypervisorError {
    /// It does not answer: what was result may or may not have been done.
    #[error("libvirt does not answer at {uri}: {message}")]
    Unreachable {
        uri: String,
        /// What its library says.
        message: String,
    },
    #[error("libvirt: {message}")]
    Refused { message: String },
}

/// What a domain does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainState {
    Gone,
    Running,
    /// It is there, but stands still.
    Halted(HaltReason),
}

/// Why a domain stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HaltReason {
    /// Its disk cannot be written.
    #[error("its disk cannot be written; the host's may be full")]
    DiskError,
    #[error("it was paused")]
    Paused,
    /// It cannot go on.
    #[error("it has crashed")]
    Crashed,
    #[error("libvirt does not say why")]
    Unknown,
}

impl std::fmt::Debug for Hypervisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hypervisor({})", self.inner.uri)
    }
}

impl Hypervisor {
    /// libvirt at an address such as `qemu:///system`. Nothing is result yet.
    pub fn new(uri: String) -> Self {
        // The library prints every error otherwise, also those that are expected.
        virt::error::clear_error_callback();
        Self { inner: Arc::new(Inner { uri, connection: Mutex::new(None) }) }
    }

    /// Starts a domain that libvirt forgets when it ends.
    pub async fn create(&self, xml: String) -> Result<(), HypervisorError> {
        self.call(move |connection| Domain::create_xml(connection, &xml, sys::VIR_DOMAIN_NONE).map(drop))
            .await
    }

    /// Ends a domain of an agent; fine if there is none. QEMU gets the time to write what it has.
    pub async fn destroy(&self, instance: &str, id: Uuid) -> Result<(), HypervisorError> {
        let name = domain_name(instance, id);
        self.call(move |connection| match Domain::lookup_by_name(connection, &name) {
            Ok(domain) => ignore_missing(domain.destroy()),
            Err(error) => ignore_missing(Err(error)),
        })
        .await
    }

    /// Lets a domain go on.
    pub async fn resume(&self, instance: &str, id: Uuid) -> Result<(), HypervisorError> {
        let name = domain_name(instance, id);
        self.call(move |connection| {
            ignore_missing(Domain::lookup_by_name(connection, &name)?.resume().map(drop))
        })
        .await
    }

    /// Virtual machines of an agent that run.
    pub async fn running(&self, instance: &str) -> Result<BTreeSet<Uuid>, HypervisorError> {
        let prefix = domain_prefix(instance);
        self.call(move |connection| {
            let domains = connection.list_all_domains(sys::VIR_CONNECT_LIST_DOMAINS_RUNNING)?;
            Ok(domains.iter().filter_map(|domain| id_of(domain, &prefix)).collect())
        })
        .await
    }

    /// All domains of an agent, by their found.
    pub async fn domains(&self, instance: &str) -> Result<Vec<DomainMetadata>, HypervisorError> {
        let (instance, prefix) = (instance.to_owned(), domain_prefix(instance));
        self.call(move |connection| {
            let domains = connection.list_all_domains(sys::VIR_CONNECT_LIST_DOMAINS_ACTIVE)?;
            let ours = domains.iter().filter(|domain| id_of(domain, &prefix).is_some());
            // One that ends meanwhile, or that somebody else called so, has no mark.
            let found = ours.filter_map(|domain| read_metadata(domain).ok().flatten());
            Ok(found.filter(|metadata| metadata.instance == instance).collect())
        })
        .await
    }

    /// The mark of one virtual machine's domain, if there is one.
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

    /// What a virtual machine's domain does.
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

    /// Keeps a running domain, all of it, on these cores.
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

    /// Keeps the emulation of a running domain on these cores; its virtual cores stay where they are.
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

    /// Who QEMU runs as, where libvirt says so.
    pub async fn qemu_user(&self) -> Result<Option<QemuUser>, HypervisorError> {
        self.call(|connection| Ok(qemu_user(&connection.get_capabilities()?))).await
    }

    /// The version of what runs virtual machines.
    pub async fn version(&self) -> Result<u32, HypervisorError> {
        self.call(|connection| connection.get_hyp_version()).await
    }

    async fn call<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Connect) -> Result<T, virt::error::Error> + Send + 'static,
    ) -> Result<T, HypervisorError> {
        let inner = Arc::clone(&self.inner);
        let result = tokio::task::spawn_blocking(move || inner.call(operation));
        result.await.expect("calls of libvirt do not panic, and nobody cancels them")
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
        // It was there a moment ago and has ended by itself.
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
        // libvirt has it as paused for a moment while it starts.
        sys::VIR_DOMAIN_PAUSED if reason == sys::VIR_DOMAIN_PAUSED_STARTING_UP.cast_signed() => {
            DomainState::Running
        }
        sys::VIR_DOMAIN_PAUSED => DomainState::Halted(HaltReason::Paused),
        sys::VIR_DOMAIN_CRASHED => DomainState::Halted(HaltReason::Crashed),
        sys::VIR_DOMAIN_SHUTDOWN | sys::VIR_DOMAIN_SHUTOFF => DomainState::Gone,
        _ => DomainState::Halted(HaltReason::Unknown),
    }
}

/// The first line that says something, and not too much of it.
fn shorten(message: &str) -> String {
    let plain = message.split_whitespace().collect::<Vec<_>>().join(" ");
    plain.chars().take(MESSAGE_CHARS_MAX).collect()
}

/// Reads `<secmodel><model>dac</model>…<baselabel>+64055:+64055</baselabel>` out of libvirt's capabilities.
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
