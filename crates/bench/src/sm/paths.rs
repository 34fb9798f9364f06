//! Throughput of path queries at the SA.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use fabric_model::NodeIndex;
use ib_transport::ClientRole;
use ib_transport::ibsim::{DataMessage, DataStatus, IbsimClient};
use ib_wire::sa::PathRecord;
use ib_wire::{
    Attribute, Gid, Guid, Lid, LidAddress, Mad, ManagementClass, Method, PortInfo, QueuePair, Status,
    TransactionId,
};
use serde::Serialize;

use super::Arena;
use super::manager::ManagerProcess;
use bench::probe::{Probe, SmpRead};

/// Hosts that query at the same time: ibsim serves ten clients, the manager and a witness among them.
const ASKING: usize = 6;

/// Queries that each host keeps in flight.
const OUTSTANDING: usize = 16;

/// Longest time without an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The default subnet prefix of GIDs.
const PREFIX: u64 = 0xfe80_0000_0000_0000;

/// Path queries between pairs of hosts.
#[derive(Debug, Serialize)]
pub struct PathQueries {
    pub per_s: f64,
    /// CPU time of the manager per query.
    pub cpu_us: f64,
    pub answered: u64,
}

/// The client of one host, and its addresses.
struct Asker {
    client: IbsimClient,
    own: Guid,
    lid: Lid,
    manager: Lid,
}

/// Lets hosts query paths to many others.
pub fn query(arena: &Arena, manager: &ManagerProcess, seconds: u64) -> anyhow::Result<PathQueries> {
    let hosts: Vec<(NodeIndex, Guid)> = arena
        .topology
        .end_nodes()
        .filter_map(|(index, node)| {
            let (number, _) = node.cabled_ports().next()?;
            Some((index, node.port(number)?.guid))
        })
        .collect();
    let peers: Vec<Guid> = hosts.iter().map(|(_, guid)| *guid).collect();
    let stride = (hosts.len() / (ASKING + 1)).max(1);
    let askers = hosts.iter().skip(1).step_by(stride).take(ASKING);
    let askers =
        askers.map(|(index, guid)| asker(arena, *index, *guid)).collect::<anyhow::Result<Vec<_>>>()?;
    let start = Barrier::new(askers.len() + 1);
    let limit = Duration::from_secs(seconds);
    let (answered, elapsed, cpu) = std::thread::scope(|scope| -> anyhow::Result<_> {
        let running: Vec<_> = askers
            .into_iter()
            .enumerate()
            .map(|(number, asker)| {
                let (start, peers) = (&start, &peers);
                scope.spawn(move || {
                    start.wait();
                    drive(asker, peers, number, limit)
                })
            })
            .collect();
        let before = manager.cpu()?;
        start.wait();
        let started = Instant::now();
        let mut answered = 0;
        for thread in running {
            answered += thread.join().map_err(|_| anyhow!("a query thread panicked"))??;
        }
        Ok((answered, started.elapsed(), manager.cpu()? - before))
    })?;
    Ok(PathQueries {
        per_s: answered as f64 / elapsed.as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / answered as f64,
        answered,
    })
}

fn asker(arena: &Arena, index: NodeIndex, own: Guid) -> anyhow::Result<Asker> {
    let node = arena.topology.node(index).context("no such node")?;
    let mut probe = Probe::attach(&arena.socket, index, arena.topology)?;
    let here = SmpRead { route: Default::default(), attribute: Attribute::PORT_INFO, modifier: 0 };
    let answers = probe.read(&[here])?;
    let info = answers.first().and_then(|raw| PortInfo::decode(raw).ok()).context("no PortInfo")?;
    Ok(Asker {
        client: IbsimClient::connect(&arena.socket, &node.id, ClientRole::Ordinary)?,
        own,
        lid: info.lid.context("a host without a LID")?,
        manager: info.master_sm_lid.context("a host without a manager")?,
    })
}

/// Queries paths to changing peers until the time is over; returns how many queries were answered with a path.
fn drive(mut asker: Asker, peers: &[Guid], seed: usize, limit: Duration) -> anyhow::Result<u64> {
    let started = Instant::now();
    let (mut sent, mut answered) = (0usize, 0usize);
    let (mut batch, mut answers) = (Vec::new(), Vec::new());
    loop {
        let is_over = started.elapsed() > limit;
        batch.clear();
        while !is_over && sent - answered < OUTSTANDING {
            let peer = peers[(seed * 1009 + sent * 7919) % peers.len()];
            batch.push(read(&asker, peer, sent)?);
            sent += 1;
        }
        if sent == answered {
            return Ok(answered as u64);
        }
        asker.client.send_batch(&batch)?;
        answers.clear();
        let count = asker.client.receive_batch(&mut answers, ANSWER_TIMEOUT)?;
        ensure!(count > 0, "no answer for {ANSWER_TIMEOUT:?}, after {answered}");
        for answer in &answers {
            ensure!(answer.status == DataStatus::Ok, "a query was lost after {answered} answers");
            let status = answer.mad.status();
            ensure!(status == Status::OK, "a query was answered with {status:?}");
        }
        answered += count;
    }
}

fn read(asker: &Asker, peer: Guid, number: usize) -> anyhow::Result<DataMessage> {
    let mut mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET, Attribute::PATH_RECORD, 0);
    mad.set_transaction(TransactionId((number as u32).into()));
    let mut record = PathRecord::decode(&[0; 64]).context("an empty record")?;
    record.sgid = Gid::unicast(PREFIX, asker.own);
    record.dgid = Gid::unicast(PREFIX, peer);
    (record.is_reversible, record.path_count) = (true, 1);
    let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::IS_REVERSIBLE | PathRecord::PATH_COUNT;
    mad.set_component_mask(mask);
    mad.sa_data_mut()[..64].copy_from_slice(&record.encode());
    Ok(DataMessage {
        dlid: Some(LidAddress::from(asker.manager)),
        slid: Some(LidAddress::from(asker.lid)),
        dqp: QueuePair::GENERAL_MANAGEMENT,
        sqp: QueuePair::GENERAL_MANAGEMENT,
        status: DataStatus::Ok,
        mad,
    })
}
