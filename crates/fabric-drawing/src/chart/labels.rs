//! Positions of the labels of lines beside and above the chart, without overlaps.

use crate::page::text_width;

/// Font size of labels.
pub(super) const NAME_SIZE: f32 = 12.0;
/// Vertical distance between two labels.
pub(super) const NAME_STEP: f32 = 19.0;
/// Longest label in characters; the tooltip shows the full name.
const NAME_CHARACTERS_MAX: usize = 44;

/// Truncates a name to the longest label.
pub(super) fn cut(name: &str) -> String {
    if name.chars().count() <= NAME_CHARACTERS_MAX {
        return name.to_owned();
    }
    name.chars().take(NAME_CHARACTERS_MAX - 1).chain(['…']).collect()
}

/// Vertical positions of labels, in the order of `wanted`: as close as possible to the wanted positions, at least
/// [`NAME_STEP`] apart, and between `top` and `bottom` if all fit. Labels that would overlap are merged into blocks around
/// the mean of their wanted positions.
pub(super) fn spread(wanted: &[f32], top: f32, bottom: f32) -> Vec<f32> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut blocks: Vec<Block> = Vec::new();
    for number in order {
        let mut block = Block { members: vec![number], centre: wanted[number] };
        while let Some(before) = blocks.pop_if(|before| before.bottom(top, bottom) > block.top(top, bottom)) {
            block = before.joined(block);
        }
        blocks.push(block);
    }
    let mut heights = vec![0.0; wanted.len()];
    for block in &blocks {
        for (index, member) in block.members.iter().enumerate() {
            heights[*member] = block.top(top, bottom) + NAME_STEP * (index as f32 + 0.5);
        }
    }
    heights
}

/// A block of labels without gaps.
#[derive(Debug)]
struct Block {
    members: Vec<usize>,
    centre: f32,
}

impl Block {
    fn height(&self) -> f32 {
        self.members.len() as f32 * NAME_STEP
    }

    /// Upper edge, moved into the range if the block fits.
    fn top(&self, top: f32, bottom: f32) -> f32 {
        (self.centre - self.height() / 2.0).min(bottom - self.height()).max(top)
    }

    fn bottom(&self, top: f32, bottom: f32) -> f32 {
        self.top(top, bottom) + self.height()
    }

    fn joined(mut self, other: Self) -> Self {
        let (a, b) = (self.members.len() as f32, other.members.len() as f32);
        let centre = (self.centre * a + other.centre * b) / (a + b);
        self.members.extend(other.members);
        Self { members: self.members, centre }
    }
}

/// Rows for labels that start at these x positions and run to the right; row 0 is the lowest. A label is above those to its
/// right that it would touch, so that the vertical line down from its start crosses no other label.
pub(super) fn rows(names: &[(f32, &str)]) -> Vec<usize> {
    const GAP: f32 = 14.0;
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_by(|a, b| names[*b].0.total_cmp(&names[*a].0));
    // Start of the leftmost label of each row.
    let mut begins: Vec<f32> = Vec::new();
    let mut rows = vec![0; names.len()];
    for number in order {
        let (x, name) = names[number];
        let end = x + text_width(name, NAME_SIZE) + GAP;
        // The lines down from the rows above pass here, too.
        let is_free = |row: &usize| begins[*row..].iter().all(|begin| end <= *begin);
        let row = (0..begins.len()).find(is_free).unwrap_or(begins.len());
        match begins.get_mut(row) {
            Some(begin) => *begin = x,
            None => begins.push(x),
        }
        rows[number] = row;
    }
    rows
}
