//! Tells others of events: a program, or a URL. One at a time, on a thread of its own, and no more often than the host file says.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use sluice_config::{Alert, AlertTo};
use sluice_observe::event::Event;

use crate::state::time::Time;

/// Maximum time for one alert.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between looks whether a program has ended.
const LOOK: Duration = Duration::from_millis(20);
/// Maximum number of queued alerts.
const QUEUE_MAX: usize = 64;
/// The class for all events whose class has no table.
const ALL: &str = "all";

/// An alert to be sent.
struct Outgoing {
    to: AlertTo,
    body: String,
}

/// Alerts of one class so far.
#[derive(Debug, Default)]
struct Class {
    last: Option<Time>,
    /// Events that were not told of since then.
    suppressed: u64,
}

/// The recipients, with counts of their alerts.
pub(super) struct Alerts {
    wanted: BTreeMap<String, Alert>,
    classes: BTreeMap<String, Class>,
    queue: SyncSender<Outgoing>,
}

impl Alerts {
    /// Starts the thread that sends.
    pub(super) fn start() -> std::io::Result<Alerts> {
        let (queue, inbox) = sync_channel(QUEUE_MAX);
        thread::Builder::new().name("alerts".to_owned()).spawn(move || send_all(&inbox))?;
        Ok(Alerts { wanted: BTreeMap::new(), classes: BTreeMap::new(), queue })
    }

    /// Replaces the recipients, by class.
    pub(super) fn set(&mut self, wanted: BTreeMap<String, Alert>) {
        self.wanted = wanted;
    }

    /// Tells of an event, unless its class was told of too recently.
    pub(super) fn tell(&mut self, event: &Event, now: Time) {
        let name = event.kind.name();
        let Some(alert) = self.wanted.get(name).or_else(|| self.wanted.get(ALL)) else { return };
        let class = self.classes.entry(alert.class.clone()).or_default();
        // A clock that was set back does not silence alerts.
        let is_due = class.last.is_none_or(|last| now < last || now.from(last) >= alert.every);
        if !is_due {
            class.suppressed += 1;
            return;
        }
        let mut body = serde_json::to_value(event).expect("our own types have string keys");
        body["text"] = event.in_words().into();
        body["suppressed"] = Value::from(class.suppressed);
        let queued = self.queue.try_send(Outgoing { to: alert.to.clone(), body: body.to_string() });
        match queued {
            Ok(()) => *class = Class { last: Some(now), suppressed: 0 },
            Err(_) => {
                class.suppressed += 1;
                tracing::warn!(
                    kind = name,
                    "Alert delayed until the next event of its class: earlier ones still wait to be sent"
                );
            }
        }
    }
}

fn send_all(inbox: &Receiver<Outgoing>) {
    while let Ok(Outgoing { to, body }) = inbox.recv() {
        let (sent, to) = match &to {
            AlertTo::Command(program) => (run(program, &body, TIMEOUT), program.display().to_string()),
            AlertTo::Webhook(url) => (post(url, &body), url.clone()),
        };
        if let Err(error) = sent {
            tracing::error!(to, error, "Alert failed");
        }
    }
}

/// Runs a program with `body` on its standard input. Ends it, with the programs that it has started, if it takes too long.
fn run(program: &Path, body: &str, timeout: Duration) -> Result<(), String> {
    let mut command = Command::new(program);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    // A body is smaller than a pipe, so this does not wait for the program. One that does not read is no failure.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(body.as_bytes()));
    let until = Instant::now() + timeout;
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(status.to_string()),
            None if Instant::now() < until => thread::sleep(LOOK),
            None => {
                let group = Pid::from_raw(child.id().cast_signed()).expect("a process has a number");
                let _ = kill_process_group(group, Signal::KILL);
                let _ = child.wait();
                return Err(format!("it did not end within {} s and was killed", timeout.as_secs()));
            }
        }
    }
}

fn post(url: &str, body: &str) -> Result<(), String> {
    let agent = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).build().new_agent();
    let sent = agent.post(url).header("Content-Type", "application/json").send(body);
    sent.map(drop).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;

    use sluice_observe::cause::Cause;
    use sluice_observe::event::{EventKind, Phase, Unit};

    use super::*;

    fn event(kind: EventKind) -> Event {
        Event {
            time: 1,
            kind,
            phase: Phase::Began,
            device: "disk".to_owned(),
            vm: None,
            volume: None,
            cause: Cause::Device,
            wanted: 1.0,
            got: 0.0,
            unit: Unit::Requests,
            seconds: 0,
            neighbours: Vec::new(),
            detail: None,
        }
    }

    fn alerts(classes: &[&str]) -> (Alerts, Receiver<Outgoing>) {
        let (queue, inbox) = sync_channel(QUEUE_MAX);
        let alert = |class: &&str| {
            let to = AlertTo::Command(format!("/{class}").into());
            ((*class).to_owned(), Alert { class: (*class).to_owned(), to, every: Duration::from_secs(60) })
        };
        let wanted = classes.iter().map(alert).collect();
        (Alerts { wanted, classes: BTreeMap::new(), queue }, inbox)
    }

    #[test]
    fn each_class_is_told_once_a_minute_with_the_number_of_events_in_between() {
        let (mut alerts, inbox) = alerts(&["down", "all"]);
        let mut told = |kind, second| {
            alerts.tell(&event(kind), Time(second));
            let sent = inbox.try_recv().ok()?;
            let body: Value = serde_json::from_str(&sent.body).unwrap();
            let AlertTo::Command(program) = sent.to else { panic!("a program") };
            Some((program.display().to_string(), body["suppressed"].as_u64().unwrap()))
        };
        assert_eq!(told(EventKind::Down, 0), Some(("/down".to_owned(), 0)));
        assert_eq!(told(EventKind::Stalled, 1), Some(("/all".to_owned(), 0)), "classes are counted apart");
        assert_eq!((told(EventKind::Down, 10), told(EventKind::Down, 59)), (None, None));
        assert_eq!(told(EventKind::Down, 60), Some(("/down".to_owned(), 2)));
        assert_eq!(told(EventKind::Down, 5), Some(("/down".to_owned(), 0)), "the clock was set back");
    }

    #[test]
    fn an_alert_that_found_no_room_silenced_its_class() {
        let (mut alerts, inbox) = alerts(&["down", "all"]);
        (0..QUEUE_MAX as u64).for_each(|minute| alerts.tell(&event(EventKind::Down), Time(60 * minute)));
        alerts.tell(&event(EventKind::Stalled), Time(10_000));
        assert_eq!(inbox.try_iter().count(), QUEUE_MAX, "only those of class down");
        alerts.tell(&event(EventKind::Stalled), Time(10_001));
        let body: Value = serde_json::from_str(&inbox.try_recv().expect("it is due").body).unwrap();
        assert_eq!(body["suppressed"], 1);
    }

    #[test]
    fn without_a_table_nobody_is_told() {
        let (mut alerts, inbox) = alerts(&["latency"]);
        alerts.tell(&event(EventKind::Down), Time(0));
        assert!(inbox.try_recv().is_err());
    }

    #[test]
    fn a_program_gets_the_event_and_its_failure_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let (program, out) = (folder.path().join("alert"), folder.path().join("out"));
        let script = |text: String| {
            std::fs::write(&program, text).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        script(format!("#!/bin/sh\ncat > {}\n", out.display()));
        run(&program, "{\"kind\":\"down\"}", TIMEOUT).unwrap();
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "{\"kind\":\"down\"}");
        script("#!/bin/sh\nexit 3\n".to_owned());
        assert!(run(&program, "x", TIMEOUT).unwrap_err().contains('3'));
        assert!(run(Path::new("/does/not/exist"), "x", TIMEOUT).is_err());
    }

    #[test]
    fn a_program_that_hung_left_the_programs_that_it_had_started() {
        let folder = tempfile::tempdir().unwrap();
        let (program, line) = (folder.path().join("alert"), folder.path().join("line"));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &line,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        // Both keep the line open, and end only if they are killed.
        let script = format!("#!/bin/sh\nexec 3>{}\nsleep 120 &\nsleep 120\n", line.display());
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (end, ended) = sync_channel(1);
        thread::spawn(move || end.send(std::fs::read(line).unwrap()));
        assert!(run(&program, "x", Duration::from_millis(200)).unwrap_err().contains("was killed"));
        let read = ended.recv_timeout(Duration::from_secs(60));
        assert_eq!(read.unwrap(), b"", "the line has an end, because nobody has it open any more");
    }

    #[test]
    fn a_url_gets_the_event_by_post() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = String::new();
            let mut buffer = [0; 1024];
            while !seen.ends_with("{\"a\":1}") {
                let read = stream.read(&mut buffer).unwrap();
                seen += &String::from_utf8_lossy(&buffer[..read]);
            }
            stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").unwrap();
            seen
        });
        post(&url, "{\"a\":1}").unwrap();
        let seen = server.join().unwrap();
        assert!(
            seen.starts_with("POST /hook ") && seen.to_lowercase().contains("content-type: application/json"),
            "{seen}"
        );
    }
}
