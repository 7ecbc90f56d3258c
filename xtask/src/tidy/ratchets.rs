//! Ratchets: bounds on what makes a program hard to own, which only become tighter.
//!
//! Lengths of functions and files alone move the weight into state and into arrows between files. So the core and the data plane have
//! bounds for the fields of a structure and for the files that a type's methods are in, and every crate one for its circles of imports.
//! An exception has a reason, and a bound of its own that it may not exceed.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::{Source, Violation};
use crate::{lines, workspace};

/// Maximum number of fields of a structure, and of those that are flags.
const FIELDS_MAX: usize = 15;
const FLAGS_MAX: usize = 2;
/// Maximum number of files that the methods of a type are in.
const FILES_MAX: usize = 2;
/// Maximum number of files in a circle of imports.
const CIRCLE_MAX: usize = 6;

/// Maximum number of crates that the daemon links, with its own.
const CRATES_MAX: usize = 146;
/// Maximum number of lines of the product's code, without comments and tests. `cargo xtask lines` prints them.
const PRODUCT_LINES_MAX: usize = 81_880;

/// Folders in which state is bounded: the core and the data plane.
const STATE: &[&str] = &["crates/sluice-sched/src/", "crates/sluice-io/src/"];

/// A bound that is exceeded, by how much at most, and why.
struct Exception {
    /// Structure or type with its file, or the first file of a circle.
    what: &'static str,
    max: usize,
    #[allow(dead_code, reason = "it is for the reader")]
    reason: &'static str,
}

const EXCEPTIONS: &[Exception] = &[
    Exception {
        what: "crates/sluice-io/src/source/opened.rs:Descriptor flags",
        max: 4,
        reason: "what the kernel said of a file when it was opened",
    },
    Exception {
        what: "crates/sluice-io/src/store/file/mod.rs:FileStore methods",
        max: 3,
        reason: "the steps of an operation and their ends are files of their own",
    },
    Exception {
        what: "crates/sluice-io/src/store/file/mod.rs:Volume methods",
        max: 3,
        reason: "zeroing and losses are files of their own",
    },
    Exception {
        what: "crates/sluice-sched/src/schedulers/mclock/level.rs:Member flags",
        max: 3,
        reason: "parted members took 5 to 18 % more time per request",
    },
    Exception {
        what: "crates/sluice-io/src/backend/volume.rs:Volume",
        max: 17,
        reason: "not parted yet from what its store needs",
    },
    Exception {
        what: "crates/sluice-io/src/source/opened.rs:Source methods",
        max: 3,
        reason: "opening, and the loss of writes, are files of their own",
    },
    Exception {
        what: "crates/sluice-io/src/source/open.rs:SourceSpec flags",
        max: 3,
        reason: "independent choices of the host file",
    },
    Exception {
        what: "crates/sluice-io/src/device/core.rs:Core methods",
        max: 4,
        reason: "not parted yet from its windows and clients",
    },
    Exception {
        what: "crates/sluice-io/src/frontend/nbd/mod.rs:Nbd methods",
        max: 5,
        reason: "not parted yet; a connection is",
    },
    Exception {
        what: "crates/sluice-io/src/frontend/vhost_blk/mod.rs:VhostBlk methods",
        max: 4,
        reason: "not parted yet",
    },
    Exception {
        what: "crates/sluice-io/src/reactor/spec.rs:Snapshot",
        max: 17,
        reason: "figures that a thread reports, copied and never changed",
    },
    Exception {
        what: "crates/sluice-io/src/volume.rs:VolumeInfo flags",
        max: 7,
        reason: "what the protocols announce of a volume, flag by flag",
    },
    Exception {
        what: "crates/sluice-io/src/nbd/handshake.rs:Handshake flags",
        max: 3,
        reason: "flags of the protocol, as the client sent them",
    },
    Exception {
        what: "crates/sluice-io/src/nbd/options.rs:InfoRequest flags",
        max: 3,
        reason: "flags of the protocol, as the client sent them",
    },
    Exception {
        what: "crates/sluice-io/src/nbd/options.rs:MetaRequest flags",
        max: 3,
        reason: "flags of the protocol, as the client sent them",
    },
    Exception {
        what: "crates/sluice-sched/src/gate/stats.rs:GateStats",
        max: 20,
        reason: "counters, each read by its name",
    },
    Exception {
        what: "crates/sluice-sched/src/gate/mod.rs:Gate methods",
        max: 3,
        reason: "statistics and the change of a scheduler are files of their own",
    },
    Exception {
        what: "crates/sluice-sched/src/scheduler.rs:Descriptor",
        max: 16,
        reason: "what a scheduler states of itself, a constant for each",
    },
];

/// Checks all files of Rust together.
pub(super) fn check(sources: &[Source<'_>]) -> Vec<Violation> {
    check_but(EXCEPTIONS, sources)
}

fn check_but(exceptions: &[Exception], sources: &[Source<'_>]) -> Vec<Violation> {
    let files: Vec<Parsed<'_>> = sources.iter().filter_map(Parsed::of).collect();
    let mut counts = Vec::new();
    for file in files.iter().filter(|file| STATE.iter().any(|folder| file.source.path.starts_with(folder))) {
        counts.extend(file.structures.iter().flat_map(|structure| structure.counts(file.source)));
    }
    counts.extend(scattered(&files));
    counts.extend(circles(&files));
    let stale: Vec<Violation> = exceptions.iter().filter_map(|exception| exception.is_stale(&counts)).collect();
    let exception = |what: &str| exceptions.iter().find(|exception| exception.what == what);
    let allowed = |count: &Count| exception(&count.what).map_or(count.max, |exception| exception.max);
    let exceeded = counts.into_iter().filter(|count| count.count > allowed(count));
    exceeded.map(|count| count.violation).chain(stale).collect()
}

/// Checks the size of the product.
pub(super) fn check_size() -> Result<Vec<Violation>, String> {
    let violation = |path: &str, what: String| Violation { path: path.to_owned(), line: 1, what };
    let mut violations = Vec::new();
    let lines = lines::product()?;
    if lines > PRODUCT_LINES_MAX {
        let what = format!("the product has {lines} lines of code of at most {PRODUCT_LINES_MAX}, remove some");
        violations.push(violation("crates", what));
    }
    let crates = linked_crates("sluice-daemon")?;
    if crates > CRATES_MAX {
        let what = format!("the daemon links {crates} crates of at most {CRATES_MAX}, see `cargo tree -e normal`");
        violations.push(violation("crates/sluice-daemon/Cargo.toml", what));
    }
    Ok(violations)
}

/// Returns the number of crates that a package links.
fn linked_crates(package: &str) -> Result<usize, String> {
    let mut tree = workspace::cargo();
    tree.args(["tree", "--package", package, "--edges", "normal", "--prefix", "none"]);
    let tree = tree.output().map_err(|error| format!("Cannot start cargo: {error}"))?;
    if !tree.status.success() {
        return Err(format!("`cargo tree` failed: {}", String::from_utf8_lossy(&tree.stderr)));
    }
    let text = String::from_utf8_lossy(&tree.stdout);
    let names: BTreeSet<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    Ok(names.len())
}

/// Something that was counted.
struct Count {
    /// As an [`Exception`] names it.
    what: String,
    count: usize,
    max: usize,
    /// What is said if there are more.
    violation: Violation,
}

impl Exception {
    /// Returns a violation if less would do: what was gained is not lost again unseen.
    fn is_stale(&self, counts: &[Count]) -> Option<Violation> {
        let what = match counts.iter().filter(|count| count.what == self.what).max_by_key(|count| count.count) {
            Some(count) if count.count > count.max && count.count >= self.max => return None,
            Some(count) if count.count > count.max => format!("the exception for {} may be {}", self.what, count.count),
            _ => format!("the exception for {} is not needed any more", self.what),
        };
        Some(Violation { path: "xtask/src/tidy/ratchets.rs".to_owned(), line: 1, what })
    }
}

/// A file, as far as the ratchets look at it.
struct Parsed<'a> {
    source: &'a Source<'a>,
    /// The folder of its crate's root, with `/` at the end.
    root: &'a str,
    structures: Vec<Structure>,
    /// Names of the types that it defines, and of those that it has methods of, with the line of the first.
    types: BTreeSet<String>,
    methods: BTreeMap<String, usize>,
    /// Paths within the crate that it imports, as segments.
    imports: Vec<Vec<String>>,
}

struct Structure {
    name: String,
    line: usize,
    fields: usize,
    flags: usize,
}

impl Structure {
    fn counts(&self, source: &Source<'_>) -> [Count; 2] {
        let Structure { name, line, fields, flags } = self;
        let what = format!("{}:{name}", source.path);
        let many = format!("`{name}` has {fields} fields of at most {FIELDS_MAX}, part it by idea");
        let unclear = format!("`{name}` has {flags} flags of at most {FLAGS_MAX}, make its state an enum");
        let flags_of = Count {
            what: format!("{what} flags"),
            count: *flags,
            max: FLAGS_MAX,
            violation: source.violation(*line, unclear),
        };
        [Count { what, count: *fields, max: FIELDS_MAX, violation: source.violation(*line, many) }, flags_of]
    }
}

impl<'a> Parsed<'a> {
    /// Parses a file of source; `None` for tests and what is no Rust, which other rules report.
    fn of(source: &'a Source<'a>) -> Option<Self> {
        let root = root_of(source.path)?;
        let is_test = source.has_folder("tests") || source.path.ends_with("/tests.rs");
        let file = syn::parse_file(source.text).ok().filter(|_| !is_test)?;
        let mut parsed = Parsed {
            source,
            root,
            structures: Vec::new(),
            types: BTreeSet::new(),
            methods: BTreeMap::new(),
            imports: Vec::new(),
        };
        parsed.visit_file(&file);
        Some(parsed)
    }

    /// Returns the segments of its module within the crate.
    fn module(&self) -> Vec<&'a str> {
        let path =
            self.source.path.strip_prefix(self.root).and_then(|path| path.strip_suffix(".rs")).unwrap_or_default();
        let mut segments: Vec<&str> = path.split('/').collect();
        if matches!(segments.last(), Some(&("mod" | "lib" | "main"))) {
            segments.pop();
        }
        segments
    }

    fn add_imports(&mut self, tree: &syn::UseTree, path: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(inner) => {
                path.push(inner.ident.to_string());
                self.add_imports(&inner.tree, path);
                path.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.add_imports(item, path)),
            syn::UseTree::Name(syn::UseName { ident }) | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                path.push(ident.to_string());
                self.imports.push(path.clone());
                path.pop();
            }
            syn::UseTree::Glob(_) => self.imports.push(path.clone()),
        }
    }
}

/// Returns the folder of the root of the crate that a file of source belongs to.
fn root_of(path: &str) -> Option<&str> {
    let source = path.find("/src/")? + "/src/".len();
    let program = path[source..].strip_prefix("bin/").and_then(|rest| rest.find('/'));
    Some(&path[..program.map_or(source, |name| source + "bin/".len() + name + 1)])
}

fn is_of_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let tokens = attribute.meta.require_list().map(|list| list.tokens.to_string());
        attribute.path().is_ident("cfg") && tokens.is_ok_and(|tokens| tokens == "test")
    })
}

impl<'ast> Visit<'ast> for Parsed<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_of_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.types.insert(item.ident.to_string());
        let fields: Vec<_> = item.fields.iter().filter(|field| !is_of_tests(&field.attrs)).collect();
        let is_flag = |field: &&&syn::Field| matches!(&field.ty, syn::Type::Path(path) if path.path.is_ident("bool"));
        self.structures.push(Structure {
            name: item.ident.to_string(),
            line: item.ident.span().start().line,
            fields: fields.len(),
            flags: fields.iter().filter(is_flag).count(),
        });
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.types.insert(item.ident.to_string());
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let (None, syn::Type::Path(path), false) = (&item.trait_, &*item.self_ty, is_of_tests(&item.attrs)) {
            let name = path.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
            self.methods.entry(name).or_insert(item.impl_token.span.start().line);
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_of_tests(&item.attrs) {
            self.add_imports(&item.tree, &mut Vec::new());
        }
    }
}

/// Counts the files that the methods of each type are in.
fn scattered(files: &[Parsed<'_>]) -> Vec<Count> {
    let mut places: BTreeMap<(usize, &str), Vec<(&Parsed<'_>, usize)>> = BTreeMap::new();
    for file in files.iter().filter(|file| STATE.iter().any(|folder| file.source.path.starts_with(folder))) {
        for (name, line) in &file.methods {
            if let Some(home) = home(files, file, name) {
                places.entry((home, name)).or_default().push((file, *line));
            }
        }
    }
    let counts = places.iter().filter_map(|((home, name), places)| {
        let (source, count) = (files[*home].source, places.len());
        let (last, line) = places.last()?;
        let said = format!("the methods of `{name}` are in {count} files of at most {FILES_MAX}, give its parts types");
        let violation = last.source.violation(*line, said);
        Some(Count { what: format!("{}:{name} methods", source.path), count, max: FILES_MAX, violation })
    });
    counts.collect()
}

/// Returns the file of the type `name` that a file has methods of: of those with this name in its crate, that with the longest path in
/// common.
fn home(files: &[Parsed<'_>], file: &Parsed<'_>, name: &str) -> Option<usize> {
    let common = |other: &Parsed<'_>| {
        let pairs = other.source.path.bytes().zip(file.source.path.bytes());
        pairs.take_while(|(one, other)| one == other).count()
    };
    let known = files.iter().enumerate().filter(|(_, other)| other.root == file.root && other.types.contains(name));
    known.max_by_key(|(_, other)| common(other)).map(|(index, _)| index)
}

/// Counts the files of each circle of imports.
fn circles(files: &[Parsed<'_>]) -> Vec<Count> {
    let mut modules: BTreeMap<(&str, Vec<&str>), usize> = BTreeMap::new();
    for (index, file) in files.iter().enumerate() {
        modules.insert((file.root, file.module()), index);
    }
    let arrows: Vec<BTreeSet<usize>> = files
        .iter()
        .enumerate()
        .map(|(from, file)| {
            let to = file.imports.iter().filter_map(|import| imported(&modules, file, import));
            to.filter(|to| *to != from).collect()
        })
        .collect();
    let counts = strongly_connected(&arrows).into_iter().map(|mut circle| {
        circle.sort_by_key(|index| files[*index].source.path);
        let (source, count) = (files[circle[0]].source, circle.len());
        let paths: Vec<&str> = circle.iter().map(|index| files[*index].source.path).collect();
        let said = format!("{count} files of at most {CIRCLE_MAX} import each other: {}", paths.join(" "));
        Count { what: source.path.to_owned(), count, max: CIRCLE_MAX, violation: source.violation(1, said) }
    });
    counts.collect()
}

/// Returns the file that an import names: that of the longest path to a module.
fn imported(modules: &BTreeMap<(&str, Vec<&str>), usize>, file: &Parsed<'_>, import: &[String]) -> Option<usize> {
    let mut module = match import.first()?.as_str() {
        "crate" => Vec::new(),
        "super" | "self" => file.module(),
        _ => return None,
    };
    for segment in import {
        match segment.as_str() {
            "crate" | "self" => {}
            "super" => drop(module.pop()),
            name => module.push(name),
        }
    }
    loop {
        if let Some(found) = modules.get(&(file.root, module.clone())) {
            return Some(*found);
        }
        module.pop()?;
    }
}

/// Returns the groups of nodes that reach each other (Tarjan 1972).
fn strongly_connected(arrows: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let mut search = Search {
        arrows,
        order: vec![None; arrows.len()],
        low: vec![0; arrows.len()],
        stack: Vec::new(),
        groups: Vec::new(),
        next: 0,
    };
    for node in 0..arrows.len() {
        if search.order[node].is_none() {
            search.visit(node);
        }
    }
    search.groups
}

struct Search<'a> {
    arrows: &'a [BTreeSet<usize>],
    order: Vec<Option<usize>>,
    low: Vec<usize>,
    stack: Vec<usize>,
    groups: Vec<Vec<usize>>,
    next: usize,
}

impl Search<'_> {
    fn visit(&mut self, node: usize) {
        let own = self.next;
        self.next += 1;
        (self.order[node], self.low[node]) = (Some(own), own);
        self.stack.push(node);
        for other in &self.arrows[node] {
            match self.order[*other] {
                None => {
                    self.visit(*other);
                    self.low[node] = self.low[node].min(self.low[*other]);
                }
                Some(order) if self.stack.contains(other) => self.low[node] = self.low[node].min(order),
                Some(_) => {}
            }
        }
        if self.low[node] == own {
            let start = self.stack.iter().rposition(|other| *other == node).expect("it is on the stack");
            self.groups.push(self.stack.split_off(start));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source<'_>> = files.iter().map(|(path, text)| Source { path, text }).collect();
        check_but(&[], &sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn fields_and_flags_of_the_core_are_counted() {
        let text = format!("struct S {{\n{}}}\n", "a: u8,\n".repeat(16));
        let expected = ["crates/sluice-io/src/a.rs:1: `S` has 16 fields of at most 15, part it by idea"];
        assert_eq!(found(&[("crates/sluice-io/src/a.rs", &text)]), expected);
        assert_eq!(found(&[("crates/sluice-sim/src/a.rs", &text)]), [""; 0], "another crate");
        let flags = "struct S { a: bool, b: bool, c: bool, #[cfg(test)] d: bool }\n";
        let expected = ["crates/sluice-io/src/a.rs:1: `S` has 3 flags of at most 2, make its state an enum"];
        assert_eq!(found(&[("crates/sluice-io/src/a.rs", flags)]), expected);
        let test = "#[cfg(test)]\nmod tests { struct S { a: bool, b: bool, c: bool } }\n";
        assert_eq!(found(&[("crates/sluice-io/src/a.rs", test)]), [""; 0]);
    }

    #[test]
    fn methods_in_three_files_are_found_and_another_type_of_the_name_is_not_mixed_in() {
        let core = |name: &str| format!("crates/sluice-io/src/{name}.rs");
        let paths = [core("a/mod"), core("a/b"), core("a/c"), core("d")];
        let texts = ["struct S;\nimpl S {}\n", "impl super::S {}\n", "impl S {}\n", "enum S {}\nimpl S {}\n"];
        let files: Vec<(&str, &str)> = paths.iter().map(String::as_str).zip(texts).collect();
        let expected =
            ["crates/sluice-io/src/a/c.rs:1: the methods of `S` are in 3 files of at most 2, give its parts types"];
        assert_eq!(found(&files), expected);
        assert_eq!(found(&[files[0], files[1], files[3]]), [""; 0], "the type of another file is another one");
    }

    #[test]
    fn a_circle_of_seven_files_is_found() {
        let paths: Vec<String> = (0..7).map(|file| format!("crates/x/src/m{file}/mod.rs")).collect();
        let texts: Vec<String> = (0..7).map(|file| format!("use crate::m{}::Thing;\n", (file + 1) % 7)).collect();
        let mut files: Vec<(&str, &str)> =
            paths.iter().map(String::as_str).zip(texts.iter().map(String::as_str)).collect();
        let said = found(&files);
        assert!(said.len() == 1 && said[0].starts_with("crates/x/src/m0/mod.rs:1: 7 files of at most 6"), "{said:?}");
        files[6].1 = "use std::fmt;\nuse super::m5::Other;\n";
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn an_exception_that_allows_more_than_there_is_is_found() {
        let text = format!("struct S {{\n{}}}\n", "a: u8,\n".repeat(17));
        let said = |max| {
            let exception = Exception { what: "crates/sluice-io/src/a.rs:S", max, reason: "" };
            let source = Source { path: "crates/sluice-io/src/a.rs", text: &text };
            check_but(&[exception], &[source]).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(said(17), [""; 0]);
        assert_eq!(said(16).len(), 1);
        assert!(said(18)[0].ends_with("the exception for crates/sluice-io/src/a.rs:S may be 17"), "{:?}", said(18));
        let other = Exception { what: "crates/sluice-io/src/b.rs:S", max: 17, reason: "" };
        assert!(check_but(&[other], &[]).iter().any(|violation| violation.what.ends_with("is not needed any more")));
    }
}
