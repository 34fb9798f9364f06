//! The agents of hosts: they are told what to run, and tell what they run.

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

use crate::health::ClockReading;
use crate::reconcile::SETTLE;
use crate::site::{AllHostSpecs, ObservedAgent, Site};

/// How long to wait before an agent is asked again.
const RETRY: Duration = Duration::from_millis(500);

/// How long an agent may take to answer; it answers a question for news after a few seconds also if there are none.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a connection may be idle before it is closed: less than agents allow.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest report: every virtual machine that a host may have, each with the longest reason, several times over.
const REPORT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Longest problem that is read; what is told of it is far shorter.
const PROBLEM_BYTES_MAX: usize = 64 * 1024;

/// Virtual machines in a report: many times what orders may list.
const REPORT_VMS_MAX: usize = 4096;

/// Longest reason or label that is kept and shown: one sentence.
const TEXT_LETTERS_MAX: usize = 500;

/// Cores or partitions of one virtual machine in a report: more than a machine has of either.
const ITEMS_MAX: usize = 4096;
/// How long an agent may take to say that it is there before somebody who waits is told that it is not.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// An agent, as a host asks it.
#[derive(Clone, Debug)]
pub struct AgentClient {
    http: reqwest::Client,
    host: Name,
}

/// Keeps in touch with the agents of all hosts for as long as it is polled.
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
        // The site keeps the sender for as long as this runs.
        let _ = woken.changed().await;
        tokio::time::sleep(SETTLE).await;
    }
}

/// Keeps in touch with the agent of one host.
async fn follow(site: Arc<Site>, host: NewHost) {
    let mut orders = site.specs();
    let agent = match AgentClient::new(&host) {
        Ok(agent) => agent,
        Err(error) => return tracing::error!(host = %host.name, "{error:#}"),
    };
    loop {
        if let Err(error) = agent.exchange(&site, &mut orders).await {
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

/// Returns when the orders of a host are others than these. Those of other hosts do not concern it: with a thousand hosts, each of
/// which is added or reports now and then, everybody would ask its agent anew each time.
async fn changed(orders: &mut watch::Receiver<Arc<AllHostSpecs>>, host: &Name, known: &Arc<HostSpec>) {
    let is_other = |all: &Arc<AllHostSpecs>| {
        let own = all.as_ref().as_ref().and_then(|all| all.get(host));
        own.is_none_or(|own| !Arc::ptr_eq(own, known) && own != known)
    };
    // The site keeps the sender for as long as this runs.
    let _ = orders.wait_for(is_other).await;
}

impl AgentClient {
    /// The agent of a host.
    pub fn new(host: &NewHost) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .pool_idle_timeout(IDLE_TIMEOUT)
            .unix_socket(host.agent.as_str())
            .build();
        Ok(Self { http: http.context("cannot ask agents")?, host: host.name.clone() })
    }

    /// Tells the agent its orders whenever they change, and notes what it tells. Returns when it does not answer.
    async fn exchange(
        &self,
        site: &Site,
        orders: &mut watch::Receiver<Arc<AllHostSpecs>>,
    ) -> anyhow::Result<()> {
        self.check_history(site).await?;
        let mut given: Option<Arc<HostSpec>> = None;
        let mut after = 0;
        loop {
            let wanted =
                orders.borrow_and_update().as_ref().as_ref().and_then(|all| all.get(&self.host).cloned());
            let Some(wanted) = wanted else {
                // Nothing is known yet: what runs goes on.
                let _ = orders.changed().await;
                continue;
            };
            if given.as_ref() != Some(&wanted) {
                if let Some(why) = site.with_observed(|observed| observed.superseded.clone()) {
                    // What is heard now would be taken for an answer to orders of this store.
                    bail!("nothing is ordered any more: {why}");
                }
                self.send_spec(site, &wanted).await?;
                (given, after) = (Some(Arc::clone(&wanted)), 0);
            }
            let report = tokio::select! {
                report = self.report(after) => report?,
                () = changed(orders, &self.host, &wanted) => continue,
            };
            if report.acknowledged != Some(wanted.version) {
                bail!("the agent's report is for other orders than it was given");
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
                    // Before a number could be given away that somebody holds.
                    if let Some(unlisted) = &vm.unlisted {
                        site.store.held_partitions_note(&self.host, vm.id, &unlisted.partitions).await?;
                    }
                }
                let agent = ObservedAgent { spec: wanted, report: Arc::new(report), answers: true, heard };
                site.observe(|observed| observed.agents.insert(self.host.clone(), agent));
            }
        }
    }

    /// An agent that has accepted orders of this site which its store does not know follows a newer store.
    async fn check_history(&self, site: &Site) -> anyhow::Result<()> {
        let kept = self.report(0).await?.acknowledged;
        let own = |kept: &SpecVersion| kept.site == site.identity.site && kept.epoch == site.identity.epoch;
        if let Some(kept) = kept.filter(own)
            && site.sequences.is_foreign(kept.sequence)
        {
            let why = format!("it has accepted orders of {kept}, which this store did not give");
            self.mark_superseded(site, &why).await;
            bail!("nothing is ordered any more: {why}");
        }
        Ok(())
    }

    async fn send_spec(&self, site: &Site, orders: &HostSpec) -> anyhow::Result<()> {
        let request = self.http.put(self.url("")).json(orders).timeout(ANSWER_TIMEOUT);
        let response = request.send().await.context("the agent does not answer")?;
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
        bail!("the agent refuses its orders ({status}): {why}")
    }

    /// The agent follows a store that is newer than ours, or another one: whatever is ordered from here on would be wrong.
    async fn mark_superseded(&self, site: &Site, why: &str) {
        let text = format!(
            "host {} refuses its orders: {why}; this store is older than what hosts run, or another site's: put the newest \
             back, or stop the controller and use `heddle controller recover`",
            self.host
        );
        let is_new = site.observe(|observed| observed.superseded.replace(text.clone()).is_none());
        if is_new && let Err(error) = site.note("site.superseded", text).await {
            tracing::error!("{}", crate::chain(&error));
        }
    }

    async fn report(&self, after: u64) -> anyhow::Result<HostReport> {
        let request = self.http.get(self.url(&format!("?after={after}"))).timeout(ANSWER_TIMEOUT);
        let response = request.send().await.context("the agent does not answer")?;
        let response = response.error_for_status().context("the agent does not tell")?;
        let report: HostReport =
            read(response, REPORT_BYTES_MAX).await.context("unexpected report of the agent")?;
        bounded(report)
    }

    /// Whether the agent answers at all, within [`ALIVE_TIMEOUT`].
    pub async fn is_alive(&self) -> bool {
        let request = self.http.get("http://agent/v1/hosts").timeout(ALIVE_TIMEOUT);
        // Whatever it says, it says something.
        request.send().await.is_ok()
    }

    /// Opens a session in a virtual machine.
    pub async fn session(
        &self,
        vm: Uuid,
        open: &session::SessionRequest,
    ) -> anyhow::Result<reqwest::Upgraded> {
        let request = self.http.post(self.url(&format!("/vms/{vm}/sessions")));
        let request = request.header(CONNECTION, "upgrade").header(UPGRADE, session::PROTOCOL).json(open);
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, request.send()).await;
        let response = answer.context("the agent does not answer")?.context("the agent does not answer")?;
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            match read::<Problem>(response, PROBLEM_BYTES_MAX).await {
                Ok(problem) => bail!("{problem}"),
                Err(_) => bail!("the agent refuses ({status})"),
            }
        }
        response.upgrade().await.context("the agent does not go on")
    }

    fn url(&self, rest: &str) -> String {
        // The name is only for the Host header: the socket says where.
        format!("http://agent/v1/hosts/{}{rest}", self.host)
    }
}

/// Reads an answer of at most `bytes_max` bytes. An agent may be in the hands of others: it is not read further.
async fn read<T: DeserializeOwned>(mut response: reqwest::Response, bytes_max: usize) -> anyhow::Result<T> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.context("the agent does not go on")? {
        ensure!(bytes.len() + chunk.len() <= bytes_max, "the answer is longer than {bytes_max} bytes");
        bytes.extend_from_slice(&chunk);
    }
    serde_json::from_slice(&bytes).context("the answer cannot be read")
}

/// A report whose parts have a length that can be kept: texts are cut, lists that are too long are refused.
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

/// A text of others, as it can be shown: in one line, and not too long.
fn shortened(text: &str) -> String {
    let plain = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    let mut short: String = plain.take(TEXT_LETTERS_MAX).collect();
    if text.chars().nth(TEXT_LETTERS_MAX).is_some() {
        short.push('…');
    }
    short
}
