//! Tokens: names, lifetimes and revocation.

use controller_api::tenant::{NewToken, TokenLifetime};
use controller_api::{ApiClient, ClientError};
use tokio::io::AsyncReadExt as _;

use crate::site::{Site, by_name, eventually, new_cluster, stays_open};

fn kind<T: std::fmt::Debug>(result: Result<T, ClientError>) -> (u16, String) {
    match result {
        Err(ClientError::Refused(problem)) => (problem.problem.status, problem.problem.kind),
        other => panic!("not refused: {other:?}"),
    }
}

fn operator_token(site: &Site, client: &ApiClient, name: &str) -> controller_api::tenant::IssuedToken {
    let new = NewToken { operator: true, name: Some(name.parse().unwrap()), ..NewToken::default() };
    site.ask(client.token_create(&new)).unwrap()
}

#[test]
fn tokens_have_a_name_an_expiry_and_a_last_use() {
    let site = Site::new(2);
    let operator = site.operator();
    site.tenant_token("acme");
    let issued = operator_token(&site, &operator, "second-shift");
    let listed = || site.ask(operator.token_list()).unwrap();
    let names: Vec<String> = listed().iter().map(|token| token.name.to_string()).collect();
    assert!(
        names.contains(&"operator-file".to_owned()) && names.contains(&"second-shift".to_owned()),
        "{names:?}"
    );
    let found = || listed().into_iter().find(|token| token.id == issued.token.id).unwrap();
    let lasts = found().expires.unwrap().duration_since(found().created);
    // Stored in milliseconds.
    assert_eq!(lasts.as_secs() + 1, 90 * 24 * 60 * 60);
    assert_eq!(found().last_used, None);
    site.ask(site.client(issued.secret).cluster_list()).unwrap();
    assert!(found().last_used.is_some());
    // Accurate to the hour, so that not every request causes a write.
    let used = found().last_used;
    site.ask(operator.token_list()).unwrap();
    assert_eq!(found().last_used, used);
    let forever = NewToken { operator: true, lifetime: TokenLifetime::Never, ..NewToken::default() };
    assert_eq!(site.ask(operator.token_create(&forever)).unwrap().token.expires, None);
    let none = NewToken { operator: true, lifetime: TokenLifetime::Seconds(0), ..NewToken::default() };
    assert_eq!(kind(site.ask(operator.token_create(&none))).0, 422);
}

#[test]
fn revocation_ends_open_streams_at_once() {
    let site = Site::new(4);
    let acme = site.tenant("acme");
    let operation = site.ask(acme.cluster_create(&new_cluster("blue", 1))).unwrap();
    site.wait(&acme, &operation);
    eventually("the network can be seen", || site.ask(acme.view_show(&by_name("blue"))).is_ok());
    let issued = site.issue("acme", TokenLifetime::DEFAULT);
    let second = site.client(issued.secret);
    let mut ends = site.ask(second.view_open(&by_name("blue"), 1)).unwrap();
    let mut stays = site.ask(acme.view_open(&by_name("blue"), 1)).unwrap();
    let operator = site.operator();
    site.ask(async {
        let newest = second.event_list(None, false).await.unwrap().last().unwrap().number;
        let revoke = async {
            // Whether the revocation comes before or during the wait, the query is rejected.
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            operator.token_revoke(issued.token.id).await.unwrap();
        };
        let (waited, ()) = tokio::join!(second.event_list(Some(newest), true), revoke);
        assert_eq!(kind(waited).0, 401);
        let mut rest = Vec::new();
        ends.read_to_end(&mut rest).await.unwrap();
        assert!(stays_open(&mut stays).await, "another token's stream has ended");
    });
}

#[test]
fn a_stream_ends_when_its_token_expires() {
    let site = Site::new(4);
    let acme = site.tenant("acme");
    let operation = site.ask(acme.cluster_create(&new_cluster("blue", 1))).unwrap();
    site.wait(&acme, &operation);
    eventually("the network can be seen", || site.ask(acme.view_show(&by_name("blue"))).is_ok());
    // Long enough to be used on a busy machine; a stream checks its token every 30 s.
    let short = site.client(site.issue("acme", TokenLifetime::Seconds(20)).secret);
    let mut stream = site.ask(short.view_open(&by_name("blue"), 1)).unwrap();
    let mut rest = Vec::new();
    site.ask(stream.read_to_end(&mut rest)).unwrap();
    assert_eq!(kind(site.ask(short.cluster_list())).0, 401);
}

#[test]
fn the_last_token_of_operators_cannot_be_revoked() {
    let site = Site::new(2);
    let operator = site.operator();
    let first = site.ask(operator.token_list()).unwrap()[0].id;
    assert_eq!(kind(site.ask(operator.token_revoke(first))), (409, "last-operator-token".to_owned()));
    // An expired token does not count.
    let short = NewToken { operator: true, lifetime: TokenLifetime::Seconds(1), ..NewToken::default() };
    let short = site.client(site.ask(operator.token_create(&short)).unwrap().secret);
    eventually("the other one has expired", || site.ask(short.cluster_list()).is_err());
    assert_eq!(kind(site.ask(operator.token_revoke(first))).0, 409);
    let second = site.client(operator_token(&site, &operator, "second").secret);
    site.ask(operator.token_revoke(first)).unwrap();
    assert_eq!(kind(site.ask(operator.token_list())).0, 401);
    site.ask(second.token_list()).unwrap();
}

#[test]
fn a_tenant_manages_only_its_own_tokens() {
    let site = Site::new(2);
    let acme = site.tenant("acme");
    site.tenant("other");
    let new = |tenant: Option<&str>, operator| NewToken {
        tenant: tenant.map(|name| name.parse().unwrap()),
        operator,
        ..NewToken::default()
    };
    let made = site.ask(acme.token_create(&new(None, false))).unwrap();
    assert_eq!(made.token.tenant.as_ref().map(|name| name.as_str()), Some("acme"));
    assert_eq!(site.ask(acme.token_list()).unwrap().len(), 2);
    assert_eq!(kind(site.ask(acme.token_create(&new(None, true)))).0, 403);
    assert_eq!(kind(site.ask(acme.token_create(&new(Some("other"), false)))).0, 404);
    let all = site.ask(site.operator().token_list()).unwrap();
    for foreign in all.iter().filter(|token| token.tenant != made.token.tenant) {
        assert_eq!(kind(site.ask(acme.token_revoke(foreign.id))).0, 404);
    }
    site.ask(acme.token_revoke(made.token.id)).unwrap();
    assert_eq!(kind(site.ask(site.client(made.secret).cluster_list())).0, 401);
}
