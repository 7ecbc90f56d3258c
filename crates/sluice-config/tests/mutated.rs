//! Any text is either parsed or rejected with diagnostics; none causes a panic.

use proptest::prelude::*;
use sluice_config::parse;

const HOST: &str = include_str!("../../../examples/host.toml");
const NETWORK: &str = include_str!("../../../examples/network.toml");
const SMALL: &str = include_str!("../../../examples/two-vms.toml");

/// Pieces that are likely to be misread.
const PIECES: &[&str] = &[
    "0",
    "-1",
    "nan",
    "inf",
    "1e400",
    "99999999999999999999999999999999999999999",
    "\"\"",
    "\"0B\"",
    "\"16777215TiB\"",
    "\"1000000000 Tiops@1TiB\"",
    "\"@\"",
    "\"unlimited\"",
    "{}",
    "[]",
    "[[a]]",
    "1979-05-27",
    "true",
    "=",
    "\"",
    "\n",
    "[vm.db1]",
    "[vm.x.volume.y]",
    "[vm.db1.nic.x]",
    "[uplink.lan]",
    "\"0bit/s\"",
    "\"1024TiB/s\"",
    "\"0.0.0.0/0\"",
    "\u{0}",
    "\\u0000",
    "µ",
    "@",
    "{ iops = ",
    " = ",
    "weight = \"none\"\n",
    "'''",
    "#",
];

#[derive(Debug, Clone)]
enum Edit {
    Remove(usize, usize),
    Insert(usize, &'static str),
    Swap(usize, usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = || any::<usize>();
    prop_oneof![
        (at(), 1..40usize).prop_map(|(at, length)| Edit::Remove(at, length)),
        (at(), proptest::sample::select(PIECES)).prop_map(|(at, piece)| Edit::Insert(at, piece)),
        (at(), at()).prop_map(|(a, b)| Edit::Swap(a, b)),
    ]
}

fn apply(text: &str, edits: &[Edit]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for edit in edits {
        let length = chars.len().max(1);
        match edit {
            Edit::Remove(at, count) => {
                let at = at % length;
                chars.drain(at..(at + count).min(chars.len()));
            }
            Edit::Insert(at, piece) => {
                let at = at % length;
                chars.splice(at..at, piece.chars());
            }
            Edit::Swap(a, b) => chars.swap(a % length, b % length),
        }
    }
    chars.into_iter().collect()
}

fn read(text: &str) {
    match parse("mutated.toml", text) {
        Ok(host) => assert_eq!(parse("mutated.toml", text), Ok(host)),
        Err(found) => assert!(found.errors() > 0 && !found.to_string().is_empty()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_examples_are_parsed_or_rejected(edits in proptest::collection::vec(edit(), 1..6), text in proptest::sample::select(&[HOST, SMALL, NETWORK][..])) {
        read(&apply(text, &edits));
    }

    #[test]
    fn values_of_any_kind_are_parsed_or_rejected(line in 0..200usize, host in proptest::sample::select(&[HOST, NETWORK][..]), piece in proptest::sample::select(PIECES)) {
        let lines: Vec<&str> = host.lines().collect();
        let line = line % lines.len();
        let changed = lines.iter().enumerate().map(|(n, text)| match text.split_once('=') {
            Some((key, _)) if n == line => format!("{key}= {piece}\n"),
            _ => format!("{text}\n"),
        });
        read(&changed.collect::<String>());
    }

    #[test]
    fn noise_is_refused(text in "[\\[\\]a-z.=\"{}, \n0-9@µ]{0,200}") {
        let _ = parse("noise.toml", &text).map_err(|found| found.to_string());
    }
}
