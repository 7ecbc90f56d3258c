//! Every key of the host file in one list. The reader takes known keys and ranges from it, the schema its properties,
//! and the manual its pages. A key that is not listed does not exist.

use core::time::Duration;

use sluice_sched::Descriptor;
use sluice_sched::params::Parameter;
use sluice_sched::scheduler::DeviceClass;

mod kinds;
mod net;
mod policy;
mod server;
mod serving;
mod words;

pub use net::{NET, NIC, UPLINK};
pub use policy::{BURST, BURST_RATE, CPU_KEY, LATENCY, LIMIT, POLICY, POLICY_KEYS, RESERVATION};
pub(crate) use server::{CERTIFICATE, CERTIFICATE_KEY, SERVER_KEYS};
pub use server::{GATEWAY, NODE_TLS};
pub use serving::{ACCESS, ALERT, DAEMON, EXPORT, HISTORY, JAIL, NBD, NBD_GATEWAY, NBD_TLS, TLS_CLIENT};
pub use words::Part;

/// A table of the host file.
#[derive(Debug)]
pub struct Section {
    /// Title as in its header, for example `device.NAME`.
    pub title: &'static str,
    /// Purpose.
    pub doc: &'static str,
    /// Keys in groups, since the keys of a policy appear in three tables.
    pub groups: &'static [&'static [Key]],
    /// Kinds of its devices: for each scheduler of any of these it also has a table with parameters, named like the scheduler.
    pub scheduler_tables: &'static [DeviceClass],
}

/// A key of a table.
#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    /// Accepted values.
    pub kind: Kind,
    /// Default, as a value or in words.
    pub default: Option<&'static str>,
    /// An example value.
    pub example: &'static str,
    /// Effect.
    pub doc: &'static str,
    /// Whether its value may give access to something, as a URL with a token does. It is left out of reports.
    pub is_secret: bool,
}

/// Accepted values.
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
    /// The name of a `device`, an `uplink` or a `policy`.
    Name(&'static str),
    /// Any text.
    Text,
    /// An absolute path.
    Path,
    /// A path of a device, a list of them, the address of a server, or a pool of a Ceph cluster.
    DiskPaths,
    /// A path, an export of a server, or an RBD image.
    Source,
    /// A path, or objects of a Ceph cluster.
    Meeting,
    /// An address and a port.
    Address,
    /// Permissions in octal, as text.
    Mode,
    /// A list of users and groups.
    Accounts,
    /// A list of names, or `*` for all of them.
    Names,
    /// A list of these words.
    Words(&'static [&'static str]),
    /// A size in bytes, with its unit.
    Size(u64, u64),
    /// A time, with its unit.
    Time(Duration, Duration),
    /// A rate of normalised requests.
    Iops,
    /// A rate of bytes.
    ByteRate,
    /// The rate of a network link, in bits or bytes.
    LinkRate,
    /// A part of a whole, in hundredths of a percent.
    Percent(u16, u16),
    /// The name of a network interface.
    Interface,
    /// An Ethernet address.
    Mac,
    /// A list of IP addresses with the lengths of their prefixes.
    Networks,
    /// Any of these.
    Either(&'static [Kind]),
    /// A nested table.
    Table(&'static Section),
    /// Named nested tables.
    Named(&'static Section),
    /// A list of tables.
    List(&'static Section),
    /// A table in which further keys are names of other keys of the file, with lists of values.
    Open(&'static Section),
    /// A file, relative to the folder of this file.
    File,
    /// A name of a list, or a table with its `type` and parameters.
    Chosen(&'static Choice),
    /// Named tables with a `type` and its parameters.
    NamedChoices(&'static Choice),
}

/// A list of named options with parameters.
pub struct Choice {
    /// Title of an option's table, for example `device.NAME.model`.
    pub title: &'static str,
    /// Kind of the options, for example `model`.
    pub what: &'static str,
    /// Purpose.
    pub doc: &'static str,
    /// All options.
    pub options: fn() -> Vec<Choosable>,
}

/// An option of a list, and names and values of parameters.
pub type Like = (&'static str, &'static [(&'static str, &'static str)]);

/// An option.
pub struct Choosable {
    pub name: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    pub parameters: Vec<Parameter>,
    /// The option that it is based on, with the parameters whose defaults differ.
    pub like: Option<Like>,
}

impl core::fmt::Debug for Choice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.title)
    }
}

impl Section {
    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> + use<> {
        self.groups.iter().copied().flatten()
    }

    /// The key with that name.
    #[must_use]
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys().find(|key| key.name == name)
    }

    /// Schedulers with a table for parameters.
    pub(crate) fn schedulers(&self) -> impl Iterator<Item = &'static Descriptor> + use<> {
        let classes = self.scheduler_tables;
        let all = sluice_papers::ALL.iter().copied();
        all.filter(move |scheduler| classes.iter().any(|class| scheduler.is_for(*class)))
    }
}

impl Key {
    pub const fn new(name: &'static str, kind: Kind, example: &'static str, doc: &'static str) -> Self {
        Key { name, kind, default: None, example, doc, is_secret: false }
    }

    pub const fn default(self, default: &'static str) -> Self {
        Key { default: Some(default), ..self }
    }

    pub const fn secret(self) -> Self {
        Key { is_secret: true, ..self }
    }
}

const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Maximum file offset.
pub const OFFSET_MAX: u64 = i64::MAX as u64;
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub const MICROSECOND: Duration = Duration::from_micros(1);

pub static HOST: Section = Section {
    title: "",
    doc: "The host file: devices and uplinks, the VMs that use them, and their policies",
    groups: &[&[
        Key::new("device", Kind::Named(&DEVICE), "", "A disk shared by VMs, with a scheduler in front of it"),
        Key::new("uplink", Kind::Named(&UPLINK), "", "A network link shared by NICs, with a scheduler in front of it"),
        Key::new("policy", Kind::Named(&POLICY), "", "Guarantees and limits of a VM, under a name"),
        Key::new("vm", Kind::Named(&VM), "", "A VM, the unit to which a policy applies"),
        Key::new("nbd", Kind::Table(&NBD), "", "Serves every volume over NBD by its export name"),
        Key::new("daemon", Kind::Table(&DAEMON), "", "The daemon itself"),
        Key::new("alert", Kind::Named(&ALERT), "", "A program or a URL that is notified of events of a class"),
    ]],
    scheduler_tables: &[],
};

/// `[device.NAME]`
pub static DEVICE: Section = Section {
    title: "device.NAME",
    doc: "A disk shared by VMs, with a scheduler in front of it",
    groups: &[
        &[
            Key::new(
                "path",
                Kind::DiskPaths,
                "\"/dev/nvme0n1\"",
                "The disk's block device, or any file or folder stored on the disk. A list of such paths makes the device one of \
                 several disks, which share its scheduler and capacity. The last part of a path may have one `*`, as in \
                 `[\"/dev/rbd/vms/*\"]`: it stands for any characters, and the pattern for the block devices with such names, also \
                 those that appear later. Or another NBD server, as `\"nbd://10.0.0.7:10809\"` or `\"nbd+unix:/run/node.sock\"`, \
                 which [stores its volumes](how-to/storage-nodes.md), or [a pool of a Ceph cluster](how-to/ceph.md), as `\"rbd:vms\"` or \
                 `\"rbd:vms/NAMESPACE\"`",
            ),
            Key::new(
                "backend",
                Kind::Word(&["direct", "null"]),
                "\"direct\"",
                "direct: the disk; null: requests complete immediately and nothing is stored, for measurements. Reads \
                 return zeroes over NBD, and leave the guest's buffers unchanged over vhost-user",
            )
            .default("\"direct\""),
        ],
        SERVER_KEYS,
        SCHEDULER_KEYS,
        &[Key::new(
            "rotational",
            Kind::Bool,
            "false",
            "Whether a request near the previous one is much cheaper than a \
                                                       distant one",
        )
        .default("as the disk reports")],
        MERGING_KEYS,
        LATENCY_KEYS,
        BUSY_POLL_KEYS,
        &[
            ADMISSION,
            Key::new(
                "window",
                Kind::Table(&WINDOW),
                "{ requests = 128, bytes = \"32MiB\" }",
                "Maximum of one VM's outstanding requests; further ones stay in its socket",
            ),
        ],
        COST_KEYS,
        &[
            Key::new(
                "pool",
                Kind::Table(&POOL),
                "{ meeting = \"/srv/meta/sluice\", host = 3 }",
                "Makes the device a part of storage that other hosts use too. `capacity` is then that of the whole storage, and \
                 reservations hold although others are busy. Needs `capacity` and `latency`",
            ),
            Key::new(
                "delay",
                Kind::Table(&DELAY),
                "{ time = \"4ms\", parallel = 8 }",
                "Delays requests, so that any file behaves like a device of known capacity",
            ),
        ],
    ],
    scheduler_tables: &[DeviceClass::Disk],
};

/// Whether reservations must fit the device.
pub const ADMISSION: Key = Key::new(
    "admission",
    Kind::Word(&["on", "off"]),
    "\"on\"",
    "off: reservations that do not fit the device, and bursts too small for them, are accepted with a warning",
)
.default("\"on\"");
/// Scheduler of a device, and the properties that it assumes.
pub const SCHEDULER_KEYS: &[Key] = &[
    Key::new("scheduler", Kind::Scheduler, "\"mclock\"", "The scheduler; its parameters are in a table with its name")
        .default("\"mclock\""),
    Key::new(
        "depth",
        Kind::Integer(1, 65_536),
        "32",
        "Queue depth: the maximum number of requests in flight at the device",
    )
    .default("32"),
    Key::new(
        "capacity",
        Kind::Iops,
        "\"40000 iops@8KiB\"",
        "Sustained worst-case throughput in requests; required if requests or, on a disk, bytes are reserved",
    ),
    Key::new(
        "bandwidth",
        Kind::ByteRate,
        "\"2GiB/s\"",
        "Sustained worst-case throughput in bytes; required if bytes are reserved",
    ),
    Key::new(
        "reference_size",
        Kind::Size(512, MIB),
        "\"8KiB\"",
        "The request size that costs 1 in every rate; a power of two",
    )
    .default("\"8KiB\""),
];
pub const MERGING_KEYS: &[Key] = &[Key::new(
    "merging",
    Kind::Bool,
    "true",
    "Whether requests of one volume that are adjacent on the device are merged into one",
)
.default("by the scheduler: elevators merge, tag-based schedulers do not")];
pub const LATENCY_KEYS: &[Key] = &[Key::new(
    "latency",
    Kind::Time(Duration::from_micros(100), Duration::from_secs(1)),
    "\"8ms\"",
    "Mean time of a request at the device from which on it counts as full: what is in flight follows it, at most `depth`. At least \
     1.1 times what the device takes for one request of the largest usual size, or it gives less than it could. Needs `capacity`",
)
.default("none: what is in flight is `depth`")];
const BUSY_POLL_KEYS: &[Key] = &[Key::new(
    "busy_poll",
    Kind::Bool,
    "true",
    "Whether the device's thread polls without pause while a client is connected. Requests then need not wake it, but it \
     uses a whole CPU, which no other thread should need. Rejected if the daemon runs at a real-time priority, because no \
     other thread could then run on that CPU",
)
.default("false")];
pub const COST_KEYS: &[Key] =
    &[Key::new("cost", Kind::Table(&COST), "{ knee = \"300kB\" }", "Cost of requests, in normalised requests")];

/// `window` of a device.
pub static WINDOW: Section = Section {
    title: "device.NAME.window",
    doc: "Maximum of one VM's outstanding requests in the daemon; further ones stay in its socket or its virtqueues. \
          If a VM has several volumes, a volume may take another request only while it holds less than the VM has \
          free. Example with 64 requests: the only volume of a VM may hold 64; two busy volumes stop at 22 each, which \
          leaves 20 free",
    groups: &[&[
        Key::new("requests", Kind::Integer(1, WINDOW_REQUESTS_MAX), "128", "Maximum number of requests of one VM")
            .default("4 times the depth, at least 64"),
        Key::new(
            "bytes",
            Kind::Size(256 * KIB, 64 * GIB),
            "\"32MiB\"",
            "Maximum amount of data in the requests of one VM",
        )
        .default("\"32MiB\""),
    ]],
    scheduler_tables: &[],
};
/// Maximum number of requests in a gate.
pub(crate) const WINDOW_REQUESTS_MAX: u64 = 65_536;

/// `cost` of a device.
pub static COST: Section = Section {
    title: "device.NAME.cost",
    doc: "Cost of requests, in normalised requests",
    groups: &[&[
        Key::new(
            "knee",
            Kind::Size(512, GIB),
            "\"300kB\"",
            "Request size at which the transfer takes as long as positioning: a read or write costs (knee + its size) \
             / (knee + reference_size). Example: with 300kB and 8KiB, 256KiB cost 562144 / 308192 = 1.82",
        )
        .default("\"300kB\""),
        Key::new(
            "write_factor",
            Kind::Decimal(0.1, 100.0),
            "2.0",
            "Cost of a write relative to a read of the same size, for devices that write more slowly. Rates in requests count \
             it: with 2.0 a limit of 1000 iops passes 500 writes of 8 KiB per second. `capacity` is then that of reads",
        )
        .default("1.0"),
        Key::new("flush", COST_RANGE, "1.0", "Cost of a flush").default("1.0"),
        Key::new(
            "discard",
            COST_RANGE,
            "1.0",
            "Minimum cost of a discard, and of a write of zeroes that the device executes itself. If the daemon has to \
             write the zeroes, they cost as much as a write of that length",
        )
        .default("1.0"),
        Key::new(
            "discard_mib",
            DISCARD_MIB_RANGE,
            "0.015625",
            "Cost per MiB of such a discard or write of zeroes. The larger of this cost and `discard` applies",
        )
        .default("0.015625"),
    ]],
    scheduler_tables: &[],
};
const COST_RANGE: Kind = Kind::Decimal(0.001, 65_535.0);
/// At least 1 for 64 MiB: see `CostModel::DISCARD_MIB_MIN`.
const DISCARD_MIB_RANGE: Kind = Kind::Decimal(0.015625, 65_535.0);

/// `[device.NAME.pool]`
pub static POOL: Section = Section {
    title: "device.NAME.pool",
    doc: "Storage that several hosts use. Their daemons meet in a file, a block device or objects on it, which `sluice pool create` \
          prepares, and each has a number of its own there",
    groups: &[&[
        Key::new(
            "meeting",
            Kind::Meeting,
            "\"/srv/meta/sluice\"",
            "The file or block device where hosts meet. Every host reaches it, and it is on the storage that they share. In a Ceph cluster \
             it may be objects of a pool: `\"rados:vms/sluice\"`",
        ),
        Key::new("host", Kind::Integer(1, 64), "3", "Number of this host, which no other host of the pool has"),
    ]],
    scheduler_tables: &[],
};

/// `[device.NAME.delay]`
pub static DELAY: Section = Section {
    title: "device.NAME.delay",
    doc: "Delays requests, so that any file behaves like a device that completes parallel / time requests per second. \
          Example: 8 / 4 ms = 2,000 requests per second",
    groups: &[&[
        Key::new(
            "time",
            Kind::Either(&[DELAY_RANGE, Kind::Table(&DELAY_TIME)]),
            "\"4ms\"",
            "Duration of each request: fixed or random",
        ),
        Key::new("parallel", Kind::Integer(1, 65_536), "8", "Number of requests that are delayed concurrently")
            .default("1"),
        Key::new("bandwidth", Kind::ByteRate, "\"60MB/s\"", "Adds the time to transfer the data at this rate"),
        Key::new("log", Kind::Path, "\"/tmp/slots.csv\"", "File to which one line per request is written"),
        Key::new("seed", Kind::Integer(0, i64::MAX as u64), "1", "Seed of the random durations").default("1"),
    ]],
    scheduler_tables: &[],
};
const DELAY_RANGE: Kind = Kind::Time(MICROSECOND, Duration::from_secs(60));

/// `time` of a delay, if it varies.
pub static DELAY_TIME: Section = Section {
    title: "device.NAME.delay.time",
    doc: "Random durations: exponentially distributed with a mean, or uniformly distributed between two bounds",
    groups: &[&[
        Key::new("mean", DELAY_RANGE, "\"4ms\"", "Mean of the exponential distribution"),
        Key::new("min", DELAY_RANGE, "\"3ms\"", "Shortest duration"),
        Key::new("max", DELAY_RANGE, "\"11ms\"", "Longest duration"),
    ]],
    scheduler_tables: &[],
};

/// `[vm.NAME]`
pub static VM: Section = Section {
    title: "vm.NAME",
    doc: "A VM. Its policy applies to all its volumes on a device together, and to each device separately. The policy in \
          `net` applies in the same way to its NICs on each uplink. Policy fields stated here override those of the named \
          policy",
    groups: &[
        &[
            Key::new("policy", Kind::Name("policy"), "\"gold\"", "Name of its policy").default("only weight 100"),
            Key::new(
                "allow_slow",
                Kind::Bool,
                "true",
                "Accepts a limit that may delay a request by more than 30 s, after which guests may give up",
            )
            .default("false"),
            Key::new("volume", Kind::Named(&VOLUME), "", "A virtual disk"),
            Key::new("nic", Kind::Named(&NIC), "", "A virtual NIC"),
        ],
        POLICY_KEYS,
        CPU_KEY,
        net::NET_KEY,
    ],
    scheduler_tables: &[],
};

/// `[vm.NAME.volume.NAME]`
pub static VOLUME: Section = Section {
    title: "vm.NAME.volume.NAME",
    doc: "A virtual disk. If it has its own policy, it competes by that policy with the other volumes of its VM on the \
          same device. Together, the volumes of a VM may reserve at most what the VM reserves. If one of them reserves \
          nothing, the others may reserve at most that minus the scheduler's `weight_floor`",
    groups: &[
        &[
            Key::new("device", Kind::Name("device"), "\"nvme0\"", "The device on which it is stored"),
            Key::new(
                "source",
                Kind::Source,
                "\"/srv/vm/db1.img\"",
                "File or block device that holds its data. A symbolic link is followed only if no user except root can \
                 change it. On a device that is another NBD server, an export of it: `\"nbd://10.0.0.7:10809/db1/root\"` or \
                 `\"nbd+unix:///db1/root?socket=/run/node.sock\"`. On a device that is a pool of a Ceph cluster, an image: \
                 `\"rbd:vms/db1-root\"`",
            ),
            Key::new(
                "offset",
                Kind::Size(0, OFFSET_MAX),
                "\"1GiB\"",
                "Start of the volume in its source, in whole sectors of 512 B",
            )
            .default("\"0B\""),
            Key::new(
                "size",
                Kind::Size(512, OFFSET_MAX),
                "\"10GiB\"",
                "Size of the volume, in whole sectors of 512 B; required on a null device",
            )
            .default("up to the end of its source"),
            Key::new("read_only", Kind::Bool, "true", "Rejects writes").default("false"),
            Key::new(
                "format",
                Kind::Word(&["raw"]),
                "\"raw\"",
                "raw: skips the check for other image formats. The check runs only before a source is served for the first \
                 time",
            ),
            Key::new(
                "cache",
                Kind::Word(&["direct", "buffered"]),
                "\"direct\"",
                "buffered: uses the host's page cache, where guarantees do not apply",
            )
            .default("\"direct\""),
            Key::new(
                "block_size",
                Kind::Size(512, 64 << 10),
                "\"4KiB\"",
                "Logical block size that the guest sees, a power of two. It belongs to the data: a partition table made for one \
                 size is not found with another. The daemon remembers it, and holds the volume back if it would change. If it \
                 is smaller than the disk's blocks, the daemon reads and rewrites whole blocks of the disk for smaller writes",
            )
            .default("that of the last time; 512B at the first, or 4KiB if there is a GPT for such blocks"),
            Key::new(
                "discard",
                Kind::Word(&["unmap", "ignore"]),
                "\"ignore\"",
                "unmap: discards of the guest free space of the source. ignore: they succeed without effect, and zeroed ranges \
                 stay allocated",
            )
            .default("\"unmap\""),
            Key::new(
                "serial",
                Kind::Text,
                "\"WD-4711\"",
                "Serial number that the guest sees, 1 to 20 printable ASCII characters; different for each volume of a VM",
            )
            .default("the volume's name; of a name with more than 20 characters the first 11, a hyphen and a checksum of all"),
            Key::new(
                "policy",
                Kind::Name("policy"),
                "\"gold\"",
                "Named policy of the volume, relative to the other volumes of its VM",
            )
            .default("only weight 100"),
            Key::new(
                "export",
                Kind::Table(&EXPORT),
                "{ type = \"vhost-user-blk\", socket = \"/run/sluice/db1-root.sock\" }",
                "How the VM accesses the volume",
            ),
        ],
        POLICY_KEYS,
    ],
    scheduler_tables: &[],
};
