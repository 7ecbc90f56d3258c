//! The clock source: time is read once for each iteration of a device thread.

use super::Subject;
use sluice_daemon::findings::{Finding, Level};

pub(super) const NAME: &str = "clock";

/// Clock sources that are read by a slow access to a chip.
const SLOW: [&str; 3] = ["hpet", "acpi_pm", "jiffies"];

pub(super) fn run(subject: &Subject) -> Vec<Finding> {
    let folder = "sys/devices/system/clocksource/clocksource0";
    let Some(current) = subject.read(&format!("{folder}/current_clocksource")) else { return Vec::new() };
    if !SLOW.contains(&current.as_str()) {
        return vec![Finding::new(Level::Ok, NAME, "", format!("The clock source is {current}"))];
    }
    let available = subject.read(&format!("{folder}/available_clocksource")).unwrap_or_default();
    let text = format!(
        "The clock source is {current}: each reading of the time needs a system call, which takes microseconds"
    );
    let fix = match available.split_whitespace().find(|name| !SLOW.contains(name)) {
        Some(better) => format!(
            "echo {better} > /{folder}/current_clocksource, and clocksource={better} on the kernel's command line"
        ),
        None => "the kernel has found no better one: look for 'tsc' in its log, and update the firmware".to_owned(),
    };
    vec![Finding::new(Level::Warning, NAME, "", text).fix(fix)]
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fake, lines};
    use super::*;

    #[test]
    fn a_slow_clock_source_is_found() {
        let fake = Fake::new();
        let folder = "sys/devices/system/clocksource/clocksource0";
        let source = |current: &str, available: &str| {
            fake.write(&format!("{folder}/current_clocksource"), current);
            fake.write(&format!("{folder}/available_clocksource"), available);
            run(&fake.subject(""))
        };
        assert_eq!(lines(&source("tsc\n", "tsc hpet\n")), ["Ok : The clock source is tsc"]);
        let slow = source("hpet\n", "hpet kvm-clock\n");
        assert!(
            slow[0].level == Level::Warning && slow[0].fix.as_ref().unwrap().contains("echo kvm-clock"),
            "{slow:?}"
        );
        let only = source("acpi_pm\n", "acpi_pm\n");
        assert!(only[0].fix.as_ref().unwrap().contains("no better one"), "{only:?}");
    }
}
