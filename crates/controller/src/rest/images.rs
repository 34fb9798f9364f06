//! Images that virtual machines boot.

use std::path::Path as FilePath;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use controller_api::image::{Image, Manifest, NewImage};
use controller_api::{ApiProblem, Name};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::access::Caller;
use super::error::{ApiError, Json, Path};
use crate::site::Site;
use crate::store::ImageRow;

/// Largest `image.json`: three names and three digests.
const MANIFEST_BYTES_MAX: u64 = 64 * 1024;

type Shared = State<Arc<Site>>;

/// List all images
#[utoipa::path(get, path = "/v1/images", operation_id = "image_list", responses((status = 200, body = Vec<Image>), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn list(State(site): Shared, caller: Caller) -> Result<Json<Vec<Image>>, ApiError> {
    let images = site.store.image_list().await?;
    Ok(Json(images.into_iter().map(|image| caller.image(image)).collect()))
}

/// Add an image
///
/// Replaces an image of the same name; running clusters keep theirs. For operators.
#[utoipa::path(post, path = "/v1/images", operation_id = "image_add", request_body = NewImage, responses((status = 201, body = Image), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn add(
    State(site): Shared,
    caller: Caller,
    Json(new): Json<NewImage>,
) -> Result<(StatusCode, Json<Image>), ApiError> {
    caller.operator()?;
    let manifest = check_image(&new).await?;
    let image = ImageRow {
        name: new.name,
        directory: new.directory,
        digest: new.digest,
        infiniband: manifest.infiniband,
        created: Timestamp::now(),
    };
    let known = site
        .store
        .image_list()
        .await?
        .into_iter()
        .find(|known| *known == ImageRow { created: known.created, ..image.clone() });
    if let Some(known) = known {
        return Ok((StatusCode::CREATED, Json(caller.image(known))));
    }
    site.store.image_put(&image).await?;
    site.wake();
    site.note("image.added", format!("image {} at {} added", image.name, image.directory)).await?;
    Ok((StatusCode::CREATED, Json(caller.image(image))))
}

/// Checks path and digest of `image.json`, and returns what it says; agents check the files.
async fn check_image(new: &NewImage) -> Result<Manifest, ApiError> {
    let directory = FilePath::new(&new.directory);
    if !directory.is_absolute() {
        return Err(ApiError::invalid("directory", format!("{:?} is not an absolute path", new.directory)));
    }
    let path = directory.join("image.json");
    let place = path.display().to_string();
    let size = tokio::fs::metadata(&path).await.map(|found| found.len());
    let manifest = match size {
        Ok(size) if size <= MANIFEST_BYTES_MAX => tokio::fs::read(&path).await,
        Ok(_) => {
            return Err(ApiError::invalid(
                "directory",
                format!("{place} has more than {MANIFEST_BYTES_MAX} bytes"),
            ));
        }
        Err(error) => Err(error),
    };
    let manifest = manifest.map_err(|error| {
        ApiError::invalid("directory", format!("cannot read {place}: {error}"))
            .hint("make image prints the path")
    })?;
    let known: Manifest = serde_json::from_slice(&manifest).map_err(|error| {
        ApiError::invalid("directory", format!("{place} is not a valid manifest: {error}"))
    })?;
    let digest: String = Sha256::digest(&manifest).iter().map(|byte| format!("{byte:02x}")).collect();
    if digest != new.digest {
        let detail = format!("{place} has the checksum {digest}, not {:.64}", new.digest);
        return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "wrong-checksum", detail).field("digest"));
    }
    Ok(known)
}

/// Remove an image
///
/// Running clusters keep theirs. For operators.
#[utoipa::path(delete, path = "/v1/images/{name}", operation_id = "image_remove", params(("name" = String, Path)), responses((status = 204), (status = "4XX", body = ApiProblem, content_type = ApiProblem::MEDIA_TYPE)))]
pub async fn remove(
    State(site): Shared,
    caller: Caller,
    Path(name): Path<Name>,
) -> Result<StatusCode, ApiError> {
    caller.operator()?;
    if site.store.image_remove(&name).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("image", name))
    }
}
