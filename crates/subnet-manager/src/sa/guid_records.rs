//! GUIDInfoRecord: the GUIDs of ports, and requests of ports for alias GUIDs.
//!
//! The plan says which port has which alias at which index, and the manager writes it into the port. A request changes nothing:
//! it is granted if it asks for what the plan gives the port, and refused otherwise. Adapters whose driver asks for the GUIDs of
//! its functions so learn them, and cannot claim those of others.

use std::ops::ControlFlow;

use ib_wire::sa::{ComponentMask, GuidInfoRecord, Pattern};
use ib_wire::{Guid, GuidBlock, LidAddress, Mad, Method, Status};

use super::directory::{Directory, EndPort};
use super::inventory::{add_if, ports};
use super::query::{Answer, Query};

type R = GuidInfoRecord;

/// The components of the entries of a block.
const ENTRIES: [ComponentMask; GuidBlock::ENTRIES] =
    [R::GUID_0, R::GUID_1, R::GUID_2, R::GUID_3, R::GUID_4, R::GUID_5, R::GUID_6, R::GUID_7];

/// The blocks that each port can hold. Aliases that the requester may not see are left out.
pub(super) fn records(query: &Query<'_>, answer: &mut Answer) -> ControlFlow<()> {
    let pattern = Pattern::<R>::of(query.request);
    let matcher = pattern.matcher();
    for port in ports(query, &pattern, R::LID) {
        answer.examine()?;
        let Some(capacity) = capacity(query.directory, port).filter(|_| query.sees(port)) else { continue };
        for block in 0..capacity.div_ceil(GuidBlock::ENTRIES as u8).max(1) {
            answer.examine()?;
            let is_visible =
                |guid: &Guid| query.directory.port_by_guid(*guid).is_some_and(|address| query.sees(address));
            let guids = GuidBlock(planned(query.directory, port, block).map(|guid| guid.filter(is_visible)));
            let record = GuidInfoRecord { lid: Some(port.lid.into()), block, guids };
            add_if(&matcher, &record.encode(), answer)?;
        }
    }
    ControlFlow::Continue(())
}

/// Set and Delete of a port for itself. A Set of GUID 0 asks for whatever the plan gives the port at that index. A Delete may
/// name any GUID, as adapters do, but not the entry of the port's own. Its response shows the entries as empty, and they stay:
/// an alias belongs to its port as long as the plan says so.
pub(super) fn claim(
    directory: &Directory,
    requester: &EndPort,
    request: &Mad,
) -> Result<GuidInfoRecord, Status> {
    let pattern = Pattern::<R>::of(request);
    if !pattern.selects(R::LID | R::BLOCK) {
        return Err(Status::SA_INSUFFICIENT_COMPONENTS);
    }
    let invalid = Status::SA_REQUEST_INVALID;
    let port = match pattern.value::<Option<LidAddress>>(R::LID).flatten() {
        Some(LidAddress::Unicast(lid)) => directory.port_by_lid(lid),
        _ => None,
    };
    let port = port.filter(|port| requester.guid == port.guid).ok_or(invalid)?;
    let block: u8 = pattern.value(R::BLOCK).ok_or(invalid)?;
    let capacity = capacity(directory, port).unwrap_or(0);
    if usize::from(block) * GuidBlock::ENTRIES >= usize::from(capacity) {
        return Err(invalid);
    }
    let mut guids = planned(directory, port, block);
    let is_delete = request.method() == Method::DELETE;
    for (index, (entry, component)) in guids.iter_mut().zip(ENTRIES).enumerate() {
        let Some(wanted) = pattern.value::<Option<Guid>>(component) else { continue };
        let is_own = block == 0 && index == 0;
        let is_refused = if is_delete { is_own } else { wanted.is_some() && wanted != *entry };
        if is_refused {
            return Err(invalid);
        }
        entry.take_if(|_| is_delete);
    }
    Ok(GuidInfoRecord { lid: Some(port.lid.into()), block, guids: GuidBlock(guids) })
}

/// The number of GUIDs that a port can hold; `None` if it reported nothing.
fn capacity(directory: &Directory, port: &EndPort) -> Option<u8> {
    let info = directory.facts(port.node).and_then(|facts| facts.ports.get(&port.number));
    info.map(|info| info.guid_cap)
}

/// A block of the GUID table of a port in the plan.
fn planned(directory: &Directory, port: &EndPort, block: u8) -> [Option<Guid>; GuidBlock::ENTRIES] {
    let plan = directory.plan.adapter_port(port.guid);
    std::array::from_fn(|i| match u8::try_from(usize::from(block) * GuidBlock::ENTRIES + i) {
        Ok(0) => Some(port.guid),
        Ok(index) => plan.and_then(|plan| plan.aliases.get(&index)).map(|alias| alias.guid),
        Err(_) => None,
    })
}
