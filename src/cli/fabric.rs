//! `heddle fabric`: shows and verifies the physical fabric, for operators.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use anyhow::Context;
use clap::{Subcommand, ValueEnum};
use controller_api::ApiClient;
use controller_api::fabric::{FabricState, FabricStatus, LinkEnd, LinkStatus, SitePartitions};
use fabric_drawing::diagram;
use fabric_model::ibnetdiscover;

use super::Noun;
use super::output::{Format, count, facts, harmless, or_dash, print, table, time};

/// Commands of `heddle fabric`, for operators.
#[derive(Debug, Subcommand)]
pub enum FabricCommand {
    /// Show the fabric as it was last discovered and programmed
    #[command(after_help = "Examples:
  heddle fabric show
  heddle fabric show --format svg > fabric.svg
  heddle fabric show --format ibnetdiscover | heddle topology show -")]
    Show {
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Picture,
    },
    /// Read back every table from the devices and verify isolation, reachability and guarantees
    ///
    /// The exit status is 0 if there are no findings, else 1.
    #[command(after_help = "Example:
  heddle fabric verify && echo verified")]
    Verify,
    /// List links with their rates and what is guaranteed on them
    ///
    /// A line for each direction of a link: its rate, the sum of the guarantees, and the share of each cluster. Nothing is
    /// guaranteed on a link of unknown rate.
    #[command(after_help = "Examples:
  heddle fabric links
  heddle fabric links --all -o json")]
    Links {
        /// List links without guarantees, too
        #[arg(long)]
        all: bool,
    },
    /// Manage the partitions of the site: storage, login nodes and bare metal beside clusters
    #[command(subcommand)]
    Partitions(PartitionsCommand),
}

/// Commands of `heddle fabric partitions`.
#[derive(Debug, Subcommand)]
pub enum PartitionsCommand {
    /// Show the partitions of the site
    #[command(after_help = "Example:
  heddle fabric partitions show > partitions.conf")]
    Show,
    /// Replace the partitions of the site by those in a file, in the format of opensm's partitions.conf
    ///
    /// Every partition has a number. ALL and the like do not select ports of hosts, and hosts may be named as limited members
    /// only, by the GUID of their port. While other ports are full members of 0x7fff, ports of hosts do not hold it. A file
    /// with an error changes nothing.
    #[command(after_help = "Example:
  heddle fabric partitions set /etc/opensm/partitions.conf")]
    Set {
        /// Partition file; - is the standard input
        file: PathBuf,
    },
}

/// Output formats of `heddle fabric show`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Picture {
    /// Counts, partitions and their members; -o json and -o yaml print all details
    #[default]
    Table,
    /// Drawing as SVG
    Svg,
    /// Nodes and cables in the format of ibnetdiscover
    Ibnetdiscover,
}

pub async fn run(noun: Noun<FabricCommand>) -> anyhow::Result<ExitCode> {
    let (client, format) = (noun.site.client()?, noun.site.format());
    match noun.command {
        FabricCommand::Show { format: picture } => {
            let fabric = client.fabric_show().await?;
            match picture {
                Picture::Table => format.print(&fabric, show)?,
                Picture::Ibnetdiscover => print(&fabric.topology)?,
                Picture::Svg => {
                    let topology = ibnetdiscover::parse(&fabric.topology);
                    let topology =
                        topology.context("unexpected reply from the controller: not a topology")?;
                    print(&diagram::to_svg(&topology, "fabric"))?;
                }
            }
        }
        FabricCommand::Links { all } => {
            let listed = client.fabric_links(all).await?;
            format.print(&listed, |listed| links(listed))?;
        }
        FabricCommand::Verify => return verify(&client, format).await,
        FabricCommand::Partitions(PartitionsCommand::Show) => {
            let partitions = client.fabric_partitions().await?;
            format.print(&partitions, |partitions| match partitions.conf.trim_end() {
                "" => "# no partitions beside clusters".to_owned(),
                conf => harmless(&conf.replace('\t', " ")),
            })?;
        }
        FabricCommand::Partitions(PartitionsCommand::Set { file }) => {
            let conf = read_conf(&file)?;
            let set = client.fabric_partitions_set(&SitePartitions { conf }).await?;
            format.print(&set, |_| "accepted; the fabric is being programmed".to_owned())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read_conf(file: &Path) -> anyhow::Result<String> {
    match file.as_os_str() == "-" {
        true => io::read_to_string(io::stdin()).context("cannot read the standard input"),
        false => fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display())),
    }
}

async fn verify(client: &ApiClient, format: Format) -> anyhow::Result<ExitCode> {
    let fabric = client.fabric_show().await?;
    let mut findings = findings_of(&fabric);
    let mut read = "no tables were read".to_owned();
    if fabric.state == FabricState::Programmed {
        let proof = client.fabric_proof().await?;
        let (switches, ports) = (proof.switches as usize, proof.ports as usize);
        read = format!("tables of {} and {} were read", count(switches, "switch"), count(ports, "port"));
        findings.extend(proof.findings);
    }
    format.print(&serde_json::json!({ "sound": findings.is_empty(), "findings": findings }), |_| {
        let verdict = match findings.len() {
            0 => format!("verified: the fabric is programmed according to its plan; {read}"),
            number => format!("not verified: {}; {read}", count(number, "finding")),
        };
        let lines: Vec<String> = findings.iter().map(|it| format!("  {it}")).collect();
        [vec![partitions(&fabric), String::new(), verdict], lines].concat().join("\n")
    })?;
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Findings that do not need a read-back.
fn findings_of(fabric: &FabricStatus) -> Vec<String> {
    let state = match fabric.state {
        FabricState::Programmed => None,
        FabricState::Programming => Some("the fabric is being programmed".to_owned()),
        FabricState::ManagerSilent => Some("the subnet manager does not answer".to_owned()),
        FabricState::Stuck => Some("the subnet manager does not program the fabric".to_owned()),
    };
    // A port without a LID cannot be reached.
    let without_lid = fabric.partitions.iter().flat_map(|partition| {
        let without = partition.members.iter().filter(|member| member.lid.is_none());
        without.map(move |member| {
            format!("{} of {}/{} has no LID", member.host, partition.tenant, partition.cluster)
        })
    });
    state.into_iter().chain(fabric.findings.iter().cloned()).chain(without_lid).collect()
}

fn show(fabric: &FabricStatus) -> String {
    let state = match fabric.state {
        FabricState::Programmed => "programmed",
        FabricState::Programming => "programming",
        FabricState::ManagerSilent => "manager silent",
        FabricState::Stuck => "stuck",
    };
    let state = match fabric.since {
        Some(since) => format!("{state} since {}", time(since)),
        None => state.to_owned(),
    };
    let mut known = vec![
        ("state", state),
        ("switches", fabric.switches.to_string()),
        ("adapters", fabric.adapters.to_string()),
        ("links", fabric.links.to_string()),
    ];
    known.extend(fabric.findings.iter().map(|finding| ("finding", finding.clone())));
    format!("{}\n\n{}", facts(known), partitions(fabric))
}

/// A line for each direction of a link.
fn links(links: &[LinkStatus]) -> String {
    let end = |end: &LinkEnd| format!("{} port {}", harmless(&end.node), end.port);
    let rows = links.iter().map(|link| {
        let shares = link.guaranteed.iter();
        let shares: Vec<String> =
            shares.map(|share| format!("{}/{} {}", share.tenant, share.cluster, share.share)).collect();
        [
            end(&link.from),
            end(&link.to),
            link.rate.map_or_else(
                || "unknown".to_owned(),
                |rate| format!("{rate} {} Gb/s", rate.data_rate_gbps()),
            ),
            link.guaranteed_total().to_string(),
            shares.join(", "),
        ]
    });
    table(["from", "to", "rate", "guaranteed", "clusters"], rows)
}

/// Partitions and their members, a line for each member.
fn partitions(fabric: &FabricStatus) -> String {
    let rows = fabric.partitions.iter().flat_map(|partition| {
        partition.members.iter().map(|member| {
            [
                partition.number.to_string(),
                format!("{}/{}", partition.tenant, partition.cluster),
                member.host.to_string(),
                or_dash(member.lid),
                member.port_guid.to_string(),
                or_dash(partition.group),
            ]
        })
    });
    table(["partition", "cluster", "host", "lid", "port", "group"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fabric(state: &str, findings: &[&str], lid: Option<u16>) -> FabricStatus {
        serde_json::from_value(serde_json::json!({
            "state": state, "switches": 6, "adapters": 16, "links": 32, "findings": findings, "topology": "",
            "partitions": [{
                "number": 1, "tenant": "acme", "cluster": "blue", "group": null,
                "members": [{"host": "host-00001", "port_guid": "0x0002c90300100001", "lid": lid}],
            }],
        }))
        .unwrap()
    }

    #[test]
    fn only_a_programmed_fabric_without_findings_is_verified() {
        assert_eq!(findings_of(&fabric("programmed", &[], Some(7))), [""; 0]);
        for unsound in [
            fabric("programming", &[], Some(7)),
            fabric("manager-silent", &[], Some(7)),
            fabric("programmed", &["host-00002 is not reached"], Some(7)),
            fabric("programmed", &[], None),
        ] {
            assert_eq!(findings_of(&unsound).len(), 1, "{unsound:?}");
        }
    }

    #[test]
    fn partitions_are_shown_with_their_members() {
        let text = show(&fabric("programmed", &[], Some(7)));
        assert!(text.contains("acme/blue  host-00001  7    0x0002c90300100001  -"), "{text}");
    }
}
