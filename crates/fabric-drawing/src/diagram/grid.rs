//! Layout for switches that are named by two or three coordinates (`switch-0-3`): a grid. In three dimensions the
//! planes are drawn one behind the other.

use std::collections::HashSet;

use super::scene::{Bend, CableLine, Card, CardRole, Cells, Point, Scene, Side, Text, point};
use super::{DrawnFabric, counted};
use crate::page::text_width;
use fabric_model::SwitchIndex;

const ROW_GAP: f32 = 60.0;
const COLUMN_GAP: f32 = 62.0;
/// Offset of each plane from the one in front of it.
const PLANE_STEP: Point = point(46.0, -38.0);

/// Plane, row and column of a switch in the grid.
type Coordinates = [u16; 3];

/// Draws the fabric; `None` unless every switch has coordinates of its own.
pub(super) fn draw(fabric: &DrawnFabric<'_>) -> Option<Scene> {
    let coordinates = (0..fabric.graph.switch_count()).map(|switch| coordinates(fabric.name(switch)));
    let coordinates: Vec<Coordinates> = coordinates.collect::<Option<_>>()?;
    let distinct: HashSet<_> = coordinates.iter().collect();
    if coordinates.is_empty() || distinct.len() < coordinates.len() {
        return None;
    }
    let grid = Grid::new(fabric, &coordinates);
    let mut scene = Scene::default();
    for (switch, at) in coordinates.iter().enumerate() {
        let card = grid.card(fabric, switch, *at);
        if let Some(loads) = fabric.host_loads(switch) {
            scene.cells.push(Cells::beside(&card, Side::Below, loads.to_vec()));
        }
        scene.cards.push(card);
    }
    for (a, b, cables) in fabric.pairs() {
        let (from, to) = (scene.cards[a].centre, scene.cards[b].centre);
        let role = if coordinates[a][0] == coordinates[b][0] { CardRole::Switch } else { CardRole::Core };
        scene.cable_lines.push(CableLine {
            from,
            to,
            bend: grid.bend(coordinates[a], coordinates[b], from, to),
            role,
            cables,
        });
    }
    // Back to front.
    scene.cards.sort_by(|a, b| a.centre.y.total_cmp(&b.centre.y));
    Some(scene)
}

/// Reads the numbers at the end of a name; the plane is 0 if there are only two.
fn coordinates(name: &str) -> Option<Coordinates> {
    let numbers: Vec<u16> = name.split('-').skip(1).map(|part| part.parse().ok()).collect::<Option<_>>()?;
    match numbers[..] {
        [row, column] => Some([0, row, column]),
        [plane, row, column] => Some([plane, row, column]),
        _ => None,
    }
}

#[derive(Debug)]
struct Grid {
    /// Three dimensions: the cards show coordinates instead of names.
    deep: bool,
    card_width: f32,
    row_step: f32,
    column_step: f32,
}

impl Grid {
    fn new(fabric: &DrawnFabric<'_>, coordinates: &[Coordinates]) -> Self {
        let planes = coordinates.iter().map(|at| at[0]).max().unwrap_or(0);
        let deep = planes > 0;
        let labels = (0..coordinates.len()).map(|switch| text_width(label(fabric.name(switch), deep), 12.0));
        let card_width =
            if deep { labels.fold(0.0, f32::max) + 6.0 } else { labels.fold(0.0, f32::max) + 20.0 };
        let card_height = if deep { 18.0 } else { 48.0 };
        Self {
            deep,
            card_width,
            row_step: card_height + ROW_GAP - f32::from(planes) * PLANE_STEP.y,
            column_step: card_width + COLUMN_GAP + f32::from(planes) * PLANE_STEP.x,
        }
    }

    fn card(&self, fabric: &DrawnFabric<'_>, switch: SwitchIndex, [plane, row, column]: Coordinates) -> Card {
        let centre = point(
            f32::from(column) * self.column_step + f32::from(plane) * PLANE_STEP.x,
            f32::from(row) * self.row_step + f32::from(plane) * PLANE_STEP.y,
        );
        let hosts = fabric.hosts(switch).len();
        let mut lines = vec![label(fabric.name(switch), self.deep).to_owned()];
        if hosts > 0 && !self.deep {
            lines.push(counted(hosts, "host"));
        }
        let (height, size) = if self.deep { (18.0, 10.0) } else { (16.0 + 16.0 * lines.len() as f32, 12.0) };
        Card {
            centre,
            width: self.card_width,
            height,
            role: CardRole::Switch,
            lines,
            text: Text::Across(size),
        }
    }

    /// Neighbours are joined by straight lines; wrap-around cables bend around the switches between their ends.
    fn bend(&self, a: Coordinates, b: Coordinates, from: Point, to: Point) -> Bend {
        let steps: u16 = a.iter().zip(&b).map(|(a, b)| a.abs_diff(*b)).sum();
        let middle = point((from.x + to.x) / 2.0, (from.y + to.y) / 2.0);
        if steps == 1 {
            return Bend::Straight;
        }
        match (a[0] == b[0], a[1] == b[1]) {
            (true, true) => Bend::Towards(point(middle.x, middle.y - 96.0)),
            (true, false) => Bend::Towards(point(middle.x - 1.2 * self.card_width - 30.0, middle.y)),
            (false, _) => Bend::Towards(point(middle.x + 26.0, middle.y + 34.0)),
        }
    }
}

/// The text of a card: the whole name, or only the coordinates in three dimensions.
fn label(name: &str, deep: bool) -> &str {
    match name.split_once('-') {
        Some((_, coordinates)) if deep => coordinates,
        _ => name,
    }
}
