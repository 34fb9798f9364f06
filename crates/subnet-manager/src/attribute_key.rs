//! Names of what is read from and written to devices.

use ib_wire::{Attribute, Guid, PortNum};

/// An attribute or a block of a table: attribute id and modifier.
pub(crate) type AttributeKey = (Attribute, u32);

/// An attribute of a device: node, port, attribute id and modifier.
pub(crate) type AttributeRef = (Guid, PortNum, AttributeKey);
