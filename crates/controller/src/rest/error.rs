//! Error responses: problem details of RFC 9457.

use std::time::Duration;

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use controller_api::limit::Limit;
use controller_api::{ApiProblem, Problem};
use serde::de::DeserializeOwned;

use super::REQUEST_BYTES_MAX;
use crate::rate::RateExceeded;
use crate::store::StoreError;

/// Error response: problem details.
#[derive(Debug)]
pub struct ApiError(Box<ApiProblem>);

impl ApiError {
    /// An error with a stable type and a description of this occurrence.
    pub fn new(status: StatusCode, kind: &str, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Refused").to_owned();
        let detail = Some(detail.into());
        let (kind, status) = (kind.to_owned(), status.as_u16());
        Self(Box::new(Problem { kind, title, status, detail, field: None, hint: None }.into()))
    }

    /// 422: a field of the request is invalid.
    pub fn invalid(field: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail).field(field)
    }

    /// 404: the resource does not exist, or belongs to another tenant, which is not disclosed.
    pub fn not_found(what: &str, name: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, &format!("no-such-{what}"), format!("there is no {what} {name}"))
    }

    /// 409: the current state does not allow the request.
    pub fn conflict(kind: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, kind, detail)
    }

    /// 500: a defect; the cause is in the log.
    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
    }

    /// 503: the store is not the latest, so its clusters and tokens may be outdated.
    pub fn superseded() -> Self {
        let detail = "the store is older than the specs that hosts follow: requests of tenants and changes are rejected until an \
                      operator has recovered it";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "store-superseded", detail)
    }

    /// Names the invalid field.
    pub fn field(mut self, field: &str) -> Self {
        self.0.problem.field = Some(field.to_owned());
        self
    }

    /// Adds a suggestion.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.problem.hint = Some(hint.into());
        self
    }

    /// Adds the limit that the request exceeds, as far as the caller may know it.
    pub fn limit(mut self, limit: Option<Limit>) -> Self {
        self.0.limit = limit;
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.0).unwrap_or_default();
        let mut response = (status, [(header::CONTENT_TYPE, ApiProblem::MEDIA_TYPE)], body).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Details are logged for operators and not sent to the caller.
impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        tracing::error!("{}", crate::chain(&error));
        let detail = "the store failed; see the log of the controller";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "store", detail)
    }
}

impl From<RateExceeded> for ApiError {
    fn from(refused: RateExceeded) -> Self {
        let seconds = refused.retry_after.as_secs() + 1;
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too-many-requests", "the tenant exceeds its request rate")
            .hint(format!("send the request again after {seconds} s; sequential requests are never rejected"))
    }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> Self {
        let status = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => StatusCode::PAYLOAD_TOO_LARGE,
            StatusCode::UNSUPPORTED_MEDIA_TYPE => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, "invalid", rejection.body_text()).field("body")
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::invalid("path", rejection.body_text())
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::invalid("query", rejection.body_text())
    }
}

/// Longest time for the body of a request to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(20);

/// JSON body; problem details on errors.
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        match tokio::time::timeout(BODY_TIMEOUT, axum::Json::from_request(request, state)).await {
            Ok(read) => read.map(|axum::Json(value)| Self(value)).map_err(ApiError::from),
            Err(_) => {
                let detail = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
                Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "too-slow", detail).field("body"))
            }
        }
    }
}

/// Rejects a body whose declared length is over the limit before any of it is read.
pub async fn refuse_large(request: Request, next: Next) -> Response {
    let declared = request.headers().get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    match declared {
        Some(length) if length > REQUEST_BYTES_MAX as u64 => {
            let detail = format!("the body must have at most {REQUEST_BYTES_MAX} bytes, got {length}");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail).field("body").into_response()
        }
        _ => next.run(request).await,
    }
}

/// Path parameters; problem details on errors.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(ApiError))]
pub struct Path<T>(pub T);

/// Query parameters; problem details on errors.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Query), rejection(ApiError))]
pub struct Query<T>(pub T);

impl<T: serde::Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

/// 404 for an unknown path.
pub async fn no_such_path(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "no-such-path", format!("unknown path {}", uri.path()))
        .hint("see /v1/openapi.json")
}

/// 405 for an unknown method.
pub async fn no_such_method(method: Method, uri: Uri) -> ApiError {
    let detail = format!("method {method} is not allowed for {}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "no-such-method", detail).hint("see /v1/openapi.json")
}
