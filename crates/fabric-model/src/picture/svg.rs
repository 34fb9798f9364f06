//! A [`Scene`] as SVG: one path per kind of wire, so that ten thousand wires stay a small file.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::scene::{Anchor, Bend, Card, Label, Panel, Point, Role, Scene, Text, Wire, svg_label_size};

const MARGIN: f32 = 48.0;
const TITLE_HEIGHT: f32 = 84.0;
const LEGEND_HEIGHT: f32 = 56.0;
/// Room for the title and the legend of a small drawing.
const WIDTH_MIN: f32 = 860.0;

const BACKGROUND: &str = "#fbfaf7";
const INK: &str = "#2b323c";
const MUTED: &str = "#7b8490";

/// Draws a scene with a title above and a legend below.
pub(super) fn render(scene: &Scene, title: &str, subtitle: &str) -> String {
    let mut svg = String::new();
    write_svg(&mut svg, scene, title, subtitle).expect("writing to a string does not fail");
    svg
}

fn write_svg(svg: &mut String, scene: &Scene, title: &str, subtitle: &str) -> fmt::Result {
    let (low, high) = scene.bounds();
    let content = high.x - low.x;
    let width = (content + 2.0 * MARGIN).max(WIDTH_MIN);
    let height = high.y - low.y + TITLE_HEIGHT + LEGEND_HEIGHT + 1.5 * MARGIN;
    let (left, top) = ((width - content) / 2.0 - low.x, TITLE_HEIGHT + MARGIN / 2.0 - low.y);
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" font-family="Inter, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif">"#
    )?;
    writeln!(svg, "<title>{}</title>", Escaped(title))?;
    writeln!(svg, r#"<rect width="100%" height="100%" fill="{BACKGROUND}"/>"#)?;
    writeln!(
        svg,
        r#"<text x="{MARGIN}" y="50" font-size="23" font-weight="600" fill="{INK}">{}</text>"#,
        Escaped(title)
    )?;
    writeln!(svg, r#"<text x="{MARGIN}" y="74" font-size="13" fill="{MUTED}">{}</text>"#, Escaped(subtitle))?;
    writeln!(svg, r#"<g transform="translate({left:.1} {top:.1})">"#)?;
    scene.panels.iter().try_for_each(|panel| write_panel(svg, panel))?;
    write_wires(svg, &scene.wires)?;
    scene.cards.iter().try_for_each(|card| write_card(svg, card))?;
    scene.labels.iter().try_for_each(|label| write_label(svg, label))?;
    svg.push_str("</g>\n");
    write_legend(svg, scene, height - LEGEND_HEIGHT / 2.0)?;
    svg.push_str("</svg>\n");
    Ok(())
}

/// Fill and stroke.
fn colours(role: Role) -> (&'static str, &'static str) {
    match role {
        Role::Core => ("#e6dcf2", "#9a7fc0"),
        Role::Spine => ("#d5e2f4", "#7397c9"),
        Role::Leaf => ("#d3e9dc", "#6fa98a"),
        Role::Switch => ("#d5e2f4", "#7397c9"),
        Role::Pod => ("#d3e9dc", "#6fa98a"),
        Role::Host => ("#f1eee6", "#c3b9a2"),
    }
}

fn legend_text(role: Role) -> &'static str {
    match role {
        Role::Core => "core switch",
        Role::Spine => "spine switch",
        Role::Leaf => "leaf switch",
        Role::Switch => "switch",
        Role::Pod => "pod of leaves and spines",
        Role::Host => "hosts",
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

/// Thin, medium, thick: by how many cables a wire stands for.
fn thickness(cables: u32) -> u8 {
    match cables {
        0..=1 => 0,
        2..=3 => 1,
        _ => 2,
    }
}

/// Opacity and a factor for the thickness: many wires are drawn paler and thinner, so that they stay a texture.
fn strength(wires: usize) -> (f32, f32) {
    match wires {
        0..=60 => (0.75, 1.0),
        61..=220 => (0.5, 0.75),
        221..=800 => (0.45, 0.6),
        801..=3000 => (0.38, 0.42),
        _ => (0.18, 0.3),
    }
}

fn write_wires(svg: &mut String, wires: &[Wire]) -> fmt::Result {
    let mut paths: BTreeMap<(Role, u8, i32, i32), String> = BTreeMap::new();
    for wire in wires {
        // A path is as pale where it crosses itself as elsewhere. One for each end shows where wires gather.
        let kind = (wire.role, thickness(wire.cables), wire.to.x as i32, wire.to.y as i32);
        write_wire(paths.entry(kind).or_default(), wire)?;
    }
    let mut counts: BTreeMap<Role, usize> = BTreeMap::new();
    wires.iter().for_each(|wire| *counts.entry(wire.role).or_default() += 1);
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

fn write_wire(path: &mut String, wire: &Wire) -> fmt::Result {
    let Wire { from, to, .. } = wire;
    write!(path, "M{:.0} {:.0}", from.x, from.y)?;
    match wire.bend {
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
        Text::List(columns) => write_list(svg, card, columns, x, y),
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

/// Row height of a list of hosts.
pub(super) const LIST_STEP: f32 = 15.0;
/// Font size of a list of hosts.
pub(super) const LIST_SIZE: f32 = 10.5;

fn write_list(svg: &mut String, card: &Card, columns: usize, x: f32, y: f32) -> fmt::Result {
    let rows = card.lines.len().div_ceil(columns);
    let column_width = (card.width - 10.0) / columns as f32;
    for (number, line) in card.lines.iter().enumerate() {
        let (column, row) = ((number / rows) as f32, (number % rows) as f32);
        let (x, y) = (x + 10.0 + column * column_width, y + 18.0 + row * LIST_STEP);
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

fn write_legend(svg: &mut String, scene: &Scene, y: f32) -> fmt::Result {
    let mut x = MARGIN;
    for role in Role::ALL.into_iter().filter(|role| scene.cards.iter().any(|card| card.role == *role)) {
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
    if scene.wires.iter().any(|wire| wire.cables > 1) {
        writeln!(
            svg,
            r#"<path d="M{x:.0} {y:.0}h26" stroke="{MUTED}" stroke-width="2.8" stroke-linecap="round"/>"#
        )?;
        write_legend_text(svg, x + 36.0, y, "a thicker line is several cables")?;
    }
    Ok(())
}

fn write_legend_text(svg: &mut String, x: f32, y: f32, text: &str) -> fmt::Result {
    writeln!(svg, r#"<text x="{x:.0}" y="{:.0}" font-size="12" fill="{MUTED}">{text}</text>"#, y + 4.0)
}

/// A text as XML can carry it.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                c if c.is_control() => f.write_char(' ')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}
