//! `sluice advise WORKLOAD --device MODEL`

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value as Json, json};
use sluice_lab::advise::{self, Answer, By, Load, Question, Sureness, Verdict};
use sluice_sched::Descriptor;
use sluice_sched::params::{ParamTable, Value};
use sluice_sched::scheduler::DeviceClass;
use sluice_sim::scenario::models;
use sluice_sim::scenario::trace::{FORMATS, Scan};
use sluice_sim::stack::Ring;
use sluice_sim::statistics::Mean;
use sluice_sim::traces::TraceError;
use sluice_sim::workloads::profiles;

use sluice_console::lab::{Advise, Counts, RingKind};
use sluice_console::progress::Progress;
use sluice_console::table::table;
use sluice_daemon::failure::Failure;
use sluice_daemon::output::{self, Format};

pub(crate) fn run(args: Advise, format: Format, quiet: bool) -> Result<(), Failure> {
    let question = question(&args)?;
    let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let jobs = args.jobs.map_or_else(cores, NonZeroUsize::get);
    let progress = Mutex::new(Progress::new("advise", args.progress, quiet));
    let answer = advise::advise(&question, jobs, &|over, of| {
        progress.lock().expect("no run panics while it holds it").show(over as f64 / of as f64);
    })?;
    progress.into_inner().expect("all runs have ended").end();
    match format {
        Format::Json => output::json(&as_json(&question, &answer)),
        Format::Table => print(&question, &answer),
    }
    Ok(())
}

fn question(args: &Advise) -> Result<Question, Failure> {
    if args.duration <= Duration::from_secs(1) {
        return Err(Failure::Refused("--duration must be more than 1s: the first second is not measured".into()));
    }
    let (name, params) = with_params(&args.device)?;
    let disks = || models::all().filter(|known| known.device_class() == DeviceClass::Disk);
    let model = disks().find(|known| known.name() == name);
    let model = model.ok_or_else(|| unknown("device model", name, disks().map(|known| known.name())))?;
    Ok(Question {
        load: load(args)?,
        device: (model, params),
        depth: args.depth,
        guests: in_guest(&args.guest)?,
        hosts: named(&args.host)?,
        vms: args.vms,
        threads: args.threads,
        ring: if args.ring == RingKind::Xen { Ring::XEN } else { Ring::VIRTIO },
        request_cost: args.request_cost,
        runs: args.runs,
        seed: args.seed,
        duration: args.duration,
        by: if args.by == Counts::P99 { By::P99 } else { By::Throughput },
    })
}

fn load(args: &Advise) -> Result<Load, Failure> {
    let Some(file) = &args.trace else {
        let stated = args.workload.as_deref().expect("clap requires one of the two");
        let (name, params) = with_params(stated)?;
        let of_disks = || profiles::all().filter(|known| known.device_class() == DeviceClass::Disk);
        let known = of_disks().find(|known| known.name == name);
        let known = known.ok_or_else(|| unknown("workload", name, of_disks().map(|known| known.name)))?;
        return Ok(Load::Named(known, params));
    };
    let name = args.trace_format.as_deref().expect("clap requires it beside a trace");
    let found = FORMATS.iter().find(|(known, _)| *known == name);
    let (_, format) = found.ok_or_else(|| unknown("trace format", name, FORMATS.iter().map(|(name, _)| *name)))?;
    let scan = Scan::read(file, *format, None).map_err(|error| match error {
        TraceError::Open { source } => {
            let text = format!("Trace {} cannot be opened: {source}", file.display());
            if source.kind() == ErrorKind::NotFound { Failure::NotFound(text) } else { Failure::Refused(text) }
        }
        error => Failure::Refused(format!("{} is not a trace of format {name}: {error}", file.display())),
    })?;
    if let Some(skipped) = scan.not_replayed() {
        output::message(format_args!("warning: {}: {skipped}", file.display()));
    }
    if scan.rows == 0 {
        return Err(Failure::Refused(format!("{} has no request; name a trace that has some", file.display())));
    }
    if scan.rows < u64::from(args.runs) {
        let few =
            format!("{} has {} requests, less than one for each of {} runs", file.display(), scan.rows, args.runs);
        return Err(Failure::Refused(format!("{few}; use fewer runs")));
    }
    Ok(Load::Trace { file: file.clone(), format: *format, rows: scan.rows })
}

/// `NAME,PARAM=VALUE,...`
fn with_params(stated: &str) -> Result<(&str, ParamTable), Failure> {
    let mut parts = stated.split(',');
    let name = parts.next().unwrap_or_default();
    let mut params = ParamTable::new();
    for part in parts {
        let Some((key, value)) = part.split_once('=') else {
            return Err(Failure::Refused(format!(
                "'{part}' of '{stated}' is no parameter; write NAME,PARAM=VALUE,..."
            )));
        };
        params.insert(key.trim().to_owned(), written(value.trim()));
    }
    Ok((name, params))
}

/// Parses a value: a number or a boolean if it is one, else text.
fn written(text: &str) -> Value {
    let number = text.parse().map(Value::Integer).or_else(|_| text.parse().map(Value::Float));
    number.or_else(|_| text.parse().map(Value::Bool)).unwrap_or_else(|_| Value::Text(text.to_owned()))
}

/// Guest schedulers by their names, or by those of today's Linux that they are the nearest model of. A model that stands for several of
/// the names is compared once.
fn in_guest(names: &[String]) -> Result<Vec<&'static Descriptor>, Failure> {
    let known = || sluice_papers::for_class(DeviceClass::Disk);
    once(names)?;
    let mut models: Vec<&Descriptor> = Vec::new();
    for name in names {
        let stands = |model: &&Descriptor| model.advice.stands_for.iter().any(|(today, _)| today == name);
        let Some(model) = known().find(|model| model.name == name).or_else(|| known().find(stands)) else {
            let today = known().flat_map(|model| model.advice.stands_for.iter().map(|(name, _)| *name));
            return Err(unknown("guest scheduler", name, known().map(|model| model.name).chain(today)));
        };
        if !models.iter().any(|other| other.name == model.name) {
            models.push(model);
        }
    }
    Ok(models)
}

/// Rejects a name that is stated twice.
fn once(names: &[String]) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    match names.iter().find(|name| !seen.insert(*name)) {
        Some(name) => Err(Failure::Refused(format!("'{name}' is named twice; name each scheduler once"))),
        None => Ok(()),
    }
}

fn named(names: &[String]) -> Result<Vec<&'static Descriptor>, Failure> {
    let known = || sluice_papers::for_class(DeviceClass::Disk);
    let find = |name: &String| {
        let found = known().find(|descriptor| descriptor.name == name);
        found.ok_or_else(|| unknown("scheduler of disks", name, known().map(|descriptor| descriptor.name)))
    };
    once(names)?;
    names.iter().map(find).collect()
}

fn unknown(what: &str, name: &str, known: impl Iterator<Item = &'static str>) -> Failure {
    let known: Vec<_> = known.collect();
    Failure::NotFound(format!("No {what} is called '{name}'; there are: {}", known.join(", ")))
}

fn word(sureness: Sureness) -> &'static str {
    match sureness {
        Sureness::Best => "best",
        Sureness::Same => "cannot be told from the best",
        Sureness::Behind => "behind",
    }
}

fn print(question: &Question, answer: &Answer) {
    let with = |mean: &Mean, digits: usize| match mean.half {
        Some(half) => format!("{:.digits$} ± {half:.digits$}", mean.mean),
        None => format!("{:.digits$}", mean.mean),
    };
    let mut table = table(&["", "GUEST", "HOST", "IOPS", "MB/s", "P99 [ms]", "BEHIND [%]", ""]);
    for (number, pair) in answer.pairs.iter().enumerate() {
        let mark = if number == answer.chosen { "*" } else { "" };
        let cells = [with(&pair.iops, 0), format!("{:.1}", pair.bytes.mean / 1e6), with(&pair.p99_ms, 2)];
        let behind = if pair.sureness == Sureness::Best { String::new() } else { with(&pair.behind, 1) };
        let names = [mark.to_owned(), pair.guest.to_owned(), pair.host.to_owned()];
        table.add_row(names.into_iter().chain(cells).chain([behind, word(pair.sureness).to_owned()]));
    }
    output::line(&table.to_string());
    let by = if answer.by == By::P99 { "p99 latency" } else { "throughput" };
    output::line(&format!(
        "\nBy {by}; {} runs of each; means with 95 % intervals, differences run by run; behind is what differs by more than \
         one of {} pairs does by chance",
        question.runs,
        answer.pairs.len()
    ));
    output::line(&format!("\n{}", answer.sentences().join("\n")));
    let today = advise::today(&question.guests);
    if !today.is_empty() {
        output::line(&format!("\n{}", today.join("\n")));
    }
}

fn as_json(question: &Question, answer: &Answer) -> Json {
    let mean = |mean: &Mean| json!({ "mean": mean.mean, "half_interval_95": mean.half });
    let pair = |pair: &Verdict| {
        json!({ "guest": pair.guest, "host": pair.host, "iops": mean(&pair.iops), "bytes_per_second": mean(&pair.bytes),
            "latency_p99_ms": mean(&pair.p99_ms), "behind_percent": mean(&pair.behind), "sureness": pair.sureness,
            "never": pair.never })
    };
    let chosen = &answer.pairs[answer.chosen];
    json!({ "choose": { "guest": chosen.guest, "host": chosen.host }, "by": answer.by, "runs": question.runs,
        "seed": question.seed, "told_apart": answer.is_alone(),
        "sentences": answer.sentences(), "today": advise::today(&question.guests), "pairs": answer.pairs.iter().map(pair).collect::<Vec<_>>() })
}
