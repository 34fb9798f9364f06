//! One destination LID on all switches: which entries are withdrawn first, and in which order the others
//! change.
//!
//! The channel order gives every cable an upper and a lower end. Packets go up, then down. A *turn* is a
//! switch that packets reach downwards and leave upwards (a down-up turn, which plain `up*/down*` routing
//! forbids). A plan may have turns; its compiler ensures that these, together with all paths that go up and
//! then down, form no cycle of channels. So no credit loop is possible while the tables have only turns of
//! the plan. The three steps preserve that:
//!
//! 1. *Withdraw.* Two kinds of entries become empty, which cannot create a cycle. (a) Those that lead down
//!    into a turn that is not exactly as in the plan. After that, all remaining turns are turns of the plan,
//!    whatever order the tables followed before; a new order, and tables that something else wrote, need no
//!    rule of their own. (b) Those that will go up and do not now, at a switch that the old tables reach
//!    downwards.
//! 2. *Move.* The other entries change, each after all entries that its new path leads through, up to the
//!    first empty one. Suppose this creates a turn at switch v, entered from u. If u has its new entry, v
//!    follows u on the new path and has its own new entry: the turn is one of the plan. If u has an old
//!    entry, v got a new one that goes up. Either v went up before: then u led into a turn and was withdrawn
//!    by (a). Or it did not: then v was withdrawn by (b).
//! 3. *Restore.* Withdrawn entries get their new value in any order: all others have theirs, so every turn is
//!    one of the plan.
//!
//! No forwarding loop: from a switch with a new entry, the path leads through new entries to the destination
//! or ends at an empty one. So a loop can only consist of old entries, and then it existed before.
//!
//! Every intermediate state has turns of the old tables only, or of the plan only. It may be abandoned at any
//! write and used as the held tables on the way to another plan. If the tables already followed the channel order
//! of the plan, no packet ever violated it. If not, packets that took withdrawn turns may still wait in
//! buffers, which tables do not show: see [`RouteStep::drain`](super::RouteStep::drain).
//!
//! The cost is linear in the number of switches per destination LID that changes.

use std::collections::HashMap;

use fabric_model::FabricPlan;
use ib_wire::Guid;

/// An entry without output port.
pub(super) const NO_PORT: u8 = 0xff;

/// Index of a switch in the plan.
pub(super) type SwitchIndex = usize;

/// No neighbouring switch behind a port.
const NOWHERE: u16 = u16::MAX;

/// The switches of a plan, their neighbours, and the channel order.
#[derive(Debug)]
pub(super) struct Graph {
    /// Index of the switch behind each output port, 256 per switch.
    behind: Vec<u16>,
    /// The higher of two switches has the larger rank.
    rank: Vec<u16>,
    /// The pivot of the plan and the switches above it, where packets may always go down and up again.
    tree: Vec<bool>,
}

impl Graph {
    pub fn of(plan: &FabricPlan) -> Self {
        let indices: HashMap<Guid, u16> = plan.switches().map(|switch| switch.guid).zip(0..NOWHERE).collect();
        let mut behind = vec![NOWHERE; indices.len() << 8];
        for (index, switch) in plan.switches().enumerate().take(indices.len()) {
            for port in switch.ports.iter() {
                if let Some(peer) = indices.get(&port.peer.node) {
                    behind[index << 8 | port.number.index()] = *peer;
                }
            }
        }
        let heights = &plan.decisions().routing.switches;
        let height = |guid: Guid| heights.get(&guid).map_or(0, |switch| switch.height);
        let mut ascending: Vec<(i32, Guid)> = indices.keys().map(|guid| (height(*guid), *guid)).collect();
        ascending.sort_unstable();
        let mut rank = vec![0; indices.len()];
        for ((_, guid), number) in ascending.into_iter().zip(0..) {
            rank[usize::from(indices[&guid])] = number;
        }
        let mut graph = Self { behind, rank, tree: vec![false; indices.len()] };
        let pivot = plan.decisions().routing.down_up_switch.and_then(|guid| indices.get(&guid));
        graph.mark_tree(pivot.map(|index| usize::from(*index)));
        graph
    }

    fn mark_tree(&mut self, pivot: Option<SwitchIndex>) {
        let mut open: Vec<SwitchIndex> = pivot.into_iter().collect();
        while let Some(index) = open.pop() {
            if !std::mem::replace(&mut self.tree[index], true) {
                let above = (0..=u8::MAX).filter_map(|exit| self.next(index, exit));
                open.extend(above.filter(|next| self.is_above(*next, index)));
            }
        }
    }

    fn next(&self, index: SwitchIndex, exit: u8) -> Option<SwitchIndex> {
        let next = self.behind[index << 8 | usize::from(exit)];
        (next != NOWHERE).then_some(usize::from(next))
    }

    fn is_above(&self, a: SwitchIndex, b: SwitchIndex) -> bool {
        self.rank[a] > self.rank[b]
    }
}

/// When an entry gets its new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// First, and it stays empty.
    Withdrawn,
    /// After those with a smaller number.
    Moved(u16),
    /// It is emptied first and gets its new value after all others.
    Restored,
}

/// The entries of all switches for one destination LID. The memory is reused from column to column.
#[derive(Debug, Default)]
pub(super) struct Column {
    entries: Vec<ColumnEntry>,
    path: Vec<SwitchIndex>,
    /// Whether packets may be in buffers that took a turn which the plan does not allow.
    pub drain: bool,
}

/// The entry of one switch.
#[derive(Clone, Copy, Debug, Default)]
struct ColumnEntry {
    wanted: u8,
    changed: bool,
    /// The next switch by the held and by the wanted entry.
    old: Option<NextSwitch>,
    new: Option<NextSwitch>,
    /// Whether a switch leads down to it by the held tables.
    entered_from_above: bool,
    withdrawn: bool,
    /// Number of entries that move on the new path from here, this one included.
    moves: Moves,
}

/// The next switch of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NextSwitch {
    to: SwitchIndex,
    up: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Moves {
    #[default]
    Unknown,
    Counted(u16),
}

impl Column {
    /// Takes the held and the wanted entry of each switch. Returns when each entry that must be written is
    /// due.
    pub fn schedule(
        &mut self,
        graph: &Graph,
        entries: impl Iterator<Item = (u8, u8)>,
    ) -> impl Iterator<Item = (SwitchIndex, Due)> {
        self.load(graph, entries);
        for index in 0..self.entries.len() {
            self.entries[index].withdrawn = self.must_be_withdrawn(graph, index);
        }
        for index in 0..self.entries.len() {
            if self.entries[index].moves() {
                self.count_moves(index);
            }
        }
        self.entries.iter().enumerate().filter_map(|(index, entry)| {
            let due = match (entry.withdrawn, entry.moves) {
                _ if entry.changed && entry.wanted == NO_PORT => Due::Withdrawn,
                (true, _) => Due::Restored,
                (false, Moves::Counted(number)) if entry.changed => Due::Moved(number),
                (false, _) => return None,
            };
            Some((index, due))
        })
    }

    fn load(&mut self, graph: &Graph, entries: impl Iterator<Item = (u8, u8)>) {
        let step = |from: SwitchIndex, exit: u8| {
            graph.next(from, exit).map(|to| NextSwitch { to, up: graph.is_above(to, from) })
        };
        self.entries.clear();
        self.entries.extend(entries.enumerate().map(|(index, (held, wanted))| {
            let new = step(index, wanted);
            let old = if held == wanted { new } else { step(index, held) };
            ColumnEntry { wanted, changed: held != wanted, old, new, ..ColumnEntry::default() }
        }));
        for index in 0..self.entries.len() {
            if let Some(NextSwitch { to, up: false }) = self.entries[index].old {
                self.entries[to].entered_from_above = true;
            }
        }
    }

    fn must_be_withdrawn(&mut self, graph: &Graph, index: SwitchIndex) -> bool {
        let entry = self.entries[index];
        let goes_up = |step: Option<NextSwitch>| step.is_some_and(|step| step.up);
        let below = entry.old.filter(|step| !step.up).map(|step| &self.entries[step.to]);
        let leaves_turn = below.is_some_and(|next| goes_up(next.old) && (entry.changed || next.changed));
        let rises = entry.changed && goes_up(entry.new) && !goes_up(entry.old) && entry.entered_from_above;
        let by_tree = || entry.old.is_some_and(|step| graph.tree[index] && graph.tree[step.to]);
        self.drain |= leaves_turn && !by_tree();
        leaves_turn || rises
    }

    /// Counts the entries that move on the new path from a switch, up to the first empty one.
    fn count_moves(&mut self, from: SwitchIndex) {
        self.path.clear();
        let mut here = Some(from);
        let mut count = 0;
        while let Some(index) = here {
            let entry = &mut self.entries[index];
            if let Moves::Counted(known) = entry.moves {
                count = known;
                break;
            }
            if entry.withdrawn {
                break;
            }
            // A plan with a forwarding loop would return here: then the count is 0 and the walk ends.
            entry.moves = Moves::Counted(0);
            self.path.push(index);
            here = entry.new.map(|step| step.to);
        }
        while let Some(index) = self.path.pop() {
            count += u16::from(self.entries[index].moves());
            self.entries[index].moves = Moves::Counted(count);
        }
    }
}

impl ColumnEntry {
    /// Whether the entry changes without being withdrawn first.
    fn moves(&self) -> bool {
        self.changed && !self.withdrawn && self.wanted != NO_PORT
    }
}
