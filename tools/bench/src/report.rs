//! A report: tables, promised targets, and the machine of the measurement.

use std::fmt::Write as _;

use super::baseline;
use super::stats::Samples;

/// Format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// Markdown tables.
    Text,
    /// One JSON object.
    Json,
}

/// Results of one benchmark.
#[derive(Debug)]
pub(super) struct Report {
    name: &'static str,
    machine: Machine,
    /// Round trips of the null baseline, in microseconds.
    baseline: Samples,
    tables: Vec<Table>,
    targets: Vec<Target>,
    notes: Vec<String>,
}

/// Rows of cells under named columns.
#[derive(Debug)]
pub(super) struct Table {
    name: String,
    columns: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

/// One value.
#[derive(Debug, Clone)]
pub(super) enum Cell {
    Text(String),
    /// A value, and the number of digits to print.
    Number(f64, usize),
    /// Median, minimum and maximum, and the number of digits to print.
    Spread(f64, (f64, f64), usize),
}

/// A promised number, and its measurement.
#[derive(Debug)]
struct Target {
    what: String,
    bound: Bound,
    measured: f64,
}

/// Bound of a target.
#[derive(Debug, Clone, Copy)]
pub(super) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

#[derive(Debug)]
struct Machine {
    kernel: String,
    cpu: String,
    cpus: usize,
    load: String,
}

impl Report {
    pub(super) fn new(name: &'static str) -> Report {
        let (machine, baseline) = (Machine::this(), Samples::default());
        Report { name, machine, baseline, tables: Vec::new(), targets: Vec::new(), notes: Vec::new() }
    }

    /// Measures the null baseline once; called in each round.
    pub(super) fn measure_baseline(&mut self) {
        self.baseline.push(baseline::round_trip_us());
    }

    pub(super) fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    pub(super) fn target(&mut self, what: impl Into<String>, bound: Bound, measured: f64) {
        self.targets.push(Target { what: what.into(), bound, measured });
    }

    /// Adds a remark below the tables; duplicates are dropped.
    pub(super) fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    pub(super) fn markdown(&self) -> String {
        let Machine { kernel, cpu, cpus, load } = &self.machine;
        let mut out = format!("# {}\n\nOn {cpus} CPUs ({cpu}), Linux {kernel}, load at the start {load}.\n", self.name);
        self.add_baseline(&mut out);
        for table in &self.tables {
            let _ = write!(out, "\n## {}\n\n", table.name);
            let rows = table.rows.iter().map(|row| row.iter().map(Cell::shown).collect()).collect();
            write_table(&mut out, &table.columns, rows);
        }
        if !self.targets.is_empty() {
            out.push_str("\n## Targets\n\n");
            let rows = self.targets.iter().map(Target::row).collect();
            write_table(&mut out, &["target", "wanted", "measured", "met"], rows);
        }
        for (index, note) in self.notes.iter().enumerate() {
            let _ = writeln!(out, "{}* {note}", if index == 0 { "\n" } else { "" });
        }
        out
    }

    fn add_baseline(&self, out: &mut String) {
        if self.baseline.is_empty() {
            return;
        }
        let (median, (low, high)) = (self.baseline.median(), self.baseline.range());
        let _ = writeln!(
            out,
            "Null baseline: a round trip between two threads took {median:.1} us, in its rounds {:.2} to {:.2} times that; \
             load at the end {}.",
            low / median,
            high / median,
            load(),
        );
    }

    /// Returns the report as one JSON object. It is written by hand because a library would be this crate's largest
    /// dependency.
    pub(super) fn json(&self) -> String {
        let Machine { kernel, cpu, cpus, load } = &self.machine;
        let machine = object([
            ("kernel", quoted(kernel)),
            ("cpu", quoted(cpu)),
            ("cpus", cpus.to_string()),
            ("load", quoted(load)),
        ]);
        let baseline = Cell::spread(&self.baseline, 1).json();
        let tables = self.tables.iter().map(|table| {
            let row = |row: &Vec<Cell>| object(table.columns.iter().copied().zip(row.iter().map(Cell::json)));
            object([("name", quoted(&table.name)), ("rows", array(table.rows.iter().map(row)))])
        });
        let targets = self.targets.iter().map(|target| {
            let (kind, wanted) = match target.bound {
                Bound::AtMost(wanted) => ("at_most", wanted),
                Bound::AtLeast(wanted) => ("at_least", wanted),
            };
            let (measured, met) = (number(target.measured), target.met().to_string());
            object([("target", quoted(&target.what)), (kind, number(wanted)), ("measured", measured), ("met", met)])
        });
        object([
            ("bench", quoted(self.name)),
            ("machine", machine),
            ("null_baseline_us", baseline),
            ("tables", array(tables)),
            ("targets", array(targets)),
            ("notes", array(self.notes.iter().map(|note| quoted(note)))),
        ])
    }
}

fn object<'a>(members: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let members: Vec<String> = members.into_iter().map(|(name, value)| format!("{}:{value}", quoted(name))).collect();
    format!("{{{}}}", members.join(","))
}

fn array(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(","))
}

fn number(value: f64) -> String {
    if value.is_finite() { value.to_string() } else { "null".to_owned() }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if letter.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}

impl Table {
    pub(super) fn new(name: impl Into<String>, columns: &[&'static str]) -> Table {
        Table { name: name.into(), columns: columns.to_vec(), rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: Vec<Cell>) {
        assert_eq!(cells.len(), self.columns.len(), "a row has a cell for each column");
        self.rows.push(cells);
    }
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Cell {
        Cell::Text(text.into())
    }

    /// Returns a cell with the median and its range.
    pub(super) fn spread(samples: &Samples, digits: usize) -> Cell {
        Cell::Spread(samples.median(), samples.range(), digits)
    }

    fn shown(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Number(value, _) | Cell::Spread(value, _, _) if !value.is_finite() => "-".to_owned(),
            Cell::Number(value, digits) => grouped(*value, *digits),
            Cell::Spread(median, (low, high), digits) => {
                format!("{} ({} to {})", grouped(*median, *digits), grouped(*low, *digits), grouped(*high, *digits))
            }
        }
    }

    fn json(&self) -> String {
        match self {
            Cell::Text(text) => quoted(text),
            Cell::Number(value, _) => number(*value),
            Cell::Spread(median, (low, high), _) => {
                object([("median", number(*median)), ("min", number(*low)), ("max", number(*high))])
            }
        }
    }
}

impl Target {
    fn met(&self) -> bool {
        match self.bound {
            Bound::AtMost(wanted) => self.measured <= wanted,
            Bound::AtLeast(wanted) => self.measured >= wanted,
        }
    }

    fn row(&self) -> Vec<String> {
        let wanted = match self.bound {
            Bound::AtMost(wanted) => format!("at most {wanted}"),
            Bound::AtLeast(wanted) => format!("at least {wanted}"),
        };
        let digits = if self.measured.abs() < 10.0 { 2 } else { 1 };
        let met = if self.met() { "yes" } else { "NO" };
        vec![self.what.clone(), wanted, grouped(self.measured, digits), met.to_owned()]
    }
}

impl Machine {
    fn this() -> Machine {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let cpu = read("/proc/cpuinfo");
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Machine {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: model.map_or("unknown", |(_, name)| name).to_owned(),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            load: load(),
        }
    }
}

/// Returns the average load of the last minute.
fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or_default().to_owned()
}

/// Formats a number with `digits` decimal places and grouped thousands.
fn grouped(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::from(if value < 0.0 { "-" } else { "" });
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

fn write_table(out: &mut String, columns: &[&str], rows: Vec<Vec<String>>) {
    let width = |index: usize| {
        let cells = rows.iter().map(|row| row[index].chars().count());
        cells.chain([columns[index].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut line = |cells: &[&str]| {
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(out, "| {cell:width$} ");
        }
        out.push_str("|\n");
    };
    line(columns);
    let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    line(&rules.iter().map(String::as_str).collect::<Vec<_>>());
    for row in &rows {
        line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        let shown =
            [(1234567.891, 1), (999.0, 0), (-1000.0, 0), (0.04, 2)].map(|(value, digits)| grouped(value, digits));
        assert_eq!(shown, ["1,234,567.9", "999", "-1,000", "0.04"]);
    }

    #[test]
    fn both_formats_have_the_same_content() {
        let mut report = Report::new("test");
        let mut table = Table::new("t", &["what", "ns"]);
        table.row(vec![Cell::text("a"), Cell::spread(&[3.0, 1.0, 2.0].into_iter().collect(), 0)]);
        report.table(table);
        report.target("speed", Bound::AtMost(2.0), 2.5);
        let text = report.markdown();
        assert!(text.contains("| a    | 2 (1 to 3) |"), "{text}");
        assert!(text.contains("| speed  | at most 2 | 2.50     | NO  |"), "{text}");
        let json = report.json();
        assert!(json.contains(r#""rows":[{"what":"a","ns":{"median":2,"min":1,"max":3}}]"#), "{json}");
        assert!(json.contains(r#"{"target":"speed","at_most":2,"measured":2.5,"met":false}"#), "{json}");
        assert!(!text.contains("Null baseline"), "{text}");
        [10.0, 5.0, 20.0].into_iter().for_each(|trip| report.baseline.push(trip));
        let text = report.markdown();
        assert!(text.contains("took 10.0 us, in its rounds 0.50 to 2.00 times that"), "{text}");
        assert!(report.json().contains(r#""null_baseline_us":{"median":10,"min":5,"max":20}"#));
        assert_eq!(quoted("a\"\n"), r#""a\"\u000a""#);
    }
}
