//! Log lines with fields: as JSON, and as entries of the systemd journal.
//!
//! The journal takes an entry as one datagram of its native protocol: `KEY=VALUE` lines, or for a value with line feeds the key,
//! its length as 64 bits in little-endian order, and the value. It adds the time itself. A line about VM `db1` is found with
//! `journalctl VM=db1`. The datagrams are sent by the writer thread of the [`Outlet`](super::outlet::Outlet), so that a journal
//! that stands still costs lines and delays nothing.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::{LINE_MAX, put};

/// Socket of the systemd journal.
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Maximum length of the value of a field, in bytes.
const VALUE_MAX: usize = 1024;

/// One log line.
pub(super) struct Record {
    level: Level,
    target: &'static str,
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl Record {
    /// A text that is no log line: diagnostics of a file, or a panic.
    pub(super) fn of_text(text: &str) -> Record {
        Record { level: Level::WARN, target: "sluice", message: text.to_owned(), fields: Vec::new() }
    }

    fn of(event: &Event<'_>) -> Record {
        let metadata = event.metadata();
        let mut record =
            Record { level: *metadata.level(), target: metadata.target(), message: String::new(), fields: Vec::new() };
        event.record(&mut record);
        record
    }

    /// Returns the message alone.
    pub(super) fn text(&self) -> Vec<u8> {
        format!("{}\n", self.message).into_bytes()
    }

    /// Returns it as a line of JSON. Keys of fields do not replace the time, the level, the target and the message.
    pub(super) fn json(&self, now: SystemTime) -> Vec<u8> {
        let mut line = Map::new();
        line.insert("time".to_owned(), humantime::format_rfc3339_micros(now).to_string().into());
        line.insert("level".to_owned(), self.level.as_str().to_lowercase().into());
        line.insert("target".to_owned(), self.target.into());
        line.insert("message".to_owned(), cut(&self.message, LINE_MAX).into());
        for (key, value) in &self.fields {
            line.entry(*key).or_insert_with(|| bounded(value));
        }
        let mut text = Value::Object(line).to_string().into_bytes();
        text.push(b'\n');
        text
    }

    /// Returns it as an entry of the journal.
    pub(super) fn journal(&self) -> Vec<u8> {
        let mut entry = Vec::new();
        let mut text = self.message.clone();
        for (key, value) in &self.fields {
            text += &format!(" {key}={value}");
        }
        field(&mut entry, "MESSAGE", &cut(&text, LINE_MAX));
        field(&mut entry, "PRIORITY", priority(self.level));
        field(&mut entry, "SYSLOG_IDENTIFIER", "sluice");
        field(&mut entry, "TARGET", self.target);
        for (key, value) in &self.fields {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            field(&mut entry, &journal_key(key), &cut(&value, VALUE_MAX));
        }
        entry
    }
}

/// Returns the text of a log line that says how many were lost before it.
pub(super) fn lost(lines: u64) -> Record {
    Record::of_text(&format!("{lines} texts were lost here"))
}

/// `CAUSE` for the error or the reason of a line, otherwise the key in capital letters.
fn journal_key(key: &str) -> String {
    match key {
        "error" | "cause" => "CAUSE".to_owned(),
        // Keys of the journal itself.
        "message" | "priority" | "syslog_identifier" => format!("FIELD_{}", key.to_uppercase()),
        key => {
            let key = key.to_uppercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            key.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).to_owned()
        }
    }
}

fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    }
}

fn field(entry: &mut Vec<u8>, key: &str, value: &str) {
    entry.extend_from_slice(key.as_bytes());
    if value.contains('\n') {
        entry.push(b'\n');
        entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        entry.push(b'=');
    }
    entry.extend_from_slice(value.as_bytes());
    entry.push(b'\n');
}

fn cut(text: &str, max: usize) -> String {
    let end = text.floor_char_boundary(max);
    match text.len() - end {
        0 => text.to_owned(),
        more => format!("{}... ({more} bytes more)", &text[..end]),
    }
}

fn bounded(value: &Value) -> Value {
    value.as_str().map_or_else(|| value.clone(), |text| cut(text, VALUE_MAX).into())
}

impl Visit for Record {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }
}

impl Record {
    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", value) => self.message = value.as_str().unwrap_or_default().to_owned(),
            (key, value) => self.fields.push((key.strip_prefix("r#").unwrap_or(key), value)),
        }
    }
}

/// Writes each log line as a record.
pub(super) struct Records;

impl<S: Subscriber> Layer<S> for Records {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        put(&Record::of(event));
    }
}

/// The systemd journal. Each write is one entry.
pub(super) struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    /// Returns the journal if there is one.
    pub(super) fn open() -> Option<Journal> {
        let path = PathBuf::from(JOURNAL);
        let socket = UnixDatagram::unbound().ok()?;
        path.exists().then_some(Journal { socket, path })
    }
}

impl Write for Journal {
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        // By its path each time, because a restarted journal has a new socket there.
        self.socket.send_to(entry, &self.path)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether standard error is a stream of the systemd journal, which states its device and inode.
pub(super) fn is_journal_stream() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(error) = std::fs::metadata("/proc/self/fd/2") else { return false };
    stream == format!("{}:{}", error.dev(), error.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(fields: Vec<(&'static str, Value)>) -> Record {
        Record { level: Level::ERROR, target: "sluice_daemon::server", message: "Volume held back".to_owned(), fields }
    }

    #[test]
    fn a_journal_entry_has_the_vm_the_volume_and_the_cause() {
        let entry = record(vec![
            ("vm", "a".into()),
            ("volume", "root".into()),
            ("error", "line 1\nline 2".into()),
            ("waited_ms", 7.into()),
            ("priority", 1.into()),
        ]);
        let entry = entry.journal();
        let text = String::from_utf8_lossy(&entry);
        for line in [
            "PRIORITY=3\n",
            "SYSLOG_IDENTIFIER=sluice\n",
            "VM=a\n",
            "VOLUME=root\n",
            "WAITED_MS=7\n",
            "FIELD_PRIORITY=1\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(text.contains("MESSAGE=Volume held back vm=\"a\""), "{text}");
        let cause = [b"CAUSE\n".as_slice(), &13_u64.to_le_bytes(), b"line 1\nline 2\n"].concat();
        assert!(entry.windows(cause.len()).any(|bytes| bytes == cause), "{text}");
    }

    #[test]
    fn a_json_line_is_one_line_of_bounded_length() {
        let line = record(vec![("vm", "a\nb".into()), ("level", "forged".into()), ("name", "x".repeat(5000).into())]);
        let line = line.json(SystemTime::UNIX_EPOCH);
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let read: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!((&read["time"], &read["level"]), (&"1970-01-01T00:00:00.000000Z".into(), &"error".into()));
        assert_eq!((&read["message"], &read["vm"]), (&"Volume held back".into(), &"a\nb".into()));
        assert!(read["name"].as_str().unwrap().ends_with("... (3976 bytes more)"));
    }
}
