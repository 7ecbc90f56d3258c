//! `sluice pool create|status|forget`

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use sluice_config::Meeting;
use sluice_config::meeting::{CEPH_CONF, CEPH_USER};
use sluice_console::table::table;
use sluice_daemon::failure::Failure;
use sluice_daemon::pool::manage::{self, Creation, Look};
use sluice_pool::block::{HOSTS_MAX, Unreadable};
use sluice_pool::exchange::requests;
use sluice_sched::units::StatedIops;

use crate::output::{self, Format};

/// Prepare and look at the place where hosts meet that share storage.
///
/// Hosts share storage, such as an array, a Ceph pool or an NFS server. A file, a block device or objects on it are the place where their
/// daemons meet: each writes a block of its own there, and reads those of the others. `meeting` in `[device.NAME.pool]` of each host file names it.
#[derive(Args)]
pub(crate) struct Pool {
    #[command(subcommand)]
    what: What,
}

/// The place where hosts meet.
#[derive(Args)]
struct Place {
    /// A file on the storage that hosts share, a block device of it, or objects of a Ceph cluster, such as `rados:vms/sluice`.
    #[arg(value_name = "PLACE")]
    text: String,
    /// Configuration file of the cluster.
    #[arg(long, value_name = "FILE", default_value = CEPH_CONF)]
    ceph_conf: PathBuf,
    /// User at the cluster, without `client.` in front.
    #[arg(long, value_name = "NAME", default_value = CEPH_USER)]
    ceph_user: String,
}

#[derive(Subcommand)]
enum What {
    Create(Create),
    Status(Status),
    Forget(Forget),
}

/// Write the place where hosts meet.
///
/// A file that does not exist is made, 772 KiB long, and so are objects. A block device needs that size and holds nothing else. Every host must reach a file
/// with direct I/O.
#[derive(Args)]
struct Create {
    #[command(flatten)]
    place: Place,
    /// Number of hosts; each has a number from 1 to this one in its host file.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(HOSTS_MAX)))]
    hosts: u8,
    /// Sustained worst-case throughput of the storage for all hosts together, for example "20000 iops@8KiB".
    #[arg(long, value_name = "RATE")]
    capacity: StatedIops,
    /// Changes capacity and number of hosts of a pool that is there. What hosts have reserved is kept.
    #[arg(long, conflicts_with = "force")]
    keep: bool,
    /// Overwrites what is there, also a pool.
    #[arg(long)]
    force: bool,
}

/// Show the hosts of a pool, and what they have reserved. Takes 4 seconds, in which every running daemon writes.
#[derive(Args)]
struct Status {
    #[command(flatten)]
    place: Place,
}

/// Remove what a host that is gone has reserved, so that others may reserve it. Refused while its daemon writes there.
///
/// A daemon whose storage hangs does not write either: forget a host only if it is off, or serves no VM of the pool.
#[derive(Args)]
struct Forget {
    #[command(flatten)]
    place: Place,
    /// Number of the host.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(HOSTS_MAX)))]
    host: u8,
}

impl Pool {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        match self.what {
            What::Create(create) => create.run(format),
            What::Status(Status { place }) => {
                let look = manage::look(&place.meeting()?)?;
                match format {
                    Format::Json => output::json(&document(&look)),
                    Format::Table => print(&look),
                }
                Ok(())
            }
            What::Forget(Forget { place, host }) => {
                manage::forget(&place.meeting()?, host)?;
                match format {
                    Format::Json => output::json(&json!({ "ok": true, "host": host })),
                    Format::Table => {
                        output::line(&format!("Host {host} is forgotten: others may reserve what it had."))
                    }
                }
                Ok(())
            }
        }
    }
}

impl Place {
    fn meeting(&self) -> Result<Meeting, Failure> {
        Meeting::of(&self.text, &self.ceph_conf, &self.ceph_user).map_err(|error| Failure::Run(error.into()))
    }
}

impl Create {
    fn run(self, format: Format) -> Result<(), Failure> {
        let Create { place, hosts, capacity, keep, force } = self;
        let meeting = place.meeting()?;
        let header = manage::create(&meeting, &Creation { hosts, capacity, keep, force })?;
        let rate = manage::capacity(&header);
        for warning in manage::warnings(&meeting) {
            output::message(format_args!("warning: {warning}"));
        }
        match format {
            Format::Json => output::json(&json!({
                "ok": true,
                "pool": format!("{:016x}", header.pool),
                "hosts": hosts,
                "capacity_iops": header.milli_iops as f64 / 1000.0,
                "request_bytes": header.request_bytes,
            })),
            Format::Table => output::line(&format!(
                "{meeting} is the place where {hosts} hosts share {rate}. In the host file of each: meeting = \"{}\" and a host of its own from \
                 1 to {hosts}{}.",
                meeting
                    .file()
                    .and_then(|path| std::path::absolute(path).ok())
                    .map_or_else(|| meeting.to_string(), |path| path.display().to_string()),
                meeting.keys_of_device()
            )),
        }
        Ok(())
    }
}

fn document(look: &Look) -> serde_json::Value {
    let hosts = look.hosts.iter().map(|host| {
        let (usage, claim) = (host.usage.as_ref().ok(), look.claims.of(host.host));
        json!({
            "host": host.host,
            "name": claim.map(|claim| &claim.name),
            "runs": host.runs,
            "unreadable": host.usage.as_ref().err().or(unreadable(look, host.host)).map(ToString::to_string),
            "iops": usage.map(|usage| requests(usage.cost)),
            "latency_us": usage.filter(|usage| usage.latency > 0).map(|usage| usage.latency / 1000),
            "window_requests": usage.map(|usage| requests(usage.window)),
            "reserved_iops": claim.map_or(0.0, |claim| requests(claim.reserved)),
            "vms": claim.map_or(0, |claim| claim.vms),
        })
    });
    json!({
        "pool": format!("{:016x}", look.header.pool),
        "capacity_iops": look.header.milli_iops as f64 / 1000.0,
        "request_bytes": look.header.request_bytes,
        "reserved_iops": requests(look.claims.sum()),
        "hosts": hosts.collect::<Vec<_>>(),
    })
}

/// Why a claim of a host cannot be read, if one cannot.
fn unreadable(look: &Look, host: u8) -> Option<&Unreadable> {
    look.claims.unreadable.iter().find(|(other, _)| *other == host).map(|(_, why)| why)
}

fn print(look: &Look) {
    output::line(&format!(
        "Capacity {}, of which {:.0} iops are reserved by {} hosts.",
        manage::capacity(&look.header),
        requests(look.claims.sum()),
        look.claims.held.iter().filter(|claim| claim.reserved > 0).count()
    ));
    let mut rows = table(&["HOST", "NAME", "STATE", "IOPS", "LATENCY", "RESERVED", "VMS"]);
    for host in &look.hosts {
        let (usage, claim) = (host.usage.as_ref().ok().filter(|_| host.runs), look.claims.of(host.host));
        let state = match (&host.usage, host.runs) {
            (Ok(_), _) if unreadable(look, host.host).is_some() => "a claim of it cannot be read".to_owned(),
            (Ok(_), true) => "runs".to_owned(),
            (Ok(_), false) => "silent".to_owned(),
            (Err(Unreadable::Empty), _) => "never seen".to_owned(),
            (Err(reason), _) => format!("its block {reason}"),
        };
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        rows.add_row([
            host.host.to_string(),
            or_none(claim.map(|claim| claim.name.clone())),
            state,
            or_none(usage.map(|usage| format!("{:.0}", requests(usage.cost)))),
            or_none(
                usage.filter(|usage| usage.latency > 0).map(|usage| format!("{:.1} ms", usage.latency as f64 / 1e6)),
            ),
            or_none(claim.map(|claim| format!("{:.0} iops", requests(claim.reserved)))),
            or_none(claim.map(|claim| claim.vms.to_string())),
        ]);
    }
    output::line(&rows.to_string());
}
