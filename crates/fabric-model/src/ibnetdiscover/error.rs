//! Where a text stops being a topology, and why.

use ib_wire::PortNum;
use thiserror::Error;

use super::LINE_BYTES_MAX;
use crate::builder::BuildError;

/// The first thing in a text that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {kind}")]
pub struct ParseError {
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
    /// What is wrong there.
    pub kind: ParseErrorKind,
}

/// What is wrong at a place of a text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseErrorKind {
    /// Something else should stand here.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// What would have been right.
        expected: String,
        /// The word that stands there, or the end of the line.
        found: String,
    },
    /// A line that no tool would print.
    #[error("the line has {bytes} bytes; at most {LINE_BYTES_MAX} are read")]
    LineTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A command of `ibsim` that reads other files or acts on a running fabric.
    #[error("`{keyword}` lines are not supported: {advice}")]
    Unsupported {
        /// How the line begins.
        keyword: &'static str,
        /// What to do instead.
        advice: &'static str,
    },
    /// A port line with no node to belong to.
    #[error("a port line must follow its node's line without an empty line between")]
    PortOutsideNode,
    /// A port that was already listed.
    #[error("port {port} was already listed in line {first_line}")]
    PortTwice {
        /// The port.
        port: PortNum,
        /// Where it was listed.
        first_line: usize,
    },
    /// An alias that was already given.
    #[error("the alias {alias:?} was already given in line {first_line}")]
    AliasTwice {
        /// The alias.
        alias: String,
        /// Where it was given.
        first_line: usize,
    },
    /// The other end is a node that the text does not have.
    #[error("there is no node {name:?} in this file")]
    UnknownNode {
        /// The name.
        name: String,
    },
    /// The other end is an alias that the text does not have.
    #[error("there is no alias {alias:?} in this file")]
    UnknownAlias {
        /// The alias, with its module in front.
        alias: String,
    },
    /// A link that only one end knows of.
    #[error("{here} is connected to {there} here, but {there} is {instead}")]
    OneSided {
        /// This end, as `"id"[port]`.
        here: String,
        /// The end named here.
        there: String,
        /// What the other end says.
        instead: String,
    },
    /// A node or link that no topology can have.
    #[error(transparent)]
    Impossible(#[from] BuildError),
}
