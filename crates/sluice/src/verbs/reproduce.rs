//! `sluice reproduce [ID...|PAPER|all]`

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use clap::Args;
use sluice_lab::Verdict;
use sluice_lab::figure::{Class, Figure, Paper};
use sluice_lab::run::{Plan, Reproduced, Row};
use sluice_lab::{figures, report, run};

use crate::failure::Failure;
use crate::output::{self, Format};
use crate::progress::{Progress, Style};
use crate::sim::folder;
use crate::{program, real, testbed};

/// Reproduce the papers' tables and figures on modelled devices, with a verdict for each row.
///
/// Every row of the acceptance table has a class. Exact rows (E) must hold on any device. Shapes (S) must hold over a band of
/// the device's parameters. Rows that depend on hardware (H) are shown next to the paper's number. The exit code is 1 if an
/// exact row fails.
///
/// With --real, figures of mClock and Flubber run on real I/O next to the simulation: this process serves temporary disks over NBD and
/// vhost-user-blk on a device of constant rate, six times as fast as in the paper, or on one with the completion times of a modelled
/// drive. All of them take less than 25 minutes. The exit code is 1 if a real value differs from the simulated one by more than 3 %, or 10 %
/// on a modelled drive.
///
/// With --guests the VMs are three Linux guests under QEMU that measure their requests themselves, in real time: 26 minutes for two figures of
/// mClock. As root the kernel's BFQ and blk-throttle run on the same file. QEMU must be installed; kernel and busybox
/// are downloaded once as Debian packages.
#[derive(Args)]
pub(crate) struct Reproduce {
    /// Papers (mclock, flubber, mcfq, netback, two-tier), ablations, figures, rows (M1, M1a; a row brings its figure), or all.
    #[arg(default_value = "all")]
    what: Vec<String>,
    /// Run only the nominal point; shapes are judged without their band. With --real: measure a fifth of the time.
    #[arg(long, conflicts_with = "docs")]
    quick: bool,
    /// Run on real I/O: mclock-allocation, mclock-limits, mclock-reservations, mclock-latency, mclock-idle-credit, mclock-batching,
    /// flubber-credits, rows of them, or all.
    #[arg(long, conflicts_with_all = ["list", "threads", "fresh"])]
    real: bool,
    /// With --real: mclock-reservations and mclock-oltp with three guests under QEMU.
    #[arg(long, requires = "real")]
    guests: bool,
    /// Folder of the guests' kernel and first file system. If they are not in it, they are made there from downloaded packages.
    /// Default: sluice-guests in the user's cache.
    #[arg(long, value_name = "DIR", requires = "guests")]
    guest_root: Option<PathBuf>,
    /// List papers, figures and rows, and run nothing.
    #[arg(long)]
    list: bool,
    /// Write report.html, rows.json and a text for each paper to this folder. Results of an earlier run in it are reused. With --real: real.html and
    /// real.json, or guests.html and guests.json.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write the texts and charts of the papers to this folder, as in docs/papers; only for whole papers. With --real: real.md or guests.md, only
    /// for all figures.
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
    /// Ignore the results of earlier runs.
    #[arg(long, requires = "out")]
    fresh: bool,
    /// Concurrent simulations. Default: the number of cores.
    #[arg(long, alias = "jobs", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Format of progress messages on standard error.
    #[arg(long, value_enum, default_value_t = Style::Auto)]
    progress: Style,
}

impl Reproduce {
    pub(crate) fn run(self, format: Format, quiet: bool) -> Result<(), Failure> {
        if self.real {
            return self.run_real(format, quiet);
        }
        let figures = chosen(&self.what)?;
        if self.list {
            list(&figures, format);
            return Ok(());
        }
        // Checked before the first simulation: the run takes minutes and would be lost.
        if let Some(docs) = &self.docs {
            whole_papers(&figures)?;
            folder::can_be_written("--docs", docs)?;
        }
        if let Some(out) = &self.out {
            folder::can_be_written("--out", out)?;
        }
        let _alone = self.out.as_deref().map(lock).transpose()?;
        let kept = self.out.as_deref().map(|out| keep(out, self.fresh)).transpose()?;
        let threads = match self.threads {
            Some(threads) => threads.into(),
            None => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        };
        let plan = Plan { figures, quick: self.quick, threads, kept };
        let progress = Mutex::new(Progress::new("reproduce", self.progress, quiet));
        let all = run::run(&plan, &|over, of| {
            // Progress is also printed after a run has panicked.
            progress.lock().unwrap_or_else(PoisonError::into_inner).show(over as f64 / of as f64);
        })?;
        progress.into_inner().unwrap_or_else(PoisonError::into_inner).end();
        if !quiet && self.progress == Style::Auto {
            print_times(&all);
        }
        if let Some(out) = &self.out {
            write(out, &all)?;
        }
        if let Some(docs) = &self.docs {
            report::write_markdown(docs, &all)?;
        }
        let rows = report::rows(&all);
        match format {
            Format::Json => output::json(&rows),
            Format::Table => print(&rows.rows),
        }
        let failed = rows.rows.iter().any(|row| row.class == Class::Exact && row.verdict == Verdict::NotReproduced);
        if failed { Err(Failure::No) } else { Ok(()) }
    }

    /// Whether figures run on real I/O, which shows progress.
    pub(super) fn is_real(&self) -> bool {
        self.real
    }

    fn run_real(self, format: Format, quiet: bool) -> Result<(), Failure> {
        let figures = real::chosen(&self.what, self.guests)?;
        if let Some(docs) = &self.docs {
            if figures.len() != real::chosen(&["all".to_owned()], self.guests)?.len() {
                let what = "--docs writes the page of all figures on real I/O; name all, or use --out";
                return Err(Failure::Refused(what.to_owned()));
            }
            folder::can_be_written("--docs", docs)?;
        }
        if let Some(out) = &self.out {
            folder::can_be_written("--out", out)?;
        }
        let guests = self.guests.then(|| real::image::Image::provide(self.guest_root.as_deref())).transpose()?;
        let quiet = quiet || self.progress == Style::None;
        let report = testbed::run(real::run(real::Plan { figures, quick: self.quick, guests }, quiet))?;
        if let Some(docs) = &self.docs {
            report.write_docs(docs)?;
        }
        if let Some(out) = &self.out {
            report.write_page(out)?;
        }
        report.print(format);
        if report.is_ok() { Ok(()) } else { Err(Failure::No) }
    }
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
    crate::output::message(format_args!("Written: {}", out.join("report.html").display()));
    Ok(())
}

/// Prints the time that each figure took, if it was a second or more. It is not part of any result, which would differ from run to run.
fn print_times(all: &[Reproduced<'_>]) {
    for reproduced in all.iter().filter(|reproduced| reproduced.took.as_secs() > 0) {
        crate::output::message(format_args!("{}: {:.0} s", reproduced.figure.id, reproduced.took.as_secs_f64()));
    }
}

fn list(figures: &[&Figure], format: Format) {
    let rows = figures.iter().flat_map(|figure| figure.rows.iter().map(move |row| (figure, row)));
    if format == Format::Json {
        let rows: Vec<_> = rows
            .map(|(figure, row)| {
                serde_json::json!({ "id": row.id, "paper": figure.paper, "figure": figure.label, "name": figure.id,
                    "class": row.class, "must": row.must, "paper_value": row.paper })
            })
            .collect();
        return output::json(&serde_json::json!({ "rows": rows }));
    }
    let mut table = output::table(&["ROW", "CLASS", "PAPER", "FIGURE", "NAME", "MUST COME OUT"]);
    for (figure, row) in rows {
        table.add_row([row.id, row.class.letter(), figure.paper.name(), figure.label, figure.id, row.must]);
    }
    output::line(&table.to_string());
}

fn print(rows: &[&Row]) {
    let mut table = output::table(&["ROW", "CLASS", "FIGURE", "VERDICT", "HERE", "PAPER"]);
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
