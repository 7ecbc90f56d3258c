//! Every key of a scenario file: one list, as for the host file. Models and workloads come from the lists of the simulator.

use core::time::Duration;

use crate::scenario::models;
use crate::workloads::recipes::{self, Recipe};
use sluice_sched::scheduler::Medium;

use sluice_config::fields::{
    COST_KEYS, Choice, Choosable, Key, Kind, MERGING_KEYS, MICROSECOND, OFFSET_MAX, POLICY, POLICY_KEYS,
    SCHEDULER_KEYS, Section,
};

/// A word of `policies_hold`.
pub(super) const ACROSS_NODES: &str = "across-nodes";
/// The other.
const AT_EACH_NODE: &str = "at-each-node";
/// Nodes of one device.
pub(crate) const NODES_MAX: u64 = 64;
/// Threads of one VM.
pub(crate) const THREADS_MAX: u64 = 1024;
/// Seeds of a sweep.
pub(crate) const SEEDS_MAX: u64 = 1000;
/// Longest run.
const DURATION_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// The file itself.
pub static SCENARIO: Section = Section {
    title: "",
    doc: "The scenario file: modelled devices, VMs and what they ask for, and what happens when",
    groups: &[&[
        Key::new("sim", Kind::Table(&SIM), "", "How long is simulated, and how it is measured"),
        Key::new("host", Kind::Table(&HOST), "", "The CPUs on which VMs and a driver domain work for requests"),
        Key::new("device", Kind::Named(&DEVICE), "", "A modelled device with a scheduler in front of it"),
        Key::new("policy", Kind::Named(&POLICY), "", "What a VM is promised and held to, under a name"),
        Key::new("workload", Kind::NamedChoices(&WORKLOAD), "", "What a thread of a VM asks for, under a name"),
        Key::new("trace", Kind::Named(&TRACE), "", "A recorded load, under a name"),
        Key::new("vm", Kind::Named(&VM), "", "A VM: the one who is promised something"),
        Key::new("timeline", Kind::List(&TIMELINE), "", "Something that happens at a stated time"),
        Key::new("sweep", Kind::Open(&SWEEP), "", "Runs of the same scenario with other values"),
    ]],
    scheduler_tables: &[],
};

/// `[sim]`
pub static SIM: Section = Section {
    title: "sim",
    doc: "How long is simulated, and how it is measured",
    groups: &[&[
        Key::new("duration", Kind::Time(MICROSECOND, DURATION_MAX), "\"60s\"", "The whole run, in virtual time"),
        Key::new("warm_up", Kind::Time(Duration::ZERO, DURATION_MAX), "\"5s\"", "What of it is not measured")
            .default("\"0s\""),
        Key::new("window", Kind::Time(MICROSECOND, DURATION_MAX), "\"1s\"", "Windows of the series over time")
            .default("\"1s\""),
        Key::new("seed", Kind::Integer(0, i64::MAX as u64), "1", "Where all random numbers start").default("1"),
        Key::new(
            "admission",
            Kind::Word(&["on", "off"]),
            "\"on\"",
            "off: reservations that do not fit the device, and bursts too small for them, are accepted with a warning",
        )
        .default("\"on\""),
    ]],
    scheduler_tables: &[],
};

/// `[host]`
pub static HOST: Section = Section {
    title: "host",
    doc: "The CPUs on which VMs and a driver domain work for requests, under Xen's credit scheduler; without it work takes \
          no time",
    groups: &[&[
        Key::new("cpus", Kind::Integer(1, CPUS_MAX), "4", "How many").default("4"),
        Key::new(
            "credit",
            Kind::Word(&["xen-3.3", "xen-4.0", "xen-4.1"]),
            "\"xen-4.1\"",
            "The version of the credit scheduler, each as in one of the papers",
        )
        .default("\"xen-4.1\""),
        Key::new(
            "driver",
            Kind::Table(&DRIVER),
            "{ cpu = 0, packet = \"20us\", request = \"200us\" }",
            "The domain that has all devices, and works for each request before its device has it",
        )
        .default("none"),
    ]],
    scheduler_tables: &[],
};
/// CPUs of a host: one bit each.
const CPUS_MAX: u64 = 64;
const CPU: Key = Key::new(
    "cpu",
    Kind::Either(&[Kind::Word(&["any"]), Kind::Integer(0, CPUS_MAX - 1)]),
    "0",
    "The CPU on which its virtual CPU runs, from 0, or any",
)
.default("\"any\"");
const CPU_WEIGHT: Key =
    Key::new("weight", Kind::Integer(1, 65_535), "256", "Of the domain, against others on its CPU").default("256");
const CPU_CAP: Key = Key::new(
    "cap",
    Kind::Integer(0, 100),
    "50",
    "Of the domain, in percent of a CPU: it gets no more even where nobody else runs; 0: none",
)
.default("0");
/// Work for one request.
const WORK: Kind = Kind::Time(Duration::ZERO, Duration::from_secs(1));

/// `driver` of the host.
pub static DRIVER: Section = Section {
    title: "host.driver",
    doc: "The driver domain: one virtual CPU that works for packets and for requests to disks in turn",
    groups: &[&[
        CPU,
        CPU_WEIGHT,
        CPU_CAP,
        Key::new("packet", WORK, "\"20us\"", "For each frame of a link").default("\"0s\""),
        Key::new("request", WORK, "\"200us\"", "For each request to a disk").default("\"0s\""),
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
        Key::new("work", WORK, "\"5us\"", "For each request, before it is asked").default("\"0s\""),
        Key::new("busy", Kind::Bool, "true", "It computes when it has nothing else to do, and never sleeps")
            .default("false"),
    ]],
    scheduler_tables: &[],
};

/// `[device.NAME]`
pub static DEVICE: Section = Section {
    title: "device.NAME",
    doc: "A modelled device with a scheduler in front of it; what the scheduler believes of it is stated as in the host \
          file, and never taken from the model",
    groups: &[
        &[
            Key::new(
                "model",
                Kind::Chosen(&MODEL),
                "{ type = \"constant\", rate = \"1200 iops\" }",
                "What the device does with requests",
            ),
            Key::new("nodes", Kind::Integer(1, NODES_MAX), "3", "How many of it there are, each with a scheduler")
                .default("1"),
            Key::new(
                "policies_hold",
                Kind::Word(&[ACROSS_NODES, AT_EACH_NODE]),
                "\"across-nodes\"",
                "across-nodes: a VM's policy is for what it gets at all nodes together, since its requests tell each node \
                 what the VM got at the others (dmClock); at-each-node: each divides what comes to it as if it were alone",
            )
            .default("across-nodes where the scheduler is mclock, else at-each-node"),
        ],
        SCHEDULER_KEYS,
        MERGING_KEYS,
        COST_KEYS,
        &[
            Key::new("rotational", Kind::Bool, "true", "Whether the scheduler takes near requests for much cheaper")
                .default("false"),
            Key::new(
                "queue",
                Kind::Integer(1, 1 << 20),
                "128",
                "Requests of one VM that wait before the scheduler; what is beyond waits in the VM",
            )
            .default("65536"),
        ],
    ],
    scheduler_tables: &[Medium::Disk, Medium::Network],
};

/// `model` of a device.
pub static MODEL: Choice = Choice {
    title: "device.NAME.model",
    what: "model",
    doc: "What the device does with requests: a model by its name, or a table with its type and its parameters",
    options: model_options,
};

fn model_options() -> Vec<Choosable> {
    let option = |known: models::Known| Choosable {
        name: known.name(),
        summary: known.summary(),
        parameters: known.parameters(),
        like: match known {
            models::Known::Model(_) => None,
            models::Known::Set(set) => Some((set.kind, set.numbers)),
        },
    };
    models::all().map(option).collect()
}

/// `[workload.NAME]`, and `workload` of a VM.
pub static WORKLOAD: Choice = Choice {
    title: "workload.NAME",
    what: "workload",
    doc: "What a thread of a VM asks for: a table with its type and its parameters",
    options: workload_options,
};

fn workload_options() -> Vec<Choosable> {
    let option = |known: &'static Recipe| Choosable {
        name: known.name,
        summary: known.summary,
        parameters: known.parameters.to_vec(),
        like: None,
    };
    recipes::all().map(option).collect()
}

/// `[trace.NAME]`
pub static TRACE: Section = Section {
    title: "trace.NAME",
    doc: "A recorded load that is asked again",
    groups: &[&[
        Key::new("file", Kind::File, "\"traces/tpcc.trace\"", "Where it is, from the folder of the scenario file"),
        Key::new("format", Kind::Word(FORMATS), "\"spc\"", "What is in it; disksim: times in ms, disksim-ns: in ns"),
        Key::new(
            "pace",
            Kind::Word(&["open", "closed"]),
            "\"open\"",
            "open: at its own times; closed: each request as soon as one before it is over",
        )
        .default("\"open\""),
        Key::new("scale", Kind::Decimal(1e-6, 1e6), "2.0", "pace \"open\": times are multiplied by it").default("1.0"),
        Key::new("outstanding", Kind::Integer(1, 65_536), "32", "pace \"closed\": requests at once").default("1"),
        Key::new("stream", Kind::Integer(0, u32::MAX as u64), "0", "The one of its devices or volumes that is meant")
            .default("all of them"),
        Key::new("wrap", Kind::Bool, "true", "What lies beyond the VM's volume is asked modulo its size; else refused")
            .default("false"),
    ]],
    scheduler_tables: &[],
};
const FORMATS: &[&str] = &[
    "spc",
    "msr",
    "systor",
    "alibaba",
    "tencent",
    "etw",
    "disksim",
    "disksim-ns",
    "disksim-validate",
    "fio",
    "blkparse",
    "blktrace",
    "vscsi",
    "oracle-general",
];

/// `[vm.NAME]`
pub static VM: Section = Section {
    title: "vm.NAME",
    doc: "A VM; what stands here of a policy overrides the named one",
    groups: &[
        &[
            Key::new("policy", Kind::Name("policy"), "\"gold\"", "The policy that it has").default("weight 100 alone"),
            Key::new("device", Kind::Name("device"), "\"disk\"", "The device that it uses"),
            Key::new(
                "workload",
                Kind::Chosen(&WORKLOAD),
                "{ type = \"closed\", outstanding = 32, size = \"8KiB\" }",
                "What each of its threads asks for: here, or the name of a workload",
            ),
            Key::new("trace", Kind::Name("trace"), "\"tpcc\"", "Instead of a workload: the trace that it replays"),
            Key::new("threads", Kind::Integer(1, THREADS_MAX), "4", "Threads, each on a part of its own of the volume")
                .default("1"),
            Key::new(
                "placement",
                Kind::Either(&[Kind::Word(&["uniform", "round-robin"]), Kind::Integer(0, NODES_MAX - 1)]),
                "\"uniform\"",
                "Which node a request goes to: any, one after the other, or always the one of this number, from 0",
            )
            .default("\"uniform\""),
            Key::new("offset", Kind::Size(0, OFFSET_MAX), "\"10GiB\"", "Where its volume begins on the device")
                .default("behind the VM before it, by name"),
            Key::new("size", Kind::Size(1 << 20, OFFSET_MAX), "\"10GiB\"", "How large its volume is")
                .default("the device divided among its VMs"),
            Key::new(
                "cache",
                Kind::Word(&["direct", "buffered"]),
                "\"direct\"",
                "direct: the VM waits for its writes; buffered: they are those of a cache that writes back",
            )
            .default("\"direct\""),
            Key::new(
                "guest",
                Kind::Table(&GUEST),
                "{ scheduler = \"cfq\", ring = \"xen\" }",
                "A scheduler of its own, above that of the device",
            )
            .default("none"),
            Key::new(
                "vcpu",
                Kind::Table(&VCPU),
                "{ cpu = 1, work = \"5us\" }",
                "What its requests cost it on the CPUs of [host]",
            )
            .default("none: they cost it no time"),
        ],
        POLICY_KEYS,
    ],
    scheduler_tables: &[],
};

/// `guest` of a VM.
pub static GUEST: Section = Section {
    title: "vm.NAME.guest",
    doc: "A scheduler of its own, above that of the device; all VMs of a device have one, or none",
    groups: &[&[
        Key::new("scheduler", Kind::Scheduler, "\"cfq\"", "Who decides in the guest").default("\"noop\""),
        Key::new(
            "ring",
            Kind::Word(&["xen", "virtio"]),
            "\"xen\"",
            "xen: 32 requests of at most 44 KiB; virtio: 256 of at most 1016 KiB",
        )
        .default("\"virtio\""),
    ]],
    scheduler_tables: &[Medium::Disk],
};

/// `[[timeline]]`
pub static TIMELINE: Section = Section {
    title: "[timeline]",
    doc: "Something that happens at a stated time, to a VM or to a device",
    groups: &[
        &[
            Key::new("at", Kind::Time(Duration::ZERO, DURATION_MAX), "\"30s\"", "When, from the start of the run"),
            Key::new("vm", Kind::Name("vm"), "\"db1\"", "The VM to which it happens"),
            Key::new("device", Kind::Name("device"), "\"disk\"", "The device to which it happens"),
            Key::new("node", Kind::Integer(0, NODES_MAX - 1), "0", "The node of the device, from 0").default("all"),
            Key::new(
                "change",
                Kind::Word(CHANGES),
                "\"start\"",
                "A VM: start (it is not there before), idle, stop, policy (the keys of one stand beside: those that are not \
                 stated stay as they are, but with policy = the named policy replaces all of them); a device: \
                 slow, stall, recover, fail, return",
            ),
            Key::new("times", Kind::Decimal(1.0, 1e6), "4.0", "change \"slow\": how many times as long requests take"),
            Key::new("policy", Kind::Name("policy"), "\"gold\"", "change \"policy\": another named policy"),
        ],
        POLICY_KEYS,
    ],
    scheduler_tables: &[],
};
const CHANGES: &[&str] = &["start", "idle", "stop", "policy", "slow", "stall", "recover", "fail", "return"];

/// `[sweep]`
pub static SWEEP: Section = Section {
    title: "sweep",
    doc: "Runs of the same scenario with other values: other keys here are names of keys of the file, like \
          `vm.db1.weight`, with the list of their values",
    groups: &[&[
        Key::new(
            "mode",
            Kind::Word(&["product", "zip"]),
            "\"zip\"",
            "product: every combination of the values; zip: the first of each, the second of each, ...",
        )
        .default("\"product\""),
        Key::new("seeds", Kind::Integer(1, SEEDS_MAX), "10", "Runs of each combination, with seeds from that of [sim]")
            .default("10"),
    ]],
    scheduler_tables: &[],
};

#[cfg(test)]
mod tests {
    #[test]
    fn every_format_of_traces_can_be_written() {
        let known: Vec<&str> = crate::scenario::trace::FORMATS.iter().map(|(name, _)| *name).collect();
        assert_eq!(super::FORMATS, known);
    }
}
