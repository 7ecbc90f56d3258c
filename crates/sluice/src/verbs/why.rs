//! `sluice why`

use std::collections::BTreeSet;

use clap::Args;
use sluice_api::event::{Event, Events};
use sluice_api::status::{Status, Vm};
use sluice_daemon::failure::Failure;
use sluice_daemon::state::time::Time;

use crate::control::Request;
use crate::control::moment::Moment;
use crate::control::record::Source;
use crate::output;
use crate::output::rows::{self, Form};
use crate::show::why;

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

/// Says that no VM has this name, and what has it.
fn unknown(name: &str, status: &Status) -> String {
    let error = format!("There is no VM {name}, and no event of one");
    if let Some(volume) = status.volumes().find(|volume| volume.id().to_string() == name) {
        return format!("{error}: it is a volume or a NIC; `sluice why {}` explains its VM", volume.vm);
    }
    if status.devices.iter().any(|device| device.device == name) {
        return format!(
            "{error}: it is a device; `sluice describe {name}` shows it, and `sluice events --device {name}` its past"
        );
    }
    format!("{error}; `sluice get vms` lists the VMs")
}

impl Why {
    pub(crate) fn run(self, form: Form) -> Result<(), Failure> {
        let now = Time::now();
        let (since, now) = (self.since.at(now), now.0);
        let mut events = self.events(since, Some(&self.vm), None)?;
        // Without a daemon nothing is so now.
        let status: Status =
            if self.source.is_offline() { Status::default() } else { self.source.get(&Request::Status)? };
        let vms: Vec<&Vm> = status.vms.iter().filter(|vm| vm.vm == self.vm).collect();
        if vms.is_empty() && events.is_empty() {
            return Err(Failure::NotFound(unknown(&self.vm, &status)));
        }
        let of_events = events.iter().map(|event| event.device.clone());
        // A change has none.
        let of_events = of_events.filter(|device| self.source.is_offline() && !device.is_empty());
        let devices: BTreeSet<String> = vms.iter().map(|vm| vm.device.clone()).chain(of_events).collect();
        for device in &devices {
            let of_device = self.events(since, None, Some(device))?;
            events.extend(of_device.into_iter().filter(|event| event.vm.is_none()));
        }
        let answer = why::Answer::of(&self.vm, &status, &events, (since, now));
        output::line(&match form {
            Form::Table | Form::Wide | Form::Csv => answer.in_words(),
            Form::Json | Form::Jsonl => rows::one(&answer.told()),
        });
        Ok(())
    }

    /// Returns all events since then, page by page.
    fn events(&self, since: u64, vm: Option<&str>, device: Option<&str>) -> Result<Vec<Event>, Failure> {
        let (mut events, mut after) = (Vec::new(), 0);
        loop {
            let reply: Events = self.source.get(&Request::Events {
                since: Some(since),
                until: None,
                after: Some(after),
                vm: vm.map(str::to_owned),
                device: device.map(str::to_owned),
                kind: None,
                limit: None,
            })?;
            events.extend(reply.events);
            after = reply.last;
            if !reply.more {
                return Ok(events);
            }
        }
    }
}
