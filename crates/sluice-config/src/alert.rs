//! `[alert.CLASS]`: the recipient of events of a class.

use core::time::Duration;
use std::path::PathBuf;

use crate::reader::Reader;
use crate::secret::only_host;

/// Classes of events, and `all` for every class without a table of its own.
pub const ALERT_CLASSES: [&str; 21] = [
    "all",
    "reservation",
    "latency",
    "capacity",
    "overcommitted",
    "latency_too_low",
    "pool",
    "stalled",
    "down",
    "held_back",
    "out_of_service",
    "link_down",
    "restarted",
    "refused",
    "queue_stopped",
    "no_space",
    "errors",
    "source_shortened",
    "server_away",
    "low_space",
    "client_lost",
];
const DEFAULT_EVERY: Duration = Duration::from_secs(60);

/// A recipient of the events of one class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// One of [`ALERT_CLASSES`].
    pub class: String,
    pub to: AlertTo,
    /// Minimum time between two alerts of this class. Those in between are counted in the next.
    pub every: Duration,
}

/// Address of a recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlertTo {
    /// A program, which gets the event as JSON on its standard input.
    Command(PathBuf),
    /// A URL, to which the event is posted as JSON.
    Webhook(String),
}

/// For the log and for replies, so without secrets.
impl core::fmt::Display for AlertTo {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AlertTo::Command(program) => program.display().fmt(f),
            AlertTo::Webhook(url) => f.write_str(&only_host(url)),
        }
    }
}

/// Reads all tables.
pub(crate) fn read(root: &Reader<'_>) -> Vec<Alert> {
    let tables = root.named("alert", ALERT_CLASSES.len(), |class| format!("Alert {class}"));
    tables.iter().filter_map(|(class, reader)| read_one(class, reader)).collect()
}

/// Whether it is an HTTP URL with a host and, if it has one, a port that exists.
fn is_url(text: &str) -> bool {
    let Some(rest) = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme)) else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let is_whole = !text.contains(|c: char| c.is_whitespace() || c.is_control());
    is_whole && !name.is_empty() && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn read_one(class: &str, reader: &Reader<'_>) -> Option<Alert> {
    if !ALERT_CLASSES.contains(&class) {
        let message = format!("{}: there is no class '{class}' of events", reader.whose);
        reader.report.error(reader.span, message, format!("classes are {}", ALERT_CLASSES.join(", ")));
        return None;
    }
    let every = reader.time("every").unwrap_or(DEFAULT_EVERY);
    let (command, webhook) = (reader.path("command"), reader.text("webhook"));
    if let Some(webhook) = webhook
        && !is_url(webhook)
    {
        reader.refuse("webhook", "not a URL", "write for example \"https://alerts.example.org/hook\"");
        return None;
    }
    let to = match (command, webhook) {
        (Some(command), None) => AlertTo::Command(command),
        (None, Some(webhook)) => AlertTo::Webhook(webhook.to_owned()),
        (Some(_), Some(_)) => {
            reader.refuse("webhook", "besides a command", "state command or webhook");
            return None;
        }
        (None, None) => {
            let hint = "add command = \"/usr/local/bin/alert\" or webhook = \"https://alerts.example.org/hook\"";
            // A wrong value has been reported already.
            if reader.node("command").is_none() && reader.node("webhook").is_none() {
                let message = format!("{} states neither command nor webhook", reader.whose);
                reader.report.error(reader.span, message, hint.to_owned());
            }
            return None;
        }
    };
    Some(Alert { class: class.to_owned(), to, every })
}

#[cfg(test)]
mod tests {
    use super::is_url;

    #[test]
    fn a_url_without_a_host_or_with_a_port_that_does_not_exist_was_accepted() {
        for good in
            ["http://h", "https://u:p@h.example:8443/x?y#z", "http://[::1]:80/x", "http://[::1]/x", "http://10.0.0.1/"]
        {
            assert!(is_url(good), "{good}");
        }
        for bad in [
            "http://",
            "http:///x",
            "http://h:port/x",
            "http://h:99999/x",
            "http://h/x y",
            "http://h/\n",
            "ftp://h",
            "h",
        ] {
            assert!(!is_url(bad), "{bad}");
        }
    }
}
