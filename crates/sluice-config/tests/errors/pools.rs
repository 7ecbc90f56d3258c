//! Storage that hosts share.

use super::*;

/// [`GOOD`] with a pool.
fn pool(device: &str, keys: &str) -> String {
    let bandwidth = "bandwidth = \"100MiB/s\"\n";
    GOOD.replace(bandwidth, &format!("{bandwidth}{device}\n[device.d.pool]\n{keys}\n"))
}

const LATENCY: &str = "latency = \"8ms\"";

#[test]
fn a_pool_that_cannot_work_is_refused() {
    let good = pool(LATENCY, "meeting = \"/srv/meta/sluice\"\nhost = 64");
    assert!(parse("host.toml", &good).is_ok(), "{}", refused(&good));
    for (text, message, hint) in [
        (pool(LATENCY, "meeting = \"meta/sluice\"\nhost = 1"), "meeting", "write an absolute path"),
        (pool(LATENCY, "meeting = \"/srv/vm/a.img\"\nhost = 1"), "is volume a/v", "of its own"),
        (pool(LATENCY, "meeting = \"/dev/sda\"\nhost = 1"), "is its path", "of its own"),
        (pool(LATENCY, "meeting = \"rados:vms\"\nhost = 1"), "meeting", "write rados:POOL/NAME"),
        (pool(LATENCY, "meeting = \"rbd:vms/a\"\nhost = 1"), "relative path", "write an absolute path"),
        (
            pool("latency = \"8ms\"\nceph_user = \"client.a\"", "meeting = \"rados:vms/a\"\nhost = 1"),
            "no name of a user",
            "without client.",
        ),
        (pool(LATENCY, "meeting = \"/m\"\nhost = 0"), "host", "from 1 to 64"),
        (pool(LATENCY, "meeting = \"/m\"\nhost = 65"), "host", "from 1 to 64"),
        (pool(LATENCY, "host = 1"), "meeting", "add meeting"),
        (pool(LATENCY, "meeting = \"/m\""), "host", "add host"),
        (pool("", "meeting = \"/m\"\nhost = 1"), "which pool needs", "add latency"),
        (pool("latency = \"2s\"", "meeting = \"/m\"\nhost = 1"), "latency", "1s"),
        (
            good.replace("path = \"/dev/sda\"", "backend = \"null\""),
            "a device that stores nothing shares nothing",
            "remove the pool",
        ),
    ] {
        let refused = refused(&text);
        assert!(refused.contains(message) && refused.contains(hint), "{message}: {refused}");
    }
    let twice = good
        + "[device.e]\npath = \"/dev/sdb\"\ncapacity = \"1000 iops\"\nlatency = \"8ms\"\n[device.e.pool]\nmeeting = \"/srv/meta/sluice\"\nhost = 2\n";
    assert!(refused(&twice).contains("device d meets at /srv/meta/sluice already"), "{}", refused(&twice));
}

#[test]
fn hosts_meet_in_objects_of_the_cluster_of_their_device() {
    let keys = "meeting = \"rados:vms/tenant-a/sluice\"\nhost = 1";
    let text = pool("latency = \"8ms\"\nceph_conf = \"/etc/other.conf\"\nceph_user = \"b\"", keys);
    let host = parse("host.toml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(host.warnings.is_empty(), "{:?}", host.warnings);
    let meeting = &host.devices["d"].pool.as_ref().unwrap().meeting;
    assert_eq!(meeting.to_string(), "rados:vms/tenant-a/sluice");
    assert_eq!(meeting.as_arguments(), "rados:vms/tenant-a/sluice --ceph-conf /etc/other.conf --ceph-user b");
}

#[test]
fn what_hosts_need_to_meet_is_not_sold() {
    let keys = "meeting = \"/srv/meta/sluice\"\nhost = 1";
    let reserves = |text: &str| text.replace("weight = 100", "weight = 100\nreservation = \"978 iops\"");
    assert!(parse("host.toml", &reserves(GOOD)).is_ok(), "{}", refused(&reserves(GOOD)));
    let refused = refused(&reserves(&pool(LATENCY, keys)));
    assert!(refused.contains("capacity = 1000 iops@8KiB, of which hosts of a pool meet with 4 iops each"), "{refused}");
    assert!(refused.contains("lower it to at most 976.08 iops"), "{refused}");
}
