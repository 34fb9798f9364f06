//! Renders a [`Scene`] as SVG. Cable lines of one kind and cells of one colour are one path each, so that drawings with ten
//! thousand cables stay small.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::heat::{self, IDLE, SHADES};
use super::scene::{
    Anchor, Bend, CableLine, Card, CardRole, Cells, Label, Panel, Point, Scene, Text, point, svg_label_size,
};
use crate::page::{BACKGROUND, Escaped, INK, MARGIN, MUTED, TITLE_HEIGHT, head_width, write_head};

const LEGEND_HEIGHT: f32 = 56.0;
/// Smallest width of a drawing, for title and legend.
const WIDTH_MIN: f32 = 860.0;
/// Height of the colour scale.
const SCALE_HEIGHT: f32 = 40.0;

/// Meaning of the colours of cable lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ink {
    /// The role of the card at the upper end.
    Roles,
    /// The load of the cables.
    Heat,
}

/// Renders a scene with a title above and a legend below.
pub(super) fn render(scene: &Scene, title: &str, subtitle: &str, ink: Ink) -> String {
    let mut svg = String::new();
    write_svg(&mut svg, scene, title, subtitle, ink).expect("writing to a string does not fail");
    svg
}

fn write_svg(svg: &mut String, scene: &Scene, title: &str, subtitle: &str, ink: Ink) -> fmt::Result {
    let (low, high) = scene.bounds();
    let content = high.x - low.x;
    let width = (content.max(head_width(title, subtitle)) + 2.0 * MARGIN).max(WIDTH_MIN);
    let scale = if ink == Ink::Heat { SCALE_HEIGHT } else { 0.0 };
    let height = high.y - low.y + TITLE_HEIGHT + LEGEND_HEIGHT + scale + 1.5 * MARGIN;
    let (left, top) = ((width - content) / 2.0 - low.x, TITLE_HEIGHT + MARGIN / 2.0 - low.y);
    write_head(svg, (width, height), title, subtitle)?;
    writeln!(svg, r#"<g transform="translate({left:.1} {top:.1})">"#)?;
    scene.panels.iter().try_for_each(|panel| write_panel(svg, panel))?;
    match ink {
        Ink::Roles => write_cable_lines(svg, &scene.cable_lines)?,
        Ink::Heat => write_heat_lines(svg, &scene.cable_lines)?,
    }
    scene.cards.iter().try_for_each(|card| write_card(svg, card))?;
    write_cells(svg, &scene.cells)?;
    scene.labels.iter().try_for_each(|label| write_label(svg, label))?;
    svg.push_str("</g>\n");
    if ink == Ink::Heat {
        write_scale(svg, height - LEGEND_HEIGHT / 2.0 - SCALE_HEIGHT)?;
    }
    write_legend(svg, scene, ink, height - LEGEND_HEIGHT / 2.0)?;
    svg.push_str("</svg>\n");
    Ok(())
}

/// Fill and stroke colour of a role.
fn colours(role: CardRole) -> (&'static str, &'static str) {
    match role {
        CardRole::Core => ("#e6dcf2", "#9a7fc0"),
        CardRole::Spine => ("#d5e2f4", "#7397c9"),
        CardRole::Leaf => ("#d3e9dc", "#6fa98a"),
        CardRole::Switch => ("#d5e2f4", "#7397c9"),
        CardRole::Pod => ("#d3e9dc", "#6fa98a"),
        CardRole::Host => ("#f1eee6", "#c3b9a2"),
    }
}

fn legend_text(role: CardRole) -> &'static str {
    match role {
        CardRole::Core => "core switch",
        CardRole::Spine => "spine switch",
        CardRole::Leaf => "leaf switch",
        CardRole::Switch => "switch",
        CardRole::Pod => "pod of leaves and spines",
        CardRole::Host => "hosts",
    }
}

fn write_panel(svg: &mut String, panel: &Panel) -> fmt::Result {
    let Panel { corner: Point { x, y }, width, height, title, title_below } = panel;
    writeln!(
        svg,
        r##"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="14" fill="#f3f1ea" stroke="#e2ddd0"/>"##
    )?;
    let title_y = if *title_below { y + height - 10.0 } else { y + 20.0 };
    writeln!(
        svg,
        r#"<text x="{:.1}" y="{title_y:.1}" font-size="12" fill="{MUTED}">{}</text>"#,
        x + 12.0,
        Escaped(title)
    )
}

/// Stroke width by the number of cables: thin, medium or thick.
fn thickness(cables: u32) -> u8 {
    match cables {
        0..=1 => 0,
        2..=3 => 1,
        _ => 2,
    }
}

/// Opacity and factor of the stroke width: the more cable lines, the paler and thinner they are.
fn strength(cable_lines: usize) -> (f32, f32) {
    match cable_lines {
        0..=60 => (0.75, 1.0),
        61..=220 => (0.5, 0.75),
        221..=800 => (0.45, 0.6),
        801..=3000 => (0.38, 0.42),
        _ => (0.18, 0.3),
    }
}

fn write_cable_lines(svg: &mut String, cable_lines: &[CableLine]) -> fmt::Result {
    let mut paths: BTreeMap<(CardRole, u8, i32, i32), String> = BTreeMap::new();
    for cable_line in cable_lines {
        // Crossings within one path are not darker. One path per end shows where cable lines converge.
        let kind = (
            cable_line.role,
            thickness(cable_line.cables.count),
            cable_line.to.x as i32,
            cable_line.to.y as i32,
        );
        write_wire(paths.entry(kind).or_default(), cable_line)?;
    }
    let counts = counts(cable_lines);
    for ((role, thickness, ..), path) in paths {
        let (opacity, factor) = strength(counts[&role]);
        let (_, stroke) = colours(role);
        let width = [1.2, 1.9, 2.8][usize::from(thickness)] * factor;
        writeln!(
            svg,
            r#"<path d="{path}" fill="none" stroke="{stroke}" stroke-width="{width:.2}" stroke-opacity="{opacity}" stroke-linecap="round"/>"#
        )?;
    }
    Ok(())
}

/// Number of cable lines of each role.
fn counts(cable_lines: &[CableLine]) -> BTreeMap<CardRole, usize> {
    let mut counts = BTreeMap::new();
    cable_lines.iter().for_each(|cable_line| *counts.entry(cable_line.role).or_default() += 1);
    counts
}

/// The busiest cables are drawn last, most opaque and widest.
fn write_heat_lines(svg: &mut String, cable_lines: &[CableLine]) -> fmt::Result {
    let mut paths: BTreeMap<(Option<u8>, CardRole, u8), String> = BTreeMap::new();
    for cable_line in cable_lines {
        let kind = (heat::shade(cable_line.cables.load), cable_line.role, thickness(cable_line.cables.count));
        write_wire(paths.entry(kind).or_default(), cable_line)?;
    }
    let counts = counts(cable_lines);
    for ((shade, role, thickness), path) in paths {
        let (_, factor) = strength(counts[&role]);
        let part = f32::from(shade.unwrap_or(0)) / f32::from(SHADES - 1);
        let opacity = if shade.is_none() { 0.7 } else { 0.62 + 0.33 * part };
        let width = [1.3, 1.7, 2.4][usize::from(thickness)] * factor * (0.8 + 0.5 * part);
        let stroke = heat::colour(shade);
        writeln!(
            svg,
            r#"<path d="{path}" fill="none" stroke="{stroke}" stroke-width="{width:.2}" stroke-opacity="{opacity:.2}" stroke-linecap="round"/>"#
        )?;
    }
    Ok(())
}

/// Cells of one colour and height are drawn as one path of short, wide strokes.
fn write_cells(svg: &mut String, blocks: &[Cells]) -> fmt::Result {
    let mut paths: BTreeMap<(u32, Option<u8>), String> = BTreeMap::new();
    for block in blocks {
        let Cells { corner, columns, step, size, loads } = block;
        // A background, since cable lines behind would look like further cells.
        writeln!(
            svg,
            r#"<rect x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}" rx="2" fill="{BACKGROUND}"/>"#,
            corner.x - 1.5,
            corner.y - 1.5,
            block.width() + 3.0,
            block.height() + 3.0
        )?;
        let tenths = (size.y * 10.0).round() as u32;
        for (number, load) in loads.iter().enumerate() {
            let x = corner.x + step.x * (number % columns) as f32;
            let y = corner.y + step.y * (number / columns) as f32 + size.y / 2.0;
            let path = paths.entry((tenths, heat::shade(*load))).or_default();
            write!(path, "M{x:.1} {y:.1}h{:.1}", size.x)?;
        }
    }
    for ((tenths, shade), path) in paths {
        let (stroke, height) = (heat::colour(shade), tenths as f32 / 10.0);
        writeln!(svg, r#"<path d="{path}" fill="none" stroke="{stroke}" stroke-width="{height:.1}"/>"#)?;
    }
    Ok(())
}

fn write_wire(path: &mut String, cable_line: &CableLine) -> fmt::Result {
    let CableLine { from, to, .. } = cable_line;
    write!(path, "M{:.0} {:.0}", from.x, from.y)?;
    match cable_line.bend {
        Bend::Straight => write!(path, "L{:.0} {:.0}", to.x, to.y),
        Bend::Upright => {
            let middle = (from.y + to.y) / 2.0;
            write!(path, "C{:.0} {middle:.0} {:.0} {middle:.0} {:.0} {:.0}", from.x, to.x, to.x, to.y)
        }
        Bend::Towards(control) => write!(path, "Q{:.0} {:.0} {:.0} {:.0}", control.x, control.y, to.x, to.y),
    }
}

fn write_card(svg: &mut String, card: &Card) -> fmt::Result {
    let Card { centre, width, height, role, .. } = card;
    let (fill, stroke) = colours(*role);
    let radius = (width.min(*height) / 3.2).min(8.0);
    let (x, y) = (centre.x - width / 2.0, centre.y - height / 2.0);
    writeln!(
        svg,
        r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="{radius:.1}" fill="{fill}" stroke="{stroke}"/>"#
    )?;
    match card.text {
        Text::Across(size) => write_lines(svg, card, size, ""),
        Text::Up(size) => {
            let turn = format!(r#" transform="rotate(-90 {:.1} {:.1})""#, centre.x, centre.y);
            write_lines(svg, card, size, &turn)
        }
        Text::List(columns) => write_list(svg, card, columns),
    }
}

fn write_lines(svg: &mut String, card: &Card, size: f32, transform: &str) -> fmt::Result {
    let step = size * 1.3;
    let first = card.centre.y + size * 0.36 - step * (card.lines.len() as f32 - 1.0) / 2.0;
    for (number, line) in card.lines.iter().enumerate() {
        let (x, y) = (card.centre.x, first + step * number as f32);
        let fill = if number == 0 { INK } else { MUTED };
        writeln!(
            svg,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" text-anchor="middle" fill="{fill}"{transform}>{}</text>"#,
            Escaped(line)
        )?;
    }
    Ok(())
}

/// Line height in a list of hosts.
pub(super) const LIST_STEP: f32 = 15.0;
/// Font size in a list of hosts.
pub(super) const LIST_SIZE: f32 = 10.5;

/// Upper left corner of a column of a list.
pub(super) fn list_corner(card: &Card, columns: usize, column: usize) -> Point {
    let column_width = (card.width - 10.0) / columns as f32;
    let left = card.centre.x - card.width / 2.0 + 10.0;
    point(left + column as f32 * column_width, card.centre.y - card.height / 2.0 + 5.0)
}

fn write_list(svg: &mut String, card: &Card, columns: usize) -> fmt::Result {
    let rows = card.lines.len().div_ceil(columns);
    for (number, line) in card.lines.iter().enumerate() {
        let corner = list_corner(card, columns, number / rows);
        let (x, y) = (corner.x, corner.y + 13.0 + (number % rows) as f32 * LIST_STEP);
        writeln!(
            svg,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{LIST_SIZE}" fill="{INK}">{}</text>"#,
            Escaped(line)
        )?;
    }
    Ok(())
}

fn write_label(svg: &mut String, label: &Label) -> fmt::Result {
    let Point { x, y } = label.at;
    let anchor = if label.anchor == Anchor::Start { "start" } else { "end" };
    let turn = match label.angle {
        0.0 => String::new(),
        angle => format!(r#" transform="rotate({angle:.1} {x:.1} {y:.1})""#),
    };
    let (size, fill) = (svg_label_size(), if label.muted { MUTED } else { INK });
    writeln!(
        svg,
        r#"<text x="{x:.1}" y="{y:.1}" dy="0.35em" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{turn}>{}</text>"#,
        Escaped(&label.text)
    )
}

fn write_legend(svg: &mut String, scene: &Scene, ink: Ink, y: f32) -> fmt::Result {
    let mut x = MARGIN;
    for role in CardRole::ALL.into_iter().filter(|role| scene.cards.iter().any(|card| card.role == *role)) {
        let (fill, stroke) = colours(role);
        let text = legend_text(role);
        writeln!(
            svg,
            r#"<rect x="{x:.0}" y="{:.0}" width="18" height="12" rx="4" fill="{fill}" stroke="{stroke}"/>"#,
            y - 6.0
        )?;
        write_legend_text(svg, x + 26.0, y, text)?;
        x += 26.0 + text.len() as f32 * 6.6 + 26.0;
    }
    let hot = ink == Ink::Heat;
    if scene.cable_lines.iter().any(|cable_line| cable_line.cables.count > 1) {
        writeln!(
            svg,
            r#"<path d="M{x:.0} {y:.0}h26" stroke="{MUTED}" stroke-width="2.8" stroke-linecap="round"/>"#
        )?;
        let text =
            if hot { "several cables, colour of the busiest" } else { "thicker lines are several cables" };
        write_legend_text(svg, x + 36.0, y, text)?;
        x += 36.0 + text.chars().count() as f32 * 6.6 + 26.0;
    }
    if hot && !scene.cells.is_empty() {
        let (fill, pods) = (heat::colour_at(0.5), scene.cards.iter().any(|card| card.role == CardRole::Pod));
        writeln!(svg, r#"<rect x="{x:.0}" y="{:.0}" width="8" height="8" fill="{fill}"/>"#, y - 4.0)?;
        let text = if pods { "one host or spine of a leaf" } else { "one host" };
        write_legend_text(svg, x + 16.0, y, text)?;
    }
    Ok(())
}

/// The colour scale from idle to full.
fn write_scale(svg: &mut String, y: f32) -> fmt::Result {
    const STEP: f32 = 10.0;
    let mut x = MARGIN;
    writeln!(svg, r#"<rect x="{x:.0}" y="{:.0}" width="18" height="12" fill="{IDLE}"/>"#, y - 6.0)?;
    write_legend_text(svg, x + 26.0, y, "idle")?;
    x += 96.0;
    for shade in 0..SHADES {
        let fill = heat::colour(Some(shade));
        let left = x + f32::from(shade) * STEP;
        // Slightly wider than its step, to avoid seams.
        writeln!(
            svg,
            r#"<rect x="{left:.0}" y="{:.0}" width="{:.1}" height="12" fill="{fill}"/>"#,
            y - 6.0,
            STEP + 0.4
        )?;
    }
    let width = STEP * f32::from(SHADES);
    for quarter in 0..=4u8 {
        let at = x + width * f32::from(quarter) / 4.0;
        writeln!(
            svg,
            r#"<text x="{at:.0}" y="{:.0}" font-size="10" text-anchor="middle" fill="{MUTED}">{} %</text>"#,
            y + 19.0,
            25 * quarter
        )?;
    }
    write_legend_text(svg, x + width + 24.0, y, "of the link rate, in the busier direction")
}

fn write_legend_text(svg: &mut String, x: f32, y: f32, text: &str) -> fmt::Result {
    writeln!(svg, r#"<text x="{x:.0}" y="{:.0}" font-size="12" fill="{MUTED}">{text}</text>"#, y + 4.0)
}
