//! The cost of a host does not depend on the number of hosts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Json, Router, routing};
use controller_api::MemorySize;
use controller_api::agent::{Accelerator, HostReport, HostSpec, ResourceUse, SpecVersion};
use controller_api::host::NewHost;
use std::collections::HashMap;
use tokio::net::UnixListener;

use crate::site::{Site, eventually};

/// Hosts that are added: enough that a quadratic number of requests is detected.
const HOSTS: usize = 100;

/// Most requests to the agent per added host: specs, reports and some retries.
const REQUESTS_PER_HOST: usize = 8;

/// Requests to the agent, and the specs of its hosts.
#[derive(Default)]
struct Agent {
    requests: AtomicUsize,
    versions: Mutex<HashMap<String, SpecVersion>>,
}

type Count = Arc<Agent>;

/// Always returns the same report; a query for a newer one waits.
async fn tell(
    State(count): State<Count>,
    Path(host): Path<String>,
    Query(query): Query<HashMap<String, u64>>,
) -> Json<HostReport> {
    count.requests.fetch_add(1, Ordering::Relaxed);
    if query.get("after") != Some(&0) {
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    Json(HostReport {
        number: 1,
        acknowledged: count.versions.lock().unwrap().get(&host).copied(),
        cores: ResourceUse { total: 1, used: 0 },
        memory_mib: ResourceUse { total: 65_536, used: 0 },
        accelerator: Some(Accelerator::Tcg),
        fabric: true,
        vms: Vec::new(),
    })
}

async fn take(
    State(count): State<Count>,
    Path(host): Path<String>,
    Json(spec): Json<HostSpec>,
) -> StatusCode {
    count.requests.fetch_add(1, Ordering::Relaxed);
    count.versions.lock().unwrap().insert(host, spec.version);
    StatusCode::NO_CONTENT
}

#[test]
fn adding_a_host_causes_no_requests_to_others() {
    let site = Site::new(4);
    let (operator, count) = (site.operator(), Count::default());
    let socket = site.directory.path().join("many");
    let agent = {
        let count = Arc::clone(&count);
        let socket = socket.clone();
        async move {
            let listener = UnixListener::bind(socket).unwrap();
            let router =
                Router::new().route("/v1/hosts/{host}", routing::put(take).get(tell)).with_state(count);
            axum::serve(listener, router).await
        }
    };
    let mut tasks = tokio::task::JoinSet::new();
    site.ask(async {
        tasks.spawn(agent);
    });
    for number in 0..HOSTS {
        let host = NewHost {
            name: format!("many-{number}").parse().unwrap(),
            port_guid: None,
            agent: socket.display().to_string(),
            cores: 1,
            memory: MemorySize::from_mib(1024),
        };
        site.ask(operator.host_add(&host)).unwrap();
    }
    eventually("all agents have reported", || {
        let hosts = site.ask(operator.host_list()).unwrap();
        hosts.iter().filter(|host| host.accelerator.is_some()).count() == HOSTS + 4
    });
    let requests = count.requests.load(Ordering::Relaxed);
    assert!(requests <= REQUESTS_PER_HOST * HOSTS, "{requests} requests for {HOSTS} hosts");
}
