//! Decoding of datagrams captured from unmodified InfiniBand software, compared with the output of stock tools.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod capture;
mod round_trip;
mod tool_fields;
mod tool_output;

use capture::{Exchange, exchange, exchanges};
use ib_wire::notice::{InformInfoRecord, Notice, NoticeEvent, NoticeKind, Producer, Trap};
use ib_wire::perf::{CounterSelect, PortCounters, PortCountersExtended};
use ib_wire::sa::{self, Record};
use ib_wire::{
    Capability, ClassPortInfo, ForwardingBlock, GuidBlock, Mad, MlnxExtPortInfo, MulticastBlock,
    NodeDescription, NodeInfo, PkeyBlock, PkeyBlockSelector, PortInfo, PortNum, SlToVl, SlToVlSelector,
    SmInfo, SwitchInfo, VlArbBlock, VlArbPart,
};
use tool_fields::Lines;
use tool_output::{Dump, dumps, row};

/// Compares the only dump of an exchange with a decoded attribute.
fn assert_printed(exchange: &Exchange, read: &Lines) {
    let dumps = dumps(exchange.text());
    dumps.last().expect("a dump").assert_matches(&exchange.name, read);
}

/// Compares each dump of an exchange with a decoded record. The tools got at most 224 bytes, so that the datagram may hold
/// more records than they printed.
fn assert_records<R: Record>(name: &str, lines: fn(&R) -> Lines) -> Vec<(R, Dump)> {
    let exchange = exchange("sa.json", name);
    let mad = exchange.answer();
    assert_eq!(mad.sa_record_len(), R::LEN, "{name}: length of a record");
    assert_eq!(mad.attribute(), R::ATTRIBUTE);
    let records = sa::records::<R>(mad.sa_data(), mad.sa_record_len()).map_while(Result::ok);
    let pairs: Vec<(R, Dump)> = records.zip(dumps(exchange.text())).collect();
    assert!(!pairs.is_empty(), "{name}: no records");
    for (record, dump) in &pairs {
        dump.assert_matches(name, &lines(record));
    }
    pairs
}

fn named(prefix: &str) -> Vec<Exchange> {
    let found: Vec<Exchange> = exchanges("smp.json")
        .into_iter()
        .filter(|e| e.name.starts_with(prefix) && e.printed.is_some())
        .collect();
    assert!(!found.is_empty(), "no {prefix}");
    found
}

#[test]
fn node_info_matches_tool_output() {
    for exchange in named("get-nodeinfo") {
        assert_printed(
            &exchange,
            &tool_fields::node_info(&NodeInfo::decode(exchange.answer().smp_data()).unwrap()),
        );
    }
    let described = exchange("smp.json", "get-nodedescription-ca");
    let name = NodeDescription(*described.answer().smp_data()).text();
    assert!(described.text().ends_with(&format!(".{name}")), "{name}");
}

#[test]
fn port_info_matches_tool_output() {
    let names = [
        (Capability::IS_SM, "IsSM"),
        (Capability::NOTICE, "IsNoticeSupported"),
        (Capability::TRAP, "IsTrapSupported"),
        (Capability::SL_MAPPING, "IsSLMappingSupported"),
        (Capability::M_KEY_NVRAM, "IsMkeyNVRAM"),
        (Capability::PKEY_NVRAM, "IsPkeyNVRAM"),
        (Capability::SM_DISABLED, "IsSMdisabled"),
        (Capability::EXTENDED_SPEEDS, "IsExtendedSpeedsSupported"),
        (Capability::CAPABILITY2, "IsCapabilityMask2Supported"),
        (Capability::CAPABILITY_NOTICE, "IsCapabilityMaskNoticeSupported"),
        (Capability::CLIENT_REREGISTER, "IsClientReregistrationSupported"),
    ];
    for exchange in named("get-portinfo") {
        let info = PortInfo::decode(exchange.answer().smp_data()).unwrap();
        assert_printed(&exchange, &tool_fields::port_info(&info));
        for (bit, name) in names {
            let printed = exchange.text().lines().any(|line| line.trim() == name);
            assert_eq!(info.capability.has(bit), printed, "{}: {name}", exchange.name);
        }
    }
    let extended = exchange("smp.json", "get-mlnx-extportinfo");
    let info = MlnxExtPortInfo::decode(extended.answer().smp_data()).unwrap();
    assert_printed(&extended, &tool_fields::mlnx_ext_port_info(&info));
}

#[test]
fn switch_info_matches_tool_output() {
    let exchange = exchange("smp.json", "get-switchinfo");
    assert_printed(
        &exchange,
        &tool_fields::switch_info(&SwitchInfo::decode(exchange.answer().smp_data()).unwrap()),
    );
}

#[test]
fn pkey_tables_match_tool_output() {
    for exchange in named("get-pkeytable") {
        let block = PkeyBlockSelector::from_modifier(exchange.request.modifier()).block as usize;
        let table: Vec<u64> = entries(exchange.text());
        let read =
            PkeyBlock::decode(exchange.answer().smp_data()).0.map(|key| u64::from(tool_fields::pkey(key)));
        assert_eq!(read, table[block * PkeyBlock::ENTRIES..][..PkeyBlock::ENTRIES], "{}", exchange.name);
    }
}

#[test]
fn guid_tables_match_tool_output() {
    let exchange = exchange("smp.json", "get-guidinfo-ca");
    let table = entries(exchange.text());
    let first = exchange.request.modifier() as usize * GuidBlock::ENTRIES;
    let read = GuidBlock::decode(exchange.answer().smp_data()).0.map(tool_fields::guid);
    assert_eq!(read, table[first..][..GuidBlock::ENTRIES]);
}

#[test]
fn sl_to_vl_matches_tool_output() {
    for exchange in named("get-sl2vl") {
        let Some(SlToVlSelector::Hop { input, output }) =
            SlToVlSelector::from_modifier(exchange.request.modifier())
        else {
            panic!("{}: not one input-output pair", exchange.name);
        };
        let label = format!("ports: in {input:2}, out {output:2}: ");
        let line = exchange
            .text()
            .lines()
            .find_map(|line| line.strip_prefix(&label))
            .expect("the input-output pair is printed");
        let raw = exchange.answer().smp_data()[..SlToVl::LEN].try_into().unwrap();
        let read = SlToVl::decode(&raw).0.map(|lane| u64::from(lane.to_wire()));
        assert_eq!(read, row(line, '|')[..], "{}", exchange.name);
    }
}

#[test]
fn vl_arbitration_matches_tool_output() {
    for exchange in named("get-vlarb") {
        let (part, _) = VlArbPart::from_modifier(exchange.request.modifier()).unwrap();
        let heading = if part.is_high() { "# High" } else { "# Low" };
        let mut lines = exchange.text().lines().skip_while(|line| !line.starts_with(heading)).skip(1);
        let mut next =
            |label| row(lines.next().and_then(|line| line.strip_prefix(label)).expect("a row"), '|');
        let (lanes, weights) = (next("VL    : "), next("WEIGHT: "));
        let block = VlArbBlock::decode(exchange.answer().smp_data());
        for (entry, printed) in block.0.iter().zip(lanes.into_iter().zip(weights)) {
            assert_eq!(
                (u64::from(entry.lane.to_wire()), u64::from(entry.weight)),
                printed,
                "{}",
                exchange.name
            );
        }
    }
}

#[test]
fn forwarding_tables_match_tool_output() {
    let unicast = exchange("smp.json", "get-lft");
    let block = ForwardingBlock::decode(unicast.answer().smp_data());
    let printed = unicast.text().lines().filter_map(|line| line.strip_prefix("0x")?.split_once(" : "));
    let mut compared = 0;
    for (entry, _) in printed {
        let (lid, port) = entry.split_once(' ').expect("LID and port");
        let lid = usize::from_str_radix(lid, 16).unwrap();
        assert_eq!(block.0[lid], port.parse().ok(), "LID {lid}");
        compared += 1;
    }
    assert_eq!(compared, 6, "six LIDs are routed");

    let multicast = exchange("smp.json", "get-mft");
    let block = MulticastBlock::decode(multicast.answer().smp_data());
    let text = multicast.text();
    let ruler = text.lines().find(|line| line.trim_start().starts_with("Ports:")).expect("a ruler");
    let line = text.lines().find(|line| line.starts_with("0xc000")).expect("the first group");
    let ports = ruler.char_indices().filter_map(|(at, digit)| Some((at, digit.to_digit(10)?)));
    let marked = ports.filter(|(at, _)| line.as_bytes().get(*at) == Some(&b'x')).map(|(_, port)| port);
    assert_eq!(u32::from(block.0[0].0), marked.fold(0, |mask, port| mask | 1 << port));
}

#[test]
fn sm_info_matches_tool_output() {
    for exchange in named("get-sminfo") {
        let info = SmInfo::decode(exchange.answer().smp_data()).unwrap();
        let expected = format!(
            "sm guid {:#x}, activity count {} priority {} state {} ",
            tool_fields::guid(info.guid),
            info.activity,
            info.priority,
            info.state.to_wire()
        );
        assert!(exchange.text().contains(&expected), "{expected:?} not in {:?}", exchange.text());
    }
}

#[test]
fn counters_match_tool_output() {
    for name in ["get-portcounters", "get-portcounters-switch"] {
        let exchange = exchange("perf.json", name);
        assert_printed(
            &exchange,
            &tool_fields::port_counters(&PortCounters::decode(exchange.answer().perf_data()).unwrap()),
        );
    }
    let extended = exchange("perf.json", "get-portcounters-extended");
    let counters = PortCountersExtended::decode(extended.answer().perf_data()).unwrap();
    assert_printed(&extended, &tool_fields::port_counters_extended(&counters));
}

#[test]
fn a_counter_reset_selects_every_counter() {
    let request = exchange("perf.json", "set-portcounters").request;
    assert_eq!(PortCounters::decode(request.perf_data()).unwrap().select, CounterSelect::ALL);
}

#[test]
fn class_port_info_matches_tool_output() {
    let perf = exchange("perf.json", "get-classportinfo");
    let info = ClassPortInfo::decode(perf.answer().perf_data()).unwrap();
    assert!(perf.text().contains(&format!("(CapMask: {:#x})", info.capability.0)));
    assert!(info.capability.has(ib_wire::perf::EXTENDED_WIDTH.with(ib_wire::perf::XMIT_WAIT)));

    let sa = exchange("sa.json", "get-classportinfo");
    let info = ClassPortInfo::decode(sa.answer().sa_data()).unwrap();
    assert_printed(&sa, &tool_fields::class_port_info(&info));
    assert!(info.capability.has(sa::capability::MULTICAST.with(sa::capability::PORT_INFO_CAPABILITY_MATCH)));
    assert!(info.capability2.has(sa::capability2::QOS.with(sa::capability2::FULL_PORT_INFO)));
}

#[test]
fn records_match_tool_output() {
    assert_records("gettable-noderecord", tool_fields::node_record);
    assert_records("gettable-noderecord-all-cut", tool_fields::node_record);
    assert_records("gettable-pathrecord", tool_fields::path_record);
    assert_records("gettable-switchinforecord", tool_fields::switch_info_record);
    assert_records("gettable-sminforecord", tool_fields::sm_info_record);
    let informs =
        assert_records::<InformInfoRecord>("gettable-informinforecord", tool_fields::inform_info_record);
    assert_eq!(informs[0].0.inform_info.kind, ib_wire::notice::InformInfo::ALL);
    for name in ["gettable-mcmemberrecord-groups", "gettable-mcmemberrecord-members"] {
        assert_eq!(assert_records(name, tool_fields::mc_member_record).len(), 2, "{name}");
    }
    assert_records::<sa::PortInfoRecord>("gettable-portinforecord", |record| {
        let mut lines = tool_fields::port_info(&record.port_info);
        lines.push(("EndPortLid", tool_fields::lid_address(record.lid).into()));
        lines.push(("PortNum", record.port.into()));
        lines.push(("Options", record.qdr_not_overloaded.into()));
        lines
    });
    assert_records::<sa::LinkRecord>("gettable-linkrecord", |record| {
        vec![
            ("FromLID", tool_fields::lid_address(record.from_lid).into()),
            ("FromPort", record.from_port.into()),
            ("ToPort", record.to_port.into()),
            ("ToLID", tool_fields::lid_address(record.to_lid).into()),
        ]
    });
    assert_records::<sa::GuidInfoRecord>("gettable-guidinforecord", |record| {
        let keys = ["GUID 0", "GUID 1", "GUID 2", "GUID 3", "GUID 4", "GUID 5", "GUID 6", "GUID 7"];
        let guids = keys.into_iter().zip(record.guids.0.map(|guid| tool_fields::guid(guid).into()));
        guids.chain(lid_and(record.lid, ("Block", record.block.into()))).collect()
    });
}

#[test]
fn table_records_match_tool_output() {
    for (record, dump) in assert_records::<sa::PkeyTableRecord>("gettable-pkeytablerecord", |record| {
        // opensm 3.3.23 sends the block in its host's byte order, and saquery prints it so: two errors that cancel out.
        lid_and(record.lid, ("Block", record.block.swap_bytes().into()))
            .into_iter()
            .chain([("Port", record.port.into())])
            .collect()
    }) {
        let printed: Vec<u64> =
            dump.lines.iter().filter(|line| line.starts_with("0x")).flat_map(|l| row(l, ' ')).collect();
        assert_eq!(record.pkeys.0.map(|key| u64::from(tool_fields::pkey(key))), printed[..]);
    }
    for (record, dump) in assert_records::<sa::SlToVlRecord>("gettable-sl2vlrecord", |record| {
        lid_and(record.lid, ("InPort", record.input.into()))
            .into_iter()
            .chain([("OutPort", record.output.into())])
            .collect()
    }) {
        let line = dump.lines.iter().find_map(|line| line.strip_prefix("VL: ")).expect("the lanes");
        assert_eq!(record.mapping.0.map(|lane| u64::from(lane.to_wire())), row(line, '|')[..]);
    }
    for (record, dump) in assert_records::<sa::VlArbitrationRecord>("gettable-vlarbrecord", |record| {
        lid_and(record.lid, ("Block", record.block.into()))
            .into_iter()
            .chain([("Port", record.port.into())])
            .collect()
    }) {
        let rows = |label| {
            dump.lines.iter().filter_map(move |line| line.strip_prefix(label)).flat_map(|l| row(l, '|'))
        };
        let printed: Vec<(u64, u64)> = rows("VL    : ").zip(rows("Weight: ")).collect();
        let read = record.entries.0.map(|entry| (u64::from(entry.lane.to_wire()), u64::from(entry.weight)));
        assert_eq!(read, printed[..]);
    }
    for (record, dump) in assert_records::<sa::LinearForwardingRecord>("gettable-lftrecord", |record| {
        lid_and(record.lid, ("Block", record.block.into()))
    }) {
        assert_eq!(
            record.ports.0.map(|port| u64::from(port.map_or(255, PortNum::to_wire))),
            second_column(&dump)[..]
        );
    }
    for (record, dump) in assert_records::<sa::MulticastForwardingRecord>("gettable-mftrecord", |record| {
        lid_and(record.lid, ("Block", record.block.into()))
            .into_iter()
            .chain([("Position", record.position.into())])
            .collect()
    }) {
        assert_eq!(record.masks.0.map(|mask| u64::from(mask.0)), second_column(&dump)[..]);
    }
}

#[test]
fn responses_match_their_requests() {
    fn check<R: Record>(name: &str) {
        let exchange = exchange("sa.json", name);
        let (request, mask) = (&exchange.request, exchange.request.component_mask());
        assert_ne!(mask, sa::ComponentMask::NONE, "{name} selects no component");
        let answer = exchange.answer();
        let record = sa::records::<R>(answer.sa_data(), answer.sa_record_len()).next().unwrap().unwrap();
        assert!(sa::matches(&record, request.sa_data(), mask), "{name}");
        let mut other = request.clone();
        other.sa_data_mut().iter_mut().for_each(|byte| *byte ^= 0xff);
        assert!(!sa::matches(&record, other.sa_data(), mask), "{name}: a different pattern matches");
    }
    check::<sa::NodeRecord>("gettable-noderecord");
    check::<sa::PortInfoRecord>("gettable-portinforecord");
    check::<sa::SlToVlRecord>("gettable-sl2vlrecord");
    check::<sa::SwitchInfoRecord>("gettable-switchinforecord");
    check::<sa::LinearForwardingRecord>("gettable-lftrecord");
    check::<sa::LinkRecord>("gettable-linkrecord");
    check::<sa::GuidInfoRecord>("gettable-guidinforecord");
    check::<sa::PkeyTableRecord>("gettable-pkeytablerecord");
    check::<sa::PathRecord>("gettable-pathrecord");
    check::<sa::VlArbitrationRecord>("gettable-vlarbrecord");
}

#[test]
fn a_join_selects_mgid_port_and_join_state() {
    use sa::McMemberRecord as Member;
    let request = exchange("sa.json", "set-mcmemberrecord").request;
    assert_eq!(request.component_mask(), Member::MGID | Member::PORT_GID | Member::JOIN_STATE);
    let member = Member::decode(request.sa_data()).unwrap();
    assert_eq!(member.join_state, sa::JoinState::FULL);
    assert!(member.mgid.is_multicast());
}

#[test]
fn a_service_registration_selects_its_fields() {
    use sa::ServiceRecord as Service;
    let request = exchange("sa.json", "set-servicerecord").request;
    assert_eq!(
        request.component_mask(),
        Service::SERVICE_ID | Service::GID | Service::PKEY | Service::LEASE | Service::NAME
    );
    let service = Service::decode(request.sa_data()).unwrap();
    assert_eq!((service.service_id, service.lease_s), (0x1000_0000_0000_0042, u32::MAX));
    assert!(service.name.starts_with(b"fixture.service\0"));
    let data = exchange("sa.json", "set-servicerecord-data").request;
    assert!(
        data.component_mask()
            .has(Service::data8_component(0).unwrap() | Service::data16_component(0).unwrap())
    );
    assert!(
        data.component_mask()
            .has(Service::data32_component(0).unwrap() | Service::data64_component(0).unwrap())
    );
}

#[test]
fn captured_traps_describe_the_change() {
    let trap = |name: &str| Notice::decode_smp(exchange("notice.json", name).request.smp_data()).unwrap();
    let link = trap("trap-128");
    assert_eq!(link.kind, NoticeKind::Urgent);
    let NoticeEvent::Generic { producer: Producer::Switch, trap: Trap::LinkStateChanged(event) } =
        &link.event
    else {
        panic!("{link:?}");
    };
    assert_eq!((event.lid, event.lid), (link.issuer_lid, ib_wire::Lid::from_wire(3).map(Into::into)));

    let change = trap("trap-144");
    assert_eq!(change.kind, NoticeKind::Informational);
    let Some(Trap::LocalChange(event)) = change.trap() else { panic!("{change:?}") };
    assert!(event.capability.has(Capability::IS_SM), "a subnet manager was started");
    assert_eq!((event.lid, event.other_changes), (change.issuer_lid, false));
}

#[test]
fn reports_name_the_port_and_the_issuer() {
    let report = |name: &str| Notice::decode(exchange("notice.json", name).request.sa_data()).unwrap();
    for (name, number) in [("report-64", 64), ("report-65", 65)] {
        let notice = report(name);
        let Some(trap @ (Trap::GidInService(event) | Trap::GidOutOfService(event))) = notice.trap() else {
            panic!("{notice:?}");
        };
        assert_eq!(trap.number(), number);
        assert_eq!(event.gid.to_string(), "fe80::2:c900:0:4001", "node4 left and came back");
        assert_eq!(notice.issuer_gid.to_string(), "fe80::2:c900:0:1001", "the subnet manager's port");
        assert!(matches!(notice.event, NoticeEvent::Generic { producer: Producer::ClassManager, .. }));
    }
    assert_eq!(report("report-128").issuer_gid.to_string(), "fe80::2:c900:0:b000", "the switch");
}

#[test]
fn a_response_without_matches_is_an_empty_table() {
    let exchange = exchange("sa.json", "gettable-pathrecord-none");
    assert_eq!(records_in::<sa::PathRecord>(exchange.answer()), 0);
    let asked = exchange.request.component_mask();
    assert_eq!(asked, sa::PathRecord::SLID | sa::PathRecord::DLID | sa::PathRecord::PKEY);
}

fn records_in<R: Record>(mad: &Mad) -> usize {
    sa::records::<R>(mad.sa_data(), mad.sa_record_len()).count()
}

/// The LID of a record under the key that the tools use, and one more line.
fn lid_and(lid: Option<ib_wire::LidAddress>, more: (&'static str, tool_output::Value)) -> Lines {
    vec![("LID", tool_fields::lid_address(lid).into()), more]
}

/// The numbers of a table printed as `index: number number …`.
fn entries(text: &str) -> Vec<u64> {
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines.flat_map(|(_, numbers)| row(numbers, ' ')).collect()
}

/// The second column of a table of two columns.
fn second_column(dump: &Dump) -> Vec<u64> {
    let pairs = dump.lines.iter().filter_map(|line| line.split_once('\t'));
    pairs
        .filter(|(left, _)| left.starts_with(|c: char| c.is_ascii_digit()))
        .map(|(_, right)| row(right, '\t')[0])
        .collect()
}
