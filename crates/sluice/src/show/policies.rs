//! Named policies as a table.

use sluice_api::list::NamedPolicy;
use sluice_api::policy::Half;

use super::{NOTHING, amount, shown};
use crate::output;
use sluice_api::amount::time;

/// Holders that a narrow table names; others are counted.
const NAMED: usize = 3;

/// The table of policies; `wide` names every holder and has more fields.
pub(crate) fn table(policies: &[NamedPolicy], wide: bool) -> String {
    let mut header = vec!["POLICY", "RESERVATION", "LIMIT", "WEIGHT", "DEVICE", "RESERVED", "PART", "VMS", "VOLUMES"];
    if wide {
        header.extend(["READ LIMIT", "WRITE LIMIT", "BURST", "LATENCY"]);
    }
    let mut table = output::table(&header);
    for row in policies {
        let policy = row.policy.policy();
        let is_link = matches!(row.policy, Half::Net(_));
        let amount = |iops: Option<f64>, bytes: Option<u64>| amount(is_link, iops, bytes.map(|bytes| bytes as f64));
        let named = |names: &[String]| holders(names, if wide { usize::MAX } else { NAMED });
        let mut cells = vec![
            row.policy_name.clone(),
            amount(policy.reservation_iops, policy.reservation_bytes_per_second),
            amount(policy.limit_iops, policy.limit_bytes_per_second),
            shown(policy.weight, |weight| weight.to_string()),
            shown(row.device.clone(), |device| device),
            amount(row.reserved_iops, row.reserved_bytes_per_second),
            shown(row.reserved_percent, |part| format!("{part} %")),
            named(&row.vms),
            named(&row.volumes),
        ];
        if wide {
            let burst = || amount(policy.burst_iops, policy.burst_bytes_per_second);
            let seconds = policy.burst_seconds.map(|seconds| format!("{} for {seconds} s", burst()));
            let requests = policy.burst.map(|requests| requests.to_string());
            cells.extend([
                amount(policy.read_limit_iops, policy.read_limit_bytes_per_second),
                amount(policy.write_limit_iops, policy.write_limit_bytes_per_second),
                seconds.or(requests).unwrap_or(NOTHING.to_owned()),
                shown(policy.latency_p99_us, time),
            ]);
        }
        table.add_row(cells);
    }
    table.to_string()
}

fn holders(names: &[String], most: usize) -> String {
    let mut shown: Vec<String> = names.iter().take(most).cloned().collect();
    if names.len() > most {
        shown.push(format!("and {} more", names.len() - most));
    }
    if shown.is_empty() { NOTHING.to_owned() } else { shown.join(" ") }
}

#[cfg(test)]
mod tests {
    use sluice_api::policy::{NetPolicy, Policy};

    use super::*;

    #[test]
    fn a_narrow_table_counts_the_holders_that_it_does_not_name() {
        let rows = [NamedPolicy {
            policy_name: "gold".to_owned(),
            vms: (1..=5).map(|vm| format!("vm{vm}")).collect(),
            reserved_iops: Some(500.0),
            reserved_percent: Some(12.5),
            policy: Half::Disk(Policy { reservation_iops: Some(100.0), weight: Some(2.0), ..Policy::default() }),
            ..NamedPolicy::default()
        }];
        let (narrow, wide) = (table(&rows, false), table(&rows, true));
        assert!(narrow.contains("vm1 vm2 vm3 and 2 more") && narrow.contains("12.5 %"), "{narrow}");
        assert!(wide.contains("vm1 vm2 vm3 vm4 vm5"), "{wide}");
    }

    #[test]
    fn the_policy_of_a_link_is_shown_in_bits_per_second() {
        let rows = [NamedPolicy {
            volumes: vec!["a/nic/eth1".to_owned()],
            reserved_bytes_per_second: Some(12_500_000),
            policy: Half::Net(NetPolicy::default()),
            ..NamedPolicy::default()
        }];
        let table = table(&rows, false);
        assert!(table.contains("100 Mbit/s") && table.contains("a/nic/eth1"), "{table}");
    }
}
