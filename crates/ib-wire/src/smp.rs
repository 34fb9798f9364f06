//! Subnet management datagrams: the key, the route and the 64 bytes of attribute data.

use crate::address::{LidAddress, PortNum};
use crate::bits::{Field, WireValue, bytes};
use crate::keys::MKey;
use crate::mad::{Attribute, Mad, ManagementClass, Method};

/// Attribute data of a subnet management datagram in bytes.
pub const SMP_DATA_LEN: usize = 64;

/// Hops a directed route may have: 64 path bytes, of which the first is not used.
pub const DIRECTED_HOPS_MAX: usize = 63;

const HOP_POINTER: usize = 6;
const HOP_COUNT: usize = 7;
const M_KEY: Field = bytes(24, 8);
const DR_SLID: Field = bytes(32, 2);
const DR_DLID: Field = bytes(34, 2);
const DATA: usize = 64;
const INITIAL_PATH: usize = 128;
const RETURN_PATH: usize = 192;
const DIRECTION_BIT: u8 = 0x80;

/// The exit ports of a directed route, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirectedRoute(Vec<PortNum>);

impl DirectedRoute {
    /// A route through these exit ports; `None` if there are more than [`DIRECTED_HOPS_MAX`].
    pub fn new(hops: impl IntoIterator<Item = PortNum>) -> Option<Self> {
        let hops: Vec<PortNum> = hops.into_iter().take(DIRECTED_HOPS_MAX + 1).collect();
        (hops.len() <= DIRECTED_HOPS_MAX).then_some(Self(hops))
    }

    /// The exit ports.
    pub fn hops(&self) -> &[PortNum] {
        &self.0
    }

    /// This route and one hop more; `None` if it is full.
    pub fn then(&self, exit: PortNum) -> Option<Self> {
        (self.0.len() < DIRECTED_HOPS_MAX).then(|| Self(self.0.iter().copied().chain([exit]).collect()))
    }
}

/// The fields only subnet management datagrams have. They read and write fixed places and judge nothing.
impl Mad {
    /// A request along a directed route, from end to end (both directed LIDs permissive).
    pub fn directed(method: Method, attribute: Attribute, modifier: u32, route: &DirectedRoute) -> Self {
        let mut mad = Self::new(ManagementClass::SUBNET_DIRECTED, method, attribute, modifier);
        DR_SLID.put(&mut mad.0, 0xffff);
        DR_DLID.put(&mut mad.0, 0xffff);
        mad.0[HOP_COUNT] = route.0.len() as u8;
        for (byte, hop) in mad.0[INITIAL_PATH + 1..].iter_mut().zip(&route.0) {
            *byte = hop.to_wire();
        }
        mad
    }

    /// The key it presents.
    #[inline]
    pub fn m_key(&self) -> Option<MKey> {
        MKey::from_wire(M_KEY.get(&self.0))
    }

    /// Replaces the key it presents.
    #[inline]
    pub fn set_m_key(&mut self, key: Option<MKey>) {
        key.write(&mut self.0, M_KEY);
    }

    /// Whether a directed route is on its way back.
    #[inline]
    pub fn is_returning(&self) -> bool {
        self.0[4] & DIRECTION_BIT != 0
    }

    /// Turns a directed route round.
    #[inline]
    pub fn set_returning(&mut self) {
        self.0[4] |= DIRECTION_BIT;
    }

    /// How far along a directed route it is.
    #[inline]
    pub fn hop_pointer(&self) -> u8 {
        self.0[HOP_POINTER]
    }

    /// Replaces how far along a directed route it is.
    #[inline]
    pub fn set_hop_pointer(&mut self, hops: u8) {
        self.0[HOP_POINTER] = hops;
    }

    /// How many hops the directed part of the route has.
    #[inline]
    pub fn hop_count(&self) -> u8 {
        self.0[HOP_COUNT]
    }

    /// Where the directed part starts: permissive, or the LID up to which it was LID-routed.
    #[inline]
    pub fn directed_source(&self) -> Option<LidAddress> {
        LidAddress::from_wire(DR_SLID.get(&self.0) as u16)
    }

    /// Where the directed part ends: permissive, or the LID to which it is LID-routed from there.
    #[inline]
    pub fn directed_destination(&self) -> Option<LidAddress> {
        LidAddress::from_wire(DR_DLID.get(&self.0) as u16)
    }

    /// Replaces both ends of the directed part.
    pub fn set_directed_ends(&mut self, source: LidAddress, destination: LidAddress) {
        DR_SLID.put(&mut self.0, u64::from(source.to_wire()));
        DR_DLID.put(&mut self.0, u64::from(destination.to_wire()));
    }

    /// The exit port of hop `hop` (1 is the first); `None` beyond the path field.
    #[inline]
    pub fn initial_path(&self, hop: u8) -> Option<u8> {
        self.0.get(INITIAL_PATH..RETURN_PATH)?.get(usize::from(hop)).copied()
    }

    /// The port by which hop `hop` was entered.
    #[inline]
    pub fn return_path(&self, hop: u8) -> Option<u8> {
        self.0.get(RETURN_PATH..)?.get(usize::from(hop)).copied()
    }

    /// Records the port by which hop `hop` was entered; beyond the path field it does nothing.
    #[inline]
    pub fn set_return_path(&mut self, hop: u8, port: u8) {
        if let Some(byte) = self.0[RETURN_PATH..].get_mut(usize::from(hop)) {
            *byte = port;
        }
    }

    /// The attribute data.
    #[inline]
    pub fn smp_data(&self) -> &[u8; SMP_DATA_LEN] {
        self.0[DATA..DATA + SMP_DATA_LEN].try_into().expect("a MAD is longer than its SMP data")
    }

    /// The attribute data, to be written.
    #[inline]
    pub fn smp_data_mut(&mut self) -> &mut [u8; SMP_DATA_LEN] {
        (&mut self.0[DATA..DATA + SMP_DATA_LEN]).try_into().expect("a MAD is longer than its SMP data")
    }
}
