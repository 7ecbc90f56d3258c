//! `sluice takeover VM/VOLUME`

use clap::Args;
use sluice_api::amount::span;
use sluice_api::change::Takeover as Answer;
use sluice_daemon::failure::Failure;
use sluice_daemon::state::time::Time;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::output::{self, Format};

/// Take an RBD image over from the client that has its lock.
///
/// An image has one writer, which has its lock. A volume whose image another client has is out of service. Without --from this command
/// says who that is: its address, and its host and since when if it is a daemon of Sluicegate. With --from it locks that client out of the
/// cluster for a year, takes its lock, and serves the volume. What the client still sends has no effect, also if it was frozen and wakes up
/// later; all its images fail, which are those of one VM if it is a daemon of Sluicegate.
#[derive(Args)]
pub(crate) struct Takeover {
    /// The volume, for example db1/root.
    #[arg(value_name = "VM/VOLUME")]
    target: String,
    /// Address of the client that is locked out, as the command without it says.
    #[arg(long, value_name = "ADDRESS")]
    from: Option<String>,
    #[command(flatten)]
    daemon: Daemon,
}

impl Takeover {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        let Takeover { target, from, daemon } = self;
        let answer: Answer = daemon.get(&Request::Takeover { target, from })?;
        match format {
            Format::Json => output::json(&answer),
            Format::Table => output::line(&in_words(&answer, Time::now().0)),
        }
        Ok(())
    }
}

fn in_words(answer: &Answer, now: u64) -> String {
    let Answer { target, address, host, since, taken } = answer;
    if *taken {
        return format!("{target} is served; {address} is locked out of the cluster");
    }
    let owner = match (host, since) {
        (Some(host), Some(since)) => {
            let time = span(now.saturating_sub(*since));
            format!("has been locked for {time} by the daemon of host {host}, as {address}")
        }
        _ => format!("is locked by {address}, which is no daemon of Sluicegate: since when is not known"),
    };
    format!(
        "The image of {target} {owner}.\nTo take it over and lock that client out: sluice takeover {target} --from {address}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_named_with_the_command_that_takes_over() {
        let answer = Answer {
            target: "db1/root".to_owned(),
            address: "10.0.0.3:0/77".to_owned(),
            host: Some("kvm3".to_owned()),
            since: Some(1000),
            taken: false,
        };
        let text = in_words(&answer, 1000 + 7200);
        assert!(text.contains("has been locked for 2 h by the daemon of host kvm3, as 10.0.0.3:0/77."), "{text}");
        assert!(text.ends_with("sluice takeover db1/root --from 10.0.0.3:0/77"), "{text}");
        let text = in_words(&Answer { host: None, since: None, ..answer.clone() }, 0);
        assert!(text.contains("no daemon of Sluicegate"), "{text}");
        assert!(in_words(&Answer { taken: true, ..answer }, 0).starts_with("db1/root is served"));
    }
}
