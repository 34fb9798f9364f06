//! Client of the REST interface.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;

use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::address::{
    ConnectError, ControllerAddress, TrustedUsers, UntrustedSocket, connect_tcp, connect_unix,
};
use crate::cluster::{Cluster, NewCluster, PartitionsUpdate, ResizeRequest};
use crate::event::Event;
use crate::fabric::{FabricStatus, LinkStatus, Proof, SitePartitions};
use crate::host::{Host, HostBinding, NewHost, UnlistedVm};
use crate::image::{Image, NewImage};
use crate::operation::Operation;
use crate::tenant::{IssuedToken, NewTenant, NewToken, Tenant, TenantChange, Token};
use crate::view::{self, ViewStatus};
use crate::{ApiProblem, Name, session};

/// Most bytes of a response: the topology of the largest fabric takes some tens of MiB.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Client of the REST interface that authenticates with one token. Every request opens its own connection.
#[derive(Clone)]
pub struct ApiClient {
    endpoint: ControllerAddress,
    trusted: TrustedUsers,
    token: String,
}

/// The stream of an upgraded request.
pub type Upgraded = TokioIo<hyper::upgrade::Upgraded>;

/// Why a request failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The controller rejected the request.
    #[error(transparent)]
    Refused(#[from] Box<ApiProblem>),
    /// No response: connecting, sending or receiving failed.
    #[error("cannot reach a controller at {base}")]
    Unreachable {
        base: String,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The socket may belong to another user; no request was sent.
    #[error("no token was sent to {base}: {reason}")]
    Distrusted { base: String, reason: UntrustedSocket },
    /// The response is not one of a controller.
    #[error("unexpected response from {base}: {what}")]
    UnexpectedResponse { base: String, what: String },
}

/// A request before it is sent.
struct ApiRequest {
    method: Method,
    path: String,
    body: Option<Result<String, serde_json::Error>>,
    upgrade: Option<&'static str>,
}

impl ApiClient {
    /// A client for the controller at `endpoint`. If that is a unix socket, only `trusted` users may serve it.
    pub fn new(endpoint: ControllerAddress, trusted: TrustedUsers, token: String) -> Self {
        Self { endpoint, trusted, token }
    }

    /// `GET /v1/tenants`
    pub async fn tenant_list(&self) -> Result<Vec<Tenant>, ClientError> {
        self.get("tenants").await
    }

    /// `POST /v1/tenants`
    pub async fn tenant_create(&self, new: &NewTenant) -> Result<Tenant, ClientError> {
        self.send(Method::POST, "tenants", new).await
    }

    /// `GET /v1/tenants/{name}`
    pub async fn tenant_show(&self, name: &Name) -> Result<Tenant, ClientError> {
        self.get(&format!("tenants/{name}")).await
    }

    /// `PATCH /v1/tenants/{name}`
    pub async fn tenant_change(&self, name: &Name, change: &TenantChange) -> Result<Tenant, ClientError> {
        self.send(Method::PATCH, &format!("tenants/{name}"), change).await
    }

    /// `DELETE /v1/tenants/{name}`
    pub async fn tenant_delete(&self, name: &Name) -> Result<(), ClientError> {
        self.delete(&format!("tenants/{name}")).await
    }

    /// `GET /v1/tokens`
    pub async fn token_list(&self) -> Result<Vec<Token>, ClientError> {
        self.get("tokens").await
    }

    /// `POST /v1/tokens`
    pub async fn token_create(&self, new: &NewToken) -> Result<IssuedToken, ClientError> {
        self.send(Method::POST, "tokens", new).await
    }

    /// `DELETE /v1/tokens/{id}`
    pub async fn token_revoke(&self, id: Uuid) -> Result<(), ClientError> {
        self.delete(&format!("tokens/{id}")).await
    }

    /// `GET /v1/hosts`
    pub async fn host_list(&self) -> Result<Vec<Host>, ClientError> {
        self.get("hosts").await
    }

    /// `POST /v1/hosts`
    pub async fn host_add(&self, new: &NewHost) -> Result<Host, ClientError> {
        self.send(Method::POST, "hosts", new).await
    }

    /// `PUT /v1/hosts`
    pub async fn host_add_all(&self, new: &[NewHost]) -> Result<Vec<Name>, ClientError> {
        self.send(Method::PUT, "hosts", &new).await
    }

    /// `PUT /v1/hosts/{name}/binding`
    pub async fn host_bind(&self, name: &Name, binding: HostBinding) -> Result<Host, ClientError> {
        self.send(Method::PUT, &format!("hosts/{name}/binding"), &binding).await
    }

    /// `DELETE /v1/hosts/{name}`
    pub async fn host_remove(&self, name: &Name) -> Result<(), ClientError> {
        self.delete(&format!("hosts/{name}")).await
    }

    /// `GET /v1/unlisted`
    pub async fn unlisted_list(&self) -> Result<Vec<UnlistedVm>, ClientError> {
        self.get("unlisted").await
    }

    /// `DELETE /v1/unlisted/{id}`
    pub async fn unlisted_remove(&self, id: Uuid) -> Result<(), ClientError> {
        self.delete(&format!("unlisted/{id}")).await
    }

    /// `GET /v1/images`
    pub async fn image_list(&self) -> Result<Vec<Image>, ClientError> {
        self.get("images").await
    }

    /// `POST /v1/images`
    pub async fn image_add(&self, new: &NewImage) -> Result<Image, ClientError> {
        self.send(Method::POST, "images", new).await
    }

    /// `DELETE /v1/images/{name}`
    pub async fn image_remove(&self, name: &Name) -> Result<(), ClientError> {
        self.delete(&format!("images/{name}")).await
    }

    /// `GET /v1/clusters`
    pub async fn cluster_list(&self) -> Result<Vec<Cluster>, ClientError> {
        self.get("clusters").await
    }

    /// `POST /v1/clusters`
    pub async fn cluster_create(&self, new: &NewCluster) -> Result<Operation, ClientError> {
        self.send(Method::POST, "clusters", new).await
    }

    /// `GET /v1/clusters/{name}`
    pub async fn cluster_show(&self, name: &ClusterRef) -> Result<Cluster, ClientError> {
        self.get(&name.path()).await
    }

    /// `PATCH /v1/clusters/{name}`
    pub async fn cluster_resize(
        &self,
        name: &ClusterRef,
        resize: ResizeRequest,
    ) -> Result<Operation, ClientError> {
        self.send(Method::PATCH, &name.path(), &resize).await
    }

    /// `PUT /v1/clusters/{name}/partitions`
    pub async fn cluster_partition(
        &self,
        name: &ClusterRef,
        partitions: &PartitionsUpdate,
    ) -> Result<Operation, ClientError> {
        self.send(Method::PUT, &name.with("/partitions"), partitions).await
    }

    /// `DELETE /v1/clusters/{name}`
    pub async fn cluster_delete(&self, name: &ClusterRef) -> Result<Operation, ClientError> {
        self.answer(ApiRequest::new(Method::DELETE, &name.path())).await
    }

    /// `DELETE /v1/clusters/{name}?force=true`: for operators.
    pub async fn cluster_force_delete(&self, name: &ClusterRef) -> Result<Operation, ClientError> {
        let path = name.path();
        let separator = if path.contains('?') { '&' } else { '?' };
        self.answer(ApiRequest::new(Method::DELETE, &format!("{path}{separator}force=true"))).await
    }

    /// `GET /v1/operations/{id}`
    pub async fn operation_show(&self, id: Uuid) -> Result<Operation, ClientError> {
        self.get(&format!("operations/{id}")).await
    }

    /// `GET /v1/operations`: newest first.
    pub async fn operation_list(&self) -> Result<Vec<Operation>, ClientError> {
        self.get("operations").await
    }

    /// `GET /v1/events?after=N`: events after a number, or the latest; with `wait`, waits a few seconds for the next one.
    pub async fn event_list(&self, after: Option<i64>, wait: bool) -> Result<Vec<Event>, ClientError> {
        match after {
            Some(after) => self.get(&format!("events?after={after}&wait={wait}")).await,
            None => self.get("events").await,
        }
    }

    /// `GET /v1/fabric`
    pub async fn fabric_show(&self) -> Result<FabricStatus, ClientError> {
        self.get("fabric").await
    }

    /// `GET /v1/fabric/links`: all links with `all`, else those with guarantees.
    pub async fn fabric_links(&self, all: bool) -> Result<Vec<LinkStatus>, ClientError> {
        self.get(&format!("fabric/links?all={all}")).await
    }

    /// `GET /v1/fabric/partitions`
    pub async fn fabric_partitions(&self) -> Result<SitePartitions, ClientError> {
        self.get("fabric/partitions").await
    }

    /// `PUT /v1/fabric/partitions`: replaces all partitions of the site.
    pub async fn fabric_partitions_set(
        &self,
        partitions: &SitePartitions,
    ) -> Result<SitePartitions, ClientError> {
        self.send(Method::PUT, "fabric/partitions", partitions).await
    }

    /// `GET /v1/fabric/proof`: reads all tables back from the devices, which takes a while on large fabrics.
    pub async fn fabric_proof(&self) -> Result<Proof, ClientError> {
        self.get("fabric/proof").await
    }

    /// `POST /v1/clusters/{name}/nodes/{number}/sessions`: a stream of [`session`] frames.
    pub async fn session(
        &self,
        name: &ClusterRef,
        node: u32,
        open: &session::NewSession,
    ) -> Result<Upgraded, ClientError> {
        let request_parts =
            ApiRequest::new(Method::POST, &name.with(&format!("/nodes/{node}/sessions"))).with(open);
        self.upgrade(request_parts, session::PROTOCOL).await
    }

    /// `GET /v1/clusters/{name}/view`
    pub async fn view_show(&self, name: &ClusterRef) -> Result<ViewStatus, ClientError> {
        self.get(&name.with("/view")).await
    }

    /// `POST /v1/clusters/{name}/view/commit`
    pub async fn view_commit(&self, name: &ClusterRef) -> Result<ViewStatus, ClientError> {
        self.answer(ApiRequest::new(Method::POST, &name.with("/view/commit"))).await
    }

    /// `POST /v1/clusters/{name}/nodes/{number}/view`: a stream that ends at the adapter of the node.
    pub async fn view_open(&self, name: &ClusterRef, node: u32) -> Result<Upgraded, ClientError> {
        let request_parts = ApiRequest::new(Method::POST, &name.with(&format!("/nodes/{node}/view")));
        self.upgrade(request_parts, view::PROTOCOL).await
    }

    /// Sends a request and takes over its connection.
    async fn upgrade(
        &self,
        request_parts: ApiRequest,
        protocol: &'static str,
    ) -> Result<Upgraded, ClientError> {
        let mut driver = JoinSet::new();
        let request_parts = ApiRequest { upgrade: Some(protocol), ..request_parts };
        let mut response = self.connect_and_send(request_parts, &mut driver).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.problem(response).await);
        }
        let upgraded = hyper::upgrade::on(&mut response).await;
        upgraded.map(TokioIo::new).map_err(|source| self.unreachable(source))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.answer(ApiRequest::new(Method::GET, path)).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.answer(ApiRequest::new(method, path).with(body)).await
    }

    async fn delete(&self, path: &str) -> Result<(), ClientError> {
        let mut driver = JoinSet::new();
        let response = self.connect_and_send(ApiRequest::new(Method::DELETE, path), &mut driver).await?;
        if response.status().is_success() { Ok(()) } else { Err(self.problem(response).await) }
    }

    async fn answer<T: DeserializeOwned>(&self, request_parts: ApiRequest) -> Result<T, ClientError> {
        let mut driver = JoinSet::new();
        let response = self.connect_and_send(request_parts, &mut driver).await?;
        if !response.status().is_success() {
            return Err(self.problem(response).await);
        }
        let body = self.read(response.into_body()).await?;
        serde_json::from_slice(&body).map_err(|error| self.unexpected(error))
    }

    /// Connects and sends a request. The connection is driven by a task in `driver` and ends with it, unless it was
    /// upgraded.
    async fn connect_and_send(
        &self,
        request_parts: ApiRequest,
        driver: &mut JoinSet<()>,
    ) -> Result<Response<Incoming>, ClientError> {
        match &self.endpoint {
            ControllerAddress::Unix(path) => {
                let stream = connect_unix(path, self.trusted).await.map_err(|error| match error {
                    ConnectError::Unreachable(source) => self.unreachable(source),
                    ConnectError::Distrusted(reason) => ClientError::Distrusted { base: self.base(), reason },
                })?;
                self.exchange(stream, "heddle", request_parts, driver).await
            }
            ControllerAddress::Http { authority } => {
                let stream = connect_tcp(authority).await.map_err(|source| self.unreachable(source))?;
                self.exchange(stream, authority, request_parts, driver).await
            }
        }
    }

    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        host: &str,
        request_parts: ApiRequest,
        driver: &mut JoinSet<()>,
    ) -> Result<Response<Incoming>, ClientError> {
        let mut request = Request::builder()
            .method(request_parts.method)
            .uri(format!("/v1/{}", request_parts.path))
            .header(HOST, host)
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .header(ACCEPT, "application/json");
        if let Some(protocol) = request_parts.upgrade {
            request = request.header(CONNECTION, "upgrade").header(UPGRADE, protocol);
        }
        if request_parts.body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body =
            request_parts.body.transpose().map_err(|source| self.unreachable(source))?.unwrap_or_default();
        let request = request.body(body).map_err(|source| self.unreachable(source))?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|source| self.unreachable(source))?;
        driver.spawn(async move {
            // An error here also fails the request, which reports it.
            let _ = connection.with_upgrades().await;
        });
        sender.send_request(request).await.map_err(|source| self.unreachable(source))
    }

    async fn read(&self, mut body: Incoming) -> Result<Vec<u8>, ClientError> {
        let mut bytes = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.map_err(|source| self.unreachable(source))?;
            bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
            if bytes.len() > ANSWER_BYTES_MAX {
                return Err(
                    self.unexpected(format_args!("the response has more than {ANSWER_BYTES_MAX} bytes"))
                );
            }
        }
        Ok(bytes)
    }

    async fn problem(&self, response: Response<Incoming>) -> ClientError {
        let status = response.status();
        match self.read(response.into_body()).await.map(|body| serde_json::from_slice::<ApiProblem>(&body)) {
            Ok(Ok(problem)) => ClientError::Refused(Box::new(problem)),
            Ok(Err(_)) => self.unexpected(format_args!("status {status} without problem details")),
            Err(error) => error,
        }
    }

    fn base(&self) -> String {
        self.endpoint.to_string()
    }

    fn unreachable(&self, source: impl Into<Box<dyn Error + Send + Sync>>) -> ClientError {
        ClientError::Unreachable { base: self.base(), source: source.into() }
    }

    fn unexpected(&self, what: impl fmt::Display) -> ClientError {
        ClientError::UnexpectedResponse { base: self.base(), what: what.to_string() }
    }
}

impl ApiRequest {
    fn new(method: Method, path: &str) -> Self {
        Self { method, path: path.to_owned(), body: None, upgrade: None }
    }

    fn with(self, body: &impl Serialize) -> Self {
        Self { body: Some(serde_json::to_string(body)), ..self }
    }
}

impl fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiClient").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// Name of a cluster; operators also name its tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterRef {
    pub name: Name,
    /// Owner of the cluster; `None` for the caller's own.
    pub tenant: Option<Name>,
}

impl ClusterRef {
    fn path(&self) -> String {
        self.with("")
    }

    fn with(&self, rest: &str) -> String {
        match &self.tenant {
            Some(tenant) => format!("clusters/{}{rest}?tenant={tenant}", self.name),
            None => format!("clusters/{}{rest}", self.name),
        }
    }
}
