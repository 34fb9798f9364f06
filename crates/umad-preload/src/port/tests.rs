use ib_wire::rmpp::{RmppHeader, RmppStatus};
use ib_wire::{Attribute, Method};
use proptest::prelude::*;

use super::*;

const FILE: FileId = FileId(1);
const HEADER: usize = 64;
const TOOL_LID: u16 = 1;
const MANAGER_LID: u16 = 2;

/// Methods of the requests that a subnet administration receives.
const SA_METHODS: u128 = 1 << 1 | 1 << 2 | 1 << 0x12 | 1 << 0x14 | 1 << 0x15;

fn sa(methods: u128, rmpp: RmppHandling) -> Registration {
    Registration {
        queue_pair: 1,
        class: Some(ManagementClass::SUBNET_ADMINISTRATION),
        class_version: 2,
        methods,
        oui: [0; 3],
        rmpp,
    }
}

/// A port with one open file, one agent of subnet administration and P_Key headers.
fn port(methods: u128, rmpp: RmppHandling) -> UmadPort {
    let mut port = UmadPort::default();
    port.open_file(FILE).unwrap();
    port.enable_pkey(FILE).unwrap();
    assert_eq!(port.register(FILE, sa(methods, rmpp)), Ok(0));
    port
}

fn tool() -> UmadPort {
    port(0, RmppHandling::Library)
}

fn manager() -> UmadPort {
    port(SA_METHODS, RmppHandling::Library)
}

fn query(transaction: u32) -> Mad {
    let mut mad =
        Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET_TABLE, Attribute::NODE_RECORD, 0);
    mad.set_transaction(TransactionId(transaction.into()));
    mad
}

/// What a program writes: a header for `lid`, and the message.
fn message(lid: u16, timeout_ms: u32, retries: u32, data: &[u8]) -> Vec<u8> {
    let header = UmadHeader { timeout_ms, retries, queue_pair: 1, lid, ..UmadHeader::default() };
    let mut raw = header.encode(HeaderLayout::WithPkeyIndex, data.len());
    raw.extend(data);
    raw
}

/// A response with `data` after the headers, as a subnet administration writes it.
fn response_to(request: &[u8], data: &[u8]) -> Vec<u8> {
    let mut mad = Mad(request[..MAD_LEN].try_into().unwrap());
    mad.set_method(Method::GET_TABLE_RESP);
    mad.0[26] = 1;
    let mut raw = mad.0[..SA_HEADER_LEN].to_vec();
    raw.extend(data);
    raw
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn read(port: &mut UmadPort) -> Result<(UmadHeader, Vec<u8>), Errno> {
    let mut buffer = vec![0; 1 << 20];
    let length = port.read(FILE, &mut buffer)?;
    let header = UmadHeader::decode(HeaderLayout::WithPkeyIndex, &buffer).unwrap();
    Ok((header, buffer[HEADER..length].to_vec()))
}

/// Two ports and the server between them, which may lose, repeat and delay datagrams.
struct Network {
    tool: UmadPort,
    manager: UmadPort,
    now: Duration,
    /// Datagrams under way, with their time of arrival and whether the tool receives them.
    under_way: Vec<(Duration, bool, Datagram)>,
    /// One number per datagram: 0 to 9 loses it, 10 to 19 repeats it, 20 to 39 delays it.
    faults: Vec<u8>,
    sent: usize,
}

impl Network {
    fn new(faults: Vec<u8>) -> Self {
        let (tool, manager) = (tool(), manager());
        Self { tool, manager, now: ms(0), under_way: Vec::new(), faults, sent: 0 }
    }

    fn send(&mut self, from_tool: bool, mut datagram: Datagram) {
        let (slid, client) = if from_tool { (TOOL_LID, 7) } else { (MANAGER_LID, 9) };
        datagram.slid = LidAddress::from_wire(slid).unwrap();
        if !datagram.mad.method().is_response() {
            let transaction = datagram.mad.transaction().0 & OWN_TRANSACTION_BITS;
            datagram.mad.set_transaction(TransactionId(transaction | client << 48));
        }
        let to_tool = datagram.dlid.to_wire() == TOOL_LID;
        let fault = self.faults.get(self.sent).copied().unwrap_or(255);
        self.sent += 1;
        let arrival = self.now + ms(1);
        match fault {
            0..=9 => return,
            10..=19 => self.under_way.push((arrival + ms(3), to_tool, datagram.clone())),
            20..=39 => return self.under_way.push((arrival + ms(u64::from(fault)), to_tool, datagram)),
            _ => {}
        }
        self.under_way.push((arrival, to_tool, datagram));
    }

    /// Lets `time` pass. The manager answers every request with `answer`.
    fn run(&mut self, time: Duration, answer: &[u8]) {
        let end = self.now + time;
        loop {
            while let Some(datagram) = self.tool.poll_transmit(self.now) {
                self.send(true, datagram);
            }
            while let Some(datagram) = self.manager.poll_transmit(self.now) {
                self.send(false, datagram);
            }
            let arrivals = self.under_way.iter().map(|(arrival, ..)| *arrival);
            let timeouts = [self.tool.poll_timeout(), self.manager.poll_timeout()];
            let next = arrivals.chain(timeouts.into_iter().flatten()).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            let now = self.now;
            for (_, to_tool, datagram) in self.under_way.extract_if(.., |(arrival, ..)| *arrival <= now) {
                if to_tool {
                    self.tool.handle(now, datagram);
                } else {
                    self.manager.handle(now, datagram);
                }
            }
            self.tool.handle_timeout(now);
            self.manager.handle_timeout(now);
            while let Ok((header, request)) = read(&mut self.manager) {
                if header.status == 0 {
                    // A repeated request is rejected while its response is being sent.
                    let response = message(header.lid, 0, 3, &response_to(&request, answer));
                    let _ = self.manager.write(now, FILE, &response);
                }
            }
        }
        self.now = end;
    }
}

fn table(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 256) as u8).collect()
}

#[test]
fn a_response_has_the_agent_and_the_programs_transaction() {
    let mut network = Network::new(Vec::new());
    network.tool.write(ms(0), FILE, &message(MANAGER_LID, 1000, 3, &query(0xabcd).0)).unwrap();
    network.run(ms(10), &table(150));
    let (header, data) = read(&mut network.tool).unwrap();
    assert_eq!((header.agent, header.status, header.lid), (0, 0, MANAGER_LID));
    assert_eq!(u64::from_be_bytes(data[8..16].try_into().unwrap()), 1 << 32 | 0xabcd);
    assert_eq!(data[SA_HEADER_LEN..], table(150));
    assert_eq!(network.tool.read(FILE, &mut [0; 400]), Err(Errno::AGAIN));
    assert!(!network.tool.is_readable(FILE));
}

#[test]
fn datagrams_without_rmpp_are_delivered_whole() {
    let mut tool = tool();
    let mut request = query(5);
    request.set_method(Method::GET);
    tool.write(ms(0), FILE, &message(MANAGER_LID, 1000, 0, &request.0)).unwrap();
    let mut response = tool.poll_transmit(ms(0)).unwrap();
    response.mad.set_method(Method::GET_RESP);
    response.mad.0[56..].copy_from_slice(&table(200));
    tool.handle(ms(1), response);
    let (_, data) = read(&mut tool).unwrap();
    assert_eq!((data.len(), &data[56..]), (MAD_LEN, &table(200)[..]));
}

#[test]
fn a_long_response_is_put_together() {
    for length in [0, 1, 199, 200, 201, 399, 400, 401, 100_000] {
        let mut network = Network::new(Vec::new());
        network.tool.write(ms(0), FILE, &message(MANAGER_LID, 1000, 3, &query(1).0)).unwrap();
        network.run(ms(3000), &table(length));
        let (_, data) = read(&mut network.tool).unwrap();
        assert!(data[SA_HEADER_LEN..] == table(length), "{length}");
    }
}

#[test]
fn a_long_request_gets_its_response() {
    let mut network = Network::new(Vec::new());
    let mut request = query(1);
    request.set_method(Method(0x14));
    request.0[26] = 1;
    let mut raw = request.0[..SA_HEADER_LEN].to_vec();
    raw.extend(table(3000));
    network.tool.write(ms(0), FILE, &message(MANAGER_LID, 1000, 3, &raw)).unwrap();
    network.run(ms(100), &table(500));
    let (header, data) = read(&mut network.tool).unwrap();
    assert_eq!((header.status, &data[SA_HEADER_LEN..]), (0, &table(500)[..]));
}

#[test]
fn a_program_that_is_started_again_may_use_the_same_transactions() {
    let mut network = Network::new(Vec::new());
    let mut request = query(1);
    request.set_method(Method(0x14));
    request.0[26] = 1;
    for last_agent in [100, 200] {
        network.tool = UmadPort::new(last_agent);
        network.tool.open_file(FILE).unwrap();
        network.tool.enable_pkey(FILE).unwrap();
        network.tool.register(FILE, sa(0, RmppHandling::Library)).unwrap();
        network.tool.write(network.now, FILE, &message(MANAGER_LID, 1000, 3, &request.0)).unwrap();
        network.run(ms(100), &table(500));
        assert_eq!(read(&mut network.tool).unwrap().0.status, 0, "{last_agent}");
    }
}

#[test]
fn a_short_buffer_gets_the_first_segment_and_the_length() {
    let mut network = Network::new(Vec::new());
    network.tool.write(ms(0), FILE, &message(MANAGER_LID, 1000, 3, &query(1).0)).unwrap();
    network.run(ms(100), &table(1000));
    let mut short = [0; HEADER + MAD_LEN];
    assert_eq!(network.tool.read(FILE, &mut short[..HEADER + 200]), Err(Errno::INVALID));
    assert_eq!(network.tool.read(FILE, &mut short), Err(Errno::NO_SPACE));
    let length = (HEADER + SA_HEADER_LEN + 1000) as u32;
    assert_eq!(short[16..20], length.to_ne_bytes());
    assert_eq!(short[HEADER + SA_HEADER_LEN..], table(1000)[..200]);
    assert!(network.tool.is_readable(FILE));
    assert_eq!(read(&mut network.tool).unwrap().1.len(), SA_HEADER_LEN + 1000);
}

#[test]
fn an_unanswered_request_is_repeated_and_returned() {
    let mut tool = tool();
    tool.write(ms(0), FILE, &message(MANAGER_LID, 100, 2, &query(0xbeef).0)).unwrap();
    let mut sent = 0;
    for now in [0, 99, 100, 200, 299, 300, 1000].map(ms) {
        tool.handle_timeout(now);
        while tool.poll_transmit(now).is_some() {
            sent += 1;
        }
        assert_eq!(tool.is_readable(FILE), now >= ms(300));
    }
    assert_eq!(sent, 3);
    let (header, data) = read(&mut tool).unwrap();
    assert_eq!((header.status, header.lid, data.len()), (TIMED_OUT, MANAGER_LID, 24));
    assert_eq!(data[12..16], 0xbeef_u32.to_be_bytes());
    assert_eq!(tool.poll_timeout(), None);
}

#[test]
fn a_loss_report_ends_an_attempt_at_once() {
    let mut tool = tool();
    tool.write(ms(0), FILE, &message(MANAGER_LID, 1000, 1, &query(3).0)).unwrap();
    let transaction = tool.poll_transmit(ms(0)).unwrap().mad.transaction();
    // The server has written the number of the client into the transaction.
    let reported = TransactionId(transaction.0 | 7 << 48);
    tool.handle_lost(ms(1), reported);
    assert_eq!(tool.poll_transmit(ms(1)).unwrap().mad.transaction(), transaction);
    assert!(!tool.is_readable(FILE));
    tool.handle_lost(ms(2), reported);
    assert_eq!(read(&mut tool).unwrap().0.status, TIMED_OUT);
    tool.handle_lost(ms(3), reported);
    assert!(!tool.is_readable(FILE));
}

#[test]
fn a_datagram_without_receiver_is_dropped() {
    let mut manager = manager();
    let lid = LidAddress::from_wire(TOOL_LID).unwrap();
    let foreign = |class, method| {
        Datagram::general_management(lid, lid, Pkey::DEFAULT_FULL, Mad::new(class, method, Attribute(1), 0))
    };
    // The class of ibping, a method that is not registered, and a response that nobody waits for.
    manager.handle(ms(0), foreign(ManagementClass(0x32), Method::GET));
    manager.handle(ms(0), foreign(ManagementClass::SUBNET_ADMINISTRATION, Method::TRAP));
    manager.handle(ms(0), foreign(ManagementClass::SUBNET_ADMINISTRATION, Method::GET_RESP));
    assert!(!manager.is_readable(FILE));
    manager.handle(ms(0), foreign(ManagementClass::SUBNET_ADMINISTRATION, Method::GET));
    assert!(manager.is_readable(FILE));
}

#[test]
fn a_program_with_its_own_rmpp_gets_every_segment() {
    let mut network = Network::new(Vec::new());
    network.tool = port(0, RmppHandling::Program);
    network.tool.write(ms(0), FILE, &message(MANAGER_LID, 1000, 0, &query(1).0)).unwrap();
    network.run(ms(10), &table(1000));
    let (_, first) = read(&mut network.tool).unwrap();
    let first = Mad(first.try_into().unwrap());
    assert_eq!((first.rmpp().segment, first.rmpp().kind), (1, RmppKind::Data));
    let mut ack = first.clone();
    ack.set_method(Method::GET_TABLE);
    let header = RmppHeader { kind: RmppKind::Ack, flags: RmppFlags::ACTIVE, ..first.rmpp() };
    ack.set_rmpp(&RmppHeader { segment: 1, length_or_window: 3, ..header });
    network.tool.write(network.now, FILE, &message(MANAGER_LID, 0, 0, &ack.0)).unwrap();
    network.run(ms(10), &table(1000));
    let numbers = [read(&mut network.tool), read(&mut network.tool)].map(|read| {
        let raw: [u8; MAD_LEN] = read.unwrap().1.try_into().unwrap();
        Mad(raw).rmpp().segment
    });
    assert_eq!(numbers, [2, 3]);
}

#[test]
fn an_abort_of_the_receiver_ends_a_transfer() {
    let mut network = Network::new(Vec::new());
    network.tool = port(0, RmppHandling::Program);
    network.tool.write(ms(0), FILE, &message(MANAGER_LID, 1000, 0, &query(1).0)).unwrap();
    network.run(ms(10), &table(1000));
    let mut abort = Mad(read(&mut network.tool).unwrap().1.try_into().unwrap());
    abort.set_method(Method::GET_TABLE);
    abort.set_rmpp(&RmppHeader { kind: RmppKind::Abort, status: RmppStatus::Unspecified, ..abort.rmpp() });
    network.tool.write(network.now, FILE, &message(MANAGER_LID, 0, 0, &abort.0)).unwrap();
    network.run(ms(60_000), &table(1000));
    assert!(!network.manager.is_readable(FILE) && !network.tool.is_readable(FILE));
    assert_eq!(network.manager.poll_timeout(), None);
}

#[test]
fn a_response_that_is_never_acknowledged_is_returned() {
    let mut manager = manager();
    let request = query(9);
    let response = message(TOOL_LID, 0, 3, &response_to(&request.0, &table(1000)));
    manager.write(ms(0), FILE, &response).unwrap();
    assert_eq!(manager.write(ms(0), FILE, &response), Err(Errno::INVALID), "it is under way");
    let mut now = ms(0);
    while let Some(next) = manager.poll_timeout() {
        now = next;
        manager.handle_timeout(now);
        while manager.poll_transmit(now).is_some() {}
    }
    assert!(now >= ms(8000) && now < ms(20_000), "{now:?}");
    assert_eq!(read(&mut manager).unwrap().0.status, TIMED_OUT);
}

#[test]
fn writes_are_checked_as_in_the_kernel() {
    let mut tool = tool();
    let good = message(MANAGER_LID, 1000, 3, &query(1).0);
    assert_eq!(tool.write(ms(0), FILE, &good[..HEADER + 35]), Err(Errno::INVALID));
    assert_eq!(tool.write(ms(0), FILE, &message(MANAGER_LID, 0, 0, &[1; 257])), Err(Errno::INVALID));
    let mut unknown = good.clone();
    unknown[0] = 1;
    assert_eq!(tool.write(ms(0), FILE, &unknown), Err(Errno::IO));
    unknown[0] = 32;
    assert_eq!(tool.write(ms(0), FILE, &unknown), Err(Errno::INVALID));
    assert_eq!(tool.write(ms(0), FileId(9), &good), Err(Errno::BAD_DESCRIPTOR));
    tool.write(ms(0), FILE, &good).unwrap();
    assert_eq!(tool.write(ms(0), FILE, &good), Err(Errno::INVALID), "its transaction is under way");
}

#[test]
fn registrations_are_limited_and_exclusive() {
    let mut port = manager();
    assert_eq!(port.enable_pkey(FILE), Err(Errno::INVALID), "the file is in use");
    assert_eq!(port.register(FILE, sa(1 << 1, RmppHandling::Library)), Err(Errno::INVALID));
    for slot in 1..AGENTS_MAX as u32 {
        assert_eq!(port.register(FILE, sa(0, RmppHandling::Library)), Ok(slot));
    }
    assert_eq!(port.register(FILE, sa(0, RmppHandling::Library)), Err(Errno::NO_MEMORY));
    assert_eq!(port.unregister(FILE, 5), Ok(()));
    assert_eq!(port.unregister(FILE, 5), Err(Errno::INVALID));
    assert_eq!(port.register(FILE, sa(0, RmppHandling::Library)), Ok(5));
}

#[test]
fn a_closed_file_leaves_nothing_behind() {
    let mut network = Network::new(Vec::new());
    network.tool.write(ms(0), FILE, &message(MANAGER_LID, 1000, 3, &query(1).0)).unwrap();
    network.run(ms(2), &table(5000));
    network.tool.close_file(FILE);
    network.manager.close_file(FILE);
    assert_eq!((network.tool.poll_timeout(), network.manager.poll_timeout()), (None, None));
    assert_eq!(network.tool.read(FILE, &mut [0; 400]), Err(Errno::BAD_DESCRIPTOR));
}

#[test]
fn unfinished_transfers_of_a_hostile_peer_are_bounded() {
    let mut manager = manager();
    let lid = |raw| LidAddress::from_wire(raw).unwrap();
    for transaction in 0..10_000 {
        let mut segment = query(transaction);
        segment.set_method(Method(0x14));
        let header = RmppHeader { version: 1, kind: RmppKind::Data, segment: 1, ..segment.rmpp() };
        segment.set_rmpp(&RmppHeader { flags: RmppFlags::ACTIVE.with(RmppFlags::FIRST), ..header });
        let datagram = Datagram::general_management(lid(1), lid(2), Pkey::DEFAULT_FULL, segment);
        manager.handle(ms(transaction.into()), datagram);
    }
    let mut answers = 0;
    while manager.poll_transmit(ms(10_000)).is_some() {
        answers += 1;
    }
    assert_eq!(answers, 256);
    manager.handle_timeout(ms(60_000));
    assert_eq!(manager.poll_timeout(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever the network does, a program reads exactly what was sent or that there was no response, and nothing stays.
    #[test]
    fn faults_do_not_change_a_message(
        length in 0_usize..40_000,
        faults in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut network = Network::new(faults);
        network.tool.write(ms(0), FILE, &message(MANAGER_LID, 5000, 3, &query(1).0)).unwrap();
        network.run(ms(120_000), &table(length));
        let (header, data) = read(&mut network.tool).unwrap();
        if header.status == 0 {
            prop_assert!(data[SA_HEADER_LEN..] == table(length));
        } else {
            prop_assert_eq!(header.status, TIMED_OUT);
        }
        prop_assert!(!network.tool.is_readable(FILE), "one answer per request");
        prop_assert_eq!((network.tool.poll_timeout(), network.manager.poll_timeout()), (None, None));
    }

    /// A message arrives although any two datagrams are lost, repeated or delayed.
    #[test]
    fn a_few_faults_are_repaired(length in 200_usize..20_000, at in 0_usize..100, kind in 0_u8..40) {
        let mut faults = vec![255; at];
        faults.extend([kind, 255, 255, kind]);
        let mut network = Network::new(faults);
        network.tool.write(ms(0), FILE, &message(MANAGER_LID, 5000, 3, &query(1).0)).unwrap();
        network.run(ms(120_000), &table(length));
        let (header, data) = read(&mut network.tool).unwrap();
        prop_assert_eq!(header.status, 0);
        prop_assert!(data[SA_HEADER_LEN..] == table(length));
    }

    #[test]
    fn no_input_panics(
        inputs in proptest::collection::vec((0_u8..5, proptest::collection::vec(any::<u8>(), 0..400)), 0..40),
    ) {
        let mut port = manager();
        for (number, (kind, mut raw)) in inputs.into_iter().enumerate() {
            let now = ms(number as u64 * 500);
            match kind {
                0 => {
                    let _ = port.write(now, FILE, &raw);
                }
                1 => {
                    raw.resize(HEADER + MAD_LEN, 1);
                    raw[..4].fill(0);
                    (raw[HEADER + 1], raw[HEADER + 3]) = (3, 0x92);
                    let _ = port.write(now, FILE, &raw);
                }
                2 | 3 => {
                    raw.resize(MAD_LEN, 0);
                    if kind == 3 {
                        (raw[1], raw[2], raw[3], raw[24]) = (3, 2, 0x12, 1);
                        raw[26] |= 1;
                    }
                    let lid = LidAddress::Permissive;
                    let mad = Mad(raw.try_into().unwrap());
                    port.handle(now, Datagram::general_management(lid, lid, Pkey::DEFAULT_FULL, mad));
                }
                _ => port.handle_timeout(now),
            }
            let _ = read(&mut port);
            while port.poll_transmit(now).is_some() {}
        }
    }
}
