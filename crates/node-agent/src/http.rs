//! The interface of `controller_api::agent`, at a unix socket that only its owner can open.

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
use controller_api::agent::{AMBIGUOUS_ORDERS, OLDER_ORDERS, OTHER_SITE, Orders, Report};
use controller_api::session::{Open, PROTOCOL};
use controller_api::{Name, Problem};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Deserialize;
use thiserror::Error;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use uuid::Uuid;

use crate::agent::{Agent, HostSpecError};
use crate::link::SessionError;
use crate::session;

/// Longest orders: a full host in a large cluster.
const SPEC_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Longest request for a session: a command with its arguments.
const OPEN_BYTES_MAX: usize = 64 * 1024;

/// How long a report is waited for before the last one is sent again.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the head of a request may take, and how long a connection may wait for its next request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a request may take in all, with its body: a report is waited for at most two times [`REPORT_TIMEOUT`].
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Connections at once: a controller has one or two per host, and each session has one.
const CONNECTIONS_MAX: usize = 1024;

/// How long to wait if no connection can be accepted, for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// HttpLimits on those who ask.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// For the head of a request, and between requests.
    pub header: Duration,
    /// For a whole request but a session.
    pub request: Duration,
    /// Connections at once; more wait to be accepted.
    pub connections: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self { header: HEADER_TIMEOUT, request: REQUEST_TIMEOUT, connections: CONNECTIONS_MAX }
    }
}

/// Answers requests at a socket, within limits, for ever. A connection that became a session does not count: sessions have limits
/// of their own.
pub async fn serve(listener: UnixListener, router: Router, limits: HttpLimits) -> ! {
    let within = axum::middleware::from_fn(move |request: Request, next: Next| async move {
        match timeout(limits.request, next.run(request)).await {
            Ok(response) => response,
            Err(_) => {
                let what = format!("the request took longer than {} s", limits.request.as_secs());
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
                tracing::debug!("a connection ended: {error}");
            }
            drop(slot);
        });
    }
}

/// Why there is no socket.
#[derive(Debug, Error)]
pub enum AgentSocketError {
    /// Something is there that is no socket.
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    #[error("somebody else serves {}", .0.display())]
    InUse(PathBuf),
    /// It cannot be made.
    #[error("cannot listen at {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Opens the socket. One that nobody serves any more is replaced; anything else that is there stays.
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
    // Under its name it is there only with its mode.
    let beside = path.with_extension("new");
    crate::durable::remove(&beside).map_err(failed)?;
    let listener = UnixListener::bind(&beside).map_err(failed)?;
    fs::set_permissions(&beside, Permissions::from_mode(0o600)).map_err(failed)?;
    fs::rename(&beside, path).map_err(failed)?;
    Ok(listener)
}

/// Answers requests.
pub fn router(agent: Arc<Agent>) -> Router {
    Router::new()
        .route("/v1/hosts", get(host_list))
        .route("/v1/hosts/{host}", get(get_report).put(put_spec))
        .route("/v1/hosts/{host}/vms/{id}/sessions", post(open_session))
        .fallback(|| async {
            ProblemResponse::new(StatusCode::NOT_FOUND, "no-such-path", "there is nothing here")
        })
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
) -> Result<Json<Report>, ProblemResponse> {
    let name = host.parse::<Name>().ok();
    let reports = name.and_then(|name| agent.context().reports.subscribe(&name));
    let mut reports = reports.ok_or_else(|| ProblemResponse::no_such_host(&host))?;
    // Before libvirt was asked what is there, a report without a virtual machine would say that it is gone.
    if timeout(REPORT_TIMEOUT, agent.context().ready()).await.is_err() {
        let what = "libvirt does not answer yet, so it is not known what runs";
        return Err(ProblemResponse::new(StatusCode::SERVICE_UNAVAILABLE, "not-known-yet", what));
    }
    if let Some(after) = after {
        // Whether or not it has changed by then, the report is sent.
        let _ = timeout(REPORT_TIMEOUT, reports.wait_for(|report| report.number > after)).await;
    }
    let report = Report::clone(&reports.borrow());
    Ok(Json(report))
}

async fn put_spec(
    State(agent): State<Arc<Agent>>,
    UrlPath(host): UrlPath<String>,
    body: Bytes,
) -> Result<StatusCode, ProblemResponse> {
    let name: Name = host.parse().map_err(|_| ProblemResponse::no_such_host(&host))?;
    let orders: Orders = serde_json::from_slice(&body).map_err(|error| {
        // What serde says may quote a secret: its place is enough.
        let what = format!("line {}, column {} makes no sense", error.line(), error.column());
        ProblemResponse::new(StatusCode::BAD_REQUEST, "not-orders", &format!("orders cannot be read: {what}"))
    })?;
    agent.apply_spec(&name, orders).await.map_err(ProblemResponse::from)?;
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
        let what = format!("a session needs `Connection: upgrade` and `Upgrade: {PROTOCOL}`");
        return Err(ProblemResponse::new(StatusCode::UPGRADE_REQUIRED, "upgrade-required", &what));
    }
    let name: Name = host.parse().map_err(|_| no_vm())?;
    let vm: Uuid = id.parse().map_err(|_| no_vm())?;
    let upgrade = hyper::upgrade::on(&mut request);
    let bad = |what: String| ProblemResponse::new(StatusCode::BAD_REQUEST, "not-a-session", &what);
    let body = axum::body::to_bytes(request.into_body(), OPEN_BYTES_MAX).await;
    let body = body.map_err(|error| bad(format!("what is to be opened cannot be read: {error}")))?;
    let what: Open =
        serde_json::from_slice(&body).map_err(|error| bad(format!("cannot be opened: {error}")))?;
    let opener = agent.session_opener(&name, vm).await.ok_or_else(no_vm)?;
    let silent = |why: &str| {
        ProblemResponse::new(StatusCode::CONFLICT, "no-guest", &format!("virtual machine {vm}: {why}"))
    };
    let opened = opener.ok_or_else(|| silent("it does not run"))?.open(what).await;
    let opened = opened.map_err(|error| match error {
        SessionError::GuestUnavailable(why) => silent(&why),
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
            tracing::debug!(%vm, "a session ended: {error}");
        }
    });
    let switched = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "upgrade")
        .header(UPGRADE, PROTOCOL)
        .body(Body::empty());
    Ok(switched.expect("these headers are fine"))
}

fn wants_session(headers: &HeaderMap) -> bool {
    let names = |name, wanted: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case(wanted))
    };
    names(CONNECTION, "upgrade") && names(UPGRADE, PROTOCOL)
}

/// An answer that says no.
#[derive(Debug)]
struct ProblemResponse(Problem);

impl ProblemResponse {
    fn new(status: StatusCode, kind: &str, detail: &str) -> Self {
        Self(Problem {
            kind: kind.to_owned(),
            title: status.canonical_reason().unwrap_or("refused").to_owned(),
            status: status.as_u16(),
            detail: Some(detail.to_owned()),
            place: None,
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
            HostSpecError::Older { .. } => (StatusCode::CONFLICT, OLDER_ORDERS),
            HostSpecError::Ambiguous(_) => (StatusCode::CONFLICT, AMBIGUOUS_ORDERS),
            HostSpecError::Elsewhere { .. } => (StatusCode::CONFLICT, "vm-elsewhere"),
            HostSpecError::Changed { .. } => (StatusCode::CONFLICT, "vm-changed"),
            HostSpecError::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "ending"),
            HostSpecError::NotStored { .. } => (StatusCode::INSUFFICIENT_STORAGE, "not-kept"),
        };
        let mut refusal = Self::new(status, kind, &error.to_string());
        if let HostSpecError::Invalid(bad) = error {
            refusal.0.place = Some(bad.field);
        }
        refusal
    }
}

impl IntoResponse for ProblemResponse {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, [(CONTENT_TYPE, Problem::MEDIA_TYPE)], Json(self.0)).into_response()
    }
}
