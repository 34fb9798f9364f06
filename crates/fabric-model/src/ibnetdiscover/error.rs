//! Errors of the reader, with line and column.

use ib_wire::PortNum;
use thiserror::Error;

use super::LINE_BYTES_MAX;
use crate::builder::BuildError;

/// The first error in a file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {kind}")]
pub struct ParseError {
    /// Line number, counted from 1.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
    pub kind: ParseErrorKind,
}

/// What is wrong at a position of a file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseErrorKind {
    #[error("expected {expected}, found {found}")]
    Expected {
        expected: String,
        /// The quoted word at the position, or `the end of the line`.
        found: String,
    },
    #[error("a line has at most {LINE_BYTES_MAX} bytes, got {bytes}")]
    LineTooLong { bytes: usize },
    /// A command of `ibsim` that reads another file or acts on a running fabric.
    #[error("`{keyword}` lines are not supported: {advice}")]
    Unsupported { keyword: &'static str, advice: &'static str },
    /// A port line that does not belong to a node.
    #[error("a port line must follow the line of its node without an empty line between")]
    PortOutsideNode,
    #[error("port {port} was already listed in line {first_line}")]
    DuplicatePort { port: PortNum, first_line: usize },
    #[error("the alias {alias:?} was already defined in line {first_line}")]
    DuplicateAlias { alias: String, first_line: usize },
    #[error("there is no node {name:?} in this file")]
    UnknownNode { name: String },
    #[error("there is no alias {alias:?} in this file")]
    UnknownAlias {
        /// With its module in front.
        alias: String,
    },
    /// The two ends of a link do not agree.
    #[error("{here} is connected to {there} here, but {there} is {instead}")]
    OneSided {
        /// This end, as `"id"[port]`.
        here: String,
        /// The end that this line names.
        there: String,
        /// What the other end has instead.
        instead: String,
    },
    /// The builder rejected a node, a port or a link.
    #[error(transparent)]
    Impossible(#[from] BuildError),
}
