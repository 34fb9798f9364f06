//! Use cases of hosts: add, bind and remove.
//!
//! Each function holds [`Site::writer`] while it reads, decides and stores. The caller has validated the values of the
//! request, and is an operator.

use std::collections::HashMap;

use controller_api::Name;
use controller_api::host::NewHost;
use ib_wire::Guid;
use thiserror::Error;

use crate::binding::choose;
use crate::site::Site;
use crate::site_partitions;
use crate::store::StoreError;

/// Why a host cannot be added, bound or removed.
#[derive(Debug, Error)]
pub enum HostError {
    #[error("there is no host {0}")]
    NoSuchHost(Name),
    /// Nodes are placed on the host.
    #[error("host {0} runs nodes of clusters")]
    RunsNodes(Name),
    /// Nodes are placed on the host that is to be bound to another port.
    #[error("host {host} runs {nodes} nodes behind the port it is bound to")]
    RunsNodesBehindPort { host: Name, nodes: usize },
    /// Another host is bound to the port.
    #[error("host {owner} is bound to port {port}")]
    PortTaken { owner: Name, port: Guid },
    /// A host that is added again keeps its port.
    #[error("host {host} is bound to port {bound}, not {requested}")]
    BoundElsewhere { host: Name, bound: Guid, requested: Guid },
    /// A partition of the site has the port as more than a limited member.
    #[error(
        "port {port} cannot be handed over to tenants: partition {partition:?} of the site names it, and not as a limited \
         member beside the default partition"
    )]
    OfSite { port: Guid, partition: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Adds hosts, or replaces the properties of known ones: all or none. Returns those that are new or have changed.
pub async fn put(site: &Site, hosts: &[NewHost]) -> Result<Vec<Name>, HostError> {
    let writer = site.writer.lock().await;
    let rows = site.store.host_list().await?;
    let known: HashMap<&Name, &NewHost> = rows.iter().map(|host| (&host.name, host)).collect();
    let mut new = bound(site, hosts, &rows)?;
    new.retain(|host| known.get(&host.name) != Some(&host));
    check_partitions(site, new.iter().filter_map(|host| host.port_guid)).await?;
    let text = match new.as_slice() {
        [] => return Ok(Vec::new()),
        [host] => {
            let port = host
                .port_guid
                .map_or_else(|| "not bound to a port".to_owned(), |port| format!("port {port}"));
            format!("host {} added or changed: {port}, {} cores, {}", host.name, host.cores, host.memory)
        }
        [first, .., last] => format!("{} hosts added or changed, {} to {}", new.len(), first.name, last.name),
    };
    site.store.host_put(&new).await?;
    site.note("host.added", text).await?;
    drop(writer);
    site.wake();
    Ok(new.into_iter().map(|host| host.name).collect())
}

/// Removes a host without nodes.
pub async fn remove(site: &Site, name: &Name) -> Result<(), HostError> {
    let _writer = site.writer.lock().await;
    let is_removed =
        site.store.host_remove(name).await.map_err(|error| {
            if error.is_needed() { HostError::RunsNodes(name.clone()) } else { error.into() }
        })?;
    if !is_removed {
        return Err(HostError::NoSuchHost(name.clone()));
    }
    site.note("host.removed", format!("host {name} removed")).await?;
    site.wake();
    Ok(())
}

/// Binds a host without nodes to another port.
pub async fn bind(site: &Site, name: &Name, port: Guid) -> Result<(), HostError> {
    let writer = site.writer.lock().await;
    let rows = site.store.host_list().await?;
    let row = rows.iter().find(|host| host.name == *name);
    let row = row.ok_or_else(|| HostError::NoSuchHost(name.clone()))?;
    if row.port_guid != Some(port) {
        if let Some(owner) = rows.iter().find(|host| host.port_guid == Some(port)) {
            check_owner(port, &owner.name, name)?;
        }
        let clusters = site.store.cluster_list().await?;
        let all = clusters.iter().flat_map(|cluster| &cluster.nodes);
        let nodes = all.filter(|node| node.host == *name).count();
        if nodes > 0 {
            return Err(HostError::RunsNodesBehindPort { host: name.clone(), nodes });
        }
        check_partitions(site, [port]).await?;
        site.store.host_bind(&[(name.clone(), port)]).await?;
        site.note("host.bound", format!("host {name} bound to port {port}")).await?;
    }
    drop(writer);
    site.wake();
    Ok(())
}

/// Rejects ports that partitions of the site keep from being handed over.
async fn check_partitions(site: &Site, ports: impl IntoIterator<Item = Guid>) -> Result<(), HostError> {
    let partitions = site_partitions::stored(&site.store).await?;
    for port in ports {
        if let Some(partition) = site_partitions::obstacle(&partitions, port) {
            return Err(HostError::OfSite { port, partition: partition.to_owned() });
        }
    }
    Ok(())
}

/// Hosts with their ports: the current one, the requested one, or that of the only adapter with the name of the host.
fn bound(site: &Site, hosts: &[NewHost], rows: &[NewHost]) -> Result<Vec<NewHost>, HostError> {
    let known: HashMap<&Name, Guid> =
        rows.iter().filter_map(|host| Some((&host.name, host.port_guid?))).collect();
    let mut owners: HashMap<Guid, Name> = known.iter().map(|(name, port)| (*port, (*name).clone())).collect();
    let mut bound = hosts.to_vec();
    for host in &mut bound {
        match (host.port_guid, known.get(&host.name)) {
            (Some(requested), Some(&bound)) if requested != bound => {
                return Err(HostError::BoundElsewhere { host: host.name.clone(), bound, requested });
            }
            (Some(requested), _) => {
                let owner = owners.entry(requested).or_insert_with(|| host.name.clone());
                check_owner(requested, owner, &host.name)?;
            }
            (None, known) => host.port_guid = known.copied(),
        }
    }
    if let Some(discovered) = site.with_observed(|observed| observed.fabric.discovered.clone()) {
        let pending = bound.iter().filter(|host| host.port_guid.is_none()).map(|host| &host.name);
        let others: Vec<NewHost> = rows.iter().chain(&bound).cloned().collect();
        let chosen: HashMap<Name, Guid> =
            choose(pending, &discovered.topology, &others).into_iter().collect();
        for host in bound.iter_mut().filter(|host| host.port_guid.is_none()) {
            host.port_guid = chosen.get(&host.name).copied();
        }
    }
    Ok(bound)
}

/// Rejects a port that another host is bound to.
fn check_owner(port: Guid, owner: &Name, name: &Name) -> Result<(), HostError> {
    if owner == name { Ok(()) } else { Err(HostError::PortTaken { owner: owner.clone(), port }) }
}
