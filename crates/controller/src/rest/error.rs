//! How requests are refused: as problem details.

use std::time::Duration;

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use controller_api::Problem;
use serde::de::DeserializeOwned;

use super::REQUEST_BYTES_MAX;
use crate::store::StoreError;

/// A request that is refused.
#[derive(Debug)]
pub struct ApiError(Box<Problem>);

impl ApiError {
    /// What is wrong, in a word for programs and a sentence for people.
    pub fn new(status: StatusCode, kind: &str, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Refused").to_owned();
        let detail = Some(detail.into());
        Self(Box::new(Problem {
            kind: kind.to_owned(),
            title,
            status: status.as_u16(),
            detail,
            field: None,
            hint: None,
        }))
    }

    /// What was sent makes no sense.
    pub fn invalid(field: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail).field(field)
    }

    /// There is no such thing, or it is somebody else's, which is not told.
    pub fn not_found(what: &str, name: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, &format!("no-such-{what}"), format!("there is no {what} {name}"))
    }

    /// It cannot be now.
    pub fn conflict(kind: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, kind, detail)
    }

    /// The store is not the newest: what it says of clusters and tokens may be over.
    pub fn superseded() -> Self {
        let detail = "the store is older than what hosts run: tenants are not served and nothing is changed until the operator has \
                      recovered it";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "store-superseded", detail)
    }

    /// Where it is wrong.
    pub fn field(mut self, field: &str) -> Self {
        self.0.field = Some(field.to_owned());
        self
    }

    /// What would work.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.0).unwrap_or_default();
        let mut response = (status, [(header::CONTENT_TYPE, Problem::MEDIA_TYPE)], body).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// What is wrong with the store is for who runs it, not for who asks.
impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        tracing::error!("{}", crate::chain(&error));
        let detail = "the store does not work; the controller's log says why";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "store", detail)
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

/// How long the body of a request may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(20);

/// A body in JSON, refused as a problem.
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

/// Refuses a body tenant_query declared length is over the limit, before any of it is read.
pub async fn refuse_large(request: Request, next: Next) -> Response {
    let declared = request.headers().get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    match declared {
        Some(length) if length > REQUEST_BYTES_MAX as u64 => {
            let detail =
                format!("the body must have at most {REQUEST_BYTES_MAX} bytes, declared are {length}");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail).field("body").into_response()
        }
        _ => next.run(request).await,
    }
}

/// Parts of a path, refused as a problem.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(ApiError))]
pub struct Path<T>(pub T);

/// Parameters, refused as a problem.
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Query), rejection(ApiError))]
pub struct Query<T>(pub T);

impl<T: serde::Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

/// Nothing is there.
pub async fn no_such_path(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "no-such-path", format!("there is nothing at {}", uri.path()))
        .hint("/v1/openapi.json says what is")
}

/// Something else can be asked there.
pub async fn no_such_method(method: Method, uri: Uri) -> ApiError {
    let detail = format!("{method} is not for {}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "no-such-method", detail)
        .hint("/v1/openapi.json says what is")
}
