//! Rules for Rust source: lengths, unsafe code, unfinished code, and calls that are not allowed in the core and in
//! tests.

use super::tokens::{Attribute, Kind, Tokens};
use super::{Source, Violation};
use proc_macro2::Delimiter;
use std::ops::RangeInclusive;

const FUNCTION_LINES_MAX: usize = 60;
const FILE_LINES_MAX: usize = 600;

/// Crates that may contain `unsafe`: the data plane that accesses guest memory, and the front end that shares it.
const UNSAFE_CRATES: &[&str] = &["crates/sluice-io/", "tools/clients/"];

/// The scheduling core and the papers' schedulers, whose decisions must be repeatable.
const CORE: &[&str] = &["crates/sluice-sched/src/", "crates/sluice-papers/src/"];

/// Folders of code that reads memory which a guest or its VMM may change at the same time.
const SHARED: &[&str] =
    &["crates/sluice-io/src/virtio/", "crates/sluice-io/src/vhost_user/", "tools/clients/src/vhost/"];

/// Reads for which the compiler assumes that nothing else writes.
const PLAIN_READS: &[&str] =
    &["read_unaligned", "copy_to_nonoverlapping", "copy_nonoverlapping", "from_raw_parts", "from_raw_parts_mut"];

/// Calls that wait for a duration.
const SLEEPS: &[&str] = &["sleep", "sleep_ms", "sleep_until", "park_timeout"];

/// Code whose log lines are caused by clients.
const DATA_PLANE: &str = "crates/sluice-io/src/";
const LEVELS: &[&str] = &["error", "warn", "info", "debug"];
/// Fields by which the log counts lines, see `output/limits.rs`.
const NAMED: &[&str] = &["vm", "endpoint", "device"];

pub(super) fn check(source: &Source<'_>) -> Vec<Violation> {
    let tokens = match Tokens::lex(source.text) {
        Ok(tokens) => tokens,
        Err(line) => {
            return vec![source.violation(line, "not Rust from here on, balance the brackets")];
        }
    };
    let file = File { source, tokens: &tokens, lines: source.text.lines().collect(), tests: test_items(&tokens) };
    let rules = [
        function_length,
        file_length,
        unfinished,
        ignored_test,
        forbid_unsafe,
        safety_comment,
        core_repeats,
        plain_reads,
        test_sleeps,
        log_names,
    ];
    rules.iter().flat_map(|rule| rule(&file)).collect()
}

struct File<'a> {
    source: &'a Source<'a>,
    tokens: &'a Tokens,
    lines: Vec<&'a str>,
    tests: Vec<TestItem>,
}

/// An item under `#[cfg(test)]` or `#[test]`.
struct TestItem {
    lines: RangeInclusive<usize>,
    is_module: bool,
}

impl File<'_> {
    /// Whether the file contains only tests: it is in a folder `tests` or is named `tests.rs`. It has no length
    /// limit.
    fn is_all_tests(&self) -> bool {
        self.source.has_folder("tests") || self.source.path.ends_with("/tests.rs")
    }

    fn is_test(&self, line: usize) -> bool {
        self.is_all_tests() || self.tests.iter().any(|item| item.lines.contains(&line))
    }

    /// Returns the comment on `line`, and those in the lines directly above it that are only comments or attributes.
    fn comments_at(&self, line: usize) -> impl Iterator<Item = &str> {
        let above = self.lines[..line - 1].iter().rev();
        let above = above.take_while(|text| {
            let text = text.trim_start();
            text.starts_with("//") || text.starts_with("#[")
        });
        let same = &self.lines[line - 1..line];
        same.iter().chain(above).filter_map(|text| text.split_once("//").map(|(_, comment)| comment.trim()))
    }
}

fn function_length(file: &File<'_>) -> Vec<Violation> {
    let tokens = file.tokens;
    let mut violations = Vec::new();
    for at in 0..tokens.len() {
        let (true, Some(name)) = (tokens.is_word(at, "fn"), tokens.word(at + 1)) else {
            continue;
        };
        let Some(end) = tokens.item_end(at + 2) else {
            continue;
        };
        let lines = tokens.lines(at, end).count();
        if lines > FUNCTION_LINES_MAX {
            let what = format!(
                "function `{name}` has {lines} lines of at most {FUNCTION_LINES_MAX}, \
                 move plain work into helpers"
            );
            violations.push(file.source.violation(tokens.line(at), what));
        }
    }
    violations
}

fn file_length(file: &File<'_>) -> Vec<Violation> {
    if file.is_all_tests() {
        return Vec::new();
    }
    let modules = file.tests.iter().filter(|item| item.is_module);
    let tests: usize = modules.map(|item| item.lines.clone().count()).sum();
    let lines = file.lines.len() - tests;
    if lines <= FILE_LINES_MAX {
        return Vec::new();
    }
    let what = format!(
        "file has {lines} lines of at most {FILE_LINES_MAX} (its tests not counted), \
         split it by idea"
    );
    vec![file.source.violation(1, what)]
}

fn unfinished(file: &File<'_>) -> Vec<Violation> {
    let tokens = file.tokens;
    let mut violations = Vec::new();
    for at in 0..tokens.len() {
        let Some(name @ ("todo" | "unimplemented" | "dbg")) = tokens.word(at) else {
            continue;
        };
        let called = matches!(tokens.kind(at + 2), Some(Kind::Open { .. }));
        if tokens.is_mark(at + 1, '!') && called {
            let what = format!("unfinished work ({name}!), write the code or remove the call");
            violations.push(file.source.violation(tokens.line(at), what));
        }
    }
    violations
}

fn ignored_test(file: &File<'_>) -> Vec<Violation> {
    let tokens = file.tokens;
    let mut violations = Vec::new();
    for at in 0..tokens.len() {
        let Some(attribute) = tokens.attribute(at) else {
            continue;
        };
        let ignores = tokens.is_word(attribute.start, "ignore")
            || tokens.is_word(attribute.start, "cfg_attr") && tokens.attribute_has(&attribute, "ignore");
        if ignores {
            let what = "ignored test, make it run everywhere or remove it";
            violations.push(file.source.violation(tokens.line(at), what));
        }
    }
    violations
}

/// Whether a file is the first one of a library or a program, which may be a file or a folder in `src/bin`.
fn is_root(path: &str) -> bool {
    let program = path.split_once("src/bin/").map(|(_, program)| program);
    path.ends_with("src/lib.rs")
        || path.ends_with("src/main.rs")
        || program.is_some_and(|program| !program.contains('/') || program.ends_with("/main.rs"))
}

fn forbid_unsafe(file: &File<'_>) -> Vec<Violation> {
    let path = file.source.path;
    if !is_root(path) || UNSAFE_CRATES.iter().any(|folder| path.starts_with(folder)) {
        return Vec::new();
    }
    let tokens = file.tokens;
    let mut at = 0;
    while let Some(attribute) = tokens.attribute(at).filter(|attribute| attribute.inner) {
        let forbids = tokens.is_word(attribute.start, "forbid");
        if forbids && tokens.attribute_has(&attribute, "unsafe_code") {
            return Vec::new();
        }
        at = attribute.end + 1;
    }
    let what = "crate allows unsafe code, put `#![forbid(unsafe_code)]` before its first item";
    vec![file.source.violation(1, what)]
}

fn safety_comment(file: &File<'_>) -> Vec<Violation> {
    let tokens = file.tokens;
    let mut violations = Vec::new();
    for at in 0..tokens.len() {
        let opens = tokens.group(at + 1, Delimiter::Brace).is_some();
        if !tokens.is_word(at, "unsafe") || !(opens || tokens.is_word(at + 1, "impl")) {
            continue;
        }
        let line = first_line_of_statement(file, tokens.line(at));
        let mut lines = line..=tokens.line(at);
        let explained = lines.any(|line| file.comments_at(line).any(|c| c.starts_with("SAFETY:")));
        if !explained {
            let what = "unsafe without its reason, put a `// SAFETY:` comment above it";
            violations.push(file.source.violation(tokens.line(at), what));
        }
    }
    violations
}

/// Returns the first line of the statement that ends on `line`. Its comment is above the first line.
fn first_line_of_statement(file: &File<'_>, line: usize) -> usize {
    let mut first = line;
    while first > 1 {
        let above = file.lines[first - 2].trim();
        let is_end = above.is_empty() || above.ends_with([';', '{', '}', ',']);
        if is_end || above.starts_with("//") || above.starts_with("#[") {
            break;
        }
        first -= 1;
    }
    first
}

fn core_repeats(file: &File<'_>) -> Vec<Violation> {
    if !CORE.iter().any(|folder| file.source.path.starts_with(folder)) {
        return Vec::new();
    }
    let tokens = file.tokens;
    let mut violations = Vec::new();
    for at in 0..tokens.len() {
        let what = match tokens.word(at) {
            Some(word @ ("HashMap" | "HashSet" | "RandomState")) => {
                format!("{word} in the core has no order that repeats, use Vec or BTreeMap")
            }
            Some("SystemTime") => "clock in the core, take `now` as an argument".to_string(),
            Some("Instant") if tokens.is_path(at, "Instant", "now") => {
                "clock in the core, take `now` as an argument".to_string()
            }
            Some(word) if SLEEPS.contains(&word) => {
                format!("{word} in the core, return Decision::WaitUntil")
            }
            _ => continue,
        };
        violations.push(file.source.violation(tokens.line(at), what));
    }
    violations
}

fn plain_reads(file: &File<'_>) -> Vec<Violation> {
    let tokens = file.tokens;
    let is_shared = SHARED.iter().any(|folder| file.source.path.starts_with(folder));
    let plain = |at: &usize| tokens.word(*at).is_some_and(|word| PLAIN_READS.contains(&word));
    let violation = |at| {
        let what = "plain read where guests write at the same time, use `vhost::shared` or an atomic";
        file.source.violation(tokens.line(at), what.to_string())
    };
    (0..tokens.len()).filter(|_| is_shared).filter(plain).map(violation).collect()
}

/// Checks that a log line of the data plane names its VM, endpoint or device. Such lines count only against that one;
/// lines without a name share one limit.
fn log_names(file: &File<'_>) -> Vec<Violation> {
    let tokens = file.tokens;
    let is_line = |at: &usize| {
        LEVELS.iter().any(|level| tokens.is_path(*at, "tracing", level)) && !file.is_test(tokens.line(*at))
    };
    let is_named = |at: &usize| {
        let Some(end) = tokens.group(at + 5, Delimiter::Parenthesis) else { return true };
        let names = (*at..end).any(|at| tokens.word(at).is_some_and(|word| NAMED.contains(&word)));
        names || file.comments_at(tokens.line(*at)).any(|comment| comment.starts_with("names nothing:"))
    };
    let violation = |at| {
        let what = "log line of the data plane without vm, endpoint or device, by which lines are limited; add \
                    one, or write `// names nothing: <why>`";
        file.source.violation(tokens.line(at), what.to_string())
    };
    let lines = (0..tokens.len()).filter(|_| file.source.path.starts_with(DATA_PLANE));
    lines.filter(is_line).filter(|at| !is_named(at)).map(violation).collect()
}

fn test_sleeps(file: &File<'_>) -> Vec<Violation> {
    let tokens = file.tokens;
    let mut violations = Vec::new();
    for at in 0..tokens.len() {
        let Some(word) = tokens.word(at).filter(|word| SLEEPS.contains(word)) else {
            continue;
        };
        let is_call = tokens.group(at + 1, Delimiter::Parenthesis).is_some();
        let is_definition = at > 0 && tokens.is_word(at - 1, "fn");
        let line = tokens.line(at);
        if !is_call || is_definition || !file.is_test(line) {
            continue;
        }
        if !file.comments_at(line).any(|c| c.starts_with("polls:")) {
            let what = format!(
                "{word} in a test, wait for the event; a bounded poll of another process says \
                 `// polls: <what>`"
            );
            violations.push(file.source.violation(line, what));
        }
    }
    violations
}

/// Returns the lines of each item that is only for tests.
pub(crate) fn test_lines(tokens: &Tokens) -> Vec<RangeInclusive<usize>> {
    test_items(tokens).into_iter().map(|item| item.lines).collect()
}

fn test_items(tokens: &Tokens) -> Vec<TestItem> {
    let mut items = Vec::new();
    for at in 0..tokens.len() {
        let Some(attribute) = tokens.attribute(at) else {
            continue;
        };
        if attribute.inner || !is_test_attribute(tokens, &attribute) {
            continue;
        }
        let mut item = attribute.end + 1;
        while let Some(next) = tokens.attribute(item) {
            item = next.end + 1;
        }
        let Some(end) = tokens.item_end(item) else {
            continue;
        };
        items.push(TestItem { lines: tokens.lines(at, end), is_module: tokens.is_word(item, "mod") });
    }
    items
}

/// `#[test]`, `#[tokio::test(...)]`, `#[cfg(test)]`, `#[cfg(all(test, ...))]`; not `#[cfg(not(test))]`.
fn is_test_attribute(tokens: &Tokens, attribute: &Attribute) -> bool {
    if tokens.is_word(attribute.start, "cfg") {
        return tokens.attribute_has(attribute, "test") && !tokens.attribute_has(attribute, "not");
    }
    let mut last = attribute.start;
    while tokens.is_mark(last + 1, ':') && tokens.is_mark(last + 2, ':') {
        last += 3;
    }
    tokens.is_word(last, "test")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LINES: [usize; 0] = [];

    /// `(line, first words)` of every violation.
    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        check(&Source { path, text })
            .into_iter()
            .map(|v| {
                let words: Vec<&str> = v.what.split(' ').take(2).collect();
                (v.line, words.join(" ").replace(',', ""))
            })
            .collect()
    }

    fn lines(path: &str, text: &str) -> Vec<usize> {
        found(path, text).iter().map(|found| found.0).collect()
    }

    fn function_of(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_longer_than_a_screen_is_found() {
        assert_eq!(found("a.rs", &function_of(60)), []);
        let over = [(1, "function `long`".to_string())];
        assert_eq!(found("a.rs", &function_of(61)), over);
    }

    #[test]
    fn functions_in_tests_impls_and_macros_are_checked() {
        let long = function_of(61);
        for (before, after) in [
            ("#[cfg(test)]\nmod tests {\n", "}\n"),
            ("struct S;\nimpl S {\n", "}\n"),
            ("proptest! {\n#[test]\n", "}\n"),
        ] {
            let text = format!("{before}{long}{after}");
            assert_eq!(lines("a.rs", &text), [3], "{text}");
        }
    }

    #[test]
    fn braces_in_strings_and_comments_are_ignored() {
        let text =
            format!("fn long() {{\n    // }}\n    g(\"}}\", r#\"}}\"#, '}}');\n{}}}\n", "    step();\n".repeat(68));
        assert_eq!(lines("a.rs", &text), [1]);
    }

    #[test]
    fn a_declaration_without_body_has_no_length() {
        let text = format!("trait T {{\n    fn f();\n{}}}\n", "    const C: u8;\n".repeat(80));
        assert_eq!(lines("a.rs", &text), NO_LINES);
    }

    #[test]
    fn a_file_longer_than_its_limit_is_found() {
        let body = "struct S;\n".repeat(600);
        assert_eq!(lines("src/a.rs", &body), NO_LINES);
        let tests = "#[cfg(test)]\nmod tests {\n    use super::*;\n}\n";
        assert_eq!(lines("src/a.rs", &format!("{body}{tests}")), NO_LINES);
        let longer = format!("{body}struct T;\n");
        assert_eq!(lines("src/a.rs", &longer), [1]);
        assert_eq!(lines("crates/x/tests/a.rs", &longer), NO_LINES);
        assert_eq!(lines("src/gate/tests.rs", &longer), NO_LINES);
    }

    #[test]
    fn unfinished_code_is_found() {
        let text = "fn f() { todo!() }\nfn g() { unimplemented!(); }\nfn h() { dbg!(1); }\n";
        assert_eq!(lines("a.rs", text), [1, 2, 3]);
        let text = "// dbg!(1)\nfn f() { g(\"todo!()\"); }\nfn todo() -> bool { dbg != 1 }\n";
        assert_eq!(lines("a.rs", text), NO_LINES);
    }

    #[test]
    fn ignored_tests_are_found() {
        let text = "#[test]\n#[ignore]\nfn a() {}\n#[ignore = \"slow\"]\nfn b() {}\n";
        assert_eq!(lines("a.rs", text), [2, 4]);
        let text = "#[cfg_attr(debug_assertions, ignore)]\nfn a() {}\n";
        assert_eq!(lines("a.rs", text), [1]);
        assert_eq!(lines("a.rs", "fn ignore() {}\n"), NO_LINES);
    }

    #[test]
    fn a_crate_that_allows_unsafe_is_found() {
        for path in ["crates/x/src/lib.rs", "xtask/src/main.rs", "a/src/bin/b.rs", "a/src/bin/b/main.rs"] {
            assert_eq!(lines(path, "//! About.\n\nmod a;\n"), [1], "{path}");
            let forbids = "//! About.\n\n#![forbid(unsafe_code)]\n\nmod a;\n";
            assert_eq!(lines(path, forbids), NO_LINES, "{path}");
        }
        for path in ["crates/sluice-io/src/lib.rs", "tools/clients/src/lib.rs"] {
            assert_eq!(lines(path, "mod a;\n"), NO_LINES);
        }
        for path in ["crates/x/src/gate.rs", "a/src/bin/b/gate.rs"] {
            assert_eq!(lines(path, "struct S;\n"), NO_LINES, "{path}");
        }
    }

    #[test]
    fn unsafe_without_a_safety_comment_is_found() {
        let bare = "fn f() {\n    unsafe { g() };\n}\nunsafe impl Send for S {}\n";
        assert_eq!(lines("a.rs", bare), [2, 4]);
        let explained = "fn f() {
    // SAFETY: g has no conditions, and
    // this comment has two lines.
    let long_name =
        unsafe { g() };
    // SAFETY: as above.
    #[allow(clippy::all)]
    unsafe {
        g()
    };
}
// SAFETY: S holds nothing.
unsafe impl Send for S {}
unsafe fn declared() {}
";
        assert_eq!(lines("a.rs", explained), NO_LINES);
        let too_far = "// SAFETY: of f.\nfn f() {\n    unsafe { g() };\n}\n";
        assert_eq!(lines("a.rs", too_far), [3]);
    }

    #[test]
    fn plain_reads_of_guest_memory_are_found() {
        let plain = "fn f() {\n    place.read_unaligned();\n    place.copy_to_nonoverlapping(room, 4);\n}\n";
        assert_eq!(lines("crates/sluice-io/src/virtio/chain.rs", plain), [2, 3]);
        assert_eq!(lines("crates/sluice-io/src/vhost_user/a.rs", plain), [2, 3]);
        assert_eq!(lines("crates/sluice-io/src/buffer.rs", plain), NO_LINES);
    }

    #[test]
    fn clocks_and_hash_maps_in_the_core_are_found() {
        let text = "use std::collections::HashMap;
fn f() { let t = std::time::Instant::now(); }
fn g() { let t = SystemTime::now(); }
fn h() { std::thread::sleep(d); }
struct S { names: HashSet<u8> }
";
        let path = "crates/sluice-sched/src/gate.rs";
        assert_eq!(lines(path, text), [1, 2, 3, 4, 5]);
        assert_eq!(lines("crates/sluice-papers/src/deadline.rs", text), [1, 2, 3, 4, 5]);
        assert_eq!(lines("crates/sluice-io/src/a.rs", text), NO_LINES);
        let own = "use crate::time::Instant;\nfn f(now: Instant) -> BTreeMap<u8, u8> {}\n";
        assert_eq!(lines(path, own), NO_LINES);
    }

    #[test]
    fn sleeping_tests_are_found() {
        let sleeps = "fn f() {\n    std::thread::sleep(d);\n    tokio::time::sleep(d).await;\n}\n";
        assert_eq!(lines("crates/x/tests/a.rs", sleeps), [2, 3]);
        assert_eq!(lines("crates/x/src/a.rs", sleeps), NO_LINES);
        let module = format!("#[cfg(all(test, unix))]\nmod tests {{\n{sleeps}}}\n");
        assert_eq!(lines("crates/x/src/a.rs", &module), [4, 5]);
        let function = format!("#[tokio::test]\nasync {sleeps}");
        assert_eq!(lines("crates/x/src/a.rs", &function), [3, 4]);
        let production = format!("#[cfg(not(test))]\n{sleeps}");
        assert_eq!(lines("crates/x/src/a.rs", &production), NO_LINES);
    }

    #[test]
    fn a_log_line_without_vm_endpoint_or_device_is_found() {
        let text = "fn f() {\n    tracing::warn!(\"silent\");\n    tracing::warn!(endpoint, \"silent\");\n    tracing::info!(\n        vm = v.name,\n        \"it\"\n    );\n    // names nothing: there is one.\n    tracing::error!(%error, \"it\");\n}\n";
        assert_eq!(lines("crates/sluice-io/src/a.rs", text), [2]);
        assert_eq!(lines("crates/sluice/src/a.rs", text), NO_LINES);
    }

    #[test]
    fn a_poll_without_its_comment_is_found() {
        let text = "fn f() {
    // polls: the socket of the daemon, for at most 10 s.
    sleep(d);
    sleep(d); // polls: the same
    // waits a little
    sleep(d);
}
fn sleep(d: Duration) {}
";
        assert_eq!(lines("crates/x/tests/a.rs", text), [6]);
    }

    #[test]
    fn text_that_is_not_rust_is_reported() {
        let found = found("a.rs", "fn f() {\n");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].1, "not Rust");
    }
}
