//! Sessions in nodes: a request is upgraded, and its bytes go to the agent of the host and back.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use controller_api::{Name, Problem, session};
use hyper_util::rt::TokioIo;

use super::access::Caller;
use super::clusters::{Whose, find};
use super::refusal::{Json, Path, Query, Refusal};
use crate::agents::Agent;
use crate::site::Site;

/// Arguments of a command, together.
const ARGUMENTS_BYTES_MAX: usize = 64 * 1024;

/// Opens a session in a node: the request is upgraded to `heddle-session`.
#[utoipa::path(
    post,
    path = "/v1/clusters/{name}/nodes/{number}/sessions",
    operation_id = "session_open",
    params(("name" = String, Path), ("number" = u32, Path), Whose),
    request_body = session::Open,
    responses((status = 101, description = "frames from here on"), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE))
)]
pub async fn open(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path((name, number)): Path<(Name, u32)>,
    Query(whose): Query<Whose>,
    mut request: Request,
) -> Result<Response, Refusal> {
    let upgrade = request.headers().get(header::UPGRADE);
    if upgrade != Some(&HeaderValue::from_static(session::PROTOCOL)) {
        return Err(Refusal::new(StatusCode::UPGRADE_REQUIRED, "upgrade-required", "a session is a stream")
            .hint(format!("send Connection: upgrade and Upgrade: {}", session::PROTOCOL)));
    }
    let upgraded = hyper::upgrade::on(&mut request);
    let Json(open) =
        <Json<session::Open> as axum::extract::FromRequest<_>>::from_request(request, &site).await?;
    check(&open)?;
    let cluster = find(&site, &caller, &name, &whose).await?;
    let node = cluster.nodes.iter().find(|node| node.number == number && !node.leaving);
    let node = node.ok_or_else(|| {
        Refusal::missing("node", format_args!("{number} in cluster {name}"))
            .hint(format!("it has {}", cluster.nodes.iter().filter(|node| !node.leaving).count()))
    })?;
    let hosts = site.store.host_list().await?;
    let host = hosts
        .iter()
        .find(|host| host.name == node.host)
        .ok_or_else(|| Refusal::missing("host", &node.host))?;
    let unavailable = |error: anyhow::Error| {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "node-not-reachable", format!("{error:#}"))
            .hint("is the node ready? heddle cluster show tells")
    };
    let agent = Agent::new(host).map_err(unavailable)?;
    let mut far = agent.session(node.id, &open).await.map_err(unavailable)?;
    tokio::spawn(async move {
        match upgraded.await {
            Ok(near) => {
                // Either side may end it at any time.
                let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(near), &mut far).await;
            }
            Err(error) => tracing::debug!("a session was not taken up: {error}"),
        }
    });
    let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, session::PROTOCOL)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

fn check(open: &session::Open) -> Result<(), Refusal> {
    match open {
        session::Open::Ssh {} => Ok(()),
        session::Open::Exec { argv } if argv.first().is_none_or(String::is_empty) => {
            Err(Refusal::invalid("argv", "there is no command"))
        }
        session::Open::Exec { argv } => {
            let bytes: usize = argv.iter().map(|argument| argument.len() + 1).sum();
            match bytes <= ARGUMENTS_BYTES_MAX && !argv.iter().any(|argument| argument.contains('\0')) {
                true => Ok(()),
                false => Err(Refusal::invalid(
                    "argv",
                    format!("{bytes} bytes; at most {ARGUMENTS_BYTES_MAX}, and none of them 0"),
                )),
            }
        }
    }
}
