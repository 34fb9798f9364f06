//! `heddle down` and `heddle status`: stop a site and show its state.

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use controller_api::ControllerAddress;
use controller_api::cluster::{Cluster, HealthState, Phase};
use controller_api::fabric::FabricState;
use controller_api::host::HostState;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;

use super::HomeArgs;
use super::site::SiteDir;
use crate::cli::connection::{API_SOCKET, SiteArgs};
use crate::cli::output::{Format, count, facts, print, took};

/// Interval of checking whether the site has stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Longest time for a stop: each program may use its own limit.
const STOP_LIMIT: Duration = Duration::from_secs(150);

/// The programs of a site, by the names of their pid files.
const PARTS: [&str; 8] = ["sim", "sm", "sm-2", "sm-3", "controller", "agent", "libvirtd", "virtlogd"];

/// Stop the site that `heddle up` runs, and its virtual machines.
///
/// The next `heddle up` boots them again.
///
///     heddle down
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct DownArgs {
    #[command(flatten)]
    home: HomeArgs,
}

/// Show the state of a site on this machine: its processes, fabric, hosts and clusters.
///
/// The exit status is 0 only if the site runs and all its parts are healthy.
///
///     heddle status
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct StatusArgs {
    #[command(flatten)]
    home: HomeArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Stops a site and waits until it has ended.
pub async fn down(args: DownArgs) -> anyhow::Result<ExitCode> {
    let site = args.home.site()?;
    let place = site.directory().display();
    ensure!(site.is_running(), "no `heddle up` is running in {place}");
    // The process that holds the lock wrote the file.
    let pid = site.pid("up").with_context(|| format!("{place}/run/up.pid does not hold a process id"))?;
    let asked = Instant::now();
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM)
        .with_context(|| format!("cannot send SIGTERM to process {pid}"))?;
    while site.is_running() {
        if asked.elapsed() > STOP_LIMIT {
            bail!("process {pid} has not stopped after {}", took(STOP_LIMIT));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    print(&format!("stopped after {}", took(asked.elapsed())))?;
    Ok(ExitCode::SUCCESS)
}

/// The state of a site, as `heddle status -o json` prints it.
#[derive(Debug, Default, Serialize)]
struct SiteStatus {
    directory: String,
    is_running: bool,
    url: Option<String>,
    /// Loopback address of the controller, if it listens at one.
    listens_at: Option<String>,
    /// Value of IBSIM_SOCKNAME for stock tools.
    ibsim_name: String,
    processes: Vec<Process>,
    fabric: Option<FabricState>,
    partitions: usize,
    hosts: usize,
    hosts_up: usize,
    clusters: usize,
    clusters_ready: usize,
    /// Clusters whose health is degraded or unknown.
    clusters_unhealthy: usize,
    /// Why the controller could not be queried.
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct Process {
    name: &'static str,
    pid: u32,
}

/// Shows the state of a site.
pub async fn status(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let site = args.home.site()?;
    let is_running = site.is_running();
    let mut status = SiteStatus {
        directory: site.directory().display().to_string(),
        is_running,
        url: is_running.then(|| ControllerAddress::Unix(site.path(API_SOCKET)).to_string()),
        listens_at: fs::read_to_string(site.endpoint()).ok().map(|url| url.trim().to_owned()),
        ibsim_name: site.fabric_name(),
        ..SiteStatus::default()
    };
    if status.is_running {
        status.processes = processes(&site);
        if let Err(error) = query(&site, &mut status).await {
            status.problem = Some(format!("{error:#}"));
        }
    }
    args.output.print(&status, show)?;
    Ok(if is_healthy(&status) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn processes(site: &SiteDir) -> Vec<Process> {
    let alive = |pid: &u32| kill(Pid::from_raw(pid.cast_signed()), None).is_ok();
    PARTS.into_iter().filter_map(|name| Some(Process { name, pid: site.pid(name).filter(alive)? })).collect()
}

async fn query(site: &SiteDir, status: &mut SiteStatus) -> anyhow::Result<()> {
    let client = SiteArgs::of_home(site.directory())?;
    let fabric = client.fabric_show().await?;
    status.fabric = Some(fabric.state);
    status.partitions = fabric.partitions.len();
    let hosts = client.host_list().await?;
    status.hosts = hosts.len();
    status.hosts_up = hosts.iter().filter(|host| host.state == HostState::Up).count();
    let clusters = client.cluster_list().await?;
    status.clusters = clusters.len();
    status.clusters_ready = clusters.iter().filter(|cluster| cluster.phase == Phase::Ready).count();
    let is_unhealthy = |cluster: &&Cluster| cluster.health.state != HealthState::Ok;
    status.clusters_unhealthy = clusters.iter().filter(is_unhealthy).count();
    Ok(())
}

fn is_healthy(status: &SiteStatus) -> bool {
    status.fabric == Some(FabricState::Programmed)
        && status.hosts_up == status.hosts
        && status.clusters_unhealthy == 0
}

fn show(status: &SiteStatus) -> String {
    if !status.is_running {
        return format!("not running in {}; start it with `heddle up`", status.directory);
    }
    let processes: Vec<String> =
        status.processes.iter().map(|it| format!("{} {}", it.name, it.pid)).collect();
    let mut known = vec![
        ("directory", status.directory.clone()),
        ("processes", processes.join(", ")),
        ("stock tools", format!("IBSIM_SOCKNAME={}", status.ibsim_name)),
    ];
    known.extend(status.url.clone().map(|url| ("controller", url)));
    known.extend(status.listens_at.clone().map(|url| ("also at", url)));
    match (&status.problem, status.fabric) {
        (None, Some(state)) => {
            let state = match state {
                FabricState::Programmed => "programmed",
                FabricState::Programming => "being programmed",
                FabricState::ManagerSilent => "the subnet manager does not answer",
                FabricState::Stuck => "the subnet manager does not program it",
            };
            known.extend([
                ("fabric", format!("{state}, {}", count(status.partitions, "partition"))),
                ("hosts", format!("{} of {} up", status.hosts_up, status.hosts)),
                ("clusters", clusters(status)),
            ]);
        }
        (problem, _) => known.extend(problem.clone().map(|problem| ("problem", problem))),
    }
    facts(known)
}

fn clusters(status: &SiteStatus) -> String {
    let ready = format!("{} of {} ready", status.clusters_ready, status.clusters);
    match status.clusters_unhealthy {
        0 => ready,
        unhealthy => format!("{ready}, {unhealthy} degraded or unknown"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well() -> SiteStatus {
        SiteStatus {
            directory: "/var/lib/heddle".to_owned(),
            is_running: true,
            fabric: Some(FabricState::Programmed),
            hosts: 16,
            hosts_up: 16,
            processes: vec![Process { name: "sim", pid: 7 }],
            ..SiteStatus::default()
        }
    }

    #[test]
    fn a_site_is_well_only_if_all_of_it_is() {
        assert!(is_healthy(&well()));
        for unhealthy in [
            SiteStatus { fabric: Some(FabricState::Programming), ..well() },
            SiteStatus { hosts_up: 15, ..well() },
            SiteStatus { fabric: None, ..well() },
            SiteStatus { clusters_unhealthy: 1, ..well() },
        ] {
            assert!(!is_healthy(&unhealthy), "{unhealthy:?}");
        }
    }

    #[test]
    fn a_status_tells_what_can_be_known() {
        let text = show(&well());
        assert!(text.contains("processes    sim 7") && text.contains("16 of 16 up"), "{text}");
        let text = show(&SiteStatus { problem: Some("no controller answers".to_owned()), ..well() });
        assert!(text.contains("no controller answers") && !text.contains("hosts"), "{text}");
        let text = show(&SiteStatus { is_running: false, ..well() });
        assert!(text.contains("heddle up"), "{text}");
    }
}
