//! Figures as drawings: lines over an axis, in the look of [`diagram`](crate::diagram).
//!
//! A [`LineChart`] says what is to be seen — axes, series, reference lines — and [`LineChart::to_svg`] draws it, whatever the figures are:
//! a point that cannot stand on its axis (no number, or not above 0 on a logarithmic axis) is left out and the line
//! breaks there.
//!
//! ```
//! use fabric_drawing::chart::{Axis, LineChart, ReferenceLine, Series};
//!
//! let chart = LineChart {
//!     title: "Latency".to_owned(),
//!     subtitle: "all-to-all, seed 1".to_owned(),
//!     x: Axis::log("latency in µs"),
//!     y: Axis::log("share of packets that took longer"),
//!     series: vec![Series::new("cluster a", vec![(1.2, 1.0), (1.9, 0.01), (2.4, 0.0001)])],
//!     reference_lines: vec![ReferenceLine::at_x("bound of a", 3.1)],
//! };
//! assert!(chart.to_svg().ends_with("</svg>\n"));
//! ```

mod axis;
mod labels;
mod svg;

/// A chart of lines.
#[derive(Clone, Debug, PartialEq)]
pub struct LineChart {
    /// What stands above it.
    pub title: String,
    /// What stands below the title.
    pub subtitle: String,
    /// The axis to the right.
    pub x: Axis,
    /// The axis upwards.
    pub y: Axis,
    /// The lines, the first on top.
    pub series: Vec<Series>,
    /// Straight lines for what the others are to be compared with.
    pub reference_lines: Vec<ReferenceLine>,
}

impl LineChart {
    /// Draws it. The same chart gives the same text.
    pub fn to_svg(&self) -> String {
        svg::render(self)
    }
}

/// One axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it measures, with the unit.
    pub label: String,
    /// How values lie on it.
    pub scale: Scale,
    /// From where to where it runs. Without, or where these cannot be its ends, it holds all points and reference lines, and a
    /// linear one 0 too.
    pub range: Option<(f64, f64)>,
}

impl Axis {
    /// An axis on which equal steps are equal differences.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Linear, range: None }
    }

    /// An axis on which equal steps are equal factors.
    pub fn log(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Log, range: None }
    }

    /// The same with given ends, so that several charts can be laid side by side.
    #[must_use]
    pub fn with_range(self, low: f64, high: f64) -> Self {
        Self { range: Some((low, high)), ..self }
    }
}

/// How values lie on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps are equal differences.
    Linear,
    /// Equal steps are equal factors; only values above 0 have a place.
    Log,
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// Its points in the order in which they are joined.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub style: LineStyle,
    /// Which colour it has, counted from 0; its place among the series if nobody says. Two lines of one thing, such as
    /// before and after, look best in one colour and two styles.
    pub colour: Option<usize>,
}

impl Series {
    /// A solid line in a colour of its own.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, style: LineStyle::Solid, colour: None }
    }

    /// The same, dashed.
    #[must_use]
    pub fn dashed(self) -> Self {
        Self { style: LineStyle::Dashed, ..self }
    }

    /// The same in a given colour.
    #[must_use]
    pub fn coloured(self, colour: usize) -> Self {
        Self { colour: Some(colour), ..self }
    }
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineStyle {
    /// Without gaps.
    Solid,
    /// With gaps.
    Dashed,
}

/// A thin dashed line across the chart, with a name: a bound, a promise.
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceLine {
    /// What it is.
    pub name: String,
    /// Where it is.
    pub at: Position,
    /// The colour of a series, to show that it belongs to it; grey if nobody says.
    pub colour: Option<usize>,
}

impl ReferenceLine {
    /// An upright line.
    pub fn at_x(name: impl Into<String>, x: f64) -> Self {
        Self { name: name.into(), at: Position::X(x), colour: None }
    }

    /// A level line.
    pub fn at_y(name: impl Into<String>, y: f64) -> Self {
        Self { name: name.into(), at: Position::Y(y), colour: None }
    }

    /// The same in the colour of a series.
    #[must_use]
    pub fn coloured(self, colour: usize) -> Self {
        Self { colour: Some(colour), ..self }
    }
}

/// Where a mark is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Position {
    /// Upright, at a place of the axis to the right.
    X(f64),
    /// Level, at a place of the axis upwards.
    Y(f64),
}

#[cfg(test)]
mod tests;
