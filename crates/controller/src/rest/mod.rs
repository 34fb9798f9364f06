//! The REST interface: who asks, what they may, and how it is told.

mod access;
mod clusters;
mod disclosure;
mod error;
mod fabric;
mod hosts;
mod lease;
mod rate;
mod sessions;
mod site;
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
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::site::Site;

pub use access::{NewSecret, issue, read_token};
use error::ApiError;
pub use rate::Rates;

/// Largest request: a cluster with many keys is far below.
const REQUEST_BYTES_MAX: usize = 1024 * 1024;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Heddle",
        description = "Virtual InfiniBand clusters: created, grown, shrunk and deleted. Requests carry a token as \
                       `Authorization: Bearer …`. Errors are problem details (RFC 9457): `type` is a word that programs can rely \
                       on, `detail` says what was wrong, `place` where, `hint` what would work."
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

/// Everything that can be asked, and its description.
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
        .routes(routes!(site::image_list, site::image_add))
        .routes(routes!(site::image_remove))
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
}

/// The interface, ready to be served.
pub fn router(site: Arc<Site>) -> Router {
    let (router, description) = interface().split_for_parts();
    // Written once: whoever asks needs no token, and has no rate.
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

/// A change is answered only after its revision is on disk outside the store, too; on a store that agents do not follow,
/// nothing is changed.
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

/// The description of the interface.
pub fn openapi() -> utoipa::openapi::OpenApi {
    interface().split_for_parts().1
}
