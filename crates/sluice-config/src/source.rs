//! Texts of the files, and spans in them.

use std::ops::Range;
use std::sync::Arc;

use crate::secret::{LEFT_OUT, without_value};

/// A range of one file. The file is a number, so that a span is cheap to store with every value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Span {
    file: u32,
    start: u32,
    end: u32,
}

/// A position for people: lines and columns from 1, columns in characters; all 0 for a whole file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Position {
    pub line: u32,
    pub column: u32,
    pub length: u32,
    /// Text of the line, shortened for the screen.
    pub excerpt: String,
    /// Position of the caret under the excerpt, in characters from 0.
    pub caret: u32,
}

/// All files in the order in which they override each other.
#[derive(Debug, Default, Clone)]
pub struct Sources(Vec<Arc<Source>>);

#[derive(Debug)]
struct Source {
    name: String,
    text: String,
    line_starts: Vec<usize>,
}

/// First words of the names of the texts of changes made at run time.
pub(crate) const CHANGE_OF: &str = "change of ";

/// Maximum length of a line that is shown.
const EXCERPT_CHARS_MAX: usize = 160;

impl Span {
    /// First character of the first file, for missing entries.
    pub const FIRST: Span = Span { file: 0, start: 0, end: 1 };

    /// A whole file, for errors without a line.
    pub fn file(file: u32) -> Self {
        Span { file, start: 0, end: 0 }
    }

    /// Whether it is in a file with this number or a higher one.
    pub fn is_from(self, file: u32) -> bool {
        self.file >= file
    }

    /// The whole file that contains it.
    pub fn of_file(self) -> Self {
        Span::file(self.file)
    }

    pub fn new(file: u32, span: Range<usize>) -> Self {
        let clip = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Span { file, start: clip(span.start), end: clip(span.end) }
    }
}

impl Sources {
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|source| source.name.as_str())
    }

    /// Adds a file and returns its number.
    pub fn add(&mut self, name: &str, text: String) -> u32 {
        let file = self.next();
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        self.0.push(Arc::new(Source { name: name.to_owned(), text, line_starts }));
        file
    }

    /// Number of the next file.
    pub fn next(&self) -> u32 {
        u32::try_from(self.0.len()).expect("the number of files is bounded")
    }

    pub fn name(&self, span: Span) -> &str {
        &self.0[span.file as usize].name
    }

    /// The path of the key at which a span of a change begins; empty for one of a file. The text of a change is one that this crate has written:
    /// a key with its value on each line, after the name of its table.
    pub fn key_of_change(&self, span: Span) -> Vec<String> {
        let source = &self.0[span.file as usize];
        let parts = |names: &str| names.split('.').map(|name| name.trim_matches('"').to_owned()).collect::<Vec<_>>();
        let (Some(position), true) = (self.position(span), source.name.starts_with(CHANGE_OF)) else {
            return Vec::new();
        };
        let mut key = Vec::new();
        for line in source.text.lines().take(position.line as usize) {
            if let Some(table) = line.strip_prefix('[') {
                key = parts(table.trim_end_matches(']'));
            }
        }
        let line = source.text.lines().nth((position.line - 1) as usize).unwrap_or_default();
        key.extend(
            line.split_once(" = ").filter(|_| !line.starts_with('[')).map(|(name, _)| parts(name)).unwrap_or_default(),
        );
        key
    }

    pub fn text(&self, file: u32) -> &str {
        &self.0[file as usize].text
    }

    /// Position of a span for people; `None` for a whole file.
    pub fn position(&self, span: Span) -> Option<Position> {
        let source = &self.0[span.file as usize];
        if span == Span::file(span.file) {
            return None;
        }
        let start = floor(&source.text, span.start as usize);
        let line = source.line_starts.partition_point(|first| *first <= start) - 1;
        let first = source.line_starts[line];
        let text = source.text[first..].lines().next().unwrap_or("");
        let column = source.text[first..start].chars().count();
        let length = source.text[start..floor(&source.text, span.end as usize).max(start)].lines().next().unwrap_or("");
        let shown = without_value(&source.text, first);
        let (excerpt, caret) = match &shown {
            // The caret points at what is left out.
            Some(shown) => cut(shown, column.min(shown.chars().count() - LEFT_OUT.len())),
            None => cut(text, column),
        };
        let room = excerpt.chars().count().saturating_sub(caret).max(1);
        let length = length.chars().count().clamp(1, room);
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (line, column) = (small(line + 1), small(column + 1));
        Some(Position { line, column, length: small(length), excerpt, caret: small(caret) })
    }
}

/// The last character boundary at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The part of a line around `column`; each character stays one character, so that the caret is correct.
fn cut(line: &str, column: usize) -> (String, usize) {
    let skipped = if line.chars().nth(EXCERPT_CHARS_MAX).is_some() { column.saturating_sub(60) } else { 0 };
    let shown = line.chars().skip(skipped).take(EXCERPT_CHARS_MAX);
    let excerpt = shown.map(|c| if c.is_control() { ' ' } else { c }).collect();
    (excerpt, column - skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_from_one_in_characters() {
        let mut sources = Sources::default();
        let file = sources.add("a", "x = 1\nµµ = \"é\"\n".to_owned());
        let at = |span| {
            let position = sources.position(Span::new(file, span)).unwrap();
            (position.line, position.column, position.length)
        };
        assert_eq!(at(0..1), (1, 1, 1));
        assert_eq!(at(13..17), (2, 6, 3));
        assert_eq!(at(18..18), (3, 1, 1));
        assert_eq!(at(400..900), (3, 1, 1));
        assert_eq!(sources.position(Span::file(file)), None);
    }

    #[test]
    fn a_long_line_is_cut_around_the_caret() {
        let mut sources = Sources::default();
        let file = sources.add("a", "y".repeat(1000));
        let position = sources.position(Span::new(file, 500..900)).unwrap();
        assert_eq!((position.column, position.caret, position.length), (501, 60, 100));
        assert_eq!(position.excerpt.len(), EXCERPT_CHARS_MAX);
    }
}
