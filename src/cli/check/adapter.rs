//! What nodes have: tools, an active port, an address; and whether they reach each other.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::nodes::{CheckedNode, NodeCommands};
use super::parse::{facts, ping as read_ping, short};
use super::plan::Check;
use super::report::{CheckFinding, Figure};

/// Limit of commands that only read.
const LIMIT: Duration = Duration::from_secs(30);

/// `board_id` of the adapter of guest-module/.
const EMULATED_BOARD: &str = "HEDDLE_SOFTWARE_HCA";

/// Driver of the Ethernet cards that the emulated fabric serves.
const EMULATED_CARD: &str = "virtio_net";

/// Prints `sent N`, the packets that the adapter has sent; `sent unknown` if it does not count them.
pub const SENT_PACKETS: &str = "for f in /sys/class/infiniband/*/ports/1/hw_counters/tx_packets; do [ -e $f ] && echo sent $(cat $f) || echo sent unknown; done";

/// What the nodes have.
pub struct Inventory {
    pub tools: BTreeSet<String>,
    pub is_emulated: bool,
}

/// Asks the first node which of the tools of these checks it has.
pub async fn inventory(nodes: &NodeCommands<'_>, checks: &[Check]) -> anyhow::Result<Inventory> {
    let wanted: BTreeSet<&str> = checks.iter().flat_map(|check| check.tools.iter().copied()).collect();
    let names = wanted.iter().copied().collect::<Vec<_>>().join(" ");
    let script = format!(
        "for tool in {names}; do command -v $tool >/dev/null && echo tool $tool; done
         echo board $(cat /sys/class/infiniband/*/board_id 2>/dev/null)
         echo card $(basename \"$(readlink /sys/class/net/eth0/device/driver)\")"
    );
    let printed = nodes.ok(nodes.first(), &script, LIMIT).await?;
    let tools =
        printed.lines().filter_map(|line| line.strip_prefix("tool ")).map(|tool| tool.trim().to_owned());
    let facts = facts(&printed);
    let is = |name: &str, value: &str| facts.get(name).is_some_and(|found| *found == value);
    Ok(Inventory {
        tools: tools.collect(),
        is_emulated: is("board", EMULATED_BOARD) || is("card", EMULATED_CARD),
    })
}

/// The InfiniBand port of every node is active.
pub async fn port(nodes: &NodeCommands<'_>) -> anyhow::Result<CheckFinding> {
    let script = "device=$(ls /sys/class/infiniband | head -n 1)
        [ -n \"$device\" ] || { echo there is no InfiniBand device; exit 1; }
        echo device $device
        for fact in state link_layer rate lid; do echo $fact $(cat /sys/class/infiniband/$device/ports/1/$fact); done";
    let mut rates = BTreeSet::new();
    for node in nodes.all() {
        let printed = nodes.ok(node, script, LIMIT).await?;
        rates.insert(read_port(&printed).with_context(|| node.name.clone())?);
    }
    Ok(CheckFinding::note(rates.into_iter().collect::<Vec<_>>().join("; ")))
}

/// The rate of an active port.
fn read_port(printed: &str) -> anyhow::Result<String> {
    let facts = facts(printed);
    let fact = |name: &str| facts.get(name).copied().unwrap_or("unknown");
    ensure!(fact("link_layer") == "InfiniBand", "the link layer is {}", short(fact("link_layer")));
    ensure!(fact("state").contains("ACTIVE"), "the port is not active: {}", short(fact("state")));
    Ok(format!("{} active, {}", short(fact("device")), short(fact("rate"))))
}

/// The network device of every node has the address that the controller assigned.
pub async fn address(nodes: &NodeCommands<'_>, device: &str) -> anyhow::Result<CheckFinding> {
    let script =
        format!("ip -o -4 addr show dev {device}; echo state $(cat /sys/class/net/{device}/operstate)");
    for node in nodes.all() {
        let printed = nodes.ok(node, &script, LIMIT).await?;
        read_address(&printed, node.address).with_context(|| format!("{} of {}", device, node.name))?;
    }
    Ok(CheckFinding::note("up, with its address in every node"))
}

fn read_address(printed: &str, address: Ipv4Addr) -> anyhow::Result<()> {
    let wanted = format!(" inet {address}/");
    ensure!(printed.contains(&wanted), "it does not have the address {address}: {}", short(printed));
    // Devices that do not know their carrier say "unknown".
    let state = facts(printed).get("state").copied().unwrap_or("unknown").to_owned();
    ensure!(matches!(state.as_str(), "up" | "unknown"), "it is {}", short(&state));
    Ok(())
}

/// Every node reaches the next one, the last the first.
pub async fn ping(nodes: &NodeCommands<'_>) -> anyhow::Result<CheckFinding> {
    let all = nodes.all();
    let mut slowest: f64 = 0.0;
    for (node, next) in all.iter().zip(all.iter().cycle().skip(1)) {
        let script = format!("ping -n -c 5 -i 0.3 -W 10 {}", next.address);
        let printed = nodes.run(node, &script, LIMIT).await?;
        let time = read_ping(&printed.text).with_context(|| describe(node, next))?;
        slowest = slowest.max(time);
    }
    let note = Some(format!("each of {} nodes to the next", all.len()));
    Ok(CheckFinding { figures: vec![Figure::new("slowest average round trip", slowest, "ms")], note })
}

fn describe(from: &CheckedNode, to: &CheckedNode) -> String {
    format!("{} does not reach {}", from.name, to.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_active_infiniband_port_passes() {
        let good =
            "device heddle0\nstate 4: ACTIVE\nlink_layer InfiniBand\nrate 100 Gb/sec (4X EDR)\nlid 0x3\n";
        assert_eq!(read_port(good).unwrap(), "heddle0 active, 100 Gb/sec (4X EDR)");
        assert!(read_port(&good.replace("4: ACTIVE", "1: DOWN")).is_err());
        assert!(read_port(&good.replace("InfiniBand", "Ethernet")).is_err());
        assert!(read_port("").is_err());
    }

    #[test]
    fn only_the_assigned_address_passes() {
        let line = "4: ib0    inet 10.128.0.1/16 brd 10.128.255.255 scope global ib0\nstate up\n";
        assert!(read_address(line, Ipv4Addr::new(10, 128, 0, 1)).is_ok());
        assert!(read_address(line, Ipv4Addr::new(10, 128, 0, 2)).is_err());
        assert!(read_address(&line.replace("state up", "state down"), Ipv4Addr::new(10, 128, 0, 1)).is_err());
    }
}
