//! Layout for large trees of three tiers: one card per pod, and one card per group of cores with the same neighbours.

use std::collections::BTreeMap;

use super::heat::Cables;
use super::scene::{Bend, CableLine, Card, CardRole, Cells, Point, Scene, Side, Text, point};
use super::tree::{pod_name, pods, row_label};
use super::{DrawnFabric, counted, rows};
use fabric_model::SwitchIndex;

const POD_SLOT: f32 = 92.0;
const CORE_SLOT: f32 = 74.0;
const POD_HEIGHT: f32 = 96.0;
const CORE_HEIGHT: f32 = 40.0;
const GAP: f32 = 12.0;
/// Vertical distance between cores and pods.
const RISE: f32 = 300.0;
/// Largest number of pods in one row; if there are more, half of them are placed above the cores.
const ROW_PODS_MAX: usize = 18;

/// Draws a tree; `tiers` has the tier of each switch.
pub(super) fn draw(fabric: &DrawnFabric<'_>, tiers: &[u8]) -> Scene {
    let rows = rows(tiers);
    let pods = pods(fabric, tiers, rows.len());
    let groups = core_groups(fabric, rows.last().map_or(&[], Vec::as_slice));
    let above = if pods.len() > ROW_PODS_MAX { pods.len() / 2 } else { 0 };
    let columns = (pods.len() - above).max(1);
    let width = (columns as f32 * POD_SLOT).max(groups.len() as f32 * CORE_SLOT);

    let mut scene = Scene::default();
    for (number, pod) in pods.iter().enumerate() {
        let (column, y) = if number < above { (number, -RISE) } else { (number - above, RISE) };
        let slot = width / columns as f32;
        let lines = pod_lines(fabric, tiers, pod, number);
        let at = point(slot * (column as f32 + 0.5), y);
        let card = card(at, POD_SLOT - GAP, POD_HEIGHT, CardRole::Pod, lines);
        if fabric.heat.is_some() {
            let side = if number < above { Side::Above } else { Side::Below };
            scene.cells.extend(pod_cells(fabric, tiers, pod, &card, side));
        }
        scene.cards.push(card);
    }
    let slot = width / groups.len().max(1) as f32;
    for (number, group) in groups.iter().enumerate() {
        let at = point(slot * (number as f32 + 0.5), 0.0);
        let lines = vec![counted(group.len(), "core")];
        scene.cards.push(card(at, (slot - GAP).min(90.0), CORE_HEIGHT, CardRole::Core, lines));
    }
    scene.cable_lines = cable_lines(fabric, &pods, &groups, &scene.cards);
    label_cells(&mut scene);
    label_rows(&mut scene, above, pods.len() - above, groups.iter().map(Vec::len).sum());
    scene
}

fn label_rows(scene: &mut Scene, pods_above: usize, pods_below: usize, cores: usize) {
    scene.labels.push(row_label(point(-24.0, 0.0), counted(cores, "core")));
    scene.labels.push(row_label(point(-24.0, RISE), counted(pods_below, "pod")));
    if pods_above > 0 {
        scene.labels.push(row_label(point(-24.0, -RISE), counted(pods_above, "pod")));
    }
}

/// Cells for the cables that the card of a pod hides: one block for the cables inside the pod, one for those to its hosts.
fn pod_cells(
    fabric: &DrawnFabric<'_>,
    tiers: &[u8],
    pod: &[SwitchIndex],
    card: &Card,
    side: Side,
) -> [Cells; 2] {
    const BLOCK_GAP: f32 = 10.0;
    let is_leaf = |switch: &SwitchIndex| tiers[*switch] == 1;
    let inside: Vec<f32> = fabric.pairs_among(pod).map(|(_, _, cables)| cables.load).collect();
    let spines = pod.iter().filter(|switch| !is_leaf(switch)).count();
    let inside = Cells::in_columns(card, side, spines.max(1), inside);
    let leaves = || pod.iter().filter_map(|switch| fabric.host_loads(*switch));
    let widest = leaves().map(<[f32]>::len).max().unwrap_or(1);
    let mut hosts = Cells::in_columns(card, side, widest, leaves().flatten().copied().collect());
    let away = if side == Side::Below { 1.0 } else { -1.0 };
    hosts.corner.y += away * (inside.height() + BLOCK_GAP);
    [inside, hosts]
}

/// Labels the cells, to the left of the first pod of each row.
fn label_cells(scene: &mut Scene) {
    let leftmost = scene.cells.iter().map(|cells| cells.corner.x).fold(f32::INFINITY, f32::min);
    let first = scene.cells.chunks(2).filter(|pair| pair[0].corner.x < leftmost + POD_SLOT / 2.0);
    let names = ["leaf to spine", "leaf to host"];
    let labels: Vec<_> = first
        .flat_map(|pair| pair.iter().zip(names))
        .map(|(cells, name)| row_label(point(-24.0, cells.corner.y + cells.height() / 2.0), name.to_owned()))
        .collect();
    scene.labels.extend(labels);
}

fn card(centre: Point, width: f32, height: f32, role: CardRole, lines: Vec<String>) -> Card {
    Card { centre, width, height, role, lines, text: Text::Across(12.0) }
}

fn pod_lines(fabric: &DrawnFabric<'_>, tiers: &[u8], pod: &[SwitchIndex], number: usize) -> Vec<String> {
    let leaves = pod.iter().filter(|switch| tiers[**switch] == 1).count();
    let hosts: usize = pod.iter().map(|switch| fabric.hosts(*switch).len()).sum();
    vec![
        pod_name(fabric, pod).unwrap_or(format!("pod {}", number + 1)),
        counted(pod.len() - leaves, "spine"),
        counted(leaves, "leaf"),
        counted(hosts, "host"),
    ]
}

/// Groups of cores with the same neighbours, in the order of their first cores.
fn core_groups(fabric: &DrawnFabric<'_>, cores: &[SwitchIndex]) -> Vec<Vec<SwitchIndex>> {
    let mut groups: BTreeMap<Vec<SwitchIndex>, Vec<SwitchIndex>> = BTreeMap::new();
    for core in cores {
        let neighbours = fabric.graph.neighbours[*core].iter().map(|(switch, _)| *switch).collect();
        groups.entry(neighbours).or_default().push(*core);
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort();
    groups
}

fn cable_lines(
    fabric: &DrawnFabric<'_>,
    pods: &[Vec<SwitchIndex>],
    groups: &[Vec<SwitchIndex>],
    cards: &[Card],
) -> Vec<CableLine> {
    let mut card_of = vec![None; fabric.graph.switch_count()];
    for (card, members) in pods.iter().chain(groups).enumerate() {
        members.iter().for_each(|switch| card_of[*switch] = Some(card));
    }
    let mut bundles = BTreeMap::new();
    for (a, b, cables) in fabric.pairs() {
        if let (Some(a), Some(b)) = (card_of[a], card_of[b])
            && a != b
        {
            let bundle = bundles.entry((a.min(b), a.max(b))).or_insert(Cables::default());
            *bundle = bundle.with(cables);
        }
    }
    let cable_line = |((pod, core), cables): ((usize, usize), Cables)| {
        let (pod, core) = (&cards[pod], &cards[core]);
        let side = if pod.centre.y < core.centre.y { -0.5 } else { 0.5 };
        CableLine {
            from: point(pod.centre.x, pod.centre.y - side * pod.height),
            to: point(core.centre.x, core.centre.y + side * core.height),
            bend: Bend::Straight,
            role: CardRole::Core,
            cables,
        }
    };
    bundles.into_iter().map(cable_line).collect()
}
