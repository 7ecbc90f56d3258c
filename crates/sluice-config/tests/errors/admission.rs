//! Reservations, limits and bursts that do not fit a device or a VM.

use super::*;

/// [`GOOD`] with these keys of VM a and of another VM, b.
fn two_vms(a: &str, b: &str) -> String {
    let more = format!(
        "[vm.b]\n{b}\n[vm.b.volume.v]\ndevice = \"d\"\nsource = \"/srv/vm/b.img\"\n\
         export = {{ socket = \"/run/sluice/b.sock\" }}\n"
    );
    GOOD.replace("weight = 100", a) + &more
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

// rule: mclock.admission
#[test]
fn reservations_of_small_requests_that_the_bandwidth_does_not_carry_were_admitted() {
    let narrow = |reservation: &str, bandwidth: &str| {
        found(&GOOD.replace("weight = 100", reservation).replace("100MiB/s", bandwidth))
    };
    let (messages, refused) = narrow("reservation = \"980 iops\"", "1MiB/s");
    assert!(refused);
    assert_eq!(
        messages,
        [
            "Device d: VM a reserves 980 iops@8KiB, 765.63% of the device by requests (capacity = 1000 iops@8KiB, of which \
             bandwidth = 1MiB/s carries 128 iops); at most 98% can be reserved because weight_floor is 2%: short by 667.63%"
        ]
    );
    assert_eq!(narrow("reservation = \"125 iops\"", "1MiB/s"), (vec![], false));
    assert_eq!(narrow("reservation = \"980 iops\"", "8MiB/s"), (vec![], false));
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
    for floorless in ["mclock = { weight_floor = \"0%\" }", "scheduler = \"mclock-paper\""] {
        let text = two_vms("reservation = \"1000 iops\"", "weight = 3");
        let text = text.replace("capacity =", &format!("{floorless}\ncapacity ="));
        assert_eq!(found(&text), (vec![], false), "{floorless} keeps no floor");
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
         its largest piece, or 100 ms of the limit

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
fn limits_that_delay_requests_longer_than_guests_wait() {
    let weight = "weight = 100";
    check(&[
        (
            weight,
            "limit = \"1 iops\"",
            &[(
                6,
                "VM a: at its limit of requests a full window of device d takes up to 358 s, longer than \
                 guests wait for a request (SCSI drivers: 30 s)",
            )],
        ),
        (
            weight,
            "limit = \"1MiB/s\"",
            &[(
                6,
                "VM a: at its limit of bytes a full window of device d takes up to 32 s, longer than \
                 guests wait for a request (SCSI drivers: 30 s)",
            )],
        ),
    ]);
    check(&[(
        "source =",
        "limit = \"2 iops\"\nsource =",
        &[(
            11,
            "Volume a/v: at its limit of requests a full window of device d takes up to 179 s, longer than \
             guests wait for a request (SCSI drivers: 30 s)",
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

/// The limits of all volumes together let less pass than the VM reserves. The rest of its reservation is sold for nothing.
#[test]
fn a_reservation_that_the_limits_of_the_volumes_cannot_reach_was_accepted_without_a_word() {
    let with = |vm: &str, volume: &str| {
        found(&GOOD.replace("weight = 100", vm).replace("[vm.a.volume.v]", &format!("[vm.a.volume.v]\n{volume}")))
    };
    let (messages, refused) = with("reservation = \"500 iops\"", "limit = \"100 iops\"");
    let warning =
        "VM a on device d: it reserves 500 iops, but the limits of its volumes let at most 100 iops pass together";
    assert_eq!((messages, refused), (vec![warning.to_owned()], false));
    let halves = "read_limit = \"200 iops\"\nwrite_limit = \"299 iops\"";
    assert_eq!(with("reservation = \"500 iops\"", halves).0.len(), 1);
    assert_eq!(with("reservation = \"20MiB/s\"", "limit = \"19MiB/s\"").0.len(), 1);
    for (vm, volume) in [
        ("500 iops", "limit = \"500 iops\""),
        ("500 iops", "write_limit = \"100 iops\""),
        ("500 iops", "limit = \"3MiB/s\""),
    ] {
        assert_eq!(with(&format!("reservation = \"{vm}\""), volume), (vec![], false), "{vm}, {volume}");
    }
}
