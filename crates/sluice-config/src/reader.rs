//! Reads the keys of one table according to the list of keys, and reports errors.
//!
//! A getter returns `None` for a missing key, and for an invalid value, which it reports. A caller that must
//! distinguish them compares [`Report::errors`] before and after.

use std::collections::BTreeMap;

use core::str::FromStr;
use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

use sluice_sched::units::{StatedIops, UnitError, parse_duration, parse_link_rate, show_duration};
use sluice_sched::{ByteRate, Bytes, Percent};

use crate::diagnostics::Report;
use crate::disk_path::{DiskPath, PATHS_MAX};
use crate::elsewhere::Elsewhere;
use crate::fields::{Key, Kind, Section};
use crate::quantity::Misread;
use crate::source::Span;
use crate::tree::{Node, Table, Value};

/// Maximum length of the name of a device, policy, VM or volume.
const NAME_LENGTH_MAX: usize = 64;
/// IFNAMSIZ without the terminating zero.
const INTERFACE_LENGTH_MAX: usize = 15;
/// PATH_MAX without the terminating zero.
const PATH_LENGTH_MAX: usize = 4095;

/// A value with its span.
#[derive(Debug, Clone)]
pub struct Stated<T> {
    pub value: T,
    pub span: Span,
    /// Owner of its table, for example `Policy gold`.
    pub whose: Arc<str>,
}

impl<T> Stated<T> {
    /// Returns its span, and the owner of its table.
    pub(crate) fn place(&self) -> (Span, Arc<str>) {
        (self.span, Arc::clone(&self.whose))
    }
}

/// A table.
#[derive(Clone)]
pub struct Reader<'a> {
    pub report: &'a Report,
    pub whose: Arc<str>,
    /// Span of its header.
    pub span: Span,
    table: &'a Arc<Table>,
    section: &'static Section,
    /// Prefix of its keys in messages, for example `export.`.
    prefix: String,
}

impl<'a> Reader<'a> {
    /// The table of a whole file.
    pub fn root(report: &'a Report, whose: &str, section: &'static Section, table: &'a Arc<Table>) -> Self {
        let reader =
            Reader { report, whose: whose.into(), span: Span::default(), table, section, prefix: String::new() };
        reader.refuse_unknown();
        reader
    }

    /// The table under `key`, if it exists.
    pub fn table(&self, key: &str) -> Option<Reader<'a>> {
        let node = self.node(key)?;
        let (Value::Table(table), Some(section)) = (&node.value, table_of(&self.key(key).kind)) else {
            self.wrong_kind(key, node);
            return None;
        };
        let prefix = format!("{}{key}.", self.prefix);
        let reader = Reader { table, section, prefix, span: node.span, ..self.clone() };
        reader.refuse_unknown();
        Some(reader)
    }

    /// Named tables under `key`; at most `max`.
    pub fn named(&self, key: &str, max: usize, whose: impl Fn(&str) -> String) -> Vec<(&'a str, Reader<'a>)> {
        self.named_beside(key, max, whose, |_, _| false)
    }

    /// The same, without those for which `is_known` returns true.
    pub fn named_beside(
        &self,
        key: &str,
        max: usize,
        whose: impl Fn(&str) -> String,
        mut is_known: impl FnMut(&str, &Node) -> bool,
    ) -> Vec<(&'a str, Reader<'a>)> {
        let Some(node) = self.node(key) else { return Vec::new() };
        let (Value::Table(tables), Kind::Named(section)) = (&node.value, &self.key(key).kind) else {
            self.wrong_kind(key, node);
            return Vec::new();
        };
        if tables.entries.len() > max {
            let message = format!("{}: {} tables of '{key}' are too many", self.whose, tables.entries.len());
            self.report.error(node.span, message, format!("at most {max} are accepted"));
            return Vec::new();
        }
        let tables = tables.entries.iter().filter(|(name, node)| !is_known(name, node)).filter_map(|(name, node)| {
            let whose: Arc<str> = whose(name).into();
            self.check_name(name, node.key, &whose);
            let Value::Table(table) = &node.value else {
                let message = format!("{whose} must be a table, not {}", node.value.words());
                let header = section.title.rsplit_once("NAME").map_or("", |(before, _)| before);
                self.report.error(node.span, message, format!("write [{header}{name}] above its keys"));
                return None;
            };
            let (span, prefix) = (node.span, String::new());
            let reader = Reader { whose, span, table, section, prefix, ..self.clone() };
            reader.refuse_unknown();
            Some((name.as_str(), reader))
        });
        tables.collect()
    }

    /// Tables of the list under `key`; at most `max`. `whose` names each by its number, from 1.
    pub fn listed(&self, key: &str, max: usize, whose: impl Fn(usize) -> String) -> Vec<Reader<'a>> {
        let Some(node) = self.node(key) else { return Vec::new() };
        let (Value::List(items), Kind::List(section)) = (&node.value, &self.key(key).kind) else {
            self.wrong_kind(key, node);
            return Vec::new();
        };
        if items.len() > max {
            let message = format!("{}: {} tables of '{key}' are too many", self.whose, items.len());
            self.report.error(node.span, message, format!("at most {max} are accepted"));
            return Vec::new();
        }
        let tables = items.iter().enumerate().filter_map(|(number, node)| {
            let whose: Arc<str> = whose(number + 1).into();
            let Value::Table(table) = &node.value else {
                let message = format!("{whose} must be a table, not {}", node.value.words());
                self.report.error(node.span, message, format!("write [[{key}]] above its keys"));
                return None;
            };
            let reader = Reader { whose, span: node.span, table, section, prefix: String::new(), ..self.clone() };
            reader.refuse_unknown();
            Some(reader)
        });
        tables.collect()
    }

    /// The table under `key`, which may have further keys than the listed ones.
    pub fn open(&self, key: &str) -> Option<(Reader<'a>, &'a Table)> {
        let node = self.node(key)?;
        let (Value::Table(table), Kind::Open(section)) = (&node.value, &self.key(key).kind) else {
            self.wrong_kind(key, node);
            return None;
        };
        Some((
            Reader { table, section, prefix: format!("{}{key}.", self.prefix), span: node.span, ..self.clone() },
            table,
        ))
    }

    /// Tables for the parameters of schedulers, by scheduler name.
    pub fn scheduler_tables(&self) -> impl Iterator<Item = (&'static sluice_sched::Descriptor, &'a Node)> {
        let table = self.table;
        self.section.schedulers().filter_map(|scheduler| Some((scheduler, table.entries.get(scheduler.name)?)))
    }

    /// Header of its table, with NAME for names.
    pub(crate) fn title(&self) -> &'static str {
        self.section.title
    }

    /// The whole table as read.
    pub(crate) fn whole(&self) -> &'a Arc<Table> {
        self.table
    }

    /// The value under `key`, of any kind.
    pub fn node(&self, key: &str) -> Option<&'a Node> {
        debug_assert!(self.section.key(key).is_some(), "{key} is not listed in fields.rs");
        self.table.entries.get(key)
    }

    /// Span of the value under `key`, or of the table if it is missing.
    pub fn at(&self, key: &str) -> Span {
        self.node(key).map_or(self.span, |node| node.span)
    }

    pub fn stated<T>(&self, key: &str, value: T) -> Stated<T> {
        Stated { value, span: self.at(key), whose: Arc::clone(&self.whose) }
    }

    /// Reports a missing `key`.
    pub fn missing(&self, key: &str, when: &str) {
        if !self.report.is_incomplete() {
            let message = format!("{}: {}{key} is missing{when}", self.whose, self.prefix);
            self.report.error(self.span, message, format!("add {key} = {}", self.key(key).example));
        }
    }

    /// Reports an invalid value under `key`.
    pub fn refuse(&self, key: &str, what: impl AsRef<str>, hint: impl Into<String>) {
        let message = format!("{}: {}{key}: {}", self.whose, self.prefix, what.as_ref());
        self.report.error(self.at(key), message, hint.into());
    }

    pub(crate) fn refuse_misread(&self, key: &str, misread: Misread) {
        self.refuse(key, misread.what, misread.hint);
    }

    /// Reports a value of the wrong kind, or without a unit, under `key`.
    pub fn wrong_kind(&self, key: &str, node: &Node) {
        let (known, name) = (self.key(key), format!("{}: {}{key}", self.whose, self.prefix));
        let hint = match known.example {
            "" if matches!(known.kind, Kind::List(_)) => format!("write [[{}]] above the keys of each", known.name),
            "" => format!("write [{}] above its keys", known.name),
            example => format!("write for example {key} = {example}"),
        };
        let message = match &node.value {
            Value::Integer(number) if needs_unit(&known.kind) => {
                format!("{name} is a bare number, {number}, without a unit")
            }
            Value::Float(number) if needs_unit(&known.kind) => {
                format!("{name} is a bare number, {number}, without a unit")
            }
            other => format!("{name} must be {}, not {}", words(&known.kind), other.words()),
        };
        self.report.error(node.span, message, hint);
    }

    pub fn text(&self, key: &str) -> Option<&'a str> {
        let node = self.node(key)?;
        match &node.value {
            Value::Text(text) => Some(text),
            _ => {
                self.wrong_kind(key, node);
                None
            }
        }
    }

    /// Returns a name that must be one of `known`.
    pub fn known<T>(&self, key: &str, known: &BTreeMap<String, T>) -> Option<&'a str> {
        let name = self.text(key)?;
        if known.contains_key(name) || self.report.is_incomplete() {
            return Some(name);
        }
        let hint = match self.report.suggest(name, known.keys().map(String::as_str)) {
            Some(near) => format!("did you mean '{near}'?"),
            None if known.is_empty() => format!("add [{key}.{name}]"),
            None => {
                let some: Vec<&str> = known.keys().take(10).map(String::as_str).collect();
                format!("known names are {}; or add [{key}.{name}]", some.join(", "))
            }
        };
        self.refuse(key, format!("there is no {key} '{name}'"), hint);
        None
    }

    pub fn bool(&self, key: &str) -> Option<bool> {
        let node = self.node(key)?;
        match node.value {
            Value::Bool(value) => Some(value),
            _ => {
                self.wrong_kind(key, node);
                None
            }
        }
    }

    /// A whole number in its listed range.
    pub fn integer(&self, key: &str) -> Option<u64> {
        let node = self.node(key)?;
        let (Value::Integer(number), Some((min, max))) = (&node.value, integer_range(&self.key(key).kind)) else {
            self.wrong_kind(key, node);
            return None;
        };
        let number = u64::try_from(*number).ok().filter(|number| (min..=max).contains(number));
        if number.is_none() {
            self.refuse(key, "the number is out of range", format!("it must be from {min} to {max}"));
        }
        number
    }

    /// The same for a range that fits 32 bits.
    pub fn small(&self, key: &str) -> Option<u32> {
        self.integer(key).map(|number| u32::try_from(number).expect("the range ends below 2^32"))
    }

    /// A decimal number in its listed range.
    pub fn decimal(&self, key: &str) -> Option<f64> {
        let node = self.node(key)?;
        let (Some(number), Kind::Decimal(min, max)) = (number_of(&node.value), &self.key(key).kind) else {
            self.wrong_kind(key, node);
            return None;
        };
        if (*min..=*max).contains(&number) {
            return Some(number);
        }
        self.refuse(key, format!("{number} is out of range"), format!("it must be from {min} to {max}"));
        None
    }

    /// One of the listed words.
    pub fn word(&self, key: &str) -> Option<&'static str> {
        let words = self.key(key).kind.listed();
        let text = self.text(key)?;
        let word = words.iter().copied().find(|word| *word == text);
        if word.is_none() {
            self.refuse(
                key,
                format!("'{text}' is not an accepted value"),
                format!("write {}", one_of(words.iter().copied())),
            );
        }
        word
    }

    /// A list of the listed words.
    pub fn words(&self, key: &str) -> Option<Vec<&'static str>> {
        let node = self.node(key)?;
        let Value::List(items) = &node.value else {
            self.wrong_kind(key, node);
            return None;
        };
        let words = self.key(key).kind.listed();
        let word = |value: &Value| match value {
            Value::Text(text) => words.iter().copied().find(|word| word == text),
            _ => None,
        };
        let read: Option<Vec<&str>> = items.iter().map(|item| word(&item.value)).collect();
        if read.is_none() {
            self.refuse(
                key,
                "it has a value that is not accepted",
                format!("write a list of {}", one_of(words.iter().copied())),
            );
        }
        read
    }

    /// Names, or `*`.
    pub(crate) fn names(&self, key: &str) -> Option<Vec<String>> {
        let node = self.node(key)?;
        let name = |value: &Value| match value {
            Value::Text(text) if !text.is_empty() => Some(text.clone()),
            _ => None,
        };
        let read = match &node.value {
            Value::Text(text) if text == "*" => Some(vec![text.clone()]),
            Value::List(items) => items.iter().map(|item| name(&item.value)).collect(),
            _ => None,
        };
        if read.is_none() {
            self.wrong_kind(key, node);
        }
        read
    }

    /// A quantity that parses itself.
    fn quantity<T: FromStr<Err = UnitError>>(&self, key: &str) -> Option<T> {
        let read = self.text(key)?.parse::<T>();
        read.map_err(|error| self.refuse_misread(key, error.into())).ok()
    }

    pub fn iops(&self, key: &str) -> Option<StatedIops> {
        self.quantity(key)
    }

    pub fn byte_rate(&self, key: &str) -> Option<ByteRate> {
        self.quantity(key)
    }

    pub fn link_rate(&self, key: &str) -> Option<ByteRate> {
        parse_link_rate(self.text(key)?).map_err(|error| self.refuse_misread(key, error.into())).ok()
    }

    /// A percentage in its listed range.
    pub fn percent(&self, key: &str) -> Option<Percent> {
        let percent: Percent = self.quantity(key)?;
        let range = match &self.key(key).kind {
            Kind::Either(kinds) => kinds.iter().find(|kind| matches!(kind, Kind::Percent(..))),
            kind => Some(kind),
        };
        let Some(&Kind::Percent(min, max)) = range else { return Some(percent) };
        if (u64::from(min)..=u64::from(max)).contains(&percent.hundredths()) {
            return Some(percent);
        }
        let [min, max] = [min, max].map(Percent::from_hundredths);
        self.refuse(key, format!("{percent} is out of range"), format!("it must be from {min} to {max}"));
        None
    }

    /// The name of a network interface, as Linux accepts it.
    pub fn interface(&self, key: &str) -> Option<&'a str> {
        let text = self.text(key)?;
        let fits = |c: char| c.is_ascii_graphic() && !"/:%".contains(c);
        let fits = (1..=INTERFACE_LENGTH_MAX).contains(&text.len()) && text.chars().all(fits);
        if fits && text != "." && text != ".." {
            return Some(text);
        }
        let hint = format!("write from 1 to {INTERFACE_LENGTH_MAX} letters, digits, '-', '_' or '.'");
        self.refuse(key, format!("'{text}' is not the name of a network interface"), hint);
        None
    }

    /// A size in its listed range.
    pub fn size(&self, key: &str) -> Option<Bytes> {
        let size: Bytes = self.quantity(key)?;
        let Kind::Size(min, max) = self.key(key).kind else { return Some(size) };
        if (min..=max).contains(&size.0) {
            return Some(size);
        }
        let hint = format!("it must be from {} to {}", Bytes(min), Bytes(max));
        self.refuse(key, format!("{size} is out of range"), hint);
        None
    }

    /// A time in its listed range.
    pub fn time(&self, key: &str) -> Option<Duration> {
        let time = parse_duration(self.text(key)?).map_err(|error| self.refuse_misread(key, error.into())).ok()?;
        let Some((min, max)) = time_range(&self.key(key).kind) else { return Some(time) };
        if (min..=max).contains(&time) {
            return Some(time);
        }
        let hint = format!("it must be from {} to {}", show_duration(min), show_duration(max));
        self.refuse(key, format!("{} is out of range", show_duration(time)), hint);
        None
    }

    /// An absolute path.
    pub fn path(&self, key: &str) -> Option<PathBuf> {
        let text = self.text(key)?;
        self.absolute(key, text).map_err(|misread| self.refuse_misread(key, misread)).ok()
    }

    /// One path of a device, or a list of them, in which none is twice.
    pub(crate) fn disk_paths(&self, key: &str) -> Vec<DiskPath> {
        let Some(node) = self.node(key) else { return Vec::new() };
        let items = match &node.value {
            Value::Text(_) => std::slice::from_ref(node),
            Value::List(items) if (1..=PATHS_MAX).contains(&items.len()) => items,
            Value::List(items) => {
                let what = format!("the list has {} paths", items.len());
                self.refuse(key, what, format!("write from 1 to {PATHS_MAX}, for example {}", self.key(key).example));
                return Vec::new();
            }
            _ => {
                self.wrong_kind(key, node);
                return Vec::new();
            }
        };
        let mut paths: Vec<DiskPath> = Vec::new();
        for item in items {
            let Value::Text(text) = &item.value else {
                self.wrong_kind(key, item);
                continue;
            };
            let path = Elsewhere::refuse(text).and_then(|()| self.absolute(key, text));
            match path.and_then(DiskPath::new).and_then(|path| path.unless_in(&paths)) {
                Ok(path) => paths.push(path),
                Err(Misread { what, hint }) => {
                    self.report.error(item.span, format!("{}: {}{key}: {what}", self.whose, self.prefix), hint);
                }
            }
        }
        paths
    }

    pub(crate) fn absolute(&self, key: &str, text: &str) -> Result<PathBuf, Misread> {
        let what = match text {
            "" => "the path is empty".to_owned(),
            _ if !text.starts_with('/') => format!("'{text}' is a relative path"),
            _ if text.contains('\0') => "the path contains a null byte".to_owned(),
            _ if text.len() > PATH_LENGTH_MAX => format!("the path is longer than {PATH_LENGTH_MAX} bytes"),
            _ => return Ok(PathBuf::from(text)),
        };
        Err(Misread { what, hint: format!("write an absolute path, for example {}", self.key(key).example) })
    }

    fn key(&self, key: &str) -> &'static Key {
        self.section.key(key).expect("getters are called with listed keys")
    }

    fn refuse_unknown(&self) {
        let names = || {
            let schedulers = self.section.schedulers().map(|scheduler| scheduler.name);
            self.section.keys().map(|key| key.name).chain(schedulers)
        };
        for (name, node) in &self.table.entries {
            if names().any(|known| known == name) {
                continue;
            }
            let hint = match self.report.suggest(name, names()) {
                Some(known) => format!("did you mean '{known}'?"),
                None => format!("known keys are {}", names().collect::<Vec<_>>().join(", ")),
            };
            self.report.error(node.key, format!("{}: unknown key '{}{name}'", self.whose, self.prefix), hint);
        }
    }

    pub fn check_name(&self, name: &str, span: Span, whose: &str) {
        let fits = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        if name.is_empty() || name.len() > NAME_LENGTH_MAX || !name.chars().all(fits) {
            let hint = format!(
                "use the letters a to z and A to Z, digits, '_', '.' and '-', from 1 to {NAME_LENGTH_MAX} of them"
            );
            self.report.error(span, format!("{whose}: the name is not valid"), hint);
        }
    }
}

/// `"a", "b" or "c"`
pub fn one_of<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// The number as a float.
pub fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    }
}

fn table_of(kind: &Kind) -> Option<&'static Section> {
    match kind {
        Kind::Table(section) => Some(section),
        Kind::Either(kinds) => kinds.iter().find_map(table_of),
        _ => None,
    }
}

fn integer_range(kind: &Kind) -> Option<(u64, u64)> {
    match kind {
        Kind::Integer(min, max) => Some((*min, *max)),
        Kind::Either(kinds) => kinds.iter().find_map(integer_range),
        _ => None,
    }
}

fn time_range(kind: &Kind) -> Option<(Duration, Duration)> {
    match kind {
        Kind::Time(min, max) => Some((*min, *max)),
        Kind::Either(kinds) => kinds.iter().find_map(time_range),
        _ => None,
    }
}

fn needs_unit(kind: &Kind) -> bool {
    match kind {
        Kind::Size(..) | Kind::Time(..) | Kind::Iops | Kind::ByteRate | Kind::LinkRate | Kind::Percent(..) => true,
        Kind::Either(kinds) => kinds.iter().any(needs_unit),
        _ => false,
    }
}

/// The expected value in words.
fn words(kind: &Kind) -> String {
    match kind {
        Kind::Bool => "true or false".to_owned(),
        Kind::Integer(..) => "a whole number".to_owned(),
        Kind::Decimal(..) => "a number".to_owned(),
        Kind::Word(words) => one_of(words.iter().copied()),
        Kind::Scheduler => "the name of a scheduler".to_owned(),
        Kind::Name(what) if what.starts_with(['a', 'e', 'i', 'o', 'u']) => format!("the name of an {what}"),
        Kind::Name(what) => format!("the name of a {what}"),
        Kind::Text => "text".to_owned(),
        Kind::Path => "a path".to_owned(),
        Kind::DiskPaths => "a path, a list of paths, the address of a server or a pool of a Ceph cluster".to_owned(),
        Kind::Source => "a path, an export of a server or an RBD image".to_owned(),
        Kind::Meeting => "a path or objects of a Ceph cluster".to_owned(),
        Kind::Address => "an address with a port".to_owned(),
        Kind::Mode => "permissions in octal as text".to_owned(),
        Kind::Accounts => "a list of users and groups".to_owned(),
        Kind::Names => "a list of names, or \"*\"".to_owned(),
        Kind::Words(_) => "a list of words".to_owned(),
        Kind::Size(..) => "a size with its unit".to_owned(),
        Kind::Time(..) => "a time with its unit".to_owned(),
        Kind::Iops => "a request rate with its unit".to_owned(),
        Kind::ByteRate => "a byte rate with its unit".to_owned(),
        Kind::LinkRate => "a link's rate with its unit".to_owned(),
        Kind::Percent(..) => "a percentage".to_owned(),
        Kind::Interface => "the name of a network interface".to_owned(),
        Kind::Mac => "an Ethernet address".to_owned(),
        Kind::Networks => "a list of IP addresses".to_owned(),
        Kind::Either(kinds) => kinds.iter().map(words).collect::<Vec<_>>().join(" or "),
        Kind::Table(_) | Kind::Open(_) => "a table".to_owned(),
        Kind::List(_) => "a list of tables".to_owned(),
        Kind::File => "a path".to_owned(),
        Kind::Chosen(choice) => format!("the name of a {} or a table with its type", choice.what),
        Kind::NamedChoices(choice) => format!("tables, [{}]", choice.title),
        Kind::Named(section) => format!("tables, [{}]", section.title),
    }
}
