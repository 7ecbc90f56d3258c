use super::*;

/// A disk of 1000 iops and, if stated, 100 MiB/s.
fn supply(bandwidth: Option<u64>, floor: u16) -> Supply {
    let bytes = bandwidth.map(|mib| ByteRate::per_second(Bytes::mib(mib).0));
    let capacity = Capacity { iops: Some(Iops::per_second(1000)), bytes };
    let weight_floor = Percent::from_hundredths(floor);
    Supply { capacity, weight_floor, reservable: Percent::WHOLE, device_class: DeviceClass::Disk }
}

fn reserving(iops: Option<u64>, mib: Option<u64>) -> Policy {
    let bytes = mib.map(|mib| ByteRate::per_second(Bytes::mib(mib).0));
    Policy { reservation: Reservation { iops: iops.map(Iops::per_second), bytes }, ..Policy::default() }
}

fn admits(supply: &Supply, policies: &[Policy]) -> Result<(), AdmissionError> {
    let names: Vec<String> = (0..policies.len()).map(|number| format!("vm{number}")).collect();
    admit(supply, names.iter().map(String::as_str).zip(policies))
}

#[test]
fn littles_law_matches_the_examples_of_the_paper() {
    assert_eq!(reservation_for(8, Duration::from_millis(25)), Iops::per_second(320));
    assert_eq!(reservation_for(32, Duration::from_millis(65)).milli() / 1000, 492);
}

// rule: mclock.admission
#[test]
fn a_sum_over_capacity_is_refused_with_the_arithmetic() {
    let (a, b) = (reserving(Some(600), None), reserving(Some(500), None));
    assert_eq!(admits(&supply(None, 200), &[a, Policy::default()]), Ok(()));
    assert_eq!(
        admits(&supply(None, 200), &[a, Policy::default(), b]).unwrap_err().to_string(),
        "VM vm2 reserves 500 iops, 50% of the device by requests; 1 VM already reserves 60%, with this one 110%; at \
         most 98% can be reserved because weight_floor is 2%: short by 12% (already reserved: vm0 60% by requests). Lower it \
         to at most 380 iops, or place the VM on another device"
    );
    let nothing = Supply { capacity: Capacity::default(), ..supply(None, 200) };
    let none = admits(&nothing, &[a]).unwrap_err().to_string();
    assert!(none.contains("VM vm0 reserves 600 iops, but the device has no capacity;"), "{none}");
}

// rule: mclock.admission
#[test]
fn a_reservation_in_requests_was_promised_for_requests_that_the_bandwidth_does_not_carry() {
    let (cost, piece) = (CostModel::default(), Bytes::kib(256));
    let largest =
        |bandwidth: u64, policies: &[Policy]| supply(Some(bandwidth), 200).request_max(policies, &cost, piece);
    let (most, half) = (reserving(Some(980), None), reserving(Some(490), None));
    assert_eq!(largest(140, &[most]), None, "980 x 256 KiB / 1.82 are 134 MiB/s");
    assert_eq!(largest(100, &[half]), None);
    // 980 requests per second of 159,232 bytes, each of which counts as 1.49, are 104,720,000 bytes per second.
    let size = largest(100, &[most]).unwrap();
    assert_eq!((size, largest(100, &[half, half])), (Bytes(159_232), Some(size)));
    let needed = |size: u64| 980.0 * size as f64 / cost.cost(Kind::Read, size as u32).as_f64();
    let bandwidth = Bytes::mib(100).0 as f64;
    assert!(needed(size.0) <= bandwidth && needed(size.0 + 512) > bandwidth, "{size} of {}", needed(size.0));
    let beside = reserving(None, Some(40));
    assert!(largest(100, &[half, beside]).unwrap() < Bytes::kib(256), "bytes that others have reserved are not there");
    assert_eq!(largest(100, &[beside]), None, "nothing is reserved in requests");
    assert_eq!(supply(None, 0).request_max(&[most], &cost, piece), None, "the bandwidth is not known");
}

// rule: mclock.admission
#[test]
fn all_requests_and_all_bytes_of_a_device_were_sold_to_two_vms() {
    let (requests, bytes) = (reserving(Some(1000), None), reserving(None, Some(100)));
    let both = [requests, bytes];
    assert!(admits(&supply(Some(100), 0), &both[..1]).is_ok() && admits(&supply(Some(100), 0), &both[1..]).is_ok());
    let refusal = admits(&supply(Some(100), 0), &both).unwrap_err().to_string();
    assert!(
        refusal.contains(
            "with this one 200%; at most 100% can be reserved: short by 100% (already reserved: vm0 100% \
             by requests). Lower the other"
        ),
        "{refusal}"
    );
    // One VM takes the larger of its two parts, not their sum.
    assert_eq!(admits(&supply(Some(100), 0), &[reserving(Some(1000), Some(100))]), Ok(()));
    let halves = [reserving(Some(500), Some(20)), reserving(Some(100), Some(40)), reserving(Some(10), Some(10))];
    assert_eq!(admits(&supply(Some(100), 0), &halves), Ok(()));
    let refusal = admits(&supply(Some(100), 0), &[halves[0], halves[1], reserving(Some(20), Some(11))]).unwrap_err();
    let AdmissionError::Over(short) = refusal else { panic!("{refusal}") };
    assert_eq!((short.claim.binding, show(&short.free).as_str()), (Currency::Bytes, "100 iops and 10MiB/s"));
    assert_eq!(short.listed(), " (already reserved: vm0 50% by requests, vm1 40% by bytes)");
}

// rule: mclock.admission
#[test]
fn a_link_reserves_at_most_the_part_that_may_be_reserved() {
    let link = |reservable, floor| Supply {
        capacity: Capacity { iops: None, bytes: Some(ByteRate::per_second(Bytes::mib(100).0)) },
        reservable: Percent::from_hundredths(reservable),
        device_class: DeviceClass::Network,
        ..supply(None, floor)
    };
    let mib = |mib| reserving(None, Some(mib));
    assert_eq!(admits(&link(7500, 200), &[mib(50), mib(25)]), Ok(()));
    let refusal = admits(&link(7500, 200), &[mib(50), mib(26)]).unwrap_err().to_string();
    let why = "with this one 76%; at most 75% can be reserved because reservable is 75%: short by 1%";
    assert!(refusal.contains(why) && refusal.contains("Lower it to at most 25MiB/s"), "{refusal}");
    assert_eq!(link(7500, 200).free_each([&mib(50)], 1, &mib(1).reservation), mib(25).reservation);
    // The floor that the scheduler keeps binds if it is the larger part.
    let refusal = admits(&link(9900, 200), &[mib(99)]).unwrap_err().to_string();
    assert!(refusal.contains("at most 98% can be reserved because weight_floor is 2%"), "{refusal}");
}

// rule: mclock.admission
#[test]
fn bytes_without_a_capacity_in_requests_were_admitted() {
    let bandwidth = Capacity { iops: None, bytes: Some(ByteRate::per_second(Bytes::mib(100).0)) };
    let disk = Supply { capacity: bandwidth, ..supply(None, 0) };
    let refusal = admits(&disk, &[reserving(None, Some(10))]).unwrap_err().to_string();
    assert!(refusal.starts_with("VM vm0 reserves 10MiB/s, but the device has no capacity;"), "{refusal}");
    let link = Supply { device_class: DeviceClass::Network, ..disk };
    assert_eq!(admits(&link, &[reserving(None, Some(100))]), Ok(()), "a link transfers bytes alone");
    let refusal = admits(&supply(None, 0), &[reserving(None, Some(10))]).unwrap_err().to_string();
    assert!(refusal.contains("the device has no bandwidth;"), "{refusal}");
    let nothing = Supply { capacity: Capacity::default(), ..supply(None, 0) };
    let refusal = admits(&nothing, &[reserving(Some(5), Some(10))]).unwrap_err().to_string();
    assert!(refusal.contains("reserves 5 iops and 10MiB/s, but the device has no capacity and no bandwidth;"));
}

// rule: mclock.admission
#[test]
fn all_but_the_floor_is_admitted_and_not_a_thousandth_more() {
    let milli = |milli| Policy {
        reservation: Reservation { iops: Some(Iops::from_milli(milli)), bytes: None },
        ..Policy::default()
    };
    for bandwidth in [None, Some(100), Some(77)] {
        let supply = supply(bandwidth, 200);
        assert_eq!(admits(&supply, &[milli(980_000)]), Ok(()));
        assert_eq!(admits(&supply, &[milli(326_667), milli(326_667), milli(326_666)]), Ok(()));
        let over = admits(&supply, &[milli(326_667), milli(326_667), milli(326_667)]).unwrap_err();
        let AdmissionError::Over(short) = over else { panic!("{over}") };
        assert_eq!((short.sum, short.short, short.free.iops), (Part(9801), Part(1), Some(Iops::from_milli(326_666))));
    }
    // What is said to be free is free, and no byte more: 98 % of 77 MiB/s is not a whole number.
    let supply = supply(Some(77), 200);
    let bytes = |rate| Policy {
        reservation: Reservation { iops: None, bytes: Some(ByteRate::per_second(rate)) },
        ..Policy::default()
    };
    let AdmissionError::Over(short) = admits(&supply, &[milli(333_333), bytes(u64::MAX)]).unwrap_err() else {
        panic!("more than the device has")
    };
    let free = short.free.bytes.unwrap().bytes_per_second();
    assert_eq!(admits(&supply, &[milli(333_333), bytes(free)]), Ok(()));
    assert!(admits(&supply, &[milli(333_333), bytes(free + 1)]).is_err());
}

#[test]
fn the_largest_rates_do_not_overflow() {
    let most = Reservation { iops: Some(Iops::from_milli(u64::MAX)), bytes: Some(ByteRate::per_second(u64::MAX)) };
    let capacity = Capacity { iops: most.iops, bytes: most.bytes };
    let supply =
        Supply { capacity, weight_floor: Percent::ZERO, reservable: Percent::WHOLE, device_class: DeviceClass::Disk };
    let policy = Policy { reservation: most, ..Policy::default() };
    assert_eq!(admits(&supply, &[policy]), Ok(()));
    assert!(admits(&supply, &[policy, policy]).is_err());
    assert_eq!(supply.reserved(&[policy; 3]), Some(Part(30_000)));
    assert_eq!([0, 1, 10, 205, 10_010].map(|part| Part(part).to_string()), ["0%", "0.01%", "0.1%", "2.05%", "100.1%"]);
}

// rule: mclock.volume-sum
#[test]
fn volumes_reserve_at_most_what_their_vm_does() {
    let vm = Policy::default().reserving(100);
    let half = Policy::default().reserving(50);
    assert_eq!(volumes_fit(&vm, [&half, &half]), Ok(()));
    assert!(volumes_fit(&vm, [&half, &half, &half]).is_err());
    assert!(volumes_fit(&Policy::default(), [&half]).unwrap_err().to_string().contains("the VM only nothing"));
}

// rule: mclock.volume-sum
#[test]
fn the_requests_and_the_bytes_of_a_vm_are_not_sold_to_two_volumes() {
    let vm = reserving(Some(500), Some(50));
    let (requests, bytes) = (reserving(Some(500), None), reserving(None, Some(50)));
    assert_eq!(volumes_fit_device(&supply(None, 200), &vm, [&requests, &bytes]), Ok(()), "bandwidth unknown");
    let refusal = volumes_fit_device(&supply(Some(100), 200), &vm, [&requests, &bytes]).unwrap_err().to_string();
    assert_eq!(
        refusal,
        "Volumes of one VM reserve 100% of the device (equal to 1000 iops or 100MiB/s) together, but the VM only 50% of \
         it; raise the VM's reservation or lower theirs"
    );
    let halves = [reserving(Some(250), Some(25)); 2];
    assert_eq!(volumes_fit_device(&supply(Some(100), 200), &vm, &halves), Ok(()));
    let raised = reserving(Some(1000), Some(50));
    assert_eq!(volumes_fit_device(&supply(Some(100), 200), &raised, [&requests, &bytes]), Ok(()));
}

// rule: mclock.volume-sum, mclock.weight-floor
#[test]
fn a_volume_was_sold_the_floor_of_its_neighbour() {
    let (vm, by_weight) = (reserving(Some(500), None), Policy::default());
    let fits = |supply: Supply, reserved: u64| {
        volumes_fit_device(&supply, &vm, [&reserving(Some(reserved), None), &by_weight])
    };
    for bandwidth in [None, Some(100)] {
        assert_eq!(fits(supply(bandwidth, 200), 490), Ok(()));
        assert_eq!(
            fits(supply(bandwidth, 200), 491).unwrap_err().to_string(),
            "Volumes of one VM reserve 491 iops together, but the VM only 500 iops, of which weight_floor keeps 2% for its \
             volumes without a reservation; raise the VM's reservation or lower theirs"
        );
        assert_eq!(fits(supply(bandwidth, 0), 500), Ok(()), "without a floor");
        let alone = [&reserving(Some(500), None)];
        assert_eq!(volumes_fit_device(&supply(bandwidth, 200), &vm, alone), Ok(()), "no volume without a reservation");
    }
    // Parts of the device: 49.5 % by bytes of the VM's 50 %.
    let both = reserving(Some(500), Some(50));
    let volumes = [reserving(Some(100), Some(10)), reserving(Some(395), Some(20)), by_weight];
    let refusal = volumes_fit_device(&supply(Some(100), 200), &both, &volumes).unwrap_err().to_string();
    assert!(refusal.contains("of which weight_floor keeps 2%"), "{refusal}");
}
