//! SLtoVLMappingTable and VLArbitrationTable.

use ib_wire::{SlToVl, SlToVlSelector, Status, VlArbBlock, VlArbEntry, VlArbPart};

use super::{AttributeData, Operation};
use crate::device::PortId;
use crate::fabric::Fabric;

impl Fabric {
    pub(super) fn access_sl_to_vl(
        &mut self,
        end: PortId,
        operation: Operation,
        modifier: u32,
        data: &mut AttributeData,
    ) -> Result<(), Status> {
        let kind = &self.profile;
        let has_table = if self.is_switch(end) { kind.switches.sl_to_vl } else { kind.adapters.sl_to_vl };
        if !has_table {
            return Err(Status::UNSUPPORTED_ATTRIBUTE);
        }
        let wanted: [u8; SlToVl::LEN] = data[..SlToVl::LEN].try_into().map_err(|_| Status::INVALID_FIELD)?;
        let in_force = if self.is_switch(end) {
            self.access_hops(end, operation, modifier, wanted)?
        } else {
            let port = self.port_mut(end);
            if operation == Operation::Set {
                port.sl_to_vl = wanted;
            }
            port.sl_to_vl
        };
        *data = [0; 64];
        data[..SlToVl::LEN].copy_from_slice(&in_force);
        Ok(())
    }

    fn access_hops(
        &mut self,
        end: PortId,
        operation: Operation,
        modifier: u32,
        wanted: [u8; SlToVl::LEN],
    ) -> Result<[u8; SlToVl::LEN], Status> {
        let selector = SlToVlSelector::from_modifier(modifier).ok_or(Status::INVALID_FIELD)?;
        let width = usize::from(self.device_of(end).info.port_count) + 1;
        let optimised = self.profile.switches.optimised_sl_to_vl;
        let (inputs, outputs) = match selector {
            SlToVlSelector::Hop { input, output } => (one_port(input, width)?, one_port(output, width)?),
            SlToVlSelector::AllInputs { output } if optimised => (0..width, one_port(output, width)?),
            SlToVlSelector::AllHops if optimised => (0..width, 0..width),
            _ => return Err(Status::INVALID_FIELD),
        };
        let first = inputs.start * width + outputs.start;
        let switch = self.device_of_mut(end).switch.as_mut().ok_or(Status::UNSUPPORTED_ATTRIBUTE)?;
        if operation == Operation::Set {
            for hop in inputs.flat_map(|input| outputs.clone().map(move |output| input * width + output)) {
                switch.sl_to_vl.put(hop, wanted);
            }
        }
        Ok(switch.sl_to_vl.get(first))
    }

    pub(super) fn access_arbitration(
        &mut self,
        end: PortId,
        operation: Operation,
        modifier: u32,
        data: &mut AttributeData,
    ) -> Result<(), Status> {
        let (part, number) = VlArbPart::from_modifier(modifier).ok_or(Status::INVALID_FIELD)?;
        let port = if self.is_switch(end) { self.switch_port(end, number)? } else { end };
        let info = &self.port(port).info;
        let capacity = usize::from(if part.is_high() { info.vl_arb_high_cap } else { info.vl_arb_low_cap });
        let first = part.first_entry();
        if first >= capacity {
            return Err(Status::INVALID_FIELD);
        }
        let entries = (capacity - first).min(VlArbBlock::ENTRIES);
        if operation == Operation::Set {
            let block = VlArbBlock::decode(data);
            let tables = self.arbitration_mut(port);
            let table = if part.is_high() { &mut tables.high } else { &mut tables.low };
            table[first..first + entries].copy_from_slice(&block.0[..entries]);
        }
        let mut block = VlArbBlock([VlArbEntry::default(); VlArbBlock::ENTRIES]);
        let tables = self.port(port).arbitration.as_deref().cloned().unwrap_or_default();
        let table = if part.is_high() { tables.high } else { tables.low };
        block.0[..entries].copy_from_slice(&table[first..first + entries]);
        *data = block.encode();
        Ok(())
    }
}

fn one_port(number: u8, width: usize) -> Result<std::ops::Range<usize>, Status> {
    let number = usize::from(number);
    if number < width { Ok(number..number + 1) } else { Err(Status::INVALID_FIELD) }
}
