//! Subnet management packets (SMPs): M_Key, directed route and the 64 bytes of attribute data.

use crate::address::{LidAddress, PortNum};
use crate::bits::{Field, WireValue, bytes};
use crate::keys::MKey;
use crate::mad::{Attribute, Mad, ManagementClass, Method};

/// Length of the attribute data of an SMP, in bytes.
pub const SMP_DATA_LEN: usize = 64;

/// Most hops of a directed route: the path fields have 64 bytes, of which the first is not used.
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

/// A directed route: the exit port of every hop, in order, at most [`DIRECTED_HOPS_MAX`]. The empty route is the local node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirectedRoute(Vec<PortNum>);

impl DirectedRoute {
    /// The route with these exit ports; `None` if there are more than [`DIRECTED_HOPS_MAX`].
    pub fn new(hops: impl IntoIterator<Item = PortNum>) -> Option<Self> {
        let hops: Vec<PortNum> = hops.into_iter().take(DIRECTED_HOPS_MAX + 1).collect();
        (hops.len() <= DIRECTED_HOPS_MAX).then_some(Self(hops))
    }

    /// The exit ports, that of the sender first.
    pub fn hops(&self) -> &[PortNum] {
        &self.0
    }

    /// This route extended by one hop; `None` if it has [`DIRECTED_HOPS_MAX`] hops already.
    pub fn then(&self, exit: PortNum) -> Option<Self> {
        (self.0.len() < DIRECTED_HOPS_MAX).then(|| Self(self.0.iter().copied().chain([exit]).collect()))
    }
}

/// Fields of SMPs. The accessors read and write fixed offsets whatever the class of the datagram is.
impl Mad {
    /// A directed-route SMP with hop pointer 0 whose whole path is directed: DrSLID and DrDLID are permissive.
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

    /// The M_Key of the sender; `None` if it is 0.
    #[inline]
    pub fn m_key(&self) -> Option<MKey> {
        MKey::from_wire(M_KEY.get(&self.0))
    }

    /// Sets the M_Key of the sender.
    #[inline]
    pub fn set_m_key(&mut self, key: Option<MKey>) {
        key.write(&mut self.0, M_KEY);
    }

    /// The D bit of a directed-route SMP: whether it travels the return path.
    #[inline]
    pub fn is_returning(&self) -> bool {
        self.0[4] & DIRECTION_BIT != 0
    }

    /// Sets the D bit, so that the SMP travels the return path.
    #[inline]
    pub fn set_returning(&mut self) {
        self.0[4] |= DIRECTION_BIT;
    }

    /// Hop pointer: the current position on the directed route.
    #[inline]
    pub fn hop_pointer(&self) -> u8 {
        self.0[HOP_POINTER]
    }

    /// Sets the hop pointer.
    #[inline]
    pub fn set_hop_pointer(&mut self, hops: u8) {
        self.0[HOP_POINTER] = hops;
    }

    /// Number of hops of the directed part of the route.
    #[inline]
    pub fn hop_count(&self) -> u8 {
        self.0[HOP_COUNT]
    }

    /// DrSLID: permissive if the directed part starts at the sender, else the LID of the node where it starts. `None` if 0.
    #[inline]
    pub fn directed_source(&self) -> Option<LidAddress> {
        LidAddress::from_wire(DR_SLID.get(&self.0) as u16)
    }

    /// DrDLID: permissive if the directed part ends at the receiver, else the LID to which the SMP is LID-routed from its
    /// end. `None` if 0.
    #[inline]
    pub fn directed_destination(&self) -> Option<LidAddress> {
        LidAddress::from_wire(DR_DLID.get(&self.0) as u16)
    }

    /// Sets DrSLID and DrDLID.
    pub fn set_directed_ends(&mut self, source: LidAddress, destination: LidAddress) {
        DR_SLID.put(&mut self.0, u64::from(source.to_wire()));
        DR_DLID.put(&mut self.0, u64::from(destination.to_wire()));
    }

    /// Initial path: the exit port of hop `hop`, counted from 1; `None` above [`DIRECTED_HOPS_MAX`].
    #[inline]
    pub fn initial_path(&self, hop: u8) -> Option<u8> {
        self.0.get(INITIAL_PATH..RETURN_PATH)?.get(usize::from(hop)).copied()
    }

    /// Return path: the port by which the SMP entered hop `hop`; `None` above [`DIRECTED_HOPS_MAX`].
    #[inline]
    pub fn return_path(&self, hop: u8) -> Option<u8> {
        self.0.get(RETURN_PATH..)?.get(usize::from(hop)).copied()
    }

    /// Records in the return path the port by which the SMP entered hop `hop`. Above [`DIRECTED_HOPS_MAX`] it does nothing.
    #[inline]
    pub fn set_return_path(&mut self, hop: u8, port: u8) {
        if let Some(byte) = self.0[RETURN_PATH..].get_mut(usize::from(hop)) {
            *byte = port;
        }
    }

    /// The attribute data, bytes 64 to 127.
    #[inline]
    pub fn smp_data(&self) -> &[u8; SMP_DATA_LEN] {
        self.0[DATA..DATA + SMP_DATA_LEN].try_into().expect("bytes 64 to 127 of a MAD are SMP_DATA_LEN bytes")
    }

    /// The attribute data, bytes 64 to 127.
    #[inline]
    pub fn smp_data_mut(&mut self) -> &mut [u8; SMP_DATA_LEN] {
        (&mut self.0[DATA..DATA + SMP_DATA_LEN])
            .try_into()
            .expect("bytes 64 to 127 of a MAD are SMP_DATA_LEN bytes")
    }
}
