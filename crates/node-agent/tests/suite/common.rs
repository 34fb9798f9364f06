//! Host specs and images for tests.

use std::fs;
use std::path::Path;

use controller_api::agent::{
    AdapterSpec, ClusterKey, Context, HostSpec, ImageSpec, Peer, SpecVersion, VmSpec,
};
use controller_api::cluster::CpuMode;
use controller_api::image::{DiskFormat, ImageFile, Manifest};
use controller_api::{MemorySize, Name};
use fabric_model::MacAddress;
use ib_wire::{Guid, Lid, MulticastLid, Pkey, PortNum, ServiceLevel};
use node_agent::image::hex;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A secret that must not leak.
pub const PRIVATE_KEY: &str = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n";

/// Site of the host specs.
pub const SITE: Uuid = Uuid::from_u128(0x5173);

pub fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// A spec for a virtual machine with this number.
pub fn vm_order(number: u8, mode: CpuMode) -> VmSpec {
    let pkey = Pkey::from_wire(0x8001).expect("a key");
    VmSpec {
        id: Uuid::from_u128(0x1111_2222_4333_8444_5555_0000_0000_0000 + u128::from(number)),
        label: format!("blue/red/{number}"),
        cores: 1,
        memory: MemorySize::from_mib(384),
        mode,
        image: ImageSpec {
            name: name("debian-mpi"),
            directory: "/images/debian-mpi".into(),
            digest: "0".repeat(64),
        },
        adapter: AdapterSpec {
            port_guid: Guid::from_wire(0x0002_c903_0010_0001).expect("a GUID"),
            port: PortNum::from_wire(1).expect("a port"),
            function: number,
            mac: MacAddress::of_function(Lid::from_wire(7).expect("a LID"), number),
            pkey,
            group: MulticastLid::from_wire(0xc001),
            guid: None,
            inner_keys: Vec::new(),
        },
        context: Context {
            generation: 1,
            cluster: name("red"),
            hostname: format!("red-{number}"),
            address: format!("10.128.0.{number}/16"),
            mtu: 1500,
            peers: vec![Peer { hostname: "red-1".into(), address: "10.128.0.1".into(), slots: 1 }],
            authorized_keys: vec!["ssh-ed25519 AAAA someone".into()],
            cluster_key: ClusterKey { public: "ssh-ed25519 BBBB red".into(), private: PRIVATE_KEY.into() },
            pkey,
            sl: ServiceLevel::from_wire(0),
            partitions: Vec::new(),
            classes: Vec::new(),
            probes: None,
        },
    }
}

/// A host spec with this sequence number.
pub fn host_spec(sequence: u64, vms: Vec<VmSpec>) -> HostSpec {
    HostSpec {
        version: SpecVersion { site: SITE, epoch: 1, sequence },
        vms,
        removed: Vec::new(),
        images: Vec::new(),
    }
}

/// Creates an image of three small files; returns its spec.
pub fn image(directory: &Path) -> ImageSpec {
    let file = |name: &str, text: &str| {
        fs::write(directory.join(name), text).expect("a scratch directory");
        ImageFile { file: name.into(), sha256: hex(&Sha256::digest(text)) }
    };
    let manifest = Manifest {
        infiniband: false,
        root: file("root.ext4", "a root disk"),
        root_format: DiskFormat::Raw,
        kernel: file("vmlinux", "a kernel"),
        initrd: file("initrd", "an initial file system"),
        command_line: "quiet".into(),
        guest: true,
    };
    describe(directory, &manifest)
}

/// Writes the manifest of an image; returns its spec.
pub fn describe(directory: &Path, manifest: &Manifest) -> ImageSpec {
    let text = serde_json::to_string(manifest).expect("a manifest is JSON");
    fs::write(directory.join("image.json"), &text).expect("a scratch directory");
    ImageSpec { name: name("small"), directory: directory.into(), digest: hex(&Sha256::digest(text)) }
}
