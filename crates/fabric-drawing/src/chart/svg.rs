//! Renders a line chart: the plot, labels of series and horizontal lines to its right, labels of vertical lines above it.

use std::fmt::{self, Write};

use super::axis::{AxisRange, Tick};
use super::labels::{NAME_SIZE, NAME_STEP, cut, rows, spread};
use super::{LineChart, LineStyle, Position, ReferenceLine, Series};
use crate::page::{
    BACKGROUND, Escaped, INK, MARGIN, MUTED, TITLE_HEIGHT, head_width, text_width, write_head,
};

const PLOT_WIDTH: f32 = 720.0;
const PLOT_HEIGHT: f32 = 400.0;
const GRID: &str = "#e6e2d8";
const TICK_SIZE: f32 = 11.0;
/// Height of a row of labels above the plot.
const ROW_HEIGHT: f32 = 17.0;
/// Space between the plot and the labels to its right, for the leader lines.
const LEAD: f32 = 30.0;
/// Length of the line sample before a label.
const SAMPLE: f32 = 20.0;
/// Labels are placed at the line ends if all lines end within this fraction of the width from the right edge.
const END_PART: f32 = 0.03;
/// Distance between two rings on a line.
const RING_GAP: f32 = 84.0;
/// Points closer than this to the previous one are not drawn.
const POINT_GAP: f32 = 0.4;

/// Palette that is distinguishable with colour vision deficiencies: the colours of Okabe and Ito and of Tol, adjusted to
/// maximize the smallest distance. Further lines reuse the colours with rings.
pub(super) const COLOURS: [&str; 10] = [
    "#006fde", "#ca4c00", "#4aa674", "#d851ab", "#f2a700", "#2fc2ff", "#2c09b6", "#6d0033", "#794a24",
    "#4e1671",
];

/// Draws a chart as an SVG document.
pub(super) fn render(lines: &LineChart) -> String {
    let mut svg = String::new();
    Chart::new(lines).write(&mut svg).expect("writing to a string does not fail");
    svg
}

/// A point in the drawing; `y` grows downwards.
type PlotPoint = (f32, f32);

/// A chart with the positions of its parts.
struct Chart<'a> {
    lines: &'a LineChart,
    x: AxisRange,
    y: AxisRange,
    /// Edges of the plot, from here to `bottom`.
    left: f32,
    top: f32,
    right: f32,
    bottom: f32,
    /// For each series, the runs of consecutive points that have a position.
    runs: Vec<Vec<Vec<PlotPoint>>>,
    names: Vec<Name>,
    verticals: Vec<VerticalLine>,
}

/// A label to the right of the plot.
struct Name {
    text: String,
    full: String,
    /// Height at which the line ends, if the label is placed at line ends.
    end: Option<f32>,
    stroke: Stroke,
    at: f32,
}

/// A vertical reference line with its label.
struct VerticalLine {
    text: String,
    full: String,
    x: f32,
    row: usize,
    stroke: Stroke,
}

/// Appearance of a line.
#[derive(Clone, Copy, Debug)]
struct Stroke {
    colour: &'static str,
    width: f32,
    dashes: &'static str,
    rings: bool,
}

impl Stroke {
    fn of_series(series: &Series, number: usize) -> Self {
        let colour = series.colour.unwrap_or(number);
        let dashes = if series.style == LineStyle::Dashed { r#" stroke-dasharray="7 4""# } else { "" };
        let rings = colour / COLOURS.len() % 2 == 1;
        Self { colour: COLOURS[colour % COLOURS.len()], width: 2.0, dashes, rings }
    }

    fn of_reference(line: &ReferenceLine) -> Self {
        let colour = line.colour.map_or(MUTED, |colour| COLOURS[colour % COLOURS.len()]);
        Self { colour, width: 1.2, dashes: r#" stroke-dasharray="3 3""#, rings: false }
    }
}

impl<'a> Chart<'a> {
    fn new(lines: &'a LineChart) -> Self {
        let points = || lines.series.iter().flat_map(|series| series.points.iter().copied());
        let reference_lines = || lines.reference_lines.iter().map(|line| line.at);
        let xs = points().map(|point| point.0).chain(reference_lines().filter_map(|at| match at {
            Position::X(x) => Some(x),
            Position::Y(_) => None,
        }));
        let ys = points().map(|point| point.1).chain(reference_lines().filter_map(|at| match at {
            Position::X(_) => None,
            Position::Y(y) => Some(y),
        }));
        let (x, y) = (AxisRange::new(&lines.x, xs), AxisRange::new(&lines.y, ys));
        let tick_width = y.ticks().iter().map(|tick| text_width(&tick.text, TICK_SIZE)).fold(24.0, f32::max);
        let left = MARGIN + tick_width + 10.0;
        let mut chart = Self {
            lines,
            x,
            y,
            left,
            top: 0.0,
            right: left + PLOT_WIDTH,
            bottom: PLOT_HEIGHT,
            runs: Vec::new(),
            names: Vec::new(),
            verticals: Vec::new(),
        };
        chart.place_verticals();
        let horizontals =
            lines.reference_lines.iter().filter(|line| matches!(line.at, Position::Y(_))).count();
        let names_height = (lines.series.len() + horizontals) as f32 * NAME_STEP;
        let rows = chart.verticals.iter().map(|line| line.row + 1).max().unwrap_or(0);
        chart.top = TITLE_HEIGHT + 44.0 + rows as f32 * ROW_HEIGHT;
        chart.bottom = chart.top + PLOT_HEIGHT.max(names_height);
        chart.runs = lines.series.iter().map(|series| chart.runs_of(series)).collect();
        chart.place_names();
        chart
    }

    fn across(&self, part: f64) -> f32 {
        self.left + (self.right - self.left) * part as f32
    }

    fn up(&self, part: f64) -> f32 {
        self.bottom - (self.bottom - self.top) * part as f32
    }

    fn place_verticals(&mut self) {
        let placed = self.lines.reference_lines.iter().filter_map(|line| match line.at {
            Position::X(x) => Some((line, self.across(self.x.inside(x)?))),
            Position::Y(_) => None,
        });
        let texts: Vec<(&ReferenceLine, f32, String)> =
            placed.map(|(line, x)| (line, x, cut(&line.name))).collect();
        let begins: Vec<(f32, &str)> = texts.iter().map(|(_, x, text)| (*x, text.as_str())).collect();
        let rows = rows(&begins);
        let vertical = |((line, x, text), row): ((&ReferenceLine, f32, String), usize)| {
            let stroke = Stroke::of_reference(line);
            VerticalLine { text, full: line.name.clone(), x, row, stroke }
        };
        self.verticals = texts.into_iter().zip(rows).map(vertical).collect();
    }

    /// The points of a series as runs, split where a point has no position.
    fn runs_of(&self, series: &Series) -> Vec<Vec<PlotPoint>> {
        let mut runs: Vec<Vec<PlotPoint>> = vec![Vec::new()];
        for (x, y) in &series.points {
            match (self.x.at(*x), self.y.at(*y)) {
                (Some(x), Some(y)) => {
                    let run = runs.last_mut().expect("there is one from the start");
                    run.push((self.across(x), self.up(y)));
                }
                _ => runs.push(Vec::new()),
            }
        }
        runs.retain(|run| !run.is_empty());
        runs
    }

    fn is_inside(&self, (x, y): PlotPoint) -> bool {
        let slack = 0.1;
        (self.left - slack..=self.right + slack).contains(&x)
            && (self.top - slack..=self.bottom + slack).contains(&y)
    }

    /// If all lines end at the right edge, the labels are placed at their ends; otherwise they form a list.
    fn place_names(&mut self) {
        let end_of = |runs: &Vec<Vec<PlotPoint>>| {
            let end = self.visible_end(runs.last()?)?;
            (self.right - end.0 <= END_PART * PLOT_WIDTH).then_some(end.1)
        };
        let ends: Vec<Option<f32>> = self.runs.iter().map(end_of).collect();
        let at_ends = ends.iter().all(Option::is_some);
        let mut names = Vec::new();
        for (number, series) in self.lines.series.iter().enumerate() {
            let text = match self.runs[number].is_empty() {
                true => format!("{} (no values)", cut(&series.name)),
                false => cut(&series.name),
            };
            let stroke = Stroke::of_series(series, number);
            let end = ends[number].filter(|_| at_ends);
            names.push(Name { text, full: series.name.clone(), end, stroke, at: 0.0 });
        }
        for line in &self.lines.reference_lines {
            if let Position::Y(y) = line.at
                && let Some(part) = self.y.inside(y)
            {
                let end = Some(self.up(part)).filter(|_| at_ends);
                let stroke = Stroke::of_reference(line);
                names.push(Name { text: cut(&line.name), full: line.name.clone(), end, stroke, at: 0.0 });
            }
        }
        let listed = |number: usize| self.top + NAME_STEP * (number as f32 + 0.5);
        let wanted: Vec<f32> =
            names.iter().enumerate().map(|(number, name)| name.end.unwrap_or(listed(number))).collect();
        for (name, at) in names.iter_mut().zip(spread(&wanted, self.top, self.bottom)) {
            name.at = at;
        }
        self.names = names;
    }

    /// Left end of the line samples before the labels.
    fn samples_left(&self) -> f32 {
        self.right + if self.names.iter().any(|name| name.end.is_some()) { LEAD } else { 22.0 }
    }

    fn write(&self, svg: &mut String) -> fmt::Result {
        let names_left = self.samples_left() + SAMPLE + 8.0;
        let names_width = self.names.iter().map(|name| text_width(&name.text, NAME_SIZE)).fold(0.0, f32::max);
        let verticals_right =
            self.verticals.iter().map(|line| line.x + 4.0 + text_width(&line.text, NAME_SIZE));
        let right = verticals_right.fold(names_left + names_width, f32::max);
        let width = right.max(MARGIN + head_width(&self.lines.title, &self.lines.subtitle)) + MARGIN;
        let height = self.bottom + 84.0;
        write_head(svg, (width, height), &self.lines.title, &self.lines.subtitle)?;
        self.write_axes(svg)?;
        self.verticals.iter().try_for_each(|line| self.write_vertical(svg, line))?;
        self.write_horizontals(svg)?;
        for (number, series) in self.lines.series.iter().enumerate().rev() {
            self.write_series(svg, &self.runs[number], Stroke::of_series(series, number))?;
        }
        self.names.iter().try_for_each(|name| self.write_name(svg, name))?;
        svg.push_str("</svg>\n");
        Ok(())
    }

    fn write_axes(&self, svg: &mut String) -> fmt::Result {
        let (left, right, top, bottom) = (self.left, self.right, self.top, self.bottom);
        let (mut grid, mut strokes) = (String::new(), String::new());
        for Tick { at, text } in self.x.ticks() {
            let x = self.across(at);
            write!(grid, "M{x:.1} {top:.1}V{bottom:.1}")?;
            write_text(svg, (x, bottom + 20.0), TICK_SIZE, "middle", MUTED, &text)?;
        }
        for Tick { at, text } in self.y.ticks() {
            let y = self.up(at);
            write!(grid, "M{left:.1} {y:.1}H{right:.1}")?;
            write_text(svg, (left - 9.0, y + 4.0), TICK_SIZE, "end", MUTED, &text)?;
        }
        for part in self.x.strokes() {
            write!(strokes, "M{:.1} {bottom:.1}v4", self.across(part))?;
        }
        for part in self.y.strokes() {
            write!(strokes, "M{left:.1} {:.1}h-4", self.up(part))?;
        }
        writeln!(svg, r#"<path d="{grid}" fill="none" stroke="{GRID}"/>"#)?;
        if !strokes.is_empty() {
            writeln!(svg, r#"<path d="{strokes}" fill="none" stroke="{MUTED}" stroke-opacity="0.5"/>"#)?;
        }
        writeln!(
            svg,
            r#"<path d="M{left:.1} {top:.1}V{bottom:.1}H{right:.1}" fill="none" stroke="{MUTED}" stroke-width="1.2"/>"#
        )?;
        let rows = self.verticals.iter().map(|line| line.row + 1).max().unwrap_or(0);
        let above = top - 14.0 - rows as f32 * ROW_HEIGHT;
        write_text(svg, (MARGIN, above), NAME_SIZE, "start", INK, &self.lines.y.label)?;
        let middle = (left + right) / 2.0;
        write_text(svg, (middle, bottom + 44.0), NAME_SIZE, "middle", INK, &self.lines.x.label)
    }

    fn write_vertical(&self, svg: &mut String, line: &VerticalLine) -> fmt::Result {
        let name = self.top - 9.0 - line.row as f32 * ROW_HEIGHT;
        let path = format!("M{:.1} {:.1}V{:.1}", line.x, name - 9.0, self.bottom);
        write_path(svg, &path, line.stroke)?;
        write_named(svg, (line.x + 5.0, name), &line.text, &line.full)
    }

    fn write_horizontals(&self, svg: &mut String) -> fmt::Result {
        for line in &self.lines.reference_lines {
            if let Position::Y(y) = line.at
                && let Some(part) = self.y.inside(y)
            {
                let path = format!("M{:.1} {:.1}H{:.1}", self.left, self.up(part), self.right);
                write_path(svg, &path, Stroke::of_reference(line))?;
            }
        }
        Ok(())
    }

    fn write_series(&self, svg: &mut String, runs: &[Vec<PlotPoint>], stroke: Stroke) -> fmt::Result {
        let (mut path, mut rings) = (String::new(), Vec::new());
        for run in runs {
            if let [alone] = run[..] {
                if self.is_inside(alone) {
                    write_circle(svg, alone, stroke.colour, stroke.colour)?;
                }
                continue;
            }
            let mut pen: Option<PlotPoint> = None;
            for pair in thinned(run).windows(2) {
                let Some((from, to)) = self.clipped(pair[0], pair[1]) else { continue };
                if pen != Some(from) {
                    write!(path, "M{:.1} {:.1}", from.0, from.1)?;
                }
                write!(path, "L{:.1} {:.1}", to.0, to.1)?;
                pen = Some(to);
            }
            if stroke.rings {
                rings.extend(along(run).into_iter().filter(|at| self.is_inside(*at)));
            }
        }
        if !path.is_empty() {
            write_path(svg, &path, stroke)?;
        }
        rings.into_iter().try_for_each(|at| write_circle(svg, at, BACKGROUND, stroke.colour))
    }

    /// Clips a line to the plot (Liang and Barsky).
    fn clipped(&self, from: PlotPoint, to: PlotPoint) -> Option<(PlotPoint, PlotPoint)> {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let (mut enter, mut leave) = (0.0f32, 1.0f32);
        let edges = [
            (-dx, from.0 - self.left),
            (dx, self.right - from.0),
            (-dy, from.1 - self.top),
            (dy, self.bottom - from.1),
        ];
        for (towards, room) in edges {
            match towards {
                // Parallel to the edge, with tolerance for rounding.
                0.0 if room < -0.1 => return None,
                0.0 => {}
                towards if towards < 0.0 => enter = enter.max(room / towards),
                towards => leave = leave.min(room / towards),
            }
        }
        let along = |part: f32| (from.0 + dx * part, from.1 + dy * part);
        let (start, end) =
            (if enter > 0.0 { along(enter) } else { from }, if leave < 1.0 { along(leave) } else { to });
        (enter <= leave).then_some((start, end))
    }

    /// The last point of a run inside the plot.
    fn visible_end(&self, run: &[PlotPoint]) -> Option<PlotPoint> {
        match run {
            [alone] => Some(*alone).filter(|at| self.is_inside(*at)),
            _ => run.windows(2).rev().find_map(|pair| Some(self.clipped(pair[0], pair[1])?.1)),
        }
    }

    fn write_name(&self, svg: &mut String, name: &Name) -> fmt::Result {
        let left = self.samples_left();
        if let Some(end) = name.end {
            let (from, middle) = (self.right + 3.0, (self.right + left) / 2.0);
            writeln!(
                svg,
                r#"<path d="M{from:.1} {end:.1}C{middle:.1} {end:.1} {middle:.1} {:.1} {:.1} {:.1}" fill="none" stroke="{}" stroke-opacity="0.45"/>"#,
                name.at,
                left - 2.0,
                name.at,
                name.stroke.colour
            )?;
        }
        write_path(svg, &format!("M{left:.1} {:.1}h{SAMPLE}", name.at), name.stroke)?;
        if name.stroke.rings {
            write_circle(svg, (left + SAMPLE / 2.0, name.at), BACKGROUND, name.stroke.colour)?;
        }
        write_named(svg, (left + SAMPLE + 8.0, name.at + 4.0), &name.text, &name.full)
    }
}

fn write_path(svg: &mut String, path: &str, stroke: Stroke) -> fmt::Result {
    let Stroke { colour, width, dashes, .. } = stroke;
    writeln!(
        svg,
        r#"<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"{dashes}/>"#
    )
}

fn write_circle(svg: &mut String, (x, y): PlotPoint, fill: &str, stroke: &str) -> fmt::Result {
    writeln!(
        svg,
        r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.2" fill="{fill}" stroke="{stroke}" stroke-width="1.5"/>"#
    )
}

fn write_text(
    svg: &mut String,
    (x, y): PlotPoint,
    size: f32,
    anchor: &str,
    fill: &str,
    text: &str,
) -> fmt::Result {
    writeln!(
        svg,
        r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{}</text>"#,
        Escaped(text)
    )
}

/// A label, with the full name as tooltip if it was truncated.
fn write_named(svg: &mut String, (x, y): PlotPoint, text: &str, full: &str) -> fmt::Result {
    write!(svg, r#"<text x="{x:.1}" y="{y:.1}" font-size="{NAME_SIZE}" fill="{INK}">{}"#, Escaped(text))?;
    if !text.starts_with(full) {
        write!(svg, "<title>{}</title>", Escaped(full))?;
    }
    svg.push_str("</text>\n");
    Ok(())
}

/// Drops points of a run that are too close to the previous one; keeps the last point.
fn thinned(run: &[PlotPoint]) -> Vec<PlotPoint> {
    let mut kept: Vec<PlotPoint> = Vec::new();
    for (number, at) in run.iter().enumerate() {
        let near = kept.last().is_some_and(|last| (last.0 - at.0).hypot(last.1 - at.1) < POINT_GAP);
        if !near || number + 1 == run.len() {
            kept.push(*at);
        }
    }
    kept
}

/// Points along a run, [`RING_GAP`] apart.
fn along(run: &[PlotPoint]) -> Vec<PlotPoint> {
    /// Largest number of rings of a run, for runs far outside the plot.
    const RINGS_MAX: usize = 64;
    let (mut points, mut left) = (Vec::new(), RING_GAP / 2.0);
    for pair in run.windows(2) {
        let ((x, y), (dx, dy)) = (pair[0], (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1));
        let length = dx.hypot(dy);
        let mut at = left;
        while at <= length && points.len() < RINGS_MAX {
            points.push((x + dx * at / length, y + dy * at / length));
            at += RING_GAP;
        }
        left = (at - length).max(0.0);
    }
    points
}
