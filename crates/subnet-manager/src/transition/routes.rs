//! Linear forwarding tables of all switches: the writes of each step.

use std::collections::BTreeMap;

use fabric_model::FabricPlan;
use fabric_model::plan::{LinearTable, SwitchPlan};
use ib_wire::Guid;

use super::turns::{Column, Due, Graph, NO_PORT, SwitchIndex};

/// Entries of a block.
pub const LINEAR_BLOCK: usize = LinearTable::BLOCK;

/// The linear forwarding tables of switches, as last read.
pub trait HeldRoutes {
    /// LinearFDBTop. Entries above it have no effect.
    fn top(&self, switch: Guid) -> u16;

    /// The output ports of 64 LIDs, 0xFF for none; `None` if the block was not read. Such a block is taken as
    /// empty and written, so read every block up to the top.
    fn block(&self, switch: Guid, block: u16) -> Option<[u8; LINEAR_BLOCK]>;
}

/// Writes that may be done in any order, once those of the step before were confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteStep {
    pub kind: StepKind,
    pub blocks: Vec<BlockWrite>,
    /// Node GUIDs of switches, and their new LinearFDBTop.
    pub tops: Vec<(Guid, u16)>,
    /// Whether to wait after this step until packets in flight have arrived or were dropped, because it
    /// withdrew turns that the plan does not allow. That is the case if the channel order has changed, or the
    /// tables followed none.
    pub drain: bool,
}

/// What a step of a route change does to the entries of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepKind {
    /// Entries become empty and tops are lowered.
    Withdraw,
    /// Entries change from one output port to another.
    Move,
    /// Withdrawn entries get their new value.
    Restore,
    /// Tops are raised; all entries are complete.
    Raise,
}

/// A write of a block of a linear forwarding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockWrite {
    /// Node GUID of the switch.
    pub switch: Guid,
    /// Number of the block of 64 LIDs.
    pub block: u16,
    /// Output port of each LID, 0xFF for none.
    pub exits: [u8; LINEAR_BLOCK],
}

/// The steps from the held tables to those of a plan. Switches that are not in `dirty` must hold the plan
/// already.
///
/// After every single write there is no forwarding loop and no credit loop that did not exist before, and
/// none through an entry that was written. If the held tables resulted from plans by these steps, complete or
/// interrupted anywhere, there is none at all. This assumes that the tables are as read, that the cables are
/// those of the plan, and that the turns of the plan form no cycle with paths that go up and then down, which
/// the compiler ensures.
pub fn route_steps(
    plan: &FabricPlan,
    held: &impl HeldRoutes,
    dirty: impl IntoIterator<Item = Guid>,
) -> Vec<RouteStep> {
    let switches: Vec<&SwitchPlan> = plan.switches().collect();
    let mut dirty: Vec<SwitchIndex> = (dirty.into_iter())
        .filter_map(|guid| switches.binary_search_by_key(&guid, |switch| switch.guid).ok())
        .collect();
    dirty.sort_unstable();
    dirty.dedup();
    let mut work = Work { plan, switches, graph: None, column: Column::default(), steps: BTreeMap::new() };
    let dirty: Vec<(SwitchIndex, u16)> =
        dirty.into_iter().map(|index| (index, held.top(work.switches[index].guid))).collect();
    let blocks = work.switches.iter().map(|switch| switch.linear.block_count()).max().unwrap_or(0);
    for block in 0..blocks {
        let differing: Vec<Entries> =
            dirty.iter().filter_map(|(index, top)| work.differing(held, *index, *top, block)).collect();
        work.schedule(block, differing);
    }
    work.into_steps(&dirty)
}

/// When a block is written: 0 is the withdrawal, then the moves by number, then the restoration.
type Slot = u16;
const WITHDRAW: Slot = 0;
const FIRST_MOVE: Slot = 1;
const RESTORE: Slot = Slot::MAX;

/// A block of a switch that changes.
#[derive(Clone, Debug)]
struct Entries {
    index: SwitchIndex,
    /// As read; empty if it was not.
    held: [u8; LINEAR_BLOCK],
    /// As `held`, but entries above the top count as wanted, because they have no effect until the top is
    /// raised.
    counted: [u8; LINEAR_BLOCK],
    wanted: [u8; LINEAR_BLOCK],
    due: [Option<Due>; LINEAR_BLOCK],
}

struct Work<'a> {
    plan: &'a FabricPlan,
    switches: Vec<&'a SwitchPlan>,
    /// Built on first use; a blank fabric needs none.
    graph: Option<Graph>,
    column: Column,
    steps: BTreeMap<Slot, Vec<BlockWrite>>,
}

impl Work<'_> {
    /// The block of a switch, if it has to be written.
    fn differing(&self, held: &impl HeldRoutes, index: SwitchIndex, top: u16, block: u16) -> Option<Entries> {
        let switch = self.switches[index];
        let (read, wanted) = (held.block(switch.guid, block), switch.linear_block(block));
        if read == Some(wanted) {
            return None;
        }
        let held = read.unwrap_or([NO_PORT; LINEAR_BLOCK]);
        let first_lid = usize::from(block) * LINEAR_BLOCK;
        let counted = std::array::from_fn(|entry| {
            if first_lid + entry > usize::from(top) { wanted[entry] } else { held[entry] }
        });
        Some(Entries { index, held, counted, wanted, due: [None; LINEAR_BLOCK] })
    }

    /// Determines the steps in which a block of some switches is written.
    fn schedule(&mut self, block: u16, differing: Vec<Entries>) {
        let hazards = hazards(&differing);
        if hazards == 0 {
            let whole = |entries: &Entries| {
                let switch = self.switches[entries.index].guid;
                BlockWrite { switch, block, exits: entries.wanted }
            };
            let writes = differing.iter().map(whole);
            return self.steps.entry(FIRST_MOVE).or_default().extend(writes);
        }
        let mut work: BTreeMap<SwitchIndex, Entries> =
            differing.into_iter().map(|one| (one.index, one)).collect();
        self.order_columns(block, hazards, &mut work);
        for entries in work.values() {
            let switch = self.switches[entries.index].guid;
            for slot in entries.slots() {
                let exits = entries.at(slot);
                self.steps.entry(slot).or_default().push(BlockWrite { switch, block, exits });
            }
        }
    }

    /// Orders the columns of a block in which an output port is replaced or removed.
    fn order_columns(&mut self, block: u16, hazards: u64, work: &mut BTreeMap<SwitchIndex, Entries>) {
        let graph = self.graph.get_or_insert_with(|| Graph::of(self.plan));
        let wanted: Vec<_> = self.switches.iter().map(|switch| switch.linear_block(block)).collect();
        let mut held = wanted.clone();
        for entries in work.values() {
            held[entries.index] = entries.counted;
        }
        for entry in (0..LINEAR_BLOCK).filter(|entry| hazards >> entry & 1 == 1) {
            let column = held.iter().zip(&wanted).map(|(held, wanted)| (held[entry], wanted[entry]));
            for (index, due) in self.column.schedule(graph, column) {
                let unchanged = || Entries::unchanged(index, wanted[index]);
                work.entry(index).or_insert_with(unchanged).due[entry] = Some(due);
            }
        }
    }

    fn into_steps(mut self, dirty: &[(SwitchIndex, u16)]) -> Vec<RouteStep> {
        let tops = |keep: fn(u16, u16) -> bool| -> Vec<(Guid, u16)> {
            let wanted = |index: SwitchIndex| (self.switches[index].guid, self.switches[index].linear.top());
            let with_held = dirty.iter().map(|(index, held)| (wanted(*index), *held));
            with_held.filter(|((_, wanted), held)| keep(*held, *wanted)).map(|(top, _)| top).collect()
        };
        let (lowered, raised) = (tops(|held, wanted| held > wanted), tops(|held, wanted| held < wanted));
        let step = |kind, blocks| RouteStep { kind, blocks, tops: Vec::new(), drain: false };
        let withdrawn = self.steps.remove(&WITHDRAW).unwrap_or_default();
        let mut steps = vec![RouteStep {
            tops: lowered,
            drain: self.column.drain,
            ..step(StepKind::Withdraw, withdrawn)
        }];
        steps.extend(self.steps.into_iter().map(|(slot, blocks)| {
            step(if slot == RESTORE { StepKind::Restore } else { StepKind::Move }, blocks)
        }));
        steps.push(RouteStep { tops: raised, ..step(StepKind::Raise, Vec::new()) });
        steps.retain(|step| !step.blocks.is_empty() || !step.tops.is_empty());
        steps
    }
}

/// The columns, as bits, in which an effective output port is replaced or removed. In the other columns all
/// entries agree with the plan, so they may be written in any order.
fn hazards(differing: &[Entries]) -> u64 {
    let mut hazards = 0;
    for entries in differing {
        for (entry, (held, wanted)) in entries.counted.iter().zip(&entries.wanted).enumerate() {
            hazards |= u64::from(held != wanted && *held != NO_PORT) << entry;
        }
    }
    hazards
}

impl Entries {
    fn unchanged(index: SwitchIndex, wanted: [u8; LINEAR_BLOCK]) -> Self {
        Self { index, held: wanted, counted: wanted, wanted, due: [None; LINEAR_BLOCK] }
    }

    /// The steps in which the block is written.
    fn slots(&self) -> Vec<Slot> {
        let mut slots: Vec<Slot> = Vec::new();
        for (entry, due) in self.due.iter().enumerate() {
            let is_empty = self.held[entry] == NO_PORT;
            slots.extend(
                (!is_empty && matches!(due, Some(Due::Withdrawn | Due::Restored))).then_some(WITHDRAW),
            );
            slots.extend(match due {
                Some(Due::Moved(number)) => Some(*number),
                Some(Due::Restored) => Some(RESTORE),
                Some(Due::Withdrawn) | None => None,
            });
        }
        if self.has_free_entries() && slots.iter().all(|slot| *slot == WITHDRAW) {
            slots.push(FIRST_MOVE);
        }
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// Whether entries may be written at any time, because no other entry of their column changes. They still
    /// wait for the withdrawals, since they may add turns of the plan.
    fn has_free_entries(&self) -> bool {
        let differs = |entry: usize| self.held[entry] != self.wanted[entry];
        (0..LINEAR_BLOCK).any(|entry| self.due[entry].is_none() && differs(entry))
    }

    /// The content of the block after a step.
    fn at(&self, slot: Slot) -> [u8; LINEAR_BLOCK] {
        std::array::from_fn(|entry| {
            let is_due = match self.due[entry] {
                None => slot > WITHDRAW,
                Some(Due::Moved(number)) => slot >= number,
                Some(Due::Restored) if slot < RESTORE => return NO_PORT,
                Some(Due::Withdrawn | Due::Restored) => true,
            };
            if is_due { self.wanted[entry] } else { self.held[entry] }
        })
    }
}
