//! Requests for API tokens.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use controller_api::ApiProblem;
use controller_api::tenant::{IssuedToken, NewToken, Token, TokenLifetime};
use uuid::Uuid;

use super::access::{self, Caller, NewSecret};
use super::error::{ApiError, Json, Path};
use crate::site::Site;
use crate::store::Revoked;

/// Most tokens of one tenant, and of operators together.
const TOKENS_MAX: usize = 200;

/// Longest lifetime of a token that expires: ten years, in seconds.
const LIFETIME_MAX_S: u64 = 10 * 365 * 24 * 60 * 60;

type Shared = State<Arc<Site>>;

/// List tokens
///
/// Without their secrets. Tokens of the caller, or all tokens for an operator.
#[utoipa::path(get, path = "/v1/tokens", operation_id = "token_list", responses((status = 200, body = Vec<Token>), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn list(State(site): Shared, caller: Caller) -> Result<Json<Vec<Token>>, ApiError> {
    Ok(Json(site.store.token_list(caller.scope()).await?))
}

/// Create a token
///
/// For the tenant of the caller or, by an operator, for anybody. The secret is returned only here.
#[utoipa::path(post, path = "/v1/tokens", operation_id = "token_create", request_body = NewToken, responses((status = 201, body = IssuedToken), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn create(
    State(site): Shared,
    caller: Caller,
    Json(new): Json<NewToken>,
) -> Result<(StatusCode, Json<IssuedToken>), ApiError> {
    let tenant =
        if new.operator {
            caller.operator()?;
            if new.tenant.is_some() {
                return Err(ApiError::invalid(
                    "tenant",
                    "a token belongs either to a tenant or to operators, not both",
                ));
            }
            None
        } else if caller == Caller::Operator && new.tenant.is_none() {
            return Err(ApiError::invalid("tenant", "a token belongs either to a tenant or to operators")
                .hint("set tenant, or operator: true"));
        } else {
            let tenant = caller.tenant(&site, new.tenant.as_ref()).await;
            Some(tenant.map_err(|error| {
                error.field("tenant").hint("operators list tenants with heddle tenant list")
            })?)
        };
    if let TokenLifetime::Seconds(seconds) = new.lifetime
        && !(1..=LIFETIME_MAX_S).contains(&seconds)
    {
        let detail =
            format!("lifetime must be between 1 and {LIFETIME_MAX_S} seconds, or never; got {seconds}");
        return Err(ApiError::invalid("lifetime", detail));
    }
    let _writer = site.writer.lock().await;
    let same_owner = |token: &&Token| token.tenant.as_ref() == tenant.as_ref().map(|tenant| &tenant.name);
    let count = site.store.token_list(None).await?.iter().filter(same_owner).count();
    if count >= TOKENS_MAX {
        let detail = format!("an owner can have at most {TOKENS_MAX} tokens, and has {count}");
        return Err(ApiError::conflict("too-many-tokens", detail).hint("revoke one: heddle token revoke"));
    }
    let secret = NewSecret { tenant, name: new.name, lifetime: new.lifetime };
    Ok((StatusCode::CREATED, Json(access::issue(&site, secret).await?)))
}

/// Revoke a token
///
/// A tenant can revoke its own tokens, an operator all. Streams that it opened end at once.
#[utoipa::path(delete, path = "/v1/tokens/{id}", operation_id = "token_revoke", params(("id" = Uuid, Path)), responses((status = 204), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn revoke(
    State(site): Shared,
    caller: Caller,
    Path(id): Path<Uuid>,
) -> Result<StatusCode, ApiError> {
    match site.store.token_revoke(id, caller.scope(), site.store.now().wall).await? {
        Revoked::Done => {
            site.revoked();
            Ok(StatusCode::NO_CONTENT)
        }
        Revoked::Missing => Err(ApiError::not_found("token", id)),
        Revoked::Last => {
            let detail = "the last valid operator token cannot be revoked: nobody could operate the site";
            Err(ApiError::conflict("last-operator-token", detail)
                .hint("create another first: heddle token create --operator"))
        }
    }
}
