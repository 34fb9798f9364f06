//! Line charts as SVG, in the style of [`diagram`](crate::diagram).
//!
//! A [`LineChart`] has axes, series and reference lines; [`LineChart::to_svg`] draws it. Any values are accepted: a point
//! that has no position on its axis (NaN, infinite, or not above 0 on a logarithmic axis) is left out, and the line breaks
//! there.
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

/// A chart of lines over two axes.
#[derive(Clone, Debug, PartialEq)]
pub struct LineChart {
    pub title: String,
    pub subtitle: String,
    pub x: Axis,
    pub y: Axis,
    /// The lines; the first is drawn on top.
    pub series: Vec<Series>,
    /// Horizontal and vertical lines to compare the series with, such as bounds and guarantees.
    pub reference_lines: Vec<ReferenceLine>,
}

impl LineChart {
    /// Draws the chart as an SVG document. Equal charts give equal documents.
    pub fn to_svg(&self) -> String {
        svg::render(self)
    }
}

/// An axis of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The quantity with its unit.
    pub label: String,
    pub scale: Scale,
    /// Lower and upper end. If it is `None` or not a valid range for the scale, the axis covers all points and reference
    /// lines, and a linear axis also covers 0.
    pub range: Option<(f64, f64)>,
}

impl Axis {
    /// A linear axis that covers all values.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Linear, range: None }
    }

    /// A logarithmic axis that covers all values above 0.
    pub fn log(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Log, range: None }
    }

    /// Fixes the range, so that several charts can be compared side by side.
    #[must_use]
    pub fn with_range(self, low: f64, high: f64) -> Self {
        Self { range: Some((low, high)), ..self }
    }
}

/// Scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Linear,
    /// Values of 0 and below have no position.
    Log,
}

/// A line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    /// Points `(x, y)` in the order in which they are connected.
    pub points: Vec<(f64, f64)>,
    pub style: LineStyle,
    /// Number of the colour, from 0; by default the index of the series. Two lines of one subject, such as before and
    /// after, should have the same colour and different styles.
    pub colour: Option<usize>,
}

impl Series {
    /// A solid line in the default colour.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, style: LineStyle::Solid, colour: None }
    }

    /// Makes the line dashed.
    #[must_use]
    pub fn dashed(self) -> Self {
        Self { style: LineStyle::Dashed, ..self }
    }

    /// Sets the number of the colour.
    #[must_use]
    pub fn coloured(self, colour: usize) -> Self {
        Self { colour: Some(colour), ..self }
    }
}

/// Stroke of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineStyle {
    Solid,
    Dashed,
}

/// A thin dashed line across the chart with a name, such as a bound or a guarantee.
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceLine {
    pub name: String,
    pub at: Position,
    /// Number of the colour of the series that it belongs to; grey if `None`.
    pub colour: Option<usize>,
}

impl ReferenceLine {
    /// A vertical line at `x`.
    pub fn at_x(name: impl Into<String>, x: f64) -> Self {
        Self { name: name.into(), at: Position::X(x), colour: None }
    }

    /// A horizontal line at `y`.
    pub fn at_y(name: impl Into<String>, y: f64) -> Self {
        Self { name: name.into(), at: Position::Y(y), colour: None }
    }

    /// Gives the line the colour of a series.
    #[must_use]
    pub fn coloured(self, colour: usize) -> Self {
        Self { colour: Some(colour), ..self }
    }
}

/// Position of a reference line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Position {
    /// Vertical, at this value of the x axis.
    X(f64),
    /// Horizontal, at this value of the y axis.
    Y(f64),
}

#[cfg(test)]
mod tests;
