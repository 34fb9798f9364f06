//! Errors and events for tenants name no hosts, ports, paths or resources of others.

use fabric_model::tenancy::{Bandwidth, Class};
use serde_json::{Value, json};

use crate::site::http::HttpRequest;
use crate::site::{Site, eventually, new_cluster};

/// Reason that an agent may give for a virtual machine that it cannot run.
const COMPLAINT: &str = "/srv/secret/disk.raw: 512 MiB are reserved for other disks";

/// Sends the requests of a caller that concern one tenant, and returns the response bodies as text.
struct Asker<'a> {
    site: &'a Site,
    token: String,
    whose: &'static str,
}

impl Asker<'_> {
    fn ask(&self, method: &str, path: &str, body: Option<&Value>, upgrade: Option<&str>) -> String {
        let path = format!("{path}{}", self.whose);
        let request = HttpRequest { method, path: &path, token: Some(&self.token), body, upgrade };
        request.send(&self.site.socket()).body
    }

    /// Sends a request for a cluster that is rejected with `status`; returns the response body.
    fn create(&self, new_cluster: &controller_api::cluster::NewCluster, status: u64) -> String {
        let body = json!(controller_api::cluster::NewCluster {
            tenant: Some("acme".parse().unwrap()),
            ..new_cluster.clone()
        });
        let said = self.ask("POST", "/v1/clusters", Some(&body), None);
        let problem: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(problem["status"].as_u64(), Some(status), "{said}");
        said
    }
}

#[test]
fn errors_disclose_nothing_of_the_site_to_tenants() {
    let site = Site::new(8);
    let acme = site.tenant_token("acme");
    let client = site.client(acme.clone());
    let ready = site.ask(client.cluster_create(&new_cluster("blue", 2))).unwrap();
    site.wait(&client, &ready);
    // Another cluster fails; the reason given by its host is stored.
    site.world.lock().unwrap().change(|world| world.failure = Some(COMPLAINT.to_owned()));
    let failing = site.ask(client.cluster_create(&new_cluster("red", 1))).unwrap();
    site.wait(&client, &failing);
    site.world.lock().unwrap().change(|world| world.failure = None);
    // New sessions find no agent; requests over the existing connection continue.
    std::fs::remove_file(site.directory.path().join("agent")).unwrap();

    let operator = site.operator();
    let hosts = site.ask(operator.host_list()).unwrap();
    let mut secrets: Vec<String> = hosts.iter().map(|host| host.name.to_string()).collect();
    secrets.extend(hosts.iter().filter_map(|host| host.port_guid).map(|guid| guid.to_string()));
    secrets.extend(["/srv/secret", "512 MiB", "/v1/hosts"].map(str::to_owned));
    secrets.push(site.directory.path().display().to_string());

    let large = new_cluster("large", 4000);
    let mut greedy = new_cluster("greedy", 2);
    greedy.class =
        Class::Guaranteed { bandwidth: Bandwidth::from_bits_per_s(9_000_000_000_000), latency_ns: None };
    let open = json!({ "exec": { "argv": ["true"] } });
    let views = |asker: &Asker| {
        let show = |path: &str| asker.ask("GET", path, None, None);
        let mut all = vec![
            ("no room", asker.create(&large, 409)),
            ("no guarantee", asker.create(&greedy, 409)),
            ("cluster", show("/v1/clusters/blue")),
            ("failed cluster", show("/v1/clusters/red")),
            ("operations", show("/v1/operations")),
            ("events", show("/v1/events")),
            ("images", show("/v1/images")),
        ];
        eventually("a session is rejected for lack of an agent", || {
            let said =
                asker.ask("POST", "/v1/clusters/blue/nodes/1/sessions", Some(&open), Some("heddle-session"));
            let is_refused = said.contains("host-silent");
            if is_refused {
                all.push(("session", said));
            }
            is_refused
        });
        all
    };
    let told = views(&Asker { site: &site, token: acme, whose: "" });
    for (what, said) in &told {
        let leaked: Vec<&String> = secrets.iter().filter(|secret| said.contains(*secret)).collect();
        assert!(leaked.is_empty(), "{what} discloses {leaked:?}: {said}");
        assert!(!said.contains("Gb/s left") && !said.contains("left on one host"), "{what}: {said}");
    }
    // Control: operators see all of it.
    let told = views(&Asker { site: &site, token: site.operator_token(), whose: "?tenant=acme" });
    let said = |what: &str| &told.iter().find(|(name, _)| *name == what).unwrap().1;
    assert!(said("no room").contains("left on one host"), "{}", said("no room"));
    assert!(
        said("cluster").contains(hosts[0].name.as_str().split('-').next().unwrap()),
        "{}",
        said("cluster")
    );
    assert!(said("events").contains("/srv/secret"), "{}", said("events"));
    assert!(said("images").contains(secrets.last().unwrap()), "{}", said("images"));
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    assert!(names.iter().any(|name| said("session").contains(name)), "{}", said("session"));
    assert!(said("no guarantee").contains("the guarantee is not possible: "), "{}", said("no guarantee"));
}

/// The limit in the problem details of a rejected request for a cluster.
fn limit(asker: &Asker<'_>, new: &controller_api::cluster::NewCluster) -> Value {
    let problem: Value = serde_json::from_str(&asker.create(new, 409)).unwrap();
    problem["limit"].clone()
}

#[test]
fn limits_tell_operators_what_is_left_and_tenants_what_they_requested() {
    let site = Site::new(8);
    let acme = Asker { site: &site, token: site.tenant_token("acme"), whose: "" };
    let operator = Asker { site: &site, token: site.operator_token(), whose: "?tenant=acme" };

    let large = new_cluster("large", 4000);
    let of_tenant = limit(&acme, &large);
    let requested = json!({ "kind": "host-capacity", "requested_nodes": 4000, "requested_cores": 1, "requested_memory": "384M" });
    assert_eq!(of_tenant, requested);
    let of_operator = limit(&operator, &large);
    assert!(of_operator["nodes_that_fit"].as_u64().unwrap() < 4000, "{of_operator}");
    assert_eq!(of_operator["available"]["hosts"], 8, "{of_operator}");
    assert_contains(&of_operator, &requested);

    let bandwidth = Bandwidth::from_bits_per_s(9_000_000_000_000);
    let mut greedy = new_cluster("greedy", 2);
    greedy.class = Class::Guaranteed { bandwidth, latency_ns: None };
    let of_tenant = limit(&acme, &greedy);
    let requested =
        json!({ "kind": "guarantee", "requested_nodes": 2, "requested_bps": bandwidth.bits_per_s() });
    assert_eq!(of_tenant, requested);
    let of_operator = limit(&operator, &greedy);
    assert_contains(&of_operator, &requested);
    let cause = &of_operator["cause"];
    assert_eq!(cause["kind"], "link-bandwidth", "{of_operator}");
    assert!(cause["port"]["node"].as_str().unwrap().starts_with("0x"), "{cause}");
    assert!(cause["available_bps"].as_u64() < cause["needed_bps"].as_u64(), "{cause}");
    assert!(of_operator["nodes_that_fit"].as_u64().unwrap() < 2, "{of_operator}");
}

#[test]
fn quotas_are_disclosed_to_their_tenant() {
    let site = Site::new(8);
    let acme = Asker { site: &site, token: site.tenant_token("acme"), whose: "" };
    let operator = Asker { site: &site, token: site.operator_token(), whose: "?tenant=acme" };
    let mut wide = new_cluster("wide", 5);
    let bandwidth = Bandwidth::from_bits_per_s(1_000_000_000);
    wide.class = Class::Guaranteed { bandwidth, latency_ns: None };
    let expected = json!({ "kind": "quota", "resource": "exclusive-hosts", "allowed": 4, "requested": 5 });
    assert_eq!(limit(&acme, &wide), expected);
    assert_eq!(limit(&operator, &wide), expected);
}

/// Whether all members of `part` are members of `whole`.
fn assert_contains(whole: &Value, part: &Value) {
    for (name, value) in part.as_object().unwrap() {
        assert_eq!(&whole[name], value, "{name} in {whole}");
    }
}
