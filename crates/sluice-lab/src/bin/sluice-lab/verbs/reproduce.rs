//! `sluice reproduce [ID...|PAPER|all]`

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sluice_lab::figure::{Class, Figure, Paper};
use sluice_lab::run::{Plan, Reproduced};
use sluice_lab::{Row, Verdict, figures, report, run};

use crate::sim::folder;
use crate::{program, real};
use sluice_console::lab::Reproduce;
use sluice_console::progress::{Progress, Style};
use sluice_console::rows::{Form, of_programs};
use sluice_console::table::table;
use sluice_daemon::failure::Failure;
use sluice_daemon::output::{self, Format};

pub(crate) fn run(args: Reproduce, form: Form, quiet: bool) -> Result<(), Failure> {
    if args.real {
        return run_real(args, form.format(), quiet);
    }
    let figures = chosen(&args.what)?;
    if args.list {
        list(&figures, form);
        return Ok(());
    }
    // Checked before the first simulation: the run takes minutes and would be lost.
    if let Some(docs) = &args.docs {
        whole_papers(&figures)?;
        folder::can_be_written("--docs", docs)?;
    }
    if let Some(out) = &args.out {
        folder::can_be_written("--out", out)?;
    }
    let _alone = args.out.as_deref().map(lock).transpose()?;
    let kept = args.out.as_deref().map(|out| keep(out, args.fresh)).transpose()?;
    let threads = match args.threads {
        Some(threads) => threads.into(),
        None => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    };
    let plan = Plan { figures, quick: args.quick, threads, kept };
    let progress = Mutex::new(Progress::new("reproduce", args.progress, quiet));
    let all = run::run(&plan, &|over, of| {
        // Progress is also printed after a run has panicked.
        progress.lock().unwrap_or_else(PoisonError::into_inner).show(over as f64 / of as f64);
    })?;
    progress.into_inner().unwrap_or_else(PoisonError::into_inner).end();
    if !quiet && args.progress == Style::Auto {
        print_times(&all);
    }
    if let Some(out) = &args.out {
        write(out, &all)?;
    }
    if let Some(docs) = &args.docs {
        report::write_markdown(docs, &all)?;
    }
    let rows = report::rows(&all);
    match form {
        Form::Json => output::json(&rows),
        Form::Jsonl | Form::Csv => output::line(&of_programs(form, "rows", &rows.rows)),
        Form::Table | Form::Wide => print(&rows.rows),
    }
    let failed = rows.rows.iter().any(|row| row.class == Class::Conformance && row.verdict == Verdict::NotReproduced);
    if failed { Err(Failure::No) } else { Ok(()) }
}

fn run_real(args: Reproduce, format: Format, quiet: bool) -> Result<(), Failure> {
    let figures = real::chosen(&args.what, args.guests)?;
    if let Some(docs) = &args.docs {
        if figures.len() != real::chosen(&["all".to_owned()], args.guests)?.len() {
            let what = "--docs writes the page of all figures on real I/O; name all, or use --out";
            return Err(Failure::Refused(what.to_owned()));
        }
        if let Some(lacking) = real::lacking(&figures, args.guests) {
            return Err(Failure::Refused(format!(
                "--docs writes the page of all figures, and not all run here. {}",
                lacking.text()
            )));
        }
        folder::can_be_written("--docs", docs)?;
    }
    if let Some(out) = &args.out {
        folder::can_be_written("--out", out)?;
    }
    let guests = args.guests.then(|| real::image::Image::provide(args.guest_root.as_deref())).transpose()?;
    let quiet = quiet || args.progress == Style::None;
    let report = sluice_testbed::run(real::run(real::Plan { figures, quick: args.quick, guests }, quiet))?;
    if let Some(docs) = &args.docs {
        report.write_docs(docs)?;
    }
    if let Some(out) = &args.out {
        report.write_page(out)?;
    }
    report.print(format);
    if report.is_ok() { Ok(()) } else { Err(Failure::No) }
}

/// Returns the figures that the words name, without duplicates, in the order of the papers.
fn chosen(words: &[String]) -> Result<Vec<&'static Figure>, Failure> {
    let mut meant = Vec::new();
    for word in words {
        let found = figures::find(word);
        if found.is_empty() {
            let papers = Paper::ALL.map(Paper::name).join(", ");
            return Err(Failure::NotFound(format!(
                "Nothing is called '{word}'; there are: all, {papers}, and the rows and figures of `sluice reproduce --list`"
            )));
        }
        meant.extend(found.iter().map(|figure| figure.id));
    }
    Ok(figures::ALL.iter().copied().filter(|figure| meant.contains(&figure.id)).collect())
}

/// Locks a folder, because two concurrent runs would mix their results.
fn lock(out: &Path) -> Result<File, Failure> {
    let cannot = |error| folder::cannot("write into", out, &error);
    let held = File::open(out).map_err(cannot)?;
    match held.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let what = format!("Another run writes into {}; wait for it, or name another folder", out.display());
            Err(Failure::Refused(what))
        }
        // Without support for locks, no other run holds one.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(held),
    }
}

/// Checks that whole papers were requested: a paper's text is one file, and a part of its figures would replace it.
fn whole_papers(figures: &[&Figure]) -> Result<(), Failure> {
    let is_chosen = |figure: &Figure| figures.iter().any(|chosen| chosen.id == figure.id);
    let left_out = figures::ALL
        .iter()
        .find(|figure| !is_chosen(figure) && figures.iter().any(|chosen| chosen.paper == figure.paper));
    let Some(left_out) = left_out else { return Ok(()) };
    let paper = left_out.paper.name();
    Err(Failure::Refused(format!(
        "--docs writes the text of whole papers, but {} of {paper} is missing; name {paper}, or use --out",
        left_out.id
    )))
}

/// Returns the folder of finished results, and the identity of this program, on which they depend.
fn keep(out: &Path, fresh: bool) -> Result<(PathBuf, String), Failure> {
    let folder = out.join("finished");
    folder::can_be_written("--out", &folder)?;
    if fresh {
        std::fs::remove_dir_all(&folder)?;
        std::fs::create_dir_all(&folder)?;
    }
    Ok((folder, program::hash()?))
}

fn write(out: &Path, all: &[Reproduced<'_>]) -> Result<(), Failure> {
    let rows = serde_json::to_string_pretty(&report::rows(all)).expect("rows are plain data");
    report::write(&out.join("rows.json"), &(rows + "\n"))?;
    report::write(&out.join("report.html"), &report::page(all))?;
    report::write_markdown(&out.join("papers"), all)?;
    sluice_daemon::output::message(format_args!("Written: {}", out.join("report.html").display()));
    Ok(())
}

/// Prints the time that each figure took, if it was a second or more. It is not part of any result, which would differ from run to run.
fn print_times(all: &[Reproduced<'_>]) {
    for reproduced in all.iter().filter(|reproduced| reproduced.took.as_secs() > 0) {
        sluice_daemon::output::message(format_args!(
            "{}: {:.0} s",
            reproduced.figure.id,
            reproduced.took.as_secs_f64()
        ));
    }
}

fn list(figures: &[&Figure], form: Form) {
    let rows = figures.iter().flat_map(|figure| figure.rows.iter().map(move |row| (figure, row)));
    if !matches!(form, Form::Table | Form::Wide) {
        let rows: Vec<_> = rows
            .map(|(figure, row)| {
                serde_json::json!({ "id": row.id, "paper": figure.paper, "figure": figure.label, "name": figure.id,
                    "class": row.class, "must": row.must, "paper_value": row.paper })
            })
            .collect();
        return match form {
            Form::Json => output::json(&serde_json::json!({ "rows": rows })),
            _ => output::line(&of_programs(form, "rows", &rows)),
        };
    }
    let mut table = table(&["ROW", "CLASS", "PAPER", "FIGURE", "NAME", "MUST COME OUT"]);
    for (figure, row) in rows {
        table.add_row([row.id, row.class.letter(), figure.paper.name(), figure.label, figure.id, row.must]);
    }
    output::line(&table.to_string());
}

fn print(rows: &[&Row]) {
    let mut table = table(&["ROW", "CLASS", "FIGURE", "VERDICT", "HERE", "PAPER"]);
    for row in rows {
        let figure = format!("{} {}", row.paper.name(), row.figure);
        table.add_row([row.id, row.class.letter(), &figure, &row.verdict_text(), &row.measured, row.paper_value]);
    }
    output::line(&table.to_string());
    for row in rows.iter().filter(|row| row.verdict == Verdict::NotReproduced) {
        output::line(&format!("\n{} must: {}\n   {}", row.id, row.must, row.note));
    }
    output::line(&format!("\n{}", report::summary(rows)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_in_the_same_folder_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().to_owned();
        let first = lock(&out).ok().expect("no other run has it");
        let Err(Failure::Refused(what)) = lock(&out) else { panic!("another run has it") };
        assert!(what.contains("Another run writes into") && what.ends_with("name another folder"), "{what}");
        drop(first);
        assert!(lock(&out).is_ok(), "a run that ended holds no lock");
    }
}
