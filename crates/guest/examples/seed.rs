//! Writes the seed of node I of N, to test an image by hand; see docs/guides/images.md.
//!
//! `seed DIRECTORY I N KEY`, where KEY is the path of a key pair made by ssh-keygen. Node I gets the MAC address
//! 02:00:00:00:00:I and the IP address 10.9.0.I.

use std::fs;
use std::path::Path;

use guest::seed::{GuestAdapter, KeyPair, Peer, Seed, SeedInput};
use ib_wire::{Pkey, ServiceLevel};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, number, nodes, key] = &arguments[..] else {
        return Err("usage: seed DIRECTORY I N KEY".into());
    };
    let (number, nodes): (u8, u8) = (number.parse()?, nodes.parse()?);
    let public = fs::read_to_string(format!("{key}.pub"))?;
    let peer = |number: u8| Peer {
        hostname: format!("node-{number}"),
        address: format!("10.9.0.{number}"),
        slots: 1,
    };
    let seed = Seed::new(&SeedInput {
        instance_id: format!("try-{number}"),
        adapter: GuestAdapter::Ethernet { mac: format!("02:00:00:00:00:{number:02x}") },
        generation: 1,
        cluster: "try".to_owned(),
        hostname: format!("node-{number}"),
        address: format!("10.9.0.{number}/24"),
        mtu: 1500,
        peers: (1..=nodes).map(peer).collect(),
        authorized_keys: vec![public.clone()],
        cluster_key: KeyPair { public, private: fs::read_to_string(key)? },
        pkey: Pkey::from_wire(0x8001).expect("a key"),
        sl: ServiceLevel::from_wire(0),
        partitions: Vec::new(),
        classes: Vec::new(),
        probes: None,
    });
    let directory = Path::new(directory);
    fs::create_dir_all(directory)?;
    fs::write(directory.join("meta-data"), seed.meta_data)?;
    fs::write(directory.join("user-data"), seed.user_data)?;
    fs::write(directory.join("network-config"), seed.network_config)?;
    Ok(())
}
