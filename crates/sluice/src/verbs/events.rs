//! `sluice events`

use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use sluice_api::VERSION;
use sluice_api::event::{self, Event, EventKind};
use sluice_api::list::Names;
use sluice_daemon::failure::Failure;
use sluice_daemon::state::time::Time;

use crate::control::Request;
use crate::control::moment::{Moment, period};
use crate::control::record::Source;
use crate::output::rows::{self, Form};
use crate::output::{self, is_closed};
use crate::show::events;

/// Pause between questions with --follow.
const PAUSE: Duration = Duration::from_secs(1);
/// Events in one reply while they are followed.
const PAGE: usize = 1000;

/// List what happened to promises, devices and volumes, and why, and who changed what.
///
/// An event begins when a promise is broken, a device is too slow, stalls or fails, or a volume is not served; it ends when the
/// problem has ended. A change says who made it, what was in force before and after, until when, why, and which command undoes it;
/// `--kind change` lists changes, starts and ends of the daemon alone. Events survive restarts if the daemon has a state directory, and are read there while it does not run. At most the latest 100,000 are kept.
#[derive(Args)]
pub(crate) struct Events {
    /// Wait for further events, and show them as they come.
    #[arg(short, long, conflicts_with = "until")]
    follow: bool,
    /// Only events since then: 2h, 08:00, "yesterday 08:00", today, or a date.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    since: Option<Moment>,
    /// Only events until then.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    until: Option<Moment>,
    /// Only events of this VM.
    #[arg(long)]
    vm: Option<String>,
    /// Only events of this device.
    #[arg(long)]
    device: Option<String>,
    /// Only events of this kind: reservation, latency, capacity, overcommitted, latency_too_low, pool, stalled, down, held_back,
    /// out_of_service, link_down, restarted, refused, queue_stopped, no_space, errors, source_shortened, server_away, low_space, client_lost; or change for all of
    /// changed, reset, expired, attached, detached, resized, applied, loss_accepted, taken_over, reload_refused, role_refused, started, stopped,
    /// killed.
    #[arg(long)]
    kind: Option<String>,
    /// The latest ones, at most this many, and at most 10,000.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 1000)]
    limit: usize,
    #[command(flatten)]
    source: Source,
}

impl Events {
    pub(crate) fn run(self, form: Form) -> Result<(), Failure> {
        if let Some(kind) = self.kind.as_deref().filter(|kind| EventKind::asked(kind).is_empty()) {
            let known: Vec<&str> = EventKind::ALL.iter().map(|kind| kind.name()).collect();
            return Err(Failure::NotFound(format!("There is no kind {kind}; there are change, {}", known.join(", "))));
        }
        let event::Events { events: found, mut more, mut last, .. } = self.source.get(&self.request(None))?;
        if found.is_empty() {
            self.check_names()?;
        }
        if more && self.limit > 0 {
            output::message(format_args!(
                "Only the latest {} events are shown; -n shows more, and --since or --vm fewer",
                found.len()
            ));
        }
        // There is nothing to follow without a daemon.
        if !self.follow || self.source.is_offline() {
            output::line(&match form {
                Form::Table | Form::Wide => events::table(&found, form == Form::Wide, output::width()),
                Form::Json => {
                    format!("{{\"ok\":true,\"version\":{VERSION},\"events\":{},\"more\":{more}}}", rows::one(&found))
                }
                Form::Jsonl | Form::Csv => rows::of_programs(form, "events", &found),
            });
            return Ok(());
        }
        found.iter().for_each(|event| print(form, event));
        more = false;
        while !is_closed() {
            if !more {
                sleep(PAUSE);
            }
            // A daemon that restarts is asked again; its events go on.
            let reply: event::Events = match self.source.daemon().get(&self.request(Some(last))) {
                Err(Failure::Unreachable(_)) => continue,
                reply => reply?,
            };
            (last, more) = (reply.last, reply.more);
            reply.events.iter().for_each(|event| print(form, event));
        }
        Ok(())
    }

    /// Checks that there is the VM or device of which no events were found. One that is not there any more may have earlier events.
    fn check_names(&self) -> Result<(), Failure> {
        let names: Names =
            if self.source.is_offline() { Names::default() } else { self.source.get(&Request::Names)? };
        let vms: Vec<&str> = names.vms.iter().map(|vm| &*vm.vm).collect();
        let devices: Vec<&str> = names.devices.iter().map(|device| &*device.device).collect();
        let asked = [("VM", &self.vm, vms), ("device", &self.device, devices)];
        for (what, name, known) in asked {
            let Some(name) = name.as_deref().filter(|name| !known.contains(name)) else { continue };
            let of = |asked: &str| (what == asked).then(|| name.to_owned());
            let (vm, device) = (of("VM"), of("device"));
            let (since, until, after, kind) = (None, None, None, None);
            let any: event::Events =
                self.source.get(&Request::Events { since, until, after, vm, device, kind, limit: Some(1) })?;
            if any.events.is_empty() {
                let known = if known.is_empty() { String::new() } else { format!("; there are {}", known.join(", ")) };
                return Err(Failure::NotFound(format!("There is no {what} {name}, and no event of one{known}")));
            }
        }
        Ok(())
    }

    fn request(&self, after: Option<u64>) -> Request {
        let (since, until) = period(self.since, self.until, Time::now());
        Request::Events {
            since: if after.is_none() { since } else { None },
            until,
            after,
            vm: self.vm.clone(),
            device: self.device.clone(),
            kind: self.kind.clone(),
            limit: Some(if after.is_none() { self.limit } else { PAGE }),
        }
    }
}

/// Prints one event while they are followed.
fn print(form: Form, event: &Event) {
    output::line(&match form {
        Form::Json | Form::Jsonl => rows::one(event),
        Form::Table | Form::Wide => events::lines(event, output::width()),
        Form::Csv => sluice_daemon::explain::sentence(event),
    });
}
