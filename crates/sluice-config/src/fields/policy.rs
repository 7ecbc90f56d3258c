//! Keys of a policy: of `[policy.NAME]`, and of VMs and volumes, which have the same.

use core::time::Duration;

use sluice_sched::policy::{BURST_MAX, IDLE_CREDIT_MAX, PRIORITY_LEVEL_MAX};

use super::kinds::{ALLOW_UNENFORCED, LATENCY_RANGE, NONE, UNLIMITED, WEIGHT_KIND};
use super::net::NET_KEY;
use super::{Key, Kind, Section};

/// `[policy.NAME]`
pub static POLICY: Section = Section {
    title: "policy.NAME",
    doc: "Guarantees and limits of a VM on each device that it uses",
    groups: &[POLICY_KEYS, CPU_KEY, NET_KEY],
    scheduler_tables: &[],
};

pub const POLICY_KEYS: &[Key] = &[
    Key::new(
        "reservation",
        RESERVATION_KIND,
        "\"2000 iops@8KiB\"",
        "Minimum throughput while the VM or volume has requests queued. In bytes, a small request counts as what the device transfers \
         in its time: its cost x bandwidth / capacity",
    )
    .default("\"none\""),
    Key::new(
        "limit",
        LIMIT_KIND,
        "\"8000 iops@8KiB\"",
        "Maximum throughput, apart from the burst, even on an idle device",
    )
    .default("\"unlimited\""),
    Key::new(
        "read_limit",
        LIMIT_KIND,
        "\"5000 iops@8KiB\"",
        "Maximum throughput of reads, in addition to `limit`. Reads that it delays do not delay writes",
    )
    .default("\"unlimited\""),
    Key::new(
        "write_limit",
        LIMIT_KIND,
        "\"100MiB/s\"",
        "The same for writes, zeroes, discards and flushes. Requests that it delays do not delay reads",
    )
    .default("\"unlimited\""),
    Key::new(
        "weight",
        WEIGHT_KIND,
        "400",
        "Share of the spare capacity, relative to the weights of other VMs, or of the VM's other volumes; none: only the reservation",
    )
    .default("100"),
    Key::new(
        "burst",
        BURST_KIND,
        "64",
        "Amount that each limit lets through back to back after a pause: one piece of any size plus (`burst` - 1) \
         requests of the reference size. As a table: a rate above the limits, and for how long it may last",
    )
    .default("the device's depth times its largest piece, 256 KiB, or 100 ms of the limit if that is more"),
    Key::new(
        "idle_credit",
        Kind::Integer(0, IDLE_CREDIT_MAX as u64),
        "16",
        "How far the VM or volume may lag behind virtual time when it becomes active again, in requests, so that a short pause \
         does not reduce its share",
    )
    .default("1"),
    Key::new(
        "class",
        Kind::Word(&["foreground", "background"]),
        "\"background\"",
        "background: the reservation applies unchanged. Above it, depending on the scheduler, the VM has the smallest \
         weight, 0.01, or is served only while no foreground VM has requests queued",
    )
    .default("\"foreground\""),
    Key::new(
        "priority_class",
        Kind::Word(&["real-time", "best-effort", "idle"]),
        "\"best-effort\"",
        "Class of the I/O priority, as in ionice",
    )
    .default("\"best-effort\""),
    Key::new(
        "priority_level",
        Kind::Integer(0, PRIORITY_LEVEL_MAX as u64),
        "4",
        "Level within that class, from 0 (highest) to 7 (lowest)",
    )
    .default("4"),
    Key::new(
        "latency",
        LATENCY_KIND,
        "{ p99 = \"5ms\", reads_only = true }",
        "Latency target; enforced by schedulers with deadlines",
    )
    .default("\"none\""),
    ALLOW_UNENFORCED,
];
/// Key of a policy that applies to the whole VM, on its disks and uplinks.
pub const CPU_KEY: &[Key] = &[Key::new(
    "cpu_limit",
    Kind::Either(&[CPU_LIMIT, UNLIMITED]),
    "\"25%\"",
    "Maximum CPU time that the daemon uses for the VM, as a part of one CPU, on each device and each uplink separately. \
     Above it, the daemon takes nothing from the VM's sockets, rings and TAPs until the excess is made up for. Frames \
     that the VM receives do not count. Ignored in the policy of a volume or a NIC",
)
.default("\"unlimited\"")];
const CPU_LIMIT: Kind = Kind::Percent(100, 10_000);
const RESERVATION_KIND: Kind = Kind::Either(&[Kind::Iops, Kind::ByteRate, NONE, Kind::Table(&RESERVATION)]);
const BURST_KIND: Kind = Kind::Either(&[Kind::Integer(1, BURST_MAX as u64), Kind::Table(&BURST)]);
const LIMIT_KIND: Kind = Kind::Either(&[Kind::Iops, Kind::ByteRate, UNLIMITED, Kind::Table(&LIMIT)]);
const LATENCY_KIND: Kind = Kind::Either(&[NONE, Kind::Table(&LATENCY)]);

/// `reservation` as a table.
pub static RESERVATION: Section = Section {
    title: "policy.NAME.reservation",
    doc: "Minimum in requests, in bytes, or both. Or `outstanding` and `latency`, from which the request rate follows by \
          Little's law: outstanding / latency. Example: 32 requests at 65 ms on average need 32 / 0.065 s = 492 iops",
    groups: &[&[
        Key::new("iops", Kind::Iops, "\"2000 iops@8KiB\"", "Normalised requests per second"),
        Key::new("bytes", Kind::ByteRate, "\"10MiB/s\"", "Bytes per second"),
        Key::new("outstanding", Kind::Integer(1, 1_000_000), "32", "Number of requests that the VM keeps queued"),
        Key::new("latency", LATENCY_RANGE, "\"65ms\"", "Average latency with that number of requests"),
    ]],
    scheduler_tables: &[],
};

/// `limit` as a table.
pub static LIMIT: Section = Section {
    title: "policy.NAME.limit",
    doc: "Maximum in requests and in bytes; both apply",
    groups: &[&[
        Key::new(
            "iops",
            Kind::Either(&[Kind::Iops, UNLIMITED]),
            "\"8000 iops@8KiB\"",
            "Normalised requests per second",
        )
        .default("\"unlimited\""),
        Key::new("bytes", Kind::Either(&[Kind::ByteRate, UNLIMITED]), "\"200MiB/s\"", "Bytes per second")
            .default("\"unlimited\""),
    ]],
    scheduler_tables: &[],
};

/// `burst` as a table.
pub static BURST: Section = Section {
    title: "policy.NAME.burst",
    doc: "A rate above the limits for a time. Each limit has a credit, which is full at the start and holds at most \
          (`rate` - limit) x `for`. What the VM does not use of the limit fills the credit, and what it gets above the \
          limit empties it. While there is credit, the VM may use up to `rate`; without credit, its limit applies. \
          Example: limit 100 iops, burst 500 iops for 10 s. A VM with a full credit gets 500 iops for 10 s or 300 iops \
          for 20 s, then 100 iops, and an idle VM has a full credit again after (500 - 100) x 10 / 100 = 40 s. A burst at \
          the full rate ends after exactly `for`. QEMU's (`iops-total-max`, `iops-total-max-length`) lasts longer, \
          because during the burst QEMU also credits the rate of the limit. The burst applies to `limit`, `read_limit` \
          and `write_limit` separately, and `rate` must be above each of them",
    groups: &[&[
        Key::new(
            "rate",
            Kind::Either(&[Kind::Iops, Kind::ByteRate, Kind::Table(&BURST_RATE)]),
            "\"20000 iops@8KiB\"",
            "Maximum throughput during the burst",
        ),
        Key::new("for", Kind::Time(Duration::from_millis(1), DAY), "\"10s\"", "Longest time at that rate"),
    ]],
    scheduler_tables: &[],
};
const DAY: Duration = Duration::from_secs(24 * 3600);

/// `rate` of a burst as a table.
pub static BURST_RATE: Section = Section {
    title: "policy.NAME.burst.rate",
    doc: "Maximum during a burst in requests, in bytes, or both",
    groups: &[&[
        Key::new("iops", Kind::Iops, "\"20000 iops@8KiB\"", "Normalised requests per second"),
        Key::new("bytes", Kind::ByteRate, "\"400MiB/s\"", "Bytes per second"),
    ]],
    scheduler_tables: &[],
};

/// `latency` of a policy.
pub static LATENCY: Section = Section {
    title: "policy.NAME.latency",
    doc: "Latency target at a percentile",
    groups: &[&[
        Key::new("p99", LATENCY_RANGE, "\"5ms\"", "99 of 100 requests complete within this time"),
        Key::new("reads_only", Kind::Bool, "true", "Whether the target applies only to reads").default("false"),
    ]],
    scheduler_tables: &[],
};
