//! A small fabric and a requester, shared by the tests of the emulation.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "every test binary uses its own part")]

use std::time::Duration;

use fabric_model::ibnetdiscover;
use fabric_sim::{Capacities, DeviceProfile, Fabric, FabricOutput, FunctionId, PortId};
use ib_wire::{
    Attribute, Datagram, DirectedRoute, Lid, LidAddress, MKey, Mad, ManagementClass, Method, Pkey, PortInfo,
    PortNum, PortState, Status, SwitchInfo, TransactionId,
};

/// Two switches joined by two cables, two adapters on each: `a` and `b` on `left`, `c` and `d` on `right`.
pub const NET: &str = r#"
Switch 6 "left"
[1] "a"[1]
[2] "b"[1]
[5] "right"[5]
[6] "right"[6]

Switch 6 "right"
[1] "c"[1]
[2] "d"[1]
[5] "left"[5]
[6] "left"[6]

Hca 1 "a"
[1] "left"[1]

Hca 1 "b"
[1] "left"[2]

Hca 1 "c"
[1] "right"[1]

Hca 1 "d"
[1] "right"[2]
"#;

pub struct World {
    pub fabric: Fabric,
    pub now: Duration,
    pub delivered: Vec<(PortId, Datagram)>,
    pub packets: Vec<(FunctionId, Box<[u8]>)>,
    /// Frames that the link model carried.
    pub frames: Vec<(FunctionId, Box<[u8]>)>,
    transactions: u64,
}

impl World {
    pub fn new() -> Self {
        Self::with(Capacities::default(), 1)
    }

    pub fn with(profile: impl Into<DeviceProfile>, seed: u64) -> Self {
        Self::of(NET, profile, seed)
    }

    pub fn of(net: &str, profile: impl Into<DeviceProfile>, seed: u64) -> Self {
        let topology = ibnetdiscover::parse(net).expect("the test fabric is well formed");
        let fabric = Fabric::new(topology, profile, seed).expect("the profile is valid");
        Self {
            fabric,
            now: Duration::ZERO,
            delivered: Vec::new(),
            packets: Vec::new(),
            frames: Vec::new(),
            transactions: 0,
        }
    }

    /// The configured fabric, on switches with this many ports: six or more.
    pub fn configured_on(radix: u8) -> Self {
        let net = NET.replace("Switch 6", &format!("Switch {radix}"));
        let mut world = Self::of(&net, Capacities::default(), 1);
        world.configure();
        world
    }

    /// The same fabric as a subnet manager leaves it: LIDs left 1, right 2, a 3, b 4, c 5, d 6; routes; all active;
    /// the manager behind `a`.
    pub fn configured() -> Self {
        Self::configured_with(Capacities::default(), 1)
    }

    pub fn configured_with(profile: impl Into<DeviceProfile>, seed: u64) -> Self {
        let mut world = Self::with(profile, seed);
        world.configure();
        world
    }

    pub fn configure(&mut self) {
        let manager = self.port("a");
        self.fabric.set_is_sm(self.now, manager, true);
        for (name, number) in [("left", 1), ("right", 2), ("a", 3), ("b", 4), ("c", 5), ("d", 6)] {
            self.change_port_info(name, 0, |info| {
                info.lid = Lid::from_wire(number);
                info.master_sm_lid = Lid::from_wire(3);
            });
        }
        for (switch, exits) in [("left", [0, 5, 1, 2, 5, 5]), ("right", [5, 0, 5, 5, 1, 2])] {
            let mut table = [0xff; 64];
            table[1..7].copy_from_slice(&exits);
            self.set(switch, Attribute::LINEAR_FORWARDING, 0, table).expect("a forwarding block is accepted");
            let mut info = self.switch_info(switch);
            info.linear_fdb_top = 6;
            info.port_state_change = true;
            info.life_time = 15;
            self.set(switch, Attribute::SWITCH_INFO, 0, info.encode()).expect("SwitchInfo is accepted");
        }
        for state in [PortState::Armed, PortState::Active] {
            for (name, ports) in [
                ("left", &[1u8, 2, 5, 6][..]),
                ("right", &[1, 2, 5, 6]),
                ("a", &[1]),
                ("b", &[1]),
                ("c", &[1]),
                ("d", &[1]),
            ] {
                for number in ports {
                    self.change_port_info(name, (*number).into(), |info| {
                        (info.state, info.hoq_life) = (state, 15);
                    });
                }
            }
        }
        self.delivered.clear();
    }

    pub fn port(&self, name: &str) -> PortId {
        self.fabric.find_port(name).expect("the node exists")
    }

    pub fn port_number(&self, name: &str, number: u8) -> PortId {
        let device = self.fabric.find_device(name).expect("the node exists");
        self.fabric.port_of(device, PortNum::new(number).unwrap()).expect("the port exists")
    }

    /// The directed route from `a`.
    pub fn route_to(name: &str) -> DirectedRoute {
        let hops: &[u8] = match name {
            "a" => &[],
            "left" => &[1],
            "b" => &[1, 2],
            "right" => &[1, 5],
            "c" => &[1, 5, 1],
            "d" => &[1, 5, 2],
            other => panic!("no route to {other}"),
        };
        DirectedRoute::new(hops.iter().map(|hop| PortNum::new(*hop).unwrap())).unwrap()
    }

    /// Sends from a node and returns the response, `None` if it was lost. Other deliveries are kept.
    pub fn send(&mut self, from: &str, mut datagram: Datagram) -> Option<Datagram> {
        self.transactions += 1;
        datagram.mad.set_transaction(TransactionId(self.transactions));
        let port = self.port(from);
        self.fabric.handle_datagram(self.now, port, datagram);
        self.collect();
        let wanted = TransactionId(self.transactions);
        let place = self
            .delivered
            .iter()
            .position(|(_, d)| d.mad.transaction() == wanted && d.mad.method().is_response());
        place.map(|place| self.delivered.remove(place).1)
    }

    pub fn collect(&mut self) {
        while let Some(output) = self.fabric.poll_output() {
            match output {
                FabricOutput::Deliver { port, datagram } => self.delivered.push((port, datagram)),
                FabricOutput::Packet { function, packet } => self.packets.push((function, packet)),
                FabricOutput::Frame { function, frame } => self.frames.push((function, frame)),
                FabricOutput::Lost { .. } => {}
            }
        }
    }

    /// Advances the time.
    pub fn wait(&mut self, time: Duration) {
        self.now += time;
        self.fabric.handle_timeout(self.now);
        self.collect();
    }

    pub fn request(
        method: Method,
        name: &str,
        attribute: Attribute,
        modifier: u32,
        key: Option<MKey>,
        data: [u8; 64],
    ) -> Datagram {
        let mut mad = Mad::directed(method, attribute, modifier, &Self::route_to(name));
        mad.set_m_key(key);
        *mad.smp_data_mut() = data;
        Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad)
    }

    /// Reads an attribute along a directed route from `a`; `None` if nothing answers.
    pub fn try_get(
        &mut self,
        name: &str,
        attribute: Attribute,
        modifier: u32,
        key: Option<MKey>,
    ) -> Option<Mad> {
        self.send("a", Self::request(Method::GET, name, attribute, modifier, key, [0; 64])).map(|d| d.mad)
    }

    /// Writes an attribute along a directed route from `a`; `None` if nothing answers.
    pub fn try_set(
        &mut self,
        name: &str,
        attribute: Attribute,
        modifier: u32,
        key: Option<MKey>,
        data: [u8; 64],
    ) -> Option<Mad> {
        self.send("a", Self::request(Method::SET, name, attribute, modifier, key, data)).map(|d| d.mad)
    }

    /// Reads an attribute of a node without a key.
    pub fn get(&mut self, name: &str, attribute: Attribute, modifier: u32) -> Result<[u8; 64], Status> {
        status(self.try_get(name, attribute, modifier, None).expect("the node answers"))
    }

    /// Writes an attribute of a node without a key.
    pub fn set(
        &mut self,
        name: &str,
        attribute: Attribute,
        modifier: u32,
        data: [u8; 64],
    ) -> Result<[u8; 64], Status> {
        status(self.try_set(name, attribute, modifier, None, data).expect("the node answers"))
    }

    pub fn port_info(&mut self, name: &str, port: u32) -> PortInfo {
        PortInfo::decode(&self.get(name, Attribute::PORT_INFO, port).expect("port info is there")).unwrap()
    }

    pub fn switch_info(&mut self, name: &str) -> SwitchInfo {
        SwitchInfo::decode(&self.get(name, Attribute::SWITCH_INFO, 0).expect("switch info is there")).unwrap()
    }

    /// Changes PortInfo by Get and Set; the port state stays unless `change` sets it.
    pub fn try_change_port_info(
        &mut self,
        name: &str,
        port: u32,
        change: impl FnOnce(&mut PortInfo),
    ) -> Result<PortInfo, Status> {
        let mut info = self.port_info(name, port);
        info.state = PortState::NoChange;
        info.physical_state = ib_wire::PhysicalState::NoChange;
        change(&mut info);
        let data = self.set(name, Attribute::PORT_INFO, port, info.encode())?;
        Ok(PortInfo::decode(&data).unwrap())
    }

    pub fn change_port_info(
        &mut self,
        name: &str,
        port: u32,
        change: impl FnOnce(&mut PortInfo),
    ) -> PortInfo {
        self.try_change_port_info(name, port, change).expect("the change is taken")
    }

    /// Changes the MTU or the lanes of the link between the two switches at the left one's end. It goes down for that.
    pub fn resize_link(&mut self, change: impl FnOnce(&mut PortInfo)) {
        let ends = [("left", 5), ("right", 5)];
        self.change_port_info(ends[0].0, ends[0].1, |info| {
            change(info);
            info.state = PortState::Down;
        });
        for state in [PortState::Armed, PortState::Active] {
            for (name, port) in ends {
                self.change_port_info(name, port, |info| info.state = state);
            }
        }
    }

    /// A general management datagram of a class that only software answers.
    pub fn message(from: u16, to: u16, pkey: u16) -> Datagram {
        let mad =
            Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET, Attribute::CLASS_PORT_INFO, 0);
        let address = |raw| LidAddress::from_wire(raw).unwrap();
        Datagram::general_management(address(from), address(to), Pkey::from_wire(pkey).unwrap(), mad)
    }

    /// Sends a general management datagram. Returns whether it was delivered to the other end.
    pub fn passes(&mut self, from: &str, to: &str, datagram: Datagram) -> bool {
        self.delivered.clear();
        self.send(from, datagram);
        let port = self.port(to);
        self.delivered
            .iter()
            .any(|(at, d)| *at == port && d.mad.class() == ManagementClass::SUBNET_ADMINISTRATION)
    }

    /// The traps that reached the subnet manager, by number.
    pub fn traps(&self) -> Vec<u16> {
        let traps = self.delivered.iter().filter(|(_, d)| d.mad.method() == Method::TRAP);
        traps.map(|(_, d)| u16::from_be_bytes([d.mad.smp_data()[4], d.mad.smp_data()[5]])).collect()
    }
}

pub fn status(mad: Mad) -> Result<[u8; 64], Status> {
    match mad.status() {
        Status::OK => Ok(*mad.smp_data()),
        other => Err(other),
    }
}

pub fn key(raw: u64) -> Option<MKey> {
    MKey::from_wire(raw)
}
