//! Decoded attributes with the keys and value names of the stock tools.

use ib_wire::notice::InformInfoRecord;
use ib_wire::perf::{PortCounters, PortCountersExtended};
use ib_wire::sa::{McMemberRecord, PathRecord, SmInfoRecord, SwitchInfoRecord};
use ib_wire::{
    ClassPortInfo, DataLanes, ExtendedSpeed, Guid, Lid, LidAddress, LinkDownDefault, LinkSpeed, LinkWidth,
    MlnxExtPortInfo, NodeInfo, NodeKind, PhysicalState, Pkey, PortInfo, PortState, SwitchInfo,
};

use super::tool_output::Value;

pub type Lines = Vec<(&'static str, Value)>;

/// Makes [`Lines`] of `key => value`.
macro_rules! lines {
    ($($key:literal => $value:expr,)*) => { vec![$( ($key, Value::from($value)) ),*] };
}

pub fn node_info(i: &NodeInfo) -> Lines {
    lines! {
        "BaseVers" => i.base_version,
        "ClassVers" => i.class_version,
        "NodeType" => node_kind(i.kind),
        "NumPorts" => i.port_count,
        "SystemGuid" => guid(i.system_guid),
        "Guid" => i.node_guid.to_wire(),
        "PortGuid" => i.port_guid.to_wire(),
        "PartCap" => i.partition_capacity,
        "DevId" => i.device_id,
        "Revision" => i.revision,
        "LocalPort" => i.local_port.to_wire(),
        "VendorId" => i.vendor_id,
    }
}

pub fn node_record(r: &ib_wire::sa::NodeRecord) -> Lines {
    let i = &r.node_info;
    lines! {
        "lid" => lid_address(r.lid),
        "reserved" => 0u8,
        "base_version" => i.base_version,
        "class_version" => i.class_version,
        "node_type" => node_kind(i.kind),
        "num_ports" => i.port_count,
        "sys_guid" => guid(i.system_guid),
        "node_guid" => i.node_guid.to_wire(),
        "port_guid" => i.port_guid.to_wire(),
        "partition_cap" => i.partition_capacity,
        "device_id" => i.device_id,
        "revision" => i.revision,
        "port_num" => i.local_port.to_wire(),
        "vendor_id" => i.vendor_id,
        "NodeDescription" => r.description.text(),
    }
}

pub fn port_info(i: &PortInfo) -> Lines {
    lines! {
        "Mkey" => i.m_key.map_or(0, |key| key.to_wire()),
        "GidPrefix" => i.gid_prefix,
        "Lid" => lid(i.lid),
        "SMLid" => lid(i.master_sm_lid),
        "CapMask" => i.capability.0,
        "DiagCode" => i.diag_code,
        "MkeyLeasePeriod" => i.m_key_lease_period_s,
        "LocalPort" => i.local_port.to_wire(),
        "LinkWidthEnabled" => widths(i.link_width_enabled),
        "LinkWidthSupported" => widths(i.link_width_supported),
        "LinkWidthActive" => widths(i.link_width_active),
        "LinkSpeedSupported" => speeds(i.link_speed_supported),
        "LinkState" => port_state(i.state),
        "PhysLinkState" => physical_state(i.physical_state),
        "LinkDownDefState" => match i.link_down_default {
            LinkDownDefault::Polling => "Polling".to_owned(),
            LinkDownDefault::Sleep => "Sleep".to_owned(),
            other => format!("{other:?}"),
        },
        "ProtectBits" => i.m_key_protection.to_wire(),
        "LMC" => i.lmc.to_wire(),
        "LinkSpeedActive" => speeds(i.link_speed_active),
        "LinkSpeedEnabled" => speeds(i.link_speed_enabled),
        "NeighborMTU" => i.neighbor_mtu.bytes(),
        "SMSL" => i.master_sm_sl.to_wire(),
        "VLCap" => lanes(i.vl_cap),
        "InitType" => i.init_type,
        "VLHighLimit" => i.vl_high_limit,
        "VLArbHighCap" => i.vl_arb_high_cap,
        "VLArbLowCap" => i.vl_arb_low_cap,
        "InitReply" => i.init_type_reply,
        "MtuCap" => i.mtu_cap.bytes(),
        "VLStallCount" => i.vl_stall_count,
        "HoqLife" => i.hoq_life,
        "OperVLs" => lanes(i.operational_vls),
        "PartEnforceInb" => i.enforce_inbound,
        "PartEnforceOutb" => i.enforce_outbound,
        "FilterRawInb" => i.filter_raw_inbound,
        "FilterRawOutb" => i.filter_raw_outbound,
        "MkeyViolations" => i.m_key_violations,
        "PkeyViolations" => i.pkey_violations,
        "QkeyViolations" => i.qkey_violations,
        "GuidCap" => i.guid_cap,
        "ClientReregister" => i.client_reregister,
        "McastPkeyTrapSuppressionEnabled" => i.multicast_pkey_trap_suppression,
        "SubnetTimeout" => i.subnet_timeout,
        "RespTimeVal" => i.response_time,
        "LocalPhysErr" => i.local_phy_errors,
        "OverrunErr" => i.overrun_errors,
        "MaxCreditHint" => i.max_credit_hint,
        "RoundTrip" => i.link_round_trip,
        "CapabilityMask2" => i.capability2,
        "LinkSpeedExtActive" => extended_speed(i.extended_speed_active),
        "LinkSpeedExtSupported" => i.extended_speed_supported.0,
        "LinkSpeedExtEnabled" => i.extended_speed_enabled.0,
    }
}

pub fn mlnx_ext_port_info(i: &MlnxExtPortInfo) -> Lines {
    lines! {
        "StateChangeEnable" => i.change_enable,
        "LinkSpeedSupported" => i.link_speed_supported,
        "LinkSpeedEnabled" => i.link_speed_enabled,
        "LinkSpeedActive" => i.link_speed_active,
    }
}

pub fn switch_info(i: &SwitchInfo) -> Lines {
    lines! {
        "LinearFdbCap" => i.linear_fdb_capacity,
        "RandomFdbCap" => i.random_fdb_capacity,
        "McastFdbCap" => i.multicast_fdb_capacity,
        "LinearFdbTop" => i.linear_fdb_top,
        "DefPort" => i.default_port,
        "DefMcastPrimPort" => i.default_multicast_primary_port,
        "DefMcastNotPrimPort" => i.default_multicast_not_primary_port,
        "LifeTime" => i.life_time,
        "StateChange" => i.port_state_change,
        "OptSLtoVLMapping" => i.optimised_sl_to_vl,
        "LidsPerPort" => i.lids_per_port,
        "PartEnforceCap" => i.partition_enforcement_capacity,
        "InboundPartEnf" => i.inbound_enforcement,
        "OutboundPartEnf" => i.outbound_enforcement,
        "FilterRawInbound" => i.filter_raw_inbound,
        "FilterRawOutbound" => i.filter_raw_outbound,
        "EnhancedPort0" => i.enhanced_port_0,
        "MulticastFDBTop" => i.multicast_fdb_top,
    }
}

pub fn switch_info_record(r: &SwitchInfoRecord) -> Lines {
    let i = &r.switch_info;
    let bit = |set: bool, at: u8| u8::from(set) << at;
    lines! {
        "LID" => lid_address(r.lid),
        "LinearFDBCap" => i.linear_fdb_capacity,
        "RandomFDBCap" => i.random_fdb_capacity,
        "MulticastFDBCap" => i.multicast_fdb_capacity,
        "LinearFDBTop" => i.linear_fdb_top,
        "DefaultPort" => i.default_port,
        "DefaultMulticastPrimaryPort" => i.default_multicast_primary_port,
        "DefaultMulticastNotPrimaryPort" => i.default_multicast_not_primary_port,
        "LifeTimeValue/PortStateChange/OpSL2VL" =>
            i.life_time << 3 | bit(i.port_state_change, 2) | i.optimised_sl_to_vl,
        "LIDsPerPort" => i.lids_per_port,
        "PartitionEnforcementCap" => i.partition_enforcement_capacity,
        "flags" => bit(i.inbound_enforcement, 7)
            | bit(i.outbound_enforcement, 6)
            | bit(i.filter_raw_inbound, 5)
            | bit(i.filter_raw_outbound, 4)
            | bit(i.enhanced_port_0, 3),
        "MulticastFDBTop" => i.multicast_fdb_top,
    }
}

pub fn sm_info_record(r: &SmInfoRecord) -> Lines {
    lines! {
        "LID" => lid_address(r.lid),
        "GUID" => guid(r.sm_info.guid),
        "SM_Key" => r.sm_info.sm_key.map_or(0, |key| key.to_wire()),
        "ActCount" => r.sm_info.activity,
        "Priority" => r.sm_info.priority,
        "SMState" => r.sm_info.state.to_wire(),
    }
}

pub fn port_counters(c: &PortCounters) -> Lines {
    lines! {
        "PortSelect" => c.port,
        "CounterSelect" => c.select.0,
        "SymbolErrorCounter" => c.symbol_errors,
        "LinkErrorRecoveryCounter" => c.link_recoveries,
        "LinkDownedCounter" => c.link_downed,
        "PortRcvErrors" => c.receive_errors,
        "PortRcvRemotePhysicalErrors" => c.receive_remote_physical_errors,
        "PortRcvSwitchRelayErrors" => c.receive_relay_errors,
        "PortXmitDiscards" => c.transmit_discards,
        "PortXmitConstraintErrors" => c.transmit_constraint_errors,
        "PortRcvConstraintErrors" => c.receive_constraint_errors,
        "CounterSelect2" => c.select2,
        "LocalLinkIntegrityErrors" => c.link_integrity_errors,
        "ExcessiveBufferOverrunErrors" => c.buffer_overrun_errors,
        "QP1Dropped" => c.qp1_dropped,
        "VL15Dropped" => c.vl15_dropped,
        "PortXmitData" => c.transmit_words,
        "PortRcvData" => c.receive_words,
        "PortXmitPkts" => c.transmit_packets,
        "PortRcvPkts" => c.receive_packets,
        "PortXmitWait" => c.transmit_wait,
    }
}

pub fn port_counters_extended(c: &PortCountersExtended) -> Lines {
    lines! {
        "PortSelect" => c.port,
        "CounterSelect" => c.select.0,
        "PortXmitData" => c.transmit_words,
        "PortRcvData" => c.receive_words,
        "PortXmitPkts" => c.transmit_packets,
        "PortRcvPkts" => c.receive_packets,
        "PortUnicastXmitPkts" => c.transmit_unicast_packets,
        "PortUnicastRcvPkts" => c.receive_unicast_packets,
        "PortMulticastXmitPkts" => c.transmit_multicast_packets,
        "PortMulticastRcvPkts" => c.receive_multicast_packets,
    }
}

pub fn class_port_info(i: &ClassPortInfo) -> Lines {
    let packed = |tc: u8, sl: u8, flow: u32| u32::from(tc) << 24 | u32::from(sl) << 20 | flow;
    lines! {
        "Base version" => i.base_version,
        "Class version" => i.class_version,
        "Capability mask" => i.capability.0,
        "Capability mask 2" => i.capability2.0,
        "Response time value" => i.response_time,
        "Redirect GID" => i.redirect_gid.to_string(),
        "Redirect TC/SL/FL" => packed(i.redirect_traffic_class, i.redirect_sl.to_wire(), i.redirect_flow_label),
        "Redirect LID" => lid_address(i.redirect_lid),
        "Redirect PKey" => pkey(i.redirect_pkey),
        "Redirect QP" => i.redirect_qp.to_wire(),
        "Redirect QKey" => i.redirect_qkey.to_wire(),
        "Trap GID" => i.trap_gid.to_string(),
        "Trap TC/SL/FL" => packed(i.trap_traffic_class, i.trap_sl.to_wire(), i.trap_flow_label),
        "Trap LID" => lid_address(i.trap_lid),
        "Trap PKey" => pkey(i.trap_pkey),
        "Trap HL/QP" => u32::from(i.trap_hop_limit) << 24 | i.trap_qp.to_wire(),
        "Trap QKey" => i.trap_qkey.to_wire(),
    }
}

pub fn path_record(r: &PathRecord) -> Lines {
    lines! {
        "service_id" => r.service_id,
        "dgid" => r.dgid.to_string(),
        "sgid" => r.sgid.to_string(),
        "dlid" => lid_address(r.dlid),
        "slid" => lid_address(r.slid),
        "hop_flow_raw" => u32::from(r.is_raw) << 31 | r.flow_label << 8 | u32::from(r.hop_limit),
        "tclass" => r.traffic_class,
        "num_path_revers" => u8::from(r.is_reversible) << 7 | r.path_count,
        "pkey" => pkey(r.pkey),
        "qos_class" => r.qos_class,
        "sl" => r.sl.to_wire(),
        "mtu" => r.mtu_selector.to_wire() << 6 | r.mtu.to_wire(),
        "rate" => r.rate_selector.to_wire() << 6 | r.rate.to_wire(),
        "pkt_life" => r.packet_life_time_selector.to_wire() << 6 | r.packet_life_time,
        "preference" => r.preference,
        "resv2" => 0u8,
    }
}

pub fn mc_member_record(r: &McMemberRecord) -> Lines {
    lines! {
        "MGID" => r.mgid.to_string(),
        "Mlid" => r.mlid.map_or(0, |lid| lid.to_wire()),
        "Mtu" => r.mtu_selector.to_wire() << 6 | r.mtu.to_wire(),
        "pkey" => pkey(r.pkey),
        "Rate" => r.rate_selector.to_wire() << 6 | r.rate.to_wire(),
        "SL" => r.sl.to_wire(),
        "PortGid" => r.port_gid.to_string(),
        "ScopeState" => r.scope << 4 | r.join_state.0,
        "ProxyJoin" => r.proxy_join,
        // saquery takes the name from another record.
        "NodeDescription" => "<unknown>".to_owned(),
    }
}

pub fn inform_info_record(r: &InformInfoRecord) -> Lines {
    let i = &r.inform_info;
    lines! {
        "SubscriberGID" => r.subscriber.to_string(),
        "SubscriberEnum" => r.subscriber_enum,
        "gid" => i.gid.to_string(),
        "lid_range_begin" => lid_address(i.lid_range_begin),
        "lid_range_end" => lid_address(i.lid_range_end),
        "is_generic" => i.scope.to_wire(),
        "subscribe" => i.subscription.to_wire(),
        "trap_type" => i.kind,
        "trap_num" => i.number,
        "resp_time_val" => i.response_time,
        "node_type" => i.producer_or_vendor,
    }
}

pub fn guid(guid: Option<Guid>) -> u64 {
    guid.map_or(0, Guid::to_wire)
}

pub fn pkey(key: Option<Pkey>) -> u16 {
    key.map_or(0, Pkey::to_wire)
}

pub fn lid_address(lid: Option<LidAddress>) -> u16 {
    lid.map_or(0, LidAddress::to_wire)
}

fn lid(lid: Option<Lid>) -> u16 {
    lid.map_or(0, Lid::to_wire)
}

fn node_kind(kind: NodeKind) -> String {
    match kind {
        NodeKind::Adapter => "Channel Adapter".to_owned(),
        other => format!("{other:?}"),
    }
}

fn port_state(state: PortState) -> String {
    format!("{state:?}")
}

fn physical_state(state: PhysicalState) -> String {
    format!("{state:?}")
}

fn lanes(lanes: DataLanes) -> String {
    match lanes.count() {
        1 => "VL0".to_owned(),
        count => format!("VL0-{}", count - 1),
    }
}

fn widths(widths: LinkWidth) -> String {
    let names = [
        (LinkWidth::X1, "1X"),
        (LinkWidth::X4, "4X"),
        (LinkWidth::X8, "8X"),
        (LinkWidth::X12, "12X"),
        (LinkWidth::X2, "2X"),
    ];
    joined(names.into_iter().filter(|(width, _)| widths.0 & width.0 != 0).map(|(_, name)| name))
}

fn speeds(speeds: LinkSpeed) -> String {
    let names = [(LinkSpeed::SDR, "2.5 Gbps"), (LinkSpeed::DDR, "5.0 Gbps"), (LinkSpeed::QDR, "10.0 Gbps")];
    joined(names.into_iter().filter(|(speed, _)| speeds.0 & speed.0 != 0).map(|(_, name)| name))
}

fn extended_speed(speed: ExtendedSpeed) -> String {
    if speed == ExtendedSpeed::default() { "No Extended Speed".to_owned() } else { format!("{speed:?}") }
}

fn joined<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(" or ")
}
