//! Virtual clusters of real virtual machines on an emulated fabric, and what happens when parts of the site are killed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod site;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;
use serde_json::{Value, json};
use site::{Site, TENANT, eventually};

/// Kills of the drill; parts and operations take turns, so that each meets each.
const KILLS: usize = 24;

/// MiB of a disk with space for one overlay of the image (1,235 MiB), the reserve of the host (512), and logs.
const DISK_MIB: u32 = 2048;

/// Instants of the drill.
const SEED: u64 = 20_260_817;

#[test]
fn killed_programs_recover_and_ready_vms_keep_running() {
    let site = Site::up();
    let mut random = Pcg64::seed_from_u64(SEED);
    site.order("bystander", &["--nodes", "1"]);
    site.wait_ready("bystander", 1);
    let boot = site.boot_id("bystander", 1);
    let mut partitions = BTreeSet::new();
    for kill in 0..KILLS {
        let part = ["controller", "sm", "sim", "agent"][kill % 4];
        let operation = ["create", "resize", "delete"][kill / 4 % 3];
        let name = format!("c{}", kill % 4);
        match operation {
            "create" => site.order(&name, &["--nodes", "1"]),
            "resize" => site.resize(&name, 2),
            _ => site.delete(&name),
        }
        // From before anything was done about it until after the virtual machine starts.
        std::thread::sleep(Duration::from_millis(random.random_range(0..3000)));
        site.kill(part);
        match operation {
            "create" => site.wait_ready(&name, 1),
            "resize" => site.wait_ready(&name, 2),
            _ => site.wait_gone(&name),
        }
        println!("kill {}: {part} during {operation}", kill + 1);
        if operation == "create" {
            let partition = site.cluster(&name).unwrap()["partition"].as_u64().unwrap();
            assert!(partitions.insert(partition), "partition {partition:#x} was used before");
        }
        if operation == "resize" {
            site.exec(&name, 1, &["ping", "-c", "3", "-W", "20", &format!("{name}-2")]);
        }
    }
    assert_eq!(site.boot_id("bystander", 1), boot, "a virtual machine of a ready cluster was started again");
    site.delete("bystander");
    site.wait_gone("bystander");
    assert_nothing_is_left(&site);
}

#[test]
fn a_site_that_was_stopped_comes_back_with_its_clusters() {
    let mut site = Site::up();
    site.order("one", &["--nodes", "2"]);
    site.wait_ready("one", 2);
    let boot = site.boot_id("one", 1);
    site.exec("one", 1, &["touch", "/root/kept"]);
    site.exec("one", 1, &["sync"]);
    site.stop();
    assert!(site.machines().is_empty(), "stopped with the site");
    site.start();
    site.wait_ready("one", 2);
    assert_ne!(site.boot_id("one", 1), boot, "it was really stopped");
    assert_eq!(site.exec("one", 1, &["ls", "/root/kept"]), "/root/kept");
    let ring = site.exec("one", 1, &["mpirun", "-np", "2", "mpi-ring"]);
    assert!(!ring.is_empty());
    site.delete("one");
    site.wait_gone("one");
    assert_nothing_is_left(&site);
}

#[test]
fn a_dedicated_vm_owns_its_core_and_memory() {
    let site = Site::up();
    site.order("own", &["--nodes", "1", "--mode", "dedicated"]);
    site.wait_ready("own", 1);
    let machines = site.machines();
    let [machine] = machines.as_slice() else { panic!("one machine: {machines:?}") };
    let threads = machine.threads();
    let vcpu: Vec<_> = threads.iter().filter(|(name, _)| name.starts_with("CPU 0")).collect();
    let [(_, core)] = vcpu.as_slice() else { panic!("one virtual core: {threads:?}") };
    assert!(core.parse::<u32>().is_ok(), "{core} is not one core");
    let others = threads.iter().filter(|(name, _)| !name.starts_with("CPU "));
    for (name, cores) in others {
        assert_ne!(cores, core, "{name} runs on the core of the virtual one");
    }
    let resident = machine.status_kb("VmRSS") + machine.status_kb("HugetlbPages");
    assert!(resident >= 384 * 1024, "{resident} kB of 384 MiB are resident");
    let wish =
        ["cluster", "create", "more", "--tenant", TENANT, "--nodes", "1", "--cores", "1", "--memory", "384M"];
    let refused =
        site.attempt(&[&wish[..], &["--image", "debian-mpi", "--mode", "dedicated", "--no-wait"]].concat());
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success());
    assert!(error.contains("dedicated cores each do not fit: 0 of 1"), "{error}");
    assert!(site.cluster("more").is_none(), "nothing is left of it");
    // The control: shared ones still fit.
    site.order("shared", &["--nodes", "1"]);
    site.wait_ready("shared", 1);
}

#[test]
fn a_full_disk_rejects_new_vms_and_pauses_writing_ones() {
    // Space for one disk of the image besides the reserve of the host.
    let mut site = Site::up();
    site.use_small_disk(DISK_MIB);
    site.order("first", &["--nodes", "1"]);
    site.wait_ready("first", 1);
    let directories = site.machine_directories();
    let wish = [
        "cluster", "create", "second", "--tenant", TENANT, "--nodes", "1", "--cores", "1", "--memory", "384M",
    ];
    let refused = site.attempt(&[&wish[..], &["--image", "debian-mpi", "--wait"]].concat());
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success());
    // Its tenant reads the same text, so the free space of the host is reported to operators only.
    assert!(error.contains("its host cannot run it"), "{error}");
    let events = site.run(&["event", "list"]);
    let why = events.lines().find(|line| line.contains("MiB, but only"));
    println!("{}", why.unwrap_or_else(|| panic!("operators are not told why: {events}")).trim());
    site.delete("second");
    site.wait_gone("second");
    assert_eq!(site.machine_directories(), directories, "nothing is left of it");
    assert_eq!(site.functions().len(), 1);

    // Another program fills the disk before a guest writes much. The guest may be paused from its first write on, so it
    // gets its command before.
    let boot = site.boot_id("first", 1);
    let writes = "(sleep 10; dd if=/dev/urandom of=/root/big bs=1M count=64 conv=fsync && touch /root/done) \
                  >/dev/null 2>&1 </dev/null &";
    site.exec("first", 1, &["sh", "-c", writes]);
    let filler = site.disks().join("filler");
    let status =
        Command::new("dd").args(["if=/dev/zero", "bs=1M"]).arg(format!("of={}", filler.display())).output();
    assert!(!status.unwrap().status.success(), "written until nothing more fitted");
    let reason = || {
        let cluster = site.cluster("first").unwrap();
        cluster["nodes"][0]["reason"].as_str().unwrap_or_default().to_owned()
    };
    eventually("the guest stands still, and is said to", || reason().contains("its disk cannot be written"));
    fs::remove_file(&filler).unwrap();
    eventually("it goes on by itself", || reason().is_empty());
    site.wait_ready("first", 1);
    eventually("it has written everything", || {
        site.exec("first", 1, &["sh", "-c", "ls /root/done 2>/dev/null || true"]) == "/root/done"
    });
    assert_eq!(site.boot_id("first", 1), boot, "it was not started again");
    // The control: with the first gone there is room for another.
    site.delete("first");
    site.wait_gone("first");
    site.order("second", &["--nodes", "1"]);
    site.wait_ready("second", 1);
    site.delete("second");
    site.wait_gone("second");
    assert_nothing_is_left(&site);
}

#[test]
fn stock_cloud_init_takes_the_same_seed() {
    let site = Site::up();
    add_image(&site, "cloud", |manifest| {
        let line = format!("{} init=/sbin/init", manifest["command_line"].as_str().unwrap());
        manifest["command_line"] = json!(line);
    });
    let all = [("ethernet", "eth0"), ("infiniband", "ib0")];
    for (adapter, _) in all {
        site.order(adapter, &["--nodes", "1", "--memory", "768M", "--image", "cloud", "--adapter", adapter]);
    }
    for (name, device) in all {
        site.wait_ready(name, 1);
        assert_eq!(site.exec(name, 1, &["cat", "/proc/1/comm"]), "systemd");
        assert_eq!(site.exec(name, 1, &["hostname"]), format!("{name}-1"));
        let hosts = site.exec(name, 1, &["cat", "/etc/hosts"]);
        assert!(hosts.contains("10.128.0.1") && hosts.contains(&format!("{name}-1")), "{hosts}");
        assert!(site.exec(name, 1, &["ip", "-4", "addr", "show", device]).contains("10.128.0.1/16"));
        let status = site.exec(name, 1, &["cat", "/run/cloud-init/result.json"]);
        assert!(status.contains("DataSourceNoCloud"), "{status}");
    }
}

#[test]
fn a_stock_image_is_ready_with_an_unchecked_network() {
    let site = Site::up();
    add_image(&site, "bare", |manifest| manifest["guest"] = json!(false));
    site.order("bare", &["--nodes", "2", "--image", "bare"]);
    site.wait_ready("bare", 2);
    assert_eq!(site.cluster("bare").unwrap()["network"], "unchecked");
    let list = site.run(&["cluster", "list"]);
    assert!(list.contains("ready (network unchecked)"), "{list}");
}

/// Makes the image known under another name, with a changed description.
fn add_image(site: &Site, name: &str, change: impl FnOnce(&mut Value)) {
    let directory = site.scratch.path().join(name);
    let manifest = fs::read_to_string(site.image.join("image.json")).unwrap();
    let mut manifest: Value = serde_json::from_str(&manifest).unwrap();
    fs::create_dir(&directory).unwrap();
    for part in ["root", "kernel", "initrd"] {
        let file = manifest[part]["file"].as_str().unwrap();
        fs::hard_link(site.image.join(file), directory.join(file))
            .or_else(|_| fs::copy(site.image.join(file), directory.join(file)).map(drop))
            .unwrap();
    }
    change(&mut manifest);
    fs::write(directory.join("image.json"), serde_json::to_vec(&manifest).unwrap()).unwrap();
    site.run(&["image", "add", name, directory.to_str().unwrap()]);
}

/// Fabrics on which clusters have to work, by the arguments of `heddle up`.
/// The last is a file: a fat-tree of 12-port switches with cables missing.
const SHAPES: [&str; 6] = ["4", "16", "36", "100", "324", "file"];

/// The [`SHAPES`] that the drill uses, such as `36,file`; all of them if it is not set.
const SHAPES_VARIABLE: &str = "HEDDLE_DRILL_SHAPES";

#[test]
fn clusters_of_both_classes_work_on_fabrics_of_every_shape() {
    let chosen = std::env::var(SHAPES_VARIABLE).unwrap_or_default();
    let is_chosen = |shape: &str| chosen.is_empty() || chosen.split(',').any(|one| one == shape);
    println!("hosts | class | phase | network | ping | MPI | broadcast | order to ready");
    println!("---|---|---|---|---|---|---|---");
    for shape in SHAPES.into_iter().filter(|shape| is_chosen(shape)) {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("fabric.topo");
        let site = if shape == "file" {
            let made = ["topology", "generate", "fat-tree", "--hosts", "20", "--radix", "12"];
            let more = ["--missing-links", "2", "--seed", "7", "-o", file.to_str().unwrap()];
            let status = Command::new(site::HEDDLE).args(made).args(more).status().unwrap();
            assert!(status.success(), "a topology is made");
            Site::up_with(&["--topology", file.to_str().unwrap(), "--host-cores", "1"])
        } else {
            Site::up_with(&["--hosts", shape, "--host-cores", "1"])
        };
        let classes = [("best-effort", &[][..]), ("guaranteed", &["--bandwidth", "500M"][..])];
        let ordered = std::time::Instant::now();
        for (class, more) in classes {
            site.order(class, &[&["--nodes", "2"], more].concat());
        }
        let seconds = classes.map(|(class, _)| {
            site.wait_ready(class, 2);
            ordered.elapsed().as_secs()
        });
        for ((class, _), seconds) in classes.into_iter().zip(seconds) {
            let row = try_cluster(&site, class);
            println!("{shape} | {class} | {row} | {seconds} s");
        }
        for (class, _) in classes {
            site.delete(class);
            site.wait_gone(class);
        }
        assert_nothing_is_left(&site);
    }
}

/// Checks a ready cluster of two nodes, and returns the results as a row of a table.
fn try_cluster(site: &Site, name: &str) -> String {
    let cluster = site.cluster(name).unwrap();
    assert_eq!((&cluster["phase"], &cluster["network"]), (&json!("ready"), &json!("carries")), "{cluster}");
    let hosts: BTreeSet<&str> =
        cluster["nodes"].as_array().unwrap().iter().filter_map(|node| node["host"].as_str()).collect();
    assert_eq!(hosts.len(), 2, "its nodes are on two hosts: {cluster}");
    let ping = site.exec(name, 1, &["ping", "-c", "3", "-W", "20", &format!("{name}-2")]);
    assert!(ping.contains("3 received"), "{ping}");
    let ring = site.exec(name, 1, &["mpirun", "-np", "2", "mpi-ring"]);
    assert!(ring.contains(": ok"), "{ring}");
    // One node counts frames with a mark while the other broadcasts some.
    let count = "frame-count --mark drill --seconds 30 >/root/heard 2>&1 & \
                 while ! grep -q listening /root/heard; do sleep 0.1; done";
    site.exec(name, 2, &["sh", "-c", &format!("({count}) </dev/null >/dev/null 2>&1")]);
    site.exec(name, 1, &["frame-send", "--dst", "ff:ff:ff:ff:ff:ff", "--count", "20", "--mark", "drill"]);
    let mut heard = 0;
    eventually("the listener has ended", || {
        let text = site.exec(name, 2, &["cat", "/root/heard"]);
        let marked = text.lines().find_map(|line| line.split_once(" marked ")?.1.trim().parse().ok());
        heard = marked.unwrap_or(0);
        marked.is_some()
    });
    assert!(heard > 0, "no broadcast arrived");
    format!("ready | carries | 3 of 3 | ok | {heard} of 20")
}

#[test]
fn a_broken_network_is_located_and_not_ready() {
    let site = Site::up_with(&["--hosts", "4", "--host-cores", "1"]);
    site.order("mute", &["--nodes", "2"]);
    let mut host = String::new();
    eventually("it is placed", || {
        let cluster = site.cluster("mute").unwrap();
        host = cluster["nodes"][1]["host"].as_str().unwrap_or_default().to_owned();
        !host.is_empty()
    });
    // The link of the second node's host loses data while management passes: devices and plan look sound.
    site.sim_ctl(&["loss", "1", &host, "1", "--data"]);
    eventually("it is told that its network does not carry", || {
        let cluster = site.cluster("mute").unwrap();
        assert_ne!(cluster["phase"], "ready", "{cluster}");
        cluster["network"] == "broken"
    });
    let cluster = site.cluster("mute").unwrap();
    println!("{}", site.run(&["cluster", "show", "mute", "--tenant", TENANT]));
    let reason = cluster["reason"].as_str().unwrap();
    assert!(reason.starts_with("the network check fails: mute-1 does not reach mute-2"), "{reason}");
    assert_eq!(site.json(&["fabric", "verify"])["findings"], json!([]), "nothing else notices");
    // Frames of the first node stop where its switch sends them to the second, those of the second at its own port.
    let stops: Vec<&Value> = cluster["nodes"].as_array().unwrap().iter().map(|node| &node["stop"]).collect();
    assert!(stops.iter().all(|stop| stop["reason"] == "injected"), "{stops:?}");
    let is_at = |stop: &Value, kind: &str| stop["node"].as_str().is_some_and(|node| node.starts_with(kind));
    assert!(is_at(stops[0], "S-") && is_at(stops[1], "H-"), "{stops:?}");
    let events = site.run(&["event", "list"]);
    println!("{events}");
    assert!(
        events.contains("cluster.network-broken") && events.contains("packets are dropped: mute-1 at"),
        "{events}"
    );
    // Control: when the link works again, the cluster becomes ready by itself.
    site.sim_ctl(&["loss", "0", &host, "1", "--data"]);
    site.wait_ready("mute", 2);
    assert_eq!(site.cluster("mute").unwrap()["network"], "carries");
    site.exec("mute", 1, &["ping", "-c", "3", "-W", "20", "mute-2"]);
}

/// A second tenant.
const OTHER: &str = "green";

/// A node of a tenant.
#[derive(Clone, Copy)]
struct NodeOf {
    tenant: &'static str,
    cluster: &'static str,
    number: u32,
}

impl NodeOf {
    const fn new(tenant: &'static str, cluster: &'static str, number: u32) -> Self {
        Self { tenant, cluster, number }
    }

    fn attempt(self, site: &Site, command: &str) -> std::process::Output {
        let number = self.number.to_string();
        let start =
            ["cluster", "exec", self.cluster, "--tenant", self.tenant, "--node", &number, "--", "sh", "-c"];
        site.attempt(&[&start[..], &[command]].concat())
    }

    /// Output of a shell command that succeeds.
    fn sh(self, site: &Site, command: &str) -> String {
        let output = self.attempt(site, command);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {}: {command}: {error}", self.cluster, self.number);
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Starts a program that says when it listens, and leaves it in the background; its output is in a file of the node.
    fn listen(self, site: &Site, program: &str, file: &str) {
        self.sh(site, &format!("({program} >{file} 2>&1 &) </dev/null >/dev/null 2>&1"));
        eventually("it listens", || self.sh(site, &format!("cat {file}")).contains("listening"));
    }

    /// Waits until the output of such a program has a word at its end, and returns the number after it.
    fn counted(self, site: &Site, file: &str, word: &str) -> u64 {
        let mut found = None;
        eventually("the listener has ended", || {
            let text = self.sh(site, &format!("cat {file}"));
            found = word_after(text.lines().last().unwrap_or_default(), word);
            found.is_some()
        });
        found.unwrap().parse().unwrap()
    }
}

/// The word after another one.
fn word_after(text: &str, name: &str) -> Option<String> {
    text.split_whitespace().skip_while(|word| *word != name).nth(1).map(str::to_owned)
}

#[test]
fn four_machines_behind_one_port_are_two_clusters() {
    let site = Site::up_with(&["--hosts", "1", "--host-cores", "4"]);
    site.add_evaluation_image();
    site.run(&["tenant", "create", OTHER]);
    for (tenant, name) in [(TENANT, "one"), (OTHER, "two")] {
        let wish = [
            "cluster", "create", name, "--tenant", tenant, "--nodes", "2", "--cores", "1", "--memory", "384M",
        ];
        site.run(
            &[&wish[..], &["--image", "debian-evaluation", "--adapter", "infiniband", "--no-wait"]].concat(),
        );
    }
    site.wait_ready("one", 2);
    site.wait_ready("two", 2);
    let adapters: Vec<Value> = serde_json::from_str(&site.sim_ctl(&["adapters"])).unwrap();
    let ports: BTreeSet<String> =
        adapters.iter().map(|it| format!("{} {}", it["node"], it["port"])).collect();
    let numbers: BTreeSet<u64> = adapters.iter().map(|it| it["function"].as_u64().unwrap()).collect();
    assert_eq!(
        (adapters.len(), ports.len(), numbers.len()),
        (4, 1, 4),
        "four functions of one port: {adapters:?}"
    );

    // Inside each cluster: IPoIB, rdma_cm, verbs, MPI, and forged packets between its nodes.
    for (tenant, name) in [(TENANT, "one"), (OTHER, "two")] {
        let check = ["cluster", "check", name, "--tenant", tenant, "-o", "json"];
        let groups = ["network", "rdma-cm", "verbs", "isolation"].map(|group| ["--only", group]);
        let output = site.attempt(&[&check[..], groups.as_flattened()].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let report: Value = serde_json::from_str(&text).unwrap();
        assert!(output.status.success(), "{text}");
        assert_eq!(
            (&report["failed"], &report["not_in_image"], &report["skipped"]),
            (&json!(0), &json!(0), &json!(0))
        );
        println!("{name}: {} checks passed", report["passed"]);
        let ring = NodeOf::new(tenant, name, 1).sh(&site, "mpirun -np 2 mpi-ring");
        assert!(ring.contains(": ok"), "{ring}");
    }

    let [sender, peer] = [1, 2].map(|number| NodeOf::new(TENANT, "one", number));
    let stranger = NodeOf::new(OTHER, "two", 1);
    let dropped = || {
        let all: Vec<Value> = serde_json::from_str(&site.sim_ctl(&["adapters"])).unwrap();
        let drops = all.iter().flat_map(|it| it["packets"]["drops"].as_object().unwrap().values());
        drops.map(|count| count.as_u64().unwrap()).sum::<u64>()
    };
    // Datagrams to queue pairs. All have the same LID: the number of the queue pair says whose it is.
    for receiver in [stranger, peer] {
        let is_own = receiver.tenant == TENANT;
        receiver.listen(&site, "ud-count --mark drill --seconds 20", "/root/datagrams");
        let heard = receiver.sh(&site, "cat /root/datagrams");
        let [lid, qpn, gid] = ["lid", "qpn", "gid"].map(|name| word_after(&heard, name).unwrap());
        assert_eq!(sender.sh(&site, "printf %d $(cat /sys/class/infiniband/heddle0/ports/1/lid)"), lid);
        let before = dropped();
        for options in [String::new(), format!(" --gid {gid}")] {
            sender.sh(&site, &format!("ud-send --lid {lid} --qpn {qpn} --count 10 --mark drill{options}"));
        }
        let marked = receiver.counted(&site, "/root/datagrams", "marked");
        println!("datagrams to {} {}: {marked} of 20 arrived", receiver.cluster, receiver.number);
        assert_eq!(marked > 0, is_own, "{heard}");
        assert!(is_own || dropped() >= before + 20, "they are counted");
    }
    // Packets past the driver, with the P_Key of the other cluster or with its own, to all queue pairs of the stranger.
    stranger.listen(&site, "packet-count --mark raw --seconds 30", "/root/packets");
    peer.listen(&site, "packet-count --mark raw --seconds 30", "/root/packets");
    let heard = stranger.sh(&site, "cat /root/packets");
    let [lid, qpn, gid, key] =
        ["lid", "first-qpn", "gid", "pkey"].map(|name| word_after(&heard, name).unwrap());
    let own = peer.sh(&site, "cat /root/packets");
    let (peer_qpn, peer_gid) = (word_after(&own, "first-qpn").unwrap(), word_after(&own, "gid").unwrap());
    let before = dropped();
    let to = format!("packet-send --dlid {lid} --qpn {qpn} --count 10 --mark raw-drill");
    let forged =
        ["", &format!("--pkey {key}"), &format!("--sqp {qpn}"), &format!("--sgid {gid} --dgid {gid}")];
    for options in forged {
        sender.sh(&site, &format!("{to} {options}"));
    }
    // What cannot be told apart by LID or P_Key: the source that a packet to the own cluster names.
    let within = format!("packet-send --dlid {lid} --qpn {peer_qpn} --count 10 --mark raw-drill");
    sender.sh(&site, &format!("{within} --sqp {qpn}"));
    sender.sh(&site, &format!("{within} --sgid {gid} --dgid {peer_gid}"));
    eventually("60 drops are counted", || dropped() >= before + 60);
    sender.sh(&site, &format!("{within} --mark raw-own"));
    assert_eq!(stranger.counted(&site, "/root/packets", "marked"), 0, "packets arrived in the other cluster");
    let arrived = peer.counted(&site, "/root/packets", "marked");
    assert!(arrived > 0, "control: packets to the own cluster arrive");
    let kinds = peer.sh(&site, "cat /root/packets");
    assert!(!kinds.contains("mark raw-drill "), "forged packets arrived in the own cluster: {kinds}");
    println!(
        "raw packets: 0 of 40 arrived in the other cluster, 0 of 20 forged and {arrived} of 10 others in the own one"
    );
    // IP: further addresses, as both clusters have the same ones; static neighbours, so that nothing is left to ARP.
    for (receiver, address) in [(stranger, "10.128.9.1"), (peer, "10.128.9.2")] {
        let is_own = receiver.tenant == TENANT;
        receiver.sh(&site, &format!("ip address add {address}/16 dev ib0"));
        let reaches = || sender.attempt(&site, &format!("ping -c 3 -W 5 {address}")).status.success();
        assert_eq!(reaches(), is_own, "ping to {} {}", receiver.cluster, receiver.number);
        let hardware = receiver.sh(&site, "cat /sys/class/net/ib0/address");
        let neighbour = format!("ip neighbour replace {address} lladdr {hardware} nud permanent dev ib0");
        sender.sh(&site, &neighbour);
        assert_eq!(reaches(), is_own, "ping to a static neighbour in {}", receiver.cluster);
    }
    site.delete("one");
    site.run(&["cluster", "delete", "two", "--tenant", OTHER, "--no-wait"]);
    site.wait_gone("one");
    site.wait_gone("two");
    assert_nothing_is_left(&site);
}

#[test]
fn opensm_in_a_machine_manages_the_view_of_its_cluster() {
    let site = Site::up_with(&["--hosts", "4", "--host-cores", "2"]);
    site.order("copper", &["--nodes", "4", "--adapter", "infiniband"]);
    site.order("tin", &["--nodes", "2", "--adapter", "infiniband"]);
    site.wait_ready("copper", 4);
    site.wait_ready("tin", 2);
    let node_lines = |text: &str| -> BTreeSet<String> {
        text.lines().filter(|line| line.starts_with("Ca")).map(str::to_owned).collect()
    };
    // Stock tools at the device of the kernel, with nothing around them.
    let sh = |cluster: &str, node: u32, script: &str| site.exec(cluster, node, &["sh", "-c", script]);
    let mut found = String::new();
    eventually("the view is open", || {
        found = sh("copper", 2, "unset LD_PRELOAD; ibnetdiscover 2>&1 || true");
        node_lines(&found).len() == 4
    });
    println!("{found}");
    let guid = sh("copper", 2, "ibstat -p");
    let own = node_lines(&found).into_iter().find(|line| line.contains("copper-2")).unwrap();
    assert!(own.contains(guid.trim_start_matches("0x")), "{own} is not {guid}");
    let physical: Vec<String> = site
        .json(&["host", "list"])
        .as_array()
        .unwrap()
        .iter()
        .map(|host| host["name"].as_str().unwrap().to_owned())
        .collect();
    let records = sh("copper", 3, "saquery 2>&1");
    for node in 1..=4 {
        assert!(records.contains(&format!("copper-{node}")), "{records}");
    }
    for text in [&found, &records] {
        assert!(!text.contains("tin-"), "another cluster: {text}");
        assert!(physical.iter().all(|host| !text.contains(host.as_str())), "hosts: {text}");
    }
    let of_default = sh("copper", 4, "sminfo 2>&1");
    assert!(of_default.contains("SMINFO_MASTER"), "{of_default}");
    println!("{}", sh("copper", 4, "smpquery nodedesc -D 0 2>&1; smpquery portinfo -D 0,1 2>&1 | head -5"));

    let view = |cluster: &str| site.json(&["view", "status", cluster, "--tenant", TENANT]);
    let others =
        sh("tin", 1, "ibnetdiscover 2>&1 | grep -v '^#'; sminfo 2>&1 | sed 's/activity count [0-9]*//'");
    let before = view("tin");
    sh("copper", 1, "opensm -B -d 2 -f /tmp/opensm.log >/tmp/opensm.out 2>&1 </dev/null");
    let mut status = Value::Null;
    eventually("the tables of opensm are in force", || {
        status = view("copper");
        status["managed_by"] == "copper-1" && status["in_force"].is_u64() && status["pending"] == false
    });
    println!("{status}");
    let log = sh("copper", 1, "cat /tmp/opensm.log");
    assert!(log.contains("SUBNET UP"), "{log}");
    let of_opensm = sh("copper", 4, "sminfo 2>&1");
    assert!(of_opensm.contains("SMINFO_MASTER"), "{of_opensm}");
    // sminfo prints no leading zeros.
    let leader = sh("copper", 1, "ibstat -p").trim_start_matches(['0', 'x']).to_owned();
    assert!(of_opensm.contains(&leader), "{of_opensm} is not {leader}");
    // Its subnet administration answers other machines, in several segments.
    let records = sh("copper", 3, "saquery 2>&1");
    for node in 1..=4 {
        assert!(records.contains(&format!("copper-{node}")), "{records}");
    }
    println!("{}", sh("copper", 1, "ibnetdiscover 2>&1 | grep -c ^Ca; saquery -p 2>&1 | grep -c PathRecord"));
    // The network of the machines goes on, and so do the tools of the other cluster.
    let ping = site.exec("copper", 1, &["ping", "-c", "3", "-W", "20", "copper-4"]);
    assert!(ping.contains("3 received"), "{ping}");
    assert_eq!(
        sh("tin", 1, "ibnetdiscover 2>&1 | grep -v '^#'; sminfo 2>&1 | sed 's/activity count [0-9]*//'"),
        others
    );
    assert_eq!(view("tin"), before);
    assert_eq!(site.json(&["fabric", "verify"])["findings"], json!([]));
    // When it ends, the default returns.
    sh("copper", 1, "pkill -x opensm");
    eventually("the default is back", || {
        let status = view("copper");
        status["managed_by"].is_null() && status["in_force"].is_null()
    });
    let again = sh("copper", 4, "sminfo 2>&1");
    assert!(again.contains("SMINFO_MASTER") && !again.contains(&leader), "{again}");
}

fn assert_nothing_is_left(site: &Site) {
    eventually("no virtual function is left", || site.functions().is_empty());
    assert_eq!(site.machine_directories(), BTreeSet::new());
    let machines = site.machines();
    assert!(machines.is_empty(), "{machines:?}");
    let fabric = site.json(&["fabric", "show"]);
    assert_eq!(fabric["partitions"], json!([]));
}
