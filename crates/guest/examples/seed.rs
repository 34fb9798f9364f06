//! Writes the seed of node I of N, to try an image by hand: see docs/guides/images.md.
//!
//! `seed FOLDER I N KEY`, where KEY is a key pair of ssh-keygen; MAC addresses are 02:00:00:00:00:I, addresses 10.9.0.I.

use std::fs;
use std::path::Path;

use guest::seed::{KeyPair, Peer, Seed, SeedInput};
use ib_wire::{Pkey, ServiceLevel};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, number, nodes, key] = &arguments[..] else {
        return Err("seed FOLDER I N KEY".into());
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
        mac: format!("02:00:00:00:00:{number:02x}"),
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
    let folder = Path::new(folder);
    fs::create_dir_all(folder)?;
    fs::write(folder.join("meta-data"), seed.meta_data)?;
    fs::write(folder.join("user-data"), seed.user_data)?;
    fs::write(folder.join("network-config"), seed.network_config)?;
    Ok(())
}
