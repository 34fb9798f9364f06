//! A view beside another that is flooded.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ib_transport::ClientRole;
use ib_transport::ibsim::{DataMessage, DataStatus, IbsimClient, SocketName};
use ib_wire::{Attribute, DirectedRoute, LidAddress, Mad, Method, QueuePair, TransactionId};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;

use super::idle::NODES;
use super::start_views;
use bench::Programs;

/// Datagrams that a flood sends at a time.
const BATCH: usize = 32;

/// Datagrams that a flood sends again and again; half of them garbage.
const DIFFERENT: usize = 1024;

/// Longest time to wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Latency of a Get with and without a flood.
#[derive(Clone, Debug, Serialize)]
pub struct Flood {
    /// Without a flood, as the baseline.
    pub quiet: ReadLatency,
    /// With a flood to another process: the effect of machine load alone.
    pub elsewhere: ReadLatency,
    /// With a flood to another view of the same process.
    pub beside: ReadLatency,
}

/// Latency of Gets sent one after the other.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ReadLatency {
    pub gets: usize,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    /// Datagrams of the flood per second.
    pub flood_per_s: f64,
}

/// Measures Gets in one view without a flood, with one to another process, and with one to another view of the process.
pub fn measure(programs: &Programs, watch_s: f64) -> anyhow::Result<Flood> {
    let (_server, name) = start_views(programs, "flood", NODES, 2)?;
    let (_other, elsewhere) = start_views(programs, "elsewhere", NODES, 1)?;
    let watch = Duration::from_secs_f64(watch_s);
    Ok(Flood {
        quiet: beside(&name, None, watch)?,
        elsewhere: beside(&name, Some(&elsewhere), watch)?,
        beside: beside(&name, Some(&name), watch)?,
    })
}

/// Sends Gets to the second view of a process while the first view of a process is flooded.
fn beside(name: &SocketName, flooded: Option<&SocketName>, watch: Duration) -> anyhow::Result<ReadLatency> {
    eprintln!("Gets while {} is flooded", flooded.map_or("nothing", SocketName::as_str));
    let mut client = IbsimClient::connect(name, "1/", ClientRole::Ordinary)?;
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let flooding = flooded.map(|flooded| scope.spawn(|| flood(flooded, &stop, &sent)));
        let asked = ask(&mut client, watch);
        stop.store(true, Ordering::Relaxed);
        if let Some(flooding) = flooding {
            flooding.join().ok().context("the flood thread panicked")??;
        }
        let mut latencies = asked?;
        ensure!(!latencies.is_empty(), "no Get was sent");
        latencies.sort_unstable();
        let part = |part: f64| {
            let place = ((latencies.len() as f64 * part).ceil() as usize).clamp(1, latencies.len()) - 1;
            latencies[place].as_secs_f64() * 1e6
        };
        Ok(ReadLatency {
            gets: latencies.len(),
            p50_us: part(0.5),
            p99_us: part(0.99),
            max_us: part(1.0),
            flood_per_s: sent.load(Ordering::Relaxed) as f64 / watch.as_secs_f64(),
        })
    })
}

/// Sends Gets one after the other for a time; returns the latency of each.
fn ask(client: &mut IbsimClient, watch: Duration) -> anyhow::Result<Vec<Duration>> {
    let started = Instant::now();
    let mut latencies = Vec::new();
    while started.elapsed() < watch {
        let number = TransactionId(latencies.len() as u64 & u64::from(u32::MAX));
        let asked = Instant::now();
        client.send(&get(number))?;
        let answer = client.receive(ANSWER_TIMEOUT)?.context("a Get was not answered")?;
        latencies.push(asked.elapsed());
        ensure!(answer.status == DataStatus::Ok, "a Get was lost");
        // A pause, as tools make one, so that the rate limit of the view is not what is measured.
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(latencies)
}

/// Sends garbage and Gets as fast as they are accepted, and reads the answers.
fn flood(name: &SocketName, stop: &AtomicBool, sent: &AtomicU64) -> anyhow::Result<()> {
    let mut client = IbsimClient::connect(name, "0/", ClientRole::Ordinary)?;
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let datagrams: Vec<DataMessage> = (0..DIFFERENT)
        .map(|number| {
            let mut message = get(TransactionId(number as u64));
            if number % 2 == 1 {
                message.mad = Mad(std::array::from_fn(|_| rng.random()));
            }
            message
        })
        .collect();
    let mut answers = Vec::new();
    for batch in datagrams.chunks(BATCH).cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        client.send_batch(batch)?;
        sent.fetch_add(batch.len() as u64, Ordering::Relaxed);
        while client.receive_batch(&mut answers, Duration::ZERO)? > 0 {
            answers.clear();
        }
    }
    Ok(())
}

/// Get(NodeInfo) of the adapter itself.
fn get(number: TransactionId) -> DataMessage {
    let mut mad = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &DirectedRoute::default());
    mad.set_transaction(number);
    DataMessage {
        dlid: Some(LidAddress::Permissive),
        slid: Some(LidAddress::Permissive),
        dqp: QueuePair::SUBNET_MANAGEMENT,
        sqp: QueuePair::SUBNET_MANAGEMENT,
        status: DataStatus::Ok,
        mad,
    }
}
