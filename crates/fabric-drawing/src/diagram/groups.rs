//! Layout for groups of leaves and spines that are connected spine to spine (Dragonfly+): a ring of panels.

use std::f32::consts::TAU;

use super::scene::{Bend, CableLine, Card, CardRole, Cells, Panel, Point, Scene, Side, card_in_slot, point};
use super::tree::pod_name;
use super::{DrawnFabric, counted};
use fabric_model::SwitchIndex;

const SLOT_WIDE: f32 = 76.0;
const SLOT_NARROW: f32 = 24.0;
/// Largest number of switches in a row with wide slots.
const WIDE_MAX: usize = 6;
const PADDING: f32 = 16.0;
const GROUP_HEIGHT: f32 = 196.0;

/// Draws the fabric; `None` unless it consists of several groups of leaves and spines when cables between spines are ignored.
pub(super) fn draw(fabric: &DrawnFabric<'_>) -> Option<Scene> {
    let has_hosts = |switch: SwitchIndex| !fabric.hosts(switch).is_empty();
    let groups = fabric.graph.components(|here, there| has_hosts(here) != has_hosts(there));
    let complete =
        |group: &Vec<SwitchIndex>| group.iter().any(|switch| has_hosts(*switch)) && group.len() > 1;
    if groups.len() < 2 || !groups.iter().all(complete) {
        return None;
    }
    let mut ring = Ring::new(fabric, groups);
    ring.draw_groups();
    ring.draw_cable_lines();
    Some(ring.scene)
}

struct Ring<'a> {
    fabric: &'a DrawnFabric<'a>,
    groups: Vec<Vec<SwitchIndex>>,
    group_width: f32,
    group_height: f32,
    slot: f32,
    radius: f32,
    group_of: Vec<usize>,
    cards: Vec<usize>,
    scene: Scene,
}

impl<'a> Ring<'a> {
    fn new(fabric: &'a DrawnFabric<'a>, groups: Vec<Vec<SwitchIndex>>) -> Self {
        let longest_row = groups.iter().map(|group| longest_row(fabric, group)).max().unwrap_or(1);
        let slot = if longest_row <= WIDE_MAX { SLOT_WIDE } else { SLOT_NARROW };
        let group_width = longest_row as f32 * slot + 2.0 * PADDING;
        let group_height = GROUP_HEIGHT + cells_height(fabric, slot);
        let diagonal = group_width.hypot(group_height) + 30.0;
        let chord = 2.0 * (TAU / 2.0 / groups.len() as f32).sin();
        let mut group_of = vec![0; fabric.graph.switch_count()];
        for (number, group) in groups.iter().enumerate() {
            group.iter().for_each(|switch| group_of[*switch] = number);
        }
        let (radius, cards) = ((diagonal / chord).max(260.0), vec![usize::MAX; fabric.graph.switch_count()]);
        Self {
            fabric,
            groups,
            group_width,
            group_height,
            slot,
            radius,
            group_of,
            cards,
            scene: Scene::default(),
        }
    }

    fn draw_groups(&mut self) {
        for number in 0..self.groups.len() {
            let angle = TAU * number as f32 / self.groups.len() as f32 - TAU / 4.0;
            self.draw_group(number, point(self.radius * angle.cos(), self.radius * angle.sin()));
        }
    }

    /// Places the spines on the inner side of the ring, towards the other groups.
    fn draw_group(&mut self, number: usize, centre: Point) {
        let group = self.groups[number].clone();
        let corner = point(centre.x - self.group_width / 2.0, centre.y - self.group_height / 2.0);
        let hosts: usize = group.iter().map(|switch| self.fabric.hosts(*switch).len()).sum();
        let name = pod_name(self.fabric, &group).unwrap_or(format!("group {}", number + 1));
        let title = format!("{name} · {}", counted(hosts, "host"));
        let (width, height, title_below) = (self.group_width, self.group_height, centre.y >= 0.0);
        self.scene.panels.push(Panel { corner, width, height, title, title_below });
        let away = if title_below { 1.0 } else { -1.0 };
        let (leaves, spines): (Vec<_>, Vec<_>) =
            group.into_iter().partition(|switch| !self.fabric.hosts(*switch).is_empty());
        let middle = centre.y - away * (12.0 + (self.group_height - GROUP_HEIGHT) / 2.0);
        self.draw_row(&leaves, CardRole::Leaf, &name, point(centre.x, middle + away * 48.0));
        self.draw_row(&spines, CardRole::Spine, &name, point(centre.x, middle - away * 48.0));
        let side = if title_below { Side::Below } else { Side::Above };
        for leaf in leaves {
            if let Some(loads) = self.fabric.host_loads(leaf) {
                let card = &self.scene.cards[self.cards[leaf]];
                self.scene.cells.push(Cells::beside(card, side, loads.to_vec()));
            }
        }
    }

    fn draw_row(&mut self, row: &[SwitchIndex], role: CardRole, group: &str, centre: Point) {
        let slot = (self.group_width - 2.0 * PADDING) / row.len().max(1) as f32;
        let left = centre.x - slot * row.len() as f32 / 2.0;
        for (number, switch) in row.iter().enumerate() {
            let name = self.fabric.name(*switch);
            let short = name.strip_prefix(group).map_or(name, |rest| rest.trim_start_matches('-'));
            let mut lines = vec![short.to_owned()];
            let hosts = self.fabric.hosts(*switch).len();
            if hosts > 0 && self.slot == SLOT_WIDE {
                lines.push(counted(hosts, "host"));
            }
            self.cards[*switch] = self.scene.cards.len();
            let at = point(left + slot * (number as f32 + 0.5), centre.y);
            self.scene.cards.push(card_in_slot(at, slot, role, lines));
        }
    }

    /// Lines within a group run from row to row; lines between groups pass near the centre of the ring.
    fn draw_cable_lines(&mut self) {
        for (a, b, cables) in self.fabric.pairs() {
            let (from, to): (&Card, &Card) =
                (&self.scene.cards[self.cards[a]], &self.scene.cards[self.cards[b]]);
            let cable_line = if self.group_of[a] == self.group_of[b] {
                CableLine {
                    from: from.centre,
                    to: to.centre,
                    bend: Bend::Upright,
                    role: CardRole::Leaf,
                    cables,
                }
            } else {
                let pull = 0.16;
                let control =
                    point((from.centre.x + to.centre.x) * pull, (from.centre.y + to.centre.y) * pull);
                CableLine {
                    from: from.centre,
                    to: to.centre,
                    bend: Bend::Towards(control),
                    role: CardRole::Core,
                    cables,
                }
            };
            self.scene.cable_lines.push(cable_line);
        }
    }
}

/// Height of the host cells of a leaf; 0 without loads.
fn cells_height(fabric: &DrawnFabric<'_>, slot: f32) -> f32 {
    let columns = ((slot - 8.0) / 7.0) as usize;
    let hosts = (0..fabric.graph.switch_count())
        .filter_map(|switch| fabric.host_loads(switch))
        .map(<[f32]>::len)
        .max();
    hosts.map_or(0.0, |hosts| hosts.div_ceil(columns) as f32 * 8.0 + 4.0)
}

fn longest_row(fabric: &DrawnFabric<'_>, group: &[SwitchIndex]) -> usize {
    let leaves = group.iter().filter(|switch| !fabric.hosts(**switch).is_empty()).count();
    leaves.max(group.len() - leaves)
}
