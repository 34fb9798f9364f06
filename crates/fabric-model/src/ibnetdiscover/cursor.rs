//! A place in a line: takes one token after the other and says where one is missing.

use std::ops::RangeInclusive;

use super::error::{ParseError, ParseErrorKind};

/// Characters of a wrong word that a message repeats.
const FOUND_CHARS_MAX: usize = 24;

/// One line and how far it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    /// Counted from 1.
    pub line: usize,
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(line: usize, text: &'a str) -> Self {
        Self { line, text, at: 0 }
    }

    /// What is left of the line.
    pub fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// The same line, further on: at a place `offset` bytes into the rest that is a character border.
    pub fn ahead(mut self, offset: usize) -> Self {
        self.at += offset;
        self
    }

    /// The same line with everything from the first `end` on cut off.
    pub fn up_to(mut self, end: char) -> Self {
        if let Some(offset) = self.rest().find(end) {
            self.text = &self.text[..self.at + offset];
        }
        self
    }

    /// Takes a text if it stands next.
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

    /// Takes a text that must stand next.
    pub fn expect(&mut self, text: &str, what: &str) -> Result<(), ParseError> {
        if self.eat(text) { Ok(()) } else { Err(self.expected(what)) }
    }

    /// Takes everything up to a character that must come, and that character.
    pub fn until(&mut self, end: char, what: &str) -> Result<&'a str, ParseError> {
        let length = self.rest().find(end).ok_or_else(|| self.ahead(self.rest().len()).expected(what))?;
        let found = &self.rest()[..length];
        self.at += length + end.len_utf8();
        Ok(found)
    }

    /// Takes a text in double quotes.
    pub fn quoted(&mut self, what: &str) -> Result<&'a str, ParseError> {
        self.expect("\"", what)?;
        self.until('"', "a closing quote")
    }

    /// Takes letters, at least one.
    pub fn word(&mut self, what: &str) -> Result<&'a str, ParseError> {
        let length = self.length_of(|c| c.is_ascii_alphabetic());
        if length == 0 { Err(self.expected(what)) } else { Ok(self.take(length)) }
    }

    /// Takes a number, decimal or with `0x`, that must be in a range.
    pub fn number(&mut self, what: &str, range: RangeInclusive<u64>) -> Result<u64, ParseError> {
        let start = *self;
        let radix = if self.eat("0x") || self.eat("0X") { 16 } else { 10 };
        let length = self.length_of(|c| c.is_ascii_alphanumeric());
        let number =
            u64::from_str_radix(self.take(length), radix).ok().filter(|number| range.contains(number));
        number.ok_or_else(|| start.expected(what))
    }

    /// Takes hexadecimal digits without `0x`.
    pub fn hexadecimal(&mut self, what: &str) -> Result<u64, ParseError> {
        let start = *self;
        let length = self.length_of(|c| c.is_ascii_alphanumeric());
        u64::from_str_radix(self.take(length), 16).map_err(|_| start.expected(what))
    }

    /// Something else should stand here.
    pub fn expected(&self, what: &str) -> ParseError {
        self.error(ParseErrorKind::Expected { expected: what.to_owned(), found: self.found() })
    }

    /// Something is wrong here.
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

    /// The word or the sign at this place.
    fn found(&self) -> String {
        let word = &self.rest()[..self.length_of(|c| c.is_alphanumeric())];
        match self.rest().chars().next() {
            None => "the end of the line".to_owned(),
            Some(sign) if word.is_empty() => format!("{:?}", sign.to_string()),
            Some(_) => format!("{:?}", word.chars().take(FOUND_CHARS_MAX).collect::<String>()),
        }
    }
}
