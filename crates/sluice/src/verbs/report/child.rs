//! Programs that run for a part of a report.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Time after which a program is taken for hung: the longest answers take seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a program printed.
pub(super) enum Printed {
    Out {
        text: String,
        errors: Option<String>,
    },
    /// It did not end, or could not be started.
    Hung(String),
}

/// Runs a program to its end. One that waits for a hung disk or daemon is killed, and not waited for: it ends when the disk does.
pub(super) fn run(program: &str, arguments: impl IntoIterator<Item = OsString>) -> Printed {
    let mut command = Command::new(program);
    command.arg0("sluice").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => return Printed::Out { text: String::new(), errors: None },
        Err(error) => return Printed::Hung(format!("cannot be started: {error}")),
    };
    let pid = Pid::from_child(&child);
    let (sender, ended) = channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    match ended.recv_timeout(TIMEOUT) {
        Ok(Ok(Output { stdout, stderr, .. })) => {
            let errors = String::from_utf8_lossy(&stderr).trim().to_owned();
            let text = String::from_utf8_lossy(&stdout).into_owned();
            Printed::Out { text, errors: (!errors.is_empty()).then_some(errors) }
        }
        Ok(Err(error)) => Printed::Hung(format!("its output cannot be read: {error}")),
        Err(_) => {
            let _ = kill_process(pid, Signal::KILL);
            Printed::Hung(format!("it did not end within {} s and was killed", TIMEOUT.as_secs()))
        }
    }
}
