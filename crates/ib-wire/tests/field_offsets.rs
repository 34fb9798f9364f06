//! Field offsets compared with those of an independent implementation: bit offsets from the most significant bit of byte 0,
//! and widths, as in libibmad of rdma-core. Captures cannot show that two fields are swapped that had the same value.

use ib_wire::notice::{LocalChange, RawNotice};
use ib_wire::perf::{PortCounters, PortCountersExtended};
use ib_wire::rmpp::RmppHeader;
use ib_wire::sa::{GuidInfoRecord, McMemberRecord, PathRecord, ServiceRecord};
use ib_wire::{ClassPortInfo, Field, MlnxExtPortInfo, NodeInfo, PortInfo, SmInfo, SwitchInfo};

macro_rules! check {
    ($ty:ident, [$($entry:expr,)*]) => {
        check_offsets(stringify!($ty), $ty::FIELDS, &[$( $entry ),*]);
    };
}

#[test]
fn field_offsets_equal_those_of_libibmad() {
    check!(
        ClassPortInfo,
        [
            ("base_version", 0, 8),
            ("class_version", 8, 8),
            ("capability", 16, 16),
            ("capability2", 32, 27),
            ("response_time", 59, 5),
            ("redirect_gid", 64, 128),
            ("redirect_traffic_class", 192, 8),
            ("redirect_sl", 200, 4),
            ("redirect_flow_label", 204, 20),
            ("redirect_lid", 224, 16),
            ("redirect_pkey", 240, 16),
            ("redirect_qp", 264, 24),
            ("redirect_qkey", 288, 32),
            ("trap_gid", 320, 128),
            ("trap_traffic_class", 448, 8),
            ("trap_sl", 456, 4),
            ("trap_flow_label", 460, 20),
            ("trap_lid", 480, 16),
            ("trap_pkey", 496, 16),
            ("trap_hop_limit", 512, 8),
            ("trap_qp", 520, 24),
            ("trap_qkey", 544, 32),
        ]
    );
    check!(GuidInfoRecord, [("lid", 0, 16), ("block", 16, 8), ("guids", 64, 512),]);
    check!(LocalChange, [("lid", 16, 16), ("capability", 48, 32),]);
    check!(
        McMemberRecord,
        [
            ("mgid", 0, 128),
            ("port_gid", 128, 128),
            ("qkey", 256, 32),
            ("mlid", 288, 16),
            ("mtu", 306, 6),
            ("traffic_class", 312, 8),
            ("pkey", 320, 16),
            ("rate", 338, 6),
            ("sl", 352, 4),
            ("flow_label", 356, 20),
            ("join_state", 388, 4),
            ("proxy_join", 392, 1),
        ]
    );
    check!(
        MlnxExtPortInfo,
        [
            ("change_enable", 24, 8),
            ("link_speed_supported", 56, 8),
            ("link_speed_enabled", 88, 8),
            ("link_speed_active", 120, 8),
        ]
    );
    check!(
        NodeInfo,
        [
            ("base_version", 0, 8),
            ("class_version", 8, 8),
            ("kind", 16, 8),
            ("port_count", 24, 8),
            ("system_guid", 32, 64),
            ("node_guid", 96, 64),
            ("port_guid", 160, 64),
            ("partition_capacity", 224, 16),
            ("device_id", 240, 16),
            ("revision", 256, 32),
            ("local_port", 288, 8),
            ("vendor_id", 296, 24),
        ]
    );
    check!(
        PathRecord,
        [
            ("dgid", 64, 128),
            ("sgid", 192, 128),
            ("dlid", 320, 16),
            ("slid", 336, 16),
            ("path_count", 393, 7),
            ("sl", 428, 4),
        ]
    );
    check!(
        PortCounters,
        [
            ("port", 8, 8),
            ("select", 16, 16),
            ("symbol_errors", 32, 16),
            ("link_recoveries", 48, 8),
            ("link_downed", 56, 8),
            ("receive_errors", 64, 16),
            ("receive_remote_physical_errors", 80, 16),
            ("receive_relay_errors", 96, 16),
            ("transmit_discards", 112, 16),
            ("transmit_constraint_errors", 128, 8),
            ("receive_constraint_errors", 136, 8),
            ("select2", 144, 8),
            ("link_integrity_errors", 152, 4),
            ("buffer_overrun_errors", 156, 4),
            ("vl15_dropped", 176, 16),
            ("transmit_words", 192, 32),
            ("receive_words", 224, 32),
            ("transmit_packets", 256, 32),
            ("receive_packets", 288, 32),
            ("transmit_wait", 320, 32),
        ]
    );
    check!(
        PortCountersExtended,
        [
            ("port", 8, 8),
            ("select", 16, 16),
            ("transmit_words", 64, 64),
            ("receive_words", 128, 64),
            ("transmit_packets", 192, 64),
            ("receive_packets", 256, 64),
            ("transmit_unicast_packets", 320, 64),
            ("receive_unicast_packets", 384, 64),
            ("transmit_multicast_packets", 448, 64),
            ("receive_multicast_packets", 512, 64),
        ]
    );
    check!(
        PortInfo,
        [
            ("m_key", 0, 64),
            ("gid_prefix", 64, 64),
            ("lid", 128, 16),
            ("master_sm_lid", 144, 16),
            ("capability", 160, 32),
            ("diag_code", 192, 16),
            ("m_key_lease_period_s", 208, 16),
            ("local_port", 224, 8),
            ("link_width_enabled", 232, 8),
            ("link_width_supported", 240, 8),
            ("link_width_active", 248, 8),
            ("link_speed_supported", 256, 4),
            ("state", 260, 4),
            ("physical_state", 264, 4),
            ("link_down_default", 268, 4),
            ("m_key_protection", 272, 2),
            ("lmc", 277, 3),
            ("link_speed_active", 280, 4),
            ("link_speed_enabled", 284, 4),
            ("neighbor_mtu", 288, 4),
            ("master_sm_sl", 292, 4),
            ("vl_cap", 296, 4),
            ("init_type", 300, 4),
            ("vl_high_limit", 304, 8),
            ("vl_arb_high_cap", 312, 8),
            ("vl_arb_low_cap", 320, 8),
            ("init_type_reply", 328, 4),
            ("mtu_cap", 332, 4),
            ("vl_stall_count", 336, 3),
            ("hoq_life", 339, 5),
            ("operational_vls", 344, 4),
            ("enforce_inbound", 348, 1),
            ("enforce_outbound", 349, 1),
            ("filter_raw_inbound", 350, 1),
            ("filter_raw_outbound", 351, 1),
            ("m_key_violations", 352, 16),
            ("pkey_violations", 368, 16),
            ("qkey_violations", 384, 16),
            ("guid_cap", 400, 8),
            ("client_reregister", 408, 1),
            ("multicast_pkey_trap_suppression", 409, 2),
            ("subnet_timeout", 411, 5),
            ("response_time", 419, 5),
            ("local_phy_errors", 424, 4),
            ("overrun_errors", 428, 4),
            ("max_credit_hint", 432, 16),
            ("link_round_trip", 456, 24),
            ("capability2", 480, 16),
            ("extended_speed_active", 496, 4),
            ("extended_speed_supported", 500, 4),
            ("extended_speed_enabled", 507, 5),
        ]
    );
    check!(
        RawNotice,
        [
            ("is_generic", 0, 1),
            ("kind", 1, 7),
            ("producer_or_vendor", 8, 24),
            ("number", 32, 16),
            ("issuer_lid", 48, 16),
            ("toggle", 64, 1),
            ("count", 65, 15),
            ("details", 80, 432),
        ]
    );
    check!(
        RmppHeader,
        [
            ("version", 0, 8),
            ("kind", 8, 8),
            ("response_time", 16, 5),
            ("flags", 21, 3),
            ("status", 24, 8),
            ("segment", 32, 32),
            ("length_or_window", 64, 32),
        ]
    );
    check!(
        ServiceRecord,
        [
            ("service_id", 0, 64),
            ("gid", 64, 128),
            ("pkey", 192, 16),
            ("lease_s", 224, 32),
            ("key", 256, 128),
            ("name", 384, 512),
        ]
    );
    check!(
        SmInfo,
        [("guid", 0, 64), ("sm_key", 64, 64), ("activity", 128, 32), ("priority", 160, 4), ("state", 164, 4),]
    );
    check!(
        SwitchInfo,
        [
            ("linear_fdb_capacity", 0, 16),
            ("random_fdb_capacity", 16, 16),
            ("multicast_fdb_capacity", 32, 16),
            ("linear_fdb_top", 48, 16),
            ("default_port", 64, 8),
            ("default_multicast_primary_port", 72, 8),
            ("default_multicast_not_primary_port", 80, 8),
            ("life_time", 88, 5),
            ("port_state_change", 93, 1),
            ("optimised_sl_to_vl", 94, 2),
            ("lids_per_port", 96, 16),
            ("partition_enforcement_capacity", 112, 16),
            ("inbound_enforcement", 128, 1),
            ("outbound_enforcement", 129, 1),
            ("filter_raw_inbound", 130, 1),
            ("filter_raw_outbound", 131, 1),
            ("enhanced_port_0", 132, 1),
            ("multicast_fdb_top", 144, 16),
        ]
    );
}

fn check_offsets(layout: &str, fields: &[(&str, Field)], expected: &[(&str, usize, usize)]) {
    for (name, offset, width) in expected {
        let found = fields.iter().find(|(field, _)| field == name);
        let (_, field) = found.unwrap_or_else(|| panic!("{layout} has no {name}"));
        assert_eq!(field.width(), *width, "width of {layout}.{name}");
        assert_eq!(field.first_byte(), offset / 8, "first byte of {layout}.{name}");
        assert_eq!(field.end_byte(), (offset + width).div_ceil(8), "end of {layout}.{name}");
        if *width <= 64 {
            let mut raw = [0; 176];
            field.put(&mut raw, field.max());
            let set = |bit: usize| raw[bit / 8] >> (7 - bit % 8) & 1 == 1;
            let is_expected = |bit: usize| (*offset..offset + width).contains(&bit);
            assert!((0..raw.len() * 8).all(|bit| set(bit) == is_expected(bit)), "bits of {layout}.{name}");
        }
    }
}
