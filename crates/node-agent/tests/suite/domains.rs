//! Domain XML, and recognition of an agent's own domains.

use std::path::Path;

use controller_api::agent::Accelerator;
use controller_api::cluster::CpuMode;
use controller_api::image::DiskFormat;
use node_agent::cpu_set::CpuSet;
use node_agent::domain::{
    Adapter, CpuPlacement, DirectBoot, Disk, Domain, DomainMetadata, MemoryBacking, order_digest,
};
use node_agent::hypervisor::{DomainState, Hypervisor};
use node_agent::state_dir::QemuUser;

fn metadata(number: u8, instance: &str) -> DomainMetadata {
    let order = crate::common::vm_order(number, CpuMode::Shared);
    DomainMetadata {
        instance: instance.to_owned(),
        id: order.id,
        host: crate::common::name("host-00001"),
        order_digest: order_digest(&order),
        cores: CpuSet::default(),
        memory: order.memory,
    }
}

fn xml(metadata: DomainMetadata, accelerator: Accelerator, cpus: CpuPlacement) -> String {
    let order = crate::common::vm_order(1, CpuMode::Shared);
    Domain {
        metadata,
        title: "blue/red/1 <&'\">",
        accelerator,
        cores: 1,
        memory: order.memory,
        cpus,
        boot: DirectBoot {
            kernel: Path::new("/images/vmlinux"),
            initrd: Path::new("/images/initrd"),
            command_line: "quiet",
        },
        disks: vec![
            Disk::Overlay {
                path: Path::new("/state/overlay.qcow2"),
                base: Path::new("/images/root.ext4"),
                base_format: DiskFormat::Raw,
            },
            Disk::ReadOnly(Path::new("/state/seed.iso")),
        ],
        console: Path::new("/state/console.log"),
        channel: Some(Path::new("/run/heddle/x/guest.sock")),
        adapter: Some(Adapter {
            mac: order.adapter.mac,
            guest: Path::new("/run/heddle/x,y/nic.guest"),
            fabric: Path::new("/run/heddle/x,y/nic.fabric"),
        }),
        user: Some(QemuUser { uid: 64055, gid: 64055 }),
    }
    .to_xml()
}

fn shared_cores() -> CpuPlacement {
    CpuPlacement::Shared("0-1".parse().unwrap())
}

#[test]
fn shared_domain_xml() {
    insta::assert_snapshot!(xml(metadata(1, "0123abcd"), Accelerator::Tcg, shared_cores()));
}

#[test]
fn dedicated_domain_xml() {
    let (cores, emulator_cores) = ("2-3".parse().unwrap(), "0-1".parse().unwrap());
    let cpus = CpuPlacement::Pinned { cores, emulator_cores, backing: MemoryBacking::HugePages };
    insta::assert_snapshot!(xml(metadata(1, "0123abcd"), Accelerator::Kvm, cpus));
}

#[test]
fn ordinary_pages_are_allocated_at_start() {
    let (cores, emulator_cores) = ("1".parse().unwrap(), "0".parse().unwrap());
    let cpus = CpuPlacement::Pinned { cores, emulator_cores, backing: MemoryBacking::Pages };
    let xml = xml(metadata(1, "0123abcd"), Accelerator::Tcg, cpus);
    let backing: Vec<&str> =
        xml.lines().skip_while(|line| !line.contains("<memoryBacking")).take(5).collect();
    insta::assert_snapshot!(backing.join("\n"));
}

#[test]
fn metadata_survives_a_round_trip() {
    let metadata = DomainMetadata { cores: "1,3".parse().unwrap(), ..metadata(1, "0123abcd") };
    let xml = xml(metadata.clone(), Accelerator::Tcg, shared_cores());
    let line = xml.lines().find(|line| line.contains("<heddle:vm")).unwrap();
    assert_eq!(DomainMetadata::read(line), Some(metadata));
    assert_eq!(DomainMetadata::read("<vm instance='x'/>"), None);
    assert_eq!(DomainMetadata::read("<<<"), None);
    assert_eq!(DomainMetadata::read(""), None);
}

#[test]
fn a_domain_is_adopted_only_for_its_own_order() {
    let (metadata, host) = (metadata(1, "0123abcd"), crate::common::name("host-00001"));
    let order = crate::common::vm_order(1, CpuMode::Shared);
    assert!(metadata.matches(&host, &order));
    let mut context_changed = order.clone();
    context_changed.context.generation = 9;
    assert!(metadata.matches(&host, &context_changed));
    assert!(!metadata.matches(&crate::common::name("host-00002"), &order));
    let mut other = order.clone();
    other.cores = 2;
    assert!(!metadata.matches(&host, &other));
    // Digests of another version are not compared: domains keep running over an upgrade of the agent.
    let older = DomainMetadata { order_digest: "0:abc".to_owned(), ..metadata };
    assert!(older.matches(&host, &other));
}

/// With libvirt's test driver: no daemon, and nothing is started.
#[tokio::test]
async fn an_agent_finds_its_domains_and_touches_no_others() {
    let hypervisor = Hypervisor::new("test:///default".to_owned());
    let pretend = |metadata: &DomainMetadata| {
        xml(metadata.clone(), Accelerator::Tcg, shared_cores()).replacen("type='qemu'", "type='test'", 1)
    };
    let (ours, theirs) = (metadata(1, "0123abcd"), metadata(2, "ffffffff"));
    hypervisor.create(pretend(&ours)).await.unwrap();
    hypervisor.create(pretend(&theirs)).await.unwrap();
    assert_eq!(hypervisor.domains("0123abcd").await.unwrap(), std::slice::from_ref(&ours));
    assert_eq!(hypervisor.domain_metadata("0123abcd", ours.id).await.unwrap(), Some(ours.clone()));
    assert_eq!(hypervisor.domain_metadata("0123abcd", theirs.id).await.unwrap(), None);
    assert!(hypervisor.running("0123abcd").await.unwrap().contains(&ours.id));
    assert_eq!(hypervisor.state("0123abcd", ours.id).await.unwrap(), DomainState::Running);
    hypervisor.pin_domain("0123abcd", ours.id, 1, &"1".parse().unwrap()).await.unwrap();

    // A foreign domain is not destroyed, and destroying twice succeeds.
    hypervisor.destroy("0123abcd", theirs.id).await.unwrap();
    assert_eq!(hypervisor.state("ffffffff", theirs.id).await.unwrap(), DomainState::Running);
    for _ in 0..2 {
        hypervisor.destroy("0123abcd", ours.id).await.unwrap();
        assert_eq!(hypervisor.state("0123abcd", ours.id).await.unwrap(), DomainState::Gone);
    }
    assert!(hypervisor.domains("0123abcd").await.unwrap().is_empty());
}

#[tokio::test]
async fn rejection_and_unreachable_libvirt_are_distinct() {
    use node_agent::hypervisor::HypervisorError;
    let there = Hypervisor::new("test:///default".to_owned());
    let refused = there.create("<domain/>".to_owned()).await.unwrap_err();
    assert!(matches!(refused, HypervisorError::Refused { .. }), "{refused}");
    let nowhere = Hypervisor::new("qemu+unix:///system?socket=/nowhere/libvirt-sock".to_owned());
    let silent = nowhere.running("0123abcd").await.unwrap_err();
    assert!(matches!(silent, HypervisorError::Unreachable { .. }), "{silent}");
}
