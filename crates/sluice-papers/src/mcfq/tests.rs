use super::*;
use crate::elevator::drive::Drive;
use sluice_sched::policy::Policy;

/// Two VMs of weights 400 and 100 read 4 KiB; reads of the first take `slow` times as long. Returns the ratio of their
/// bandwidths in the last ten of `seconds` seconds.
fn ratio(stated: &[(&str, &str)], descriptor: &Descriptor, slow: u64, seconds: u64) -> f64 {
    let mut drive = Drive::new(descriptor, stated, 0);
    drive.owner(0, Policy::weighted(400));
    drive.owner(1, Policy::weighted(100));
    let (mut asked, mut served, mut late) = ([0u64; 2], [0u64; 2], [0u64; 2]);
    let end = drive.now + Duration::from_secs(seconds);
    while drive.now < end {
        for owner in 0..2u32 {
            let at = owner as usize;
            while asked[at] < served[at] + 8 {
                drive.read(owner, u64::from(owner) * 100_000_000 + asked[at]);
                asked[at] += 1;
            }
        }
        match drive.decide() {
            Decision::Dispatch(request) => {
                let (owner, page) = (request.owner.0, request.offset / 4096);
                drive.wait(if owner == 0 { 500 * slow } else { 500 });
                drive.done(owner, page);
                served[owner as usize] += 1;
                late[owner as usize] += u64::from(end.since(drive.now) < Duration::from_secs(10));
            }
            Decision::WaitUntil(until) => drive.now = until,
            other => panic!("{other:?}"),
        }
    }
    late[0] as f64 / late[1] as f64
}

/// rule: mcfq.t4, mcfq.t8, mcfq.apply, mcfq.roles
#[test]
fn bandwidth_follows_the_weights_although_equal_time_does_not() {
    let plain = ratio(&[("mode", "group")], &cfq::DESCRIPTOR, 2, 30);
    assert!((1.7..2.3).contains(&plain), "CFQ shares time: {plain}");
    let corrected = ratio(&[("window", "5")], &DESCRIPTOR, 2, 60);
    assert!((3.5..4.5).contains(&corrected), "corrected: {corrected}");
}

/// rule: mcfq.window, mcfq.t2
#[test]
fn parameters_of_cfq_are_accepted() {
    let build = |stated: &[(&str, &str)]| {
        let table = crate::elevator::drive::params(stated);
        DESCRIPTOR.build(&DeviceInfo::default(), &table).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(build(&[("mode", "paper"), ("window", "20"), ("slice_idle", "0s"), ("interval", "2s")]), Ok(()));
    assert!(build(&[("window", "0")]).unwrap_err().contains("from 1 to 1000 samples"));
    assert!(build(&[("interval", "0s")]).is_err() && build(&[("mode", "group")]).is_err());
    assert!(build(&[("slice_sync", "0s")]).is_err());
    let names: Vec<&str> = DESCRIPTOR.parameters.iter().map(|parameter| parameter.name).collect();
    assert_eq!(names.iter().filter(|name| **name == "mode").count(), 1);
    assert!(names.contains(&"group_idle") && names.contains(&"tick"));
}
