//! Attachments to the emulated fabric, against a fake emulation that restarts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use controller_api::agent::PartitionKeySpec;
use controller_api::cluster::CpuMode;
use ib_wire::{Guid, Pkey};
use node_agent::fabric::{Attachment, FabricAttachments};
use node_agent::state_dir::StateDir;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const SOON: Duration = Duration::from_secs(90);

/// Functions of the fake emulation, by node, port and number.
type Functions = Arc<Mutex<BTreeMap<String, Value>>>;

fn emulate(control: &Path, functions: &Functions) -> JoinHandle<()> {
    let _ = std::fs::remove_file(control);
    let (listener, functions) = (UnixListener::bind(control).unwrap(), Arc::clone(functions));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            let request: Value = serde_json::from_str(&line).unwrap();
            let answer = answer(&request, &functions);
            // What the emulation says first in a view follows the reply at once.
            let first = if answer["ok"] == "opened" { "first" } else { "" };
            stream.write_all(format!("{answer}\n{first}").as_bytes()).await.unwrap();
            if answer["ok"] == "opened" {
                tokio::spawn(async move {
                    let (mut from, mut to) = tokio::io::split(stream);
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        }
    })
}

fn answer(request: &Value, functions: &Functions) -> Value {
    let mut functions = functions.lock().unwrap();
    let key = format!("{} {} {}", request["node"], request["port"], request["function"]);
    match request["command"].as_str().unwrap() {
        "attach" if request["node"] == "stranger" => json!({ "error": "no node has that name" }),
        "attach" => {
            functions.insert(key, request.clone());
            json!({ "ok": "attached" })
        }
        "attach-adapter" => {
            let mut status = request.clone();
            status["packets"] = json!({});
            functions.insert(key, status);
            json!({ "ok": "attached" })
        }
        "adapter-view" if functions.get(&key).is_some_and(|function| function["guid"].is_string()) => {
            json!({ "ok": "opened" })
        }
        "adapter-view" => json!({ "error": "no InfiniBand adapter" }),
        "detach" => {
            functions.remove(&key).expect("only what is there is detached");
            json!({ "ok": "detached" })
        }
        listed @ ("functions" | "adapters") => {
            let is_listed = |function: &&Value| function["guid"].is_string() == (listed == "adapters");
            json!({ "ok": functions.values().filter(is_listed).collect::<Vec<_>>() })
        }
        other => panic!("{other}"),
    }
}

struct World {
    scratch: TempDir,
    fabric: Arc<FabricAttachments>,
    state_dir: Arc<StateDir>,
    functions: Functions,
}

fn world() -> World {
    let scratch = TempDir::new().unwrap();
    let state_dir = StateDir::open(&scratch.path().join("state"), &scratch.path().join("r")).unwrap();
    let state_dir = Arc::new(state_dir);
    let fabric = Arc::new(FabricAttachments::new(scratch.path().join("control"), Arc::clone(&state_dir)));
    let keeper = Arc::clone(&fabric);
    tokio::spawn(async move { keeper.run().await });
    World { scratch, fabric, state_dir, functions: Functions::default() }
}

impl World {
    fn control(&self) -> PathBuf {
        self.scratch.path().join("control")
    }

    fn attachment(&self, number: u8, node: &str) -> Attachment {
        let order = crate::common::vm_order(number, CpuMode::Shared);
        let files = self.state_dir.vm(order.id);
        let (guest, fabric) = (files.nic_guest, files.nic_fabric);
        let (node, adapter, sl) =
            (crate::common::name(node), order.adapter.clone(), order.context.sl.unwrap());
        Attachment { node, adapter, sl, guest, fabric }
    }

    fn count(&self) -> usize {
        self.functions.lock().unwrap().len()
    }

    async fn until_count(&self, wanted: usize) {
        let reached = async {
            while self.count() != wanted {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(SOON, reached)
            .await
            .unwrap_or_else(|_| panic!("{} functions instead of {wanted}", self.count()));
    }
}

#[tokio::test]
async fn attach_and_detach_complete_before_they_return() {
    let world = world();
    emulate(&world.control(), &world.functions);
    let id = crate::common::vm_order(1, CpuMode::Shared).id;
    world.fabric.attach(id, world.attachment(1, "one")).await;
    assert_eq!(world.count(), 1);
    assert_eq!(world.fabric.attach_error(id), None);
    world.fabric.detach(id).await;
    assert_eq!(world.count(), 0);
}

#[tokio::test]
async fn an_infiniband_adapter_is_attached_with_its_guid_and_keys_and_replaced_when_they_change() {
    let world = world();
    emulate(&world.control(), &world.functions);
    let id = crate::common::vm_order(1, CpuMode::Shared).id;
    let mut attachment = world.attachment(1, "one");
    attachment.adapter.guid = Guid::from_wire(0xa1);
    world.fabric.attach(id, attachment.clone()).await;
    let held = || world.functions.lock().unwrap().values().next().unwrap().clone();
    assert_eq!(held()["guid"], "0x00000000000000a1");
    let own = json!(attachment.adapter.pkey);
    assert_eq!(held()["pkeys"], json!([own, 0x7fff]), "the key of the cluster first");
    // A key more.
    let pkey = Pkey::from_wire(0x8333).unwrap();
    attachment.adapter.inner_keys = vec![PartitionKeySpec { pkey, group: None }];
    world.fabric.attach(id, attachment.clone()).await;
    assert_eq!(held()["pkeys"], json!([own, 0x7fff, 0x8333]));
    assert_eq!(world.count(), 1);
    // Nothing to do: the same stays.
    world.functions.lock().unwrap().values_mut().for_each(|function| function["mark"] = json!(1));
    world.fabric.attach(id, attachment).await;
    assert_eq!(held()["mark"], 1);
    world.fabric.detach(id).await;
    assert_eq!(world.count(), 0);
}

#[tokio::test]
async fn a_restarted_emulation_is_reconciled() {
    let world = world();
    let first = emulate(&world.control(), &world.functions);
    let id = crate::common::vm_order(1, CpuMode::Shared).id;
    world.fabric.attach(id, world.attachment(1, "one")).await;
    first.abort();
    // The restarted one has a stale attachment of this agent and one of another agent.
    let stray = world.attachment(2, "two");
    let theirs = json!({ "guest": "/elsewhere/nic.guest", "node": "x", "port": 1, "function": 1,
        "mac": stray.adapter.mac, "pkey": stray.adapter.pkey, "group": null });
    let ours = json!({ "guest": stray.guest, "node": "two", "port": 1, "function": 2,
        "mac": stray.adapter.mac, "pkey": stray.adapter.pkey, "group": null });
    *world.functions.lock().unwrap() =
        BTreeMap::from([("\"two\" 1 2".to_owned(), ours), ("theirs".to_owned(), theirs)]);
    emulate(&world.control(), &world.functions);
    let settled = async {
        loop {
            let keys: Vec<String> = world.functions.lock().unwrap().keys().cloned().collect();
            if keys == ["\"one\" 1 1", "theirs"] {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, settled).await.expect("in time");
}

#[tokio::test]
async fn attach_errors_are_reported() {
    let world = world();
    let id = crate::common::vm_order(1, CpuMode::Shared).id;
    world.fabric.attach(id, world.attachment(1, "stranger")).await;
    assert_eq!(world.fabric.attach_error(id).unwrap(), "the emulated fabric does not answer");
    emulate(&world.control(), &world.functions);
    let mut status = world.fabric.status();
    timeout(SOON, status.wait_for(|status| status.is_reachable)).await.unwrap().unwrap();
    assert_eq!(
        world.fabric.attach_error(id).unwrap(),
        "the emulated fabric rejects its adapter: no node has that name"
    );
    let other = crate::common::vm_order(2, CpuMode::Shared).id;
    world.fabric.attach(other, world.attachment(2, "two")).await;
    world.until_count(1).await;
    assert_eq!(world.fabric.attach_error(other), None);
}

#[tokio::test]
async fn the_view_of_an_adapter_is_a_stream_of_the_emulation() {
    let world = world();
    emulate(&world.control(), &world.functions);
    let [with, without] = [1, 2].map(|number| crate::common::vm_order(number, CpuMode::Shared).id);
    let mut attachment = world.attachment(1, "one");
    attachment.adapter.guid = Guid::from_wire(0xa1);
    world.fabric.attach(with, attachment).await;
    world.fabric.attach(without, world.attachment(2, "two")).await;
    let mut stream = world.fabric.open_view(with).await.unwrap();
    stream.write_all(b" and back").await.unwrap();
    let mut received = [0; 14];
    stream.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"first and back", "nothing after the reply is lost");
    let refused = world.fabric.open_view(without).await.unwrap_err();
    assert_eq!(refused.to_string(), "it has no InfiniBand adapter on the fabric");
}
