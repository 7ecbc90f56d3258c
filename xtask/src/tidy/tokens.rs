//! Rust source as a flat list of tokens with their lines.
//!
//! A syntax tree would not parse the inside of macros, which contain the property tests. Tokens distinguish code from
//! strings and comments, which is enough for tidy's rules.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::ops::RangeInclusive;

pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) line: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Word(String),
    Mark(char),
    Literal,
    /// An opening bracket; `closes` is the index of its closing bracket.
    Open {
        delimiter: Delimiter,
        closes: usize,
    },
    Close,
}

pub(crate) struct Tokens(Vec<Token>);

/// `#[...]` or `#![...]` at `start`; `inside` are the tokens between the brackets.
pub(crate) struct Attribute {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) inner: bool,
}

impl Tokens {
    /// Lexes `text`. The error is the line from which the text is not Rust.
    pub(crate) fn lex(text: &str) -> Result<Self, usize> {
        let stream: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| error.span().start().line)?;
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        Ok(Self(tokens))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn line(&self, at: usize) -> usize {
        self.0[at].line
    }

    pub(crate) fn kind(&self, at: usize) -> Option<&Kind> {
        self.0.get(at).map(|token| &token.kind)
    }

    pub(crate) fn word(&self, at: usize) -> Option<&str> {
        match self.kind(at) {
            Some(Kind::Word(word)) => Some(word),
            _ => None,
        }
    }

    pub(crate) fn is_word(&self, at: usize, word: &str) -> bool {
        self.word(at) == Some(word)
    }

    pub(crate) fn is_mark(&self, at: usize, mark: char) -> bool {
        self.kind(at) == Some(&Kind::Mark(mark))
    }

    /// Returns the index of the closing bracket, if an opening `delimiter` is at `at`.
    pub(crate) fn group(&self, at: usize, delimiter: Delimiter) -> Option<usize> {
        match self.kind(at) {
            Some(Kind::Open { delimiter: found, closes }) if *found == delimiter => Some(*closes),
            _ => None,
        }
    }

    /// Whether `first::second` is at `at`.
    pub(crate) fn is_path(&self, at: usize, first: &str, second: &str) -> bool {
        self.is_word(at, first)
            && self.is_mark(at + 1, ':')
            && self.is_mark(at + 2, ':')
            && self.is_word(at + 3, second)
    }

    pub(crate) fn attribute(&self, at: usize) -> Option<Attribute> {
        if !self.is_mark(at, '#') {
            return None;
        }
        let inner = self.is_mark(at + 1, '!');
        let open = at + 1 + usize::from(inner);
        let end = self.group(open, Delimiter::Bracket)?;
        Some(Attribute { start: open + 1, end, inner })
    }

    pub(crate) fn attribute_has(&self, attribute: &Attribute, word: &str) -> bool {
        (attribute.start..attribute.end).any(|at| self.is_word(at, word))
    }

    /// Returns the index of the last token of the item that starts at `at`: the closing bracket of its body, or its
    /// semicolon.
    pub(crate) fn item_end(&self, at: usize) -> Option<usize> {
        let mut at = at;
        loop {
            match self.kind(at)? {
                Kind::Mark(';') => return Some(at),
                Kind::Open { delimiter: Delimiter::Brace, closes } => return Some(*closes),
                Kind::Open { closes, .. } => at = closes + 1,
                // The item has no end before that of its parent.
                Kind::Close => return None,
                _ => at += 1,
            }
        }
    }

    pub(crate) fn lines(&self, first: usize, last: usize) -> RangeInclusive<usize> {
        self.line(first)..=self.line(last)
    }
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        let kind = match tree {
            TokenTree::Ident(ident) => Kind::Word(ident.to_string()),
            TokenTree::Punct(punct) => Kind::Mark(punct.as_char()),
            TokenTree::Literal(_) => Kind::Literal,
            TokenTree::Group(group) => {
                let open = tokens.len();
                tokens.push(Token { kind: Kind::Close, line });
                flatten(group.stream(), tokens);
                tokens[open].kind = Kind::Open { delimiter: group.delimiter(), closes: tokens.len() };
                let line = group.span_close().start().line;
                let kind = Kind::Close;
                tokens.push(Token { kind, line });
                continue;
            }
        };
        tokens.push(Token { kind, line });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_have_their_partners_and_lines() {
        let tokens = Tokens::lex("fn f() {\n    g(\"}\"); // }\n}\n").expect("is Rust");
        let close = tokens.item_end(0).expect("has a body");
        assert_eq!(close, tokens.len() - 1);
        assert_eq!(tokens.lines(0, close), 1..=3);
    }

    #[test]
    fn the_line_of_a_syntax_error_is_reported() {
        assert_eq!(Tokens::lex("fn f() {}\n}\n").err(), Some(2));
    }
}
