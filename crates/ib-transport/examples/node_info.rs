//! Prints GUID and type of a node: `node_info DEVICE ROUTE`, for example `node_info ibsim:lab 0,1`.
//!
//! ROUTE is a directed route the way stock tools write it: `0` is the local node, each further number an exit port.

use std::error::Error;
use std::time::Duration;

use ib_transport::{Device, DeviceSpec, Received};
use ib_wire::{Attribute, Datagram, DirectedRoute, LidAddress, Mad, Method, NodeInfo, PortNum};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(spec), Some(route)) = (arguments.next(), arguments.next()) else {
        return Err("usage: node_info umad:N|ibsim:NAME[@NODE]|heddle:SOCKET[@NODE] ROUTE".into());
    };
    let mut device = Device::open(&spec.parse::<DeviceSpec>()?)?;
    let request = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &parse_route(&route)?);
    device.send(&Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, request))?;
    match device.receive(Duration::from_secs(5))? {
        Some(Received::Datagram(answer)) => {
            let info = NodeInfo::decode(answer.mad.smp_data())?;
            println!("{} {:?}", info.node_guid, info.kind);
            Ok(())
        }
        Some(Received::Lost(_)) | None => Err("no response".into()),
    }
}

fn parse_route(text: &str) -> Result<DirectedRoute, Box<dyn Error>> {
    let ports: Vec<PortNum> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
    match ports.split_first() {
        Some((&PortNum::MANAGEMENT, exits)) => DirectedRoute::new(exits.iter().copied())
            .ok_or_else(|| "a route must have at most 63 hops".into()),
        _ => Err("a route must begin with 0, the local node".into()),
    }
}
