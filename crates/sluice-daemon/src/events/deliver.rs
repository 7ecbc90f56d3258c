//! How an alert is delivered: a program is started, or a URL is posted to.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use sluice_config::AlertTo;
use sluice_config::secret::without_urls;

use crate::launcher::{self, Question};

/// Maximum time for one alert.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between looks whether a program has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Delivers an alert, by the launcher if this process has one. Returns the error in words.
pub(super) fn deliver(to: &AlertTo, body: &str) -> Result<(), String> {
    let question = match to {
        AlertTo::Command(program) => Question::Program(program.clone(), body.to_owned()),
        AlertTo::Webhook(url) => Question::Webhook(url.clone(), body.to_owned()),
    };
    let sent = match (launcher::ask_for(question), to) {
        (Some(done), _) => done.map(drop),
        (None, AlertTo::Command(program)) => run(program, body, TIMEOUT),
        (None, AlertTo::Webhook(url)) => post(url, body),
    };
    // An error may name the URL.
    sent.map_err(|error| if matches!(to, AlertTo::Webhook(_)) { without_urls(&error) } else { error })
}

/// Runs a program with `body` on its standard input. Programs that it has started and that are still in its process group are
/// killed when it has ended: each alert would leave others. If it takes too long it is killed itself.
pub(crate) fn run(program: &Path, body: &str, timeout: Duration) -> Result<(), String> {
    let mut command = Command::new(program);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    // A body is smaller than a pipe, so this does not wait for the program. One that does not read is no failure.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(body.as_bytes()));
    let until = Instant::now() + timeout;
    let group = Pid::from_raw(child.id().cast_signed()).expect("a process has a number");
    // It is looked at and not waited for: until then its number, which is that of its group, is given to nothing else.
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let has_ended = loop {
        match waitid(WaitId::Pid(group), look) {
            Ok(None) if Instant::now() < until => thread::sleep(LOOK),
            looked => break !matches!(looked, Ok(None)),
        }
    };
    let _ = kill_process_group(group, Signal::KILL);
    let status = child.wait().map_err(|error| error.to_string())?;
    match has_ended {
        true if status.success() => Ok(()),
        true => Err(status.to_string()),
        false => Err(format!("it did not end within {} s and was killed", timeout.as_secs())),
    }
}

/// Posts `body` to a URL. Returns the error in words.
pub(crate) fn post(url: &str, body: &str) -> Result<(), String> {
    // A redirected POST becomes a GET without the event, so an answer to that says nothing.
    let config =
        ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).max_redirects(0).max_redirects_will_error(false);
    let sent = config.build().new_agent().post(url).header("Content-Type", "application/json").send(body);
    let status = sent.map_err(|error| error.to_string())?.status();
    match status.is_success() {
        true => Ok(()),
        false => Err(format!("the server answered {status}; state the URL that it redirects to")),
    }
}
