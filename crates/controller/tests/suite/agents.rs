//! Agents: the controller relies on what they acknowledged and reported, and on nothing else.

use std::sync::{Arc, Mutex};

use controller_api::host::NewHost;
use controller_api::operation::OperationState;
use controller_api::{ApiClient, ClientError, MemorySize};

use crate::site::{Conduct, Site, by_name, eventually, new_cluster};

/// Number of checks of a claim that must never be false.
const LOOKS: u32 = 100;

fn ready(site: &Site, client: &ApiClient, name: &str) {
    let operation = site.ask(client.cluster_create(&new_cluster(name, 1))).unwrap();
    let ended = site.wait(client, &operation);
    assert_eq!((ended.state, ended.reason), (OperationState::Done, None));
}

fn is_deleted(site: &Site, client: &ApiClient, name: &str) -> bool {
    match site.ask(client.cluster_show(&by_name(name))) {
        Ok(_) => false,
        Err(ClientError::Refused(problem)) => problem.problem.kind == "no-such-cluster",
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_cluster_is_deleted_after_agents_report_its_nodes_gone() {
    let site = Site::new(4);
    let blue = site.tenant("blue");
    // The agent accepts the spec and runs the virtual machine, but its answers are lost.
    site.world.lock().unwrap().conduct = Conduct::TakesAndIsSilent;
    site.ask(blue.cluster_create(&new_cluster("one", 1))).unwrap();
    eventually("it runs", || !site.world.lock().unwrap().vms.is_empty());
    let deletion = site.ask(blue.cluster_delete(&by_name("one"))).unwrap();
    for _ in 0..LOOKS {
        assert!(!is_deleted(&site, &blue, "one"), "its virtual machine runs");
        assert!(!site.world.lock().unwrap().members.is_empty(), "its port left the partition while it runs");
    }
    site.world.lock().unwrap().conduct = Conduct::Obeys;
    assert_eq!(site.wait(&blue, &deletion).state, OperationState::Done);
    assert!(is_deleted(&site, &blue, "one"));
    let world = site.world.lock().unwrap();
    assert!(world.vms.is_empty() && world.members.is_empty() && world.unsafe_vms.is_empty());
}

#[test]
fn a_restarted_controller_issues_newer_specs() {
    let mut site = Site::new(4);
    let blue = site.tenant("blue");
    ready(&site, &blue, "one");
    let newest =
        |site: &Site| site.world.lock().unwrap().specs.values().map(|it| it.version.precedence()).max();
    let before = newest(&site);
    site.kill();
    site.start();
    eventually("specs are sent again", || newest(&site) > before);
    let epochs: Vec<u64> = site.world.lock().unwrap().specs.values().map(|spec| spec.version.epoch).collect();
    assert!(epochs.iter().all(|epoch| *epoch == 1));
    let deletion = site.ask(site.operator().cluster_list()).unwrap();
    assert_eq!(deletion.len(), 1);
}

/// Copies the store while the controller is stopped.
fn copy(site: &Site) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in site.store_files().into_iter().filter(|file| file.exists()) {
        std::fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
    }
    copy
}

fn put_back(site: &Site, copy: &tempfile::TempDir) {
    for file in site.store_files() {
        let _ = std::fs::remove_file(&file);
        let kept = copy.path().join(file.file_name().unwrap());
        if kept.exists() {
            std::fs::copy(kept, file).unwrap();
        }
    }
}

/// A site whose store was restored from a copy; after the copy, `old` was deleted, `new` created and a token revoked.
struct Restored {
    site: Site,
    /// The token of the tenant of `old`, which was revoked.
    revoked: String,
    /// The token of the operator at the time of the copy.
    operator: String,
}

fn restored() -> Restored {
    let mut site = Site::new(4);
    let revoked = site.tenant_token("blue");
    ready(&site, &site.client(revoked.clone()), "old");
    site.stop();
    let copy = copy(&site);
    site.start();
    let red = site.tenant("red");
    ready(&site, &red, "new");
    let blue = site.client(revoked.clone());
    let deletion = site.ask(blue.cluster_delete(&by_name("old"))).unwrap();
    assert_eq!(site.wait(&blue, &deletion).state, OperationState::Done);
    let operator = site.operator();
    let tokens = site.ask(operator.token_list()).unwrap();
    let token = tokens.iter().find(|token| token.tenant.as_ref().is_some_and(|name| name.as_str() == "blue"));
    site.ask(operator.token_revoke(token.unwrap().id)).unwrap();
    site.stop();
    put_back(&site, &copy);
    let operator = std::fs::read_to_string(site.settings().operator_token_file).unwrap().trim().to_owned();
    Restored { site, revoked, operator }
}

fn is_unknown(site: &Site, token: &str) -> bool {
    match site.ask(site.client(token.to_owned()).cluster_list()) {
        Ok(_) => false,
        Err(ClientError::Refused(problem)) => problem.problem.status == 401,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_restored_older_store_is_rejected() {
    let Restored { mut site, revoked, operator } = restored();
    let vms = site.world.lock().unwrap().vms.clone();
    let said = site.refusal_to_start();
    assert!(said.contains("older copy") && said.contains("--accept-older-store"), "{said}");
    assert_eq!(said.matches("revision").count(), 2, "{said}");
    assert_eq!(site.world.lock().unwrap().vms, vms, "no spec was sent");

    site.ask(controller::recover(
        &site.settings().database,
        &site.settings().key_file,
        controller::AcceptedLoss::OlderStore,
    ))
    .unwrap();
    site.start();
    eventually("the operator has a new token", || {
        std::fs::read_to_string(site.settings().operator_token_file)
            .is_ok_and(|token| token.trim() != operator)
    });
    assert!(is_unknown(&site, &revoked) && is_unknown(&site, &operator), "no token of the copy is valid");
    let client = site.operator();
    // What was created after the copy keeps running, and no other cluster gets its partition number.
    let (id, number) = vms.iter().map(|(id, (_, vm))| (*id, vm.adapter.pkey.partition())).next().unwrap();
    eventually("it is listed as unlisted", || {
        let unlisted = site.ask(client.unlisted_list()).unwrap();
        unlisted.iter().any(|vm| vm.id == id && vm.label == "red/new-1" && vm.partitions == [number])
    });
    let green = site.tenant("green");
    ready(&site, &green, "next");
    let given = site.ask(green.cluster_show(&by_name("next"))).unwrap().partition.unwrap();
    assert_ne!(given, number);
    // What was deleted after the copy is not revived.
    {
        let world = site.world.lock().unwrap();
        assert!(world.vms.contains_key(&id));
        assert!(world.vms.values().all(|(_, vm)| !vm.label.contains("old")));
    }
    site.ask(client.unlisted_remove(id)).unwrap();
    eventually("it is removed", || !site.world.lock().unwrap().vms.contains_key(&id));
    eventually("it is not listed any more", || site.ask(client.unlisted_list()).unwrap().is_empty());
}

#[test]
fn changes_stop_when_agents_reject_an_older_store() {
    let Restored { mut site, revoked, .. } = restored();
    // The sidecar, which would reveal it, was restored, too.
    std::fs::remove_file(site.settings().database.with_file_name("site.json")).unwrap();
    let vms = site.world.lock().unwrap().vms.clone();
    site.start();
    let operator = site.operator();
    eventually("it is noticed", || {
        let events = site.ask(operator.event_list(None, false)).unwrap();
        events.iter().any(|event| event.kind == "site.superseded" && event.text.contains("recover"))
    });
    let blue = site.client(revoked);
    let refusals = [
        site.ask(blue.cluster_create(&new_cluster("more", 1))).map(drop),
        site.ask(blue.cluster_list()).map(drop),
        site.ask(blue.view_open(&by_name("one"), 1)).map(drop),
    ];
    for refusal in refusals {
        match refusal {
            Err(ClientError::Refused(problem)) => assert_eq!(problem.problem.kind, "store-superseded"),
            other => panic!("{other:?}"),
        }
    }
    for _ in 0..LOOKS {
        site.ask(operator.host_list()).unwrap();
        assert_eq!(site.world.lock().unwrap().vms, vms);
    }
}

#[test]
fn a_missing_store_is_not_replaced_by_an_empty_one() {
    let mut site = Site::new(4);
    let blue = site.tenant("blue");
    ready(&site, &blue, "one");
    site.stop();
    for file in site.store_files() {
        let _ = std::fs::remove_file(file);
    }
    let vms = site.world.lock().unwrap().vms.clone();
    let said = site.refusal_to_start();
    assert!(said.contains("is missing") && said.contains("--accept-empty-store"), "{said}");
    assert!(!site.settings().database.exists(), "none is created");

    site.ask(controller::recover(
        &site.settings().database,
        &site.settings().key_file,
        controller::AcceptedLoss::EmptyStore,
    ))
    .unwrap();
    let _ = std::fs::remove_file(site.settings().operator_token_file);
    site.start();
    site.prepare();
    let operator = site.operator();
    eventually("it is listed as unlisted", || site.ask(operator.unlisted_list()).unwrap().len() == 1);
    assert_eq!(site.world.lock().unwrap().vms, vms, "it keeps running");
}

/// An agent that accepts its spec and then sends what `answer` returns. Returns the bytes sent per connection.
fn hostile_agent(site: &Site, answer: fn(u64) -> Vec<u8>) -> Arc<Mutex<Vec<u64>>> {
    use std::io::{Read as _, Write as _};
    let path = site.directory.path().join("hostile");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let counts = Arc::clone(&sent);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, counts) = (stream.unwrap(), Arc::clone(&counts));
            std::thread::spawn(move || {
                let mut request = vec![0; 65536];
                let Ok(length) = stream.read(&mut request) else { return };
                if request[..length].starts_with(b"PUT") {
                    let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n");
                    return;
                }
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
                let (mut total, mut round) = (0, 0);
                let mut piece = head.as_bytes().to_vec();
                while total < 256 << 20 && stream.write_all(&piece).is_ok() {
                    total += piece.len() as u64;
                    piece = answer(round);
                    round += 1;
                    if piece.is_empty() {
                        break;
                    }
                }
                counts.lock().unwrap().push(total);
            });
        }
    });
    let host = NewHost {
        port_guid: None,
        name: "hostile".parse().unwrap(),
        agent: path.display().to_string(),
        cores: 4,
        memory: MemorySize::from_mib(4096),
    };
    site.ask(site.operator().host_add(&host)).unwrap();
    sent
}

#[test]
fn an_endless_report_is_not_read_to_its_end() {
    let site = Site::new(4);
    let sent = hostile_agent(&site, |round| match round {
        0 => br#"{"number":1,"acknowledged":null,"cores":{"total":1,"used":0},"vms":[{"reason":""#.to_vec(),
        _ => vec![b'x'; 65536],
    });
    eventually("it is cut off twice", || sent.lock().unwrap().len() >= 2);
    // At most the limit and what fits into socket buffers.
    assert!(sent.lock().unwrap().iter().all(|bytes| *bytes < 32 << 20), "{sent:?}");
    ready(&site, &site.tenant("blue"), "one");
}

#[test]
fn a_report_of_endless_depth_is_refused() {
    let site = Site::new(4);
    let sent = hostile_agent(&site, |round| if round < 8 { vec![b'['; 65536] } else { Vec::new() });
    eventually("it is asked again", || sent.lock().unwrap().len() >= 2);
    ready(&site, &site.tenant("blue"), "one");
}

#[test]
fn a_long_reason_of_an_agent_is_truncated() {
    let site = Site::new(4);
    site.world.lock().unwrap().failure = Some("\u{1b}[2Jno ".repeat(100_000));
    let blue = site.tenant("blue");
    let operation = site.ask(blue.cluster_create(&new_cluster("one", 1))).unwrap();
    let ended = site.wait(&blue, &operation);
    assert_eq!(ended.state, OperationState::Failed);
    let events = site.ask(site.operator().event_list(None, false)).unwrap();
    let told = events.into_iter().find(|event| event.kind == "node.failed").unwrap().text;
    assert!(told.contains("[2Jno"), "control: operators see the reason: {told:.100}");
    assert!(told.chars().count() < 600 && !told.contains('\u{1b}'), "{} bytes", told.len());
}
