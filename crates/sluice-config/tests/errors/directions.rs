//! Limits of reads and of writes, bursts for a time, and the cost of writes.

use super::*;

#[test]
fn limits_of_reads_and_of_writes() {
    check(&[
        (POLICY, "read_limit = 0", &[(6, "Policy p: read_limit: 0 is not a limit")]),
        (POLICY, "write_limit = 100", &[(6, "Policy p: write_limit is a bare number, 100, without a unit")]),
        (
            POLICY,
            "reservation = \"300 iops\"\nread_limit = \"200 iops\"\nwrite_limit = \"99 iops\"",
            &[(6, "Policy p: reservation 300 iops is above read_limit 200 iops plus write_limit 99 iops")],
        ),
        (
            POLICY,
            "write_limit = \"50 iops@4KiB\"",
            &[(6, "Policy p: write_limit: the size 4KiB is not the reference size of device d, 8KiB")],
        ),
        (
            POLICY,
            "write_limit = \"1 iops\"",
            &[(
                6,
                "VM a: at its write_limit of requests a full window of device d takes up to 358 s, longer than \
                 guests wait for a request (SCSI drivers: 30 s)",
            )],
        ),
    ]);
    let limited = GOOD
        .replace("weight = 100", "reservation = \"300 iops\"\nread_limit = \"200 iops\"\nwrite_limit = \"100 iops\"");
    let policy = parse("host.toml", &limited).unwrap_or_else(|found| panic!("{found}")).vms["a"].policy;
    assert_eq!(policy.read_limit.iops, Some(sluice_sched::Iops::per_second(200)));
    let unlimited = limited.replace("\"100 iops\"", "\"unlimited\"");
    assert!(!parse("host.toml", &unlimited).unwrap().vms["a"].policy.write_limit.is_set());
}

#[test]
fn a_scheduler_that_does_not_tell_reads_from_writes_rejects_their_limits() {
    let mut enforcing = Vec::new();
    for scheduler in sluice_papers::ALL {
        let host = GOOD.replace(PATH, &format!("path = \"/dev/sda\"\nscheduler = \"{}\"", scheduler.name));
        for key in ["read_limit", "write_limit"] {
            let host = host.replace("weight = 100", &format!("{key} = \"50 iops\""));
            match parse("host.toml", &host) {
                Ok(_) => enforcing.push(scheduler.name),
                Err(found) => {
                    let is_of_network = !scheduler.is_for(sluice_sched::scheduler::DeviceClass::Disk);
                    let text = format!("{key} is not enforced by {}", scheduler.name);
                    assert!(is_of_network || found.to_string().contains(&text), "{found}");
                }
            }
        }
    }
    assert_eq!(enforcing, ["mclock", "mclock"]);
    let paper = GOOD.replace(PATH, "path = \"/dev/sda\"\nscheduler = \"mclock-paper\"");
    let found = parse("host.toml", &paper.replace("weight = 100", "write_limit = \"50 iops\"")).unwrap_err().0;
    assert!(found[0].hint.as_deref().unwrap().starts_with("enforced by mclock;"), "{found:?}");
}

#[test]
fn bursts_for_a_time() {
    check(&[
        (POLICY, "burst = \"5 iops\"", &[(6, "Policy p: burst must be a whole number or a table, not text")]),
        (
            POLICY,
            "limit = \"100 iops\"\nburst = { rate = \"500 iops\" }",
            &[(7, "Policy p: burst.for is missing; a burst has a rate and a time")],
        ),
        (
            POLICY,
            "limit = \"100 iops\"\nburst = { for = \"5s\" }",
            &[(7, "Policy p: burst.rate is missing; a burst has a rate and a time")],
        ),
        (
            POLICY,
            "limit = \"100 iops\"\nburst = { rate = 500, for = \"5s\" }",
            &[(7, "Policy p: burst.rate is a bare number, 500, without a unit")],
        ),
        (
            POLICY,
            "limit = \"100 iops\"\nburst = { rate = \"500 iops\", for = \"2h\", idle = 1 }",
            &[(7, "Policy p: unknown key 'burst.idle'")],
        ),
        (
            POLICY,
            "limit = \"100 iops\"\nburst = { rate = \"500 iops\", for = \"25h\" }",
            &[(7, "Policy p: burst.for: 90000s is out of range")],
        ),
        (
            POLICY,
            "limit = \"100 iops\"\nburst = { rate = \"100 iops\", for = \"5s\" }",
            &[(7, "Policy p: burst rate 100 iops is not above limit 100 iops")],
        ),
        (
            POLICY,
            "limit = \"100 iops\"\nburst = { rate = \"100MiB/s\", for = \"5s\" }",
            &[(7, "Policy p: burst rate 100MiB/s needs a limit in the same unit")],
        ),
    ]);
    let host =
        GOOD.replace("weight = 100", "limit = \"100 iops\"\nburst = { rate = { iops = \"500 iops\" }, for = \"5s\" }");
    let policy = parse("host.toml", &host).unwrap_or_else(|found| panic!("{found}")).vms["a"].policy;
    let burst = policy.timed_burst.unwrap();
    assert_eq!((burst.rate.iops, burst.length.as_secs()), (Some(sluice_sched::Iops::per_second(500)), 5));
    // A VM may replace one form by the other.
    let own = parse("host.toml", &host.replace("[vm.a]\n", "[vm.a]\nburst = 9\n")).unwrap().vms["a"].policy;
    assert_eq!((own.burst, own.timed_burst), (Some(9), None));
}

#[test]
fn the_cost_of_writes_is_read_within_its_bounds() {
    check(&[
        (
            PATH,
            "path = \"/dev/sda\"\ncost = { write_factor = 0.05 }",
            &[(3, "Device d: cost.write_factor: 0.05 is out of range")],
        ),
        (
            PATH,
            "path = \"/dev/sda\"\ncost.write_factor = 101",
            &[(3, "Device d: cost.write_factor: 101 is out of range")],
        ),
    ]);
    let host = parse("host.toml", &GOOD.replace(PATH, "path = \"/dev/sda\"\ncost = { write_factor = 2.5 }")).unwrap();
    assert_eq!(host.devices["d"].cost.write_factor.as_f64(), 2.5);
}

#[test]
fn a_vm_is_not_named_like_the_policies_in_commands() {
    let found = parse("host.toml", &GOOD.replace("[vm.a", "[vm.policy")).unwrap_err().to_string();
    assert!(found.contains("VM policy: the name is reserved"), "{found}");
}
