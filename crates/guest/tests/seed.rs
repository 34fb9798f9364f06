//! Writing a seed, and applying it in a guest.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use guest::apply;
use guest::seed::{
    ClassLevel, ContextFile, GuestAdapter, InvalidSeedDocument, KeyPair, Peer, Seed, SeedInput, UserData,
    WriteFile,
};
use ib_wire::{Pkey, ServiceLevel};

fn input() -> SeedInput {
    let peer = |number: u32| Peer {
        hostname: format!("blue-{number}"),
        address: format!("10.128.0.{number}"),
        slots: number,
    };
    SeedInput {
        instance_id: "6e5f3a52-0c5e-4a53-8f2a-1f0e2b7f7a11".to_owned(),
        adapter: GuestAdapter::Ethernet { mac: "02:00:00:05:00:01".to_owned() },
        generation: 7,
        cluster: "blue".to_owned(),
        hostname: "blue-1".to_owned(),
        address: "10.128.0.1/16".to_owned(),
        mtu: 2044,
        peers: vec![peer(1), peer(2)],
        authorized_keys: vec!["ssh-ed25519 AAAAuser somebody\n".to_owned()],
        cluster_key: KeyPair {
            public: "ssh-ed25519 AAAAcluster blue".to_owned(),
            private: "-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n-----END OPENSSH PRIVATE KEY-----\n"
                .to_owned(),
        },
        pkey: Pkey::from_wire(0x8011).expect("a key"),
        sl: ServiceLevel::from_wire(3),
        partitions: Vec::new(),
        classes: Vec::new(),
        probes: None,
    }
}

fn user_data(files: Vec<WriteFile>) -> UserData {
    UserData { write_files: files, ..Seed::new(&input()).read().expect("our own").user }
}

fn file(path: &str, permissions: &str) -> WriteFile {
    WriteFile { path: path.to_owned(), permissions: permissions.to_owned(), content: "content".to_owned() }
}

/// Every file below a folder, with its mode.
fn tree(folder: &Path) -> BTreeMap<String, (u32, String)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let mode = fs::metadata(&path).expect("it is there").permissions().mode() & 0o7777;
            let name = path.strip_prefix(folder).expect("below").display().to_string();
            found.insert(name, (mode, fs::read_to_string(&path).expect("text")));
        }
    }
    found
}

#[test]
fn seed_documents_match_their_snapshots() {
    let seed = Seed::new(&input());
    insta::assert_snapshot!("meta-data", seed.meta_data);
    insta::assert_snapshot!("network-config", seed.network_config);
    insta::assert_snapshot!("user-data", seed.user_data);
}

#[test]
fn files_in_the_guest_match_their_snapshot() {
    let root = tempfile::tempdir().expect("a folder");
    apply::write_files(root.path(), &Seed::new(&input()).read().expect("our own").user).expect("written");
    let tree = tree(root.path());
    let text: String =
        tree.iter().map(|(name, (mode, content))| format!("---- {name} {mode:04o}\n{content}")).collect();
    insta::assert_snapshot!("files", text);

    let context: ContextFile = serde_json::from_str(&tree["etc/heddle/context.json"].1).expect("as written");
    assert_eq!((context.generation, context.pkey), (7, input().pkey));

    let view_sls = vec![ServiceLevel::from_wire(1).expect("a service level")];
    let class = ClassLevel { view_sls, sl: ServiceLevel::from_wire(14).expect("a service level") };
    let divided = SeedInput { classes: vec![class.clone()], ..input() };
    apply::write_files(root.path(), &Seed::new(&divided).read().expect("our own").user).expect("written");
    let text = fs::read_to_string(root.path().join("etc/heddle/context.json")).expect("it is there");
    assert_eq!(ContextFile::read(&text).expect("as written").classes, [class]);
}

#[test]
fn only_root_reads_the_private_key() {
    let root = tempfile::tempdir().expect("a folder");
    apply::write_files(root.path(), &Seed::new(&input()).read().expect("our own").user).expect("written");
    let secret: Vec<_> =
        tree(root.path()).into_iter().filter(|(_, (_, content))| content.contains("secret")).collect();
    let names: Vec<&str> = secret.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["etc/ssh/ssh_host_ed25519_key", "root/.ssh/id_ed25519"]);
    assert!(secret.iter().all(|(_, (mode, _))| *mode == 0o600));
    let folder = fs::metadata(root.path().join("root/.ssh")).expect("it is there");
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_new_context_rewrites_only_changed_files() {
    let root = tempfile::tempdir().expect("a folder");
    let path = |name: &str| root.path().join(name);
    let inode =
        |name: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path(name)).expect("it is there"));
    apply::write_files(root.path(), &Seed::new(&input()).read().expect("our own").user).expect("written");
    let (key, hosts) = (inode("root/.ssh/id_ed25519"), inode("etc/hosts"));

    let mut grown = input();
    grown.peers.push(Peer { hostname: "blue-3".to_owned(), address: "10.128.0.3".to_owned(), slots: 1 });
    let context = Seed::from_context(&Seed::new(&grown).to_context()).expect("our own");
    apply::write_files(root.path(), &context.read().expect("our own").user).expect("written");

    assert_eq!(inode("root/.ssh/id_ed25519"), key);
    assert_ne!(inode("etc/hosts"), hosts);
    assert!(fs::read_to_string(path("etc/hosts")).expect("text").ends_with("10.128.0.3 blue-3\n"));
}

#[test]
fn a_changed_file_mode_is_restored() {
    let root = tempfile::tempdir().expect("a folder");
    let user = Seed::new(&input()).read().expect("our own").user;
    apply::write_files(root.path(), &user).expect("written");
    let key = root.path().join("root/.ssh/id_ed25519");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("ours");
    apply::write_files(root.path(), &user).expect("written");
    assert_eq!(fs::metadata(&key).expect("it is there").permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_symbolic_link_is_replaced_and_not_followed() {
    let root = tempfile::tempdir().expect("a folder");
    let elsewhere = root.path().join("elsewhere");
    fs::write(&elsewhere, "untouched").expect("ours");
    fs::create_dir(root.path().join("etc")).expect("ours");
    symlink(&elsewhere, root.path().join("etc/motd")).expect("ours");
    apply::write_files(root.path(), &user_data(vec![file("/etc/motd", "0644")])).expect("written");
    assert_eq!(fs::read_to_string(&elsewhere).expect("text"), "untouched");
    assert_eq!(fs::read_to_string(root.path().join("etc/motd")).expect("text"), "content");
}

#[test]
fn one_invalid_file_prevents_all_writes() {
    let wrong = [
        file("relative", "0644"),
        file("/etc/../../outside", "0644"),
        file("/", "0644"),
        file("", "0644"),
        file("/etc/a\0b", "0644"),
        file("/etc/a", "4755"),
        file("/etc/a", "rw"),
        file("/etc/a", ""),
    ];
    for wrong in wrong {
        let root = tempfile::tempdir().expect("a folder");
        let name = format!("{wrong:?}");
        let refused = apply::write_files(root.path(), &user_data(vec![file("/etc/good", "0644"), wrong]));
        assert!(refused.is_err(), "{name}");
        assert!(tree(root.path()).is_empty(), "{name}");
    }
    // Control: valid files are written.
    let root = tempfile::tempdir().expect("a folder");
    apply::write_files(root.path(), &user_data(vec![file("/etc/good", "0644")])).expect("written");
    assert_eq!(tree(root.path())["etc/good"].1, "content");
}

#[test]
fn unsupported_keys_are_listed() {
    let mut seed = Seed::new(&input());
    assert!(seed.read().expect("our own").user.other.is_empty());
    seed.user_data = "#cloud-config\n{\"hostname\": \"n1\", \"packages\": [\"vim\"]}".to_owned();
    let user = seed.read().expect("it has all that is needed").user;
    assert_eq!(user.other.keys().collect::<Vec<_>>(), ["packages"]);
}

#[test]
fn parse_errors_name_the_position_and_quote_nothing() {
    let good = Seed::new(&input());
    let refused = |change: &dyn Fn(&mut Seed)| {
        let mut seed = good.clone();
        change(&mut seed);
        seed.read().expect_err("it is wrong").to_string()
    };
    let wrong_key = refused(&|seed| seed.user_data = seed.user_data.replace("\"content\"", "\"encoding\""));
    assert!(wrong_key.starts_with("user-data, line "), "{wrong_key}");
    assert!(!wrong_key.contains("localhost"), "{wrong_key}");
    let cut = refused(&|seed| seed.meta_data.truncate(20));
    assert!(cut.contains("meta-data, line 2, column") && cut.contains("unexpected end of document"), "{cut}");
    let script = refused(&|seed| seed.user_data = "#!/bin/sh\n".to_owned());
    assert_eq!(script, InvalidSeedDocument::NoCloudConfig.to_string());
    assert!(Seed::from_context(b"{}").is_err());
}

#[test]
fn secrets_do_not_print() {
    let seed = Seed::new(&input());
    let printed = format!("{:?} {seed:?} {:?}", input(), seed.read().expect("our own"));
    assert!(!printed.contains("secret"), "{printed}");
    // Control: the seed does contain it.
    assert!(seed.user_data.contains("secret"));
}

#[test]
fn with_an_infiniband_adapter_ip_runs_over_ib0_and_mpi_over_rdma() {
    let seed = Seed::new(&SeedInput { adapter: GuestAdapter::Infiniband, ..input() });
    let documents = seed.read().expect("our own");
    let (name, device) = documents.network.ethernets.iter().next().expect("a device");
    assert_eq!((name.as_str(), &device.matching, &device.set_name), ("ib0", &None, &None));
    assert_eq!(device.addresses, ["10.128.0.1/16"]);
    assert!(documents.user.runcmd.iter().any(|command| command.contains(&"heddle_hca".to_owned())));
    let root = tempfile::tempdir().expect("a folder");
    apply::write_files(root.path(), &documents.user).expect("written");
    let read = |file: &str| fs::read_to_string(root.path().join(file)).expect("it is there");
    assert!(read("etc/environment").contains("\nUCX_NET_DEVICES=heddle0:1\n"));
    let parameters = read("etc/openmpi/openmpi-mca-params.conf");
    assert!(parameters.contains("\npml = ucx\n") && parameters.contains("oob_tcp_if_include = ib0\n"));
    assert_eq!(read("etc/modules-load.d/heddle.conf").lines().last(), Some("rdma_ucm"));
    let context = ContextFile::read(&read("etc/heddle/context.json")).expect("as written");
    assert_eq!(context.device.as_deref(), Some("ib0"));
    // The control: nothing of it with an Ethernet card.
    let seed = Seed::new(&input());
    assert!(!seed.user_data.contains("UCX_NET_DEVICES") && !seed.user_data.contains("modprobe"));
    assert!(seed.network_config.contains("\"eth0\""));
}
