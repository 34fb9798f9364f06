//! Where the names of lines and reference lines stand: beside the chart and above it, none over another.

use crate::page::text_width;

/// Font size of names.
pub(super) const NAME_SIZE: f32 = 12.0;
/// From one name to the next below it.
pub(super) const NAME_STEP: f32 = 19.0;
/// Characters of a name that are written; the rest is shown when the pointer rests on it.
const NAME_CHARACTERS_MAX: usize = 44;

/// A name, cut where it is too long.
pub(super) fn cut(name: &str) -> String {
    if name.chars().count() <= NAME_CHARACTERS_MAX {
        return name.to_owned();
    }
    name.chars().take(NAME_CHARACTERS_MAX - 1).chain(['…']).collect()
}

/// Heights for names that want to stand at these, in the same order: as near as may be, [`NAME_STEP`] apart, between
/// the top and the bottom if they all fit.
pub(super) fn spread(wanted: &[f32], top: f32, bottom: f32) -> Vec<f32> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    // Names that would overlap form a block around the mean of what they want; blocks that meet become one.
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
        for (place, member) in block.members.iter().enumerate() {
            heights[*member] = block.top(top, bottom) + NAME_STEP * (place as f32 + 0.5);
        }
    }
    heights
}

/// Names that stand close together.
#[derive(Debug)]
struct Block {
    members: Vec<usize>,
    centre: f32,
}

impl Block {
    fn height(&self) -> f32 {
        self.members.len() as f32 * NAME_STEP
    }

    /// Its upper edge, moved so that it lies inside if it can.
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

/// Rows for names that begin at these places and run to the right, row 0 lowest. Each stands above those it would
/// touch to its right, so that the line down from its beginning crosses no other.
pub(super) fn rows(names: &[(f32, &str)]) -> Vec<usize> {
    const GAP: f32 = 14.0;
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_by(|a, b| names[*b].0.total_cmp(&names[*a].0));
    // Where the leftmost name of each row begins.
    let mut begins: Vec<f32> = Vec::new();
    let mut rows = vec![0; names.len()];
    for number in order {
        let (x, name) = names[number];
        let end = x + text_width(name, NAME_SIZE) + GAP;
        // The lines down from the rows above pass here too.
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
