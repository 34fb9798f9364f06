//! Throughput of subnet administration: path queries, and joins of multicast groups.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use fabric_model::NodeIndex;
use ib_transport::ClientRole;
use ib_transport::ibsim::{DataMessage, DataStatus, IbsimClient};
use ib_wire::sa::{JoinState, McMemberRecord, PathRecord};
use ib_wire::{
    Attribute, Gid, Guid, Lid, LidAddress, Mad, ManagementClass, Method, Pkey, PortInfo, QKey, QueuePair,
    Status, TransactionId,
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

/// Multicast groups that each host joins and leaves in turn.
const GROUPS: usize = 64;

/// What hosts request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requested {
    /// Paths to changing peers.
    Paths,
    /// To join a group that nobody else is in, and to leave it.
    Joins,
}

/// Requests of several hosts to subnet administration.
#[derive(Debug, Serialize)]
pub struct SaRequests {
    pub per_s: f64,
    /// CPU time of the manager per request.
    pub cpu_us: f64,
    /// The part of it outside the kernel, whose part is receiving and sending datagrams.
    pub user_us: f64,
    pub answered: u64,
}

/// The client of one host, and its addresses.
struct Asker {
    client: IbsimClient,
    own: Guid,
    lid: Lid,
    manager: Lid,
}

/// Lets hosts send requests for some seconds.
pub fn request(
    arena: &Arena,
    manager: &ManagerProcess,
    requested: Requested,
    seconds: u64,
) -> anyhow::Result<SaRequests> {
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
    let (answered, elapsed, cpu, user) = std::thread::scope(|scope| -> anyhow::Result<_> {
        let running: Vec<_> = askers
            .into_iter()
            .enumerate()
            .map(|(number, asker)| {
                let (start, peers) = (&start, &peers);
                scope.spawn(move || {
                    start.wait();
                    drive(asker, requested, peers, number, limit)
                })
            })
            .collect();
        let (before, user_before) = (manager.cpu()?, manager.user_cpu()?);
        start.wait();
        let started = Instant::now();
        let mut answered = 0;
        for thread in running {
            answered += thread.join().map_err(|_| anyhow!("a query thread panicked"))??;
        }
        let elapsed = started.elapsed();
        Ok((answered, elapsed, manager.cpu()? - before, manager.user_cpu()? - user_before))
    })?;
    let each_us = |time: Duration| time.as_secs_f64() * 1e6 / answered as f64;
    Ok(SaRequests {
        per_s: answered as f64 / elapsed.as_secs_f64(),
        cpu_us: each_us(cpu),
        user_us: each_us(user),
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

/// Sends requests until the time is over; returns how many were granted.
fn drive(
    mut asker: Asker,
    requested: Requested,
    peers: &[Guid],
    seed: usize,
    limit: Duration,
) -> anyhow::Result<u64> {
    let started = Instant::now();
    let (mut sent, mut answered) = (0usize, 0usize);
    let (mut batch, mut answers) = (Vec::new(), Vec::new());
    loop {
        let is_over = started.elapsed() > limit;
        batch.clear();
        while !is_over && sent - answered < OUTSTANDING {
            let mad = match requested {
                Requested::Paths => path(&asker, peers[(seed * 1009 + sent * 7919) % peers.len()])?,
                Requested::Joins => membership(&asker, sent)?,
            };
            batch.push(message(&asker, mad, sent));
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
            ensure!(answer.status == DataStatus::Ok, "a request was lost after {answered} answers");
            let status = answer.mad.status();
            ensure!(status == Status::OK, "a request was answered with {status:?}");
        }
        answered += count;
    }
}

fn path(asker: &Asker, peer: Guid) -> anyhow::Result<Mad> {
    let mut mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET, Attribute::PATH_RECORD, 0);
    let mut record = PathRecord::decode(&[0; 64]).context("an empty record")?;
    record.sgid = Gid::unicast(Gid::DEFAULT_PREFIX, asker.own);
    record.dgid = Gid::unicast(Gid::DEFAULT_PREFIX, peer);
    (record.is_reversible, record.path_count) = (true, 1);
    let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::IS_REVERSIBLE | PathRecord::PATH_COUNT;
    mad.set_component_mask(mask);
    mad.sa_data_mut()[..64].copy_from_slice(&record.encode());
    Ok(mad)
}

/// The request with a number: to join an IPv4 group of this host, or to leave it.
fn membership(asker: &Asker, number: usize) -> anyhow::Result<Mad> {
    type M = McMemberRecord;
    let method = if number.is_multiple_of(2) { Method::SET } else { Method::DELETE };
    let mut mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, method, Attribute::MC_MEMBER_RECORD, 0);
    let mut mgid = [0; 16];
    mgid[..6].copy_from_slice(&[0xff, 0x12, 0x40, 0x1b, 0xff, 0xfe]);
    mgid[12..14].copy_from_slice(&asker.lid.to_wire().to_be_bytes());
    mgid[14..].copy_from_slice(&u16::try_from(number / 2 % GROUPS)?.to_be_bytes());
    let mut record = M::decode(&[0; M::LEN]).context("an empty record")?;
    record.mgid = Gid(mgid);
    record.port_gid = Gid::unicast(Gid::DEFAULT_PREFIX, asker.own);
    record.join_state = JoinState::FULL;
    record.pkey = Pkey::from_wire(0xfffe);
    record.qkey = QKey::from_wire(0x0b1b);
    let leave = M::MGID | M::PORT_GID | M::JOIN_STATE;
    let join = leave | M::PKEY | M::QKEY | M::SL | M::TRAFFIC_CLASS | M::FLOW_LABEL;
    mad.set_component_mask(if method == Method::SET { join } else { leave });
    mad.sa_data_mut()[..M::LEN].copy_from_slice(&record.encode());
    Ok(mad)
}

fn message(asker: &Asker, mut mad: Mad, number: usize) -> DataMessage {
    mad.set_transaction(TransactionId((number as u32).into()));
    DataMessage {
        dlid: Some(LidAddress::from(asker.manager)),
        slid: Some(LidAddress::from(asker.lid)),
        dqp: QueuePair::GENERAL_MANAGEMENT,
        sqp: QueuePair::GENERAL_MANAGEMENT,
        status: DataStatus::Ok,
        mad,
    }
}
