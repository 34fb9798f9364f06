//! Axes: range, position of values, and ticks.

use super::{Axis, Scale};

/// Largest absolute value on an axis; its inverse is the smallest on a logarithmic axis. Beyond it, differences and quotients
/// could overflow.
const VALUE_MAX: f64 = 1e100;

/// Approximate number of intervals between ticks.
const TICKS_WANTED: f64 = 6.0;

/// Up to this many decades, a logarithmic axis has ticks at 2 and 5 as well.
const FINE_DECADES_MAX: f64 = 3.0;

/// Largest number of ticks at powers of ten; with more decades some are left out.
const DECADE_TICKS_MAX: i32 = 9;

/// Tolerance for rounding at the ends, relative to the length of the axis.
const ROUNDING: f64 = 1e-9;

/// An axis with its computed range.
#[derive(Clone, Debug)]
pub(super) struct AxisRange {
    scale: Scale,
    low: f64,
    high: f64,
}

/// A labelled value of an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    /// Position, 0 at the lower and 1 at the upper end.
    pub at: f64,
    pub text: String,
}

impl AxisRange {
    /// Takes the range of the axis if it is valid, or else one that covers `values`.
    pub fn new(axis: &Axis, values: impl Iterator<Item = f64>) -> Self {
        let scale = axis.scale;
        if let Some((low, high)) = axis.range.filter(|ends| is_valid_range(scale, *ends)) {
            return Self { scale, low, high };
        }
        let values = values.filter(|value| has_position(scale, *value)).map(|value| (value, value));
        let found = values.reduce(|(low, high), (value, _)| (value.min(low), value.max(high)));
        let (low, high) = match scale {
            Scale::Linear => linear_ends(found.unwrap_or((0.0, 1.0))),
            Scale::Log => log_ends(found.unwrap_or((1.0, 10.0))),
        };
        Self { scale, low, high }
    }

    /// Position of a value, 0 at the lower and 1 at the upper end; may be outside. `None` if it has no position on the scale.
    pub fn at(&self, value: f64) -> Option<f64> {
        let part = match self.scale {
            _ if !has_position(self.scale, value) => return None,
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).log10() / (self.high / self.low).log10(),
        };
        // Keeps the direction of lines to points far outside.
        Some(part.clamp(-1e6, 1e6))
    }

    /// Position of a value within the range, 0..=1; `None` if it is outside.
    pub fn inside(&self, value: f64) -> Option<f64> {
        let part = self.at(value)?;
        (-ROUNDING..=1.0 + ROUNDING).contains(&part).then_some(part.clamp(0.0, 1.0))
    }

    /// The ticks in ascending order.
    pub fn ticks(&self) -> Vec<Tick> {
        if self.scale == Scale::Log {
            let ticks = self.log_ticks();
            if ticks.len() > 1 {
                return ticks;
            }
        }
        let step = nice_step((self.high - self.low) / TICKS_WANTED);
        let largest = self.low.abs().max(self.high.abs());
        let first = (self.low / step).ceil() - 1.0;
        let values = (0..=4 * TICKS_WANTED as u32).map(|number| (first + f64::from(number)) * step);
        values.filter_map(|value| self.tick(value, linear_text(value, step, largest))).collect()
    }

    /// Positions of the minor ticks of a logarithmic axis; empty for a linear one.
    pub fn strokes(&self) -> Vec<f64> {
        let (first, last) = self.decades();
        if self.scale == Scale::Linear || last - first > DECADE_TICKS_MAX {
            return Vec::new();
        }
        let values =
            (first..=last).flat_map(|decade| (2..=9).map(move |digit| f64::from(digit) * 10f64.powi(decade)));
        values.filter_map(|value| self.inside(value)).collect()
    }

    fn log_ticks(&self) -> Vec<Tick> {
        let (first, last) = self.decades();
        let fine = (self.high / self.low).log10() <= FINE_DECADES_MAX + ROUNDING;
        let every = (last - first).div_euclid(DECADE_TICKS_MAX) + 1;
        // Written as powers if one of them would be a long number.
        let powers = first < -4 || last > 6;
        let digits: &[u8] = if fine { &[1, 2, 5] } else { &[1] };
        let decades = (first..=last).filter(|decade| decade.rem_euclid(every) == 0);
        let values = decades.flat_map(|decade| digits.iter().map(move |digit| (*digit, decade)));
        let tick = |(digit, decade): (u8, i32)| {
            let value = f64::from(digit) * 10f64.powi(decade);
            let text = if powers {
                power_text(digit, decade)
            } else {
                grouped(&format!("{value:.*}", usize::try_from(-decade).unwrap_or(0)))
            };
            self.tick(value, text)
        };
        values.filter_map(tick).collect()
    }

    /// Exponents of the powers of ten that enclose the range.
    fn decades(&self) -> (i32, i32) {
        (self.low.log10().floor() as i32, self.high.log10().ceil() as i32)
    }

    fn tick(&self, value: f64, text: String) -> Option<Tick> {
        Some(Tick { at: self.inside(value)?, text })
    }
}

fn has_position(scale: Scale, value: f64) -> bool {
    match scale {
        Scale::Linear => value.abs() <= VALUE_MAX,
        Scale::Log => (1.0 / VALUE_MAX..=VALUE_MAX).contains(&value),
    }
}

/// Whether this is a valid range with distinguishable ticks.
fn is_valid_range(scale: Scale, (low, high): (f64, f64)) -> bool {
    let apart = high - low > 1e-6 * low.abs().max(high.abs()).max(1e-90);
    has_position(scale, low) && has_position(scale, high) && apart
}

/// The range from 0 to the next tick beyond the values.
fn linear_ends((low, high): (f64, f64)) -> (f64, f64) {
    let (low, mut high) = (low.min(0.0), high.max(0.0));
    if high - low < 1.0 / VALUE_MAX {
        high = low + 1.0;
    }
    let step = nice_step((high - low) / TICKS_WANTED);
    ((low / step + ROUNDING).floor() * step, (high / step - ROUNDING).ceil() * step)
}

/// The range from the last of 1, 2, 5, 10, … below the values to the first above them.
fn log_ends((low, high): (f64, f64)) -> (f64, f64) {
    let mut first = 3 * low.log10().floor() as i32 + 3;
    while one_two_five(first) > low * (1.0 + ROUNDING) {
        first -= 1;
    }
    let mut last = 3 * high.log10().ceil() as i32 - 3;
    while one_two_five(last) < high * (1.0 - ROUNDING) {
        last += 1;
    }
    if first >= last {
        (first, last) = (first - 1, last + 1);
    }
    (one_two_five(first), one_two_five(last))
}

/// Element `number` of the sequence …, 0.5, 1, 2, 5, 10, …, where element 0 is 1.
fn one_two_five(number: i32) -> f64 {
    [1.0, 2.0, 5.0][number.rem_euclid(3) as usize] * 10f64.powi(number.div_euclid(3))
}

/// The smallest of 1, 2, 5, 10, … that is at least `value`.
fn nice_step(value: f64) -> f64 {
    let first = 3 * value.log10().floor() as i32;
    let above = (first..).map(one_two_five).find(|step| *step >= value * (1.0 - ROUNDING));
    above.expect("the numbers grow without end")
}

/// A value with the precision of the step between ticks.
fn linear_text(value: f64, step: f64, largest: f64) -> String {
    // Zero up to rounding.
    let value = if value.abs() < step / 2.0 { 0.0 } else { value };
    let decade = (step * (1.0 + ROUNDING)).log10().floor() as i32;
    if largest >= 1e7 || decade < -5 {
        let digits = (largest.log10().floor() as i32 - decade).clamp(0, 9);
        return if value == 0.0 { "0".to_owned() } else { format!("{value:.*e}", digits as usize) };
    }
    grouped(&format!("{value:.*}", usize::try_from(-decade).unwrap_or(0)))
}

/// A number as a power of ten: `2·10⁻⁶`, `10³`, `1`.
fn power_text(digit: u8, decade: i32) -> String {
    let power = match decade {
        0 => return digit.to_string(),
        1 => "10".to_owned(),
        _ => format!("10{}", superscript(decade)),
    };
    if digit == 1 { power } else { format!("{digit}·{power}") }
}

fn superscript(number: i32) -> String {
    let raised = |c: char| match c {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        c => c.to_digit(10).and_then(|digit| char::from_u32(0x2070 + digit)).unwrap_or(c),
    };
    number.to_string().chars().map(raised).collect()
}

/// A decimal number with thousands separators: `1,944`.
fn grouped(number: &str) -> String {
    let (sign, rest) = number.strip_prefix('-').map_or(("", number), |rest| ("−", rest));
    let (whole, fraction) = rest.find('.').map_or((rest, ""), |point| rest.split_at(point));
    let mut text = sign.to_owned();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text + fraction
}
