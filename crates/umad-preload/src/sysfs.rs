//! The files of `/sys/class/infiniband*` and `/dev/infiniband`, as names and contents.
//!
//! Nothing is stored in a file system: [`resolve`] says what a path is, and the contents of a file are made when it is opened,
//! from what the server tells about the port at that moment.

use std::fmt::Write;

use ib_wire::{ExtendedSpeed, Gid, LinkSpeed, NodeKind, PhysicalState, Pkey, PortInfo, PortState};

use crate::link::NodeFacts;

/// Name of the emulated adapter, the same as under libumad2sim.
const ADAPTER: &str = "ibsim0";

/// Version of the umad interface that the library implements.
const ABI_VERSION: &str = "5\n";

/// P_Keys that a server tells.
const PKEYS: u16 = 32;

/// Files of the adapter.
const ADAPTER_FILES: [&str; 8] =
    ["fw_ver", "hca_type", "hw_rev", "node_desc", "node_guid", "node_type", "ports", "sys_image_guid"];

/// Files of the port.
const PORT_FILES: [&str; 11] = [
    "cap_mask",
    "gids",
    "lid",
    "lid_mask_count",
    "link_layer",
    "phys_state",
    "pkeys",
    "rate",
    "sm_lid",
    "sm_sl",
    "state",
];

/// What a path below the emulated directories is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A directory with these entries, in order.
    Directory(Vec<String>),
    /// A file whose contents do not change while the client is attached.
    Fixed(String),
    /// A file with a property of the port.
    Port(PortProperty),
    /// A file with an entry of the P_Key table.
    Pkey(u16),
    /// `/dev/infiniband/umad0`
    UmadDevice,
    /// `/dev/infiniband/issm0`
    IsSmDevice,
}

/// A file of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortProperty {
    CapMask,
    Gid,
    Lid,
    Lmc,
    PhysicalState,
    Rate,
    SmLid,
    SmSl,
    State,
}

/// The part of an absolute path below `/`, if it is one of the emulated trees: its non-empty components.
pub(crate) fn components(path: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> =
        path.strip_prefix('/')?.split('/').filter(|it| !it.is_empty() && *it != ".").collect();
    match parts[..] {
        ["sys", "class", "infiniband" | "infiniband_mad" | "infiniband_verbs", ..] => Some(parts),
        ["dev", "infiniband", ..] => Some(parts),
        _ => None,
    }
}

/// What an emulated path is; `None` if there is nothing.
pub(crate) fn resolve(parts: &[&str], facts: &NodeFacts) -> Option<Entry> {
    let port = facts.node.local_port.to_wire().to_string();
    match parts {
        ["dev", "infiniband"] => Some(directory(["issm0", "umad0"])),
        ["dev", "infiniband", "umad0"] => Some(Entry::UmadDevice),
        ["dev", "infiniband", "issm0"] => Some(Entry::IsSmDevice),
        ["sys", "class", "infiniband_verbs"] => Some(directory([])),
        ["sys", "class", "infiniband_mad", rest @ ..] => resolve_mad(rest, &port),
        ["sys", "class", "infiniband"] => Some(directory([ADAPTER])),
        ["sys", "class", "infiniband", ADAPTER, rest @ ..] => match rest {
            [] => Some(directory(ADAPTER_FILES)),
            ["ports"] => Some(directory([port.as_str()])),
            ["ports", number, rest @ ..] if *number == port => resolve_port(rest),
            [name] => adapter_file(name, facts).map(Entry::Fixed),
            _ => None,
        },
        _ => None,
    }
}

fn resolve_mad(parts: &[&str], port: &str) -> Option<Entry> {
    match parts {
        [] => Some(directory(["abi_version", "issm0", "umad0"])),
        ["abi_version"] => Some(Entry::Fixed(ABI_VERSION.to_owned())),
        ["umad0" | "issm0"] => Some(directory(["ibdev", "port"])),
        ["umad0" | "issm0", "ibdev"] => Some(Entry::Fixed(format!("{ADAPTER}\n"))),
        ["umad0" | "issm0", "port"] => Some(Entry::Fixed(format!("{port}\n"))),
        _ => None,
    }
}

fn resolve_port(parts: &[&str]) -> Option<Entry> {
    Some(match parts {
        [] => directory(PORT_FILES),
        ["gids"] => directory(["0"]),
        ["gids", "0"] => Entry::Port(PortProperty::Gid),
        ["pkeys"] => Entry::Directory((0..PKEYS).map(|index| index.to_string()).collect()),
        ["pkeys", index] => Entry::Pkey(index.parse().ok().filter(|index| *index < PKEYS)?),
        ["link_layer"] => Entry::Fixed("InfiniBand\n".to_owned()),
        ["cap_mask"] => Entry::Port(PortProperty::CapMask),
        ["lid"] => Entry::Port(PortProperty::Lid),
        ["lid_mask_count"] => Entry::Port(PortProperty::Lmc),
        ["phys_state"] => Entry::Port(PortProperty::PhysicalState),
        ["rate"] => Entry::Port(PortProperty::Rate),
        ["sm_lid"] => Entry::Port(PortProperty::SmLid),
        ["sm_sl"] => Entry::Port(PortProperty::SmSl),
        ["state"] => Entry::Port(PortProperty::State),
        _ => return None,
    })
}

fn adapter_file(name: &str, facts: &NodeFacts) -> Option<String> {
    let NodeFacts { node, vendor } = facts;
    Some(match name {
        "fw_ver" => format!("{:x}\n", vendor.firmware_version),
        "hca_type" => format!("MT{}\n", vendor.part_id),
        "hw_rev" => format!("{:x}\n", vendor.hardware_version),
        "node_desc" => format!("{ADAPTER}\n"),
        "node_guid" => groups(&node.node_guid.to_wire().to_be_bytes()),
        "node_type" => match node.kind {
            NodeKind::Switch => "2: switch\n".to_owned(),
            NodeKind::Router => "3: router\n".to_owned(),
            _ => "1: CA\n".to_owned(),
        },
        "sys_image_guid" => groups(&node.system_guid.map_or(0, |guid| guid.to_wire()).to_be_bytes()),
        _ => return None,
    })
}

impl PortProperty {
    /// The contents of the file.
    pub(crate) fn contents(self, port: &PortInfo, facts: &NodeFacts) -> String {
        match self {
            Self::CapMask => format!("0x{:08x}\n", port.capability.0),
            Self::Gid => groups(&Gid::unicast(port.gid_prefix, facts.node.port_guid).0),
            Self::Lid => format!("0x{:x}\n", port.lid.map_or(0, |lid| lid.to_wire())),
            Self::Lmc => format!("{}\n", port.lmc.to_wire()),
            Self::PhysicalState => physical_state(port.physical_state),
            Self::Rate => rate(port),
            Self::SmLid => format!("0x{:x}\n", port.master_sm_lid.map_or(0, |lid| lid.to_wire())),
            Self::SmSl => format!("{}\n", port.master_sm_sl.to_wire()),
            Self::State => state(port.state),
        }
    }
}

/// The contents of a file of the P_Key table.
pub(crate) fn pkey_contents(pkey: Option<Pkey>) -> String {
    format!("0x{:04x}\n", pkey.map_or(0, Pkey::to_wire))
}

fn state(state: PortState) -> String {
    let name = match state {
        PortState::NoChange => "NOP",
        PortState::Down => "DOWN",
        PortState::Initialize => "INIT",
        PortState::Armed => "ARMED",
        PortState::Active => "ACTIVE",
        _ => "ACTIVE_DEFER",
    };
    format!("{}: {name}\n", state.to_wire())
}

fn physical_state(state: PhysicalState) -> String {
    let name = match state {
        PhysicalState::NoChange => "<unknown>",
        PhysicalState::Sleep => "Sleep",
        PhysicalState::Polling => "Polling",
        PhysicalState::Disabled => "Disabled",
        PhysicalState::Training => "PortConfigurationTraining",
        PhysicalState::LinkUp => "LinkUp",
        PhysicalState::ErrorRecovery => "LinkErrorRecovery",
        _ => "Phy Test",
    };
    format!("{}: {name}\n", state.to_wire())
}

/// The rate as the kernel prints it: width times signalling rate, with the name of the speed.
fn rate(port: &PortInfo) -> String {
    let lanes = port.link_width_active.lanes().max(1);
    let (tenths, name) = match (port.extended_speed_active.fastest(), port.link_speed_active.fastest()) {
        (Some(ExtendedSpeed::FDR), _) => (140, " FDR"),
        (Some(ExtendedSpeed::EDR), _) => (250, " EDR"),
        (Some(ExtendedSpeed::HDR), _) => (500, " HDR"),
        (Some(_), _) => (1000, " NDR"),
        (None, Some(LinkSpeed::DDR)) => (50, " DDR"),
        (None, Some(LinkSpeed::QDR)) => (100, " QDR"),
        (None, _) => (25, ""),
    };
    let total = tenths * lanes;
    let half = if total.is_multiple_of(10) { "" } else { ".5" };
    format!("{}{half} Gb/sec ({lanes}X{name})\n", total / 10)
}

/// Bytes as groups of four hexadecimal digits: `0002:c903:0000:0011`.
fn groups(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (index, pair) in bytes.chunks(2).enumerate() {
        let separator = if index > 0 { ":" } else { "" };
        let value = pair.iter().fold(0_u16, |value, byte| value << 8 | u16::from(*byte));
        write!(text, "{separator}{value:04x}").expect("writing to a string does not fail");
    }
    text + "\n"
}

fn directory<'a>(names: impl IntoIterator<Item = &'a str>) -> Entry {
    Entry::Directory(names.into_iter().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use ib_transport::Vendor;
    use ib_wire::NodeInfo;

    use super::*;

    fn facts() -> NodeFacts {
        let mut raw = [0; 64];
        (raw[2], raw[36]) = (1, 2);
        raw[12..20].copy_from_slice(&0x0002_c903_0000_0010_u64.to_be_bytes());
        raw[20..28].copy_from_slice(&0x0002_c903_0000_0012_u64.to_be_bytes());
        NodeFacts { node: NodeInfo::decode(&raw).unwrap(), vendor: Vendor::default() }
    }

    fn entry(path: &str) -> Option<Entry> {
        resolve(&components(path)?, &facts())
    }

    fn contents(path: &str, raw: &[u8; 64]) -> String {
        match entry(path) {
            Some(Entry::Fixed(contents)) => contents,
            Some(Entry::Port(property)) => property.contents(&PortInfo::decode(raw).unwrap(), &facts()),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn only_the_trees_of_infiniband_are_emulated() {
        for path in ["/sys/class/infiniband", "//sys//class/infiniband_mad/", "/dev/infiniband/uverbs0"] {
            assert!(components(path).is_some(), "{path}");
        }
        for path in ["/sys/class/net", "/sys/class/infiniband2", "sys/class/infiniband", "/dev/null", ""] {
            assert_eq!(components(path), None, "{path}");
        }
    }

    #[test]
    fn every_listed_name_can_be_opened() {
        fn visit(path: &str) -> usize {
            match entry(path) {
                Some(Entry::Directory(names)) => {
                    1 + names.iter().map(|name| visit(&format!("{path}/{name}"))).sum::<usize>()
                }
                Some(_) => 1,
                None => panic!("{path} is listed and not there"),
            }
        }
        let roots = ["infiniband", "infiniband_mad", "infiniband_verbs"].map(|it| format!("/sys/class/{it}"));
        assert!(roots.iter().map(|path| visit(path)).sum::<usize>() > 60);
        assert_eq!(visit("/dev/infiniband"), 3);
    }

    #[test]
    fn names_that_are_not_listed_do_not_exist() {
        for path in [
            "/sys/class/infiniband/mlx5_0",
            "/sys/class/infiniband/ibsim0/ports/1",
            "/sys/class/infiniband/ibsim0/ports/2/pkeys/32",
            "/sys/class/infiniband/ibsim0/../ibsim0",
            "/dev/infiniband/umad1",
        ] {
            assert_eq!(entry(path), None, "{path}");
        }
    }

    #[test]
    fn files_have_the_format_of_the_kernel() {
        let port = "/sys/class/infiniband/ibsim0/ports/2";
        let mut raw = [0; 64];
        raw[8..16].copy_from_slice(&0xfe80_0000_0000_0000_u64.to_be_bytes());
        (raw[17], raw[19], raw[31], raw[32], raw[33], raw[35]) = (0x1f, 0x01, 2, 4, 0x50, 0x40);
        for (name, expected) in [
            ("lid", "0x1f\n"),
            ("sm_lid", "0x1\n"),
            ("state", "4: ACTIVE\n"),
            ("phys_state", "5: LinkUp\n"),
            ("rate", "40 Gb/sec (4X QDR)\n"),
            ("cap_mask", "0x00000000\n"),
            ("gids/0", "fe80:0000:0000:0000:0002:c903:0000:0012\n"),
        ] {
            assert_eq!(contents(&format!("{port}/{name}"), &raw), expected);
        }
        raw[31] = 1;
        raw[35] = 0x10;
        assert_eq!(contents(&format!("{port}/rate"), &raw), "2.5 Gb/sec (1X)\n");
        raw[62] = 0x20;
        assert_eq!(contents(&format!("{port}/rate"), &raw), "25 Gb/sec (1X EDR)\n");
        assert_eq!(contents("/sys/class/infiniband/ibsim0/node_guid", &raw), "0002:c903:0000:0010\n");
        assert_eq!(contents("/sys/class/infiniband_mad/umad0/port", &raw), "2\n");
        assert_eq!(pkey_contents(Pkey::from_wire(0x8001)), "0x8001\n");
    }
}
