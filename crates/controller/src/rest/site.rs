//! Hosts and images: what operators look after.

use std::collections::HashMap;
use std::path::Path as FilePath;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use controller_api::host::{Host, HostState, NewHost};
use controller_api::image::{Image, NewImage};
use controller_api::{MemorySize, Name, Problem};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::access::Caller;
use super::refusal::{Json, Path, Refusal};
use crate::site::{Seen, Site};
use crate::store::ImageRow;

/// Largest `image.json`: three names and three hashes.
const MANIFEST_BYTES_MAX: u64 = 64 * 1024;

/// A host that has less runs nothing.
const HOST_MEMORY_MIN: MemorySize = MemorySize::from_mib(1);

type Shared = State<Arc<Site>>;

/// All hosts, with what they have left.
#[utoipa::path(get, path = "/v1/hosts", operation_id = "host_list", responses((status = 200, body = Vec<Host>), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn host_list(State(site): Shared, caller: Caller) -> Result<Json<Vec<Host>>, Refusal> {
    caller.operator()?;
    Ok(Json(hosts(&site).await?))
}

async fn hosts(site: &Site) -> Result<Vec<Host>, Refusal> {
    let mut used: HashMap<Name, (u32, u32, u32)> = HashMap::new();
    for cluster in site.store.cluster_list().await? {
        for node in &cluster.nodes {
            let (cores, memory, nodes) = used.entry(node.host.clone()).or_default();
            (*cores, *memory, *nodes) = (*cores + cluster.cores, *memory + cluster.memory.mib(), *nodes + 1);
        }
    }
    let hosts = site.store.host_list().await?;
    let used_of = |host: &NewHost| used.get(&host.name).copied().unwrap_or_default();
    Ok(site.look(|seen| hosts.iter().map(|host| told(host, used_of(host), seen)).collect()))
}

/// A host as it is told, with the cores, the MiB and the number of virtual machines that are on it.
fn told(new: &NewHost, (cores, memory, nodes): (u32, u32, u32), seen: &Seen) -> Host {
    let place = seen.fabric.places.get(&new.name);
    let agent = seen.agents.get(&new.name);
    let state = match (agent.is_some_and(|agent| agent.answers), place) {
        (false, _) => HostState::AgentSilent,
        (true, None) => HostState::OffFabric,
        (true, Some(_)) => HostState::Up,
    };
    Host {
        port_guid: place.map(|place| place.port_guid),
        name: new.name.clone(),
        state,
        accelerator: agent.and_then(|agent| agent.report.accelerator),
        cores: new.cores,
        memory: new.memory,
        cores_used: cores,
        memory_used: MemorySize::from_mib(memory),
        nodes,
    }
}

/// Adds a host, or changes what is known of it.
#[utoipa::path(post, path = "/v1/hosts", operation_id = "host_add", request_body = NewHost, responses((status = 201, body = Host), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn host_add(
    State(site): Shared,
    caller: Caller,
    Json(new): Json<NewHost>,
) -> Result<(StatusCode, Json<Host>), Refusal> {
    caller.operator()?;
    put_hosts(&site, std::slice::from_ref(&new)).await?;
    let used = site.store.host_used(&new.name).await?;
    Ok((StatusCode::CREATED, Json(site.look(|seen| told(&new, used, seen)))))
}

/// Adds hosts, or changes what is known of them: all of them or none. Answers with those that are new or have changed.
#[utoipa::path(put, path = "/v1/hosts", operation_id = "host_add_all", request_body = Vec<NewHost>, responses((status = 200, body = Vec<Name>), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn host_add_all(
    State(site): Shared,
    caller: Caller,
    Json(new): Json<Vec<NewHost>>,
) -> Result<Json<Vec<Name>>, Refusal> {
    caller.operator()?;
    Ok(Json(put_hosts(&site, &new).await?))
}

/// Keeps hosts; those that are new or have changed.
async fn put_hosts(site: &Site, hosts: &[NewHost]) -> Result<Vec<Name>, Refusal> {
    hosts.iter().try_for_each(check_host)?;
    let writer = site.writer.lock().await;
    let known = site.store.host_list().await?;
    // They are in the order of their names.
    let at = |name: &Name| known.binary_search_by(|host| host.name.cmp(name));
    let is_new = |host: &&NewHost| at(&host.name).ok().and_then(|at| known.get(at)) != Some(*host);
    let new: Vec<NewHost> = hosts.iter().filter(is_new).cloned().collect();
    let text = match new.as_slice() {
        [] => return Ok(Vec::new()),
        [host] => format!("host {}: {} cores, {}", host.name, host.cores, host.memory),
        [first, .., last] => format!("{} hosts, {} to {}", new.len(), first.name, last.name),
    };
    site.store.host_put(&new).await?;
    site.note("host.added", text).await?;
    drop(writer);
    site.wake();
    Ok(new.into_iter().map(|host| host.name).collect())
}

fn check_host(new: &NewHost) -> Result<(), Refusal> {
    if !FilePath::new(&new.agent).is_absolute() {
        return Err(Refusal::invalid("agent", format!("{:?} is not the path of a socket", new.agent))
            .hint("an absolute path, as heddle-agent --socket has it"));
    }
    if new.cores == 0 {
        return Err(Refusal::invalid("cores", "cores must be at least 1, got 0"));
    }
    if new.memory < HOST_MEMORY_MIN {
        let detail = format!("memory must be at least {HOST_MEMORY_MIN}, got {}", new.memory);
        return Err(Refusal::invalid("memory", detail));
    }
    Ok(())
}

/// Removes a host on which nothing runs.
#[utoipa::path(delete, path = "/v1/hosts/{name}", operation_id = "host_remove", params(("name" = String, Path)), responses((status = 204), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn host_remove(
    State(site): Shared,
    caller: Caller,
    Path(name): Path<Name>,
) -> Result<StatusCode, Refusal> {
    caller.operator()?;
    let _writer = site.writer.lock().await;
    let removed = site.store.host_remove(&name).await.map_err(|error| match error.is_needed() {
        true => Refusal::conflict("in-use", format!("nodes of clusters are on host {name}"))
            .hint("delete the clusters first"),
        false => error.into(),
    })?;
    if !removed {
        return Err(Refusal::missing("host", name));
    }
    site.note("host.removed", format!("host {name}")).await?;
    site.wake();
    Ok(StatusCode::NO_CONTENT)
}

/// All images.
#[utoipa::path(get, path = "/v1/images", operation_id = "image_list", responses((status = 200, body = Vec<Image>), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn image_list(State(site): Shared, caller: Caller) -> Result<Json<Vec<Image>>, Refusal> {
    let images = site.store.image_list().await?;
    Ok(Json(images.into_iter().map(|image| caller.image(image)).collect()))
}

/// Adds an image, or another one of the same name; clusters that run keep theirs.
#[utoipa::path(post, path = "/v1/images", operation_id = "image_add", request_body = NewImage, responses((status = 201, body = Image), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn image_add(
    State(site): Shared,
    caller: Caller,
    Json(new): Json<NewImage>,
) -> Result<(StatusCode, Json<Image>), Refusal> {
    caller.operator()?;
    check_image(&new).await?;
    let image =
        ImageRow { name: new.name, directory: new.directory, digest: new.digest, created: Timestamp::now() };
    let known = site.store.image_list().await?.into_iter().find(|known| {
        (&known.name, &known.directory, &known.digest) == (&image.name, &image.directory, &image.digest)
    });
    if let Some(known) = known {
        return Ok((StatusCode::CREATED, Json(caller.image(known))));
    }
    site.store.image_put(&image).await?;
    site.wake();
    site.note("image.added", format!("image {} at {}", image.name, image.directory)).await?;
    Ok((StatusCode::CREATED, Json(caller.image(image))))
}

/// Looks at what can be looked at from here; the files are checked where they are used.
async fn check_image(new: &NewImage) -> Result<(), Refusal> {
    let directory = FilePath::new(&new.directory);
    if !directory.is_absolute() {
        return Err(Refusal::invalid("directory", format!("{:?} is not an absolute path", new.directory)));
    }
    let path = directory.join("image.json");
    let place = path.display().to_string();
    let size = tokio::fs::metadata(&path).await.map(|found| found.len());
    let manifest = match size {
        Ok(size) if size <= MANIFEST_BYTES_MAX => tokio::fs::read(&path).await,
        Ok(_) => return Err(Refusal::invalid("directory", format!("{place} is too long to be a manifest"))),
        Err(error) => Err(error),
    };
    let manifest = manifest.map_err(|error| {
        Refusal::invalid("directory", format!("cannot read {place}: {error}"))
            .hint("make image prints where it is")
    })?;
    serde_json::from_slice::<controller_api::image::Manifest>(&manifest)
        .map_err(|error| Refusal::invalid("directory", format!("{place} is no manifest: {error}")))?;
    let digest: String = Sha256::digest(&manifest).iter().map(|byte| format!("{byte:02x}")).collect();
    if digest != new.digest {
        let detail = format!("{place} has the checksum {digest}, not {:.64}", new.digest);
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "wrong-checksum", detail).at("digest"));
    }
    Ok(())
}

/// Forgets an image; clusters that run keep theirs.
#[utoipa::path(delete, path = "/v1/images/{name}", operation_id = "image_remove", params(("name" = String, Path)), responses((status = 204), (status = "4XX", body = Problem, content_type = Problem::MEDIA_TYPE)))]
pub async fn image_remove(
    State(site): Shared,
    caller: Caller,
    Path(name): Path<Name>,
) -> Result<StatusCode, Refusal> {
    caller.operator()?;
    match site.store.image_remove(&name).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Refusal::missing("image", name)),
    }
}
