//! Standard output and standard error.
//!
//! A command that ends writes both directly, and waits for their readers. The daemon must not wait, so [`never_wait`]
//! puts a queue in front of each. The only possible failure there is that a text is dropped and counted.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use serde::Serialize;
use sluice_sched::admission::Part;
use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Layer, Registry};

mod limits;
mod outlet;
mod record;

use limits::Limits;
use outlet::Outlet;
use record::{Journal, Record, Records};

/// Maximum length of a log line, in bytes.
const LINE_MAX: usize = 2048;
/// Maximum number of queued bytes for standard error, and for standard output, where the statistics of all VMs are
/// one text.
const LOG_MAX: usize = 1 << 20;
const RESULTS_MAX: usize = 64 << 20;
/// Maximum delay of the exit by a reader that does not read.
const FLUSH_MAX: Duration = Duration::from_millis(200);

/// Format of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For programs: stable names, units in the names.
    Json,
}

/// The daemon's output queues.
struct Outlets {
    error: Outlet,
    output: Outlet,
    limits: Limits,
}

static OUTLETS: OnceLock<Outlets> = OnceLock::new();

/// Returns a part of a device in percent; `None` if the device's capacity is not stated.
pub fn percent(part: Option<Part>) -> Option<f64> {
    part.map(|part| part.0 as f64 / 100.0)
}

/// Form of log lines on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people: time, level, message, fields.
    Text,
    /// A JSON object per line.
    Json,
    /// The systemd journal, with fields such as VM= and VOLUME=; text if there is none.
    Journal,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Text { time: bool },
    Json,
    Journal,
}

static STYLE: OnceLock<Style> = OnceLock::new();

/// Chooses the form of log lines: the stated one, otherwise that of the journal if standard error goes there, otherwise that of
/// results. Entries of the journal are for the daemon only; other commands write text there. Must be called first.
pub fn choose_log(stated: Option<LogFormat>, results: Format, is_daemon: bool) {
    let is_stream = record::is_journal_stream();
    let chosen = stated.unwrap_or(match (is_stream, results) {
        (true, _) => LogFormat::Journal,
        (false, Format::Json) if is_daemon => LogFormat::Json,
        (false, _) => LogFormat::Text,
    });
    let style = match chosen {
        LogFormat::Json => Style::Json,
        LogFormat::Journal if is_daemon && Journal::open().is_some() => Style::Journal,
        LogFormat::Text | LogFormat::Journal => Style::Text { time: !is_stream },
    };
    let _ = STYLE.set(style);
}

fn style() -> Style {
    STYLE.get().copied().unwrap_or(Style::Text { time: true })
}

/// Starts logging to standard error. `stated` overrides `RUST_LOG`, which overrides the flags.
pub fn start_logging(stated: Option<String>, verbose: u8, quiet: bool) {
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (_, 0) => LevelFilter::INFO,
        (_, 1) => LevelFilter::DEBUG,
        (_, _) => LevelFilter::TRACE,
    };
    let stated = stated.and_then(|stated| stated.parse().ok()).or_else(of_environment);
    let filter: Targets = stated.unwrap_or_else(|| Targets::new().with_default(level));
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let limits = OUTLETS.get().map(|outlets| outlets.limits.clone());
    // The library would print its own errors on the same standard error, and panic.
    let lines = || tracing_subscriber::fmt::layer().with_writer(LogWriter).with_ansi(colour).log_internal_errors(false);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match style() {
        Style::Text { time: true } => Box::new(lines()),
        Style::Text { time: false } => Box::new(lines().without_time()),
        Style::Json | Style::Journal => Box::new(Records),
    };
    tracing_subscriber::registry().with(layer).with(limits).with(filter).init();
}

/// Checks the value of `--log`. It is no option of every verb, because `sim run` logs something else.
///
/// # Errors
/// If a level is none of the known ones, or the text has another form.
pub fn log_filter(text: &str) -> Result<String, ParseError> {
    text.parse::<Targets>().map(|_| text.to_owned())
}

/// Reads `RUST_LOG`. One with errors is reported and ignored.
fn of_environment() -> Option<Targets> {
    let stated = std::env::var("RUST_LOG").ok().filter(|stated| !stated.is_empty())?;
    let filter = stated.parse::<Targets>();
    filter.inspect_err(|error| message(format_args!("warning: RUST_LOG={stated} is ignored: {error}"))).ok()
}

/// Makes all output asynchronous, and limits the log lines of each VM. For the daemon, before it logs anything.
///
/// # Errors
/// If a thread cannot be started.
pub fn never_wait() -> io::Result<()> {
    let limits = Limits::default();
    limits.clone().start()?;
    let lost = |lines| encoded(&record::lost(lines));
    let error = match Journal::open().filter(|_| style() == Style::Journal) {
        Some(journal) => Outlet::start("journal", LOG_MAX, lost, journal)?,
        None => Outlet::start("stderr", LOG_MAX, lost, io::stderr())?,
    };
    let lost = |texts| format!("{texts} texts were lost here\n").into_bytes();
    let output = Outlet::start("stdout", RESULTS_MAX, lost, io::stdout())?;
    let _ = OUTLETS.set(Outlets { error, output, limits });
    std::panic::set_hook(Box::new(|panic| {
        // A thread gets the name of its present device.
        let thread = rustix::thread::name().unwrap_or_default().to_string_lossy().into_owned();
        let reason = panic.payload_as_str().unwrap_or("of another type than text");
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        sluice_io::reactor::panics::note(panic);
        // Not as a log line: the panic may come from the logging library.
        message(format_args!("PANIC in thread {thread} at {location}: {reason}"));
    }));
    Ok(())
}

/// Returns a record in the form of log lines.
fn encoded(record: &Record) -> Vec<u8> {
    match style() {
        Style::Journal => record.journal(),
        Style::Json => record.json(SystemTime::now()),
        Style::Text { .. } => record.text(),
    }
}

/// Writes a record.
fn put(record: &Record) {
    let line = encoded(record);
    match OUTLETS.get() {
        Some(outlets) => outlets.error.put(line),
        None => drop(io::stderr().write_all(&line)),
    }
}

/// Ends the output of the process. Returns its exit code: a result that could not be printed is a failure.
pub fn end(code: ExitCode) -> ExitCode {
    finish();
    match lost() {
        Some(error) if code == ExitCode::SUCCESS => {
            message(format_args!(
                "error: Cannot write all results to standard output: {error}; free space, or write them elsewhere"
            ));
            finish();
            ExitCode::FAILURE
        }
        _ => code,
    }
}

/// Waits for a short time until queued output has been written.
fn finish() {
    if let Some(Outlets { error, output, limits }) = OUTLETS.get() {
        limits.report();
        error.flush(FLUSH_MAX);
        output.flush(FLUSH_MAX);
    }
}

/// Prints a JSON value on its own line.
pub fn json(value: &impl Serialize) {
    let text = serde_json::to_string(value).expect("our own types have string keys");
    line(&text);
}

/// Prints a line. A closed pipe is not an error; other errors are remembered for [`lost`].
pub fn line(text: &str) {
    match OUTLETS.get() {
        Some(outlets) => outlets.output.put(format!("{text}\n").into_bytes()),
        None => written(writeln!(io::stdout(), "{text}")),
    }
}

/// Prints bytes without adding a newline.
pub fn raw(bytes: &[u8]) {
    let mut stdout = io::stdout();
    written(stdout.write_all(bytes).and_then(|()| stdout.flush()));
}

/// Prints a message on standard error. Errors are ignored, because they cannot be printed either.
pub fn message(text: impl Display) {
    match OUTLETS.get() {
        Some(outlets) => {
            outlets.error.put(encoded(&Record::of_text(&text.to_string())));
        }
        None => drop(writeln!(io::stderr(), "{text}")),
    }
}

/// Returns why standard output is incomplete, if it is. A later reader must not take it for complete.
fn lost() -> Option<String> {
    match OUTLETS.get().map(|outlets| outlets.output.unwritten()) {
        Some(texts) if texts > 0 => Some(format!("{texts} texts could not be written")),
        _ => LOST.get().cloned(),
    }
}

static LOST: OnceLock<String> = OnceLock::new();

/// Whether the reader of standard output has gone.
pub fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

static CLOSED: AtomicBool = AtomicBool::new(false);

fn written(result: io::Result<()>) {
    match result {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => CLOSED.store(true, Ordering::Relaxed),
        Err(error) => drop(LOST.get_or_init(|| error.to_string())),
    }
}

/// Writes the log line by line.
struct LogWriter;

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogWriter;

    fn make_writer(&'a self) -> LogWriter {
        LogWriter
    }
}

impl Write for LogWriter {
    /// Each call is one line. It cannot fail.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let line = bounded(text);
        match OUTLETS.get() {
            Some(outlets) => outlets.error.put(line),
            None => drop(io::stderr().write_all(&line)),
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns one line of bounded length: text from clients can neither start a new line nor fill the log.
fn bounded(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    let text = text.trim_end_matches('\n');
    let end = text.floor_char_boundary(LINE_MAX);
    let mut line = text[..end].replace(['\n', '\r'], " ");
    if end < text.len() {
        line += &format!("... ({} bytes more)", text.len() - end);
    }
    line.push('\n');
    line.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_a_client_is_logged_as_one_line_of_bounded_length() {
        let named = |name: &str| String::from_utf8(bounded(format!("Refused: {name}\n").as_bytes())).unwrap();
        assert_eq!(named("a\n2026 INFO all is well"), "Refused: a 2026 INFO all is well\n");
        let long = named(&"\u{e4}".repeat(2000));
        assert!(long.len() < LINE_MAX + 30 && long.ends_with("... (1962 bytes more)\n"), "{}", &long[2000..]);
    }
}
