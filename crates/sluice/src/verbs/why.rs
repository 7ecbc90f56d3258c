//! `sluice why`

use clap::Args;
use sluice_api::why;
use sluice_daemon::failure::Failure;
use sluice_daemon::state::time::Time;

use crate::control::Request;
use crate::control::moment::Moment;
use crate::control::record::Source;
use crate::output;
use crate::output::rows::{self, Form};

/// Explain why a VM gets what it gets, what broke its promises, and what would help.
///
/// It looks at the present state and at the events of the past hour, or of `--since`: how often and for how long each promise was
/// broken, the causes by their duration, and the other VMs that were served in that time. While the daemon does not run, it looks at
/// what is left in its state directory.
#[derive(Args)]
pub(crate) struct Why {
    /// The VM.
    vm: String,
    /// Start of the past to look at: 2h, 08:00, "yesterday 08:00", today, or a date.
    #[arg(long, value_name = "TIME", default_value = "1h", allow_hyphen_values = true)]
    since: Moment,
    #[command(flatten)]
    source: Source,
}

impl Why {
    pub(crate) fn run(self, form: Form) -> Result<(), Failure> {
        let since = Some(self.since.at(Time::now()));
        let answer: why::Why = self.source.get(&Request::Why { vm: self.vm, since })?;
        output::line(&match form {
            Form::Table | Form::Wide | Form::Csv => answer.text,
            Form::Json | Form::Jsonl => rows::one(&answer),
        });
        Ok(())
    }
}
