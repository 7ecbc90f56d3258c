//! Real-time priority for stations and for the server's thread, where the kernel allows it.
//!
//! A trial measures how the link is divided, and not how long a sender waits for a CPU beside other programs. All senders together
//! use less than a CPU.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Returns a command that runs a program with this priority.
pub(super) fn command(program: &str) -> Command {
    if !is_allowed() {
        return Command::new(program);
    }
    let mut command = Command::new("chrt");
    command.args(["--rr", "1", program]);
    command
}

/// Gives this thread, and those that it starts, this priority.
pub(super) fn raise() {
    if is_allowed() {
        let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
        succeeds(Command::new("chrt").args(["--rr", "--pid", "1"]).arg(thread));
    }
}

/// Whether the kernel allows it.
fn is_allowed() -> bool {
    static IS_ALLOWED: OnceLock<bool> = OnceLock::new();
    *IS_ALLOWED.get_or_init(|| succeeds(Command::new("chrt").args(["--rr", "1", "true"])))
}

fn succeeds(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
