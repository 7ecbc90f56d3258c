//! Every key of the host file: one list, from which the reader takes what is known and in which range, the schema its
//! properties, and the manual its pages. A key that is read and not listed here does not exist.

use core::time::Duration;

use sluice_sched::params::Parameter;
use sluice_sched::policy::{BURST_MAX, IDLE_CREDIT_MAX, PRIORITY_LEVEL_MAX};
use sluice_sched::scheduler::Medium;
use sluice_sched::{Descriptor, schedulers};

mod serving;

pub use serving::{DAEMON, EXPORT, NBD};

/// A table of the host file.
#[derive(Debug)]
pub struct Section {
    /// How its header reads, for example `device.NAME`.
    pub title: &'static str,
    /// What it is for.
    pub doc: &'static str,
    /// Its keys; in groups, since the keys of a policy appear in three tables.
    pub groups: &'static [&'static [Key]],
    /// Of what its devices can be: for each scheduler of those it also has a table with parameters, named like the scheduler.
    pub scheduler_tables: &'static [Medium],
}

/// A key of a table.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub kind: Kind,
    /// What holds without it, as it would be written or in words.
    pub default: Option<&'static str>,
    /// A value as it would be written.
    pub example: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// What a value may be.
#[derive(Debug)]
pub enum Kind {
    /// `true` or `false`
    Bool,
    /// A whole number.
    Integer(u64, u64),
    /// A decimal number.
    Decimal(f64, f64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// The name of a scheduler.
    Scheduler,
    /// The name of a `device` or a `policy`.
    Name(&'static str),
    /// Any text.
    Text,
    /// An absolute path.
    Path,
    /// An address and a port.
    Address,
    /// Permissions in octal, as text.
    Mode,
    /// A size in bytes, with its unit.
    Size(u64, u64),
    /// A time, with its unit.
    Time(Duration, Duration),
    /// A rate of normalised requests.
    Iops,
    /// A rate of bytes.
    ByteRate,
    /// Any of these.
    Either(&'static [Kind]),
    /// A table of its own.
    Table(&'static Section),
    /// Tables of its own, each with a name.
    Named(&'static Section),
    /// A list of tables.
    List(&'static Section),
    /// A table in which keys beside the listed ones are names of other keys of the file, with lists of values.
    Open(&'static Section),
    /// A file, from the folder in which this one is.
    File,
    /// One of many by its name, or a table with its `type` and its parameters.
    Chosen(&'static Choice),
    /// Tables with a `type` and its parameters, each with a name.
    NamedChoices(&'static Choice),
}

/// Things of which one is chosen by its name, and that have parameters.
pub struct Choice {
    /// How a table of one reads, for example `device.NAME.model`.
    pub title: &'static str,
    /// What they are, for example `model`.
    pub what: &'static str,
    /// What they are for.
    pub doc: &'static str,
    /// All of them.
    pub options: fn() -> Vec<Choosable>,
}

/// One of a list, and names and values of parameters.
pub type Like = (&'static str, &'static [(&'static str, &'static str)]);

/// One that can be chosen.
pub struct Choosable {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// What can be changed.
    pub parameters: Vec<Parameter>,
    /// Another one of the list that it is, and where its parameters have other defaults than that one's.
    pub like: Option<Like>,
}

impl core::fmt::Debug for Choice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.title)
    }
}

impl Section {
    /// Every key in it.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> + use<> {
        self.groups.iter().copied().flatten()
    }

    /// The key of that name.
    #[must_use]
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys().find(|key| key.name == name)
    }

    /// Schedulers that it has tables for.
    pub(crate) fn schedulers(&self) -> impl Iterator<Item = &'static Descriptor> + use<> {
        self.scheduler_tables.iter().copied().flat_map(schedulers::for_medium)
    }
}

impl Key {
    pub const fn new(name: &'static str, kind: Kind, example: &'static str, doc: &'static str) -> Self {
        Key { name, kind, default: None, example, doc }
    }

    pub const fn default(self, default: &'static str) -> Self {
        Key { default: Some(default), ..self }
    }
}

const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// What a file offset can say.
pub const OFFSET_MAX: u64 = i64::MAX as u64;
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub const MICROSECOND: Duration = Duration::from_micros(1);

/// The file itself.
pub static HOST: Section = Section {
    title: "",
    doc: "The host file: the devices, who may use them and what they are promised",
    groups: &[&[
        Key::new("device", Kind::Named(&DEVICE), "", "A disk that VMs share, with a scheduler in front of it"),
        Key::new("policy", Kind::Named(&POLICY), "", "What a VM is promised and held to, under a name"),
        Key::new("vm", Kind::Named(&VM), "", "A VM: the one who is promised something"),
        Key::new("nbd", Kind::Table(&NBD), "", "Serves every volume over NBD by its export name"),
        Key::new("daemon", Kind::Table(&DAEMON), "", "The daemon itself"),
    ]],
    scheduler_tables: &[],
};

/// `[device.NAME]`
pub static DEVICE: Section = Section {
    title: "device.NAME",
    doc: "A disk that VMs share, with a scheduler in front of it",
    groups: &[
        &[
            Key::new(
                "path",
                Kind::Path,
                "\"/dev/nvme0n1\"",
                "The block device, or a file or folder on the disk that is meant",
            ),
            Key::new(
                "backend",
                Kind::Word(&["direct", "null"]),
                "\"direct\"",
                "direct: the disk; null: completes at once and stores nothing, for measurements",
            )
            .default("\"direct\""),
        ],
        SCHEDULER_KEYS,
        &[Key::new("rotational", Kind::Bool, "false", "Whether near requests are much cheaper than far ones")
            .default("as the disk says")],
        MERGING_KEYS,
        &[
            Key::new(
                "admission",
                Kind::Word(&["on", "off"]),
                "\"on\"",
                "off: reservations that do not fit the device, and bursts too small for them, are accepted with a warning",
            )
            .default("\"on\""),
            Key::new(
                "window",
                Kind::Table(&WINDOW),
                "{ requests = 128, bytes = \"32MiB\" }",
                "How much of one VM's work is taken in; the rest waits in its socket",
            ),
        ],
        COST_KEYS,
        &[Key::new(
            "delay",
            Kind::Table(&DELAY),
            "{ time = \"4ms\", parallel = 8 }",
            "Makes of any file a device of known capacity",
        )],
    ],
    scheduler_tables: &[Medium::Disk],
};

/// What a device's scheduler is, and what it is told of the device.
pub const SCHEDULER_KEYS: &[Key] = &[
    Key::new(
        "scheduler",
        Kind::Scheduler,
        "\"mclock\"",
        "Who decides which request goes next; its parameters stand in a table of its name",
    )
    .default("\"mclock\""),
    Key::new("depth", Kind::Integer(1, 65_536), "32", "Requests that the device takes at once").default("32"),
    Key::new(
        "capacity",
        Kind::Iops,
        "\"40000 iops@8KiB\"",
        "Requests that the device can be relied on to serve; mandatory where requests or, on a disk, bytes are reserved",
    ),
    Key::new(
        "bandwidth",
        Kind::ByteRate,
        "\"2GiB/s\"",
        "Bytes that the device can be relied on to transfer; mandatory where bytes are reserved",
    ),
    Key::new(
        "reference_size",
        Kind::Size(512, MIB),
        "\"8KiB\"",
        "The size that counts as one request in every rate; a power of two",
    )
    .default("\"8KiB\""),
];
pub const MERGING_KEYS: &[Key] = &[Key::new(
    "merging",
    Kind::Bool,
    "true",
    "Whether requests of one volume that are neighbours on the device go to it as one",
)
.default("as the scheduler wants: elevators do, schedulers by tags do not")];
pub const COST_KEYS: &[Key] =
    &[Key::new("cost", Kind::Table(&COST), "{ knee = \"300kB\" }", "What a request costs, in normalised requests")];

/// `window` of a device.
pub static WINDOW: Section = Section {
    title: "device.NAME.window",
    doc: "How much of one VM's work is taken in; the rest waits in its socket or its virtqueues. Of several volumes each may hold as \
          much of it as it leaves free",
    groups: &[&[
        Key::new("requests", Kind::Integer(1, WINDOW_REQUESTS_MAX), "128", "Requests of one VM")
            .default("4 times the depth, at least 64"),
        Key::new("bytes", Kind::Size(256 * KIB, 64 * GIB), "\"32MiB\"", "Data of one VM's requests")
            .default("\"32MiB\""),
    ]],
    scheduler_tables: &[],
};
/// What a gate has room for.
pub(crate) const WINDOW_REQUESTS_MAX: u64 = 65_536;

/// `cost` of a device.
pub static COST: Section = Section {
    title: "device.NAME.cost",
    doc: "What a request costs, in normalised requests",
    groups: &[&[
        Key::new(
            "knee",
            Kind::Size(512, GIB),
            "\"300kB\"",
            "The size at which transferring takes as long as positioning",
        )
        .default("\"300kB\""),
        Key::new("flush", COST_RANGE, "1.0", "A flush").default("1.0"),
        Key::new(
            "discard",
            COST_RANGE,
            "1.0",
            "A discard, or zeroes that the device makes by itself, at least; zeroes that are written cost as the write",
        )
        .default("1.0"),
        Key::new("discard_mib", DISCARD_MIB_RANGE, "0.015625", "Each MiB of it; a request costs the larger of both")
            .default("0.015625"),
    ]],
    scheduler_tables: &[],
};
const COST_RANGE: Kind = Kind::Decimal(0.001, 65_535.0);
/// At least 1 for 64 MiB: see `CostModel::DISCARD_MIB_MIN`.
const DISCARD_MIB_RANGE: Kind = Kind::Decimal(0.015625, 65_535.0);

/// `[device.NAME.delay]`
pub static DELAY: Section = Section {
    title: "device.NAME.delay",
    doc: "Makes of any file a device of known capacity: parallel / time requests per second",
    groups: &[&[
        Key::new(
            "time",
            Kind::Either(&[DELAY_RANGE, Kind::Table(&DELAY_TIME)]),
            "\"4ms\"",
            "How long each request takes: always the same, or spread",
        ),
        Key::new("parallel", Kind::Integer(1, 65_536), "8", "Requests that are delayed side by side").default("1"),
        Key::new("bandwidth", Kind::ByteRate, "\"60MB/s\"", "Adds the time to transfer the data at this rate"),
        Key::new("log", Kind::Path, "\"/tmp/slots.csv\"", "A file that gets one line per request"),
        Key::new("seed", Kind::Integer(0, i64::MAX as u64), "1", "Where the random times start").default("1"),
    ]],
    scheduler_tables: &[],
};
const DELAY_RANGE: Kind = Kind::Time(MICROSECOND, Duration::from_secs(60));

/// `time` of a delay, where it is spread.
pub static DELAY_TIME: Section = Section {
    title: "device.NAME.delay.time",
    doc: "Exponential times of a mean, or times between two bounds",
    groups: &[&[
        Key::new("mean", DELAY_RANGE, "\"4ms\"", "The mean of exponential times"),
        Key::new("min", DELAY_RANGE, "\"3ms\"", "The shortest time"),
        Key::new("max", DELAY_RANGE, "\"11ms\"", "The longest time"),
    ]],
    scheduler_tables: &[],
};

/// `[policy.NAME]`
pub static POLICY: Section = Section {
    title: "policy.NAME",
    doc: "What a VM is promised and held to, on each device that it uses",
    groups: &[POLICY_KEYS],
    scheduler_tables: &[],
};

pub const POLICY_KEYS: &[Key] = &[
    Key::new("reservation", RESERVATION_KIND, "\"2000 iops@8KiB\"", "What it always gets while it asks for it")
        .default("\"none\""),
    Key::new("limit", LIMIT_KIND, "\"8000 iops@8KiB\"", "What it never exceeds").default("\"unlimited\""),
    Key::new(
        "weight",
        Kind::Either(&[Kind::Decimal(0.01, 1_000_000.0), NONE]),
        "400",
        "Its part of what is left over; none: it is served by its reservation alone",
    )
    .default("100"),
    Key::new(
        "burst",
        Kind::Integer(1, BURST_MAX as u64),
        "64",
        "What the limit lets through together: one piece of any size, and one request of the reference size less than this number",
    )
    .default("the device's depth times its largest piece, 256 KiB"),
    Key::new(
        "idle_credit",
        Kind::Integer(0, IDLE_CREDIT_MAX as u64),
        "16",
        "How far its share may lag behind while it is idle, in requests",
    )
    .default("1"),
    Key::new(
        "class",
        Kind::Word(&["foreground", "background"]),
        "\"background\"",
        "background: gets only what nobody else wants, beyond its reservation",
    )
    .default("\"foreground\""),
    Key::new(
        "priority_class",
        Kind::Word(&["real-time", "best-effort", "idle"]),
        "\"best-effort\"",
        "Class of its I/O priority, as ionice has it",
    )
    .default("\"best-effort\""),
    Key::new(
        "priority_level",
        Kind::Integer(0, PRIORITY_LEVEL_MAX as u64),
        "4",
        "Level in that class, 0 is the highest and 7 the lowest",
    )
    .default("4"),
    Key::new(
        "latency",
        LATENCY_KIND,
        "{ p99 = \"5ms\", reads_only = true }",
        "A target; a scheduler with deadlines enforces it",
    )
    .default("\"none\""),
    Key::new(
        "allow_unenforced",
        Kind::Bool,
        "true",
        "Accepts what the device's scheduler does not enforce, with a warning",
    )
    .default("false"),
];
const RESERVATION_KIND: Kind = Kind::Either(&[Kind::Iops, Kind::ByteRate, NONE, Kind::Table(&RESERVATION)]);
const LIMIT_KIND: Kind = Kind::Either(&[Kind::Iops, Kind::ByteRate, UNLIMITED, Kind::Table(&LIMIT)]);
const LATENCY_KIND: Kind = Kind::Either(&[NONE, Kind::Table(&LATENCY)]);
const UNLIMITED: Kind = Kind::Word(&["unlimited"]);
const NONE: Kind = Kind::Word(&["none"]);

/// `reservation` as a table.
pub static RESERVATION: Section = Section {
    title: "policy.NAME.reservation",
    doc: "Requests and bytes, each of them a minimum of its own; or what a latency needs by Little's law",
    groups: &[&[
        Key::new("iops", Kind::Iops, "\"2000 iops@8KiB\"", "Normalised requests per second"),
        Key::new("bytes", Kind::ByteRate, "\"10MiB/s\"", "Bytes per second"),
        Key::new("outstanding", Kind::Integer(1, 1_000_000), "32", "Requests that the VM keeps queued"),
        Key::new("latency", LATENCY_RANGE, "\"65ms\"", "The average latency that it then sees"),
    ]],
    scheduler_tables: &[],
};
const LATENCY_RANGE: Kind = Kind::Time(MICROSECOND, HOUR);

/// `limit` as a table.
pub static LIMIT: Section = Section {
    title: "policy.NAME.limit",
    doc: "Requests and bytes; both must pass",
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

/// `latency` of a policy.
pub static LATENCY: Section = Section {
    title: "policy.NAME.latency",
    doc: "A target at percentiles",
    groups: &[&[
        Key::new("p99", LATENCY_RANGE, "\"5ms\"", "99 of 100 requests within this time"),
        Key::new("reads_only", Kind::Bool, "true", "Whether it holds for reads alone").default("false"),
    ]],
    scheduler_tables: &[],
};

/// `[vm.NAME]`
pub static VM: Section = Section {
    title: "vm.NAME",
    doc: "A VM: its policy holds for its volumes together, on each device; what stands here overrides the named policy",
    groups: &[
        &[
            Key::new("policy", Kind::Name("policy"), "\"gold\"", "The policy that it has").default("weight 100 alone"),
            Key::new(
                "allow_slow",
                Kind::Bool,
                "true",
                "Accepts a limit at which a request may be held for more than 30 s, longer than guests wait",
            )
            .default("false"),
            Key::new("volume", Kind::Named(&VOLUME), "", "A virtual disk"),
        ],
        POLICY_KEYS,
    ],
    scheduler_tables: &[],
};

/// `[vm.NAME.volume.NAME]`
pub static VOLUME: Section = Section {
    title: "vm.NAME.volume.NAME",
    doc: "A virtual disk; with a policy of its own it competes by it with the other volumes of its VM on that device. Volumes \
          reserve together at most what their VM does; where one of them reserves nothing, less the scheduler's \
          `weight_floor`",
    groups: &[
        &[
            Key::new("device", Kind::Name("device"), "\"nvme0\"", "The device on which it lies"),
            Key::new(
                "source",
                Kind::Path,
                "\"/srv/vm/db1.img\"",
                "The file or block device that holds its data; symbolic links are followed where only root can change them",
            ),
            Key::new(
                "offset",
                Kind::Size(0, OFFSET_MAX),
                "\"1GiB\"",
                "Where it starts in its source; whole sectors of 512 B",
            )
            .default("\"0B\""),
            Key::new(
                "size",
                Kind::Size(512, OFFSET_MAX),
                "\"10GiB\"",
                "How large it is, in whole sectors of 512 B; mandatory on a null device",
            )
            .default("up to the end of its source"),
            Key::new("read_only", Kind::Bool, "true", "Refuses writes").default("false"),
            Key::new(
                "cache",
                Kind::Word(&["direct", "buffered"]),
                "\"direct\"",
                "buffered: through the page cache, where its promises are not given",
            )
            .default("\"direct\""),
            Key::new("policy", Kind::Name("policy"), "\"gold\"", "Its policy among the volumes of its VM")
                .default("weight 100 alone"),
            Key::new(
                "export",
                Kind::Table(&EXPORT),
                "{ type = \"vhost-user-blk\", socket = \"/run/sluice/db1-root.sock\" }",
                "How the VM reaches it",
            ),
        ],
        POLICY_KEYS,
    ],
    scheduler_tables: &[],
};
