//! Reads the fabric without writing: the tables of devices, and their differences to a plan.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fabric_model::intent::PortName;
use fabric_model::plan::LinearTable;
use fabric_model::{FabricPlan, ObservedTables};
use ib_wire::{Attribute, Guid, PkeyBlock, PkeyBlockSelector, PortNum, SMP_DATA_LEN};

use crate::attribute_key::AttributeRef;
use crate::backlog::{Job, JobKind};
use crate::event::SmEvent;
use crate::manager::{Manager, Phase};
use crate::observed::ObservedNode;
use crate::posture::{PostureFinding, SurveyNotes, lane_map_modifiers};
use crate::read_back::{linear, pkeys};

/// An attribute whose value differs from a plan. M_Keys are blanked out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeDifference {
    pub node: Guid,
    pub attribute: Attribute,
    pub modifier: u32,
    /// The current value; `None` if the table was not read because it is blank.
    pub held: Option<[u8; SMP_DATA_LEN]>,
    pub wanted: [u8; SMP_DATA_LEN],
}

/// What a survey found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    pub tables: ObservedTables,
    /// A finding for each item.
    pub posture: Vec<PostureFinding>,
}

/// What is read as soon as the manager is idle.
#[derive(Debug)]
pub(crate) enum Reading {
    Survey,
    Comparison(Arc<FabricPlan>),
}

impl Manager {
    /// Reads all LIDs, linear forwarding tables, P_Keys and lane maps, error counters and settings of congestion control;
    /// [`SmEvent::Surveyed`] has the result. Begins when the manager is idle.
    pub fn survey(&mut self, now: Duration) {
        self.wanted_reading = Some(Reading::Survey);
        self.read_when_idle(now);
    }

    /// Compares the fabric with a plan; [`SmEvent::Compared`] has the differences. Forgets any plan that was
    /// applied before. Begins when the manager is idle. There is no comparison if not all nodes of the plan are known then:
    /// [`SmEvent::Discovered`] has reported others.
    pub fn compare(&mut self, now: Duration, plan: Arc<FabricPlan>) {
        self.wanted_reading = Some(Reading::Comparison(plan));
        self.read_when_idle(now);
    }

    fn read_when_idle(&mut self, now: Duration) {
        if self.phase == Phase::Idle {
            self.begin_wanted_reading();
            self.proceed(now);
        }
    }

    /// Returns whether there was anything to read.
    pub(crate) fn begin_wanted_reading(&mut self) -> bool {
        match self.wanted_reading.take() {
            None => return false,
            Some(Reading::Survey) => self.begin_survey(),
            Some(Reading::Comparison(plan)) => self.begin_comparison(plan),
        }
        true
    }

    fn begin_survey(&mut self) {
        self.phase = Phase::Surveying;
        let targets: Vec<AttributeRef> =
            self.observed.nodes.iter().flat_map(|(guid, node)| tables(*guid, node)).collect();
        self.backlog.fill(targets.into_iter().map(|target| Job { target, kind: JobKind::Read }));
        self.survey_notes = Some(SurveyNotes::default());
        if self.counter_reader().is_some() {
            let nodes = &self.observed.nodes;
            let ports = nodes
                .iter()
                .flat_map(|(guid, node)| node.links.keys().map(|port| PortName { node: *guid, port: *port }));
            let switches = nodes.iter().filter(|(_, node)| node.is_switch()).map(|(guid, _)| *guid);
            self.counter_poll.begin_survey(ports, switches.collect());
        }
    }

    fn begin_comparison(&mut self, plan: Arc<FabricPlan>) {
        if !self.can_reach_all_of(&plan) {
            return;
        }
        self.plan = Some(plan);
        self.begin_programming();
        if self.phase == Phase::Reading {
            self.phase = Phase::Comparing;
        }
    }

    pub(crate) fn conclude_survey(&mut self) {
        self.phase = Phase::Idle;
        let mut found = ObservedTables::default();
        for (guid, node) in &self.observed.nodes {
            note_ports(node, &mut found);
            if node.is_switch() {
                found.linear.insert(*guid, linear(node));
            }
        }
        let notes = self.survey_notes.take().unwrap_or_default();
        let posture = self.posture(&notes);
        self.emit(SmEvent::Surveyed(Box::new(Survey { tables: found, posture })));
    }

    pub(crate) fn conclude_comparison(&mut self) {
        self.phase = Phase::Idle;
        let Some(plan) = self.plan.take() else { return };
        let comparison = self.comparison(&plan, &self.scope);
        // An attribute that is written in several steps differs once, from the value of the last step.
        let (mut differences, mut known) = (Vec::new(), HashMap::new());
        for write in comparison.all_differences() {
            let (attribute, modifier) = write.key;
            let open = |data| without_key(attribute, data);
            let index = *known.entry((write.node, write.port, write.key)).or_insert_with(|| {
                let node = self.observed.nodes.get(&write.node);
                let held = node.and_then(|node| node.held(write.port, write.key)).map(open);
                let wanted = open(write.data);
                differences.push(AttributeDifference { node: write.node, attribute, modifier, held, wanted });
                differences.len() - 1
            });
            differences[index].wanted = open(write.data);
        }
        self.emit(SmEvent::Compared(differences));
    }
}

fn without_key(attribute: Attribute, mut data: [u8; SMP_DATA_LEN]) -> [u8; SMP_DATA_LEN] {
    if attribute == Attribute::PORT_INFO {
        data[..8].fill(0);
    }
    data
}

/// The linear forwarding table, the P_Key tables and some lane maps of a node.
fn tables(guid: Guid, node: &ObservedNode) -> Vec<AttributeRef> {
    let blocks = node.info.partition_capacity.div_ceil(PkeyBlock::ENTRIES as u16);
    let keys = |port: PortNum| {
        (0..blocks).map(move |block| {
            (guid, port, (Attribute::PKEY_TABLE, PkeyBlockSelector { port: 0, block }.to_modifier()))
        })
    };
    let maps = lane_map_modifiers(node);
    let maps =
        maps.into_iter().map(|(reached, _, modifier)| (guid, reached, (Attribute::SL_TO_VL, modifier)));
    match &node.switch {
        Some(switch) => {
            let own = |key| (guid, PortNum::MANAGEMENT, key);
            let last = switch.linear_fdb_top / LinearTable::BLOCK as u16;
            let routes = (0..=last).map(|block| own((Attribute::LINEAR_FORWARDING, block.into())));
            routes.chain(keys(PortNum::MANAGEMENT)).chain(maps).collect()
        }
        None => node.routes.keys().flat_map(|port| keys(*port)).chain(maps).collect(),
    }
}

fn note_ports(node: &ObservedNode, found: &mut ObservedTables) {
    for (port, guid) in &node.port_guids {
        let end = if node.is_switch() { PortNum::MANAGEMENT } else { *port };
        let lid = node.ports.get(&end).and_then(|info| info.lid);
        found.lids.extend(lid.map(|lid| (*guid, lid)));
        found.pkeys.insert(*guid, pkeys(node, end, 0));
    }
}
