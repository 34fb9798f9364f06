//! The performance management agent: reads and resets port counters.

use ib_wire::perf::{
    ALL_PORT_SELECT, ALL_PORTS, CounterSelect, EXTENDED_WIDTH, ExtendedCounterSelect, PortCounters,
    PortCountersExtended, SlDataCounters, XMIT_WAIT,
};
use ib_wire::{Attribute, ClassPortInfo, Mad, Method, PortNum, Status};

use crate::counters::{Counters, SlCounters};
use crate::device::PortId;
use crate::fabric::Fabric;
use crate::forwarding::Arrival;

impl Fabric {
    /// Turns a request of the performance class into its response.
    pub(crate) fn performance_agent(&mut self, arrival: Arrival, mad: &mut Mad) {
        let status = match (mad.attribute(), mad.method()) {
            _ if !mad.has_known_versions() => Err(Status::BAD_VERSION),
            (_, method) if method != Method::GET && method != Method::SET => Err(Status::UNSUPPORTED_METHOD),
            (Attribute::CLASS_PORT_INFO, Method::GET) => self.performance_class(mad),
            (Attribute::PORT_COUNTERS, _) => self.port_counters(arrival, mad),
            (Attribute::PORT_COUNTERS_EXT, _) => self.port_counters_extended(arrival, mad),
            (Attribute::PORT_XMIT_DATA_SL, _) => {
                self.sl_counters(arrival, mad, |it| &mut it.transmit_data_by_sl)
            }
            (Attribute::PORT_RCV_DATA_SL, _) => {
                self.sl_counters(arrival, mad, |it| &mut it.receive_data_by_sl)
            }
            _ => Err(Status::UNSUPPORTED_ATTRIBUTE),
        };
        mad.set_method(Method::GET_RESP);
        mad.set_status(status.err().unwrap_or(Status::OK));
    }

    fn performance_class(&self, mad: &mut Mad) -> Result<(), Status> {
        let mut info = ClassPortInfo::decode(&[0; ClassPortInfo::LEN]).map_err(|_| Status::INVALID_FIELD)?;
        info.base_version = 1;
        info.class_version = 1;
        info.capability = ALL_PORT_SELECT.with(EXTENDED_WIDTH).with(XMIT_WAIT);
        mad.perf_data_mut()[..ClassPortInfo::LEN].copy_from_slice(&info.encode());
        Ok(())
    }

    fn port_counters(&mut self, arrival: Arrival, mad: &mut Mad) -> Result<(), Status> {
        let requested = PortCounters::decode(mad.perf_data()).map_err(|_| Status::INVALID_FIELD)?;
        let ports = self.counted_ports(arrival, requested.port)?;
        if mad.method() == Method::SET {
            for port in &ports {
                reset(&mut self.port_mut(*port).counters, requested.select);
            }
        }
        let answer = narrow(&self.sum(&ports), requested.port, requested.select);
        mad.perf_data_mut()[..PortCounters::LEN].copy_from_slice(&answer.encode());
        Ok(())
    }

    fn port_counters_extended(&mut self, arrival: Arrival, mad: &mut Mad) -> Result<(), Status> {
        let requested = PortCountersExtended::decode(mad.perf_data()).map_err(|_| Status::INVALID_FIELD)?;
        let ports = self.counted_ports(arrival, requested.port)?;
        if mad.method() == Method::SET {
            for port in &ports {
                reset_extended(&mut self.port_mut(*port).counters, requested.select);
            }
        }
        let answer = wide(&self.sum(&ports), requested.port, requested.select);
        mad.perf_data_mut()[..PortCountersExtended::LEN].copy_from_slice(&answer.encode());
        Ok(())
    }

    fn sl_counters(
        &mut self,
        arrival: Arrival,
        mad: &mut Mad,
        of: impl Fn(&mut Counters) -> &mut SlCounters,
    ) -> Result<(), Status> {
        if !self.profile.links.sl_counters {
            return Err(Status::UNSUPPORTED_ATTRIBUTE);
        }
        let requested = SlDataCounters::decode(mad.perf_data());
        let ports = self.counted_ports(arrival, requested.port)?;
        if mad.method() == Method::SET {
            for port in &ports {
                of(&mut self.port_mut(*port).counters).reset(requested.select);
            }
        }
        let words = of(&mut self.sum(&ports)).all().map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let answer = SlDataCounters { words, ..requested };
        mad.perf_data_mut()[..SlDataCounters::LEN].copy_from_slice(&answer.encode());
        Ok(())
    }

    /// The ports that a PortSelect value means: one port of the node, or all of them for 0xFF.
    fn counted_ports(&self, arrival: Arrival, select: u8) -> Result<Vec<PortId>, Status> {
        let device = self.device_of(arrival.end);
        if select == ALL_PORTS {
            return Ok(device.ports().collect());
        }
        PortNum::new(select)
            .and_then(|number| device.port(number))
            .map(|port| vec![port])
            .ok_or(Status::INVALID_FIELD)
    }

    fn sum(&self, ports: &[PortId]) -> Counters {
        let mut total = Counters::default();
        for port in ports {
            total.add(&self.port(*port).counters);
        }
        total
    }
}

/// The 32-bit counters. Each saturates at the width of its field.
fn narrow(counters: &Counters, port: u8, select: CounterSelect) -> PortCounters {
    let byte = |n: u64| u8::try_from(n).unwrap_or(u8::MAX);
    let short = |n: u64| u16::try_from(n).unwrap_or(u16::MAX);
    let word = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    PortCounters {
        port,
        select,
        symbol_errors: short(counters.symbol_errors),
        link_recoveries: byte(counters.link_recoveries),
        link_downed: byte(counters.link_downed),
        receive_errors: short(counters.receive_errors),
        receive_remote_physical_errors: short(counters.remote_physical_errors),
        receive_relay_errors: short(counters.relay_errors),
        transmit_discards: short(counters.transmit_discards),
        transmit_constraint_errors: byte(counters.transmit_constraint_errors),
        receive_constraint_errors: byte(counters.receive_constraint_errors),
        select2: 0,
        link_integrity_errors: byte(counters.local_integrity_errors).min(15),
        buffer_overrun_errors: byte(counters.overrun_errors).min(15),
        qp1_dropped: 0,
        vl15_dropped: short(counters.management_dropped),
        transmit_words: word(counters.transmit_data),
        receive_words: word(counters.receive_data),
        transmit_packets: word(counters.transmit_packets),
        receive_packets: word(counters.receive_packets),
        transmit_wait: word(counters.transmit_wait),
    }
}

fn wide(counters: &Counters, port: u8, select: ExtendedCounterSelect) -> PortCountersExtended {
    PortCountersExtended {
        port,
        select,
        select2: 0,
        transmit_words: counters.transmit_data,
        receive_words: counters.receive_data,
        transmit_packets: counters.transmit_packets,
        receive_packets: counters.receive_packets,
        transmit_unicast_packets: counters.unicast_transmit_packets,
        receive_unicast_packets: counters.unicast_receive_packets,
        transmit_multicast_packets: counters.multicast_transmit_packets,
        receive_multicast_packets: counters.multicast_receive_packets,
    }
}

/// Resets the selected counters, whatever values the request carries.
fn reset(counters: &mut Counters, select: CounterSelect) {
    let selected: [(CounterSelect, &mut u64); 16] = [
        (CounterSelect::SYMBOL_ERRORS, &mut counters.symbol_errors),
        (CounterSelect::LINK_RECOVERIES, &mut counters.link_recoveries),
        (CounterSelect::LINK_DOWNED, &mut counters.link_downed),
        (CounterSelect::RECEIVE_ERRORS, &mut counters.receive_errors),
        (CounterSelect::RECEIVE_REMOTE_PHYSICAL_ERRORS, &mut counters.remote_physical_errors),
        (CounterSelect::RECEIVE_RELAY_ERRORS, &mut counters.relay_errors),
        (CounterSelect::TRANSMIT_DISCARDS, &mut counters.transmit_discards),
        (CounterSelect::TRANSMIT_CONSTRAINT_ERRORS, &mut counters.transmit_constraint_errors),
        (CounterSelect::RECEIVE_CONSTRAINT_ERRORS, &mut counters.receive_constraint_errors),
        (CounterSelect::LINK_INTEGRITY_ERRORS, &mut counters.local_integrity_errors),
        (CounterSelect::BUFFER_OVERRUN_ERRORS, &mut counters.overrun_errors),
        (CounterSelect::VL15_DROPPED, &mut counters.management_dropped),
        (CounterSelect::TRANSMIT_WORDS, &mut counters.transmit_data),
        (CounterSelect::RECEIVE_WORDS, &mut counters.receive_data),
        (CounterSelect::TRANSMIT_PACKETS, &mut counters.transmit_packets),
        (CounterSelect::RECEIVE_PACKETS, &mut counters.receive_packets),
    ];
    for (bit, counter) in selected {
        if select.has(bit) {
            *counter = 0;
        }
    }
}

/// Resets the selected counters of PortCountersExtended.
fn reset_extended(counters: &mut Counters, select: ExtendedCounterSelect) {
    let selected: [(ExtendedCounterSelect, &mut u64); 8] = [
        (ExtendedCounterSelect::TRANSMIT_WORDS, &mut counters.transmit_data),
        (ExtendedCounterSelect::RECEIVE_WORDS, &mut counters.receive_data),
        (ExtendedCounterSelect::TRANSMIT_PACKETS, &mut counters.transmit_packets),
        (ExtendedCounterSelect::RECEIVE_PACKETS, &mut counters.receive_packets),
        (ExtendedCounterSelect::TRANSMIT_UNICAST_PACKETS, &mut counters.unicast_transmit_packets),
        (ExtendedCounterSelect::RECEIVE_UNICAST_PACKETS, &mut counters.unicast_receive_packets),
        (ExtendedCounterSelect::TRANSMIT_MULTICAST_PACKETS, &mut counters.multicast_transmit_packets),
        (ExtendedCounterSelect::RECEIVE_MULTICAST_PACKETS, &mut counters.multicast_receive_packets),
    ];
    for (bit, counter) in selected {
        if select.has(bit) {
            *counter = 0;
        }
    }
}
