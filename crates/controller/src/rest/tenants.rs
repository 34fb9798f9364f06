//! Tenants and their quotas.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use controller_api::quota::QuotaChange;
use controller_api::tenant::{NewTenant, Tenant, TenantChange};
use controller_api::{ApiProblem, Name};
use uuid::Uuid;

use super::access::Caller;
use super::error::{ApiError, Json, Path};
use crate::quota::usage;
use crate::site::Site;
use crate::store::{ClusterRow, StoreError, TenantRef, TenantRow};

type Shared = State<Arc<Site>>;

/// List tenants
///
/// Available to operators only.
#[utoipa::path(get, path = "/v1/tenants", operation_id = "tenant_list", responses((status = 200, body = Vec<Tenant>), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn list(State(site): Shared, caller: Caller) -> Result<Json<Vec<Tenant>>, ApiError> {
    caller.operator()?;
    let mut clusters: HashMap<Uuid, Vec<ClusterRow>> = HashMap::new();
    for cluster in site.store.cluster_list().await? {
        clusters.entry(cluster.tenant.id).or_default().push(cluster);
    }
    let mut tenants = Vec::new();
    for row in site.store.tenant_list().await? {
        let own = clusters.remove(&row.tenant.id).unwrap_or_default();
        tenants.push(tenant_status(&site, row, &own).await?);
    }
    Ok(Json(tenants))
}

/// Show a tenant
///
/// With its quota and usage. A tenant can see itself, an operator all.
#[utoipa::path(get, path = "/v1/tenants/{name}", operation_id = "tenant_show", params(("name" = String, Path)), responses((status = 200, body = Tenant), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn show(
    State(site): Shared,
    caller: Caller,
    Path(name): Path<Name>,
) -> Result<Json<Tenant>, ApiError> {
    let tenant = caller.tenant(&site, Some(&name)).await?;
    let row = site.store.tenant_show(tenant.id).await?.ok_or_else(|| ApiError::not_found("tenant", name))?;
    let clusters = site.store.cluster_list_of(tenant.id).await?;
    Ok(Json(tenant_status(&site, row, &clusters).await?))
}

/// Create a tenant
///
/// Available to operators only.
#[utoipa::path(post, path = "/v1/tenants", operation_id = "tenant_create", request_body = NewTenant, responses((status = 201, body = Tenant), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn create(
    State(site): Shared,
    caller: Caller,
    Json(new): Json<NewTenant>,
) -> Result<(StatusCode, Json<Tenant>), ApiError> {
    caller.operator()?;
    check(&new.quota)?;
    let tenant = TenantRef { id: Uuid::new_v4(), name: new.name.clone() };
    let row = TenantRow { tenant, created: site.store.now().wall, quota: new.quota };
    site.store.tenant_create(&row).await.map_err(|error| {
        if error.is_taken() {
            ApiError::conflict("name-taken", format!("tenant {} exists already", new.name)).field("name")
        } else {
            error.into()
        }
    })?;
    site.note("tenant.created", format!("tenant {} created", new.name)).await?;
    Ok((StatusCode::CREATED, Json(tenant_status(&site, row, &[]).await?)))
}

/// Change the quota of a tenant
///
/// Usage above a new limit stays, and cannot grow. For operators.
#[utoipa::path(patch, path = "/v1/tenants/{name}", operation_id = "tenant_change", params(("name" = String, Path)), request_body = TenantChange, responses((status = 200, body = Tenant), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn change(
    State(site): Shared,
    caller: Caller,
    Path(name): Path<Name>,
    Json(change): Json<TenantChange>,
) -> Result<Json<Tenant>, ApiError> {
    caller.operator()?;
    check(&change.quota)?;
    let _writer = site.writer.lock().await;
    let tenant = caller.tenant(&site, Some(&name)).await?;
    let row = site.store.tenant_show(tenant.id).await?.ok_or_else(|| ApiError::not_found("tenant", &name))?;
    let row = TenantRow { quota: row.quota.then(change.quota), ..row };
    site.store.tenant_quota_set(tenant.id, &row.quota).await?;
    site.note("tenant.quota-changed", format!("quota of tenant {name} changed")).await?;
    let clusters = site.store.cluster_list_of(tenant.id).await?;
    Ok(Json(tenant_status(&site, row, &clusters).await?))
}

/// Delete a tenant
///
/// With its tokens. Fails if it has clusters. For operators.
#[utoipa::path(delete, path = "/v1/tenants/{name}", operation_id = "tenant_delete", params(("name" = String, Path)), responses((status = 204), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn delete(
    State(site): Shared,
    caller: Caller,
    Path(name): Path<Name>,
) -> Result<StatusCode, ApiError> {
    caller.operator()?;
    let _writer = site.writer.lock().await;
    let removed = site.store.tenant_delete(&name).await.map_err(|error| {
        if error.is_needed() {
            ApiError::conflict("in-use", format!("tenant {name} has clusters")).hint("delete them first")
        } else {
            error.into()
        }
    })?;
    if !removed {
        return Err(ApiError::not_found("tenant", name));
    }
    // Its tokens are gone with it.
    site.revoked();
    site.note("tenant.deleted", format!("tenant {name} deleted")).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn tenant_status(site: &Site, row: TenantRow, clusters: &[ClusterRow]) -> Result<Tenant, StoreError> {
    let usage = usage(clusters, site.store.number_count(row.tenant.id).await?);
    let TenantRow { tenant, created, quota } = row;
    Ok(Tenant {
        id: tenant.id,
        name: tenant.name,
        created,
        clusters: usage.clusters,
        quota: quota.quota(),
        usage,
    })
}

fn check(quota: &QuotaChange) -> Result<(), ApiError> {
    match quota.exclusive_share {
        Some(share @ 101..) => Err(ApiError::invalid(
            "quota.exclusive_share",
            format!("exclusive_share must be between 0 and 100 percent, got {share}"),
        )),
        _ => Ok(()),
    }
}
