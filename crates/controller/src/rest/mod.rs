//! The REST interface: authentication, handlers and error responses.

mod access;
mod clusters;
mod disclosure;
mod error;
mod fabric;
mod hosts;
mod images;
mod lease;
mod limits;
mod links;
mod refusals;
mod sessions;
mod tenants;
mod tokens;
mod unlisted;
mod upgrade;
mod views;

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{CONTENT_TYPE, UPGRADE};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use utoipa::OpenApi;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{PathItem, RefOr};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::site::Site;

pub use access::{NewSecret, issue, read_token};
use error::ApiError;

/// Largest request: a cluster with many keys is far smaller.
const REQUEST_BYTES_MAX: usize = 1024 * 1024;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Heddle",
        description = "REST interface of Heddle: isolated virtual clusters on a shared InfiniBand fabric. Requests carry a token \
                       as `Authorization: Bearer …`. Errors are problem details (RFC 9457): `type` is stable and machine-readable, \
                       `detail` describes the occurrence, `field` names the invalid field, `hint` suggests the next step, and `limit` \
                       tells programs which limit the request exceeds."
    ),
    modifiers(&Bearer),
    security(("token" = []))
)]
struct Description;

struct Bearer;

impl utoipa::Modify for Bearer {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        openapi.components.get_or_insert_default().add_security_scheme("token", scheme);
    }
}

/// All routes with their OpenAPI description.
fn interface() -> OpenApiRouter<Arc<Site>> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(tenants::list, tenants::create))
        .routes(routes!(tenants::show, tenants::change, tenants::delete))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::revoke))
        .routes(routes!(hosts::list, hosts::add, hosts::add_all))
        .routes(routes!(hosts::remove))
        .routes(routes!(hosts::bind))
        .routes(routes!(unlisted::list))
        .routes(routes!(unlisted::remove))
        .routes(routes!(images::list, images::add))
        .routes(routes!(images::remove))
        .routes(routes!(clusters::list, clusters::create))
        .routes(routes!(clusters::show, clusters::resize, clusters::delete))
        .routes(routes!(clusters::partition))
        .routes(routes!(sessions::open))
        .routes(routes!(views::show))
        .routes(routes!(views::commit))
        .routes(routes!(views::open))
        .routes(routes!(clusters::operation_list))
        .routes(routes!(clusters::operation_show))
        .routes(routes!(fabric::event_list))
        .routes(routes!(fabric::show))
        .routes(routes!(fabric::proof))
        .routes(routes!(fabric::partitions, fabric::partitions_set))
        .routes(routes!(links::list))
}

/// The routes with error handling and limits.
pub fn router(site: Arc<Site>) -> Router {
    let (router, description) = (interface().split_for_parts().0, openapi());
    // Serialized once: the query needs no token and has no rate limit.
    let description = Bytes::from(serde_json::to_vec(&description).unwrap_or_default());
    let describe = async move || ([(CONTENT_TYPE, "application/json")], description);
    router
        .route("/v1/openapi.json", axum::routing::get(describe))
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .layer(axum::middleware::from_fn(error::refuse_large))
        .layer(middleware::from_fn_with_state(Arc::clone(&site), mirror_changes))
        .with_state(site)
}

/// Answers a change only after its revision is in the sidecar, and rejects changes on a store that agents do not follow.
async fn mirror_changes(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let is_change = !request.method().is_safe() && !request.headers().contains_key(UPGRADE);
    if is_change && site.with_observed(|observed| observed.superseded.is_some()) {
        return ApiError::superseded().into_response();
    }
    let response = next.run(request).await;
    if is_change {
        site.mirror().await;
    }
    response
}

/// The OpenAPI description of all routes.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut description = interface().split_for_parts().1;
    for path in description.paths.paths.values_mut() {
        let PathItem { get, put, post, delete, patch, .. } = path;
        for operation in [get, put, post, delete, patch].into_iter().flatten() {
            describe(operation);
        }
    }
    description
}

/// Describes the responses and path parameters that all operations have in common.
fn describe(operation: &mut Operation) {
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response
            && response.description.is_empty()
        {
            response.description = match status.as_str() {
                "200" => "Requested representation as JSON",
                "201" => "Created resource as JSON",
                "202" => "Accepted request; completed asynchronously",
                "204" => "Completed request without content",
                _ => "Problem details of the error (RFC 9457)",
            }
            .to_owned();
        }
    }
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        parameter.description.get_or_insert_with(|| {
            let text = match parameter.name.as_str() {
                "name" => "Name of the resource",
                "number" => "Number of the node within its cluster, from 1",
                _ => "Unique id of the resource",
            };
            text.to_owned()
        });
    }
}
