//! [`Scene`]: the output of a layout and input of the renderer. Cards, panels, cable lines and labels on a plane.

use super::heat::Cables;
use crate::page::text_width;

/// Role of a card, which determines its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CardRole {
    Core,
    Spine,
    Leaf,
    Switch,
    Pod,
    Host,
}

impl CardRole {
    /// All roles in the order of the legend.
    pub const ALL: [Self; 6] = [Self::Core, Self::Spine, Self::Leaf, Self::Switch, Self::Pod, Self::Host];

    /// The role of a switch in a tree of `top` tiers.
    pub fn of_tier(tier: u8, top: u8) -> Self {
        match (tier, top) {
            (_, 1) => Self::Switch,
            (1, _) => Self::Leaf,
            (tier, top) if tier == top && top > 2 => Self::Core,
            _ => Self::Spine,
        }
    }
}

/// A point; `y` grows downwards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub x: f32,
    pub y: f32,
}

pub(super) const fn point(x: f32, y: f32) -> Point {
    Point { x, y }
}

/// A rounded box with lines of text.
#[derive(Clone, Debug)]
pub(super) struct Card {
    pub centre: Point,
    pub width: f32,
    pub height: f32,
    pub role: CardRole,
    pub lines: Vec<String>,
    pub text: Text,
}

/// Direction of the text of a card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Text {
    /// Horizontal and centred, with this font size.
    Across(f32),
    /// Bottom to top and centred, with this font size.
    Up(f32),
    /// A list with this number of columns.
    List(usize),
}

/// A background behind a group of cards.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    pub corner: Point,
    pub width: f32,
    pub height: f32,
    pub title: String,
    /// Whether the title is at the lower edge, away from cable lines that come from above.
    pub title_below: bool,
}

/// A line that represents one or more cables.
#[derive(Clone, Copy, Debug)]
pub(super) struct CableLine {
    pub from: Point,
    pub to: Point,
    pub bend: Bend,
    pub role: CardRole,
    pub cables: Cables,
}

/// Shape of a cable line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bend {
    Straight,
    /// A curve that starts and ends vertically.
    Upright,
    /// A quadratic curve with this control point.
    Towards(Point),
}

/// A block of small squares, one per cable, in the colour of its load.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    pub corner: Point,
    pub columns: usize,
    /// Distance from one cell to the next, to the right and down.
    pub step: Point,
    /// Width and height of a cell.
    pub size: Point,
    pub loads: Vec<f32>,
}

impl Cells {
    /// Places cells below or above a card, at most as wide as the card.
    pub fn beside(card: &Card, side: Side, loads: Vec<f32>) -> Self {
        /// Preferred width of a cell; narrow cards get more rows.
        const STEP: f32 = 7.0;
        let columns = ((card.width / STEP) as usize).clamp(1, loads.len().max(1));
        Self::in_columns(card, side, columns, loads)
    }

    /// Places cells below or above a card in `columns` columns.
    pub fn in_columns(card: &Card, side: Side, columns: usize, loads: Vec<f32>) -> Self {
        const STEP_MAX: f32 = 8.0;
        const GAP: f32 = 4.0;
        let step = (card.width / columns as f32).min(STEP_MAX);
        let gap = if step < 5.0 { 0.5 } else { 1.2 };
        let mut cells = Self {
            corner: card.centre,
            columns,
            step: point(step, step),
            size: point(step - gap, step - gap),
            loads,
        };
        cells.corner.x -= cells.width() / 2.0;
        cells.corner.y += match side {
            Side::Below => card.height / 2.0 + GAP,
            Side::Above => -card.height / 2.0 - GAP - cells.height(),
        };
        cells
    }

    pub fn width(&self) -> f32 {
        self.step.x * self.columns.min(self.loads.len()) as f32 - (self.step.x - self.size.x)
    }

    pub fn height(&self) -> f32 {
        self.step.y * self.loads.len().div_ceil(self.columns) as f32 - (self.step.y - self.size.y)
    }
}

/// Side of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Above,
    Below,
}

/// Text outside of cards.
#[derive(Clone, Debug)]
pub(super) struct Label {
    pub at: Point,
    pub text: String,
    pub anchor: Anchor,
    /// Rotation in degrees, clockwise.
    pub angle: f32,
    pub muted: bool,
}

/// Alignment of a label at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    End,
}

/// A drawing without title and legend.
#[derive(Debug, Default)]
pub(super) struct Scene {
    pub panels: Vec<Panel>,
    pub cable_lines: Vec<CableLine>,
    pub cards: Vec<Card>,
    /// Only in heat maps.
    pub cells: Vec<Cells>,
    pub labels: Vec<Label>,
}

impl Scene {
    /// Upper left and lower right corner of the bounding box.
    pub fn bounds(&self) -> (Point, Point) {
        let cards = self.cards.iter().map(|card| {
            let (x, y) = (card.width / 2.0, card.height / 2.0);
            (point(card.centre.x - x, card.centre.y - y), point(card.centre.x + x, card.centre.y + y))
        });
        let panels = self
            .panels
            .iter()
            .map(|panel| (panel.corner, point(panel.corner.x + panel.width, panel.corner.y + panel.height)));
        let controls = self.cable_lines.iter().filter_map(|cable_line| match cable_line.bend {
            // A quadratic curve reaches half-way to its control point.
            Bend::Towards(control) => Some(point(
                (cable_line.from.x + cable_line.to.x) / 4.0 + control.x / 2.0,
                (cable_line.from.y + cable_line.to.y) / 4.0 + control.y / 2.0,
            )),
            _ => None,
        });
        let cells = self.cells.iter().map(|cells| {
            (cells.corner, point(cells.corner.x + cells.width(), cells.corner.y + cells.height()))
        });
        let boxes = cards
            .chain(panels)
            .chain(cells)
            .chain(controls.map(|at| (at, at)))
            .chain(self.labels.iter().map(Label::bounds));
        boxes
            .reduce(|(a, b), (c, d)| (point(a.x.min(c.x), a.y.min(c.y)), point(b.x.max(d.x), b.y.max(d.y))))
            .unwrap_or((point(0.0, 0.0), point(1.0, 1.0)))
    }
}

impl Label {
    fn bounds(&self) -> (Point, Point) {
        let length = text_width(&self.text, svg_label_size());
        let length = if self.anchor == Anchor::End { -length } else { length };
        let (sin, cos) = self.angle.to_radians().sin_cos();
        let end = point(self.at.x + length * cos, self.at.y + length * sin);
        (
            point(self.at.x.min(end.x), self.at.y.min(end.y) - 8.0),
            point(self.at.x.max(end.x), self.at.y.max(end.y) + 8.0),
        )
    }
}

/// Font size of labels outside of cards.
pub(super) const fn svg_label_size() -> f32 {
    12.0
}

/// A card for a switch in a slot of a row. The text is horizontal if it fits, vertical if not, and absent if the slot is too
/// narrow for that.
pub(super) fn card_in_slot(centre: Point, slot: f32, role: CardRole, lines: Vec<String>) -> Card {
    const SIZE: f32 = 12.0;
    const SMALL: f32 = 10.0;
    let longest = |size| lines.iter().map(|line| text_width(line, size)).fold(0.0, f32::max);
    let across = longest(SIZE) + 18.0;
    if across <= slot - 8.0 {
        let width = across.max(64.0).min(slot - 8.0);
        return Card {
            centre,
            width,
            height: 16.0 + 16.0 * lines.len() as f32,
            role,
            lines,
            text: Text::Across(SIZE),
        };
    }
    let narrow = (slot - 3.0).clamp(3.0, 26.0 + 14.0 * (lines.len() as f32 - 1.0));
    let needed = lines.len() as f32 * 12.0;
    if needed <= narrow {
        let height = longest(SMALL) + 18.0;
        return Card { centre, width: narrow, height, role, lines, text: Text::Up(SMALL) };
    }
    Card { centre, width: narrow, height: 28.0, role, lines: Vec::new(), text: Text::Across(SMALL) }
}
