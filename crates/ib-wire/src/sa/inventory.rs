//! Records of nodes, ports, switches, links, subnet managers and GUIDs.

use super::record;
use crate::address::LidAddress;
use crate::bits::{Field, bits, bytes, field_named, nested_field};
use crate::node_info::{NodeDescription, NodeInfo};
use crate::port_info::PortInfo;
use crate::sm_info::SmInfo;
use crate::switch_info::SwitchInfo;
use crate::tables::GuidBlock;

layout! {
    /// NodeRecord (attribute 0x0011): one per end port, with NodeInfo and NodeDescription of its node. A switch has one, for
    /// port 0.
    pub struct NodeRecord[112] {
        /// LID of the port.
        lid: Option<LidAddress> = bytes(0, 2),
        /// NodeInfo as the port answers it.
        node_info: NodeInfo = bytes(4, 40),
        description: NodeDescription = bytes(44, 64),
    }
}

const fn node(name: &str) -> Field {
    nested_field(NodeRecord::FIELDS, "node_info", NodeInfo::FIELDS, name)
}

record!(NodeRecord, NODE_RECORD {
    LID = 0 => field_named(NodeRecord::FIELDS, "lid"),
    BASE_VERSION = 2 => node("base_version"),
    CLASS_VERSION = 3 => node("class_version"),
    KIND = 4 => node("kind"),
    PORT_COUNT = 5 => node("port_count"),
    SYSTEM_GUID = 6 => node("system_guid"),
    NODE_GUID = 7 => node("node_guid"),
    PORT_GUID = 8 => node("port_guid"),
    PARTITION_CAPACITY = 9 => node("partition_capacity"),
    DEVICE_ID = 10 => node("device_id"),
    REVISION = 11 => node("revision"),
    LOCAL_PORT = 12 => node("local_port"),
    VENDOR_ID = 13 => node("vendor_id"),
    DESCRIPTION = 14 => field_named(NodeRecord::FIELDS, "description"),
});

layout! {
    /// PortInfoRecord (attribute 0x0012): PortInfo of any port, including the external ports of switches.
    pub struct PortInfoRecord[72] {
        /// LID of the port; for every port of a switch that of port 0.
        lid: Option<LidAddress> = bytes(0, 2),
        /// Port number; not checked, so that 255 is possible.
        port: u8 = bytes(2, 1),
        /// In a request: do not report speeds above QDR as QDR in the fields for speeds up to QDR.
        qdr_not_overloaded: bool = bits(3, 7, 7),
        port_info: PortInfo = bytes(4, 64),
    }
}

const fn port(name: &str) -> Field {
    nested_field(PortInfoRecord::FIELDS, "port_info", PortInfo::FIELDS, name)
}

record!(PortInfoRecord, PORT_INFO_RECORD {
    LID = 0 => field_named(PortInfoRecord::FIELDS, "lid"),
    PORT = 1 => field_named(PortInfoRecord::FIELDS, "port"),
    OPTIONS = 2 => bytes(3, 1),
    M_KEY = 3 => port("m_key"),
    GID_PREFIX = 4 => port("gid_prefix"),
    BASE_LID = 5 => port("lid"),
    MASTER_SM_LID = 6 => port("master_sm_lid"),
    CAPABILITY = 7 => port("capability"),
    DIAG_CODE = 8 => port("diag_code"),
    M_KEY_LEASE_PERIOD = 9 => port("m_key_lease_period_s"),
    LOCAL_PORT = 10 => port("local_port"),
    LINK_WIDTH_ENABLED = 11 => port("link_width_enabled"),
    LINK_WIDTH_SUPPORTED = 12 => port("link_width_supported"),
    LINK_WIDTH_ACTIVE = 13 => port("link_width_active"),
    LINK_SPEED_SUPPORTED = 14 => port("link_speed_supported"),
    STATE = 15 => port("state"),
    PHYSICAL_STATE = 16 => port("physical_state"),
    LINK_DOWN_DEFAULT = 17 => port("link_down_default"),
    M_KEY_PROTECTION = 18 => port("m_key_protection"),
    LMC = 20 => port("lmc"),
    LINK_SPEED_ACTIVE = 21 => port("link_speed_active"),
    LINK_SPEED_ENABLED = 22 => port("link_speed_enabled"),
    NEIGHBOR_MTU = 23 => port("neighbor_mtu"),
    MASTER_SM_SL = 24 => port("master_sm_sl"),
    VL_CAP = 25 => port("vl_cap"),
    INIT_TYPE = 26 => port("init_type"),
    VL_HIGH_LIMIT = 27 => port("vl_high_limit"),
    VL_ARB_HIGH_CAP = 28 => port("vl_arb_high_cap"),
    VL_ARB_LOW_CAP = 29 => port("vl_arb_low_cap"),
    INIT_TYPE_REPLY = 30 => port("init_type_reply"),
    MTU_CAP = 31 => port("mtu_cap"),
    VL_STALL_COUNT = 32 => port("vl_stall_count"),
    HOQ_LIFE = 33 => port("hoq_life"),
    OPERATIONAL_VLS = 34 => port("operational_vls"),
    ENFORCE_INBOUND = 35 => port("enforce_inbound"),
    ENFORCE_OUTBOUND = 36 => port("enforce_outbound"),
    FILTER_RAW_INBOUND = 37 => port("filter_raw_inbound"),
    FILTER_RAW_OUTBOUND = 38 => port("filter_raw_outbound"),
    M_KEY_VIOLATIONS = 39 => port("m_key_violations"),
    PKEY_VIOLATIONS = 40 => port("pkey_violations"),
    QKEY_VIOLATIONS = 41 => port("qkey_violations"),
    GUID_CAP = 42 => port("guid_cap"),
    CLIENT_REREGISTER = 43 => port("client_reregister"),
    MULTICAST_PKEY_TRAP_SUPPRESSION = 44 => port("multicast_pkey_trap_suppression"),
    SUBNET_TIMEOUT = 45 => port("subnet_timeout"),
    RESPONSE_TIME = 47 => port("response_time"),
    LOCAL_PHY_ERRORS = 48 => port("local_phy_errors"),
    OVERRUN_ERRORS = 49 => port("overrun_errors"),
    MAX_CREDIT_HINT = 50 => port("max_credit_hint"),
    LINK_ROUND_TRIP = 52 => port("link_round_trip"),
    CAPABILITY2 = 53 => port("capability2"),
    EXTENDED_SPEED_ACTIVE = 54 => port("extended_speed_active"),
    EXTENDED_SPEED_SUPPORTED = 55 => port("extended_speed_supported"),
    EXTENDED_SPEED_ENABLED = 57 => port("extended_speed_enabled"),
});

layout! {
    /// SwitchInfoRecord (attribute 0x0014): SwitchInfo of a switch.
    pub struct SwitchInfoRecord[24] {
        /// LID of the switch.
        lid: Option<LidAddress> = bytes(0, 2),
        switch_info: SwitchInfo = bytes(4, 20),
    }
}

record!(SwitchInfoRecord, SWITCH_INFO_RECORD {
    LID = 0 => field_named(SwitchInfoRecord::FIELDS, "lid"),
});

layout! {
    /// SMInfoRecord (attribute 0x0018): SMInfo of a subnet manager.
    pub struct SmInfoRecord[32] {
        /// LID of the port that the manager uses.
        lid: Option<LidAddress> = bytes(0, 2),
        sm_info: SmInfo = bytes(4, 21),
    }
}

const fn manager(name: &str) -> Field {
    nested_field(SmInfoRecord::FIELDS, "sm_info", SmInfo::FIELDS, name)
}

record!(SmInfoRecord, SM_INFO_RECORD {
    LID = 0 => field_named(SmInfoRecord::FIELDS, "lid"),
    GUID = 2 => manager("guid"),
    SM_KEY = 3 => manager("sm_key"),
    ACTIVITY = 4 => manager("activity"),
    PRIORITY = 5 => manager("priority"),
    STATE = 6 => manager("state"),
});

layout! {
    /// LinkRecord (attribute 0x0020): one direction of a link. Port numbers are not checked.
    pub struct LinkRecord[8] {
        from_lid: Option<LidAddress> = bytes(0, 2),
        from_port: u8 = bytes(2, 1),
        to_port: u8 = bytes(3, 1),
        to_lid: Option<LidAddress> = bytes(4, 2),
    }
}

record!(LinkRecord, LINK_RECORD {
    FROM_LID = 0 => field_named(LinkRecord::FIELDS, "from_lid"),
    FROM_PORT = 1 => field_named(LinkRecord::FIELDS, "from_port"),
    TO_PORT = 2 => field_named(LinkRecord::FIELDS, "to_port"),
    TO_LID = 3 => field_named(LinkRecord::FIELDS, "to_lid"),
});

layout! {
    /// GUIDInfoRecord (attribute 0x0030): GUIDs of a port. Set adds alias GUIDs, Delete removes them.
    pub struct GuidInfoRecord[72] {
        /// LID of the port.
        lid: Option<LidAddress> = bytes(0, 2),
        /// Block n has entries 8·n to 8·n + 7.
        block: u8 = bytes(2, 1),
        guids: GuidBlock = bytes(8, 64),
    }
}

record!(GuidInfoRecord, GUID_INFO_RECORD {
    LID = 0 => field_named(GuidInfoRecord::FIELDS, "lid"),
    BLOCK = 1 => field_named(GuidInfoRecord::FIELDS, "block"),
    GUID_0 = 4 => bytes(8, 8),
    GUID_1 = 5 => bytes(16, 8),
    GUID_2 = 6 => bytes(24, 8),
    GUID_3 = 7 => bytes(32, 8),
    GUID_4 = 8 => bytes(40, 8),
    GUID_5 = 9 => bytes(48, 8),
    GUID_6 = 10 => bytes(56, 8),
    GUID_7 = 11 => bytes(64, 8),
});
