//! PathRecord: addresses, service level and limits of a path between two ports.

use super::{SA_DATA_LEN, record};
use crate::address::{Gid, LidAddress};
use crate::bits::{bits, bits_from, bytes, field_named};
use crate::keys::Pkey;
use crate::lanes::ServiceLevel;
use crate::link::Mtu;
use crate::mad::Mad;
use crate::rate::Rate;

layout! {
    /// PathRecord (attribute 0x0035): a path from `slid`, `sgid` to `dlid`, `dgid`.
    pub struct PathRecord[64] {
        /// The service that the path is for; the SA may choose the service level by it.
        service_id: u64 = bytes(0, 8),
        dgid: Gid = bytes(8, 16),
        sgid: Gid = bytes(24, 16),
        dlid: Option<LidAddress> = bytes(40, 2),
        slid: Option<LidAddress> = bytes(42, 2),
        /// RawTraffic: the path is for raw packets.
        is_raw: bool = bits(44, 7, 7),
        /// Flow label of the GRH, 20 bits.
        flow_label: u32 = bits_from(44, 3, 20),
        /// Hop limit of the GRH.
        hop_limit: u8 = bytes(47, 1),
        traffic_class: u8 = bytes(48, 1),
        /// Responses may use the same path in the reverse direction.
        is_reversible: bool = bits(49, 7, 7),
        /// NumbPath: in a request the most paths per pair of ports, 7 bits.
        path_count: u8 = bits(49, 6, 0),
        pkey: Option<Pkey> = bytes(50, 2),
        /// Quality of service class, 12 bits.
        qos_class: u16 = bits_from(52, 7, 12),
        sl: ServiceLevel = bits(53, 3, 0),
        /// How a request compares `mtu`.
        mtu_selector: Selector = bits(54, 7, 6),
        /// Largest payload on the path.
        mtu: Mtu = bits(54, 5, 0),
        /// How a request compares `rate`.
        rate_selector: Selector = bits(55, 7, 6),
        /// Rate of the slowest link on the path.
        rate: Rate = bits(55, 5, 0),
        /// How a request compares `packet_life_time`.
        packet_life_time_selector: Selector = bits(56, 7, 6),
        /// PacketLifeTime: longest time that a packet takes on the path, 4.096 µs · 2ⁿ.
        packet_life_time: u8 = bits(56, 5, 0),
        /// Rank among several paths; 0 is the best.
        preference: u8 = bytes(57, 1),
    }
}

record!(PathRecord, PATH_RECORD {
    SERVICE_ID_HIGH = 0 => bytes(0, 1),
    SERVICE_ID_LOW = 1 => bytes(1, 7),
    DGID = 2 => field_named(PathRecord::FIELDS, "dgid"),
    SGID = 3 => field_named(PathRecord::FIELDS, "sgid"),
    DLID = 4 => field_named(PathRecord::FIELDS, "dlid"),
    SLID = 5 => field_named(PathRecord::FIELDS, "slid"),
    IS_RAW = 6 => field_named(PathRecord::FIELDS, "is_raw"),
    FLOW_LABEL = 8 => field_named(PathRecord::FIELDS, "flow_label"),
    HOP_LIMIT = 9 => field_named(PathRecord::FIELDS, "hop_limit"),
    TRAFFIC_CLASS = 10 => field_named(PathRecord::FIELDS, "traffic_class"),
    IS_REVERSIBLE = 11 => field_named(PathRecord::FIELDS, "is_reversible"),
    PATH_COUNT = 12 => field_named(PathRecord::FIELDS, "path_count"),
    PKEY = 13 => field_named(PathRecord::FIELDS, "pkey"),
    QOS_CLASS = 14 => field_named(PathRecord::FIELDS, "qos_class"),
    SL = 15 => field_named(PathRecord::FIELDS, "sl"),
    MTU_SELECTOR = 16 => field_named(PathRecord::FIELDS, "mtu_selector"),
    MTU = 17 => field_named(PathRecord::FIELDS, "mtu"),
    RATE_SELECTOR = 18 => field_named(PathRecord::FIELDS, "rate_selector"),
    RATE = 19 => field_named(PathRecord::FIELDS, "rate"),
    PACKET_LIFE_TIME_SELECTOR = 20 => field_named(PathRecord::FIELDS, "packet_life_time_selector"),
    PACKET_LIFE_TIME = 21 => field_named(PathRecord::FIELDS, "packet_life_time"),
    PREFERENCE = 22 => field_named(PathRecord::FIELDS, "preference"),
});

layout! {
    /// MultiPathRecord (attribute 0x003a): a request for paths between groups of ports. The GIDs of the sources, then those of
    /// the destinations follow it ([`MultiPathRecord::gids`]). The response has PathRecords.
    pub struct MultiPathRecord[24] {
        is_raw: bool = bits(0, 7, 7),
        flow_label: u32 = bits_from(0, 3, 20),
        hop_limit: u8 = bytes(3, 1),
        traffic_class: u8 = bytes(4, 1),
        is_reversible: bool = bits(5, 7, 7),
        /// NumbPath: the most paths in the response, 7 bits.
        path_count: u8 = bits(5, 6, 0),
        pkey: Option<Pkey> = bytes(6, 2),
        qos_class: u16 = bits_from(8, 7, 12),
        sl: ServiceLevel = bits(9, 3, 0),
        mtu_selector: Selector = bits(10, 7, 6),
        mtu: Mtu = bits(10, 5, 0),
        rate_selector: Selector = bits(11, 7, 6),
        rate: Rate = bits(11, 5, 0),
        packet_life_time_selector: Selector = bits(12, 7, 6),
        packet_life_time: u8 = bits(12, 5, 0),
        /// The number of source GIDs.
        source_count: u8 = bytes(15, 1),
        /// The number of destination GIDs.
        destination_count: u8 = bytes(16, 1),
    }
}

record!(MultiPathRecord, MULTI_PATH_RECORD {
    IS_RAW = 0 => field_named(MultiPathRecord::FIELDS, "is_raw"),
    FLOW_LABEL = 2 => field_named(MultiPathRecord::FIELDS, "flow_label"),
    HOP_LIMIT = 3 => field_named(MultiPathRecord::FIELDS, "hop_limit"),
    TRAFFIC_CLASS = 4 => field_named(MultiPathRecord::FIELDS, "traffic_class"),
    IS_REVERSIBLE = 5 => field_named(MultiPathRecord::FIELDS, "is_reversible"),
    PATH_COUNT = 6 => field_named(MultiPathRecord::FIELDS, "path_count"),
    PKEY = 7 => field_named(MultiPathRecord::FIELDS, "pkey"),
    QOS_CLASS = 8 => field_named(MultiPathRecord::FIELDS, "qos_class"),
    SL = 9 => field_named(MultiPathRecord::FIELDS, "sl"),
    MTU_SELECTOR = 10 => field_named(MultiPathRecord::FIELDS, "mtu_selector"),
    MTU = 11 => field_named(MultiPathRecord::FIELDS, "mtu"),
    RATE_SELECTOR = 12 => field_named(MultiPathRecord::FIELDS, "rate_selector"),
    RATE = 13 => field_named(MultiPathRecord::FIELDS, "rate"),
    PACKET_LIFE_TIME_SELECTOR = 14 => field_named(MultiPathRecord::FIELDS, "packet_life_time_selector"),
    PACKET_LIFE_TIME = 15 => field_named(MultiPathRecord::FIELDS, "packet_life_time"),
    SOURCE_COUNT = 19 => field_named(MultiPathRecord::FIELDS, "source_count"),
    DESTINATION_COUNT = 20 => field_named(MultiPathRecord::FIELDS, "destination_count"),
});

impl MultiPathRecord {
    /// The number of GIDs in a request of one datagram.
    pub const GIDS_MAX: usize = (SA_DATA_LEN - Self::LEN) / size_of::<Gid>();

    /// The GIDs that follow the record in a request of one datagram, whether they are in use or not.
    pub fn gids(request: &Mad) -> impl Iterator<Item = Gid> {
        let (gids, _) = request.sa_data()[Self::LEN..].as_chunks::<16>();
        gids.iter().map(|raw| Gid(*raw))
    }
}

wire_enum! {
    /// How a request compares MTU, rate or packet lifetime.
    pub enum Selector {
        GreaterThan = 0,
        LessThan = 1,
        Exactly = 2,
        /// The largest available MTU or rate, the smallest available packet lifetime.
        Best = 3,
    }
}
