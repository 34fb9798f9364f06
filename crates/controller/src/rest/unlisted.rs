//! Unlisted virtual machines: left over from a store that was lost or restored.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use controller_api::ApiProblem;
use controller_api::host::UnlistedVm;
use jiff::Timestamp;
use uuid::Uuid;

use super::access::Caller;
use super::error::{ApiError, Json, Path};
use crate::site::Site;
use crate::store::Tombstone;

/// List unlisted virtual machines
///
/// Those that hosts run and no cluster owns. For operators.
#[utoipa::path(get, path = "/v1/unlisted", operation_id = "unlisted_list", responses((status = 200, body = Vec<UnlistedVm>), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn list(State(site): State<Arc<Site>>, caller: Caller) -> Result<Json<Vec<UnlistedVm>>, ApiError> {
    caller.operator()?;
    Ok(Json(unlisted(&site)))
}

/// Remove an unlisted virtual machine
///
/// Its host keeps the disk for the grace period. For operators.
#[utoipa::path(delete, path = "/v1/unlisted/{id}", operation_id = "unlisted_remove", params(("id" = Uuid, Path)), responses((status = 202), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn remove(
    State(site): State<Arc<Site>>,
    caller: Caller,
    Path(id): Path<Uuid>,
) -> Result<StatusCode, ApiError> {
    caller.operator()?;
    let _writer = site.writer.lock().await;
    let found = unlisted(&site).into_iter().find(|vm| vm.id == id);
    let found = found.ok_or_else(|| {
        let detail = format!("no host reports an unlisted virtual machine {id}");
        ApiError::new(StatusCode::NOT_FOUND, "no-such-vm", detail).hint("list them with heddle host unlisted")
    })?;
    let tombstone = Tombstone { vm: id, host: found.host };
    site.store.tombstone_add(&tombstone, Timestamp::now()).await?;
    site.note(
        "vm.removed",
        format!(
            "removal of unlisted virtual machine {id} ({}) on host {} requested",
            found.label, tombstone.host
        ),
    )
    .await?;
    site.wake();
    Ok(StatusCode::ACCEPTED)
}

fn unlisted(site: &Site) -> Vec<UnlistedVm> {
    site.with_observed(|observed| {
        let mut all = Vec::new();
        for (host, agent) in &observed.agents {
            for vm in &agent.report.vms {
                let Some(unlisted) = &vm.unlisted else { continue };
                all.push(UnlistedVm {
                    id: vm.id,
                    host: host.clone(),
                    label: unlisted.label.clone(),
                    state: vm.state,
                    partitions: unlisted.partitions.clone(),
                });
            }
        }
        all.sort_by(|a, b| (&a.host, a.id).cmp(&(&b.host, b.id)));
        all
    })
}
