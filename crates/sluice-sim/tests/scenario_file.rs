//! Scenario files: their contents, the errors of invalid ones, and a schema that matches the reader.

use std::path::{Path, PathBuf};

use sluice_sched::Iops;
use sluice_sched::tracker::Form;
use sluice_sim::devices::speed::Speed;
use sluice_sim::scenario::file::{ScenarioFile, load_scenario, parse_scenario, schema as scenario_schema};
use sluice_sim::scenario::{DeviceEvent, Event, Placement, Source, VmEvent, Watch, run};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn scenarios() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(examples()).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let mut all: Vec<PathBuf> = entries.filter(|path| name(path).starts_with("scenario-")).collect();
    all.sort();
    assert!(all.len() >= 6, "{all:?}");
    all
}

fn read(text: &str) -> ScenarioFile {
    parse_scenario("s.toml", text, &examples()).unwrap_or_else(|found| panic!("{found}"))
}

fn refused(text: &str) -> String {
    parse_scenario("s.toml", text, &examples()).unwrap_err().to_string()
}

/// A valid scenario, which a case extends or in which it replaces a line.
const GOOD: &str = r#"[sim]
duration = "10s"
[device.d]
model = { type = "constant", rate = "1000 iops" }
capacity = "1000 iops"
nodes = 2
[workload.w]
type = "closed"
outstanding = 8
[vm.a]
device = "d"
workload = "w"
reservation = "300 iops"
"#;

#[test]
fn every_example_is_read_without_a_warning() {
    for path in scenarios() {
        let file = load_scenario(&path).unwrap_or_else(|found| panic!("{found}"));
        assert_eq!(file.warnings, [], "{}", path.display());
    }
}

#[test]
fn the_timeline_is_parsed() {
    let file = load_scenario(&examples().join("scenario-timeline.toml")).unwrap();
    let scenario = &file.base.scenario;
    let names: Vec<&str> = scenario.vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!(names, ["first", "second", "third"]);
    assert_eq!(scenario.vms.iter().map(|vm| vm.starts_paused).collect::<Vec<_>>(), [false, true, true]);
    let Event::Vm(1, VmEvent::Policy(policy)) = &scenario.timeline[2].event else {
        panic!("{:?}", scenario.timeline[2])
    };
    assert_eq!(policy.limit.iops, Some(Iops::per_second(300)));
    assert_eq!(scenario.timeline[2].at.as_nanos(), 60_000_000_000);
    // Volumes are adjacent.
    assert!(scenario.vms.windows(2).all(|pair| pair[0].offset + pair[0].size == pair[1].offset));
}

#[test]
fn a_trace_is_looked_at() {
    let file = load_scenario(&examples().join("scenario-trace.toml")).unwrap();
    let trace = file.base.trace(0).expect("the database replays one");
    assert_eq!((trace.scan.rows, trace.scan.end > 200 << 30), (2000, true));
    assert!(matches!(file.base.scenario.vms[1].source, Source::Workload(..)));
}

#[test]
fn placements_are_parsed() {
    let placed = |line: &str| read(&format!("{GOOD}{line}\n")).base.scenario.vms[0].placement;
    assert_eq!(placed(""), Placement::Uniform);
    assert_eq!(placed("placement = \"round-robin\""), Placement::RoundRobin);
    assert_eq!(placed("placement = 1"), Placement::Node(1));
    assert!(refused(&format!("{GOOD}placement = 2\n")).contains("there is no node 2"));
}

#[test]
fn policies_hold_across_nodes_or_at_each() {
    let telling = |nodes: &str| {
        let text = GOOD.replace("reservation = \"300 iops\"\n", "").replace("nodes = 2", nodes);
        read(&text).base.scenario.devices[0].reporting
    };
    assert_eq!(telling("nodes = 2"), Some(Form::Product));
    assert_eq!(telling("nodes = 2\nscheduler = \"mclock-paper\""), Some(Form::Paper));
    assert_eq!(telling("nodes = 2\npolicies_hold = \"at-each-node\""), None);
    assert_eq!(telling("nodes = 2\nscheduler = \"sfqd\""), None);
    assert_eq!(telling("nodes = 1\npolicies_hold = \"across-nodes\""), None);
    // Together two nodes admit the sum of their capacities, separately each its own.
    let reserving = |more: &str, placements: [&str; 2]| {
        let [a, b] = placements.map(|placement| format!("placement = {placement}\n"));
        let b = format!("[vm.b]\ndevice = \"d\"\nworkload = \"w\"\nreservation = \"900 iops\"\n{b}");
        let text = GOOD.replace("300 iops", "900 iops").replace("nodes = 2", &format!("nodes = 2\n{more}")) + &a + &b;
        parse_scenario("s.toml", &text, &examples()).is_ok()
    };
    assert!(reserving("", ["\"uniform\"", "\"uniform\""]));
    assert!(reserving("", ["0", "1"]) && !reserving("", ["0", "0"]));
    let each = "policies_hold = \"at-each-node\"";
    assert!(!reserving(each, ["\"uniform\"", "1"]) && reserving(each, ["0", "1"]));
}

#[test]
fn a_sweep_replaces_values() {
    let text = format!("{GOOD}[sweep]\nvm.a.weight = [1, 2]\n\"device.d.depth\" = [4, 8, 16]\nseeds = 3\n");
    let sweep = read(&text).sweep.unwrap();
    assert_eq!((sweep.seeds, sweep.points.len()), (3, 6));
    let last = &sweep.points[5];
    assert_eq!(last.values[0].0, "device.d.depth");
    assert_eq!(last.loaded.scenario.devices[0].gate.depth, 16);
    assert_eq!(last.loaded.scenario.vms[0].policy.weight.unwrap().as_f64(), 2.0);
    let identities: std::collections::BTreeSet<&str> =
        sweep.points.iter().map(|point| point.loaded.identity.as_str()).collect();
    assert_eq!(identities.len(), 6);
    let zip = text.replace("seeds = 3", "mode = \"zip\"").replace("[4, 8, 16]", "[4, 8]");
    assert_eq!(read(&zip).sweep.unwrap().points.len(), 2);
    let message = refused(&text.replace("seeds = 3", "mode = \"zip\""));
    assert!(message.contains("device.d.depth has 3 values and vm.a.weight has 2"), "{message}");
}

#[test]
fn a_wrapping_trace_fits_its_volume() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.spc"), "0,0,4096,r,0\n0,8192,4194304,w,1\n").unwrap();
    let text = |size: &str, wrap: &str| {
        let trace = format!("[trace.t]\nfile = \"t.spc\"\nformat = \"spc\"\n{wrap}");
        GOOD.replace("workload = \"w\"", &format!("trace = \"t\"\nsize = \"{size}\"")) + &trace
    };
    let message = |size, wrap| match parse_scenario("s.toml", &text(size, wrap), folder.path()) {
        Ok(_) => String::new(),
        Err(found) => found.to_string(),
    };
    assert!(message("4MiB", "").contains("VM a: the trace reaches byte 8388608"), "{}", message("4MiB", ""));
    let wrap = "wrap = true\n";
    assert_eq!(message("4MiB", wrap), "");
    let small = message("2MiB", wrap);
    assert!(small.contains("VM a: the trace has a request of 4194304 bytes, but the volume has 2MiB"), "{small}");
}

#[test]
fn the_seed_is_not_part_of_the_identity() {
    let (one, two) = (read(GOOD), read(&GOOD.replace("duration", "seed = 7\nduration")));
    assert_eq!(one.base.identity, two.base.identity);
    assert_ne!(one.base.identity, read(&GOOD.replace("300 iops", "301 iops")).base.identity);
}

const EIGHT_ERRORS: &str = r#"error: [sim]: sim.duration is a bare number, 10, without a unit
 --> s.toml:2:12
  |
2 | duration = 10
  |            ^^
  = hint: write for example duration = "60s"

error: Device d: model: constant.rate: '1000' has no unit; write for example "1000 iops"
 --> s.toml:4:37
  |
4 | model = { type = "constant", rate = "1000" }
  |                                     ^^^^^^
  = hint: expected a rate of requests, 0.001 iops to 1000000000 iops; write for example rate = "1000 iops"

error: Workload w: closed: unknown parameter 'outstandin'
 --> s.toml:9:1
  |
9 | outstandin = 8
  | ^^^^^^^^^^
  = hint: did you mean 'outstanding'?

error: VM a: workload: there is no workload 'x'
  --> s.toml:12:12
   |
12 | workload = "x"
   |            ^^^
   = hint: did you mean 'w'?

error: VM a: size: '10' has no unit
  --> s.toml:13:8
   |
13 | size = "10"
   |        ^^^^
   = hint: write for example "10 MiB"

error: [sweep]: speed is not a key that can be swept
  --> s.toml:17:1
   |
17 | speed = [1]
   | ^^^^^
   = hint: name a key of the file, for example vm.db1.weight or device.disk.depth

error: [sweep]: sim.seed would be the same for all combinations
  --> s.toml:18:5
   |
18 | sim.seed = [1, 2]
   |     ^^^^
   = hint: write seeds = 10: each combination then runs with that number of seeds, from that of [sim] on

error: [[timeline]] 1: times is missing: the factor by which requests take longer
  --> s.toml:19:1
   |
19 | [[timeline]]
   | ^^^^^^^^^^^^
   = hint: add times = 4.0

8 errors"#;

#[test]
fn all_errors_are_reported_together() {
    let text = GOOD
        .replace("outstanding = 8", "outstandin = 8")
        .replace("rate = \"1000 iops\"", "rate = \"1000\"")
        .replace("workload = \"w\"", "workload = \"x\"\nsize = \"10\"")
        .replace("duration = \"10s\"", "duration = 10")
        + "[sweep]\nvm.a.weight = [1, 0]\nspeed = [1]\nsim.seed = [1, 2]\n[[timeline]]\nat = \"1s\"\nchange = \"slow\"\ndevice = \"d\"\n";
    assert_eq!(refused(&text), EIGHT_ERRORS);
}

#[test]
fn an_invalid_sweep_value_is_reported_at_its_position() {
    assert_eq!(
        refused(&format!("{GOOD}[sweep]\nvm.a.reservation = [\"300 iops\", \"2300 iops\"]\n")),
        "error: Device d: VM a reserves 2300 iops@8KiB, 115% of the device by requests (capacity of its 2 nodes = 2000 \
         iops@8KiB); at most 98% can be reserved because weight_floor is 2%: short by 17%
  --> s.toml:15:33
   |
15 | vm.a.reservation = [\"300 iops\", \"2300 iops\"]
   |                                 ^^^^^^^^^^^
   = hint: lower it to at most 1960 iops@8KiB, place the VM on another device, or set a lower weight_floor in \
         [device.d.mclock]

1 error"
    );
}

#[test]
fn a_burst_is_checked_with_policies_of_the_timeline() {
    let device = GOOD.replace("nodes = 2", "depth = 1").replace("capacity = \"1000 iops\"", "capacity = \"677 iops\"");
    let vm = device.replace("reservation = \"300 iops\"", "reservation = \"565 iops\"\nburst = 1");
    let change =
        |limit| format!("{vm}[[timeline]]\nat = \"1s\"\nvm = \"a\"\nchange = \"policy\"\nlimit = \"{limit} iops\"\n");
    assert_eq!(read(&vm).warnings, [], "no limit");
    assert_eq!(read(&change(1017)).warnings, [], "the limit passes before the device does");
    let text = refused(&change(593));
    assert!(text.contains("VM a: with burst = 1 the limit of 593 iops lets at most 338.5 iops"), "{text}");
    assert!(
        text.contains("--> s.toml:14:9") && text.contains("raise burst to at least 2 (3 for requests of 256KiB)"),
        "{text}"
    );
}

/// A device of four hosts that tell each other what they use, and a VM on the second.
const POOL: &str = r#"[sim]
duration = "10s"
[device.d]
model = { type = "constant", rate = "1000 iops" }
capacity = "1000 iops"
latency = "8ms"
hosts = 4
pool = { delay = "20ms", lost = "10%" }
[vm.a]
device = "d"
host = 2
workload = { type = "closed", outstanding = 8 }
reservation = "300 iops"
"#;

#[test]
fn hosts_of_a_device_and_their_pool_are_read() {
    let scenario = read(POOL).base.scenario;
    let (device, vm) = (&scenario.devices[0], &scenario.vms[0]);
    let meeting = device.meeting.unwrap();
    assert_eq!((device.hosts, device.nodes, vm.placement), (4, 1, Placement::Node(1)));
    assert_eq!((meeting.delay.as_millis(), meeting.lost, meeting.torn), (20, 0.1, 0.0));
    let event = |change: &str| {
        let text = format!("{POOL}[[timeline]]\nat = \"1s\"\ndevice = \"d\"\n{change}\n");
        read(&text).base.scenario.timeline[0].event.clone()
    };
    let is = |event, wanted: (Option<u32>, DeviceEvent)| matches!(event, Event::Device(0, host, change) if (host, change) == wanted);
    assert!(is(event("change = \"slow\"\ntimes = 2.0\nhost = 3"), (Some(2), DeviceEvent::Path(2.0))));
    assert!(is(event("change = \"slow\"\ntimes = 2.0"), (None, DeviceEvent::Speed(Speed::Slower(2.0)))));
    assert!(is(event("change = \"away\""), (None, DeviceEvent::Away)));
    let alone = POOL.replace("pool = { delay = \"20ms\", lost = \"10%\" }\n", "");
    assert_eq!(read(&alone).base.scenario.devices[0].meeting, None);
}

#[test]
fn hosts_that_cannot_be_are_refused() {
    let with = |from: &str, to: &str| POOL.replace(from, to);
    let event = |more: &str| format!("{POOL}[[timeline]]\nat = \"1s\"\ndevice = \"d\"\n{more}\n");
    let second = "[vm.b]\ndevice = \"d\"\nhost = 3\nworkload = { type = \"closed\" }\nreservation = \"700 iops\"\n";
    let cases = [
        (with("latency = \"8ms\"\n", ""), "latency is missing, which pool needs"),
        (with("hosts = 4\n", "").replace("host = 2\n", ""), "add hosts = 4, or remove pool"),
        (with("hosts = 4", "hosts = 4\nnodes = 2"), "the hosts of one device share it"),
        (with("host = 2", "host = 5"), "its device has 4, from 1 to 4"),
        (with("host = 2", "placement = 1"), "write for example host = 2"),
        (with("host = 2", "guest = {}"), "a device with several hosts has no guest schedulers"),
        (with("lost = \"10%\"", "lost = \"110%\""), "it must be from 0% to 100%"),
        (format!("{POOL}{second}"), "1 VM already reserves 30%, with this one 100%"),
        (format!("{POOL}[host]\n"), "the CPUs of [host] are those of one host"),
        (event("change = \"stall\"\nhost = 2"), "a device stalls for all its hosts"),
        (event("change = \"fail\"\nhost = 5"), "there is no host 5"),
        (event("change = \"fail\"\nnode = 0"), "device d has hosts, not nodes"),
        (
            event("change = \"away\"").replace("pool = { delay = \"20ms\", lost = \"10%\" }\n", ""),
            "add [device.d.pool]",
        ),
    ];
    for (text, expected) in cases {
        let found = refused(&text);
        assert!(found.contains(expected), "{expected} is not in: {found}");
    }
    let of_one = GOOD.replace("nodes = 2", "") + "host = 2\n";
    assert!(refused(&of_one).contains("remove host, or add hosts to the device"));
}

#[test]
fn combinations_of_keys_are_checked() {
    let with = |more: &str| format!("{GOOD}{more}");
    let other = "[vm.b]\ndevice = \"d\"\nworkload = \"w\"\n";
    let change = |more: &str| with(&format!("[[timeline]]\nat = \"1s\"\n{more}"));
    let model = |text: &str| GOOD.replace("type = \"constant\", rate = \"1000 iops\"", text);
    let cases = [
        (GOOD.replace("duration = \"10s\"", "duration = \"1s\"\nwarm_up = \"1s\""), "nothing would be measured"),
        (model("type = \"constnat\""), "did you mean 'constant'?"),
        (GOOD.replace("type = \"closed\"", "tpye = \"closed\""), "Workload w: type is missing"),
        (with("guest = { ring = \"xen\" }\n"), "a VM with a guest scheduler uses only one node"),
        (with(&format!("placement = 0\nguest = {{ ring = \"xen\" }}\n{other}")), "VM b: guest is missing"),
        (with("placement = 1\n").replace("300 iops", "1300 iops"), "capacity of its node 1 = 1000 iops@8KiB"),
        (GOOD.replace("nodes = 2", "nodes = 2\npolicies_hold = \"together\""), "write \"across-nodes\" or"),
        (
            GOOD.replace("nodes = 2", "nodes = 2\nscheduler = \"sfqd\"\npolicies_hold = \"across-nodes\""),
            "sfqd does not use the service that VMs got at other nodes",
        ),
        (with("size = \"2TiB\"\n"), "does not fit on device d, which has 1TiB"),
        (with("size = \"1MiB\"\n").replace("outstanding = 8", "size = \"2MiB\""), "the volume has 1MiB"),
        (with("trace = \"t\"\n"), "the VM also has a workload"),
        (GOOD.replace("workload = \"w\"\n", ""), "workload is missing, and so is trace"),
        (with("latency = { p99 = \"5ms\" }\n"), "latency is not enforced by mclock"),
        (with("[trace.t]\nfile = \"none\"\nformat = \"spc\"\n"), "No such file or directory"),
        (with("[trace.t]\nfile = \"traces/tpcc.trace\"\nformat = \"spc\"\n"), "expected ASU,LBA,bytes,R|W,seconds"),
        (change("vm = \"a\"\nchange = \"stall\"\n"), "this change is for a device"),
        (change("vm = \"a\"\nchange = \"policy\"\n"), "the entry has no policy"),
        (change("vm = \"a\"\nchange = \"policy\"\nreservation = \"3000 iops\"\n"), "150% of the device by requests"),
        (change("vm = \"a\"\nchange = \"stop\"\n").replace("1s", "11s"), "the run ends earlier, at 10s"),
        (change("device = \"d\"\nnode = 2\nchange = \"fail\"\n"), "device d has 2, from 0 to 1"),
        (model("type = \"ssd\", blocks = 128"), "ssd.blocks"),
        (model("type = \"fc-15k-146gb\""), "did you mean 'fc-15k-146'?"),
        (model("type = \"fc-15k-146\", rpm = 1"), "fc-15k-146.rpm: rpm is 1; it must be from 1000"),
        (model("type = \"linear\", line = \"rbps=1\""), "linear.line: io.cost.model has no rseqiops"),
        (model("type = \"hdd\", seek_file = \"x\""), "seek_file needs cylinders"),
        (with("[sweep]\nvm.a.device.x = [1]\n"), "[sweep]: vm.a.device.x cannot be set"),
        ("[device.d\n".to_owned(), "Not TOML"),
        (String::new(), "There is no [sim]"),
    ];
    for (text, expected) in cases {
        let message = refused(&text);
        assert!(message.contains(expected), "{expected}\n{message}");
    }
}

#[test]
fn a_missing_sim_section_is_reported_once() {
    assert_eq!(
        refused("").to_string(),
        "error: There is no [sim]\n --> s.toml:1:1\n  |\n1 | \n  | ^\n  = hint: add [sim] with duration = \"60s\"\n\n1 error"
    );
}

#[test]
fn a_missing_trace_is_reported_without_a_row() {
    let said = refused(&format!("{GOOD}[trace.t]\nfile = \"none\"\nformat = \"spc\"\n"));
    assert!(said.contains("none: Cannot be opened: No such file") && !said.contains("Row"), "{said}");
}

/// A link, a VM on it, and CPUs; a case extends it or replaces a line.
const LINK: &str = r#"[sim]
duration = "10s"
[host]
cpus = 2
[device.d]
model = "link"
[vm.a]
device = "d"
workload = "datagrams"
"#;

#[test]
fn combinations_of_link_and_cpu_keys_are_checked() {
    assert_eq!(read(LINK).base.scenario.devices[0].scheduler.name, "mclock");
    let with = |more: &str| format!("{LINK}{more}\n");
    let wrr = |more: &str| with(more).replace("\"link\"", "\"link\"\nscheduler = \"wrr\"");
    let cases = [
        (LINK.replace("\"link\"", "\"constant\""), "datagrams is for network links, but its device is a disk"),
        (LINK.replace("\"datagrams\"", "\"closed\""), "closed is for disks, but its device is a network link"),
        (LINK.replace("\"link\"", "\"link\"\nscheduler = \"flubber\""), "flubber schedules requests to disks"),
        (LINK.replace("\"link\"", "{ type = \"link\", rate = \"100MB/s\" }"), "'100MB/s' is not a bit rate"),
        (LINK.replace("\"link\"", "\"link\"\nnodes = 2"), "devices on a host with CPUs must have one node"),
        (with("size = \"1GiB\""), "which has no volumes"),
        (with("limit = \"100 iops\""), "VM a: limit: mclock, the scheduler of device d, counts bytes"),
        (wrr("limit = \"100 iops\""), "VM a: limit: wrr, the scheduler of device d, counts bytes"),
        (
            wrr("reservation = \"100 iops\"\nallow_unenforced = true"),
            "VM a: reservation: wrr, the scheduler of device d",
        ),
        (with("reservation = { bytes = \"5MB/s\" }"), "the device has no bandwidth"),
        (wrr("latency = { p99 = \"5ms\" }"), "latency is not enforced by wrr"),
        (with("vcpu = { cpu = 2 }"), "there is no CPU 2"),
        (with("vcpu = { wrok = \"5us\" }"), "did you mean 'work'?"),
        (with("vcpu = { cpu = 1 }").replace("[host]\ncpus = 2\n", ""), "there are no CPUs to run it"),
        (LINK.replace("cpus = 2", "cpus = 2\ndriver = { cpu = \"first\" }"), "write a number from 0, or \"any\""),
    ];
    for (text, expected) in cases {
        let message = refused(&text);
        assert!(message.contains(expected), "{expected}\n{message}");
    }
}

#[test]
fn a_link_accepts_the_parameters_of_its_scheduler() {
    for (name, parameter) in [("wrr", "delay = \"1ms\""), ("netback", "interval = \"20ms\"")] {
        let stated = format!("model = \"link\"\nscheduler = \"{name}\"\n[device.d.{name}]\n{parameter}");
        let text = LINK.replace("model = \"link\"", &stated);
        let known = parameter.split(' ').next().unwrap();
        assert!(read(&text).base.scenario.devices[0].params.contains_key(known), "{text}");
        assert!(refused(&text.replace(known, "dealy")).contains("unknown parameter 'dealy'"), "{text}");
        // The schema for editors agrees.
        let mut unknown = Vec::new();
        let table = text.parse().unwrap();
        find_unknown(&scenario_schema(), &toml::Value::Table(table), "", &mut unknown);
        assert_eq!(unknown, [""; 0], "{text}");
        let schema = scenario_schema();
        let device = &schema["properties"]["device"]["additionalProperties"]["properties"];
        assert!(device["scheduler"]["enum"].as_array().unwrap().iter().any(|one| one == name), "{device}");
    }
    // A guest has disks only.
    let guest = "\n[vm.a.guest]\nscheduler = \"noop\"\nwrr = { delay = \"1ms\" }\n";
    assert!(refused(&format!("{LINK}{guest}")).contains("unknown key 'guest.wrr'"));
}

#[test]
fn an_unreadable_file_gives_a_single_error() {
    let found = load_scenario(&examples().join("none.toml")).unwrap_err();
    assert_eq!(found.0.len(), 1, "{found}");
    assert!(found.0[0].message.starts_with("Cannot read file"), "{found}");
}

#[test]
fn presets_are_named_and_their_values_replaced() {
    let model = |text: &str| GOOD.replace("{ type = \"constant\", rate = \"1000 iops\" }", text);
    let size = |text: &str| read(&model(text)).base.scenario.vms[0].size;
    // No aged drive of 400 GB is built for that, which would take seconds.
    let whole = size("\"ssd-sata-400-consumer\"");
    assert_eq!(whole / 1_000_000_000, 400);
    let part = size("{ type = \"ssd-sata-400-consumer\", channels = 4 }");
    assert!(part.abs_diff(whole / 2) <= 1 << 20, "{part}");
    // A volume is a whole number of MiB.
    assert_eq!(size("\"raid5-6x-fc-15k-146\"") >> 20, (5 * 146_000_000_000) >> 20);
    let line = "8:16 ctrl=user model=linear rbps=1 rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6";
    assert_eq!(size(&format!("{{ type = \"linear\", line = \"{line}\", size = \"1GiB\" }}")), 1 << 30);
}

#[test]
fn the_schema_contains_every_key_of_the_examples() {
    let schema = scenario_schema();
    for path in scenarios() {
        let table: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        let mut unknown = Vec::new();
        find_unknown(&schema, &toml::Value::Table(table), "", &mut unknown);
        assert_eq!(unknown, [""; 0], "{}", path.display());
    }
    let wrong: toml::Table = "[vm.a]\nworklod = 1\n[vm.a.guest]\nrign = 2\n[sim]\nwarm = 1\n".parse().unwrap();
    let mut unknown = Vec::new();
    find_unknown(&schema, &toml::Value::Table(wrong), "", &mut unknown);
    assert_eq!(unknown, [".sim.warm", ".vm.a.guest.rign", ".vm.a.worklod"]);
}

/// Keys of a value that the schema does not have.
fn find_unknown(schema: &serde_json::Value, value: &toml::Value, path: &str, found: &mut Vec<String>) {
    match value {
        toml::Value::Table(table) => {
            let any = schema.get("anyOf").and_then(serde_json::Value::as_array);
            let options: Vec<_> = any.map_or(vec![schema], |any| any.iter().collect());
            let of_type = |one: &&serde_json::Value| {
                one["type"] == "object"
                    && table
                        .get("type")
                        .is_none_or(|name| one["properties"]["type"]["const"] == *name.as_str().unwrap())
            };
            let schema = options.iter().copied().find(of_type).unwrap_or(schema);
            for (key, value) in table {
                let path = format!("{path}.{key}");
                let open = schema.get("additionalProperties").filter(|open| open.is_object());
                match schema["properties"].get(key).or(open) {
                    // A sweep may have any key.
                    None if path.starts_with(".sweep.") => {}
                    None => found.push(path),
                    Some(known) => find_unknown(known, value, &path, found),
                }
            }
        }
        toml::Value::Array(items) => {
            items
                .iter()
                .filter(|_| schema.get("items").is_some())
                .for_each(|item| find_unknown(&schema["items"], item, path, found));
        }
        _ => {}
    }
}

#[test]
fn limits_by_direction_bursts_and_write_factors_are_those_of_the_host_file() {
    let limits = "read_limit = \"200 iops\"\nwrite_limit = { iops = \"150 iops\", bytes = \"1MiB/s\" }\n\
                  burst = { rate = { iops = \"900 iops\", bytes = \"2MiB/s\" }, for = \"2s\" }\n";
    let text = GOOD.replace("nodes = 2", "cost = { write_factor = 2.5 }") + limits;
    let scenario = read(&text).base.scenario;
    let policy = scenario.vms[0].policy;
    assert_eq!(policy.read_limit.iops, Some(Iops::per_second(200)));
    assert_eq!(policy.write_limit.iops, Some(Iops::per_second(150)));
    assert_eq!(policy.timed_burst.map(|burst| burst.length.as_secs()), Some(2));
    assert_eq!(scenario.devices[0].gate.cost.write_factor.as_f64(), 2.5);
    let across = refused(&(GOOD.to_owned() + "write_limit = \"400 iops\"\n"));
    assert!(across.contains("cannot hold across the nodes"), "{across}");
    assert!(read(&(GOOD.to_owned() + "write_limit = \"400 iops\"\nplacement = 1\n")).warnings.is_empty());
}

/// 200 iops are 100 writes that cost twice as much; another VM reads at 300 iops.
#[test]
fn a_run_keeps_limits_of_reads_and_of_writes_and_judges_them() {
    let device = "[sim]\nduration = \"20s\"\n[device.d]\nmodel = { type = \"constant\", rate = \"1000 iops\" }\n\
                  capacity = \"1000 iops\"\ncost = { write_factor = 2.0 }\n";
    let vm = |name: &str, reads: &str| {
        format!(
            "[workload.{name}]\ntype = \"closed\"\noutstanding = 8\nreads = {reads}\n[vm.{name}]\ndevice = \"d\"\n\
             workload = \"{name}\"\nread_limit = \"300 iops\"\nwrite_limit = \"200 iops\"\nburst = 2\n"
        )
    };
    let file = read(&format!("{device}{}{}", vm("writes", "0.0"), vm("reads", "1.0")));
    let outcome = run(&file.base.scenario, file.base.seed, Watch::default()).unwrap_or_else(|error| panic!("{error}"));
    for vm in &outcome.vms {
        let expected = if vm.name == "writes" { 100.0 } else { 300.0 };
        assert!((vm.iops - expected).abs() <= 1.0, "{}: {}", vm.name, vm.iops);
        let promises: Vec<String> =
            vm.promises.iter().map(|promise| format!("{}: {}", promise.text, promise.verdict)).collect();
        assert_eq!(promises, ["read_limit 300 iops: kept", "write_limit 200 iops: kept"]);
    }
}

/// Equal VMs on one node.
fn counted(count: &str, more: &str) -> String {
    let text = GOOD.replace("nodes = 2\n", "").replace("reservation = \"300 iops\"\n", "");
    format!("{text}[vm.web]\ncount = {count}\ndevice = \"d\"\nworkload = \"w\"\n{more}")
}

#[test]
fn a_count_makes_equal_vms_with_numbered_names() {
    let file = read(&counted("12", "weight = 300\nsize = \"2GiB\"\n"));
    let vms = &file.base.scenario.vms;
    let names: Vec<&str> = vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!((names.len(), names[0], names[1], names[12]), (13, "a", "web-01", "web-12"));
    assert!(vms[1..].iter().all(|vm| vm.policy == vms[1].policy && vm.size == 2 << 30 && vm.device == 0));
    assert!(vms.windows(2).all(|pair| pair[0].offset + pair[0].size == pair[1].offset), "volumes follow each other");
    let one = read(&counted("1", ""));
    assert_eq!(one.base.scenario.vms[1].name, "web-1");
    // They draw different random numbers, and run.
    let outcome = run(&file.base.scenario, 1, Watch::default()).unwrap();
    assert!(outcome.vms.iter().all(|vm| vm.completed > 0));
    let total: u64 = outcome.vms[1..].iter().map(|vm| vm.completed).sum();
    let least = outcome.vms[1..].iter().map(|vm| vm.completed).min().unwrap();
    assert!(least * 13 > total, "{least} of {total}");
}

#[test]
fn an_event_of_a_table_with_a_count_applies_to_all_its_vms() {
    let events = "[[timeline]]\nat = \"1s\"\nvm = \"web\"\nchange = \"start\"\n\
                  [[timeline]]\nat = \"2s\"\nvm = \"web\"\nchange = \"policy\"\nweight = 200\n\
                  [[timeline]]\nat = \"3s\"\nvm = \"web-2\"\nchange = \"stop\"\n";
    let scenario = read(&counted("3", events)).base.scenario;
    let paused: Vec<bool> = scenario.vms.iter().map(|vm| vm.starts_paused).collect();
    assert_eq!(paused, [false, true, true, true]);
    let at: Vec<(u64, usize)> = scenario
        .timeline
        .iter()
        .map(|planned| match &planned.event {
            Event::Vm(vm, _) => (planned.at.as_nanos() / 1_000_000_000, *vm),
            Event::Device(..) => panic!("no event of a device"),
        })
        .collect();
    assert_eq!(at, [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 2)]);
}

#[test]
fn wrong_counts_are_refused_once() {
    for (count, more, expected) in [
        ("0", "", "from 1 to 100000"),
        ("100001", "", "from 1 to 100000"),
        ("\"many\"", "", "count"),
        ("100000", "", "the scenario would have more than 100000 VMs"),
        ("3", "offset = \"1GiB\"\n", "the volumes of its VMs would be the same bytes"),
        ("3", "[vm.web-2]\ndevice = \"d\"\nworkload = \"w\"\n", "it makes a VM web-2"),
        ("3", "size = \"1000TiB\"\n", "does not fit on device d"),
        ("50", "reservation = \"900 iops\"\n", "reserve"),
        ("3", "[[timeline]]\nat = \"1s\"\nvm = \"web-4\"\nchange = \"stop\"\n", "there is no vm 'web-4'"),
        (
            "3",
            "[[timeline]]\nat = \"1s\"\nvm = \"web\"\nchange = \"policy\"\nreservation = \"900 iops\"\n",
            "it is the reservation of 3 VMs",
        ),
    ] {
        let found = refused(&counted(count, more));
        assert!(found.contains(expected), "{count} {more}: {found}");
        assert!(found.matches("error").count() <= 3, "{found}");
    }
}
