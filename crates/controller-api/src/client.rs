//! Asks a controller.

use std::fmt;

use reqwest::header::{ACCEPT, CONNECTION, UPGRADE};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use uuid::Uuid;

use crate::cluster::{Cluster, NewCluster, Partitions, Resize};
use crate::event::Event;
use crate::fabric::{Fabric, Proof};
use crate::host::{Host, NewHost};
use crate::image::{Image, NewImage};
use crate::operation::Operation;
use crate::tenant::{IssuedToken, NewTenant, NewToken, Tenant, TenantChange, Token};
use crate::view::{self, View};
use crate::{Name, Problem, session};

/// Asks a controller, as whoever a token belongs to.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    token: String,
}

/// What can go wrong.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The controller refused.
    #[error(transparent)]
    Refused(#[from] Box<Problem>),
    /// The controller could not be asked.
    #[error("no controller answers at {base}")]
    Unreachable {
        /// Where it was expected.
        base: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// What answered is no controller.
    #[error("what answers at {base} is no controller: {what}")]
    Nonsense {
        /// Where it was expected.
        base: String,
        /// What was wrong.
        what: String,
    },
}

impl Client {
    /// For the controller at `base`, such as `http://127.0.0.1:7420`.
    pub fn new(base: &str, token: String) -> Result<Self, ClientError> {
        let base = base.trim_end_matches('/').to_owned();
        let http = reqwest::Client::builder().no_proxy().build();
        let http = http.map_err(|source| ClientError::Unreachable { base: base.clone(), source })?;
        Ok(Self { http, base, token })
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

    /// `DELETE /v1/hosts/{name}`
    pub async fn host_remove(&self, name: &Name) -> Result<(), ClientError> {
        self.delete(&format!("hosts/{name}")).await
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
    pub async fn cluster_resize(&self, name: &ClusterRef, resize: Resize) -> Result<Operation, ClientError> {
        self.send(Method::PATCH, &name.path(), &resize).await
    }

    /// `PUT /v1/clusters/{name}/partitions`
    pub async fn cluster_partition(
        &self,
        name: &ClusterRef,
        partitions: &Partitions,
    ) -> Result<Operation, ClientError> {
        self.send(Method::PUT, &name.with("/partitions"), partitions).await
    }

    /// `DELETE /v1/clusters/{name}`
    pub async fn cluster_delete(&self, name: &ClusterRef) -> Result<Operation, ClientError> {
        let request = self.request(Method::DELETE, &name.path());
        self.answer(request).await
    }

    /// `GET /v1/operations/{id}`
    pub async fn operation_show(&self, id: Uuid) -> Result<Operation, ClientError> {
        self.get(&format!("operations/{id}")).await
    }

    /// `GET /v1/operations`: the newest ones first.
    pub async fn operation_list(&self) -> Result<Vec<Operation>, ClientError> {
        self.get("operations").await
    }

    /// `GET /v1/events?after=N`: those after a number, or the latest ones; waits a few seconds for one if `wait`.
    pub async fn event_list(&self, after: Option<i64>, wait: bool) -> Result<Vec<Event>, ClientError> {
        match after {
            Some(after) => self.get(&format!("events?after={after}&wait={wait}")).await,
            None => self.get("events").await,
        }
    }

    /// `GET /v1/fabric`
    pub async fn fabric_show(&self) -> Result<Fabric, ClientError> {
        self.get("fabric").await
    }

    /// `GET /v1/fabric/proof`: reads every table back from the devices, which takes a while on large fabrics.
    pub async fn fabric_proof(&self) -> Result<Proof, ClientError> {
        self.get("fabric/proof").await
    }

    /// `POST /v1/clusters/{name}/nodes/{number}/sessions`: a stream of [`session`] frames.
    pub async fn session(
        &self,
        name: &ClusterRef,
        node: u32,
        open: &session::Open,
    ) -> Result<reqwest::Upgraded, ClientError> {
        let request = self.request(Method::POST, &name.with(&format!("/nodes/{node}/sessions"))).json(open);
        self.upgrade(request, session::PROTOCOL).await
    }

    /// `GET /v1/clusters/{name}/view`
    pub async fn view_show(&self, name: &ClusterRef) -> Result<View, ClientError> {
        self.get(&name.with("/view")).await
    }

    /// `POST /v1/clusters/{name}/view/commit`
    pub async fn view_commit(&self, name: &ClusterRef) -> Result<View, ClientError> {
        self.answer(self.request(Method::POST, &name.with("/view/commit"))).await
    }

    /// `POST /v1/clusters/{name}/nodes/{number}/view`: a stream that ends at the adapter of the node.
    pub async fn view_open(&self, name: &ClusterRef, node: u32) -> Result<reqwest::Upgraded, ClientError> {
        let request = self.request(Method::POST, &name.with(&format!("/nodes/{node}/view")));
        self.upgrade(request, view::PROTOCOL).await
    }

    /// A request that becomes a stream.
    async fn upgrade(
        &self,
        request: RequestBuilder,
        protocol: &'static str,
    ) -> Result<reqwest::Upgraded, ClientError> {
        let request = request.header(CONNECTION, "upgrade").header(UPGRADE, protocol);
        let response = request.send().await.map_err(|source| self.unreachable(source))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.problem(response).await);
        }
        response.upgrade().await.map_err(|source| self.unreachable(source))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.answer(self.request(Method::GET, path)).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.answer(self.request(method, path).json(body)).await
    }

    async fn delete(&self, path: &str) -> Result<(), ClientError> {
        let request = self.request(Method::DELETE, path);
        let response = request.send().await.map_err(|source| self.unreachable(source))?;
        if response.status().is_success() { Ok(()) } else { Err(self.problem(response).await) }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("{}/v1/{path}", self.base);
        self.http.request(method, url).bearer_auth(&self.token).header(ACCEPT, "application/json")
    }

    async fn answer<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        let response = request.send().await.map_err(|source| self.unreachable(source))?;
        if !response.status().is_success() {
            return Err(self.problem(response).await);
        }
        let body = response.bytes().await.map_err(|source| self.unreachable(source))?;
        serde_json::from_slice(&body).map_err(|error| self.nonsense(error))
    }

    async fn problem(&self, response: reqwest::Response) -> ClientError {
        let status = response.status();
        match response.json::<Problem>().await {
            Ok(problem) => ClientError::Refused(Box::new(problem)),
            Err(_) => self.nonsense(format_args!("status {status}")),
        }
    }

    fn unreachable(&self, source: reqwest::Error) -> ClientError {
        ClientError::Unreachable { base: self.base.clone(), source }
    }

    fn nonsense(&self, what: impl fmt::Display) -> ClientError {
        ClientError::Nonsense { base: self.base.clone(), what: what.to_string() }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("base", &self.base).finish_non_exhaustive()
    }
}

/// A cluster by name; operators may have to say whose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterRef {
    /// What it is called.
    pub name: Name,
    /// Whose it is, if not the asker's.
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
