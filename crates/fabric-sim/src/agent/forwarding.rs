//! The forwarding tables of a switch.

use ib_wire::{ForwardingBlock, MulticastBlock, PortMask, Status};

use super::{AttributeData, Operation, put_grown, table_start};
use crate::device::PortId;
use crate::fabric::Fabric;
use crate::way::multicast_positions;

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
            let entries = ForwardingBlock::ENTRIES.min(capacity - first);
            if switch.linear.len() < first + entries {
                switch.linear.resize(first + entries, NO_PORT);
            }
            switch.linear[first..first + entries].copy_from_slice(&data[..entries]);
        }
        let stored = switch.linear.get(first..).unwrap_or_default();
        let known = stored.len().min(data.len());
        data[..known].copy_from_slice(&stored[..known]);
        data[known..].fill(NO_PORT);
        Ok(())
    }

    pub(super) fn access_multicast(
        &mut self,
        end: PortId,
        operation: Operation,
        modifier: u32,
        data: &mut AttributeData,
    ) -> Result<(), Status> {
        let device = self.device_of_mut(end);
        let positions = multicast_positions(device.info.port_count);
        let switch = device.switch.as_mut().ok_or(Status::UNSUPPORTED_ATTRIBUTE)?;
        let capacity = usize::from(switch.info.multicast_fdb_capacity);
        let (block, position) = MulticastBlock::from_modifier(modifier);
        let position = usize::from(position);
        let first = table_start(block.into(), MulticastBlock::ENTRIES, capacity)?;
        if position >= positions {
            return Err(Status::INVALID_FIELD);
        }
        if operation == Operation::Set {
            for (group, mask) in (first..capacity).zip(MulticastBlock::decode(data).0) {
                put_grown(&mut switch.multicast, group * positions + position, mask.0, 0);
            }
        }
        let mask = |group: usize| switch.multicast.get(group * positions + position).copied().unwrap_or(0);
        *data = MulticastBlock(std::array::from_fn(|i| PortMask(mask(first + i)))).encode();
        Ok(())
    }
}

/// What a forwarding table says where it has no port.
const NO_PORT: u8 = 0xff;
