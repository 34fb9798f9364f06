//! Sessions in nodes: upgraded connections that are forwarded to the agent of the host.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use controller_api::{ApiProblem, Name, session};

use super::access::Caller;
use super::clusters::{TenantQuery, find};
use super::disclosure::{NodeUnreachable, SilentHost};
use super::error::{ApiError, Json, Path, Query};
use super::lease::Lease;
use super::upgrade::Upgrade;
use crate::agents::AgentClient;
use crate::faults::Fault;
use crate::site::Site;

/// Most bytes of all arguments of a command.
const ARGUMENTS_BYTES_MAX: usize = 64 * 1024;

/// Open a session in a node
///
/// The connection is upgraded to `heddle-session`.
#[utoipa::path(
    post,
    path = "/v1/clusters/{name}/nodes/{number}/sessions",
    operation_id = "session_open",
    params(("name" = String, Path), ("number" = u32, Path), TenantQuery),
    request_body = session::NewSession,
    responses((status = 101, description = "Switching protocols; frames follow"), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE))
)]
pub async fn open(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path((name, number)): Path<(Name, u32)>,
    Query(tenant_query): Query<TenantQuery>,
    lease: Lease,
    mut request: Request,
) -> Result<Response, ApiError> {
    let upgrade = Upgrade::of(&mut request, session::PROTOCOL)?;
    let Json(open) =
        <Json<session::NewSession> as axum::extract::FromRequest<_>>::from_request(request, &site).await?;
    check(&open)?;
    let cluster = find(&site, &caller, &name, &tenant_query).await?;
    let node = cluster.nodes.iter().find(|node| node.number == number && !node.leaving);
    let node = node.ok_or_else(|| {
        ApiError::not_found("node", format_args!("{number} in cluster {name}")).hint(format!(
            "the cluster has {} nodes",
            cluster.nodes.iter().filter(|node| !node.leaving).count()
        ))
    })?;
    let hosts = site.store.host_list().await?;
    let host = hosts.iter().find(|host| host.name == node.host).ok_or_else(|| {
        let detail = caller.disclose(&NodeUnreachable(anyhow::anyhow!("host {} does not exist", node.host)));
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "node-not-reachable", detail)
    })?;
    let unavailable = |error: anyhow::Error| {
        let detail = caller.disclose(&NodeUnreachable(error));
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "node-not-reachable", detail)
            .hint("check that the node is ready: heddle cluster show")
    };
    let fault = Fault::AgentSilent(node.host.clone());
    let agent = AgentClient::new(host).map_err(unavailable)?;
    if site.faults().contains_key(&fault) || !agent.is_alive().await {
        let host = caller.disclose(&SilentHost(&node.host));
        let detail = format!("node {number} of cluster {name} cannot be reached: {host} does not respond");
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "host-silent", detail)
            .hint("its virtual machine may still run; heddle cluster show says since when"));
    }
    let far = agent.session(node.id, &open).await.map_err(unavailable)?;
    Ok(upgrade.join(far, lease))
}

fn check(open: &session::NewSession) -> Result<(), ApiError> {
    match open {
        session::NewSession::Ssh {} => Ok(()),
        session::NewSession::Exec { argv } if argv.first().is_none_or(String::is_empty) => {
            Err(ApiError::invalid("argv", "argv must name a command"))
        }
        session::NewSession::Exec { argv } => {
            let bytes: usize = argv.iter().map(|argument| argument.len() + 1).sum();
            if bytes <= ARGUMENTS_BYTES_MAX && !argv.iter().any(|argument| argument.contains('\0')) {
                return Ok(());
            }
            let detail =
                format!("argv must have at most {ARGUMENTS_BYTES_MAX} bytes and no NUL, got {bytes} bytes");
            Err(ApiError::invalid("argv", detail))
        }
    }
}
