//! The agents of hosts: they are told what to run, and tell what they run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use controller_api::agent::{Orders, Report};
use controller_api::host::NewHost;
use controller_api::{Name, Problem, session};
use reqwest::StatusCode;
use reqwest::header::{CONNECTION, UPGRADE};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::reconcile::SETTLE;
use crate::site::{AgentSight, AllOrders, Site};

/// How long to wait before an agent is asked again.
const RETRY: Duration = Duration::from_millis(500);

/// How long an agent may take to answer; it answers a question for news after a few seconds also if there are none.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// An agent, as a host asks it.
#[derive(Clone, Debug)]
pub struct Agent {
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
                    let stays = by_name.get(name) == Some(&&*known);
                    if !stays {
                        task.abort();
                        site.see(|seen| seen.agents.remove(name));
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
    let mut orders = site.orders();
    let agent = match Agent::new(&host) {
        Ok(agent) => agent,
        Err(error) => return tracing::error!(host = %host.name, "{error:#}"),
    };
    loop {
        if let Err(error) = agent.exchange(&site, &mut orders).await {
            let name = &host.name;
            let answered = site.see_quietly(|seen| {
                seen.agents.get_mut(name).is_some_and(|agent| std::mem::take(&mut agent.answers))
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
async fn changed(orders: &mut watch::Receiver<Arc<AllOrders>>, host: &Name, known: &Arc<Orders>) {
    let is_other = |all: &Arc<AllOrders>| {
        let own = all.as_ref().as_ref().and_then(|all| all.get(host));
        own.is_none_or(|own| !Arc::ptr_eq(own, known) && own != known)
    };
    // The site keeps the sender for as long as this runs.
    let _ = orders.wait_for(is_other).await;
}

impl Agent {
    /// The agent of a host.
    pub fn new(host: &NewHost) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().no_proxy().unix_socket(host.agent.as_str()).build();
        Ok(Self { http: http.context("cannot ask agents")?, host: host.name.clone() })
    }

    /// Tells the agent its orders whenever they change, and notes what it tells. Returns when it does not answer.
    async fn exchange(
        &self,
        site: &Site,
        orders: &mut watch::Receiver<Arc<AllOrders>>,
    ) -> anyhow::Result<()> {
        let mut given: Option<Arc<Orders>> = None;
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
                self.order(site, &wanted).await?;
                (given, after) = (Some(Arc::clone(&wanted)), 0);
            }
            let report = tokio::select! {
                report = self.report(after) => report?,
                () = changed(orders, &self.host, &wanted) => continue,
            };
            let is_news = report.number != after;
            after = report.number;
            if is_news {
                let sight = AgentSight { orders: wanted, report: Arc::new(report), answers: true };
                site.see(|seen| seen.agents.insert(self.host.clone(), sight));
            }
        }
    }

    async fn order(&self, site: &Site, orders: &Orders) -> anyhow::Result<()> {
        let request = self.http.put(self.url("")).json(orders).timeout(ANSWER_TIMEOUT);
        let response = request.send().await.context("the agent does not answer")?;
        let status = response.status();
        if status.is_success() {
            site.see_quietly(|seen| seen.refusals.remove(&self.host));
            return Ok(());
        }
        let why = response.json::<Problem>().await.map(|problem| problem.to_string()).unwrap_or_default();
        if status == StatusCode::INSUFFICIENT_STORAGE {
            site.see(|seen| seen.refusals.insert(self.host.clone(), why.clone()));
        }
        bail!("the agent refuses its orders ({status}): {why}")
    }

    async fn report(&self, after: u64) -> anyhow::Result<Report> {
        let request = self.http.get(self.url(&format!("?after={after}"))).timeout(ANSWER_TIMEOUT);
        let response = request.send().await.context("the agent does not answer")?;
        let response = response.error_for_status().context("the agent does not tell")?;
        response.json().await.context("the agent tells nonsense")
    }

    /// Opens a session in a virtual machine.
    pub async fn session(&self, vm: Uuid, open: &session::Open) -> anyhow::Result<reqwest::Upgraded> {
        let request = self.http.post(self.url(&format!("/vms/{vm}/sessions")));
        let request = request.header(CONNECTION, "upgrade").header(UPGRADE, session::PROTOCOL).json(open);
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, request.send()).await;
        let response = answer.context("the agent does not answer")?.context("the agent does not answer")?;
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            match response.json::<Problem>().await {
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
