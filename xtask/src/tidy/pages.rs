//! Rules for the pages of the book and of the repository root: each page under `docs/` is in the index once, and each
//! relative link leads to a file, and to a heading if it names one.
//!
//! Pages are read by a Markdown parser, so an example in a code block is not taken for a link. A heading has the anchor
//! that mdBook and code hosting sites give it: its text in lower case without punctuation, with `-` for each space,
//! and with a number if an earlier heading of the page has the same text.

use super::{Source, Violation};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};

/// The index of the book.
const INDEX: &str = "docs/SUMMARY.md";

/// A page, with what it refers to and what others may refer to.
struct Page<'a> {
    source: &'a Source<'a>,
    /// Lines and targets of links and images.
    links: Vec<(usize, String)>,
    anchors: BTreeSet<String>,
}

/// Whether these rules apply to the file.
pub(super) fn is_page(path: &str) -> bool {
    path.ends_with(".md") && (path.starts_with("docs/") || !path.contains('/'))
}

/// Checks all pages. `files` are all files of the repository.
pub(super) fn check(pages: &[Source<'_>], files: &[String]) -> Vec<Violation> {
    let pages: BTreeMap<&str, Page<'_>> = pages.iter().map(|source| (source.path, read(source))).collect();
    let places = places(files);
    let mut violations = Vec::new();
    for page in pages.values() {
        for (line, link) in &page.links {
            let found = broken(page.source.path, link, &pages, &places);
            violations.extend(found.map(|what| page.source.violation(*line, what)));
        }
    }
    violations.extend(not_in_the_index(&pages));
    violations
}

/// Returns the files and all folders above them.
fn places(files: &[String]) -> BTreeSet<&str> {
    let above = |file: &'_ String| file.match_indices('/').map(|(at, _)| at).collect::<Vec<_>>();
    let folders = files.iter().flat_map(|file| above(file).into_iter().map(|at| &file[..at]));
    folders.chain(files.iter().map(String::as_str)).collect()
}

fn read<'a>(source: &'a Source<'a>) -> Page<'a> {
    let mut page = Page { source, links: Vec::new(), anchors: BTreeSet::new() };
    let mut heading: Option<String> = None;
    for (event, range) in Parser::new_ext(source.text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                let line = source.text[..range.start].matches('\n').count() + 1;
                page.links.push((line, dest_url.into_string()));
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => add_anchor(&mut page.anchors, &heading.take().unwrap_or_default()),
            Event::Text(text) | Event::Code(text) => heading.iter_mut().for_each(|heading| heading.push_str(&text)),
            _ => {}
        }
    }
    page
}

fn add_anchor(anchors: &mut BTreeSet<String>, heading: &str) {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || c.is_whitespace() || "-_".contains(*c));
    let anchor: String = kept.map(|c| if c.is_whitespace() { '-' } else { c }).collect::<String>().to_lowercase();
    let numbered = (1..).map(|number| format!("{anchor}-{number}"));
    let first_free = std::iter::once(anchor.clone()).chain(numbered).find(|name| !anchors.contains(name));
    anchors.extend(first_free);
}

/// Returns what is wrong with a link.
fn broken(from: &str, link: &str, pages: &BTreeMap<&str, Page<'_>>, places: &BTreeSet<&str>) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let target = if path.is_empty() { Some(from.to_owned()) } else { resolve(from, path) };
    let Some(target) = target.filter(|target| target.is_empty() || places.contains(target.as_str())) else {
        return Some(format!("link to a missing file ({link}), correct it"));
    };
    let (page, anchor) = (pages.get(target.as_str())?, anchor?);
    let exists = page.anchors.contains(anchor);
    (!exists).then(|| format!("link to a missing heading ({link}), name one of {target}"))
}

/// Returns the path of a link's target from the root; `None` if it leads out of the repository.
fn resolve(from: &str, path: &str) -> Option<String> {
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut names: Vec<&str> = folder.split('/').filter(|name| !name.is_empty()).collect();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()?),
            name => names.push(name),
        }
    }
    Some(names.join("/"))
}

fn not_in_the_index(pages: &BTreeMap<&str, Page<'_>>) -> Vec<Violation> {
    let Some(index) = pages.get(INDEX) else { return Vec::new() };
    let listed: Vec<(usize, String)> =
        index.links.iter().filter_map(|(line, link)| Some((*line, resolve(INDEX, link)?))).collect();
    let is_listed = |path: &str| path == INDEX || listed.iter().any(|(_, of)| of == path);
    let missing = pages.keys().filter(|path| path.starts_with("docs/") && !is_listed(path));
    let mut violations: Vec<Violation> =
        missing.map(|path| index.source.violation(1, format!("{path} is not in the index, add it"))).collect();
    let mut seen = BTreeSet::new();
    let again = listed.iter().filter(|(_, path)| !seen.insert(path.as_str()));
    violations.extend(again.map(|(line, path)| index.source.violation(*line, format!("{path} is listed twice"))));
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the violations of some pages, as they are printed.
    fn found(pages: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source<'_>> = pages.iter().map(|(path, text)| Source { path, text }).collect();
        let files: Vec<String> = pages.iter().map(|(path, _)| (*path).to_owned()).collect();
        let files: Vec<String> = files.into_iter().chain(["docs/papers/a.svg".to_owned()]).collect();
        check(&sources, &files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn broken_links_are_found() {
        let text = "# A\n\n[b](c.md) and\n[here](#b)\n\n| a |\n|---|\n| ![x](b.svg) |\n\n[out](../../x.md)\n";
        let found = found(&[("docs/a.md", text)]);
        let expected = [
            "docs/a.md:3: link to a missing file (c.md), correct it",
            "docs/a.md:4: link to a missing heading (#b), name one of docs/a.md",
            "docs/a.md:8: link to a missing file (b.svg), correct it",
            "docs/a.md:10: link to a missing file (../../x.md), correct it",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn good_links_are_accepted() {
        let other = "# The `[vm.NAME]` table\n## Two\n## Two\n## What it is, in 1 line\n";
        let text = "[a](docs/b.md#the-vmname-table) [b](docs/b.md#two-1) [c](docs/b.md#what-it-is-in-1-line)\n\
                    [d](docs) [e](docs/papers/a.svg) [f](https://example.org/x#y) `[g](no.md)`\n\n```\n[h](no.md)\n```\n";
        assert!(found(&[("README.md", text), ("docs/b.md", other)]).is_empty());
        let found = found(&[("README.md", "[b](docs/b.md#two-2)\n"), ("docs/b.md", other)]);
        assert_eq!(found, ["README.md:1: link to a missing heading (docs/b.md#two-2), name one of docs/b.md"]);
    }

    #[test]
    fn each_page_is_in_the_index_once() {
        let index = "# Book\n\n- [A](a.md)\n- [A again](./a.md)\n";
        let found = found(&[("docs/SUMMARY.md", index), ("docs/a.md", ""), ("docs/x/b.md", ""), ("README.md", "")]);
        let expected = [
            "docs/SUMMARY.md:1: docs/x/b.md is not in the index, add it",
            "docs/SUMMARY.md:4: docs/a.md is listed twice",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn only_pages_of_the_book_and_of_the_root_are_checked() {
        assert!(is_page("README.md") && is_page("docs/papers/mclock.md"));
        assert!(!is_page("docs/rules.toml") && !is_page("crates/sluice-lab/pages/mclock.md"));
    }
}
