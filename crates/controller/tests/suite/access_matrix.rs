//! Access control: every route of the OpenAPI document, called by every kind of caller.
//!
//! A route without a line in `EXPECTED` fails, so every new route must declare its callers.

use std::collections::{BTreeMap, BTreeSet};

use controller_api::tenant::NewToken;
use serde_json::{Value, json};

use crate::site::http::{HttpRequest, HttpResponse};
use crate::site::{Site, by_name, eventually, new_cluster};

/// Callers that a route is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// Operators; with the status of their response.
    Operators(u16),
    /// The owner of the cluster or operation, and operators, with the status of their response. Others get 404.
    Owners(u16),
    /// Every caller with a token; each sees its own records only.
    EachTheirOwn,
    /// Every caller with a token; all see the same.
    Everybody,
}

/// Every operation by its id.
const EXPECTED: [(&str, For); 36] = [
    ("cluster_list", For::EachTheirOwn),
    ("cluster_create", For::Owners(202)),
    ("cluster_show", For::Owners(200)),
    ("cluster_resize", For::Owners(202)),
    ("cluster_partition", For::Owners(202)),
    ("cluster_delete", For::Owners(202)),
    // The agents of this site run nothing that could be reached.
    ("session_open", For::Owners(503)),
    ("view_open", For::Owners(101)),
    ("view_show", For::Owners(200)),
    ("view_commit", For::Owners(200)),
    ("operation_list", For::EachTheirOwn),
    ("operation_show", For::Owners(200)),
    ("event_list", For::EachTheirOwn),
    ("image_list", For::Everybody),
    ("image_add", For::Operators(422)),
    ("image_remove", For::Operators(404)),
    ("fabric_show", For::Operators(200)),
    ("fabric_proof", For::Operators(200)),
    ("fabric_links", For::Operators(200)),
    ("fabric_partitions", For::Operators(200)),
    ("fabric_partitions_set", For::Operators(200)),
    ("host_list", For::Operators(200)),
    ("host_add", For::Operators(201)),
    ("host_add_all", For::Operators(200)),
    ("host_remove", For::Operators(404)),
    ("unlisted_list", For::Operators(200)),
    ("unlisted_remove", For::Operators(404)),
    ("host_bind", For::Operators(404)),
    ("tenant_list", For::Operators(200)),
    ("tenant_create", For::Operators(201)),
    ("tenant_show", For::Owners(200)),
    ("tenant_change", For::Operators(404)),
    ("tenant_delete", For::Operators(404)),
    ("token_list", For::EachTheirOwn),
    // Creates an operator token; `tokens.rs` tests what a tenant may create.
    ("token_create", For::Operators(201)),
    ("token_revoke", For::Owners(204)),
];

/// A route of the OpenAPI document.
struct Route {
    id: String,
    method: String,
    path: String,
}

fn routes() -> Vec<Route> {
    let document: Value = serde_json::from_str(&controller::openapi()).unwrap();
    let methods = ["get", "post", "put", "patch", "delete"];
    let mut routes = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            if methods.contains(&method.as_str()) {
                let id = operation["operationId"].as_str().unwrap().to_owned();
                routes.push(Route { id, method: method.to_uppercase(), path: path.clone() });
            }
        }
    }
    routes
}

/// Body of the request to a route. It concerns a cluster of the owner, or something that only operators may change.
fn body(id: &str, cluster: &str) -> Option<Value> {
    let new = json!({ "name": format!("{cluster}-2"), "size": 1, "cores": 1, "memory": "384M", "mode": "shared",
                      "image": "debian-mpi", "tenant": "owner" });
    Some(match id {
        "cluster_create" => new,
        "cluster_resize" => json!({ "size": 2 }),
        "cluster_partition" => json!({ "partitions": [] }),
        "session_open" => json!({ "exec": { "argv": ["true"] } }),
        "image_add" => json!({ "name": "mine", "directory": "/nowhere", "digest": "00" }),
        "host_add" => json!({ "name": "intruder", "agent": "/nowhere", "cores": 1, "memory": "1G" }),
        "host_add_all" => json!([]),
        "fabric_partitions_set" => json!({ "conf": "" }),
        "host_bind" => json!({ "port_guid": "0x77" }),
        "tenant_create" => json!({ "name": "intruder" }),
        "tenant_change" => json!({ "quota": {} }),
        "token_create" => json!({ "operator": true }),
        _ => return None,
    })
}

/// The site, and what the owner has created.
struct World {
    site: Site,
    operations: BTreeMap<&'static str, String>,
    /// Tokens of the owner that can be revoked, by cluster name.
    tokens: BTreeMap<&'static str, String>,
    routes: Vec<Route>,
}

/// The cluster that the owner uses, and the one that the operator uses in the owner's name.
const CLUSTERS: [&str; 2] = ["alder", "birch"];

impl World {
    fn new() -> Self {
        let site = Site::new(8);
        let owner = site.tenant("owner");
        let (mut operations, mut tokens) = (BTreeMap::new(), BTreeMap::new());
        for name in CLUSTERS {
            let operation = site.ask(owner.cluster_create(&new_cluster(name, 1))).unwrap();
            site.wait(&owner, &operation);
            eventually("the network can be seen", || site.ask(owner.view_show(&by_name(name))).is_ok());
            operations.insert(name, operation.id.to_string());
            let new = NewToken { name: Some(name.parse().unwrap()), ..NewToken::default() };
            let issued = site.ask(owner.token_create(&new)).unwrap();
            tokens.insert(name, issued.token.id.to_string());
        }
        Self { site, operations, tokens, routes: routes() }
    }

    fn call(
        &self,
        route: &Route,
        cluster: &'static str,
        token: Option<&str>,
        whose: Option<&str>,
    ) -> HttpResponse {
        let name = match route.id.as_str() {
            "tenant_show" => "owner",
            _ if route.path.starts_with("/v1/clusters/") => cluster,
            _ => "ghost",
        };
        let id = match route.id.as_str() {
            "operation_show" => self.operations[cluster].clone(),
            "token_revoke" => self.tokens[cluster].clone(),
            _ => uuid::Uuid::nil().to_string(),
        };
        let mut path = route.path.replace("{name}", name).replace("{number}", "1").replace("{id}", &id);
        if let Some(tenant) = whose {
            path += &format!("?tenant={tenant}");
        }
        assert!(!path.contains('{'), "unknown path parameter: {path}");
        let upgrade = match route.id.as_str() {
            "session_open" => Some("heddle-session"),
            "view_open" => Some("heddle-view"),
            _ => None,
        };
        let body = body(&route.id, cluster);
        let request = HttpRequest { method: &route.method, path: &path, token, body: body.as_ref(), upgrade };
        request.send(&self.site.socket())
    }

    fn expected(&self, route: &Route) -> For {
        let found = EXPECTED.iter().find(|(id, _)| *id == route.id);
        found.unwrap_or_else(|| panic!("EXPECTED does not list {}", route.id)).1
    }
}

#[test]
fn the_access_table_names_every_route_and_no_other() {
    let served: BTreeSet<String> = routes().into_iter().map(|route| route.id).collect();
    let expected: BTreeSet<String> = EXPECTED.iter().map(|(id, _)| (*id).to_owned()).collect();
    assert_eq!(served, expected);
}

#[test]
fn every_route_answers_exactly_those_it_is_for() {
    let world = World::new();
    let site = &world.site;
    let owner = site.token_of("owner");
    let other = site.tenant_token("other");
    let (revoked, expired) = (site.revoked_token("other"), site.expired_token("other"));
    let operator = site.operator_token();
    let is_own = |answer: &HttpResponse| CLUSTERS.iter().any(|name| answer.body.contains(name));

    // Callers without access come first, before others change anything.
    for route in &world.routes {
        let (id, method) = (&route.id, &route.method);
        let unknown = [
            ("nobody", None),
            ("garbage", Some("garbage")),
            ("revoked", Some(revoked.as_str())),
            ("expired", Some(expired.as_str())),
        ];
        for (who, token) in unknown {
            let answer = world.call(route, CLUSTERS[0], token, None);
            assert_eq!((answer.status, is_own(&answer)), (401, false), "{id} by {who}: {answer:?}");
        }
        for whose in [None, Some("owner")] {
            let answer = world.call(route, CLUSTERS[0], Some(&other), whose);
            let context = format!("{method} {id} by another tenant, as {whose:?}: {answer:?}");
            match world.expected(route) {
                For::Operators(_) => assert_eq!(answer.status, 403, "{context}"),
                For::Owners(_) => assert_eq!(answer.status, 404, "{context}"),
                For::EachTheirOwn => assert_eq!((answer.status, is_own(&answer)), (200, false), "{context}"),
                For::Everybody => assert_eq!(answer.status, 200, "{context}"),
            }
        }
        if let For::Operators(_) = world.expected(route) {
            let answer = world.call(route, CLUSTERS[0], Some(&owner), None);
            assert_eq!(answer.status, 403, "{id} by a tenant: {answer:?}");
        }
    }
    // Nothing was changed.
    let client = site.operator();
    assert_eq!(site.ask(client.cluster_list()).unwrap().len(), CLUSTERS.len());
    assert!(!site.ask(client.tenant_list()).unwrap().iter().any(|tenant| tenant.name.as_str() == "intruder"));
    assert!(!site.ask(client.host_list()).unwrap().iter().any(|host| host.name.as_str() == "intruder"));

    // Control: the same requests succeed for callers with access, so the rejections above are due to the caller.
    let last = |route: &&Route| route.id == "cluster_delete";
    let in_order = world.routes.iter().filter(|route| !last(route)).chain(world.routes.iter().filter(last));
    for route in in_order {
        let id = &route.id;
        let answers = [
            ("its owner", world.call_when_free(route, CLUSTERS[0], &owner, None)),
            ("the operator", world.call_when_free(route, CLUSTERS[1], &operator, Some("owner"))),
        ];
        for (who, answer) in answers {
            let context = format!("{id} by {who}: {answer:?}");
            match (world.expected(route), who) {
                (For::Operators(_), "its owner") => assert_eq!(answer.status, 403, "{context}"),
                (For::Operators(status) | For::Owners(status), _) => {
                    assert_eq!(answer.status, status, "{context}")
                }
                (For::EachTheirOwn, _) => {
                    assert_eq!((answer.status, is_own(&answer)), (200, true), "{context}")
                }
                (For::Everybody, _) => assert_eq!(answer.status, 200, "{context}"),
            }
        }
    }
}

impl World {
    /// Repeats a request while an earlier operation on the cluster runs, or the fabric is being programmed.
    fn call_when_free(
        &self,
        route: &Route,
        cluster: &'static str,
        token: &str,
        whose: Option<&str>,
    ) -> HttpResponse {
        let mut answer = None;
        eventually("earlier operations have ended", || {
            let found = self.call(route, cluster, Some(token), whose);
            let kind = found.json()["type"].as_str().unwrap_or_default().to_owned();
            answer = Some(found);
            !["busy", "not-yet"].contains(&kind.as_str())
        });
        answer.unwrap()
    }
}
