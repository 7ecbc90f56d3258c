//! `sluice sim run FILE`

use sluice_sim::scenario::{self, Outcome, Watch};

use crate::sim::folder::{Folder, states, warn_unusable};
use crate::sim::logs::Writing;
use crate::sim::results;
use crate::sim::summary::{Summary, table};
use sluice_console::lab::Run;
use sluice_console::progress::Progress;
use sluice_daemon::failure::Failure;
use sluice_daemon::output::{self, Format};

pub(crate) fn run(args: Run, format: Format, quiet: bool) -> Result<(), Failure> {
    let file = super::load(&args.file)?;
    let seed = args.seed.unwrap_or(file.base.seed);
    let folder = args.out.as_ref().map(|out| Folder::new(out, results::RESULTS)).transpose()?;
    let log = match (&folder, args.log) {
        (Some(folder), Some(log)) => Some(Writing::new(log, folder.path(), &file.base)?),
        _ => None,
    };
    let mut progress = Progress::new("run", args.progress, quiet);
    let mut show = |done| {
        progress.show(done);
        true
    };
    let states = args.states.map(states).transpose()?;
    let requests = log.as_ref().map(Writing::watcher);
    let watch = Watch { requests, states: states.as_ref(), progress: Some(&mut show) };
    let outcome = scenario::run(&file.base.scenario, seed, watch)?;
    progress.end();
    warn_unusable(states.as_ref());
    log.map_or(Ok(()), Writing::finish)?;
    if let Some(folder) = folder {
        results::write(&folder, &file.base, &outcome)?;
        folder.finish()?;
    }
    match format {
        Format::Json => output::json(&Summary::of(&outcome)),
        Format::Table => output::line(&table(&outcome)),
    }
    broken(&outcome)?;
    if outcome.not_kept().next().is_some() { Err(Failure::NotKept) } else { Ok(()) }
}

/// A seed, as a scenario file may state it.
/// Returns an error if an invariant is violated.
fn broken(outcome: &Outcome) -> Result<(), Failure> {
    let broken: Vec<String> = outcome.broken().map(|(check, what)| format!("{check}: {what}")).collect();
    for what in &broken {
        sluice_daemon::output::message(format_args!("error: The run violates an invariant: {what}"));
    }
    if broken.is_empty() { Ok(()) } else { Err(Failure::No) }
}
