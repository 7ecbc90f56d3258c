//! Rules for every text file: layout, paths of a particular machine, unwanted words.

use super::{Source, Violation};

/// Folders that exist only on the author's machine. Examples in documents use folders that any host may have:
/// `/srv/vm`, `/run/sluice`, `/etc/sluice`.
const MACHINE_FOLDERS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/fa", "rm/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Promises of later work. A defect is fixed or reported; a missing part is left out, and its documentation says so.
const UNFINISHED: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Words about the place where the work is organised. The texts are only about the project.
const WORKPLACE: &[&str] =
    &[concat!("agent", " session"), concat!("coding", " agent"), concat!("generated with", " ai")];

/// Hosts of package registries. The mirror that a machine uses belongs in its own configuration.
const REGISTRIES: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("files.python", "hosted.org"),
    concat!("registry.npmjs", ".org"),
    concat!("registry.yarnpkg", ".com"),
    concat!("deb.debian", ".org"),
    concat!("ftp.debian", ".org"),
    concat!("security.debian", ".org"),
    concat!("snapshot.debian", ".org"),
    concat!("archive.ubuntu", ".com"),
    concat!("proxy.golang", ".org"),
    concat!("sum.golang", ".org"),
    concat!("rubygems", ".org"),
    concat!("repo.maven", ".apache.org"),
    concat!("registry-1.docker", ".io"),
];

/// Words that are not standard terms, and their replacements.
const RETIRED: &[(&str, &str)] = &[
    (concat!("an", "ew"), "again, or re-"),
    (concat!("by which", " right"), "in which phase"),
    (concat!("shown", " out"), "disconnected"),
    (concat!("turned", " away"), "rejected"),
    (concat!("so", " many"), "at most N, or the number of"),
    (concat!("some", "body"), "the component that acts"),
    (concat!("who", "ever"), "the component that acts"),
    (concat!("stands in", " line"), "is queued"),
    (concat!("lets", " go of"), "releases"),
    (concat!("as things", " are"), "in the current state"),
    (concat!("every", "body"), "all VMs, or all clients"),
    (concat!("any", "body"), "the component that acts"),
    (concat!("at the", " least"), "at least"),
    (concat!("stand in", " line"), "are queued"),
    (concat!("look-", "alike"), "synthetic workload"),
    (concat!("device", " set"), "device preset"),
];

pub(super) fn check(source: &Source<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in source.text.split('\n').enumerate() {
        let findings = [
            layout(source, line),
            machine_folder(line),
            unfinished(line),
            workplace(line),
            issue_number(line),
            registry(source, line),
            retired(line),
        ];
        let findings = findings.into_iter().flatten();
        violations.extend(findings.map(|what| source.violation(index + 1, what)));
    }
    if !source.text.is_empty() && !source.text.ends_with('\n') {
        let last = source.text.split('\n').count();
        violations.push(source.violation(last, "no newline at the end, add one"));
    }
    violations
}

fn layout(source: &Source<'_>, line: &str) -> Option<String> {
    if line.ends_with([' ', '\t', '\r']) {
        return Some("trailing whitespace, remove it".to_string());
    }
    let tab = source.is_rust() && line.contains('\t');
    tab.then(|| "tab, write spaces (or \\t inside a string)".to_string())
}

fn machine_folder(line: &str) -> Option<String> {
    let found = MACHINE_FOLDERS.iter().find(|folder| {
        line.match_indices(*folder).any(|(at, _)| {
            // A folder below another name or a variable is relative; a name in angle brackets is a placeholder.
            let starts_a_path = !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-.~}>*".contains(c));
            let names_something = line[at + folder.len()..].starts_with(|c: char| !"<$*".contains(c));
            starts_a_path && (names_something || !folder.starts_with(concat!("/ho", "me")))
        })
    })?;
    Some(format!("path of one machine ({found}...), use a relative path or an example folder such as /srv/vm"))
}

fn unfinished(line: &str) -> Option<String> {
    let found = UNFINISHED.iter().find(|word| has_word(line, word))?;
    Some(format!("unfinished work ({found}), finish it or state what is missing"))
}

fn workplace(line: &str) -> Option<String> {
    let line = line.to_lowercase();
    let found = WORKPLACE.iter().find(|word| has_word(&line, word))?;
    Some(format!("workplace words (\"{found}\"), write only about the project"))
}

fn issue_number(line: &str) -> Option<String> {
    let line = line.to_lowercase();
    let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '#')).peekable();
    while let Some(word) = words.next() {
        let numbered = match word.split_once('#') {
            Some((before, after)) => matches!(before, "issue" | "issues") && is_number(after),
            None => {
                matches!(word, "issue" | "issues")
                    && words.peek().is_some_and(|next| is_number(next.trim_start_matches('#')))
            }
        };
        if numbered {
            let advice = "describe the problem itself (for the verb write submit or dispatch)";
            return Some(format!("number of an issue, {advice}"));
        }
    }
    None
}

fn registry(source: &Source<'_>, line: &str) -> Option<String> {
    // Cargo writes the source of each package into the lock file.
    if source.path.ends_with("Cargo.lock") {
        return None;
    }
    let line = line.to_lowercase();
    let found = REGISTRIES.iter().find(|host| has_word(&line, host))?;
    Some(format!("host of a package registry ({found}), leave it to the machine's configuration"))
}

fn retired(line: &str) -> Option<String> {
    let line = line.to_lowercase();
    let (word, better) = RETIRED.iter().find(|(word, _)| has_word(&line, word))?;
    Some(format!("\"{word}\" is not a standard term, write: {better}"))
}

/// Whether `word` occurs with no letter, digit or underscore on either side.
fn has_word(line: &str, word: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(joins) && !line[at + word.len()..].starts_with(joins))
}

fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LINES: [usize; 0] = [];

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        check(&Source { path, text }).into_iter().map(|violation| (violation.line, violation.what)).collect()
    }

    fn lines(text: &str) -> Vec<usize> {
        found("notes.md", text).iter().map(|found| found.0).collect()
    }

    #[test]
    fn retired_words_are_found() {
        let line = concat!("It is made an", "ew.\n");
        let what = concat!("\"an", "ew\" is not a standard term, write: again, or re-").to_owned();
        assert_eq!(found("docs/a.md", line), [(1, what)]);
        assert!(found("README.md", "A new one.\n").is_empty());
    }

    #[test]
    fn bad_layout_is_found() {
        assert_eq!(lines("good\n\nlines\n"), NO_LINES);
        assert_eq!(lines(""), NO_LINES);
        assert_eq!(lines("space \nmore\ntab\t\nreturn\r\n"), [1, 3, 4]);
        assert_eq!(lines("one\ntwo"), [2]);
        assert_eq!(lines("all:\n\tmake\n"), NO_LINES);
        assert_eq!(found("a.rs", "fn f() {\n\tg();\n}\n").len(), 1);
    }

    #[test]
    fn folders_of_a_particular_machine_are_found() {
        for bad in [
            concat!("see /wo", "rk/main for it\n"),
            concat!("path = \"/fa", "rm/x\"\n"),
            concat!("(/ro", "ot/.cargo)\n"),
            concat!("/ho", "me/mary/disk.img\n"),
        ] {
            assert_eq!(lines(bad), [1], "{bad}");
        }
        for good in [
            "/srv/vm/db1.img /run/sluice/db1-root.sock /etc/sluice/sluice.toml /dev/nvme0n1\n",
            concat!("docs/wo", "rk/one ~/wo", "rk/two ${OUT}/wo", "rk/three\n"),
            concat!("never write /ho", "me/<name>\n"),
        ] {
            assert_eq!(lines(good), NO_LINES, "{good}");
        }
    }

    #[test]
    fn unfinished_work_is_found() {
        assert_eq!(lines(concat!("// TO", "DO: later\n")), [1]);
        assert_eq!(lines(concat!("FIX", "ME\n")), [1]);
        assert_eq!(lines(concat!("a XX", "X b\n")), [1]);
        assert_eq!(lines("mktemp /tmp/XXXXXX\nmastodon\n"), NO_LINES);
    }

    #[test]
    fn workplace_words_are_found() {
        assert_eq!(lines(concat!("Written in an Agent", " Session\n")), [1]);
        assert_eq!(lines("an NBD session ends; the agenda\n"), NO_LINES);
    }

    #[test]
    fn issue_numbers_are_found() {
        for bad in [concat!("fixes issue", " #12\n"), concat!("Issue", " 7 says\n"), concat!("(issues", "#3)\n")] {
            assert_eq!(lines(bad), [1], "{bad}");
        }
        assert_eq!(lines("an issue of 3 disks\n# 1 heading\ntissue 5\n"), NO_LINES);
    }

    #[test]
    fn hosts_of_registries_are_found() {
        assert_eq!(lines(concat!("https://static.crates", ".io/x\n")), [1]);
        assert_eq!(lines(concat!("deb http://deb.debian", ".org/debian\n")), [1]);
        assert_eq!(lines("https://example.org/crates\n"), NO_LINES);
        assert_eq!(found("Cargo.lock", concat!("crates", ".io\n")), []);
    }
}
