//! HTTP API of the agent (`controller_api::agent`) on a Unix socket that only its owner can open.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path as UrlPath, Query, Request, State};
use axum::http::header::{CONNECTION, CONTENT_TYPE, UPGRADE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use controller_api::agent::{AMBIGUOUS_SPEC, HostReport, HostSpec, OTHER_SITE, STALE_SPEC};
use controller_api::session::{AdapterSession, AgentSession, PROTOCOL};
use controller_api::{Name, Problem};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Deserialize;
use thiserror::Error;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use uuid::Uuid;

use crate::agent::{Agent, HostSpecError};
use crate::error_chain;
use crate::link::SessionError;
use crate::session;

/// Most bytes of a host spec: a full host in a large cluster.
const SPEC_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Most bytes of a request for a session: a command with its arguments.
const OPEN_BYTES_MAX: usize = 64 * 1024;

/// How long a request for a newer report waits before the current one is returned.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for the header of a request, and for an idle connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit for a whole request with its body. A request for a report waits at most twice [`REPORT_TIMEOUT`].
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Most concurrent connections: a controller has one or two per host, and each session has one.
const CONNECTIONS_MAX: usize = 1024;

/// Pause after a failed accept, such as for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits of the HTTP server.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Time for the header of a request, and between requests.
    pub header: Duration,
    /// Time for a whole request, except sessions.
    pub request: Duration,
    /// Concurrent connections; further ones wait to be accepted.
    pub connections: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self { header: HEADER_TIMEOUT, request: REQUEST_TIMEOUT, connections: CONNECTIONS_MAX }
    }
}

/// Serves requests for ever, within limits. A connection upgraded to a session no longer counts; the guest limits sessions.
pub async fn serve(listener: UnixListener, router: Router, limits: HttpLimits) -> ! {
    let within = axum::middleware::from_fn(move |request: Request, next: Next| async move {
        match timeout(limits.request, next.run(request)).await {
            Ok(response) => response,
            Err(_) => {
                let what = format!("the request must complete within {} s", limits.request.as_secs());
                ProblemResponse::new(StatusCode::REQUEST_TIMEOUT, "too-slow", &what).into_response()
            }
        }
    });
    let service = TowerToHyperService::new(router.layer(within));
    let slots = Arc::new(Semaphore::new(limits.connections));
    loop {
        // The semaphore is never closed.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { continue };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(limits.header);
        let connection = http.serve_connection(TokioIo::new(stream), service.clone()).with_upgrades();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!("connection closed: {error}");
            }
            drop(slot);
        });
    }
}

/// Why the agent's socket could not be opened.
#[derive(Debug, Error)]
pub enum AgentSocketError {
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    #[error("another process serves {}", .0.display())]
    InUse(PathBuf),
    #[error("cannot listen on {}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Opens the agent's socket with mode 0600. A stale socket is replaced; anything else at `path` is an error.
pub fn listen(path: &Path) -> Result<UnixListener, AgentSocketError> {
    let failed = |source| AgentSocketError::Io { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(AgentSocketError::NotASocket(path.to_owned()));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(AgentSocketError::InUse(path.to_owned()));
        }
        Ok(_) => {}
    }
    // Created under a temporary name, so that it never has another mode under its own.
    let beside = path.with_extension("new");
    durable_file::remove(&beside).map_err(failed)?;
    let listener = UnixListener::bind(&beside).map_err(failed)?;
    fs::set_permissions(&beside, Permissions::from_mode(0o600)).map_err(failed)?;
    fs::rename(&beside, path).map_err(failed)?;
    Ok(listener)
}

/// Routes of the API.
pub fn router(agent: Arc<Agent>) -> Router {
    Router::new()
        .route("/v1/hosts", get(host_list))
        .route("/v1/hosts/{host}", get(get_report).put(put_spec))
        .route("/v1/hosts/{host}/vms/{id}/sessions", post(open_session))
        .fallback(|| async { ProblemResponse::new(StatusCode::NOT_FOUND, "no-such-path", "no such path") })
        .layer(DefaultBodyLimit::max(SPEC_BYTES_MAX))
        .with_state(agent)
}

async fn host_list(State(agent): State<Arc<Agent>>) -> Json<Vec<Name>> {
    Json(agent.hosts().to_vec())
}

#[derive(Deserialize)]
struct ReportQuery {
    after: Option<u64>,
}

async fn get_report(
    State(agent): State<Arc<Agent>>,
    UrlPath(host): UrlPath<String>,
    Query(ReportQuery { after }): Query<ReportQuery>,
) -> Result<Json<HostReport>, ProblemResponse> {
    let name = host.parse::<Name>().ok();
    let reports = name.and_then(|name| agent.context().reports.subscribe(&name));
    let mut reports = reports.ok_or_else(|| ProblemResponse::no_such_host(&host))?;
    // Before the survey, a report without a virtual machine would wrongly mean that it is gone.
    if timeout(REPORT_TIMEOUT, agent.context().ready()).await.is_err() {
        let what = "libvirt has not answered yet, so the running virtual machines are unknown";
        return Err(ProblemResponse::new(StatusCode::SERVICE_UNAVAILABLE, "not-known-yet", what));
    }
    if let Some(after) = after {
        // Returned after the timeout even if unchanged.
        let _ = timeout(REPORT_TIMEOUT, reports.wait_for(|report| report.number > after)).await;
    }
    let report = HostReport::clone(&reports.borrow());
    Ok(Json(report))
}

async fn put_spec(
    State(agent): State<Arc<Agent>>,
    UrlPath(host): UrlPath<String>,
    body: Bytes,
) -> Result<StatusCode, ProblemResponse> {
    let name: Name = host.parse().map_err(|_| ProblemResponse::no_such_host(&host))?;
    let spec: HostSpec = serde_json::from_slice(&body).map_err(|error| {
        // serde's message may quote a secret, so only the position is returned.
        let what = format!("error in line {}, column {}", error.line(), error.column());
        ProblemResponse::new(StatusCode::BAD_REQUEST, "not-orders", &format!("not a valid host spec: {what}"))
    })?;
    agent.apply_spec(&name, spec).await.map_err(ProblemResponse::from)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn open_session(
    State(agent): State<Arc<Agent>>,
    UrlPath((host, id)): UrlPath<(String, String)>,
    mut request: Request,
) -> Result<Response, ProblemResponse> {
    let no_vm = || {
        ProblemResponse::new(
            StatusCode::NOT_FOUND,
            "no-such-vm",
            &format!("host {host} has no virtual machine {id}"),
        )
    };
    if !wants_session(request.headers()) {
        let what = format!("a session requires the headers `Connection: upgrade` and `Upgrade: {PROTOCOL}`");
        return Err(ProblemResponse::new(StatusCode::UPGRADE_REQUIRED, "upgrade-required", &what));
    }
    let name: Name = host.parse().map_err(|_| no_vm())?;
    let vm: Uuid = id.parse().map_err(|_| no_vm())?;
    let upgrade = hyper::upgrade::on(&mut request);
    let bad = |what: String| ProblemResponse::new(StatusCode::BAD_REQUEST, "not-a-session", &what);
    let body = axum::body::to_bytes(request.into_body(), OPEN_BYTES_MAX).await;
    let body = body.map_err(|error| bad(format!("cannot read the session request: {error}")))?;
    let what: AgentSession =
        serde_json::from_slice(&body).map_err(|error| bad(format!("invalid session request: {error}")))?;
    let what = match what {
        AgentSession::Guest(what) => what,
        AgentSession::Adapter(AdapterSession::View {}) => {
            return open_adapter_view(&agent, &name, vm, upgrade).await;
        }
    };
    let opener = agent.session_opener(&name, vm).await.ok_or_else(no_vm)?;
    let unavailable = |reason: &str| {
        ProblemResponse::new(StatusCode::CONFLICT, "no-guest", &format!("virtual machine {vm}: {reason}"))
    };
    let opened = opener.ok_or_else(|| unavailable("it is not running"))?.open(what).await;
    let opened = opened.map_err(|error| match error {
        SessionError::GuestUnavailable(reason) => unavailable(&reason),
        SessionError::TooManySessions => ProblemResponse::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too-many-sessions",
            &format!("virtual machine {vm}: {error}"),
        ),
    })?;
    tokio::spawn(async move {
        let ended = match upgrade.await {
            Ok(client) => session::bridge(TokioIo::new(client), opened).await,
            Err(error) => Err(io::Error::other(error)),
        };
        if let Err(error) = ended {
            tracing::debug!(%vm, "session closed: {error}");
        }
    });
    Ok(switching_protocols())
}

/// Connects the client with the InfiniBand adapter of a virtual machine. Nothing in the guest takes part.
async fn open_adapter_view(
    agent: &Agent,
    host: &Name,
    vm: Uuid,
    upgrade: OnUpgrade,
) -> Result<Response, ProblemResponse> {
    if !agent.has_vm(host, vm).await {
        let detail = format!("host {host} has no virtual machine {vm}");
        return Err(ProblemResponse::new(StatusCode::NOT_FOUND, "no-such-vm", &detail));
    }
    let view = agent.context().fabric.open_view(vm).await.map_err(|error| {
        let detail = format!("virtual machine {vm}: {}", error_chain(&error));
        ProblemResponse::new(StatusCode::CONFLICT, "no-adapter", &detail)
    })?;
    tokio::spawn(async move {
        let ended = match upgrade.await {
            Ok(client) => session::bridge_stream(TokioIo::new(client), view).await,
            Err(error) => Err(io::Error::other(error)),
        };
        if let Err(error) = ended {
            tracing::debug!(%vm, "the view of an adapter closed: {error}");
        }
    });
    Ok(switching_protocols())
}

fn switching_protocols() -> Response {
    let switched = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "upgrade")
        .header(UPGRADE, PROTOCOL)
        .body(Body::empty());
    switched.expect("the headers are valid")
}

fn wants_session(headers: &HeaderMap) -> bool {
    let names = |name, wanted: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case(wanted))
    };
    names(CONNECTION, "upgrade") && names(UPGRADE, PROTOCOL)
}

/// An error response: a problem document (RFC 9457).
#[derive(Debug)]
struct ProblemResponse(Problem);

impl ProblemResponse {
    fn new(status: StatusCode, kind: &str, detail: &str) -> Self {
        Self(Problem {
            kind: kind.to_owned(),
            title: status.canonical_reason().unwrap_or("refused").to_owned(),
            status: status.as_u16(),
            detail: Some(detail.to_owned()),
            field: None,
            hint: None,
        })
    }

    fn no_such_host(host: &str) -> Self {
        let host: String = host.chars().take(64).collect();
        Self::new(StatusCode::NOT_FOUND, "no-such-host", &format!("this agent does not serve host {host:?}"))
    }
}

impl From<HostSpecError> for ProblemResponse {
    fn from(error: HostSpecError) -> Self {
        let (status, kind) = match &error {
            HostSpecError::NoSuchHost(_) => (StatusCode::NOT_FOUND, "no-such-host"),
            HostSpecError::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "bad-orders"),
            HostSpecError::OtherSite { .. } => (StatusCode::CONFLICT, OTHER_SITE),
            HostSpecError::Older { .. } => (StatusCode::CONFLICT, STALE_SPEC),
            HostSpecError::Ambiguous(_) => (StatusCode::CONFLICT, AMBIGUOUS_SPEC),
            HostSpecError::Elsewhere { .. } => (StatusCode::CONFLICT, "vm-elsewhere"),
            HostSpecError::Changed { .. } => (StatusCode::CONFLICT, "vm-changed"),
            HostSpecError::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "ending"),
            HostSpecError::NotStored { .. } => (StatusCode::INSUFFICIENT_STORAGE, "not-kept"),
        };
        let mut problem = Self::new(status, kind, &error_chain(&error));
        if let HostSpecError::Invalid(bad) = error {
            problem.0.field = Some(bad.field);
        }
        problem
    }
}

impl IntoResponse for ProblemResponse {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, [(CONTENT_TYPE, Problem::MEDIA_TYPE)], Json(self.0)).into_response()
    }
}
