//! Secrets: values that leave the host in no report, and do not appear in replies or the log.
//!
//! The [list of keys](crate::fields) says which keys have one. URLs have some also elsewhere, for example in a comment.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::fields::{HOST, Kind, Section};
use crate::nearest::nearest;

/// Stands for what is left out.
pub(crate) const LEFT_OUT: &str = "[left-out]";

/// Returns a text with the user, path and query of each HTTP URL left out, and the user of each other URL.
#[must_use]
pub fn without_urls(text: &str) -> String {
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("://") {
        let is_http = ["http", "https"].iter().any(|scheme| ends_with(&rest[..at], scheme));
        let (before, url) = rest.split_at(at + 3);
        shown += before;
        let end = url.find(|c: char| c.is_whitespace() || "\"'`<>|\\".contains(c)).unwrap_or(url.len());
        let (url, after) = url.split_at(end);
        let host = url.find(['/', '?', '#']).unwrap_or(url.len());
        let (authority, path) = url.split_at(host);
        let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        if user.is_some() {
            shown += LEFT_OUT;
            shown.push('@');
        }
        shown += host;
        match path {
            "" | "/" => shown += path,
            _ if is_http => shown = shown + "/" + LEFT_OUT,
            path => shown += path,
        }
        rest = after;
    }
    shown + rest
}

/// Returns what may be shown of a URL that is a secret: its scheme and its host; of another secret nothing.
#[must_use]
pub fn only_host(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme)) else {
        return LEFT_OUT.to_owned();
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}/{LEFT_OUT}")
}

fn ends_with(text: &str, scheme: &str) -> bool {
    text.len()
        .checked_sub(scheme.len())
        .and_then(|at| text.get(at..))
        .is_some_and(|end| end.eq_ignore_ascii_case(scheme))
}

/// Returns what may be shown of a line of a host file, with the position that it begins at; `None` if it has no secret. A file with an error may
/// not be TOML, so this knows its secrets by lines: in a table whose name may be `alert`, and beside a URL, everything after a key is one.
#[must_use]
pub(crate) fn without_value(text: &str, line_start: usize) -> Option<String> {
    let line = text[line_start..].lines().next().unwrap_or_default();
    // `None` before the first table: keys there begin with the name of their table.
    let mut of_alert = None;
    let mut is_continued = false;
    for line in text[..line_start].lines().chain([line]) {
        match table_of(line) {
            Some(name) => of_alert = Some(is_alert(name)),
            None => is_continued |= of_alert.is_none() && is_alert(line),
        }
    }
    let is_secret = of_alert.unwrap_or(is_continued) && table_of(line).is_none() || line.contains("://");
    is_secret.then(|| match line.split_once('=') {
        Some((key, _)) if !key.contains(['"', '\'']) => format!("{key}= {LEFT_OUT}"),
        _ => LEFT_OUT.to_owned(),
    })
}

/// The name in a line that is the head of a table.
fn table_of(line: &str) -> Option<&str> {
    let name = line.trim().strip_prefix('[')?.trim_start_matches('[');
    let name = name.split(']').next()?;
    name.chars().all(|c| c.is_ascii_alphanumeric() || "_-. ".contains(c)).then_some(name)
}

/// Whether the first part of a name may be meant as `alert`.
fn is_alert(name: &str) -> bool {
    let word = name.trim_start().trim_start_matches(['"', '\'']);
    let word = word.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    word.to_ascii_lowercase().starts_with("al") || nearest(word, ["alert"]).is_some()
}

/// The text of a host file or drop-in, and the secrets that were left out.
#[derive(Debug)]
pub struct Redacted {
    pub text: String,
    pub secrets: Vec<String>,
}

/// Leaves the secrets of a host file or drop-in out, and the values of keys that do not exist: a key may be mistyped.
///
/// # Errors
/// If it is not TOML: then its secrets are not known.
pub fn redact(text: &str) -> Result<Redacted, String> {
    let table = DeTable::parse(text).map_err(|error| error.message().to_owned())?;
    let mut found = Vec::new();
    find(&HOST, table.get_ref(), &mut found);
    found.sort_by_key(|(span, _)| span.start);
    let (mut shown, mut at, mut secrets) = (String::with_capacity(text.len()), 0, Vec::new());
    for (span, secret) in found {
        shown += &text[at..span.start];
        shown += &toml::Value::from(only_host(&secret)).to_string();
        at = span.end;
        secrets.push(secret);
    }
    shown += &text[at..];
    Ok(Redacted { text: without_urls(&shown), secrets })
}

type Found = Vec<(Range<usize>, String)>;

fn find(section: &Section, table: &DeTable<'_>, found: &mut Found) {
    for (name, value) in table {
        let name: &str = name.get_ref();
        match section.key(name) {
            Some(key) if key.is_secret => add(value, found),
            Some(key) => find_in(&key.kind, value, found),
            None if section.schedulers().any(|scheduler| scheduler.name == name) => {}
            None => add(value, found),
        }
    }
}

fn find_in(kind: &Kind, value: &Spanned<DeValue<'_>>, found: &mut Found) {
    match (kind, value.get_ref()) {
        (Kind::Table(section), DeValue::Table(table)) => find(section, table, found),
        (Kind::Named(section), DeValue::Table(tables)) => {
            for value in tables.values() {
                match value.get_ref() {
                    DeValue::Table(table) => find(section, table, found),
                    _ => add(value, found),
                }
            }
        }
        (Kind::List(section), DeValue::Array(tables)) => {
            tables.iter().for_each(|value| find_in(&Kind::Table(section), value, found));
        }
        (Kind::Either(kinds), _) => kinds.iter().for_each(|kind| find_in(kind, value, found)),
        _ => {}
    }
}

/// Adds a value, or all values in it.
fn add(value: &Spanned<DeValue<'_>>, found: &mut Found) {
    match value.get_ref() {
        DeValue::Table(table) => table.values().for_each(|value| add(value, found)),
        DeValue::Array(items) => items.iter().for_each(|value| add(value, found)),
        DeValue::String(text) => found.push((value.span(), text.to_string())),
        DeValue::Integer(number) => found.push((value.span(), number.to_string())),
        DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_keep_their_host_alone() {
        let cases = [
            ("https://hooks.example.org/T0/s3cret", "https://hooks.example.org/[left-out]"),
            ("see http://u:s3cret@a.example:80?t=s3cret, or", "see http://[left-out]@a.example:80/[left-out] or"),
            ("# webhook = \"HTTPS://a/s3cret\" # https://b", "# webhook = \"HTTPS://a/[left-out]\" # https://b"),
            (
                "nbd+unix:///v?socket=/run/v.sock ftp://me:s3cret@b/x",
                "nbd+unix:///v?socket=/run/v.sock ftp://[left-out]@b/x",
            ),
            ("https://u:s3@cret@h/", "https://[left-out]@h/"),
            ("https://h/x?ids=1,s3cret", "https://h/[left-out]"),
            ("a://", "a://"),
        ];
        for url in ["https://h/a'b s3cret", "https://u:a,s3cret@h", "https://h?s3cret", "https://h"] {
            assert_eq!(only_host(url), "https://h/[left-out]");
        }
        assert_eq!(only_host("s3cret"), LEFT_OUT);
        for (text, expected) in cases {
            assert_eq!(without_urls(text), expected);
        }
    }

    #[test]
    fn a_line_with_an_error_showed_the_secret_beside_it() {
        let cases = [
            ("[alert.all]\n", "webhook = \"htp://h/s3cret\"", Some("webhook = [left-out]")),
            ("[alert.all]\n", "webhook = \"http://h/s3cret", Some("webhook = [left-out]")),
            ("[alrt.all]\n", "webhok = 's3cret' x", Some("webhok = [left-out]")),
            ("", "alert.down.webhook = s3cret", Some("alert.down.webhook = [left-out]")),
            ("alert.down.webhook = \"\"\"\nhttp://h/a\\\n", "s3cret\"\"\" zz", Some("[left-out]")),
            ("[device.d]\n", "path = \"http://h/s3cret\"", Some("path = [left-out]")),
            ("[alert.all]\nwebhook = \"x\"\n[device.d]\n", "pth = \"/srv\"", None),
            ("", "[alert.all]", None),
            ("[vm.a]\n", "allow_unenforced = 3", None),
        ];
        for (before, line, expected) in cases {
            assert_eq!(
                without_value(&format!("{before}{line}\nnext = 1\n"), before.len()).as_deref(),
                expected,
                "{line}"
            );
        }
    }

    #[test]
    fn a_host_file_keeps_everything_but_secrets() {
        let text = "# Paging: https://p.example/s3cret\n[alert.all]\nwebhook = \"https://a.example/\\u0073\\u0033cret\" # x\n\
                    every = \"1m\"\n[alert]\ndown = { webhook = 's3cret' }\nweebhook = \"s3cret\"\n[alert.latency]\nweb.hook = [\"s3cret\"]\n\
                    [device.d]\npath = \"/srv\"\n[device.d.mclock]\nidle = \"1ms\"\n";
        let redacted = redact(text).unwrap();
        let expected = "# Paging: https://p.example/[left-out]\n[alert.all]\nwebhook = \"https://a.example/[left-out]\" # x\n\
                    every = \"1m\"\n[alert]\ndown = { webhook = \"[left-out]\" }\nweebhook = \"[left-out]\"\n[alert.latency]\nweb.hook = [\"[left-out]\"]\n\
                    [device.d]\npath = \"/srv\"\n[device.d.mclock]\nidle = \"1ms\"\n";
        assert_eq!(redacted.text, expected);
        assert_eq!(redacted.secrets, ["https://a.example/s3cret", "s3cret", "s3cret", "s3cret"]);
        assert!(redact("[alert.all]\nwebhook = \"s3cret").unwrap_err().len() > 3);
    }

    #[test]
    fn no_example_of_a_key_that_is_not_secret_is_a_url() {
        fn look(section: &'static Section) {
            for key in section.keys() {
                assert!(key.is_secret || !key.example.contains("://"), "{} of {}", key.name, section.title);
                match key.kind {
                    Kind::Table(inner) | Kind::Named(inner) | Kind::List(inner) => look(inner),
                    _ => {}
                }
            }
        }
        look(&HOST);
    }
}
