//! `sluice alert --test`

use clap::Args;
use serde_json::json;
use sluice_api::VERSION;
use sluice_api::list::TestAlerts;
use sluice_daemon::failure::Failure;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::output::{self, Format};

/// Test whether alerts arrive: the daemon sends one to each recipient, as it would for an event.
///
/// The daemon runs the programs and calls the URLs of the tables [alert.CLASS] of its host file, with its own rights and for at most
/// 10 s. A recipient gets the same JSON as for an event, with `"test": true` and a text that says so. Exits with 1 if one has failed. Needs the role
/// `change`.
#[derive(Args)]
pub(crate) struct Alert {
    /// Sends a test; there is nothing else that the command does.
    #[arg(long, required = true)]
    test: bool,
    /// Class of events, for example latency: only the recipient that is told of such events. Default: the recipients of all tables.
    class: Option<String>,
    #[command(flatten)]
    daemon: Daemon,
}

impl Alert {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        let TestAlerts { alerts, .. } = self.daemon.get(&Request::TestAlert { class: self.class })?;
        let ok = alerts.iter().all(|alert| alert.error.is_none());
        match format {
            Format::Json => output::json(&json!({ "ok": ok, "version": VERSION, "alerts": alerts })),
            Format::Table => {
                let mut table = output::table(&["CLASS", "RECIPIENT", "RESULT"]);
                for alert in &alerts {
                    let result = alert.error.as_ref().map_or("sent".to_owned(), |error| format!("FAILED: {error}"));
                    table.add_row([&alert.class, &alert.recipient, &result]);
                }
                output::line(&table.to_string());
            }
        }
        ok.then_some(()).ok_or(Failure::No)
    }
}
