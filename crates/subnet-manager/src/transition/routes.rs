//! Linear forwarding tables of all switches: what to write in which step.

use std::collections::BTreeMap;

use fabric_model::FabricPlan;
use fabric_model::plan::{LinearTable, SwitchPlan};
use ib_wire::Guid;

use super::turns::{Column, Due, Graph, NO_PORT, SwitchIndex};

/// Entries of a block.
pub const LINEAR_BLOCK: usize = LinearTable::BLOCK;

/// The linear tables that switches hold, as they were last read.
pub trait HeldRoutes {
    /// LinearFDBTop: entries above it do not count, whatever they hold.
    fn top(&self, switch: Guid) -> u16;

    /// The exits of 64 LIDs, 0xFF for none; `None` if nobody knows. Then the block is written, and until then taken as
    /// empty; so read every block up to the top.
    fn block(&self, switch: Guid, block: u16) -> Option<[u8; LINEAR_BLOCK]>;
}

/// Writes that may go in any order, once those of the step before were answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteStep {
    /// What it is for.
    pub kind: StepKind,
    /// Blocks of linear tables.
    pub blocks: Vec<BlockWrite>,
    /// Switches, by node GUID, and their new LinearFDBTop.
    pub tops: Vec<(Guid, u16)>,
    /// Whether to wait after this step until packets that are under way have arrived or were dropped: it withdrew turns
    /// that the plan does not allow. So it is when the channel order changed, or when the tables followed none.
    pub drain: bool,
}

/// What a step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepKind {
    /// Entries become empty and tops lower.
    Withdraw,
    /// Entries change.
    Move,
    /// Entries that were withdrawn get what they are to have.
    Restore,
    /// Tops become higher; all entries are right.
    Raise,
}

/// A block of a switch's linear table and what it is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockWrite {
    /// The switch, by node GUID.
    pub switch: Guid,
    /// Which 64 LIDs.
    pub block: u16,
    /// Their exits, 0xFF for none.
    pub exits: [u8; LINEAR_BLOCK],
}

/// The steps from what is held to the tables of a plan. Switches that are not `dirty` hold what the plan says.
///
/// After every single write there is no forwarding loop and no credit loop that was not there before, and none at all
/// that goes through an entry written since. If what is held came from plans by these steps, whole or interrupted
/// anywhere, there is none. That takes three things for granted: what is held is what was read; the cables are those of
/// the plan; and the turns of the plan close no ring with what goes up and then down, which its compiler promises.
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

/// When something is written: 0 is the withdrawal, then the moves by number, then the restoration.
type Slot = u16;
const WITHDRAW: Slot = 0;
const FIRST_MOVE: Slot = 1;
const RESTORE: Slot = Slot::MAX;

/// A block of a switch on its way from what it holds to what it is to hold.
#[derive(Clone, Debug)]
struct Entries {
    index: SwitchIndex,
    /// What the device holds; empty if nobody knows.
    held: [u8; LINEAR_BLOCK],
    /// The same, with what does not count counted as right: nobody follows it until the top is raised.
    counted: [u8; LINEAR_BLOCK],
    wanted: [u8; LINEAR_BLOCK],
    due: [Option<Due>; LINEAR_BLOCK],
}

struct Work<'a> {
    plan: &'a FabricPlan,
    switches: Vec<&'a SwitchPlan>,
    /// Made when it is first needed: a blank fabric needs none.
    graph: Option<Graph>,
    column: Column,
    steps: BTreeMap<Slot, Vec<BlockWrite>>,
}

impl Work<'_> {
    /// A block, if it has to be written.
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

    /// Finds out in which steps a block of some switches is written.
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

    /// Orders the columns of a block in which an exit is replaced or removed.
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

/// The columns, as bits, in which an exit that counts is replaced or removed. In the others all that is there is part of
/// the plan, so their entries may come in any order.
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

    /// When the block is written, in order.
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

    /// Whether something may be written any time: it fits the plan, and nothing else in its column is in its way. It
    /// waits for the withdrawals all the same, since it may add turns of the plan.
    fn has_free_entries(&self) -> bool {
        let differs = |entry: usize| self.held[entry] != self.wanted[entry];
        (0..LINEAR_BLOCK).any(|entry| self.due[entry].is_none() && differs(entry))
    }

    /// What the block holds once it was written.
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
