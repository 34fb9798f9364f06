//! libvirt domain XML of a virtual machine, and the metadata by which an agent recognizes its own domains.
//!
//! Domains of earlier agents keep running: element and attribute names of the metadata must not change.

use std::path::Path;

use controller_api::agent::{Accelerator, VmSpec};
use controller_api::image::DiskFormat;
use controller_api::{MemorySize, Name};
use fabric_model::MacAddress;
use ib_wire::{Guid, PortNum};
use quick_xml::Reader;
use quick_xml::events::Event;
use serde::Serialize;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::cpu_set::CpuSet;
use crate::image::hex;
use crate::state_dir::QemuUser;
use crate::xml::{Element, element};

/// Directory of libvirt's QEMU logs.
const LOGS: &str = "/var/log/libvirt/qemu";

/// XML namespace of the metadata.
pub const METADATA_NAMESPACE: &str = "urn:heddle:agent:1";

/// XML namespace of QEMU arguments in domain XML.
const QEMU_NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

/// Size of TCG's translation cache in MiB. QEMU's default is 1 GiB per domain.
const TRANSLATION_CACHE_MIB: u32 = 128;

/// PCI slots on the root bus. By default, libvirt adds a hot-pluggable root port per device, which slows down
/// every boot.
mod slot {
    pub const CHANNEL: &str = "0x10";
    pub const RANDOM: &str = "0x11";
    pub const ADAPTER: &str = "0x12";
    pub const DISKS: [&str; 3] = ["0x13", "0x14", "0x15"];
}

fn at(slot: &str) -> Element {
    element("address").with("type", "pci").with("bus", "0x00").with("slot", slot)
}

/// Kernel command line before the parameters of the image, which may override it.
const DEFAULT_COMMAND_LINE: &str = "console=ttyS0 root=/dev/vda rw net.ifnames=0 init=/sbin/heddle-guest";

/// Version of [`order_digest`], incremented when its input changes. Digests of different versions are not compared.
const DIGEST_VERSION: &str = "2";

/// A domain to be created by libvirt.
#[derive(Debug)]
pub struct Domain<'a> {
    pub metadata: DomainMetadata,
    pub title: &'a str,
    pub accelerator: Accelerator,
    pub cores: u32,
    pub memory: MemorySize,
    pub cpus: CpuPlacement,
    pub boot: DirectBoot<'a>,
    pub disks: Vec<Disk<'a>>,
    /// File that receives the serial console.
    pub console: &'a Path,
    pub channel: Option<&'a Path>,
    pub adapter: Option<Adapter<'a>>,
    /// User of the QEMU process. Its files must already be owned by it.
    pub user: Option<QemuUser>,
}

/// CPU placement of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuPlacement {
    Unpinned,
    /// All threads share these cores.
    Shared(CpuSet),
    /// Each vCPU is pinned to its own core.
    Pinned {
        /// By vCPU number, ascending.
        cores: CpuSet,
        /// Cores of the emulator threads.
        emulator_cores: CpuSet,
        backing: MemoryBacking,
    },
}

/// Memory backing of a domain with dedicated cores; allocated at start in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryBacking {
    /// Huge pages of 2 MiB.
    HugePages,
    Pages,
}

/// Direct kernel boot.
#[derive(Clone, Copy, Debug)]
pub struct DirectBoot<'a> {
    pub kernel: &'a Path,
    pub initrd: &'a Path,
    /// Kernel parameters of the image.
    pub command_line: &'a str,
}

/// A disk of a domain.
#[derive(Clone, Copy, Debug)]
pub enum Disk<'a> {
    /// A qcow2 overlay over a base that is not modified.
    Overlay { path: &'a Path, base: &'a Path, base_format: DiskFormat },
    /// A raw file, attached read-only.
    ReadOnly(&'a Path),
}

/// A network adapter on the emulated fabric.
#[derive(Clone, Copy, Debug)]
pub struct Adapter<'a> {
    pub mac: MacAddress,
    /// Socket of the guest's end.
    pub guest: &'a Path,
    /// Socket of the fabric's end.
    pub fabric: &'a Path,
}

/// Metadata in the domain XML: identifies the agent, the virtual machine and its spec. Stored by libvirt and read by
/// the next agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainMetadata {
    pub instance: String,
    pub id: Uuid,
    pub host: Name,
    /// Digest of the spec; see [`order_digest`].
    pub order_digest: String,
    pub cores: CpuSet,
    pub memory: MemorySize,
}

impl DomainMetadata {
    /// Name of the domain. An agent touches only domains with such a name and matching metadata.
    pub fn domain_name(&self) -> String {
        domain_name(&self.instance, self.id)
    }

    /// Parses the metadata element; `None` if it is not valid.
    pub fn read(xml: &str) -> Option<Self> {
        let mut reader = Reader::from_str(xml);
        loop {
            let found = match reader.read_event().ok()? {
                Event::Start(found) | Event::Empty(found) => found,
                Event::Eof => return None,
                _ => continue,
            };
            let attribute = |name: &str| {
                let found = found.attributes().flatten().find(|found| found.key.as_ref() == name)?;
                Some(found.value.into_owned())
            };
            let cores = attribute("cores")?;
            return Some(Self {
                instance: attribute("instance")?,
                id: attribute("id")?.parse().ok()?,
                host: attribute("host")?.parse().ok()?,
                order_digest: attribute("order")?,
                cores: if cores.is_empty() { CpuSet::default() } else { cores.parse().ok()? },
                memory: attribute("memory")?.parse().ok()?,
            });
        }
    }

    /// Whether the domain was created for this spec on this host. Digests of another version count as equal.
    pub fn matches(&self, host: &Name, order: &VmSpec) -> bool {
        let version = |digest: &str| digest.split_once(':').map(|(version, _)| version.to_owned());
        let ordered = order_digest(order);
        self.host == *host
            && (self.order_digest == ordered || version(&self.order_digest) != version(&ordered))
    }

    fn to_element(&self) -> Element {
        element("heddle:vm")
            .with("xmlns:heddle", METADATA_NAMESPACE)
            .with("instance", &self.instance)
            .with("id", self.id)
            .with("host", &self.host)
            .with("order", &self.order_digest)
            .with("cores", &self.cores)
            .with("memory", self.memory)
    }
}

/// Name of a virtual machine's domain.
pub fn domain_name(instance: &str, id: Uuid) -> String {
    format!("heddle-{instance}-{id}")
}

/// Removes libvirt's logs of a virtual machine, whose name is never reused.
pub fn remove_logs(instance: &str, id: Uuid) {
    let name = domain_name(instance, id);
    for suffix in ["log", "log.0", "log.1", "log.2"] {
        // Ignored if the logs are elsewhere or owned by another user.
        let _ = std::fs::remove_file(Path::new(LOGS).join(format!("{name}.{suffix}")));
    }
}

/// Digest of the immutable part of a VM spec: everything except its context and its P_Keys.
pub fn order_digest(order: &VmSpec) -> String {
    #[derive(Serialize)]
    struct Fixed<'a>(
        Uuid,
        u32,
        MemorySize,
        controller_api::cluster::CpuMode,
        &'a controller_api::agent::ImageSpec,
        (Guid, PortNum, u8, MacAddress),
    );
    let seat = order.adapter.identity();
    let fixed = Fixed(order.id, order.cores, order.memory, order.mode, &order.image, seat);
    let bytes = serde_json::to_vec(&fixed).expect("a VM spec serializes to JSON");
    format!("{DIGEST_VERSION}:{}", hex(&Sha256::digest(bytes)))
}

impl Domain<'_> {
    /// The domain XML.
    pub fn to_xml(&self) -> String {
        let kind = match self.accelerator {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "qemu",
        };
        element("domain")
            .with("type", kind)
            .with("xmlns:qemu", QEMU_NAMESPACE)
            .child(element("name").text(self.metadata.domain_name()))
            .child(element("uuid").text(self.metadata.id))
            .child(element("title").text(self.title))
            .child(element("metadata").child(self.metadata.to_element()))
            .child(element("memory").with("unit", "MiB").text(self.memory.mib()))
            .children(self.cpus.backing())
            .child(self.cpus.vcpu(self.cores))
            .child(self.cpus.tuning())
            .child(self.boot.to_element())
            .child(self.features())
            .child(self.cpu())
            // The agent itself restarts a guest that exits or reboots, with back-off and a new seed.
            .child(element("on_poweroff").text("destroy"))
            .child(element("on_reboot").text("destroy"))
            .child(element("on_crash").text("destroy"))
            .child(self.devices())
            .children(self.user.map(dac_label))
            .children(self.adapter.map(|adapter| adapter.arguments()))
            .to_xml()
    }

    fn features(&self) -> Element {
        let cache = element("tb-cache").with("unit", "MiB").text(TRANSLATION_CACHE_MIB);
        let tcg = (self.accelerator == Accelerator::Tcg).then(|| element("tcg").child(cache));
        element("features").child(element("acpi")).children(tcg)
    }

    fn cpu(&self) -> Element {
        match self.accelerator {
            Accelerator::Kvm => element("cpu").with("mode", "host-passthrough"),
            Accelerator::Tcg => element("cpu").with("mode", "maximum"),
        }
    }

    fn devices(&self) -> Element {
        let names = ["vda", "vdb", "vdc"].into_iter().zip(slot::DISKS);
        let disks = self.disks.iter().zip(names);
        let disks = disks.map(|(disk, (name, slot))| disk.to_element(name).child(at(slot)));
        let channel = self.channel.into_iter().flat_map(|path| {
            let controller =
                element("controller").with("type", "virtio-serial").with("index", 0).child(at(slot::CHANNEL));
            let channel = element("channel")
                .with("type", "unix")
                .child(element("source").with("mode", "bind").with("path", path.display()))
                .child(element("target").with("type", "virtio").with("name", guest::channel::PORT_NAME));
            [controller, channel]
        });
        // Written by virtlogd, which rotates it.
        let serial = element("serial")
            .with("type", "file")
            .child(element("source").with("path", self.console.display()).with("append", "on"))
            .child(element("target").with("port", 0));
        let random = element("backend").with("model", "random").text("/dev/urandom");
        element("devices")
            .child(element("emulator").text("/usr/bin/qemu-system-x86_64"))
            .children(disks)
            .child(element("controller").with("type", "usb").with("model", "none"))
            .children(channel)
            .child(serial)
            .child(element("rng").with("model", "virtio").child(random).child(at(slot::RANDOM)))
            .child(element("memballoon").with("model", "none"))
    }
}

impl CpuPlacement {
    fn backing(&self) -> Option<Element> {
        let Self::Pinned { backing, .. } = self else { return None };
        let source = match backing {
            MemoryBacking::HugePages => {
                element("hugepages").child(element("page").with("size", 2).with("unit", "M"))
            }
            MemoryBacking::Pages => element("source").with("type", "memfd"),
        };
        let (kept, now) = (element("nosharepages"), element("allocation").with("mode", "immediate"));
        // The order of the children is prescribed by libvirt's schema.
        Some(match backing {
            MemoryBacking::HugePages => element("memoryBacking").children([source, kept, now]),
            MemoryBacking::Pages => element("memoryBacking").children([kept, source, now]),
        })
    }

    fn vcpu(&self, count: u32) -> Element {
        let vcpu = element("vcpu").with("placement", "static");
        let vcpu = match self {
            Self::Shared(cores) => vcpu.with("cpuset", cores),
            Self::Unpinned | Self::Pinned { .. } => vcpu,
        };
        vcpu.text(count)
    }

    fn tuning(&self) -> Element {
        let tuning = element("cputune");
        match self {
            Self::Unpinned => tuning,
            Self::Shared(cores) => tuning.child(element("emulatorpin").with("cpuset", cores)),
            Self::Pinned { cores, emulator_cores, .. } => {
                let pins = cores.iter().enumerate();
                let pins =
                    pins.map(|(vcpu, core)| element("vcpupin").with("vcpu", vcpu).with("cpuset", core));
                tuning.children(pins).child(element("emulatorpin").with("cpuset", emulator_cores))
            }
        }
    }
}

impl DirectBoot<'_> {
    fn to_element(self) -> Element {
        let command_line = format!("{DEFAULT_COMMAND_LINE} {}", self.command_line);
        element("os")
            .child(element("type").with("arch", "x86_64").with("machine", "q35").text("hvm"))
            // qboot starts a kernel much faster than a full BIOS.
            .child(element("loader").with("type", "rom").text("/usr/share/qemu/qboot.rom"))
            .child(element("kernel").text(self.kernel.display()))
            .child(element("initrd").text(self.initrd.display()))
            .child(element("cmdline").text(command_line.trim_end()))
    }
}

impl Disk<'_> {
    fn to_element(self, name: &str) -> Element {
        let target = element("target").with("dev", name).with("bus", "virtio");
        let source = |path: &Path| element("source").with("file", path.display());
        let disk = element("disk").with("type", "file").with("device", "disk");
        match self {
            Self::Overlay { path, base, base_format } => {
                let base_format = match base_format {
                    DiskFormat::Raw => "raw",
                    DiskFormat::Qcow2 => "qcow2",
                };
                // Explicit, so that libvirt does not probe the format of the base.
                let base = element("backingStore")
                    .with("type", "file")
                    .child(element("format").with("type", base_format))
                    .child(source(base))
                    .child(element("backingStore"));
                // The disk is recreated from its image after a crash of the host, so speed matters more than durability.
                let driver =
                    element("driver").with("name", "qemu").with("type", "qcow2").with("cache", "unsafe");
                disk.children([driver, source(path), base, target])
            }
            Self::ReadOnly(path) => {
                let driver = element("driver").with("name", "qemu").with("type", "raw");
                disk.children([driver, source(path), target, element("readonly")])
            }
        }
    }
}

impl Adapter<'_> {
    /// libvirt 9 does not support datagram sockets, so the adapter is configured by QEMU arguments.
    fn arguments(self) -> Element {
        // A comma in a QEMU option value is written as two.
        let value = |path: &Path| path.display().to_string().replace(',', ",,");
        let netdev = format!(
            "dgram,id=fab0,local.type=unix,local.path={},remote.type=unix,remote.path={}",
            value(self.guest),
            value(self.fabric)
        );
        let mac = self.mac;
        let device =
            format!("virtio-net-pci,netdev=fab0,mac={mac},romfile=,bus=pcie.0,addr={}", slot::ADAPTER);
        let arguments = ["-netdev", &netdev, "-device", &device];
        element("qemu:commandline")
            .children(arguments.map(|argument| element("qemu:arg").with("value", argument)))
    }
}

/// Runs QEMU as `user` without relabelling: its files are already owned by it, and image files keep their owner.
fn dac_label(user: QemuUser) -> Element {
    let owner = format!("+{}:+{}", user.uid, user.gid);
    element("seclabel")
        .with("type", "static")
        .with("model", "dac")
        .with("relabel", "no")
        .child(element("label").text(owner))
}
