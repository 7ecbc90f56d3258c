//! VMs and volumes as tables: what was promised beside what there is.

use serde_json::Value;

use super::promise::{cause, mark};
use super::{NOTHING, bandwidth, bits, count, is_link, operations, percent, rate, text, throughput, time};
use crate::output;

/// The table of VMs; `wide` has more columns.
pub(crate) fn table(vms: &[Value], wide: bool) -> String {
    rows(vms, "VM", |vm| text(&vm["vm"]).to_owned(), wide)
}

/// The table of volumes; `wide` has more columns.
pub(crate) fn volumes(volumes: &[Value], wide: bool) -> String {
    rows(volumes, "VOLUME", |volume| format!("{}/{}", text(&volume["vm"]), text(&volume["volume"])), wide)
}

fn rows(objects: &[Value], kind: &str, name: impl Fn(&Value) -> String, wide: bool) -> String {
    let mut header = vec![
        kind,
        "DEVICE",
        "PROMISES",
        "RESERVED",
        "LIMIT",
        "WEIGHT",
        "IOPS",
        "MIB/S",
        "P50",
        "P99",
        "OUTSTANDING",
        "FAILED",
        "HELD BY",
    ];
    if wide {
        header.extend(["IOPS 1S", "P99 1S", "IOPS 1M", "P99 1M", "QUEUED FOR", "BY RESERVATION", "CLIENTS", "CPU"]);
    }
    let mut table = output::table(&header);
    for object in objects {
        let rates = &object["rates"];
        let (one, ten, minute) = (&rates["1s"], &rates["10s"], &rates["1m"]);
        let of_policy = |field| match is_link(object) {
            true => link_amount(&object["policy"], field),
            false => amount(&object["policy"], field),
        };
        let mut row = vec![
            name(object),
            text(&object["device"]).to_owned(),
            mark(&object["state"]).to_owned(),
            of_policy("reservation"),
            of_policy("limit"),
            object["policy"]["weight"].as_f64().map_or(NOTHING.to_owned(), |weight| weight.to_string()),
            operations(ten),
            throughput(ten),
            time(&ten["p50_us"]),
            time(&ten["p99_us"]),
            count(&object["outstanding"]),
            failed(object),
            object["held_by"].as_str().map_or(NOTHING, cause).to_owned(),
        ];
        if wide {
            row.extend([
                operations(one),
                time(&one["p99_us"]),
                operations(minute),
                time(&minute["p99_us"]),
                percent(&object["parts"]["backlogged_percent"]),
                percent(&object["parts"]["by_reservation_percent"]),
                count(&object["clients"]),
                percent(&object["cpu"]["used_percent"]),
            ]);
        }
        table.add_row(row);
    }
    table.to_string()
}

/// Number of failed requests; marked if they fail now.
fn failed(object: &Value) -> String {
    let of = |object: &Value| !super::list(&object["failing"]).is_empty();
    let now = of(object) || super::list(&object["volumes"]).iter().any(of);
    let count = count(&object["failed_requests"]);
    if now { format!("! {count}") } else { count }
}

/// A reservation or limit of a link.
pub(super) fn link_amount(policy: &Value, field: &str) -> String {
    let bytes = policy[format!("{field}_bytes_per_second")].as_f64();
    bytes.map_or(NOTHING.to_owned(), |bytes| bits(8.0 * bytes))
}

/// A reservation or limit: in requests, in bytes, or both.
pub(super) fn amount(policy: &Value, field: &str) -> String {
    let iops = &policy[format!("{field}_iops")];
    let bytes = &policy[format!("{field}_bytes_per_second")];
    let bytes = bytes.as_f64().map(|_| format!("{} MiB/s", bandwidth(bytes)));
    let both: Vec<String> = iops.as_f64().map(|_| rate(iops)).into_iter().chain(bytes).collect();
    if both.is_empty() { NOTHING.to_owned() } else { both.join(" ") }
}
