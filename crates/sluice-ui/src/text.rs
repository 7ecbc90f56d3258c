//! How text gets into a page.
//!
//! Names and reasons come from users. Characters that control a terminal or the direction of text are shown as escapes, such as `\u{202e}`, so text
//! looks as it is stored. A long text is cut, and is whole in its title.

use std::fmt::{self, Write};

use askama::filters::{Escaper, Html, Safe};
use sluice_api::call::encoded;

/// Length in characters from which on a name or reason is cut, and from which on a sentence is.
const CUT: usize = 120;
const CUT_SENTENCE: usize = 500;

/// Escapes text for HTML, with characters that are not seen as escapes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visible;

impl Escaper for Visible {
    fn write_escaped_str<W: Write>(&self, mut dest: W, text: &str) -> fmt::Result {
        match text.chars().any(is_hidden) {
            true => Html.write_escaped_str(dest, &visible(text)),
            false => Html.write_escaped_str(&mut dest, text),
        }
    }
}

/// Whether a character controls how others are shown: control characters but tab and line feed, and marks of direction and joining.
fn is_hidden(c: char) -> bool {
    let is_mark = matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    is_mark || c.is_control() && !matches!(c, '\n' | '\t')
}

/// Returns the text with escapes for hidden characters.
pub(crate) fn visible(text: &str) -> String {
    let mut seen = String::with_capacity(text.len());
    for c in text.chars() {
        match is_hidden(c) {
            true => seen.extend(c.escape_unicode()),
            false => seen.push(c),
        }
    }
    seen
}

/// Returns a part of a path or query, encoded.
pub(crate) fn part(text: &str) -> String {
    encoded(text).into_owned()
}

/// Returns text as HTML, cut if it is long, with the whole of it as its title.
pub(crate) fn cut(text: &str) -> Safe<String> {
    cut_at(text, CUT)
}

fn cut_at(text: &str, most: usize) -> Safe<String> {
    let html = |text: &str| {
        let mut html = String::new();
        // Writing into memory does not fail.
        let _ = Visible.write_escaped_str(&mut html, text);
        html
    };
    match text.char_indices().nth(most) {
        None => Safe(html(text)),
        Some((end, _)) => Safe(format!("<span title=\"{}\">{}\u{2026}</span>", html(text), html(&text[..end]))),
    }
}

/// Filters of templates.
#[allow(unreachable_pub, reason = "the attribute of filters makes public types")]
pub(crate) mod filters {
    use askama::filters::Safe;

    #[askama::filter_fn]
    pub(crate) fn cut(text: impl AsRef<str>, _: &dyn askama::Values) -> askama::Result<Safe<String>> {
        Ok(super::cut(text.as_ref()))
    }

    /// The same for a sentence.
    #[askama::filter_fn]
    pub(crate) fn sentence(text: impl AsRef<str>, _: &dyn askama::Values) -> askama::Result<Safe<String>> {
        Ok(super::cut_at(text.as_ref(), super::CUT_SENTENCE))
    }

    #[askama::filter_fn]
    pub(crate) fn part(text: impl AsRef<str>, _: &dyn askama::Values) -> askama::Result<String> {
        Ok(super::part(text.as_ref()))
    }
}

/// A moment in UTC, as pages show it.
pub(crate) fn moment(seconds: u64) -> String {
    let timestamp = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    timestamp.map_or_else(|| "-".to_owned(), |time| time.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// The time of day in UTC.
pub(crate) fn clock(seconds: u64) -> String {
    let moment = moment(seconds);
    moment.split_once(' ').map_or_else(|| moment.clone(), |(_, time)| time.to_owned())
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_users_is_harmless_and_looks_as_it_is_stored() {
        let html = |text: &str| cut(text).0;
        assert_eq!(html("<b onclick='x'>\"&"), "&#60;b onclick=&#39;x&#39;&#62;&#34;&#38;");
        assert_eq!(html("a\u{202e}b\u{0}\u{7f}\u{200f}\n"), "a\\u{202e}b\\u{0}\\u{7f}\\u{200f}\n");
        assert_eq!(html("\u{5d0}"), "\u{5d0}", "letters of other scripts stay");
        let long = html(&"<".repeat(10_000));
        assert!(long.starts_with("<span title=\"&#60;") && long.ends_with("\u{2026}</span>"), "{long}");
        assert_eq!(long.split_once('>').unwrap().1.matches("&#60;").count(), CUT);
    }

    #[test]
    fn names_are_encoded_as_parts_of_addresses() {
        assert_eq!(part("a/b?c&d e\u{202e}"), "a%2Fb%3Fc%26d%20e%E2%80%AE");
    }

    #[test]
    fn moments_are_in_utc() {
        assert_eq!(
            (moment(1_700_000_000).as_str(), clock(1_700_000_000).as_str()),
            ("2023-11-14 22:13:20", "22:13:20")
        );
        assert_eq!(moment(u64::MAX), "-");
    }
}
