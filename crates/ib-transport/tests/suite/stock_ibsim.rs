//! Compatibility with stock ibsim and libumad2sim: Heddle's clients with the stock server, stock clients with Heddle's server.
//!
//! Needs `ibsim` and `libumad2sim.so` (Debian: ibsim-utils, libumad2sim0); without them the tests fail.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ib_transport::ibsim::{DataMessage, IbsimClient, SocketName};
use ib_transport::{ClientRole, application_transaction};
use ib_wire::{Method, NodeInfo, PortState};

use crate::common::{LONG, Running, ask_node_info, guid, unique_name};

/// Two adapters on one switch.
const NET: &str = r#"
switchguid=0xa01
Switch 4 "S-0000000000000a01"
[1] "H-0000000000000b01"[1]
[2] "H-0000000000000c01"[1]

caguid=0xb01
Hca 1 "H-0000000000000b01"
[1] "S-0000000000000a01"[1]

caguid=0xc01
Hca 1 "H-0000000000000c01"
[1] "S-0000000000000a01"[2]
"#;

/// The adapter at port 1.
const NODE: &str = "H-0000000000000b01";

/// A stock server in a folder of its own. It lives as long as its standard input stays open.
struct Ibsim {
    process: Child,
    name: String,
    _folder: tempfile::TempDir,
}

impl Ibsim {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("net"), NET).unwrap();
        let name = unique_name();
        let process = Command::new("ibsim")
            .args(["-s", "net"])
            .env("IBSIM_SOCKNAME", &name)
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("ibsim is installed (Debian: ibsim-utils)");
        let mut ibsim = Self { process, name, _folder: folder };
        ibsim.wait_until_ready();
        ibsim
    }

    fn wait_until_ready(&mut self) {
        let name = SocketName::new(&self.name).unwrap();
        let start = Instant::now();
        while IbsimClient::connect(&name, "", ClientRole::Ordinary).is_err() {
            assert!(start.elapsed() < LONG, "ibsim did not start: {:?}", self.process.try_wait());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn client(&self, node: &str) -> IbsimClient {
        IbsimClient::connect(&SocketName::new(&self.name).unwrap(), node, ClientRole::Ordinary).unwrap()
    }

    /// Runs the example `node_info` by the ibsim protocol.
    fn node_info(&self, route: &str) -> Output {
        let device = format!("ibsim:{}@{}", self.name, NODE);
        Command::new(example("node_info")).args([&device, route]).output().unwrap()
    }
}

impl Drop for Ibsim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the example `node_info` by the kernel interface, which libumad2sim connects to a server.
fn node_info_by_umad(server: &str, node: &str, route: &str) -> Output {
    // The library writes its files into the current folder.
    let folder = tempfile::tempdir().unwrap();
    Command::new(example("node_info"))
        .args(["umad:0", route])
        .env("LD_PRELOAD", libumad2sim())
        .env("IBSIM_SOCKNAME", server)
        .env("SIM_HOST", node)
        .current_dir(folder.path())
        .output()
        .unwrap()
}

/// The path of the example, which cargo builds together with the tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not built", path.display());
    path
}

fn libumad2sim() -> PathBuf {
    let output = Command::new("ldconfig").arg("-p").output().ok();
    let cached = output.iter().flat_map(|output| BufReader::new(&output.stdout[..]).lines());
    let from_cache = cached
        .map_while(Result::ok)
        .filter_map(|line| line.split_once("=> ").map(|(_, path)| PathBuf::from(path.trim())))
        .find(|path| path.to_string_lossy().contains("libumad2sim.so"));
    let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    from_cache
        .into_iter()
        .chain(places.map(|place| Path::new(place).join("umad2sim/libumad2sim.so")))
        .find(|path| path.exists())
        .expect("libumad2sim.so is installed (Debian: libumad2sim0)")
}

fn assert_prints(output: &Output, expected: &str) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.trim() == expected, "{output:?}");
}

#[test]
fn the_client_attaches_to_the_stock_server() {
    let ibsim = Ibsim::start();
    let mut client = ibsim.client("H-0000000000000c01");
    let info = NodeInfo::decode(&client.node_info().unwrap()).unwrap();
    assert_eq!(info.node_guid.to_wire(), 0xc01);
    assert_eq!(client.guid().unwrap().map(|guid| guid.to_wire()), Some(0xc01));
    assert_eq!(client.gid().unwrap().guid(), client.guid().unwrap());
    assert_eq!(client.port().unwrap(), (None, PortState::Initialize));
    assert_eq!(client.pkeys().unwrap()[..2], [0xff, 0xff]);
    client.set_role(ClientRole::SubnetManager).unwrap();
    client.set_role(ClientRole::Ordinary).unwrap();
}

#[test]
fn batches_pass_the_stock_server() {
    let ibsim = Ibsim::start();
    let mut client = ibsim.client("");
    let requests: Vec<DataMessage> = (0..32).map(ask_node_info).collect();
    client.send_batch(&requests).unwrap();
    let mut answers = Vec::new();
    while answers.len() < requests.len() {
        assert!(client.receive_batch(&mut answers, LONG).unwrap() > 0);
    }
    assert!(answers.iter().all(|answer| answer.mad.method() == Method::GET_RESP));
    let numbers: Vec<u32> = answers.iter().map(|it| application_transaction(it.mad.transaction())).collect();
    assert_eq!(numbers, (0..32).collect::<Vec<u32>>());
}

#[test]
fn node_info_by_the_ibsim_protocol() {
    let ibsim = Ibsim::start();
    assert_prints(&ibsim.node_info("0"), "0x0000000000000b01 Adapter");
    assert_prints(&ibsim.node_info("0,1"), "0x0000000000000a01 Switch");
    assert_prints(&ibsim.node_info("0,1,2"), "0x0000000000000c01 Adapter");
}

#[test]
fn node_info_by_the_kernel_interface_through_libumad2sim() {
    let ibsim = Ibsim::start();
    assert_prints(&node_info_by_umad(&ibsim.name, NODE, "0"), "0x0000000000000b01 Adapter");
    assert_prints(&node_info_by_umad(&ibsim.name, NODE, "0,1"), "0x0000000000000a01 Switch");
    assert_prints(&node_info_by_umad(&ibsim.name, NODE, "0,1,2"), "0x0000000000000c01 Adapter");
}

#[test]
fn libumad2sim_attaches_to_our_server() {
    let server = Running::start();
    let output = node_info_by_umad(server.name.as_str(), "n5", "0");
    assert_prints(&output, &format!("{} Adapter", guid(5)));
    let counters = server.stop().1;
    assert_eq!((counters.datagrams_in, counters.datagrams_out), (1, 1));
    assert_eq!((counters.control_forged, counters.clients_reclaimed), (0, 0), "it disconnected");
}
