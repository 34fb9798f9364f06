//! Layout for trees: one row per tier, with hosts at the bottom and cores or spines on top.

use super::scene::{
    Anchor, Bend, CableLine, Card, CardRole, Cells, Label, Panel, Point, Scene, Side, Text, card_in_slot,
    point,
};
use super::svg::{LIST_SIZE, LIST_STEP, list_corner};
use super::{DrawnFabric, HOSTS_DRAWN_MAX, counted, rows};
use crate::page::text_width;
use fabric_model::SwitchIndex;

/// Preferred width of a row of leaves, as long as the slots are wide enough.
const WIDTH_WANTED: f32 = 1900.0;
/// Narrowest slot of a leaf: one line of vertical text.
const SLOT_MIN: f32 = 17.0;
/// Widest slot of a leaf without host names.
const SLOT_MAX: f32 = 128.0;
/// Space between two pods.
const POD_GAP: f32 = 36.0;
/// Largest number of hosts in a column of a list.
const LIST_ROWS_MAX: usize = 14;
/// Largest number of cable lines that are drawn as curves.
const CURVES_MAX: usize = 60;

/// Draws a tree; `tiers` has the tier of each switch.
pub(super) fn draw(fabric: &DrawnFabric<'_>, tiers: &[u8]) -> Scene {
    let mut tree = Tree::new(fabric, tiers);
    tree.place_leaves();
    tree.place_uppers();
    tree.draw_cable_lines();
    tree.draw_hosts();
    tree.draw_pods();
    tree.draw_row_labels();
    tree.scene
}

struct Tree<'a> {
    fabric: &'a DrawnFabric<'a>,
    rows: Vec<Vec<SwitchIndex>>,
    tiers: &'a [u8],
    /// Connected components of the switches below the top tier; a single pod in trees of two tiers.
    pods: Vec<Vec<SwitchIndex>>,
    pod_names: Vec<Option<String>>,
    /// Left and right edge of each pod.
    spans: Vec<(f32, f32)>,
    slot: f32,
    /// Index into `scene.cards` of each switch.
    cards: Vec<usize>,
    scene: Scene,
}

impl<'a> Tree<'a> {
    fn new(fabric: &'a DrawnFabric<'a>, tiers: &'a [u8]) -> Self {
        let rows = rows(tiers);
        let pods = pods(fabric, tiers, rows.len());
        let slot = slot(fabric, &rows[0]);
        let cards = vec![usize::MAX; tiers.len()];
        let pod_names = pods.iter().map(|pod| pod_name(fabric, pod)).collect();
        Self { fabric, rows, tiers, pods, pod_names, spans: Vec::new(), slot, cards, scene: Scene::default() }
    }

    fn top(&self) -> u8 {
        self.rows.len() as u8
    }

    fn lists_hosts(&self) -> bool {
        lists_hosts(self.fabric)
    }

    /// Places the leaves side by side, pod by pod.
    fn place_leaves(&mut self) {
        let mut x = 0.0;
        for pod in self.pods.clone() {
            let leaves: Vec<SwitchIndex> =
                pod.into_iter().filter(|switch| self.tiers[*switch] == 1).collect();
            let start = x;
            for leaf in leaves {
                self.place(leaf, point(x + self.slot / 2.0, 0.0), self.slot);
                x += self.slot;
            }
            self.spans.push((start, x));
            x += if self.pods.len() > 1 { POD_GAP } else { 0.0 };
        }
    }

    /// Distributes the switches of the upper tiers over their pod, and those of the top tier over the whole width.
    fn place_uppers(&mut self) {
        let width = self.spans.last().map_or(0.0, |span| span.1);
        let rise = (width * 0.13).clamp(120.0, 270.0);
        for tier in 2..=self.top() {
            let y = -rise * f32::from(tier - 1);
            if tier == self.top() {
                let row = self.rows[usize::from(tier - 1)].clone();
                self.spread(&row, (0.0, width), y);
                continue;
            }
            for (pod, span) in self.pods.clone().into_iter().zip(self.spans.clone()) {
                let row: Vec<SwitchIndex> =
                    pod.into_iter().filter(|switch| self.tiers[*switch] == tier).collect();
                self.spread(&row, span, y);
            }
        }
    }

    fn spread(&mut self, row: &[SwitchIndex], (left, right): (f32, f32), y: f32) {
        let slot = (right - left) / row.len().max(1) as f32;
        for (number, switch) in row.iter().enumerate() {
            self.place(*switch, point(left + slot * (number as f32 + 0.5), y), slot);
        }
    }

    fn place(&mut self, switch: SwitchIndex, centre: Point, slot: f32) {
        let role = CardRole::of_tier(self.tiers[switch], self.top());
        let mut lines = vec![self.short_name(switch).to_owned()];
        let hosts = self.fabric.hosts(switch).len();
        if self.tiers[switch] > 1 && hosts > 0 {
            lines.push(format!("+ {}", counted(hosts, "host")));
        }
        self.cards[switch] = self.scene.cards.len();
        self.scene.cards.push(card_in_slot(centre, slot, role, lines));
    }

    /// The name of a switch without the name of its pod, which the panel shows.
    fn short_name(&self, switch: SwitchIndex) -> &'a str {
        let name = self.fabric.name(switch);
        let pod = self.pod_names.iter().flatten().find_map(|pod| name.strip_prefix(pod.as_str()));
        pod.filter(|_| self.pods.len() > 1).map_or(name, |rest| rest.trim_start_matches('-'))
    }

    /// Few cable lines are curved; many are straight, because their crossings form a regular pattern.
    fn draw_cable_lines(&mut self) {
        let bend = if self.fabric.pairs().count() <= CURVES_MAX { Bend::Upright } else { Bend::Straight };
        for (a, b, cables) in self.fabric.pairs() {
            let (lower, upper) = if self.tiers[a] < self.tiers[b] { (a, b) } else { (b, a) };
            let (from, to) = (&self.scene.cards[self.cards[lower]], &self.scene.cards[self.cards[upper]]);
            let cable_line = CableLine {
                from: point(from.centre.x, from.centre.y - from.height / 2.0),
                to: point(to.centre.x, to.centre.y + to.height / 2.0),
                bend,
                role: to.role,
                cables,
            };
            self.scene.cable_lines.push(cable_line);
        }
    }

    fn draw_hosts(&mut self) {
        for leaf in self.rows[0].clone() {
            let hosts = self.fabric.hosts(leaf);
            if hosts.is_empty() {
                continue;
            }
            let above = &self.scene.cards[self.cards[leaf]];
            let from = point(above.centre.x, above.centre.y + above.height / 2.0);
            let card =
                if self.lists_hosts() { self.host_list(leaf, from) } else { self.host_count(leaf, from) };
            let to = point(card.centre.x, card.centre.y - card.height / 2.0);
            let cables = self.fabric.host_cables(leaf);
            self.draw_host_cells(leaf, &card);
            self.scene.cable_lines.push(CableLine {
                from,
                to,
                bend: Bend::Straight,
                role: CardRole::Leaf,
                cables,
            });
            self.scene.cards.push(card);
        }
    }

    fn host_list(&self, leaf: SwitchIndex, below: Point) -> Card {
        let hosts = self.fabric.hosts(leaf);
        let lines = hosts.iter().map(|host| self.fabric.topology[*host].description.clone()).collect();
        let columns = hosts.len().div_ceil(LIST_ROWS_MAX);
        let height = hosts.len().div_ceil(columns) as f32 * LIST_STEP + 14.0;
        let centre = point(below.x, below.y + 34.0 + height / 2.0);
        Card {
            centre,
            width: self.slot - 10.0,
            height,
            role: CardRole::Host,
            lines,
            text: Text::List(columns),
        }
    }

    fn host_count(&self, leaf: SwitchIndex, below: Point) -> Card {
        let lines = vec![counted(self.fabric.hosts(leaf).len(), "host")];
        let mut card = card_in_slot(below, self.slot, CardRole::Host, lines);
        card.centre.y += 34.0 + card.height / 2.0;
        card
    }

    /// In heat maps: a cell beside each host name, or a block of cells below the number of hosts.
    fn draw_host_cells(&mut self, leaf: SwitchIndex, card: &Card) {
        let Some(loads) = self.fabric.host_loads(leaf) else { return };
        let Text::List(columns) = card.text else {
            self.scene.cells.push(Cells::beside(card, Side::Below, loads.to_vec()));
            return;
        };
        for (column, loads) in loads.chunks(loads.len().div_ceil(columns)).enumerate() {
            let at = list_corner(card, columns, column);
            self.scene.cells.push(Cells {
                corner: point(at.x - 6.0, at.y + 3.0),
                columns: 1,
                step: point(4.0, LIST_STEP),
                size: point(4.0, LIST_STEP - 4.0),
                loads: loads.to_vec(),
            });
        }
    }

    fn draw_pods(&mut self) {
        if self.pods.len() < 2 {
            return;
        }
        let inside = |card: &&Card| card.role != CardRole::Core;
        let top = self.scene.cards.iter().filter(inside).map(|card| card.centre.y - card.height / 2.0);
        let bottom = self.scene.cards.iter().filter(inside).map(|card| card.centre.y + card.height / 2.0);
        let bottom = bottom.chain(self.scene.cells.iter().map(|cells| cells.corner.y + cells.height()));
        let (top, bottom) = (top.fold(0.0, f32::min) - 14.0, bottom.fold(0.0, f32::max) + 34.0);
        for (number, (left, right)) in self.spans.iter().enumerate() {
            let title = self.pod_names[number].clone().unwrap_or(format!("pod {}", number + 1));
            let (corner, width) = (point(left - 12.0, top), right - left + 24.0);
            self.scene.panels.push(Panel { corner, width, height: bottom - top, title, title_below: true });
        }
    }

    fn draw_row_labels(&mut self) {
        let left = if self.pods.len() > 1 { -34.0 } else { -22.0 };
        for (number, row) in self.rows.iter().enumerate() {
            let what = match CardRole::of_tier(number as u8 + 1, self.top()) {
                CardRole::Core => "core",
                CardRole::Spine => "spine",
                CardRole::Leaf => "leaf",
                CardRole::Switch | CardRole::Pod | CardRole::Host => "switch",
            };
            let y = self.scene.cards[self.cards[row[0]]].centre.y;
            self.scene.labels.push(row_label(point(left, y), counted(row.len(), what)));
        }
        if let Some(card) = self.scene.cards.iter().find(|card| card.role == CardRole::Host) {
            let hosts = self.fabric.topology.end_nodes().count();
            let label = row_label(point(left, card.centre.y), counted(hosts, "host"));
            self.scene.labels.push(label);
        }
    }
}

pub(super) fn row_label(at: Point, text: String) -> Label {
    Label { at, text, anchor: Anchor::End, angle: 0.0, muted: true }
}

/// Connected components of the switches below the top tier that contain leaves.
pub(super) fn pods(fabric: &DrawnFabric<'_>, tiers: &[u8], top: usize) -> Vec<Vec<SwitchIndex>> {
    let below_top = |switch: SwitchIndex| top < 3 || usize::from(tiers[switch]) < top;
    let components = fabric.graph.components(|here, there| below_top(here) && below_top(there));
    components.into_iter().filter(|component| component.iter().any(|switch| tiers[*switch] == 1)).collect()
}

/// The common prefix of the names of a pod's switches, up to a hyphen; `None` if there is none.
pub(super) fn pod_name(fabric: &DrawnFabric<'_>, pod: &[SwitchIndex]) -> Option<String> {
    let mut names = pod.iter().map(|switch| fabric.name(*switch));
    let first = names.next()?;
    let common = names.fold(first.len(), |length, name| {
        first.bytes().zip(name.bytes()).take(length).take_while(|(a, b)| a == b).count()
    });
    let (name, _) = first.get(..common)?.rsplit_once('-')?;
    (pod.len() > 1 && !name.is_empty()).then(|| name.to_owned())
}

fn lists_hosts(fabric: &DrawnFabric<'_>) -> bool {
    fabric.topology.end_nodes().count() <= HOSTS_DRAWN_MAX
}

/// Width of the slot of a leaf.
fn slot(fabric: &DrawnFabric<'_>, leaves: &[SwitchIndex]) -> f32 {
    if !lists_hosts(fabric) {
        return (WIDTH_WANTED / leaves.len() as f32).clamp(SLOT_MIN, SLOT_MAX);
    }
    let hosts = leaves.iter().flat_map(|leaf| fabric.hosts(*leaf));
    let name_width =
        hosts.map(|host| text_width(&fabric.topology[*host].description, LIST_SIZE)).fold(0.0, f32::max);
    let columns =
        leaves.iter().map(|leaf| fabric.hosts(*leaf).len().div_ceil(LIST_ROWS_MAX)).max().unwrap_or(1);
    let own = leaves.iter().map(|leaf| text_width(fabric.name(*leaf), 12.0)).fold(0.0, f32::max);
    ((name_width + 12.0) * columns as f32 + 18.0).max(own + 30.0).max(96.0)
}
