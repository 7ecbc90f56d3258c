//! The files of a host file, and their texts.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use toml::de::DeTable;

use crate::diagnostics::Report;
use crate::source::{Sources, Span};
use crate::tree::Table;

/// Maximum size of a file.
pub(crate) const FILE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of drop-ins.
const DROPINS_MAX: usize = 256;

/// The main file and its drop-ins as one tree; unreadable ones are reported.
pub(crate) fn read_all(main: &Path, sources: &mut Sources, report: &Report) -> Table {
    let mut tree = read_file(main, sources, report);
    let folder = main.with_extension("d");
    match list(&folder) {
        Ok(files) if files.len() > DROPINS_MAX => {
            let file = sources.add(&folder.display().to_string(), String::new());
            let message = format!("The folder has {} drop-ins, which is too many", files.len());
            report.error(Span::file(file), message, format!("at most {DROPINS_MAX} are accepted"));
        }
        Ok(files) => files.iter().for_each(|path| tree.merge(read_file(path, sources, report))),
        Err(error) => {
            let file = sources.add(&folder.display().to_string(), String::new());
            report.error(Span::file(file), format!("Cannot list drop-ins: {error}"), None);
            report.set_incomplete();
        }
    }
    tree
}

/// The main file and its drop-ins.
///
/// # Errors
/// If the folder of the drop-ins cannot be read.
pub fn files(main: &Path) -> io::Result<Vec<PathBuf>> {
    list(&main.with_extension("d")).map(|found| [main.to_owned()].into_iter().chain(found).collect())
}

/// The tree of one text. Invalid TOML is reported, and the rest of that text is then skipped.
pub fn read_text(name: &str, text: String, sources: &mut Sources, report: &Report) -> Table {
    let length = text.len();
    if length > FILE_BYTES_MAX {
        return refuse_size(name, sources, report);
    }
    let file = sources.add(name, text);
    match DeTable::parse(sources.text(file)) {
        Ok(table) => Table::from_toml(file, sources.text(file), table.get_ref()),
        Err(error) => {
            let span = error.span().map_or(Span::file(file), |span| Span::new(file, span));
            let hint = "correct this first; the rest of the file was not read";
            report.error(span, format!("Not TOML: {}", error.message()), hint.to_owned());
            report.set_incomplete();
            Table::default()
        }
    }
}

/// The tree of one file.
pub fn read_file(path: &Path, sources: &mut Sources, report: &Report) -> Table {
    let name = path.display().to_string();
    let bytes = match read_bounded(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            let file = sources.add(&name, String::new());
            report.error(Span::file(file), format!("Cannot read file: {error}"), remedy(&error).map(str::to_owned));
            report.set_incomplete();
            return Table::default();
        }
    };
    match String::from_utf8(bytes) {
        Ok(text) => read_text(&name, text, sources, report),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let file = sources.add(&name, String::from_utf8_lossy(error.as_bytes()).into_owned());
            let hint = "save the file as UTF-8".to_owned();
            report.error(Span::new(file, valid..valid + 1), "File is not UTF-8", hint);
            report.set_incomplete();
            Table::default()
        }
    }
}

/// Returns what to do if a file cannot be read.
fn remedy(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::NotFound => Some("correct its name or its folder"),
        io::ErrorKind::IsADirectory => Some("name a file in it"),
        io::ErrorKind::PermissionDenied => Some("become root, or let this user read it"),
        _ => None,
    }
}

/// The file's bytes, or one more than the maximum.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn refuse_size(name: &str, sources: &mut Sources, report: &Report) -> Table {
    let file = sources.add(name, String::new());
    let hint = format!("at most {} MiB are accepted; split it into drop-ins", FILE_BYTES_MAX >> 20);
    report.error(Span::file(file), "File is too large", hint);
    report.set_incomplete();
    Table::default()
}

/// The drop-ins in order of their names; none if the folder does not exist.
fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_hidden && path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
