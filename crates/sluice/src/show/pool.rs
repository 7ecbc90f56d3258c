//! The pool of a device: what its hosts do.

use std::time::Duration;

use sluice_api::amount::{rate, time};
use sluice_api::status::{DevicePool, PoolHost};

use super::{NOTHING, shown};
use crate::output;

/// Names and values of the state of a pool.
pub(crate) fn pairs(pool: &DevicePool) -> Vec<(&'static str, String)> {
    let DevicePool { meeting, host, window_requests, latency_us, .. } = pool;
    let latency = shown(latency_us.map(|us| us as f64), time);
    let known = || Some((pool.part_iops?, pool.iops?, pool.price_iops?));
    let part = match known() {
        Some((part, all, price)) => {
            format!(
                "due {} of the {} iops that all hosts get; a unit of weight gets {price:.2} iops",
                rate(part),
                rate(all)
            )
        }
        None => "that of one host, because this host does not see what the others do".to_owned(),
    };
    vec![
        ("Pool", format!("host {host}; hosts meet at {meeting}")),
        ("Pool window", format!("{window_requests:.1} requests of all hosts; they take {latency}")),
        ("Pool part", part),
        ("Pool claim", format!("{} iops, which no other host may promise", rate(pool.reserved_iops))),
    ]
}

/// In one line.
pub(crate) fn line(pool: &DevicePool) -> String {
    let latency = shown(pool.latency_us.map(|us| us as f64), time);
    let fresh = pool.hosts.iter().filter(|host| host.is_fresh).count();
    match (pool.part_iops, pool.iops) {
        (Some(part), Some(all)) => format!(
            "pool: due {} of {} iops  {fresh} of {} hosts  window {:.1} requests  latency {latency}",
            rate(part),
            rate(all),
            pool.hosts.len(),
            pool.window_requests
        ),
        _ => "pool: the other hosts are not known".to_owned(),
    }
}

/// The table of the hosts that have been seen.
pub(crate) fn hosts(pool: &DevicePool) -> String {
    let mut table = output::table(&["HOST", "SEEN", "DUE", "IOPS", "LATENCY"]);
    for host in &pool.hosts {
        let (name, seen) = if host.host == pool.host {
            (format!("{} (this)", host.host), NOTHING.to_owned())
        } else {
            (host.host.to_string(), age(host))
        };
        let latency = shown(host.latency_us.map(|us| us as f64), time);
        let iops = if host.is_fresh || host.host == pool.host { rate(host.iops) } else { NOTHING.to_owned() };
        table.add_row([name, seen, rate(host.part_iops), iops, latency]);
    }
    table.to_string()
}

fn age(host: &PoolHost) -> String {
    let ago = format!("{:.1} s ago", Duration::from_millis(host.age_ms).as_secs_f64());
    if host.is_fresh { ago } else { format!("{ago}: SILENT") }
}
