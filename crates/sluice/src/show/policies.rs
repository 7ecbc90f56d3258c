//! Named policies as a table.

use serde_json::Value;

use super::vms::{amount, link_amount};
use super::{NOTHING, list, text, time};
use crate::output;

/// Holders that a narrow table names; others are counted.
const NAMED: usize = 3;

/// The table of policies; `wide` names every holder and has more fields.
pub(crate) fn table(policies: &[Value], wide: bool) -> String {
    let mut header = vec!["POLICY", "RESERVATION", "LIMIT", "WEIGHT", "DEVICE", "RESERVED", "PART", "VMS", "VOLUMES"];
    if wide {
        header.extend(["READ LIMIT", "WRITE LIMIT", "BURST", "LATENCY"]);
    }
    let mut table = output::table(&header);
    for row in policies {
        let policy = &row["policy"];
        let is_link = policy.get("receive_weight").is_some();
        let amount = if is_link { link_amount } else { amount };
        let named = |key: &str| holders(list(&row[key]), if wide { usize::MAX } else { NAMED });
        let mut cells = vec![
            text(&row["policy_name"]).to_owned(),
            amount(policy, "reservation"),
            amount(policy, "limit"),
            policy["weight"].as_f64().map_or(NOTHING.to_owned(), |weight| weight.to_string()),
            text(&row["device"]).to_owned(),
            amount(row, "reserved"),
            row["reserved_percent"].as_f64().map_or(NOTHING.to_owned(), |part| format!("{part} %")),
            named("vms"),
            named("volumes"),
        ];
        if wide {
            let seconds =
                policy["burst_seconds"].as_f64().map(|seconds| format!("{} for {seconds} s", amount(policy, "burst")));
            let requests = policy["burst"].as_u64().map(|requests| requests.to_string());
            cells.extend([
                amount(policy, "read_limit"),
                amount(policy, "write_limit"),
                seconds.or(requests).unwrap_or(NOTHING.to_owned()),
                time(&policy["latency_p99_us"]),
            ]);
        }
        table.add_row(cells);
    }
    table.to_string()
}

fn holders(names: &[Value], most: usize) -> String {
    let mut shown: Vec<String> = names.iter().take(most).map(|name| text(name).to_owned()).collect();
    if names.len() > most {
        shown.push(format!("and {} more", names.len() - most));
    }
    if shown.is_empty() { NOTHING.to_owned() } else { shown.join(" ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_policy_of_a_link_is_shown_in_bits_per_second() {
        let rows = [json!({
            "policy_name": "gold", "device": "lan", "vms": [], "volumes": ["a/nic/eth1"], "reserved_percent": 10.0,
            "policy": { "reservation_bytes_per_second": 12_500_000, "receive_weight": null },
        })];
        let table = table(&rows, false);
        assert!(table.contains("100 Mbit/s") && table.contains("a/nic/eth1"), "{table}");
    }

    #[test]
    fn a_narrow_table_counts_the_holders_that_it_does_not_name() {
        let vms: Vec<String> = (1..=5).map(|vm| format!("vm{vm}")).collect();
        let rows = [json!({
            "policy_name": "gold", "device": "d", "vms": vms, "volumes": [], "reserved_iops": 500.0, "reserved_percent": 12.5,
            "policy": { "reservation_iops": 100.0, "weight": 2.0 },
        })];
        let (narrow, wide) = (table(&rows, false), table(&rows, true));
        assert!(narrow.contains("vm1 vm2 vm3 and 2 more") && narrow.contains("12.5 %"), "{narrow}");
        assert!(wide.contains("vm1 vm2 vm3 vm4 vm5"), "{wide}");
    }
}
