//! Injected faults of subnet management agents: Sets that are refused, or confirmed without effect.

use ib_wire::{Attribute, Guid, PortInfo, SMP_DATA_LEN, Status};

use crate::agent::{Access, AttributeData, Operation};
use crate::fabric::Fabric;
use crate::forwarding::Arrival;

/// What a device holds after a Set, from what it held before and what was requested. A Set that it takes as requested is
/// not affected by the fault.
pub type TakenEntries = fn(held: &[u8; SMP_DATA_LEN], requested: &[u8; SMP_DATA_LEN]) -> [u8; SMP_DATA_LEN];

/// A device that does not take some entries.
#[derive(Clone, Copy, Debug)]
pub struct SetFault {
    /// GUID of the node.
    pub node: Guid,
    pub attribute: Attribute,
    /// The block, hop or port concerned; `None` for all.
    pub modifier: Option<u32>,
    pub takes: TakenEntries,
    pub conduct: SetConduct,
}

/// How a device behaves that does not take an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetConduct {
    /// It answers with this status and changes nothing.
    Refuses(Status),
    /// It answers with the values that it holds.
    Ignores,
    /// It answers as if it had taken everything.
    Feigns,
}

impl SetFault {
    /// Entries that stay as they are.
    pub const TAKES_NOTHING: TakenEntries = |held, _| *held;

    fn concerns(&self, node: Guid, attribute: Attribute, modifier: u32) -> bool {
        let modifier = match PortInfo::port_of_modifier(modifier) {
            Some(port) if attribute == Attribute::PORT_INFO => port.to_wire().into(),
            _ => modifier,
        };
        self.node == node
            && self.attribute == attribute
            && self.modifier.is_none_or(|concerned| concerned == modifier)
    }
}

impl Fabric {
    /// Replaces the devices that do not take all entries.
    pub fn set_set_faults(&mut self, faults: Vec<SetFault>) {
        self.set_faults = faults;
    }

    /// Reads or writes one attribute as the faults permit. After a successful Set, `data` holds what the device answers.
    pub(crate) fn access_with_faults(
        &mut self,
        arrival: Arrival,
        (attribute, modifier): (Attribute, u32),
        operation: Operation,
        access: Access,
        data: &mut AttributeData,
    ) -> Result<(), Status> {
        let node = self.node_of(arrival.end).node_guid;
        let fault = self.set_faults.iter().find(|fault| fault.concerns(node, attribute, modifier)).copied();
        let Some(fault) = fault.filter(|_| operation == Operation::Set) else {
            return self.access_attribute(arrival, attribute, operation, modifier, access, data);
        };
        let mut held = [0; SMP_DATA_LEN];
        self.access_attribute(arrival, attribute, Operation::Get, modifier, access, &mut held)?;
        let requested = *data;
        let taken = (fault.takes)(&held, &requested);
        *data = taken;
        match fault.conduct {
            SetConduct::Refuses(status) if taken != requested => return Err(status),
            _ => self.access_attribute(arrival, attribute, operation, modifier, access, data)?,
        }
        if fault.conduct == SetConduct::Feigns {
            let not_taken =
                taken.iter().zip(&requested).zip(data).filter(|((taken, requested), _)| taken != requested);
            not_taken.for_each(|((_, requested), answered)| *answered = *requested);
        }
        Ok(())
    }
}
