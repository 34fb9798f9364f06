//! Descriptions, LIDs and rates in comments. A comment is never an error: what cannot be parsed is ignored.

use ib_wire::{Lid, Lmc};

use crate::link_rate::LinkRate;
use crate::topology::PortZero;

/// Phrases that end a description without quotes.
const DESCRIPTION_ENDS: [&str; 4] = [" enhanced port ", " base port ", " lid ", " lmc "];

/// The comment of a node's line.
#[derive(Debug, Default, PartialEq)]
pub(super) struct NodeComment<'a> {
    pub description: &'a str,
    pub port_0: PortZero,
    pub lid: Option<Lid>,
    pub lmc: Lmc,
}

impl<'a> NodeComment<'a> {
    /// Parses the rest of a node line, after the id.
    pub fn read(text: &'a str) -> Self {
        let (description, rest) = match text.split_once('#') {
            Some((_, comment)) => split_description(comment.trim_start()),
            None => ("", text),
        };
        let port_0 = match rest {
            rest if rest.contains("enhanced port 0") => PortZero::Enhanced,
            rest if rest.contains("base port 0") => PortZero::Base,
            _ => PortZero::Unknown,
        };
        Self { description, port_0, lid: lid(rest), lmc: lmc(rest) }
    }
}

/// The comment of a port's line.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PortComment {
    /// LID of this end, which lines of adapters have before the description of the other end.
    pub lid: Option<Lid>,
    pub lmc: Lmc,
    pub rate: Option<LinkRate>,
}

impl PortComment {
    /// Parses the text after `#`.
    pub fn read(text: &str) -> Self {
        let own = text.split('"').next().unwrap_or_default();
        let about_link = text.rsplit('"').next().unwrap_or_default();
        let rate = about_link.split_whitespace().rev().find_map(|word| word.parse().ok());
        Self { lid: lid(own), lmc: lmc(own), rate }
    }
}

fn split_description(comment: &str) -> (&str, &str) {
    if let Some(quoted) = comment.strip_prefix('"') {
        return quoted.split_once('"').unwrap_or((quoted, ""));
    }
    let end = DESCRIPTION_ENDS.iter().find_map(|end| comment.find(end)).unwrap_or(comment.len());
    comment.split_at(end)
}

fn lid(text: &str) -> Option<Lid> {
    number_after(text, "lid ").and_then(Lid::from_wire)
}

fn lmc(text: &str) -> Lmc {
    let number = number_after(text, "lmc ").and_then(|number| u8::try_from(number).ok());
    number.and_then(Lmc::from_wire).unwrap_or_default()
}

fn number_after(text: &str, label: &str) -> Option<u16> {
    let (_, rest) = text.split_once(label)?;
    let word = rest.split_whitespace().next()?;
    match word.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapter_lines_have_their_own_lid_first() {
        let comment = PortComment::read(r#" lid 105 lmc 2 "MF0;ib5:SX6036/U1" lid 128 4xFDR10"#);
        assert_eq!((comment.lid, comment.lmc), (Lid::from_wire(105), Lmc::from_wire(2).unwrap()));
        assert_eq!(comment.rate, Some("4xFDR10".parse().unwrap()));
    }

    #[test]
    fn switch_lines_have_only_the_lid_of_the_other_end() {
        let comment = PortComment::read(r#" "stage114 lid 7 mlx4_0" lid 105 4xQDR"#);
        assert_eq!((comment.lid, comment.rate), (None, Some("4xQDR".parse().unwrap())));
    }

    #[test]
    fn descriptions_are_parsed_with_and_without_quotes() {
        let quoted = NodeComment::read(r#"  # "a lid 3" base port 0 lid 5 lmc 1"#);
        assert_eq!((quoted.description, quoted.port_0), ("a lid 3", PortZero::Base));
        assert_eq!((quoted.lid, quoted.lmc.to_wire()), (Lid::from_wire(5), 1));
        let bare = NodeComment::read("# MT47396 Infiniscale enhanced port 0 lid 0x12 lmc 0");
        assert_eq!((bare.description, bare.port_0), ("MT47396 Infiniscale", PortZero::Enhanced));
        assert_eq!(bare.lid, Lid::from_wire(0x12));
        assert_eq!(NodeComment::read(""), NodeComment::default());
    }
}
