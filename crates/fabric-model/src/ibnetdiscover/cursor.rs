//! A position in a line: takes one token after the other and reports where an expected one is missing.

use std::ops::RangeInclusive;

use super::error::{ParseError, ParseErrorKind};

/// Longest part of an unexpected word that a message repeats, in characters.
const FOUND_CHARS_MAX: usize = 24;

/// A line and the position up to which it has been parsed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    /// Line number, counted from 1.
    pub line: usize,
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(line: usize, text: &'a str) -> Self {
        Self { line, text, at: 0 }
    }

    /// The text from the position to the end of the line.
    pub fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// The cursor moved by `offset` bytes, which must be a character boundary.
    pub fn ahead(mut self, offset: usize) -> Self {
        self.at += offset;
        self
    }

    /// The cursor with the line truncated before the first `end`.
    pub fn up_to(mut self, end: char) -> Self {
        if let Some(offset) = self.rest().find(end) {
            self.text = &self.text[..self.at + offset];
        }
        self
    }

    /// Consumes `text` if it comes next; returns whether it did.
    pub fn eat(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    pub fn skip_blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Consumes `text`, which must come next.
    pub fn expect(&mut self, text: &str, what: &str) -> Result<(), ParseError> {
        if self.eat(text) { Ok(()) } else { Err(self.expected(what)) }
    }

    /// Consumes everything up to and including `end`, which must follow; returns the text before it.
    pub fn until(&mut self, end: char, what: &str) -> Result<&'a str, ParseError> {
        let length = self.rest().find(end).ok_or_else(|| self.ahead(self.rest().len()).expected(what))?;
        let found = &self.rest()[..length];
        self.at += length + end.len_utf8();
        Ok(found)
    }

    /// Consumes a text in double quotes.
    pub fn quoted(&mut self, what: &str) -> Result<&'a str, ParseError> {
        self.expect("\"", what)?;
        self.until('"', "a closing quote")
    }

    /// Consumes one or more ASCII letters.
    pub fn word(&mut self, what: &str) -> Result<&'a str, ParseError> {
        let length = self.length_of(|c| c.is_ascii_alphabetic());
        if length == 0 { Err(self.expected(what)) } else { Ok(self.take(length)) }
    }

    /// Consumes a number, decimal or hexadecimal with `0x`, that must be in `range`.
    pub fn number(&mut self, what: &str, range: RangeInclusive<u64>) -> Result<u64, ParseError> {
        let start = *self;
        let radix = if self.eat("0x") || self.eat("0X") { 16 } else { 10 };
        let length = self.length_of(|c| c.is_ascii_alphanumeric());
        let number =
            u64::from_str_radix(self.take(length), radix).ok().filter(|number| range.contains(number));
        number.ok_or_else(|| start.expected(what))
    }

    /// Consumes a hexadecimal number without `0x`.
    pub fn hexadecimal(&mut self, what: &str) -> Result<u64, ParseError> {
        let start = *self;
        let length = self.length_of(|c| c.is_ascii_alphanumeric());
        u64::from_str_radix(self.take(length), 16).map_err(|_| start.expected(what))
    }

    /// The error that `what` is expected at this position.
    pub fn expected(&self, what: &str) -> ParseError {
        self.error(ParseErrorKind::Expected { expected: what.to_owned(), found: self.found() })
    }

    /// An error at this position.
    pub fn error(&self, kind: impl Into<ParseErrorKind>) -> ParseError {
        let column = self.text[..self.at].chars().count() + 1;
        ParseError { line: self.line, column, kind: kind.into() }
    }

    fn take(&mut self, length: usize) -> &'a str {
        let taken = &self.rest()[..length];
        self.at += length;
        taken
    }

    fn length_of(&self, belongs: impl Fn(char) -> bool) -> usize {
        self.rest().find(|c| !belongs(c)).unwrap_or(self.rest().len())
    }

    /// The word or character at this position, as messages quote it.
    fn found(&self) -> String {
        let word = &self.rest()[..self.length_of(|c| c.is_alphanumeric())];
        match self.rest().chars().next() {
            None => "the end of the line".to_owned(),
            Some(sign) if word.is_empty() => format!("{:?}", sign.to_string()),
            Some(_) => format!("{:?}", word.chars().take(FOUND_CHARS_MAX).collect::<String>()),
        }
    }
}
