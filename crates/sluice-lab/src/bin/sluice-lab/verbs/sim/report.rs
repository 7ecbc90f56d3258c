//! `sluice sim report DIR`

use std::path::Path;

use serde_json::{Value, json};

use crate::sim::folder::{cannot, write_whole};
use crate::sim::{report, results, sweep};
use sluice_console::lab::Report;
use sluice_daemon::failure::Failure;
use sluice_daemon::output::{self, Format};

pub(crate) fn run(args: Report, format: Format) -> Result<(), Failure> {
    let (run, swept) = (args.dir.join(results::RESULTS), args.dir.join(sweep::SWEEP));
    let html = match (run.exists(), swept.exists()) {
        (true, _) => report::of_run(&read(&run)?),
        (false, true) => report::of_sweep(&read(&swept)?),
        (false, false) => {
            let (dir, run, swept) = (args.dir.display(), results::RESULTS, sweep::SWEEP);
            return Err(Failure::NotFound(format!(
                "{dir} has neither {run} nor {swept}, so it has no finished results"
            )));
        }
    };
    let path = args.dir.join("report.html");
    write_whole(&path, &html)?;
    match format {
        Format::Json => output::json(&json!({ "ok": true, "report": path })),
        Format::Table => output::line(&path.display().to_string()),
    }
    Ok(())
}

fn read(path: &Path) -> Result<Value, Failure> {
    let text = std::fs::read(path).map_err(|error| cannot("read", path, &error))?;
    serde_json::from_slice(&text)
        .map_err(|error| Failure::Run(format!("{} is damaged: {error}", path.display()).into()))
}
