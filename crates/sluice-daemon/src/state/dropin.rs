//! Writes a change into a drop-in of the host file: `sluice.d/zz-sluice.toml` for `sluice.toml`. Comments and the order of
//! keys in it are kept.
//!
//! The name is the last of all usual ones, so that its values win. A drop-in whose name is later still would hide what is
//! written here, so it is a reason to refuse.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sluice_config::changes::Object;
use toml_edit::{DocumentMut, Item, Table};

use super::folder::replace;
use crate::launcher::{self, Question};

/// Name of the drop-in.
const NAME: &str = "zz-sluice.toml";

/// A change of the drop-in.
#[derive(Debug, Clone)]
pub struct DropIn {
    file: PathBuf,
    parts: Vec<Part>,
}

/// A change of one table.
#[derive(Debug, Clone)]
pub enum Part {
    /// Keys of a VM, a volume or a policy.
    Set(Object, toml::Table),
    /// A VM or volume that only the drop-in has goes.
    Remove(Object),
}

/// Path of the drop-in of a host file.
pub(crate) fn path(host: &Path) -> PathBuf {
    host.with_extension("d").join(NAME)
}

impl DropIn {
    /// The drop-in of the host file `host`.
    pub fn of(host: &Path, parts: Vec<Part>) -> DropIn {
        DropIn { file: path(host), parts }
    }

    /// Its path.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Writes it. Returns how to take that back, if the change is not made after all.
    ///
    /// # Errors
    /// The remedy; the drop-in is then as it was.
    pub fn write(&self) -> Result<Undo, String> {
        let file = self.file.display();
        let failed = |error: io::Error| {
            format!("Cannot write {file}: {error}; make its folder writable, or leave out --persist")
        };
        let folder = self.file.parent().expect("it has a name in a folder");
        let made_folder = !folder.exists();
        if !made_folder {
            self.refuse_later_ones(folder).map_err(failed)??;
        }
        let before = match fs::read_to_string(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            read => Some(read.map_err(failed)?),
        };
        let head = if before.is_none() { HEAD } else { "" };
        let written = changed(before.as_deref().unwrap_or_default(), &self.parts)
            .map(|new| format!("{head}{new}"))
            .map_err(|error| format!("{file}: {error}; correct it first"))?;
        let undo = Undo { file: self.file.clone(), before, written, made_folder };
        match put(&self.file, Write::Text(undo.written.clone())) {
            Ok(()) => Ok(undo),
            Err(error) => {
                // It may have been replaced, and only the sync of its folder have failed.
                if fs::read_to_string(&self.file).is_ok_and(|now| now == undo.written) {
                    undo.run();
                }
                Err(failed(error))
            }
        }
    }

    fn refuse_later_ones(&self, folder: &Path) -> io::Result<Result<(), String>> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "toml") && path > self.file {
                let (later, own) = (path.display(), self.file.display());
                return Ok(Err(format!(
                    "{later} is read after {own} and could hide the change; give it an earlier name"
                )));
            }
        }
        Ok(Ok(()))
    }
}

/// How a drop-in was before it was written.
#[derive(Debug)]
pub struct Undo {
    file: PathBuf,
    /// `None` if there was none.
    before: Option<String>,
    written: String,
    /// Whether its folder was made for it.
    made_folder: bool,
}

impl Undo {
    /// Puts the drop-in back, because its change was not made. If that fails, or the file has been edited since, the log says what
    /// to do.
    pub fn run(self) {
        if let Err(error) = self.try_run() {
            let file = self.file.display();
            tracing::error!(%file, %error, "Drop-in has a change that was refused: correct the file before the next reload");
        }
    }

    fn try_run(&self) -> io::Result<()> {
        if fs::read_to_string(&self.file)? != self.written {
            return Err(io::Error::other("it was edited meanwhile"));
        }
        put(&self.file, self.before.clone().map_or(Write::Nothing { with_folder: self.made_folder }, Write::Text))
    }
}

/// Writes the drop-in, by the launcher if this process has one, because a sealed daemon may not write what the next one reads its seal from.
fn put(file: &Path, write: Write) -> io::Result<()> {
    match launcher::ask_for(Question::DropIn(write.clone())) {
        Some(done) => done.map(drop).map_err(io::Error::other),
        None => put_here(file, &write),
    }
}

/// What becomes of the drop-in.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Write {
    /// It has this text, in a folder that is made if it is missing.
    Text(String),
    /// It is removed.
    Nothing { with_folder: bool },
}

/// Writes or removes the drop-in.
pub(crate) fn put_here(file: &Path, write: &Write) -> io::Result<()> {
    let folder = file.parent().expect("it has a name in a folder");
    let text = match write {
        Write::Text(text) => text,
        Write::Nothing { with_folder } => {
            fs::remove_file(file)?;
            // Another file may have come meanwhile.
            let is_gone = *with_folder && fs::remove_dir(folder).is_ok();
            return if is_gone { Ok(()) } else { fs::File::open(folder)?.sync_all() };
        }
    };
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    replace(file, text.as_bytes(), 0o644)
}

/// First lines of a new drop-in.
const HEAD: &str = "# Written by sluice ... --persist. You may edit it; comments are kept.\n";

/// Returns the text with these changes.
fn changed(text: &str, parts: &[Part]) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| error.message().to_owned())?;
    for part in parts {
        match part {
            Part::Set(target, keys) => {
                let new: DocumentMut = keys.to_string().parse().expect("a table is written as TOML");
                merge(table_of(&mut document, target)?, new.as_table());
            }
            Part::Remove(target) => remove(&mut document, target)?,
        }
    }
    Ok(document.to_string())
}

fn no_table(key: &str) -> String {
    format!("'{key}' is not written as a table with a header")
}

/// The table of a VM or volume, which is made if it is not there.
fn table_of<'a>(document: &'a mut DocumentMut, target: &Object) -> Result<&'a mut Table, String> {
    let mut table = document.as_table_mut();
    let path = target.path();
    for (depth, key) in path.iter().enumerate() {
        let is_last = depth + 1 == path.len();
        let new = || {
            let mut new = Table::new();
            new.set_implicit(!is_last);
            Item::Table(new)
        };
        table = table.entry(key).or_insert_with(new).as_table_mut().ok_or_else(|| no_table(key))?;
    }
    table.set_implicit(false);
    Ok(table)
}

/// Sets all keys of `new`, and in its tables those of theirs.
fn merge(table: &mut Table, new: &Table) {
    for (key, item) in new {
        let known = table.get_mut(key);
        match (known, item) {
            (Some(Item::Table(known)), Item::Table(new)) => merge(known, new),
            (Some(known), Item::Value(new)) if known.is_value() => {
                let value = known.as_value_mut().expect("it is one");
                let decor = value.decor().clone();
                *value = new.clone();
                *value.decor_mut() = decor;
            }
            (Some(Item::Value(toml_edit::Value::InlineTable(known))), Item::Table(new)) => {
                for (key, item) in new {
                    if let Some(value) = item.as_value() {
                        known.insert(key, value.clone());
                    }
                }
                known.fmt();
            }
            (_, item) => {
                let mut item = item.clone();
                if let Item::Table(table) = &mut item {
                    // The position of another document would put it before its parent.
                    table.set_position(None);
                }
                table.insert(key, item);
            }
        }
    }
}

fn remove(document: &mut DocumentMut, target: &Object) -> Result<(), String> {
    let path = target.path();
    let (last, above) = path.split_last().expect("a target has a name");
    let mut table = document.as_table_mut();
    for key in above {
        let Some(item) = table.get_mut(key) else { return Ok(()) };
        table = item.as_table_mut().ok_or_else(|| no_table(key))?;
    }
    table.remove(last);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(target: &str, keys: &str) -> Part {
        Part::Set(target.parse().unwrap(), keys.parse().unwrap())
    }

    #[test]
    fn comments_and_other_keys_stay() {
        let text = "# Ours\n[vm.a] # the first\nweight = 3 # low\nlimit = \"5 iops\"\n";
        let new = changed(text, &[set("a", "weight = 7\nburst = 2"), set("a/v", "size = \"2MiB\"")]).unwrap();
        let expected = "# Ours\n[vm.a] # the first\nweight = 7 # low\nlimit = \"5 iops\"\nburst = 2\n\n[vm.a.volume.v]\nsize = \"2MiB\"\n";
        assert_eq!(new, expected);
    }

    #[test]
    fn a_volume_with_its_export_is_read_back_as_it_was_attached() {
        let keys = "device = \"d\"\nsource = \"/srv/a\"\n[export]\nsocket = \"/run/a\"\n";
        let new = changed("", &[set("b", ""), set("b/new", keys)]).unwrap();
        let read: toml::Table = new.parse().unwrap();
        assert_eq!(read["vm"]["b"]["volume"]["new"], toml::Value::Table(keys.parse().unwrap()), "{new}");
        let inline =
            changed("[vm.b.volume.new]\nexport = { socket = \"/run/a\" }\n", &[set("b/new", "export.mode = \"0600\"")]);
        assert_eq!(inline.unwrap(), "[vm.b.volume.new]\nexport = { socket = \"/run/a\", mode = \"0600\" }\n");
        let gone = changed(&new, &[Part::Remove("b".parse().unwrap())]).unwrap();
        assert!(!gone.contains("/srv/a"), "{gone}");
        assert!(changed("vm = 3\n", &[set("a", "weight = 1")]).is_err());
        assert!(changed("vm = = 3\n", &[set("a", "weight = 1")]).is_err());
    }

    #[test]
    fn a_drop_in_that_is_read_later_would_have_hidden_the_change() {
        let place = tempfile::tempdir().unwrap();
        let host = place.path().join("host.toml");
        let dropin = DropIn::of(&host, vec![set("a", "weight = 1")]);
        dropin.write().unwrap();
        let text = fs::read_to_string(place.path().join("host.d/zz-sluice.toml")).unwrap();
        assert_eq!(text, format!("{HEAD}[vm.a]\nweight = 1\n"));
        fs::write(place.path().join("host.d/zzz.toml"), "").unwrap();
        let refused = dropin.write().unwrap_err();
        assert!(refused.contains("zzz.toml is read after"), "{refused}");
    }
}
