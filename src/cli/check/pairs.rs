//! Tools with a server in one node and a client in another.

use std::time::Duration;

use super::nodes::NodeCommands;
use super::parse::{self, FigureReader};
use super::plan::Group;
use super::report::CheckFinding;

/// Limit of a tool. They take 1 to 5 s on an idle machine; guests of an emulation that shares its cores take much longer.
const LIMIT: Duration = Duration::from_secs(90);

/// A stock tool that measures between two nodes. In its commands, `{server}` is the address of the server and `{port}` a port.
#[derive(Clone, Copy, Debug)]
pub struct PairTool {
    pub group: Group,
    pub name: &'static str,
    pub program: &'static str,
    server: &'static str,
    client: &'static str,
    read: FigureReader,
}

/// A tool is known by its name.
impl PartialEq for PairTool {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// The first TCP port; each tool has its own, so that a server that is left does not disturb the next.
const FIRST_PORT: usize = 21_100;

const fn tool(
    group: Group,
    name: &'static str,
    server: &'static str,
    client: &'static str,
    read: FigureReader,
) -> PairTool {
    PairTool { group, name, program: name, server, client, read }
}

/// Messages of 8 bytes; the operation follows.
macro_rules! latency {
    ($program:literal, $more:literal) => {
        tool(
            Group::Perftest,
            $program,
            concat!($program, " -F -n 100 -p {port}", $more),
            concat!($program, " -F -n 100 -p {port}", $more, " {server}"),
            parse::perftest_latency,
        )
    };
}

macro_rules! bandwidth {
    ($program:literal, $more:literal) => {
        tool(
            Group::Perftest,
            $program,
            concat!($program, " -F -n 50 -p {port}", $more),
            concat!($program, " -F -n 50 -p {port}", $more, " {server}"),
            parse::perftest_bandwidth,
        )
    };
}

/// All tools, in the order in which they run.
pub const TOOLS: [PairTool; 14] = [
    tool(
        Group::RdmaCm,
        "rping",
        "rping -s -a {server} -p {port} -C 10 -v",
        "rping -c -a {server} -p {port} -C 10 -v",
        parse::rping,
    ),
    tool(Group::RdmaCm, "ucmatose", "ucmatose -b {server}", "ucmatose -s {server}", parse::ucmatose),
    tool(
        Group::Verbs,
        "ibv_rc_pingpong",
        "ibv_rc_pingpong -p {port} -n 200 -c",
        "ibv_rc_pingpong -p {port} -n 200 -c {server}",
        parse::pingpong,
    ),
    tool(
        Group::Verbs,
        "ibv_ud_pingpong",
        "ibv_ud_pingpong -p {port} -n 200",
        "ibv_ud_pingpong -p {port} -n 200 {server}",
        parse::pingpong,
    ),
    latency!("ib_send_lat", " -s 8"),
    latency!("ib_write_lat", " -s 8"),
    latency!("ib_read_lat", " -s 8"),
    latency!("ib_atomic_lat", ""),
    bandwidth!("ib_send_bw", " -s 65536"),
    bandwidth!("ib_write_bw", " -s 65536"),
    bandwidth!("ib_read_bw", " -s 65536"),
    PairTool { read: parse::perftest_rate, ..bandwidth!("ib_atomic_bw", "") },
    PairTool {
        program: "ucx_perftest",
        ..tool(
            Group::Ucx,
            "tag_lat",
            "ucx_perftest -p {port}",
            "ucx_perftest {server} -p {port} -t tag_lat -n 100 -w 10 -s 8",
            parse::ucx_latency,
        )
    },
    PairTool {
        program: "ucx_perftest",
        ..tool(
            Group::Ucx,
            "tag_bw",
            "ucx_perftest -p {port}",
            "ucx_perftest {server} -p {port} -t tag_bw -n 50 -w 5 -s 65536",
            parse::ucx_bandwidth,
        )
    },
];

/// Runs a tool between the first two nodes; the client's output is what counts.
pub async fn run(nodes: &NodeCommands<'_>, tool: &PairTool) -> anyhow::Result<CheckFinding> {
    let number = TOOLS.iter().position(|it| it == tool).unwrap_or(TOOLS.len());
    let (server, port) = (nodes.first().address.to_string(), (FIRST_PORT + number).to_string());
    let fill = |command: &str| command.replace("{server}", &server).replace("{port}", &port);
    let (_, printed) = nodes.pair(&fill(tool.server), &fill(tool.client), LIMIT).await?;
    Ok(CheckFinding { figures: (tool.read)(&printed)?, note: None })
}
