//! Waits until a site is ready, and registers its hosts and images.

use std::collections::{HashMap, HashSet};
use std::env;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use controller_api::fabric::FabricState;
use controller_api::host::{Host, HostBinding, HostState, NewHost};
use controller_api::image::NewImage;
use controller_api::{ApiClient, ClientError, MemorySize, Name};
use ib_wire::Guid;
use tokio::time::{Instant, sleep};

use super::site::{HostPort, SiteDir};
use crate::cli::connection::SiteArgs;
use crate::cli::image::{self, MANIFEST_FILE};
use crate::cli::progress::WaitProgress;

/// Interval of checking whether a program is ready.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Longest time for a program to become ready; longer than a busy machine needs.
const PART_LIMIT: Duration = Duration::from_secs(120);

/// Hosts added in one request, at some 100 bytes each.
const HOSTS_AT_ONCE: usize = 1000;

/// Where `make image` puts images.
const IMAGES: &str = "/var/cache/heddle/images";

/// An image to register: `NAME=DIR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSource {
    name: Name,
    directory: PathBuf,
}

impl FromStr for ImageSource {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, directory) =
            text.split_once('=').ok_or_else(|| format!("expected NAME=DIR, got {text:?}"))?;
        let name = name.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { name, directory: directory.into() })
    }
}

/// Resources of each host for virtual machines.
#[derive(Clone, Copy, Debug)]
pub struct OfferedCapacity {
    pub cores: u32,
    pub memory: MemorySize,
}

/// Waits until a program listens at a socket.
pub async fn socket(name: &str, path: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + PART_LIMIT;
    while UnixStream::connect(path).is_err() {
        if Instant::now() > deadline {
            bail!("{name} does not listen at {} after {} s", path.display(), PART_LIMIT.as_secs());
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Waits until libvirt answers requests: it listens long before, while it probes QEMU.
pub async fn libvirt() -> anyhow::Result<()> {
    let deadline = Instant::now() + PART_LIMIT;
    loop {
        let mut virsh = tokio::process::Command::new("virsh");
        virsh.args(["-q", "-c", "qemu:///system", "version"]).kill_on_drop(true);
        let said = match tokio::time::timeout(PART_LIMIT, virsh.output()).await {
            Ok(Ok(output)) if output.status.success() => return Ok(()),
            Ok(Ok(output)) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            // Without virsh libvirt cannot be checked here; the agent will report errors.
            Ok(Err(error)) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it does not answer".to_owned(),
        };
        if Instant::now() > deadline {
            bail!("libvirt is not ready after {} s: {said}", PART_LIMIT.as_secs());
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Waits until the controller answers.
pub async fn controller(site: &SiteDir) -> anyhow::Result<ApiClient> {
    let deadline = Instant::now() + PART_LIMIT;
    loop {
        let problem = match answering(site).await {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        let refused =
            problem.downcast_ref().is_some_and(|error| !matches!(error, ClientError::Unreachable { .. }));
        if refused || Instant::now() > deadline {
            return Err(problem.context("the controller is not ready"));
        }
        sleep(POLL_INTERVAL).await;
    }
}

async fn answering(site: &SiteDir) -> anyhow::Result<ApiClient> {
    let client = SiteArgs::of_home(site.directory())?;
    client.fabric_show().await?;
    Ok(client)
}

/// Adds hosts that the controller does not have, and binds each to its port; returns the number of new hosts.
pub async fn add_hosts(
    client: &ApiClient,
    hosts: &[HostPort],
    agent: &Path,
    capacity: OfferedCapacity,
) -> anyhow::Result<usize> {
    let known: HashMap<Name, Option<Guid>> =
        client.host_list().await?.into_iter().map(|host| (host.name, host.port_guid)).collect();
    let agent = agent.to_str().context("the path of the agent socket is not UTF-8")?;
    let OfferedCapacity { cores, memory } = capacity;
    let mut new = Vec::new();
    for HostPort { name, port_guid } in hosts {
        match known.get(name) {
            Some(bound) if *bound == Some(*port_guid) => {}
            Some(_) => {
                let binding = HostBinding { port_guid: *port_guid };
                let bound = client.host_bind(name, binding).await;
                bound.with_context(|| format!("cannot bind {name} to port {port_guid} of the topology"))?;
            }
            None => {
                let (name, agent) = (name.clone(), agent.to_owned());
                new.push(NewHost { name, port_guid: Some(*port_guid), agent, cores, memory });
            }
        }
    }
    for some in new.chunks(HOSTS_AT_ONCE) {
        client.host_add_all(some).await.context("cannot add hosts")?;
    }
    Ok(new.len())
}

/// Waits until the fabric is programmed and every host is up.
pub async fn fabric(client: &ApiClient, hosts: &[HostPort], progress: &WaitProgress) -> anyhow::Result<()> {
    let deadline = Instant::now() + PART_LIMIT;
    loop {
        // The controller may be restarting.
        let missing = missing(client, hosts).await.unwrap_or_else(|error| Some(format!("{error:#}")));
        let Some(missing) = missing else { return Ok(()) };
        if Instant::now() > deadline {
            bail!("not ready after {} s: {missing}", PART_LIMIT.as_secs());
        }
        progress.waits_for(&missing);
        sleep(POLL_INTERVAL).await;
    }
}

async fn missing(client: &ApiClient, hosts: &[HostPort]) -> anyhow::Result<Option<String>> {
    let fabric = client.fabric_show().await?;
    match fabric.state {
        FabricState::ManagerSilent => return Ok(Some("the subnet manager does not answer".to_owned())),
        FabricState::Stuck => return Ok(Some("the subnet manager does not program the fabric".to_owned())),
        FabricState::Programming => return Ok(Some("the fabric is being programmed".to_owned())),
        FabricState::Programmed => {}
    }
    let known = client.host_list().await?;
    let is_usable = |host: &&Host| host.state == HostState::Up && host.accelerator.is_some();
    let ours: HashSet<&Name> = hosts.iter().map(|host| &host.name).collect();
    let is_ours = |host: &&Host| ours.contains(&host.name);
    let unusable = known.iter().filter(|host| !is_usable(host)).filter(is_ours);
    Ok(unusable.map(|host| (&host.name, host.state)).next().map(|(name, state)| match state {
        HostState::OffFabric => format!("{name} is not on the fabric"),
        HostState::PortClosed => format!("the port of {name} is closed"),
        HostState::Unbound => format!("{name} is not bound to a port"),
        HostState::AgentSilent => format!("the agent of {name} does not answer"),
        HostState::Up => format!("the agent of {name} is checking for KVM"),
    }))
}

/// Registers images, by default the newest of `make image`; returns a note for each new one.
pub async fn add_images(client: &ApiClient, sources: &[ImageSource]) -> anyhow::Result<Vec<String>> {
    let found;
    let sources = if sources.is_empty() {
        found = newest_images(&env::var_os("HEDDLE_IMAGES").map_or_else(|| IMAGES.into(), PathBuf::from));
        &found
    } else {
        sources
    };
    let mut notes = Vec::new();
    for source in sources {
        let new = image::describe(source.name.clone(), &source.directory)?;
        notes.extend(add_image(client, new).await?);
    }
    Ok(notes)
}

/// Registers an image. Existing clusters keep theirs, so an image of the same name may be replaced.
async fn add_image(client: &ApiClient, new: NewImage) -> anyhow::Result<Option<String>> {
    let is_new = !client.image_list().await?.iter().any(|known| {
        let directory = known.directory.as_ref();
        (&known.name, directory, &known.digest) == (&new.name, Some(&new.directory), &new.digest)
    });
    client.image_add(&new).await.with_context(|| format!("cannot add the image {}", new.name))?;
    Ok(is_new.then(|| format!("image {}: {}", new.name, new.directory)))
}

/// The newest image of every name in a directory of images `NAME-KEY`.
fn newest_images(directory: &Path) -> Vec<ImageSource> {
    let mut newest: Vec<(SystemTime, ImageSource)> = Vec::new();
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    for entry in entries.flatten() {
        let file_name = entry.file_name();
        let name = file_name.to_str().and_then(|name| name.rsplit_once('-')).map(|(name, _)| name.parse());
        let changed = fs::metadata(entry.path().join(MANIFEST_FILE)).and_then(|manifest| manifest.modified());
        let (Some(Ok(name)), Ok(changed)) = (name, changed) else { continue };
        let source = ImageSource { name, directory: entry.path() };
        match newest.iter_mut().find(|(_, found)| found.name == source.name) {
            Some(found) if found.0 < changed => *found = (changed, source),
            Some(_) => {}
            None => newest.push((changed, source)),
        }
    }
    newest.sort_by(|a, b| a.1.name.cmp(&b.1.name));
    newest.into_iter().map(|(_, source)| source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_named_with_their_directory() {
        let source: ImageSource = "debian-mpi=/srv/images/a=b".parse().unwrap();
        assert_eq!(
            (source.name.as_str(), source.directory.to_str()),
            ("debian-mpi", Some("/srv/images/a=b"))
        );
        for bad in ["debian-mpi", "=x", "Debian=x"] {
            assert!(bad.parse::<ImageSource>().is_err(), "{bad}");
        }
    }

    #[test]
    fn of_several_builds_of_an_image_the_newest_counts() {
        let images = tempfile::tempdir().unwrap();
        let times = [("debian-mpi-aa", 100), ("debian-mpi-bb", 300), ("debian-mpi-cc", 200), ("tiny-dd", 50)];
        for (name, second) in times {
            let directory = images.path().join(name);
            fs::create_dir(&directory).unwrap();
            let manifest = fs::File::create(directory.join(MANIFEST_FILE)).unwrap();
            manifest.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(second)).unwrap();
        }
        fs::create_dir(images.path().join("debian-mpi-unfinished")).unwrap();
        let found = newest_images(images.path());
        let found: Vec<_> =
            found.iter().map(|it| (it.name.as_str(), it.directory.file_name().unwrap())).collect();
        assert_eq!(found, [("debian-mpi", "debian-mpi-bb".as_ref()), ("tiny", "tiny-dd".as_ref())]);
        assert_eq!(newest_images(&images.path().join("nowhere")), []);
    }
}
