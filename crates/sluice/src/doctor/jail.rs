//! Whether the daemon can seal itself, and has.

use sluice_daemon::findings::{Finding, Level};
use sluice_daemon::jail;

use super::{Subject, field};

pub(super) const NAME: &str = "jail";

pub(super) fn run(subject: &Subject) -> Vec<Finding> {
    let mut found = if subject.is_live() { jail::findings(subject.host.as_ref()) } else { Vec::new() };
    if let Some(daemon) = subject.daemon {
        let status = subject.read(&format!("proc/{daemon}/status")).unwrap_or_default();
        let is_so = |name: &str, value: &str| field(&status, name) == Some(value);
        if !is_so("NoNewPrivs", "1") || !is_so("Seccomp", "2") {
            let text = format!("The running daemon, process {daemon}, is not sealed: its log says why");
            found
                .push(Finding::new(Level::Warning, NAME, "", text).fix("restart it, if it is older than this program"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fake, lines};
    use super::*;

    #[test]
    fn a_daemon_that_is_not_sealed_is_found() {
        let fake = Fake::new();
        let sealed = "Name:\tsluiced\nNoNewPrivs:\t1\nSeccomp:\t2\n";
        fake.write("proc/7/comm", "sluiced\n").write("proc/7/status", sealed);
        assert_eq!(lines(&run(&fake.subject(""))), [""; 0]);
        fake.write("proc/7/status", &sealed.replace("Seccomp:\t2", "Seccomp:\t0"));
        let found = lines(&run(&fake.subject("")));
        assert!(found[0].contains("process 7, is not sealed"), "{found:?}");
    }
}
