//! Watches the device threads, for the watchdog of the service manager.
//!
//! Two failures are told apart. A **thread** that does not answer probes is stuck: nothing in it can recover, so the watchdog is
//! not fed and the service manager restarts the daemon. A **disk** that completes nothing stalls its VMs, and a restart would
//! only make them lose their connections too. It is reported, and the thread answers as before.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sluice_api::object::ObjectId;
use sluice_api::printed::Serving;
use sluice_io::reactor::probe::{Answer, Probe, Pulse};

use crate::server::Server;

/// Maximum number of names in one part of the status.
const NAMES_MAX: usize = 3;

/// Reply of the thread that makes changes to a probe.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Device threads that do not answer.
    pub stuck: Vec<String>,
    /// Served VMs and volumes, and problems, in a line.
    pub status: String,
}

/// The watched devices, by name.
#[derive(Default)]
pub(super) struct Watch(BTreeMap<String, (Probe, Watched)>);

/// Last known state of one device.
#[derive(Debug)]
struct Watched {
    /// Time of the last answer.
    answered: Instant,
    pulse: Pulse,
    /// Time at which requests were last completed, or none were in flight.
    progress: Instant,
    is_stuck: bool,
    is_stalled: bool,
}

impl Watch {
    /// Takes the answers to the last probes, and sends new ones. A thread is stuck, and a disk stalled, after `limit`.
    pub(super) fn look(&mut self, server: &Server, limit: Duration) -> Report {
        let now = Instant::now();
        self.0.retain(|name, _| server.running().any(|device| device.name() == name));
        for device in server.running() {
            let known = self.0.entry(device.name().to_owned());
            let (probe, watched) = known.or_insert_with(|| (device.probe(), Watched::new(now)));
            let answer = probe.answer();
            watched.note(device.name(), answer, now, limit);
            if answer != Answer::Pending {
                *probe = device.probe();
            }
        }
        Report { status: self.status(server), stuck: self.named(|watched| watched.is_stuck) }
    }

    /// Returns the state in a line, for `systemctl status`: as of the last look, and with what is served now.
    pub(super) fn status(&self, server: &Server) -> String {
        status(server, &self.named(|watched| watched.is_stuck), &self.named(|watched| watched.is_stalled))
    }

    /// The devices of which `is` holds.
    fn named(&self, is: fn(&Watched) -> bool) -> Vec<String> {
        let named = self.0.iter().filter(move |(_, (_, watched))| is(watched));
        named.map(|(name, _)| name.clone()).collect()
    }
}

impl Watched {
    fn new(now: Instant) -> Watched {
        Watched { answered: now, pulse: Pulse::default(), progress: now, is_stuck: false, is_stalled: false }
    }

    fn note(&mut self, device: &str, answer: Answer, now: Instant, limit: Duration) {
        match answer {
            Answer::Pending => {}
            Answer::NotServing => (self.answered, self.progress) = (now, now),
            Answer::Pulse(pulse) => {
                if pulse.in_flight == 0 || pulse.completed != self.pulse.completed {
                    self.progress = now;
                }
                (self.answered, self.pulse) = (now, pulse);
            }
        }
        let was = (self.is_stuck, self.is_stalled);
        self.is_stuck = now.duration_since(self.answered) >= limit;
        // What a stuck thread's disk does is not known.
        self.is_stalled = !self.is_stuck && now.duration_since(self.progress) >= limit;
        let (seconds, in_flight) = (now.duration_since(self.progress).as_secs_f64(), self.pulse.in_flight);
        match (was, (self.is_stuck, self.is_stalled)) {
            ((false, _), (true, _)) => {
                tracing::error!(device, "Device thread does not respond: the watchdog is not fed")
            }
            ((true, _), (false, _)) => tracing::info!(device, "Device thread responds again"),
            ((_, false), (_, true)) => tracing::error!(
                device,
                in_flight,
                seconds,
                "Device stalled: its disk completes no request; its VMs wait, and a restart would not help"
            ),
            ((_, true), (_, false)) => tracing::info!(device, "Device completes requests again"),
            _ => {}
        }
    }
}

/// Returns the state in a line, for `systemctl status`.
fn status(server: &Server, stuck: &[String], stalled: &[String]) -> String {
    let held: Vec<String> = server.absent().held_back().map(|(name, _)| name.to_string()).collect();
    let mut status = summary(&serving(server));
    let out = server.absent().faulty().map(ToString::to_string).collect();
    for (names, what) in [(out, "out of service"), (held, "held back")] {
        status += &listed(&names, what);
    }
    let down =
        server.running().filter(|device| server.is_down(Some(device.name()))).map(|device| device.name().to_owned());
    let down: Vec<String> = down.collect();
    let devices =
        [(stuck, "does not respond"), (stalled, "is stalled: its disk completes nothing"), (&down[..], "is down")];
    for (names, what) in devices {
        names.iter().for_each(|name| status += &format!("; device {name} {what}"));
    }
    status
}

/// Returns the numbers of what is served.
pub(super) fn serving(server: &Server) -> Serving {
    let (host, absent) = (server.host(), server.absent());
    let is_served = |name: ObjectId| !absent.is_out(&name);
    let (mut volumes, mut nics) = (0, 0);
    for (vm, spec) in &host.vms {
        volumes += spec.volumes.keys().filter(|volume| is_served(ObjectId::volume(vm, volume))).count();
        nics += spec.nics.keys().filter(|nic| is_served(ObjectId::nic(vm, nic))).count();
    }
    let (devices, uplinks, vms) = (host.devices.len(), host.uplinks.len(), host.vms.len());
    let (out_of_service, held_back) = (absent.out_of_service().count(), absent.held_back().count());
    Serving { devices, vms, volumes, uplinks, nics, out_of_service, held_back }
}

/// Returns what the daemon serves, in a line.
fn summary(serving: &Serving) -> String {
    let number = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    // A host has disks, a network or both, and what it does not have is not named.
    let both = |first: (usize, &str), second: (usize, &str)| match (first, second) {
        (first, (0, _)) => number(first.0, first.1),
        ((0, _), second) => number(second.0, second.1),
        (first, second) => format!("{} and {}", number(first.0, first.1), number(second.0, second.1)),
    };
    let served = both((serving.volumes, "volume"), (serving.nics, "NIC"));
    let on = both((serving.devices, "device"), (serving.uplinks, "uplink"));
    format!("Serving {served} of {} on {on}", number(serving.vms, "VM"))
}

/// The names of what is not served, at most [`NAMES_MAX`] of them.
fn listed(names: &[String], what: &str) -> String {
    if names.is_empty() {
        return String::new();
    }
    let shown = names[..names.len().min(NAMES_MAX)].join(", ");
    let more = names.len().saturating_sub(NAMES_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("; {what}: {shown}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Returns (stuck, stalled) after each answer; the answers arrive 5 s apart.
    fn watch(answers: &[Answer]) -> Vec<(bool, bool)> {
        let start = Instant::now();
        let mut watched = Watched::new(start);
        let states = answers.iter().enumerate().map(|(number, answer)| {
            watched.note("d", *answer, start + Duration::from_secs(5) * (number as u32 + 1), LIMIT);
            (watched.is_stuck, watched.is_stalled)
        });
        states.collect()
    }

    fn pulse(in_flight: u64, completed: u64) -> Answer {
        Answer::Pulse(Pulse { in_flight, completed })
    }

    const FINE: (bool, bool) = (false, false);
    const STUCK: (bool, bool) = (true, false);
    const STALLED: (bool, bool) = (false, true);

    #[test]
    fn the_status_names_what_is_not_served() {
        let names: Vec<String> = ["a/v", "b/v", "c/v", "d/v", "e/v"].map(str::to_owned).to_vec();
        assert_eq!(listed(&[], "held back"), "");
        assert_eq!(listed(&names[..2], "held back"), "; held back: a/v, b/v");
        assert_eq!(listed(&names, "out of service"), "; out of service: a/v, b/v, c/v and 2 more");
    }

    #[test]
    fn a_thread_that_does_not_answer_is_stuck_until_it_does() {
        let answers = [pulse(0, 0), Answer::Pending, Answer::Pending, Answer::Pending, pulse(0, 0)];
        assert_eq!(watch(&answers), [FINE, FINE, STUCK, STUCK, FINE]);
    }

    #[test]
    fn a_disk_that_completes_nothing_is_stalled_and_its_thread_is_not_stuck() {
        let answers = [pulse(3, 7), pulse(3, 7), pulse(3, 7), pulse(4, 7), pulse(4, 8), pulse(0, 12)];
        assert_eq!(watch(&answers), [FINE, FINE, STALLED, STALLED, FINE, FINE]);
    }

    #[test]
    fn a_thread_that_is_restarted_or_down_is_neither() {
        let answers = [pulse(3, 7), pulse(3, 7), Answer::NotServing, Answer::NotServing, Answer::NotServing];
        assert_eq!(watch(&answers), [FINE; 5]);
        assert_eq!(watch(&[pulse(0, 7); 5]), [FINE; 5], "an idle disk completes nothing");
    }
}
