//! Every kind of error, with its complete text.

use sluice_config::{DIAGNOSTICS_MAX, Severity, parse};

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

#[test]
fn the_whole_text_of_an_unknown_key() {
    assert_eq!(
        refused(&GOOD.replace("weight", "wieght")),
        "error: Policy p: unknown key 'wieght'
 --> host.toml:6:1
  |
6 | wieght = 100
  | ^^^^^^
  = hint: did you mean 'weight'?

1 error"
    );
}

#[test]
fn the_whole_text_of_a_missing_unit() {
    assert_eq!(
        refused(&GOOD.replace("weight = 100", "limit = \"2000\"")),
        "error: Policy p: limit: '2000' has no unit
 --> host.toml:6:9
  |
6 | limit = \"2000\"
  |         ^^^^^^
  = hint: write for example \"2000 iops\" or \"2000MiB/s\"

1 error"
    );
}

#[test]
fn the_whole_text_of_a_reservation_over_the_capacity() {
    let more = "[vm.b]\nreservation = \"700 iops\"\n[vm.b.volume.v]\ndevice = \"d\"\nsource = \"/srv/vm/b.img\"\n\
                export = { socket = \"/run/sluice/b.sock\" }\n";
    let text = GOOD.replace("weight = 100", "reservation = \"600 iops@8KiB\"") + more;
    assert_eq!(
        refused(&text),
        "error: Device d: VM b reserves 700 iops@8KiB, 70% of the device by requests (capacity = 1000 iops@8KiB); 1 VM \
         already reserves 60%, with this one 130%; at most 98% can be reserved because weight_floor is 2%: short by 32% \
         (already reserved: a 60% by requests)
  --> host.toml:14:15
   |
14 | reservation = \"700 iops\"
   |               ^^^^^^^^^^
   = hint: lower it to at most 380 iops@8KiB, place the VM on another device, or set a lower weight_floor in \
         [device.d.mclock]

1 error"
    );
}

/// [`GOOD`] with these keys of VM a and of another VM, b.
fn two_vms(a: &str, b: &str) -> String {
    let more = format!(
        "[vm.b]\n{b}\n[vm.b.volume.v]\ndevice = \"d\"\nsource = \"/srv/vm/b.img\"\n\
         export = {{ socket = \"/run/sluice/b.sock\" }}\n"
    );
    GOOD.replace("weight = 100", a) + &more
}

/// The messages, and whether the file is rejected.
fn found(text: &str) -> (Vec<String>, bool) {
    let (found, refused) = match parse("host.toml", text) {
        Ok(host) => (host.warnings, false),
        Err(found) => (found.0, true),
    };
    (found.into_iter().map(|found| found.message).collect(), refused)
}

// rule: mclock.admission
#[test]
fn a_device_was_reserved_twice_in_requests_and_in_bytes() {
    let (requests, bytes) = ("reservation = \"1000 iops\"", "reservation = \"100MiB/s\"");
    let no_floor = |text: String| text.replace("capacity =", "mclock = { weight_floor = \"0%\" }\ncapacity =");
    let (messages, refused) = found(&no_floor(two_vms(requests, bytes)));
    assert!(refused);
    assert_eq!(
        messages,
        [
            "Device d: VM b reserves 100MiB/s, 100% of the device by bytes (bandwidth = 100MiB/s); 1 VM already reserves \
             100%, with this one 200%; at most 100% can be reserved: short by 100% (already reserved: a 100% by requests)"
        ]
    );
    // Each of them alone needs the whole device.
    assert_eq!(found(&no_floor(two_vms(requests, "weight = 3"))), (vec![], false));
    assert_eq!(found(&no_floor(two_vms("weight = 3", bytes))), (vec![], false));
    let half = "reservation = { iops = \"500 iops\", bytes = \"50MiB/s\" }";
    assert_eq!(found(&no_floor(two_vms(half, half))), (vec![], false), "a VM takes the larger of its parts");
}

#[test]
fn the_hint_for_a_shared_policy_was_for_one_vm_only() {
    let text = two_vms("reservation = \"600 iops\"", "policy = \"p\"");
    let said = refused(&text);
    assert!(said.contains("hint: it is the reservation of 2 VMs: lower it to at most 490 iops@8KiB"), "{said}");
}

#[test]
fn the_hint_for_a_rate_of_0_was_unlimited_where_it_is_not_allowed() {
    let said = refused(&GOOD.replace("capacity = \"1000 iops@8KiB\"", "capacity = \"0 iops\""));
    assert!(said.contains("from 0.001 iops to 10^12 iops") && !said.contains("unlimited"), "{said}");
    let limit = refused(&GOOD.replace("weight = 100", "limit = \"0 iops\""));
    assert!(limit.contains("for no limit write \"unlimited\""), "{limit}");
    // Another scheduler of Linux is not a typing error.
    let bfq = refused(&GOOD.replace("capacity =", "scheduler = \"bfq\"\ncapacity ="));
    assert!(!bfq.contains("did you mean"), "{bfq}");
}

// rule: mclock.admission
#[test]
fn reservations_left_nothing_for_vms_without_one() {
    assert!(found(&two_vms("reservation = \"1000 iops\"", "weight = 3")).1);
    assert_eq!(found(&two_vms("reservation = \"980 iops\"", "weight = 3")), (vec![], false));
    let (messages, refused) = found(&two_vms("reservation = \"980 iops\"", "reservation = \"0.001 iops\""));
    assert!(
        refused && messages[0].contains("with this one 98.01%; at most 98% can be reserved because weight_floor is 2%")
    );
    for mclock in ["weight_floor = \"0%\"", "mode = \"paper\""] {
        let text = two_vms("reservation = \"1000 iops\"", "weight = 3");
        let text = text.replace("capacity =", &format!("mclock = {{ {mclock} }}\ncapacity ="));
        assert_eq!(found(&text), (vec![], false), "{mclock} keeps no floor");
    }
}

// rule: mclock.volume-sum
#[test]
fn a_vm_was_reserved_twice_by_its_volumes() {
    let two = |policy: &str, bandwidth: &str| {
        let host = GOOD.replace("weight = 100", policy).replace("100MiB/s", bandwidth);
        let host = host.replace("device = \"d\"", "device = \"d\"\nreservation = \"500 iops\"");
        let second = "[vm.a.volume.w]\ndevice = \"d\"\nreservation = \"50MiB/s\"\nsource = \"/srv/vm/w.img\"\n\
                      export = { socket = \"/run/sluice/w.sock\" }\n";
        found(&(host + second))
    };
    let half = "reservation = { iops = \"500 iops\", bytes = \"50MiB/s\" }";
    let (messages, refused) = two(half, "100MiB/s");
    assert!(refused);
    assert_eq!(
        messages,
        [
            "VM a on device d (rates at 8KiB): volumes of one VM reserve 100% of the device (equal to 1000 iops or 100MiB/s) \
          together, but the VM only 50% of it"
        ]
    );
    let more = "reservation = { iops = \"750 iops\", bytes = \"50MiB/s\" }";
    assert_eq!(two(more, "200MiB/s"), (vec![], false), "50% and 25%");
}

// rule: mclock.volume-sum, mclock.weight-floor
#[test]
fn a_volume_reserved_all_of_its_vm_and_left_nothing_for_another() {
    let reserving = |iops: u32| {
        let host = GOOD.replace("weight = 100", "reservation = \"500 iops\"");
        let host = host.replace("device = \"d\"", &format!("device = \"d\"\nreservation = \"{iops} iops\""));
        let second = "[vm.a.volume.w]\ndevice = \"d\"\nsource = \"/srv/vm/w.img\"\n\
                      export = { socket = \"/run/sluice/w.sock\" }\n";
        found(&(host + second))
    };
    let (messages, refused) = reserving(491);
    assert!(refused);
    assert_eq!(
        messages,
        [
            "VM a on device d (rates at 8KiB): volumes of one VM reserve 491 iops together, but the VM only 500 iops, of which \
             weight_floor keeps 2% for its volumes without a reservation"
        ]
    );
    assert_eq!(reserving(490), (vec![], false));
}

// rule: mclock.burst-reservation
#[test]
fn a_burst_that_makes_a_reservation_impossible_is_reported_at_its_position() {
    let depth_1 = GOOD.replace("capacity = \"1000 iops@8KiB\"", "depth = 1\ncapacity = \"677 iops@8KiB\"");
    let with = |lines: &str| depth_1.replace("weight = 100", lines);
    let lines = "reservation = \"565 iops\"\nlimit = \"593 iops\"\nburst = 1";
    assert_eq!(
        refused(&with(lines)),
        "error: Policy p: with burst = 1 the limit of 593 iops lets at most 338.5 iops of 8KiB requests through, less than \
         the reservation of 565 iops, if the device frees all its slots at the same instant: 1 every 1478us (device d)
 --> host.toml:9:9
  |
9 | burst = 1
  |         ^
  = hint: raise burst to at least 2 (3 for requests of 256KiB), or leave it out: the default is the device's depth times \
         its largest piece

1 error"
    );
    let large = found(&with(&lines.replace("burst = 1", "burst = 2")));
    assert!(!large.1 && large.0.len() == 1 && large.0[0].contains("of 256KiB requests through"), "{large:?}");
    for burst in ["burst = 3", ""] {
        assert_eq!(found(&with(&lines.replace("burst = 1", burst))), (vec![], false), "{burst}");
    }
    let off = found(&with(lines).replace("depth = 1", "depth = 1\nadmission = \"off\""));
    assert!(!off.1 && off.0[0].contains("less than the reservation of 565 iops"), "{off:?}");
    let volume = with("reservation = \"565 iops\"").replace("device = \"d\"", &format!("device = \"d\"\n{lines}"));
    let (messages, refused) = found(&volume);
    assert!(refused && messages[0].starts_with("Volume a/v: with burst = 1 the limit of 593 iops"), "{messages:?}");
}

#[test]
fn the_whole_text_of_what_is_not_toml() {
    assert_eq!(
        refused("[device.d]\npath = /dev/sda\n"),
        "error: Not TOML: string values must be quoted, expected literal string
 --> host.toml:2:8
  |
2 | path = /dev/sda
  |        ^^^^^^^^
  = hint: correct this first; the rest of the file was not read

1 error"
    );
}

#[test]
fn the_whole_text_of_a_warning_next_to_an_error() {
    let text = GOOD.replace("source =", "cache = \"buffered\"\nsource =").replace("/run/", "run/");
    assert_eq!(
        refused(&text),
        "warning: Volume a/v: guarantees do not apply, because its writes leave the page cache unscheduled
  --> host.toml:11:9
   |
11 | cache = \"buffered\"
   |         ^^^^^^^^^^
   = hint: remove cache = \"buffered\"

error: Volume a/v: export.socket: 'run/sluice/a.sock' is a relative path
  --> host.toml:13:21
   |
13 | export = { socket = \"run/sluice/a.sock\" }
   |                     ^^^^^^^^^^^^^^^^^^^
   = hint: write an absolute path, for example \"/run/sluice/db1-root.sock\"

1 error, 1 warning"
    );
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
const EXPORT: &str = "export = { socket = \"/run/sluice/a.sock\" }";

#[test]
fn devices() {
    check(&[
        (PATH, "", &[(1, "Device d: path is missing")]),
        (PATH, "path = 5", &[(2, "Device d: path must be a path, not a whole number")]),
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
                (3, "Device d: mclock.batch_distance: '4' has no unit; write for example \"4 B\""),
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

// rule: mclock.admission
#[test]
fn bytes_were_reserved_on_a_disk_without_a_capacity() {
    check(&[(
        "capacity = \"1000 iops@8KiB\"\nbandwidth = \"100MiB/s\"\n[policy.p]\nweight = 100",
        "bandwidth = \"100MiB/s\"\n[policy.p]\nreservation = \"1MiB/s\"",
        &[(
            5,
            "Device d: VM a reserves 1MiB/s, but the device has no capacity, which is needed to count small requests",
        )],
    )]);
}

#[test]
fn an_unenforced_field_names_the_schedulers_that_enforce_it() {
    let noop = GOOD.replace(PATH, "path = \"/dev/sda\"\nscheduler = \"noop\"").replace("= 100\n", "= 200\n");
    let found = parse("host.toml", &noop).unwrap_err().0;
    let message = "Policy p: weight is not enforced by noop, the scheduler of device d: no guarantee is given";
    assert_eq!((found.len(), found[0].message.as_str()), (1, message));
    let hint = found[0].hint.as_deref().unwrap();
    assert!(
        hint.contains("mclock") && hint.ends_with("; or set allow_unenforced = true to accept it without effect"),
        "{hint}"
    );
    let allowed = parse("host.toml", &noop.replace("= 200\n", "= 200\nallow_unenforced = true\n")).unwrap();
    assert_eq!((allowed.warnings.len(), allowed.warnings[0].message.as_str()), (1, message));
}

#[test]
fn a_latency_is_enforced_by_schedulers_with_deadlines() {
    let latency = GOOD.replace("= 100\n", "= 100\nlatency = { p99 = \"5ms\" }\n");
    let found = parse("host.toml", &latency).unwrap_err().0;
    let hint = "enforced by edf-credit, flubber; or set allow_unenforced = true to accept it without effect";
    assert_eq!((found.len(), found[0].hint.as_deref()), (1, Some(hint)), "{found:?}");
    for scheduler in ["edf-credit", "flubber"] {
        let chosen = format!("path = \"/dev/sda\"\nscheduler = \"{scheduler}\"");
        let host = latency.replace(PATH, &chosen);
        assert!(parse("host.toml", &host).is_ok(), "{scheduler}: {:?}", parse("host.toml", &host));
        let class = host.replace("p99 = \"5ms\" }\n", "p99 = \"5ms\" }\nclass = \"background\"\n");
        let refused = parse("host.toml", &class).err().map(|found| found.0[0].hint.clone().unwrap_or_default());
        let needs = "edf-credit with background = \"idle\", flubber, ";
        let by_a_parameter = refused.as_deref().is_some_and(|hint| hint.contains(needs));
        assert_eq!(by_a_parameter, scheduler == "edf-credit", "{refused:?}");
        let class = class.replace(&chosen, &format!("{chosen}\nedf-credit = {{ background = \"idle\" }}"));
        assert!(parse("host.toml", &class).is_ok() || scheduler == "flubber", "{:?}", parse("host.toml", &class));
        let limited = parse("host.toml", &class.replace("= 100\n", "= 100\nlimit = \"5 iops\"\n")).unwrap_err().0;
        assert!(limited.iter().any(|found| found.message.contains("limit is not enforced")), "{limited:?}");
    }
}

#[test]
fn a_volume_has_no_policy_if_volumes_share_a_queue() {
    let sfqd = GOOD.replace(PATH, "path = \"/dev/sda\"\nscheduler = \"sfqd\"");
    let found = parse("host.toml", &sfqd.replace("device = \"d\"", "device = \"d\"\nweight = 200")).unwrap_err().0;
    let message = "Volume a/v: weight of a volume inside a VM is not enforced by sfqd, the scheduler of device d: no guarantee is given";
    assert_eq!((found.len(), found[0].message.as_str()), (1, message));
    assert!(found[0].hint.as_deref().unwrap().starts_with("enforced by mclock with mode = \"product\";"), "{found:?}");
    assert!(parse("host.toml", &sfqd).is_ok(), "the VM's own weight is enforced");
}

#[test]
fn the_published_mclock_has_no_volume_policies() {
    let host = |mode: &str, allow: &str| {
        let host = GOOD.replace(PATH, &format!("path = \"/dev/sda\"\nmclock = {{ mode = \"{mode}\" }}"));
        host.replace("device = \"d\"", &format!("device = \"d\"\nweight = 200{allow}"))
    };
    assert!(parse("host.toml", &host("product", "")).is_ok());
    let found = parse("host.toml", &host("paper", "")).unwrap_err().0;
    let message = "Volume a/v: weight of a volume inside a VM is not enforced by mclock, the scheduler of device d: no guarantee is given";
    assert_eq!((found.len(), found[0].message.as_str()), (1, message));
    let hint = "enforced by mclock with mode = \"product\"; or set allow_unenforced = true to accept it without effect";
    assert_eq!(found[0].hint.as_deref(), Some(hint));
    let warnings = parse("host.toml", &host("paper", "\nallow_unenforced = true")).unwrap().warnings;
    assert!(warnings.iter().any(|found| found.message == message), "{warnings:?}");
}

#[test]
fn no_scheduler_enforces_a_latency_for_reads_only() {
    for scheduler in ["edf-credit", "flubber"] {
        let host = GOOD.replace(PATH, &format!("path = \"/dev/sda\"\nscheduler = \"{scheduler}\""));
        let host = |more: &str| {
            host.replace("= 100\n", &format!("= 100\nlatency = {{ p99 = \"5ms\", reads_only = true }}\n{more}"))
        };
        let found = parse("host.toml", &host("")).unwrap_err().0;
        let message = format!(
            "Policy p: latency.reads_only is not enforced by {scheduler}, the scheduler of device d: writes have the \
             same deadline, and reads wait for them"
        );
        assert_eq!((found.len(), found[0].message.as_str()), (1, message.as_str()), "{found:?}");
        assert!(found[0].hint.as_deref().unwrap().contains("remove reads_only"), "{found:?}");
        let warnings = parse("host.toml", &host("allow_unenforced = true\n")).unwrap().warnings;
        assert!(warnings.iter().any(|found| found.message == message), "{warnings:?}");
    }
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

#[test]
fn limits_that_delay_requests_longer_than_guests_wait() {
    let weight = "weight = 100";
    check(&[
        (
            weight,
            "limit = \"1 iops\"",
            &[(
                6,
                "VM a: at its limit of requests a full window of device d takes up to 358 s, and its guest would consider \
                 the disk dead",
            )],
        ),
        (
            weight,
            "limit = \"1MiB/s\"",
            &[(
                6,
                "VM a: at its limit of bytes a full window of device d takes up to 32 s, and its guest would consider the \
                 disk dead",
            )],
        ),
    ]);
    check(&[(
        "source =",
        "limit = \"2 iops\"\nsource =",
        &[(
            11,
            "Volume a/v: at its limit of requests a full window of device d takes up to 179 s, and its guest would \
             consider the disk dead",
        )],
    )]);
    let slow = GOOD.replace("source =", "limit = \"2 iops\"\nsource =");
    parse("host.toml", &slow.replace("[vm.a]\n", "[vm.a]\nallow_slow = true\n")).unwrap();
    let slow = GOOD.replace(weight, "limit = \"1 iops\"");
    parse("host.toml", &slow.replace("[vm.a]\n", "[vm.a]\nallow_slow = true\n")).unwrap();
    parse("host.toml", &slow.replace("1 iops", "12 iops")).unwrap();
    // 128 requests of 256 KiB cost 233, so they are delayed by 47 s.
    let large = parse("host.toml", &slow.replace("1 iops", "5 iops")).unwrap_err().to_string();
    assert!(large.contains("a full window of device d takes up to 72 s"), "{large}");
}

#[test]
fn exports() {
    check(&[
        (EXPORT, "", &[(9, "Volume a/v: export is missing")]),
        (EXPORT, "export = {}", &[(12, "Volume a/v: export.socket is missing, and so is listen")]),
        (
            EXPORT,
            "export = { type = \"vhost-user-net\", socket = \"/run/a\" }",
            &[(12, "Volume a/v: export.type: 'vhost-user-net' is not an accepted value")],
        ),
        (
            EXPORT,
            "export = { type = \"vhost-user-blk\", listen = \"127.0.0.1:1\" }",
            &[(12, "Volume a/v: export.listen: guest memory cannot be shared over TCP")],
        ),
        (
            EXPORT,
            "export = { type = \"vhost-user-blk\", socket = \"/run/a\", queues = 65 }",
            &[(12, "Volume a/v: export.queues: the number is out of range")],
        ),
        (
            EXPORT,
            "export = { socket = \"/run/a\", queues = 2 }",
            &[(12, "Volume a/v: export.queues: NBD has no virtqueues")],
        ),
        (
            EXPORT,
            "export = { listen = \"127.0.0.1\" }",
            &[(12, "Volume a/v: export.listen: '127.0.0.1' is not an address with a port")],
        ),
        (EXPORT, "export = { listen = \"127.0.0.1:0\" }", &[(12, "Volume a/v: export.listen: port 0 is invalid")]),
        (
            EXPORT,
            "export = { listen = \"127.0.0.1:1\", socket = \"/a\" }",
            &[(12, "Volume a/v: export.listen: the export already has a socket")],
        ),
        (
            EXPORT,
            "export = { listen = \"127.0.0.1:1\", mode = \"0600\" }",
            &[(12, "Volume a/v: export.mode: it applies only to a socket, and there is no socket")],
        ),
        (
            EXPORT,
            "export = { socket = \"/a\", mode = 660 }",
            &[(12, "Volume a/v: export.mode must be permissions in octal as text, not a whole number")],
        ),
        (
            EXPORT,
            "export = { socket = \"/a\", mode = \"0888\" }",
            &[(12, "Volume a/v: export.mode: '0888' is not a file mode")],
        ),
        (
            EXPORT,
            "export = { socket = \"/a\", owner = \"\" }",
            &[(12, "Volume a/v: export.owner: not a valid account name or number")],
        ),
        (
            EXPORT,
            "export = { socket = \"/a\", name = \"\" }",
            &[(12, "Volume a/v: export.name: the name is not valid")],
        ),
        (
            EXPORT,
            "export = { socket = \"/run/0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012\" }",
            &[(12, "Volume a/v: export.socket: the path has 108 bytes")],
        ),
    ]);
}

/// [`GOOD`] with a second volume.
fn second(lines: &str) -> Vec<String> {
    let text = format!("{GOOD}[vm.a.volume.w]\ndevice = \"d\"\n{lines}\n");
    let found = match parse("host.toml", &text) {
        Ok(host) => host.warnings,
        Err(found) => found.0,
    };
    found.into_iter().map(|found| found.message).collect()
}

#[test]
fn two_volumes_may_not_share_exclusive_resources() {
    let own = "source = \"/srv/vm/w.img\"\nexport = { socket = \"/run/sluice/w.sock\" }";
    assert_eq!(second(own), [""; 0]);
    let taken = own.replace("/w.sock", "/a.sock");
    assert_eq!(second(&taken), ["Volume a/w: /run/sluice/a.sock is already used by Volume a/v"]);
    let host = format!("{own}\n[nbd]\nsocket = \"/run/sluice/w.sock\"");
    assert_eq!(second(&host), ["Volume a/w: /run/sluice/w.sock is already used by [nbd]"]);
    let control = format!("{own}\n[daemon]\ncontrol = \"/run/sluice/w.sock\"");
    assert_eq!(second(&control), ["Volume a/w: /run/sluice/w.sock is already used by [daemon] control"]);
    let long = format!("{own}\n[daemon]\ncontrol = \"/{}\"", "x".repeat(107));
    assert_eq!(second(&long), ["Host file: daemon.control: the path has 108 bytes"]);
    let any = own.replace("socket = \"/run/sluice/w.sock\"", "listen = \"127.0.0.1:10809\"")
        + "\n[nbd]\nlisten = \"0.0.0.0:10809\"\ninsecure = true";
    let reach = "[nbd]: any client that reaches 0.0.0.0:10809 can read and write the volumes";
    assert_eq!(second(&any), ["Volume a/w: 127.0.0.1:10809 is already used by [nbd]", reach]);
    let name = own.replace("w.sock\"", "w.sock\", name = \"a/v\"");
    assert_eq!(second(&name), ["Volume a/w: the export name 'a/v' is already used by a/v"]);
    let bytes = own.replace("w.img", "a.img") + "\noffset = \"1GiB\"";
    assert_eq!(second(&bytes), ["Volume a/w: its bytes of /srv/vm/a.img overlap those of a/v"]);
    assert_eq!(second(&(bytes + "\nread_only = true")).len(), 1);
}

#[test]
fn nbd_listened_on_the_network_without_a_setting_of_the_operator() {
    let open = |more: &str| found(&(GOOD.to_owned() + "[nbd]\nlisten = \"192.0.2.1:10809\"\n" + more));
    let reach = vec!["[nbd]: any client that reaches 192.0.2.1:10809 can read and write the volumes".to_owned()];
    assert_eq!(open(""), (reach.clone(), true));
    assert_eq!(open("insecure = false"), (reach.clone(), true));
    assert_eq!(open("insecure = true"), (reach, false));
    assert_eq!(found(&(GOOD.to_owned() + "[nbd]\nlisten = \"[::1]:10809\"\n")), (vec![], false));
    let own = GOOD.replace("socket = \"/run/sluice/a.sock\"", "listen = \"192.0.2.1:10809\"");
    assert!(found(&own).1 && !found(&own.replace("10809\"", "10809\", insecure = true")).1);
}

#[test]
fn ranges_of_one_source_may_touch_and_readers_may_overlap() {
    let with = |first: &str, second: &str| {
        let text = GOOD.replace("source", &format!("{first}\nsource")) + "[vm.a.volume.w]\ndevice = \"d\"\n" + second;
        let text = text + "\nsource = \"/srv/vm/a.img\"\nexport = { socket = \"/run/sluice/w.sock\" }\n";
        parse("host.toml", &text).map_or_else(|found| found.errors(), |_| 0)
    };
    assert_eq!(with("size = \"1GiB\"", "offset = \"1GiB\""), 0);
    assert_eq!(with("size = \"1GiB\"", "offset = \"512MiB\""), 1);
    assert_eq!(with("offset = \"1GiB\"", "size = \"1GiB\""), 0);
    assert_eq!(with("read_only = true", "read_only = true"), 0);
    assert_eq!(with("read_only = true", "size = \"512B\""), 1);
}

#[test]
fn a_policy_on_two_devices_causes_a_warning() {
    let more = "[device.e]\npath = \"/dev/sdb\"\n[vm.a.volume.w]\ndevice = \"e\"\nsource = \"/srv/vm/w.img\"\n\
                export = { socket = \"/run/sluice/w.sock\" }\n";
    let text = GOOD.replace("= 100\n", "= 200\n") + more;
    let warnings = parse("host.toml", &text).unwrap().warnings;
    assert_eq!(warnings.len(), 1);
    // rule: mclock.two-devices
    assert_eq!(warnings[0].message, "VM a has volumes on 2 devices: d, e");
    assert_eq!((warnings[0].line, warnings[0].column, warnings[0].length), (7, 5, 1));
}

#[test]
fn ten_errors_are_ten_diagnostics() {
    let text = r#"
[device.d]
paht = "/dev/sda"
depth = 0
capacity = 1000
[policy.p]
limit = 0
wait = 3
[vm.a]
policy = "gold"
[vm.a.volume.v]
device = "e"
source = "a.img"
export = { type = "iscsi", socket = "a.sock" }
"#;
    let found = parse("host.toml", text).unwrap_err();
    let lines: Vec<u32> = found.0.iter().map(|found| found.line).collect();
    // Line 2, because the misspelt path is also missing.
    assert_eq!(lines, [2, 3, 4, 5, 7, 8, 10, 12, 13, 14, 14], "{found}");
    assert_eq!((found.errors(), found.warnings()), (11, 0));
}

#[test]
fn json_diagnostics_have_positions_for_editors() {
    let found = parse("host.toml", &GOOD.replace("weight", "wieght")).unwrap_err();
    assert_eq!(
        serde_json::to_value(&found).unwrap(),
        serde_json::json!([{
            "severity": "error",
            "file": "host.toml",
            "line": 6,
            "column": 1,
            "length": 6,
            "message": "Policy p: unknown key 'wieght'",
            "hint": "did you mean 'weight'?",
        }])
    );
}

#[test]
fn the_number_of_diagnostics_is_limited() {
    let text: String = (0..3000).map(|n| format!("key{n} = 1\n")).collect();
    let found = parse("host.toml", &text).unwrap_err();
    assert_eq!(found.0.len(), DIAGNOSTICS_MAX + 1);
    assert_eq!(found.0[DIAGNOSTICS_MAX].message, "2000 more findings are not shown");
    let text: String = (0..10_001).map(|n| format!("[vm.v{n}]\n")).collect();
    assert_eq!(parse("host.toml", &text).unwrap_err().0[0].message, "Host file: 10001 tables of 'vm' are too many");
}

#[test]
fn text_of_a_file_cannot_control_the_terminal() {
    let shown = refused("\"\\u001b[2J\" = 1\n");
    assert!(!shown.contains('\u{1b}'), "{shown}");
    let shown = refused("a = \u{1b}[2J\n");
    assert!(!shown.contains('\u{1b}'), "{shown}");
}
