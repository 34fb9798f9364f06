//! Layout for all other fabrics: a ring of switches with the names outside and the cables across.

use std::f32::consts::TAU;

use super::scene::{Anchor, Bend, CableLine, Card, CardRole, Cells, Label, Point, Scene, Text, point};
use super::{DrawnFabric, counted};
use fabric_model::SwitchIndex;

/// Distance between two switches along the ring.
const SLOT: f32 = 30.0;
const RADIUS_MIN: f32 = 220.0;
const DOT: f32 = 20.0;

/// Draws the fabric; works for every topology.
pub(super) fn draw(fabric: &DrawnFabric<'_>) -> Scene {
    let mut scene = Scene::default();
    let count = fabric.graph.switch_count();
    let radius = (count as f32 * SLOT / TAU).max(RADIUS_MIN);
    for switch in 0..count {
        let angle = TAU * switch as f32 / count as f32 - TAU / 4.0;
        let centre = point(radius * angle.cos(), radius * angle.sin());
        let text = Text::Across(12.0);
        scene.cards.push(Card {
            centre,
            width: DOT,
            height: DOT,
            role: CardRole::Switch,
            lines: Vec::new(),
            text,
        });
        if let Some(loads) = fabric.host_loads(switch) {
            scene.cells.push(cells_inside(centre, loads));
        }
        scene.labels.push(label(fabric, switch, radius + 22.0, angle));
    }
    for (a, b, cables) in fabric.pairs() {
        let (from, to) = (scene.cards[a].centre, scene.cards[b].centre);
        let control = point((from.x + to.x) * 0.36, (from.y + to.y) * 0.36);
        scene.cable_lines.push(CableLine {
            from,
            to,
            bend: Bend::Towards(control),
            role: CardRole::Switch,
            cables,
        });
    }
    scene
}

/// Host cells as a square on the dot of a switch.
fn cells_inside(centre: Point, loads: &[f32]) -> Cells {
    const WIDTH: f32 = DOT - 5.0;
    let columns = (loads.len() as f32).sqrt().ceil() as usize;
    let step = (WIDTH / columns as f32).min(9.0);
    let size = point(step * 0.88, step * 0.88);
    let mut cells = Cells { corner: centre, columns, step: point(step, step), size, loads: loads.to_vec() };
    cells.corner = point(centre.x - cells.width() / 2.0, centre.y - cells.height() / 2.0);
    cells
}

/// The name of a switch, written radially and never upside down.
fn label(fabric: &DrawnFabric<'_>, switch: SwitchIndex, distance: f32, angle: f32) -> Label {
    let hosts = fabric.hosts(switch).len();
    let mut text = fabric.name(switch).to_owned();
    if hosts > 0 {
        text = format!("{text} · {}", counted(hosts, "host"));
    }
    let at = point(distance * angle.cos(), distance * angle.sin());
    let left = angle.cos() < -0.001;
    let (anchor, turn) = if left { (Anchor::End, 180.0) } else { (Anchor::Start, 0.0) };
    Label { at, text, anchor, angle: angle.to_degrees() - turn, muted: false }
}
