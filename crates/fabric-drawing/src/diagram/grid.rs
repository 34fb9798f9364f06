//! Switches named by two or three coordinates — `switch-0-3` — as a grid; in three dimensions its planes stand one
//! behind the other.

use std::collections::HashSet;

use super::scene::{Bend, Card, Cells, Point, Role, Scene, Side, Text, Wire, point};
use super::{Fabric, counted};
use crate::page::text_width;
use fabric_model::SwitchIndex;

const ROW_GAP: f32 = 60.0;
const COLUMN_GAP: f32 = 62.0;
/// How far each plane stands behind the one before.
const PLANE_STEP: Point = point(46.0, -38.0);

/// Plane, row and column of a switch.
type Coordinates = [u16; 3];

/// Draws the fabric if all its switches have coordinates.
pub(super) fn draw(fabric: &Fabric<'_>) -> Option<Scene> {
    let places = (0..fabric.graph.switch_count()).map(|place| coordinates(fabric.name(place)));
    let places: Vec<Coordinates> = places.collect::<Option<_>>()?;
    let distinct: HashSet<_> = places.iter().collect();
    if places.is_empty() || distinct.len() < places.len() {
        return None;
    }
    let grid = Grid::new(fabric, &places);
    let mut scene = Scene::default();
    for (place, at) in places.iter().enumerate() {
        let card = grid.card(fabric, place, *at);
        if let Some(loads) = fabric.host_loads(place) {
            scene.cells.push(Cells::beside(&card, Side::Below, loads.to_vec()));
        }
        scene.cards.push(card);
    }
    for (a, b, cables) in fabric.pairs() {
        let (from, to) = (scene.cards[a].centre, scene.cards[b].centre);
        let role = if places[a][0] == places[b][0] { Role::Switch } else { Role::Core };
        scene.wires.push(Wire { from, to, bend: grid.bend(places[a], places[b], from, to), role, cables });
    }
    // What stands behind is drawn first.
    scene.cards.sort_by(|a, b| a.centre.y.total_cmp(&b.centre.y));
    Some(scene)
}

/// The numbers at the end of a name; the plane is 0 where there are two.
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
    /// Whether there are planes; then cards bear coordinates only.
    deep: bool,
    card_width: f32,
    row_step: f32,
    column_step: f32,
}

impl Grid {
    fn new(fabric: &Fabric<'_>, places: &[Coordinates]) -> Self {
        let planes = places.iter().map(|at| at[0]).max().unwrap_or(0);
        let deep = planes > 0;
        let labels = (0..places.len()).map(|place| text_width(label(fabric.name(place), deep), 12.0));
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

    fn card(&self, fabric: &Fabric<'_>, place: SwitchIndex, [plane, row, column]: Coordinates) -> Card {
        let centre = point(
            f32::from(column) * self.column_step + f32::from(plane) * PLANE_STEP.x,
            f32::from(row) * self.row_step + f32::from(plane) * PLANE_STEP.y,
        );
        let hosts = fabric.hosts(place).len();
        let mut lines = vec![label(fabric.name(place), self.deep).to_owned()];
        if hosts > 0 && !self.deep {
            lines.push(counted(hosts, "host"));
        }
        let (height, size) = if self.deep { (18.0, 10.0) } else { (16.0 + 16.0 * lines.len() as f32, 12.0) };
        Card { centre, width: self.card_width, height, role: Role::Switch, lines, text: Text::Across(size) }
    }

    /// Neighbours are joined straight; what wraps around swings out of the way.
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

/// What a card bears: the whole name, or in three dimensions the coordinates.
fn label(name: &str, deep: bool) -> &str {
    match name.split_once('-') {
        Some((_, coordinates)) if deep => coordinates,
        _ => name,
    }
}
