//! Agents of hosts: sends specs to them and records their reports.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use controller_api::agent::{AMBIGUOUS_SPEC, HostReport, HostSpec, OTHER_SITE, STALE_SPEC, SpecVersion};
use controller_api::host::NewHost;
use controller_api::{Name, Problem, session};
use reqwest::StatusCode;
use reqwest::header::{CONNECTION, UPGRADE};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::clock::ClockReading;
use crate::observed::ObservedAgent;
use crate::reconcile::SETTLE;
use crate::site::{AllHostSpecs, Site};

/// Pause before the next attempt to reach an agent.
const RETRY: Duration = Duration::from_millis(500);

/// Longest response time of an agent. A report query is answered after a few seconds even without news.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest idle time of a pooled connection; shorter than that of agents.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes of a report: every virtual machine of a host with the longest reason, several times over.
const REPORT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Most bytes of problem details; far fewer are shown.
const PROBLEM_BYTES_MAX: usize = 64 * 1024;

/// Most virtual machines in a report: many times what a spec may list.
const REPORT_VMS_MAX: usize = 4096;

/// Most characters of a reason or label that are kept: one sentence.
const TEXT_LETTERS_MAX: usize = 500;

/// Most cores or partitions of one virtual machine in a report: more than a machine has of either.
const ITEMS_MAX: usize = 4096;
/// Longest response time of an agent to a liveness probe while a client waits.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Client of an agent's HTTP interface, for one host.
#[derive(Clone, Debug)]
pub struct AgentClient {
    http: reqwest::Client,
    host: Name,
}

/// Control loop: follows the agents of all hosts, one task per host.
pub async fn run(site: Arc<Site>) -> ! {
    let mut tasks: HashMap<Name, (NewHost, JoinHandle<()>)> = HashMap::new();
    let mut woken = site.woken.subscribe();
    loop {
        woken.mark_unchanged();
        match site.store.host_list().await {
            Ok(hosts) => {
                let by_name: HashMap<&Name, &NewHost> = hosts.iter().map(|host| (&host.name, host)).collect();
                tasks.retain(|name, (known, task)| {
                    let stays = by_name.get(name).is_some_and(|host| host.agent == known.agent);
                    if !stays {
                        task.abort();
                        site.observe(|observed| observed.agents.remove(name));
                    }
                    stays
                });
                for host in hosts.iter() {
                    if !tasks.contains_key(&host.name) {
                        let task = tokio::spawn(follow(Arc::clone(&site), host.clone()));
                        tasks.insert(host.name.clone(), (host.clone(), task));
                    }
                }
            }
            Err(error) => tracing::error!("{}", crate::chain(&error)),
        }
        // The sender lives in the site, so this never fails.
        let _ = woken.changed().await;
        tokio::time::sleep(SETTLE).await;
    }
}

/// Follows the agent of one host: retries whenever the exchange fails.
async fn follow(site: Arc<Site>, host: NewHost) {
    let mut specs = site.specs();
    let agent = match AgentClient::new(&host) {
        Ok(agent) => agent,
        Err(error) => return tracing::error!(host = %host.name, "{error:#}"),
    };
    loop {
        if let Err(error) = agent.exchange(&site, &mut specs).await {
            let name = &host.name;
            let answered = site.observe_quietly(|observed| {
                observed.agents.get_mut(name).is_some_and(|agent| std::mem::take(&mut agent.answers))
            });
            if answered {
                tracing::warn!(host = %name, "{error:#}");
                site.wake();
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Returns when the spec of `host` differs from `known`. Changes for other hosts are ignored: otherwise, with a thousand
/// hosts, every change would make all of them query their agents again.
async fn changed(specs: &mut watch::Receiver<Arc<AllHostSpecs>>, host: &Name, known: &Arc<HostSpec>) {
    let is_other = |all: &Arc<AllHostSpecs>| {
        let own = all.as_ref().as_ref().and_then(|all| all.get(host));
        own.is_none_or(|own| !Arc::ptr_eq(own, known) && own != known)
    };
    // The sender lives in the site, so this never fails.
    let _ = specs.wait_for(is_other).await;
}

impl AgentClient {
    /// A client for the agent of `host`.
    pub fn new(host: &NewHost) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .pool_idle_timeout(IDLE_TIMEOUT)
            .unix_socket(host.agent.as_str())
            .build();
        Ok(Self {
            http: http.context("cannot create the HTTP client for an agent")?,
            host: host.name.clone(),
        })
    }

    /// Sends the spec whenever it changes, and records the reports. Returns only with an error.
    async fn exchange(
        &self,
        site: &Site,
        specs: &mut watch::Receiver<Arc<AllHostSpecs>>,
    ) -> anyhow::Result<()> {
        self.check_history(site).await?;
        let mut given: Option<Arc<HostSpec>> = None;
        let mut after = 0;
        loop {
            let wanted =
                specs.borrow_and_update().as_ref().as_ref().and_then(|all| all.get(&self.host).cloned());
            let Some(wanted) = wanted else {
                // No spec yet: virtual machines keep running.
                let _ = specs.changed().await;
                continue;
            };
            if given.as_ref() != Some(&wanted) {
                if let Some(why) = site.with_observed(|observed| observed.superseded.clone()) {
                    // A report would be taken for an acknowledgement of this store.
                    bail!("no spec is sent any more: {why}");
                }
                self.send_spec(site, &wanted).await?;
                (given, after) = (Some(Arc::clone(&wanted)), 0);
            }
            let report = tokio::select! {
                report = self.report(after) => report?,
                () = changed(specs, &self.host, &wanted) => continue,
            };
            if report.acknowledged != Some(wanted.version) {
                bail!("the report acknowledges another spec than the one sent");
            }
            let heard = ClockReading::now();
            let is_back = site.observe_quietly(|observed| {
                let known = observed.agents.get_mut(&self.host);
                known.is_some_and(|known| {
                    known.heard = heard;
                    !std::mem::replace(&mut known.answers, true)
                })
            });
            if is_back {
                site.wake();
            }
            let is_news = report.number != after;
            after = report.number;
            if is_news {
                for vm in &report.vms {
                    // Withhold the numbers before any of them could be assigned.
                    if let Some(unlisted) = &vm.unlisted {
                        site.store.held_partitions_note(&self.host, vm.id, &unlisted.partitions).await?;
                    }
                }
                let agent = ObservedAgent { spec: wanted, report: Arc::new(report), answers: true, heard };
                site.observe(|observed| observed.agents.insert(self.host.clone(), agent));
            }
        }
    }

    /// Fails if the agent has accepted a spec of this site that this store did not issue: the agent then follows a newer
    /// store.
    async fn check_history(&self, site: &Site) -> anyhow::Result<()> {
        let kept = self.report(0).await?.acknowledged;
        let own = |kept: &SpecVersion| kept.site == site.identity.site && kept.epoch == site.identity.epoch;
        if let Some(kept) = kept.filter(own)
            && site.sequences.is_foreign(kept.sequence)
        {
            let why = format!("it has accepted a spec of {kept}, which this store did not issue");
            self.mark_superseded(site, &why).await;
            bail!("no spec is sent any more: {why}");
        }
        Ok(())
    }

    async fn send_spec(&self, site: &Site, spec: &HostSpec) -> anyhow::Result<()> {
        let request = self.http.put(self.url("")).json(spec).timeout(ANSWER_TIMEOUT);
        let response = request.send().await.context("the agent does not respond")?;
        let status = response.status();
        if status.is_success() {
            site.observe_quietly(|observed| observed.spec_rejections.remove(&self.host));
            return Ok(());
        }
        let problem: Option<Problem> = read(response, PROBLEM_BYTES_MAX).await.ok();
        let why = problem.as_ref().map(Problem::to_string).unwrap_or_default();
        if status == StatusCode::INSUFFICIENT_STORAGE {
            site.observe(|observed| observed.spec_rejections.insert(self.host.clone(), why.clone()));
        }
        if problem.is_some_and(|problem| [STALE_SPEC, OTHER_SITE, AMBIGUOUS_SPEC].contains(&&*problem.kind)) {
            self.mark_superseded(site, &why).await;
        }
        bail!("the agent rejects its spec ({status}): {why}")
    }

    /// Records that agents follow another or a newer store. From then on no spec is sent: it would be wrong.
    async fn mark_superseded(&self, site: &Site, why: &str) {
        let text = format!(
            "host {} rejects its spec: {why}; this store is older than the specs that hosts follow, or of another site: restore the \
             newest, or stop the controller and use `heddle controller recover`",
            self.host
        );
        let is_new = site.observe(|observed| observed.superseded.replace(text.clone()).is_none());
        if is_new && let Err(error) = site.note("site.superseded", text).await {
            tracing::error!("{}", crate::chain(&error));
        }
    }

    async fn report(&self, after: u64) -> anyhow::Result<HostReport> {
        let request = self.http.get(self.url(&format!("?after={after}"))).timeout(ANSWER_TIMEOUT);
        let response = request.send().await.context("the agent does not respond")?;
        let response = response.error_for_status().context("the agent rejects the report query")?;
        let report: HostReport =
            read(response, REPORT_BYTES_MAX).await.context("invalid report of the agent")?;
        bounded(report)
    }

    /// Whether the agent responds within [`ALIVE_TIMEOUT`], with whatever status.
    pub async fn is_alive(&self) -> bool {
        let request = self.http.get("http://agent/v1/hosts").timeout(ALIVE_TIMEOUT);
        // Any status counts.
        request.send().await.is_ok()
    }

    /// Opens a session in a virtual machine.
    pub async fn session(&self, vm: Uuid, open: &session::NewSession) -> anyhow::Result<reqwest::Upgraded> {
        self.open(vm, &session::AgentSession::Guest(open.clone())).await
    }

    /// Opens the network view of the InfiniBand adapter of a virtual machine.
    pub async fn adapter_view(&self, vm: Uuid) -> anyhow::Result<reqwest::Upgraded> {
        self.open(vm, &session::AgentSession::Adapter(session::AdapterSession::View {})).await
    }

    async fn open(&self, vm: Uuid, open: &session::AgentSession) -> anyhow::Result<reqwest::Upgraded> {
        let request = self.http.post(self.url(&format!("/vms/{vm}/sessions")));
        let request = request.header(CONNECTION, "upgrade").header(UPGRADE, session::PROTOCOL).json(open);
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, request.send()).await;
        let response = answer.context("the agent does not respond")?.context("the agent does not respond")?;
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            match read::<Problem>(response, PROBLEM_BYTES_MAX).await {
                Ok(problem) => bail!("{problem}"),
                Err(_) => bail!("the agent rejects the session ({status})"),
            }
        }
        response.upgrade().await.context("the connection to the agent failed")
    }

    fn url(&self, rest: &str) -> String {
        // The name is for the Host header only; the socket determines the peer.
        format!("http://agent/v1/hosts/{}{rest}", self.host)
    }
}

/// Reads a response of at most `bytes_max` bytes. Agents are not trusted: a longer one is not read to its end.
async fn read<T: DeserializeOwned>(mut response: reqwest::Response, bytes_max: usize) -> anyhow::Result<T> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.context("the connection to the agent failed")? {
        ensure!(bytes.len() + chunk.len() <= bytes_max, "the response has more than {bytes_max} bytes");
        bytes.extend_from_slice(&chunk);
    }
    serde_json::from_slice(&bytes).context("cannot parse the response")
}

/// Bounds the parts of a report: texts are shortened, and lists that are too long are rejected.
fn bounded(mut report: HostReport) -> anyhow::Result<HostReport> {
    let count = report.vms.len();
    ensure!(count <= REPORT_VMS_MAX, "a report lists at most {REPORT_VMS_MAX} virtual machines, got {count}");
    for vm in &mut report.vms {
        let items = vm.pinned.len().max(vm.unlisted.as_ref().map_or(0, |it| it.partitions.len()));
        ensure!(
            items <= ITEMS_MAX,
            "a virtual machine has at most {ITEMS_MAX} cores or partitions, got {items}"
        );
        let stop = vm.stop.iter_mut().flat_map(|stop| [&mut stop.node, &mut stop.reason]);
        let texts = vm.reason.iter_mut().chain(vm.unlisted.iter_mut().map(|it| &mut it.label)).chain(stop);
        texts.for_each(|text| *text = shortened(text));
    }
    Ok(report)
}

/// A text of an agent in one line, without control characters, of bounded length.
fn shortened(text: &str) -> String {
    let plain = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    let mut short: String = plain.take(TEXT_LETTERS_MAX).collect();
    if text.chars().nth(TEXT_LETTERS_MAX).is_some() {
        short.push('…');
    }
    short
}
