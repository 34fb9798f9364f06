//! Tokens of a partitions file and their positions.

use std::str::Chars;

use super::ConfError;

/// A position in the file, both counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub line: u32,
    pub column: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'t> {
    Word(&'t str),
    /// One of `=`, `,`, `:`, `;`.
    Sign(char),
    End,
}

/// Splits a text into tokens, and skips white space and comments.
#[derive(Clone, Debug)]
pub(super) struct Tokens<'t> {
    rest: Chars<'t>,
    next: Position,
    /// The position of the last token.
    pub position: Position,
}

impl<'t> Tokens<'t> {
    pub fn of(text: &'t str) -> Self {
        let start = Position { line: 1, column: 1 };
        Self { rest: text.chars(), next: start, position: start }
    }

    /// Consumes the next token.
    pub fn take(&mut self) -> Token<'t> {
        self.skip_space();
        self.position = self.next;
        let text = self.rest.as_str();
        match self.peek() {
            None => Token::End,
            Some(sign) if is_sign(sign) => {
                self.advance();
                Token::Sign(sign)
            }
            Some(_) => {
                while self.peek().is_some_and(|c| !is_sign(c) && !c.is_whitespace() && c != '#') {
                    self.advance();
                }
                Token::Word(&text[..text.len() - self.rest.as_str().len()])
            }
        }
    }

    /// The next token and its position, without consuming it.
    pub fn peek_token(&self) -> (Token<'t>, Position) {
        let mut ahead = self.clone();
        let token = ahead.take();
        (token, ahead.position)
    }

    /// Consumes the next token if it is the given sign.
    pub fn take_if(&mut self, sign: char) -> bool {
        let found = self.peek_token().0 == Token::Sign(sign);
        if found {
            self.take();
        }
        found
    }

    /// An error at the last token.
    pub fn error(&self, found: Token<'_>, expected: &'static str) -> ConfError {
        let found = match found {
            Token::Word(word) => format!("{:?}", word.chars().take(40).collect::<String>()),
            Token::Sign(sign) => format!("'{sign}'"),
            Token::End => "the end of the file".to_owned(),
        };
        ConfError { line: self.position.line, column: self.position.column, found, expected }
    }

    fn peek(&self) -> Option<char> {
        self.rest.clone().next()
    }

    fn advance(&mut self) {
        match self.rest.next() {
            Some('\n') => self.next = Position { line: self.next.line.saturating_add(1), column: 1 },
            Some(_) => self.next.column = self.next.column.saturating_add(1),
            None => {}
        }
    }

    fn skip_space(&mut self) {
        while let Some(c) = self.peek() {
            if c == '#' {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.advance();
                }
            } else if c.is_whitespace() {
                self.advance();
            } else {
                break;
            }
        }
    }
}

fn is_sign(c: char) -> bool {
    matches!(c, '=' | ',' | ':' | ';')
}
