//! The forwarding tables of a switch.

use ib_wire::{ForwardingBlock, MulticastBlock, PortMask, Status};

use super::{AttributeData, Operation, table_start};
use crate::device::PortId;
use crate::fabric::Fabric;

impl Fabric {
    pub(super) fn access_linear(
        &mut self,
        end: PortId,
        operation: Operation,
        modifier: u32,
        data: &mut AttributeData,
    ) -> Result<(), Status> {
        let switch = self.device_of_mut(end).switch.as_mut().ok_or(Status::UNSUPPORTED_ATTRIBUTE)?;
        let capacity = usize::from(switch.info.linear_fdb_capacity);
        let first = table_start(modifier, ForwardingBlock::ENTRIES, capacity)?;
        if operation == Operation::Set {
            for (lid, exit) in (first..capacity).zip(data.iter()) {
                switch.linear.put(lid, *exit);
            }
        }
        *data = std::array::from_fn(|entry| switch.linear.get(first + entry));
        Ok(())
    }

    pub(super) fn access_multicast(
        &mut self,
        end: PortId,
        operation: Operation,
        modifier: u32,
        data: &mut AttributeData,
    ) -> Result<(), Status> {
        let switch = self.device_of_mut(end).switch.as_mut().ok_or(Status::UNSUPPORTED_ATTRIBUTE)?;
        let capacity = usize::from(switch.info.multicast_fdb_capacity);
        let (block, position) = MulticastBlock::from_modifier(modifier);
        let position = usize::from(position);
        let first = table_start(block.into(), MulticastBlock::ENTRIES, capacity)?;
        if position >= switch.multicast.positions() {
            return Err(Status::INVALID_FIELD);
        }
        if operation == Operation::Set {
            for (group, mask) in (first..capacity).zip(MulticastBlock::decode(data).0) {
                switch.multicast.put_mask(group, position, mask.0);
            }
        }
        let mask = |group| PortMask(switch.multicast.mask(group, position));
        *data = MulticastBlock(std::array::from_fn(|entry| mask(first + entry))).encode();
        Ok(())
    }
}
