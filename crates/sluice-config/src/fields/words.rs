//! The list of keys as the manual has it: what each may be in words, and its tables in their order.

use std::collections::BTreeSet;

use super::{Choice, Kind, Section};
use crate::disk_path::PATHS_MAX;

/// A part of the manual of a file.
#[derive(Debug, Clone, Copy)]
pub enum Part {
    Table(&'static Section),
    Choice(&'static Choice),
}

impl Section {
    /// The table and those in it, each once, with the lists of options between them.
    #[must_use]
    pub fn parts(&'static self) -> Vec<Part> {
        let mut parts = Vec::new();
        self.add_parts(&mut BTreeSet::new(), &mut parts);
        parts
    }

    fn add_parts(&'static self, known: &mut BTreeSet<&'static str>, parts: &mut Vec<Part>) {
        if !known.insert(self.title) {
            return;
        }
        parts.push(Part::Table(self));
        for key in self.keys() {
            if let Some(inner) = key.kind.table() {
                inner.add_parts(known, parts);
            }
            match &key.kind {
                // `[vm.NAME.workload]` has the keys of `[workload.NAME]`, which has its own part.
                Kind::Chosen(choice) if !self.title.starts_with("vm.") => parts.push(Part::Choice(choice)),
                Kind::NamedChoices(choice) => parts.push(Part::Choice(choice)),
                _ => {}
            }
        }
    }
}

impl Kind {
    /// Whether a name follows the key, so that the titles of tables contain it.
    #[must_use]
    pub fn has_names(&self) -> bool {
        matches!(self, Kind::Named(_) | Kind::List(_) | Kind::Open(_) | Kind::NamedChoices(_))
    }

    /// The words that it accepts.
    pub(crate) fn listed(&self) -> &'static [&'static str] {
        match self {
            Kind::Word(words) | Kind::Words(words) => words,
            Kind::Either(kinds) => kinds.iter().map(Kind::listed).find(|words| !words.is_empty()).unwrap_or_default(),
            _ => &[],
        }
    }

    /// The table that the key is.
    fn table(&self) -> Option<&'static Section> {
        match self {
            Kind::Table(section) | Kind::Named(section) | Kind::List(section) | Kind::Open(section) => Some(section),
            Kind::Either(kinds) => kinds.iter().find_map(Kind::table),
            _ => None,
        }
    }

    /// The values that a key accepts, in Markdown.
    #[must_use]
    pub fn in_words(&self) -> String {
        match self {
            Kind::Bool => "`true` or `false`".to_owned(),
            Kind::Integer(min, max) => format!("a whole number from {min} to {max}"),
            Kind::Decimal(min, max) => format!("a number from {min} to {max}"),
            Kind::Word(words) => words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(" or "),
            Kind::Scheduler => "the name of a scheduler".to_owned(),
            Kind::Name(what) if what.starts_with(['a', 'e', 'i', 'o', 'u']) => format!("the name of an {what}"),
            Kind::Name(what) => format!("the name of a {what}"),
            Kind::Text => "text".to_owned(),
            Kind::Path => "an absolute path".to_owned(),
            Kind::DiskPaths => {
                format!(
                    "an absolute path, a list of 1 to {PATHS_MAX}, the address of a server, or a pool of a Ceph cluster"
                )
            }
            Kind::Source => "an absolute path, an export of a server, or an RBD image".to_owned(),
            Kind::Meeting => "an absolute path, or objects of a Ceph cluster".to_owned(),
            Kind::Address => "an address and a port".to_owned(),
            Kind::Mode => "permissions in octal".to_owned(),
            Kind::Names => "a list of names, or `\"*\"`".to_owned(),
            Kind::Words(_) => format!("a list of {}", Kind::Word(self.listed()).in_words()),
            Kind::Accounts => "a list of `\"user:NAME\"` and `\"group:NAME\"`".to_owned(),
            Kind::Size(..) => "a size".to_owned(),
            Kind::Time(..) => "a time".to_owned(),
            Kind::Iops => "a rate of normalised requests".to_owned(),
            Kind::ByteRate => "a rate of bytes".to_owned(),
            Kind::LinkRate => "a rate of bits or bytes".to_owned(),
            Kind::Percent(..) => "a percentage".to_owned(),
            Kind::Interface => "the name of a network interface, at most 15 characters".to_owned(),
            Kind::Mac => "an Ethernet address".to_owned(),
            Kind::Networks => "a list of IP addresses, each with the length of its prefix".to_owned(),
            Kind::Either(kinds) => kinds.iter().map(Kind::in_words).collect::<Vec<_>>().join(", or "),
            Kind::Table(section) | Kind::Named(section) | Kind::List(section) | Kind::Open(section) => {
                format!("a table, see `[{}]`", section.title)
            }
            Kind::File => "a path".to_owned(),
            Kind::Chosen(choice) | Kind::NamedChoices(choice) => {
                format!("the name of a {} or a table, see `[{}]`", choice.what, choice.title)
            }
        }
    }
}
