//! Writes a [`Topology`] in the layout of `ibnetdiscover`.

use std::fmt::{self, Write};

use ib_wire::{LinkSpeed, LinkWidth, NodeKind, PortNum};

use crate::topology::{Endpoint, Node, Port, PortZero, Topology};

/// Writes a topology as text that `ibsim` loads and from which [`parse`](super::parse) restores the topology.
///
/// The format has lines for cabled ports only. Of ports without a cable the LID and a port GUID that was set explicitly are
/// lost, and all ports of a node without a cable get the masks of enabled widths and speeds of the first of them.
pub fn write(topology: &Topology) -> String {
    let mut writer = Writer {
        topology,
        text: String::new(),
        module: "",
        vendor_id: 0,
        device_id: 0,
        width: Port::DEFAULT_WIDTH,
        speed: Port::DEFAULT_SPEED,
    };
    writer.file().expect("writing to a string does not fail");
    writer.text
}

struct Writer<'a> {
    topology: &'a Topology,
    text: String,
    module: &'a str,
    vendor_id: u32,
    device_id: u16,
    width: LinkWidth,
    speed: LinkSpeed,
}

impl<'a> Writer<'a> {
    fn file(&mut self) -> fmt::Result {
        writeln!(self.text, "#\n# Topology file: written by Heddle\n#")?;
        for (_, node) in self.topology.nodes() {
            self.text.push('\n');
            self.preamble(node)?;
            self.node(node)?;
            for (number, port) in node.ports() {
                if let Some(peer) = port.peer {
                    self.port(node, number, port, peer)?;
                }
            }
        }
        Ok(())
    }

    /// The lines before a node line. Vendor and device ids of earlier nodes are reset with 0.
    fn preamble(&mut self, node: &'a Node) -> fmt::Result {
        let module = node.module().unwrap_or("");
        if module != self.module {
            writeln!(self.text, "module=\"{module}\"")?;
            self.module = module;
        }
        let (vendor_id, device_id) = (node.vendor_id.unwrap_or(0), node.device_id.unwrap_or(0));
        if vendor_id != 0 || self.vendor_id != 0 {
            writeln!(self.text, "vendid={vendor_id:#x}")?;
        }
        if device_id != 0 || self.device_id != 0 {
            writeln!(self.text, "devid={device_id:#x}")?;
        }
        (self.vendor_id, self.device_id) = (vendor_id, device_id);
        self.default_masks(node)?;
        if let Some(guid) = node.system_guid {
            writeln!(self.text, "sysimgguid={guid:#x}")?;
        }
        Ok(())
    }

    /// Masks of ports without a cable, which have no line of their own: written as defaults of the node.
    fn default_masks(&mut self, node: &Node) -> fmt::Result {
        let uncabled = node.ports().map(|(_, port)| port).find(|port| port.peer.is_none());
        let masks = uncabled.map(|port| (port.enabled_width, port.enabled_speed));
        let (width, speed) = masks.unwrap_or((Port::DEFAULT_WIDTH, Port::DEFAULT_SPEED));
        if width != self.width {
            writeln!(self.text, "width={}", width.0)?;
        }
        if speed != self.speed {
            writeln!(self.text, "speed={}", speed.0)?;
        }
        (self.width, self.speed) = (width, speed);
        Ok(())
    }

    fn node(&mut self, node: &Node) -> fmt::Result {
        let (guid, ports, description) = (node.guid, node.port_count(), &node.description);
        let name = node.id.split_once('#').map_or(node.id.as_str(), |(_, name)| name);
        match (node.kind, node.port(PortNum::MANAGEMENT)) {
            (NodeKind::Switch, Some(management)) => {
                let port_0 = port_0_text(node.port_0);
                let (lid, lmc) = lid_and_lmc(management);
                writeln!(self.text, "switchguid={guid:#x}({:x})", management.guid)?;
                write!(
                    self.text,
                    "Switch\t{ports} \"{name}\"\t\t# \"{description}\"{port_0} lid {lid} lmc {lmc}"
                )?;
            }
            (NodeKind::Router, _) => {
                write!(self.text, "rtguid={guid:#x}\nRt\t{ports} \"{name}\"\t\t# \"{description}\"")?;
            }
            _ => write!(self.text, "caguid={guid:#x}\nCa\t{ports} \"{name}\"\t\t# \"{description}\"")?,
        }
        self.text.push('\n');
        Ok(())
    }

    fn port(&mut self, node: &Node, number: PortNum, port: &Port, peer: Endpoint) -> fmt::Result {
        let peer_node = &self.topology[peer.node];
        let outside = if peer_node.module().is_none() && node.module().is_some() { "#" } else { "" };
        let peer_name = format_args!("\"{outside}{}\"[{}]", peer_node.id, peer.port);
        if node.is_switch() {
            write!(self.text, "[{number}]\t{peer_name}")?;
        } else {
            write!(self.text, "[{number}]({:x}) \t{peer_name}", port.guid)?;
        }
        let peer_guid = self.topology.port(peer).map(|port| port.guid).filter(|_| !peer_node.is_switch());
        if let Some(guid) = peer_guid {
            write!(self.text, "({guid:x}) ")?;
        }
        self.masks(port)?;
        self.comment(node, port, peer)
    }

    fn masks(&mut self, port: &Port) -> fmt::Result {
        if port.enabled_width != self.width {
            write!(self.text, " w={}", port.enabled_width.0)?;
        }
        if port.enabled_speed != self.speed {
            write!(self.text, " s={}", port.enabled_speed.0)?;
        }
        Ok(())
    }

    fn comment(&mut self, node: &Node, port: &Port, peer: Endpoint) -> fmt::Result {
        self.text.push_str("\t\t#");
        if !node.is_switch() {
            let (lid, lmc) = lid_and_lmc(port);
            write!(self.text, " lid {lid} lmc {lmc}")?;
        }
        let peer_node = &self.topology[peer.node];
        let end_port = if peer_node.is_switch() { PortNum::MANAGEMENT } else { peer.port };
        let peer_lid = peer_node.port(end_port).map_or(0, |port| lid_and_lmc(port).0);
        // ibsim parses every = in a port line as an option.
        let description = peer_node.description.replace('=', ":");
        write!(self.text, " \"{description}\" lid {peer_lid}")?;
        if let Some(rate) = port.rate {
            write!(self.text, " {rate}")?;
        }
        self.text.push('\n');
        Ok(())
    }
}

fn port_0_text(port_0: PortZero) -> &'static str {
    match port_0 {
        PortZero::Unknown => "",
        PortZero::Base => " base port 0",
        PortZero::Enhanced => " enhanced port 0",
    }
}

/// As `ibnetdiscover` prints them: 0 if there is no LID.
fn lid_and_lmc(port: &Port) -> (u16, u8) {
    (port.lid.map_or(0, |lid| lid.to_wire()), port.lmc.to_wire())
}
