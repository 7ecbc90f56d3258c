//! Every kind of error in a host file, with its text.

use sluice_config::{DIAGNOSTICS_MAX, Severity, parse};

mod admission;
mod ceph;
mod directions;
mod enforcement;
mod exports;
mod network;
mod nodes;
mod pools;
mod texts;

/// A valid host, which a case extends or in which it replaces a line.
const GOOD: &str = r#"[device.d]
path = "/dev/sda"
capacity = "1000 iops@8KiB"
bandwidth = "100MiB/s"
[policy.p]
weight = 100
[vm.a]
policy = "p"
[vm.a.volume.v]
device = "d"
source = "/srv/vm/a.img"
export = { socket = "/run/sluice/a.sock" }
"#;

fn refused(text: &str) -> String {
    parse("host.toml", text).unwrap_err().to_string()
}

/// The messages, and whether the file is rejected.
fn found(text: &str) -> (Vec<String>, bool) {
    let (found, refused) = match parse("host.toml", text) {
        Ok(host) => (host.warnings, false),
        Err(found) => (found.0, true),
    };
    (found.into_iter().map(|found| found.message).collect(), refused)
}

/// Replacements in [`GOOD`], and the expected messages with their lines.
type Case = (&'static str, &'static str, &'static [(u32, &'static str)]);

fn check(cases: &[Case]) {
    assert_eq!(parse("host.toml", GOOD).map(|host| host.warnings), Ok(vec![]));
    for (from, to, expected) in cases {
        assert!(GOOD.contains(from), "{from}");
        let found = parse("host.toml", &GOOD.replacen(from, to, 1)).expect_err(to);
        let found: Vec<_> = found.0.iter().filter(|found| found.severity == Severity::Error).collect();
        let got: Vec<_> = found.iter().map(|found| (found.line, found.message.as_str())).collect();
        assert_eq!(got, *expected, "{from} -> {to}");
        assert!(found.iter().all(|found| found.hint.is_some()), "{to}: {found:?}");
    }
}

const PATH: &str = "path = \"/dev/sda\"";

const POLICY: &str = "weight = 100";

const VM_POLICY: &str = "policy = \"p\"";

#[test]
fn limits_of_cpu_time() {
    check(&[
        (POLICY, "cpu_limit = \"0.5%\"", &[(6, "Policy p: cpu_limit: 0.5% is out of range")]),
        (POLICY, "cpu_limit = 25", &[(6, "Policy p: cpu_limit is a bare number, 25, without a unit")]),
        (VM_POLICY, "cpu_limit = \"0%\"", &[(8, "VM a: cpu_limit: 0 is not a limit")]),
        (VM_POLICY, "cpu_limit = \"none\"", &[(8, "VM a: cpu_limit: 'none' is not a limit")]),
        (VM_POLICY, "cpu_limit = \"2 cores\"", &[(8, "VM a: cpu_limit: 'cores' is not a unit of a percentage")]),
    ]);
    let vm = |text: &str| parse("host.toml", text).unwrap().vms["a"].cpu_limit.map(|limit| limit.to_string());
    let policy = GOOD.replace(POLICY, "cpu_limit = \"25%\"");
    assert_eq!((vm(GOOD), vm(&policy).as_deref()), (None, Some("25%")));
    assert_eq!(vm(&policy.replace(VM_POLICY, "policy = \"p\"\ncpu_limit = \"unlimited\"")), None);
    assert_eq!(vm(&policy.replace(VM_POLICY, "policy = \"p\"\ncpu_limit = \"7%\"")).as_deref(), Some("7%"));
}

const EXPORT: &str = "export = { socket = \"/run/sluice/a.sock\" }";

#[test]
fn devices() {
    check(&[
        (PATH, "", &[(1, "Device d: path is missing")]),
        (
            PATH,
            "path = 5",
            &[(
                2,
                "Device d: path must be a path, a list of paths, the address of a server or a pool of a Ceph cluster, not a whole number",
            )],
        ),
        (PATH, "path = \"sda\"", &[(2, "Device d: path: 'sda' is a relative path")]),
        (PATH, "path = \"/dev/sda\"\ndepth = 0", &[(3, "Device d: depth: the number is out of range")]),
        (PATH, "path = \"/dev/sda\"\ndepth = \"32\"", &[(3, "Device d: depth must be a whole number, not text")]),
        (
            "capacity = \"1000 iops@8KiB\"",
            "capacity = 1000",
            &[(3, "Device d: capacity is a bare number, 1000, without a unit")],
        ),
        (
            "1000 iops@8KiB",
            "1000 iops@4KiB",
            &[(3, "Device d: capacity: the size 4KiB is not the device's reference size, 8KiB")],
        ),
        ("1000 iops@8KiB", "1000 MB/s", &[(3, "Device d: capacity: 'MB/s' is not a unit of a request rate")]),
        (
            PATH,
            "path = \"/dev/sda\"\nreference_size = \"9KiB\"",
            &[(3, "Device d: reference_size: 9KiB is not a power of two")],
        ),
        (
            PATH,
            "path = \"/dev/sda\"\nreference_size = \"2MiB\"",
            &[(3, "Device d: reference_size: 2MiB is out of range")],
        ),
        (
            PATH,
            "path = \"/dev/sda\"\nscheduler = \"mclok\"",
            &[(3, "Device d: scheduler: there is no scheduler 'mclok'")],
        ),
        (
            PATH,
            "path = \"/dev/sda\"\nscheduler = \"wrr\"",
            &[(3, "Device d: scheduler: wrr schedules packets of network interfaces, but this device is a disk")],
        ),
        (PATH, "path = \"/dev/sda\"\nnetback.interval = \"50ms\"", &[(3, "Device d: unknown key 'netback'")]),
        (PATH, "path = \"/dev/sda\"\nbackend = \"file\"", &[(3, "Device d: backend: 'file' is not an accepted value")]),
    ]);
}

#[test]
fn parameters_of_devices() {
    check(&[
        (PATH, "path = \"/dev/sda\"\nmclock.batsh = 3", &[(3, "Device d: mclock: unknown parameter 'batsh'")]),
        (PATH, "path = \"/dev/sda\"\nnoop.batch = 3", &[(3, "Device d: noop: unknown parameter 'batch'")]),
        (
            PATH,
            "path = \"/dev/sda\"\nmclock = { batch = 300, batch_distance = \"4\" }",
            &[
                (3, "Device d: mclock.batch: batch is 300; it must be from 0 to 256 requests"),
                (3, "Device d: mclock.batch_distance: '4' has no unit; write for example \"4 MiB\""),
            ],
        ),
        (
            PATH,
            "path = \"/dev/sda\"\nwindow.requests = 0",
            &[(3, "Device d: window.requests: the number is out of range")],
        ),
        (PATH, "path = \"/dev/sda\"\ncost = { flush = 0 }", &[(3, "Device d: cost.flush: 0 is out of range")]),
        (
            PATH,
            "path = \"/dev/sda\"\ncost = { discard_mib = 0.015 }",
            &[(3, "Device d: cost.discard_mib: 0.015 is out of range")],
        ),
        (PATH, "path = \"/dev/sda\"\ndelay = { parallel = 2 }", &[(3, "Device d: delay.time is missing")]),
        (
            PATH,
            "path = \"/dev/sda\"\ndelay = { time = 4 }",
            &[(3, "Device d: delay.time is a bare number, 4, without a unit")],
        ),
        (
            PATH,
            "path = \"/dev/sda\"\ndelay.time = { mean = \"4ms\", min = \"3ms\" }",
            &[(3, "Device d: delay.time needs either mean, or min and max")],
        ),
        (
            PATH,
            "path = \"/dev/sda\"\ndelay.time = { min = \"4ms\", max = \"3ms\" }",
            &[(3, "Device d: delay.time.min: min is not below max")],
        ),
        (
            "[policy.p]",
            "[device.e]\npath = \"/dev/sda\"\n[policy.p]",
            &[(6, "Device e: path: device d is the same disk")],
        ),
        (
            "[policy.p]",
            "[device.\"d e\"]\npath = \"/dev/sdb\"\n[policy.p]",
            &[(5, "Device d e: the name is not valid")],
        ),
    ]);
}

#[test]
fn policies() {
    check(&[
        (POLICY, "limit = 0", &[(6, "Policy p: limit: 0 is not a limit")]),
        (POLICY, "limit = \"0 iops\"", &[(6, "Policy p: limit: 0 is not a limit")]),
        (POLICY, "limit = { bytes = \"0MiB/s\" }", &[(6, "Policy p: limit.bytes: 0 is not a limit")]),
        (POLICY, "limit = 100", &[(6, "Policy p: limit is a bare number, 100, without a unit")]),
        (POLICY, "limit = \"12 apples\"", &[(6, "Policy p: limit: 'apples' is not a unit of a rate")]),
        (POLICY, "reservation = 0", &[(6, "Policy p: reservation: 0 is not a reservation")]),
        (POLICY, "reservation = \"0 iops\"", &[(6, "Policy p: reservation: 0 is not a reservation")]),
        (POLICY, "limit = \"none\"", &[(6, "Policy p: limit: 'none' is not a limit")]),
        (POLICY, "reservation = {}", &[(6, "Policy p: reservation.iops is missing, and so is bytes")]),
        (
            POLICY,
            "reservation = { iops = \"5 ms\" }",
            &[(6, "Policy p: reservation.iops: 'ms' is not a unit of a request rate")],
        ),
        (
            POLICY,
            "reservation = { outstanding = 8 }",
            &[(
                6,
                "Policy p: reservation.latency is missing; the rate is calculated from outstanding and latency together",
            )],
        ),
        (
            POLICY,
            "reservation = { outstanding = 8, latency = \"5ms\", iops = \"3 iops\" }",
            &[(6, "Policy p: reservation.iops: the rate is stated twice")],
        ),
    ]);
}

#[test]
fn policies_without_rates() {
    check(&[
        (POLICY, "weight = 0", &[(6, "Policy p: weight: 0 is out of range")]),
        (POLICY, "weight = \"100\"", &[(6, "Policy p: weight must be a number or \"none\", not text")]),
        (
            POLICY,
            "weight = \"none\"",
            &[(6, "Policy p: policy has neither a reservation nor a weight, so its requests would never be served")],
        ),
        (POLICY, "burst = 70000", &[(6, "Policy p: burst: the number is out of range")]),
        (POLICY, "class = \"urgent\"", &[(6, "Policy p: class: 'urgent' is not an accepted value")]),
        (POLICY, "latency = { reads_only = true }", &[(6, "Policy p: latency.p99 is missing")]),
        (POLICY, "latency = \"5ms\"", &[(6, "Policy p: latency must be \"none\" or a table, not text")]),
        (
            POLICY,
            "latency = { p99 = \"5ms\" }",
            &[(6, "Policy p: latency is not enforced by mclock, the scheduler of device d: no guarantee is given")],
        ),
    ]);
}

#[test]
fn policies_that_contradict_themselves_or_their_device() {
    check(&[
        (
            POLICY,
            "reservation = \"600 iops\"\nlimit = \"500 iops\"",
            &[(6, "Policy p: reservation 600 iops is above limit 500 iops")],
        ),
        (
            POLICY,
            "reservation = \"600 iops@4KiB\"",
            &[(6, "Policy p: reservation: the size 4KiB is not the reference size of device d, 8KiB")],
        ),
        (
            "capacity = \"1000 iops@8KiB\"\nbandwidth = \"100MiB/s\"\n[policy.p]\nweight = 100",
            "[policy.p]\nreservation = { iops = \"5 iops\", bytes = \"1MiB/s\" }",
            &[(4, "Device d: VM a reserves 5 iops@8KiB and 1MiB/s, but the device has no capacity and no bandwidth")],
        ),
    ]);
}

#[test]
fn vms_and_volumes() {
    check(&[
        ("policy = \"p\"", "policy = \"q\"", &[(8, "VM a: policy: there is no policy 'q'")]),
        (
            "policy = \"p\"",
            "weight = \"none\"",
            &[(8, "VM a: policy has neither a reservation nor a weight, so its requests would never be served")],
        ),
        ("device = \"d\"\n", "", &[(9, "Volume a/v: device is missing")]),
        ("device = \"d\"", "device = \"e\"", &[(10, "Volume a/v: device: there is no device 'e'")]),
        ("source = \"/srv/vm/a.img\"\n", "", &[(9, "Volume a/v: source is missing")]),
        (
            "source = \"/srv",
            "offset = \"100B\"\nsource = \"/srv",
            &[(11, "Volume a/v: offset: 100B is not a whole number of sectors of 512B")],
        ),
        (
            "source = \"/srv",
            "offset = \"1KiB\"\nsize = \"9007199254740991KiB\"\nsource = \"/srv",
            &[(12, "Volume a/v: size: the volume ends above the largest file offset")],
        ),
        ("source = \"/srv", "size = \"0B\"\nsource = \"/srv", &[(11, "Volume a/v: size: 0B is out of range")]),
        (
            "source = \"/srv",
            "reservation = \"5 iops\"\nsource = \"/srv",
            &[(
                11,
                "VM a on device d (rates at 8KiB): volumes of one VM reserve 5 iops together, but the VM only nothing",
            )],
        ),
        (PATH, "backend = \"null\"", &[(9, "Volume a/v: size is missing; its device is \"null\" and has no size")]),
        ("[vm.a.volume.v]", "[vm.a.volume.\"v/w\"]", &[(9, "Volume a/v/w: the name is not valid")]),
        ("[vm.a]", "vm.b = 1\n[vm.a]", &[(7, "Policy p: unknown key 'vm'")]),
        ("[device.d]", "vm.b = 1\n[device.d]", &[(1, "VM b must be a table, not a whole number")]),
    ]);
}
