//! The link model on the command line and on the control socket.

use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use control_protocol::sim::LinkModelStatus;
use fabric_model::tenancy::Nanoseconds;
use fabric_sim::{Fabric, LINK_LATENCY_MAX, LinkModel, ModelledRate};

/// Rate and latency of links for what virtual machines send.
#[derive(Clone, Copy, Debug, Args)]
pub struct LinkModelArgs {
    /// Give links a rate for what virtual machines send, and serve them by their arbitration tables: a rate of every link such
    /// as 20M, or a part of the rate of each link such as 1/2000 [default: everything arrives at once]
    #[arg(long, value_name = "RATE")]
    link_rate: Option<ModelledRate>,
    /// Give links a latency as well, such as 50us, up to 1000ms
    #[arg(long, value_name = "TIME", requires = "link_rate")]
    link_latency: Option<Nanoseconds>,
}

impl LinkModelArgs {
    /// The model, if the options ask for one.
    pub fn model(self) -> anyhow::Result<Option<LinkModel>> {
        let latency_ns = self.link_latency.map_or(0, Nanoseconds::ns);
        self.link_rate.map(|rate| model(rate, latency_ns)).transpose()
    }

    /// The options, for another program of Heddle.
    pub fn arguments(self) -> Vec<String> {
        let rate = self.link_rate.map(|rate| ["--link-rate".to_owned(), rate.to_string()]);
        let latency =
            self.link_latency.map(|latency| ["--link-latency".to_owned(), format!("{}ns", latency.ns())]);
        rate.into_iter().chain(latency).flatten().collect()
    }
}

/// A link model with these values.
pub fn model(rate: ModelledRate, latency_ns: u64) -> anyhow::Result<LinkModel> {
    let latency = Duration::from_nanos(latency_ns);
    ensure!(
        latency <= LINK_LATENCY_MAX,
        "the latency of links must be at most {} ms, got {} ms",
        LINK_LATENCY_MAX.as_millis(),
        latency.as_millis()
    );
    Ok(LinkModel { rate, latency })
}

/// Changes the model of a running emulation.
pub fn set(fabric: &mut Fabric, now: Duration, rate: &str, latency_ns: u64) -> anyhow::Result<()> {
    let rate = rate.parse().context("cannot set the rate of links")?;
    fabric.set_link_model(now, Some(model(rate, latency_ns)?));
    Ok(())
}

/// The model of a running emulation, and what waits.
pub fn status(fabric: &Fabric) -> LinkModelStatus {
    let (model, load) = (fabric.link_model(), fabric.link_load());
    LinkModelStatus {
        rate: model.map(|model| model.rate.to_string()),
        latency_ns: model.map_or(0, |model| model.latency.as_nanos() as u64),
        packets: load.packets,
        waiting_bytes: load.waiting_bytes,
        congested_functions: load.congested_functions,
    }
}
