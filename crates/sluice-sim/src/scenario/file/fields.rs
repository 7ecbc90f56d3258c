//! Every key of a scenario file in one list, as for the host file. Models and workloads come from the simulator's
//! lists.

use core::time::Duration;

use crate::scenario::{models, trace};
use crate::workloads::profiles::{self, WorkloadProfile};
use sluice_sched::scheduler::DeviceClass;

use sluice_config::fields::{
    ADMISSION, COST_KEYS, Choice, Choosable, Key, Kind, LATENCY_KEYS, MERGING_KEYS, MICROSECOND, OFFSET_MAX,
    POLICY_KEYS, SCHEDULER_KEYS, Section,
};

/// `[policy.NAME]`. A model is either a disk or a link, and its policy has no part for the other.
static POLICY: Section = Section {
    title: "policy.NAME",
    doc: "Guarantees and limits of a VM on each device that it uses",
    groups: &[POLICY_KEYS],
    scheduler_tables: &[],
};

/// A value of `policies_hold`.
pub(super) const ACROSS_NODES: &str = "across-nodes";
/// The other value.
const AT_EACH_NODE: &str = "at-each-node";
/// Maximum number of nodes of one device.
pub(crate) const NODES_MAX: u64 = 64;
/// Maximum number of hosts of one device.
pub(crate) const HOSTS_MAX: u64 = sluice_pool::block::HOSTS_MAX as u64;
/// Mean time of a read or a write where the hosts of a device meet.
pub(super) const DELAY: Duration = Duration::from_millis(5);
/// Maximum number of VMs, with those that `count` makes.
pub(crate) const VMS_MAX: u64 = 100_000;
/// Maximum number of threads of one VM.
pub(crate) const THREADS_MAX: u64 = 1024;
/// Maximum number of seeds of a sweep.
pub(crate) const SEEDS_MAX: u64 = 1000;
/// Maximum length of a run.
const DURATION_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

pub static SCENARIO: Section = Section {
    title: "",
    doc: "The scenario file: modelled devices, VMs and their workloads, and events at stated times",
    groups: &[&[
        Key::new("sim", Kind::Table(&SIM), "", "Length of the simulated time, and how it is measured"),
        Key::new("host", Kind::Table(&HOST), "", "CPUs on which VMs and a driver domain spend time for requests"),
        Key::new("device", Kind::Named(&DEVICE), "", "A modelled device with a scheduler in front of it"),
        Key::new("policy", Kind::Named(&POLICY), "", "Guarantees and limits of a VM, under a name"),
        Key::new("workload", Kind::NamedChoices(&WORKLOAD), "", "Workload of a VM's thread, under a name"),
        Key::new("trace", Kind::Named(&TRACE), "", "A recorded workload, under a name"),
        Key::new("vm", Kind::Named(&VM), "", "A VM, the unit to which a policy applies"),
        Key::new("timeline", Kind::List(&TIMELINE), "", "An event at a stated time"),
        Key::new("sweep", Kind::Open(&SWEEP), "", "Runs of the same scenario with other values"),
    ]],
    scheduler_tables: &[],
};

/// `[sim]`
pub static SIM: Section = Section {
    title: "sim",
    doc: "Length of the simulated time, and how it is measured",
    groups: &[&[
        Key::new(
            "duration",
            Kind::Time(MICROSECOND, DURATION_MAX),
            "\"60s\"",
            "Length of the whole run, in virtual time",
        ),
        Key::new(
            "warm_up",
            Kind::Time(Duration::ZERO, DURATION_MAX),
            "\"5s\"",
            "Time at the start of the run that is not measured",
        )
        .default("\"0s\""),
        Key::new("window", Kind::Time(MICROSECOND, DURATION_MAX), "\"1s\"", "Length of a window in the time series")
            .default("\"1s\""),
        Key::new("seed", Kind::Integer(0, i64::MAX as u64), "1", "Seed of all random numbers").default("1"),
        ADMISSION,
    ]],
    scheduler_tables: &[],
};

/// `[host]`
pub static HOST: Section = Section {
    title: "host",
    doc: "The CPUs on which VMs and a driver domain spend time for requests, under Xen's credit scheduler. Without \
          this table requests take no CPU time",
    groups: &[&[
        Key::new("cpus", Kind::Integer(1, CPUS_MAX), "4", "Number of CPUs").default("4"),
        Key::new(
            "credit",
            Kind::Word(&["xen-3.3", "xen-4.0", "xen-4.1"]),
            "\"xen-4.1\"",
            "Version of the credit scheduler, each as in one of the papers",
        )
        .default("\"xen-4.1\""),
        Key::new(
            "driver",
            Kind::Table(&DRIVER),
            "{ cpu = 0, packet = \"20us\", request = \"200us\" }",
            "The domain that owns all devices. It spends CPU time for each request before the device receives it",
        )
        .default("none"),
    ]],
    scheduler_tables: &[],
};
/// Maximum number of CPUs of a host: one bit each.
const CPUS_MAX: u64 = 64;
const CPU: Key = Key::new(
    "cpu",
    Kind::Either(&[Kind::Word(&["any"]), Kind::Integer(0, CPUS_MAX - 1)]),
    "0",
    "The CPU on which its virtual CPU runs, from 0, or any",
)
.default("\"any\"");
const CPU_WEIGHT: Key =
    Key::new("weight", Kind::Integer(1, 65_535), "256", "Weight of the domain, relative to others on its CPU")
        .default("256");
const CPU_CAP: Key = Key::new(
    "cap",
    Kind::Integer(0, 100),
    "50",
    "Maximum CPU time of the domain, in percent of one CPU, even if the CPU is otherwise idle; 0: no maximum",
)
.default("0");
/// CPU time of one request.
const WORK: Kind = Kind::Time(Duration::ZERO, Duration::from_secs(1));

/// `driver` of the host.
pub static DRIVER: Section = Section {
    title: "host.driver",
    doc: "The driver domain: one virtual CPU that handles packets and disk requests in turn",
    groups: &[&[
        CPU,
        CPU_WEIGHT,
        CPU_CAP,
        Key::new("packet", WORK, "\"20us\"", "CPU time for each frame of a link").default("\"0s\""),
        Key::new("request", WORK, "\"200us\"", "CPU time for each request to a disk").default("\"0s\""),
    ]],
    scheduler_tables: &[],
};

/// `vcpu` of a VM.
pub static VCPU: Section = Section {
    title: "vm.NAME.vcpu",
    doc: "The VM's virtual CPU",
    groups: &[&[
        CPU,
        CPU_WEIGHT,
        CPU_CAP,
        Key::new("work", WORK, "\"5us\"", "CPU time for each request, before the VM submits it").default("\"0s\""),
        Key::new("busy", Kind::Bool, "true", "Whether it computes when it has no other work, and so never sleeps")
            .default("false"),
    ]],
    scheduler_tables: &[],
};

/// `[device.NAME]`
pub static DEVICE: Section = Section {
    title: "device.NAME",
    doc: "A modelled device with a scheduler in front of it. What the scheduler assumes about the device is stated as \
          in the host file, and never taken from the model",
    groups: &[
        &[
            Key::new(
                "model",
                Kind::Chosen(&MODEL),
                "{ type = \"constant\", rate = \"1200 iops\" }",
                "How the device serves requests",
            ),
            Key::new("nodes", Kind::Integer(1, NODES_MAX), "3", "Number of nodes, each with its own scheduler")
                .default("1"),
            Key::new(
                "policies_hold",
                Kind::Word(&[ACROSS_NODES, AT_EACH_NODE]),
                "\"across-nodes\"",
                "across-nodes: a VM's policy applies to its service at all nodes together, because its requests report \
                 to each node the service at the others (dmClock); at-each-node: each node applies the policy to its \
                 own requests as if it were the only one",
            )
            .default("across-nodes if the scheduler is mclock, otherwise at-each-node"),
        ],
        &[
            Key::new(
                "hosts",
                Kind::Integer(1, HOSTS_MAX),
                "4",
                "Number of hosts that share the device, each with its own scheduler, which sees only its own requests. `depth`, and \
                 `latency` without `pool`, hold for each of them",
            )
            .default("1"),
            Key::new(
                "pool",
                Kind::Table(&POOL),
                "{ delay = \"5ms\" }",
                "The hosts tell each other what they use, as the daemon does, and so keep reservations across all of them. Needs \
                 `hosts`, `capacity` and `latency`",
            )
            .default("none: each host does without the others"),
        ],
        SCHEDULER_KEYS,
        MERGING_KEYS,
        LATENCY_KEYS,
        COST_KEYS,
        &[
            Key::new(
                "rotational",
                Kind::Bool,
                "true",
                "Whether the scheduler assumes that near requests are much cheaper",
            )
            .default("false"),
            Key::new(
                "queue",
                Kind::Integer(1, 1 << 20),
                "128",
                "Maximum number of requests of one VM queued at the scheduler; further ones stay in the VM",
            )
            .default("65536"),
        ],
    ],
    scheduler_tables: &[DeviceClass::Disk, DeviceClass::Network],
};

/// `pool` of a device.
pub static POOL: Section = Section {
    title: "device.NAME.pool",
    doc: "How the hosts of a device exchange what they use: each reads what the others wrote, and writes, once in a period",
    groups: &[&[
        Key::new(
            "delay",
            Kind::Time(Duration::ZERO, Duration::from_secs(10)),
            "\"5ms\"",
            "Mean time of a read or a write there, exponentially distributed",
        )
        .default("\"5ms\""),
        Key::new("lost", Kind::Percent(0, 10_000), "\"10%\"", "Part of the reads and writes that fail")
            .default("\"0%\""),
        Key::new(
            "torn",
            Kind::Percent(0, 10_000),
            "\"5%\"",
            "Part of the writes of which only the first sectors arrive",
        )
        .default("\"0%\""),
    ]],
    scheduler_tables: &[],
};

/// `model` of a device.
pub static MODEL: Choice = Choice {
    title: "device.NAME.model",
    what: "model",
    doc: "How the device serves requests: a model by its name, or a table with its type and its parameters",
    options: model_options,
};

fn model_options() -> Vec<Choosable> {
    let option = |known: models::Known| Choosable {
        name: known.name(),
        summary: known.summary(),
        parameters: known.parameters(),
        like: match known {
            models::Known::Model(_) => None,
            models::Known::Preset(set) => Some((set.kind, set.numbers)),
        },
    };
    models::all().map(option).collect()
}

/// `[workload.NAME]`, and `workload` of a VM.
pub static WORKLOAD: Choice = Choice {
    title: "workload.NAME",
    what: "workload",
    doc: "Workload of a VM's thread: a table with its type and its parameters",
    options: workload_options,
};

fn workload_options() -> Vec<Choosable> {
    let option = |known: &'static WorkloadProfile| Choosable {
        name: known.name,
        summary: known.summary,
        parameters: known.parameters.to_vec(),
        like: None,
    };
    profiles::all().map(option).collect()
}

/// `[trace.NAME]`
pub static TRACE: Section = Section {
    title: "trace.NAME",
    doc: "A recorded workload that is replayed",
    groups: &[&[
        Key::new(
            "file",
            Kind::File,
            "\"traces/tpcc.trace\"",
            "Path of the trace, relative to the folder of the scenario file",
        ),
        Key::new(
            "format",
            Kind::Word(FORMATS),
            "\"spc\"",
            "Format of the trace; disksim: times in ms, disksim-ns: in ns; fio: `wait` in ms since the start, as fio 3.33 replays it",
        ),
        Key::new(
            "pace",
            Kind::Word(&["open", "closed"]),
            "\"open\"",
            "open: at the recorded times; closed: each request as soon as a previous one completes",
        )
        .default("\"open\""),
        Key::new("scale", Kind::Decimal(1e-6, 1e6), "2.0", "pace \"open\": factor by which times are multiplied")
            .default("1.0"),
        Key::new("outstanding", Kind::Integer(1, 65_536), "32", "pace \"closed\": number of outstanding requests")
            .default("1"),
        Key::new("stream", Kind::Integer(0, u32::MAX as u64), "0", "Replays only this device or volume of the trace")
            .default("all of them"),
        Key::new(
            "wrap",
            Kind::Bool,
            "true",
            "Maps offsets past the end of the VM's volume to the offset modulo its size; without it such a trace is \
             rejected",
        )
        .default("false"),
    ]],
    scheduler_tables: &[],
};
/// Names of the formats.
const FORMATS: &[&str] = &{
    let mut names = [""; trace::FORMATS.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = trace::FORMATS[index].0;
        index += 1;
    }
    names
};

/// `[vm.NAME]`
pub static VM: Section = Section {
    title: "vm.NAME",
    doc: "A VM; policy fields stated here override those of the named policy",
    groups: &[
        &[
            Key::new(
                "count",
                Kind::Integer(1, VMS_MAX),
                "1000",
                "Number of equal VMs, each with the policy, the workload and a volume of its own. Their names end in a number: \
                 with 1000, web becomes web-0001 to web-1000. An event of web applies to all of them, and one of web-0001 to that VM",
            )
            .default("one VM without a number"),
            Key::new("policy", Kind::Name("policy"), "\"gold\"", "Name of its policy").default("only weight 100"),
            Key::new("device", Kind::Name("device"), "\"disk\"", "The device that it uses"),
            Key::new(
                "workload",
                Kind::Chosen(&WORKLOAD),
                "{ type = \"closed\", outstanding = 32, size = \"8KiB\" }",
                "Workload of each of its threads: stated here, or the name of a workload",
            ),
            Key::new("trace", Kind::Name("trace"), "\"tpcc\"", "The trace that it replays instead of a workload"),
            Key::new(
                "threads",
                Kind::Integer(1, THREADS_MAX),
                "4",
                "Number of threads, each on a separate part of the volume",
            )
            .default("1"),
            Key::new(
                "placement",
                Kind::Either(&[Kind::Word(&["uniform", "round-robin"]), Kind::Integer(0, NODES_MAX - 1)]),
                "\"uniform\"",
                "Node to which a request goes: a random one, each in turn, or always the one with this number, from 0",
            )
            .default("\"uniform\""),
            Key::new(
                "host",
                Kind::Integer(1, HOSTS_MAX),
                "2",
                "Its host, of a device with several `hosts`, from 1",
            )
            .default("1"),
            Key::new("offset", Kind::Size(0, OFFSET_MAX), "\"10GiB\"", "Start of its volume on the device")
                .default("after the previous VM, by name"),
            Key::new("size", Kind::Size(1 << 20, OFFSET_MAX), "\"10GiB\"", "Size of its volume")
                .default("the device divided among its VMs"),
            Key::new(
                "cache",
                Kind::Word(&["direct", "buffered"]),
                "\"direct\"",
                "direct: the VM waits for its writes; buffered: its writes are those of a write-back cache",
            )
            .default("\"direct\""),
            Key::new(
                "guest",
                Kind::Table(&GUEST),
                "{ scheduler = \"cfq\", ring = \"xen\" }",
                "A scheduler in the guest, on top of that of the device",
            )
            .default("none"),
            Key::new(
                "vcpu",
                Kind::Table(&VCPU),
                "{ cpu = 1, work = \"5us\" }",
                "CPU time of its requests on the CPUs of [host]",
            )
            .default("none: its requests take no CPU time"),
        ],
        POLICY_KEYS,
    ],
    scheduler_tables: &[],
};

/// `guest` of a VM.
pub static GUEST: Section = Section {
    title: "vm.NAME.guest",
    doc: "A scheduler in the guest, on top of that of the device; either all VMs of a device have one, or none",
    groups: &[&[
        Key::new("scheduler", Kind::Scheduler, "\"cfq\"", "The scheduler in the guest").default("\"noop\""),
        Key::new(
            "ring",
            Kind::Word(&["xen", "virtio"]),
            "\"xen\"",
            "xen: 32 requests of at most 44 KiB; virtio: 256 requests of at most 1016 KiB",
        )
        .default("\"virtio\""),
    ]],
    scheduler_tables: &[DeviceClass::Disk],
};

/// `[[timeline]]`
pub static TIMELINE: Section = Section {
    title: "[timeline]",
    doc: "An event at a stated time, for a VM or a device",
    groups: &[
        &[
            Key::new(
                "at",
                Kind::Time(Duration::ZERO, DURATION_MAX),
                "\"30s\"",
                "Time of the event, from the start of the run",
            ),
            Key::new("vm", Kind::Name("vm"), "\"db1\"", "The VM to which the event applies"),
            Key::new("device", Kind::Name("device"), "\"disk\"", "The device to which the event applies"),
            Key::new("node", Kind::Integer(0, NODES_MAX - 1), "0", "The node of the device, from 0").default("all"),
            Key::new("host", Kind::Integer(1, HOSTS_MAX), "2", "The host of the device, from 1").default("all"),
            Key::new(
                "change",
                Kind::Word(CHANGES),
                "\"start\"",
                "For a VM: start (before that, the VM does not exist), idle, stop, or policy. With policy the entry \
                 contains policy keys; keys that are not stated stay unchanged, but policy = replaces all of them by \
                 the named policy. For a device: slow, stall, recover, fail, or return. With `host`, slow and recover are for \
                 the path between that host and the device, and fail and return for the host. For a device with \
                 `pool`: away (the host can neither read nor write what the hosts tell each other), or back",
            ),
            Key::new("times", Kind::Decimal(1.0, 1e6), "4.0", "change \"slow\": factor by which requests take longer"),
            Key::new("policy", Kind::Name("policy"), "\"gold\"", "change \"policy\": name of the new policy"),
        ],
        POLICY_KEYS,
    ],
    scheduler_tables: &[],
};
const CHANGES: &[&str] =
    &["start", "idle", "stop", "policy", "slow", "stall", "recover", "fail", "return", "away", "back"];

/// `[sweep]`
pub static SWEEP: Section = Section {
    title: "sweep",
    doc: "Runs of the same scenario with other values: the other keys here are names of keys of the file, like \
          `vm.db1.weight`, each with a list of values",
    groups: &[&[
        Key::new(
            "mode",
            Kind::Word(&["product", "zip"]),
            "\"zip\"",
            "product: every combination of the values; zip: the first value of each list, then the second of each, ...",
        )
        .default("\"product\""),
        Key::new(
            "seeds",
            Kind::Integer(1, SEEDS_MAX),
            "10",
            "Number of runs of each combination; the seeds start at that of [sim]",
        )
        .default("10"),
    ]],
    scheduler_tables: &[],
};
