//! Fig. 9 and 10: dmClock. Several storage nodes, each with a gate, and clients that report their service at the other
//! nodes to each node.

use std::time::Duration;

use sluice_report::{Chart, Line, Table};
use sluice_sched::Policy;
use sluice_sched::tracker::Form;
use sluice_sim::engine::{Change, Placement, Simulation, Thread};

use crate::band::BandPoint;
use crate::device::{DeviceFile, ModelFile};
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::real::{Device, Load, Quantity, Trial, TrialVm};
use crate::setup::{Host, at, closed, mean_rate, policy, random_reads, rates, refused, run, slashed, within};

/// Requests that a node serves concurrently: its threads.
const THREADS: u32 = 16;
/// Outstanding requests of a client.
const OUTSTANDING: u32 = 64;

/// Throughput of the clients in Fig. 9 (b).
const PRINTED: [f64; 3] = [800.0, 1750.0, 2700.0];
/// The same in Fig. 10, once both work.
const PRINTED_SKEWED: [f64; 2] = [800.0, 1400.0];

/// What a node gives, in requests per second, as the paper states it, and how far from it a node may be to be the paper's: "roughly".
const NODE: f64 = 1500.0;
const ROUGHLY: f64 = 0.1;

/// Value of the axis for nodes that a client takes in turn.
const IN_TURN: f64 = 1.0;

/// Values of the axis for disks of the slower class.
const SLOWER: f64 = 1.0;
const SLOWER_SORTED: f64 = 2.0;

/// The device of a node at a point.
fn node(point: &BandPoint) -> Result<DeviceFile, LabError> {
    let mut device = DeviceFile::load("mclock-node")?;
    let disks = point.setting("node-disks");
    if let ModelFile::Drives { drive, .. } = &mut device.model
        && disks >= SLOWER
    {
        // As those of the array of section 5.1.
        (drive.rpm, drive.seek_ms, drive.rates) = (10_000, [0.4, 4.7, 10.0], [85e6, 50e6]);
        // Without sorting, they cannot give the stated 1500 with any overhead.
        (drive.queue, drive.overhead_us) = if disks == SLOWER_SORTED { (4, drive.overhead_us) } else { (1, 100.0) };
    }
    Ok(device)
}

/// A client.
struct Client {
    policy: Policy,
    /// The only node that it uses, if any.
    pinned: Option<usize>,
    /// When it starts, in seconds.
    start: u64,
}

/// Storage nodes, clients, and the form of their reports.
struct Cluster<'a> {
    nodes: usize,
    /// Device of each node.
    device: &'a DeviceFile,
    clients: &'a [Client],
    /// `None`: no reports.
    form: Option<Form>,
    host: Host,
    /// Outstanding requests of each client.
    outstanding: u32,
    seconds: u64,
}

impl Cluster<'_> {
    fn run_simulation(&self, point: &BandPoint) -> Result<Simulation, LabError> {
        let window = Duration::from_secs(1);
        let mut simulation = Simulation::new(self.host.gate()?, self.device.model(point), Duration::ZERO, window);
        for _ in 1..self.nodes {
            simulation.add_node(self.host.gate()?, self.device.model(point));
        }
        for (number, client) in self.clients.iter().enumerate() {
            let name = format!("c{}", number + 1);
            let placement = match client.pinned {
                Some(node) => Placement::Pinned(node),
                None if point.setting("node-placement") == IN_TURN => Placement::RoundRobin(number),
                None => Placement::Uniform(point.stream(&format!("placement/{name}"))),
            };
            let vm = simulation.add_vm_at(placement, client.policy).map_err(refused)?;
            let workload = closed(self.outstanding, random_reads(8192, self.device.place(0).1), point, &name);
            simulation.add_thread(vm, Thread::new(workload)).map_err(refused)?;
            if let Some(form) = self.form {
                simulation.track(vm, form);
            }
            if client.start > 0 {
                simulation.start_paused(vm);
                simulation.plan_change(at(client.start), Change::Start(vm));
            }
        }
        run(&mut simulation, self.seconds, self.host.scheduler)?;
        Ok(simulation)
    }
}

/// The two forms of the algorithm with their gates.
fn modes() -> [(&'static str, Option<Form>, Host); 2] {
    let paper = Host::new("mclock-paper", THREADS);
    [("product", Some(Form::Product), Host::new("mclock", THREADS)), ("paper", Some(Form::Paper), paper)]
}

pub(crate) const FIGURE: Figure = Figure {
    id: "mclock-distributed",
    paper: Paper::Mclock,
    label: "Fig. 9",
    title: "dmClock on three nodes: weights 1:4:6, without and with reservations",
    setup: "Three nodes, each a RAID-5 of six disks with 16 threads; three clients with 64 random reads of 8 KiB outstanding, each sent to one of \
            the nodes at random. Weights 100:400:600, no limits; (a) no reservations, (b) reservations of 800, 1000 and 100 IOPS. \
            Beside it the same gates without what clients tell, and SFQ(D).",
    device: "mclock-node",
    rows: &[
        RowSpec {
            id: "M9a",
            class: Class::Conformance,
            must: "(a) throughputs as 1:4:6, each within 3 %, in both modes",
            paper: "in proportion to the weights",
            note: "",
        },
        RowSpec {
            id: "M9d",
            class: Class::Shape,
            must: "(b) c1 gets at least 98 % of 800 IOPS in mode \"paper\", where it gets less by its weight alone (SFQ(D))",
            paper: "dmClock met the reservation of 800 IOPS, which a proportional scheduler would have missed",
            note: "At points where its weight alone gives c1 as much nothing depends on the reservation. c1 gets more than 800: where nobody \
                   else has \
                   a request waiting at a node for a moment, c1 is served though its reservation is met. With 256 outstanding, not 64, it gets \
                   827, with 1024 800 (table).",
        },
        RowSpec {
            id: "M9b",
            class: Class::Shape,
            must: "(b) c2:c3 is 2:3 within 5 %, in mode \"paper\"",
            paper: "the rest in the ratio 2:3, around 1750 and 2700 IOPS",
            note: "A node gives the roughly 1500 requests a second of the text. The three printed values make 1750 for each node, so \
                   that c2 and c3 cannot both come out; their ratio does. Where nodes are slow or serve slower disks in the order of arrival, c3 \
                   misses its part.",
        },
        RowSpec {
            id: "M9e",
            class: Class::Shape,
            must: "(b) both in mode \"product\": c1 at least 98 % of 800 IOPS, c2:c3 as 2:3 within 5 %",
            paper: "800; 1750 and 2700 IOPS",
            note: "A client that has nothing waiting at a node for a moment forgets there what it lies behind, but for what it got elsewhere \
                   meanwhile; \
                   otherwise a client could save up share at a node that it seldom uses. So c3, which has the most of its 64 requests at other nodes, misses its \
                   part. With more outstanding each gets its part (table).",
        },
        RowSpec {
            id: "M9c",
            class: Class::Hardware,
            must: "throughput of each client in (b)",
            paper: "800/1750/2700 IOPS",
            note: "The paper's own numbers add up to 5250 IOPS, three times 1750 and not three times the 1500 that it states for a node.",
        },
    ],
    run: measure,
};

fn three(reservations: [u64; 3]) -> [Client; 3] {
    let weights = [100, 400, 600];
    std::array::from_fn(|vm| Client { policy: policy(reservations[vm], 0, weights[vm]), pinned: None, start: 0 })
}

/// Rate of each client between 10 and 60 s.
fn shares(
    clients: &[Client; 3],
    form: Option<Form>,
    host: Host,
    outstanding: u32,
    point: &BandPoint,
) -> Result<[f64; 3], LabError> {
    let device = node(point)?;
    let simulation =
        Cluster { nodes: 3, device: &device, clients, form, host, outstanding, seconds: 60 }.run_simulation(point)?;
    Ok(std::array::from_fn(|vm| mean_rate(&simulation, vm, 10, 60)))
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let (plain, reserved) = (three([0; 3]), three([800, 1000, 100]));
    let mut table = Table::new("c1/c2/c3 [IOPS]", &["scheduler", "(a) no reservations", "(b) 800, 1000, 100"]);
    let (mut proportional, mut all) = (true, Vec::new());
    for (name, form, host) in modes() {
        let (a, b) = (
            shares(&plain, form, host.clone(), OUTSTANDING, point)?,
            shares(&reserved, form, host, OUTSTANDING, point)?,
        );
        table.row([format!("dmClock, {name}"), slashed(&a), slashed(&b)]);
        let unit = a.iter().sum::<f64>() / 11.0;
        proportional &= [1.0, 4.0, 6.0].iter().zip(a).all(|(weight, got)| within(got, unit * weight, 0.03));
        all.push((a, b));
    }
    let weighted = shares(&plain, None, Host::new("sfqd", THREADS), OUTSTANDING, point)?;
    table.row(["SFQ(D) at each node".to_owned(), slashed(&weighted), "has none".to_owned()]);
    let [(a, b), (_, paper)] = all.try_into().expect("there are two modes");
    let (kept, divided) = (|got: &[f64; 3]| got[0] >= 784.0, |got: &[f64; 3]| within(got[2] / got[1], 1.5, 0.05));
    let mut finding = Finding::default();
    finding.judge("M9a", proportional, format!("{} IOPS", slashed(&a)));
    let measured = format!("{:.0} IOPS, by weight {:.0}", paper[0], weighted[0]);
    finding.judge_if(!kept(&weighted), "M9d", kept(&paper), measured).means([(800.0, paper[0])]);
    let measured = |got: &[f64; 3]| format!("{} IOPS, c3/c2 {:.2}", slashed(got), got[2] / got[1]);
    let means = |got: [f64; 3]| PRINTED.into_iter().zip(got);
    finding.judge("M9b", divided(&paper), measured(&paper)).means(means(paper));
    finding.judge("M9e", kept(&b) && divided(&b), measured(&b)).means(means(b));
    let measured = format!("{} and {} IOPS (product; paper)", slashed(&b), slashed(&paper));
    finding.show("M9c", measured).means(means(paper));
    finding.tables.push(table);
    if point.is_nominal() {
        finding.tables.push(by_outstanding(&reserved, point)?);
    }
    let bars =
        vec![Line::bars("no reservations", &a), Line::bars("reservations", &b), Line::bars("paper, (b)", &PRINTED)];
    finding.charts.push(Chart::bars("Throughput, mode \"product\"", "IOPS", &["c1", "c2", "c3"], bars));
    Ok(finding)
}

/// The reservations by what clients keep outstanding, and by nodes that are told nothing.
fn by_outstanding(reserved: &[Client; 3], point: &BandPoint) -> Result<Table, LabError> {
    let columns = ["outstanding", "product", "paper", "mClock at each node, nothing told"];
    let mut table = Table::new("(b) by what each client keeps outstanding: c1/c2/c3 [IOPS]", &columns);
    for outstanding in [64, 256, 1024] {
        let mut cells = vec![outstanding.to_string()];
        let untold = ("untold", None, Host::new("mclock", THREADS));
        for (_, form, host) in modes().into_iter().chain([untold]) {
            cells.push(slashed(&shares(reserved, form, host, outstanding, point)?));
        }
        table.row(cells);
    }
    Ok(table)
}

pub(crate) const SKEWED: Figure = Figure {
    id: "mclock-skewed",
    paper: Paper::Mclock,
    label: "Fig. 10",
    title: "dmClock on two nodes, one client on the first alone",
    setup: "Two nodes as in Fig. 9; c1 uses the first alone, c2 starts after 40 s and sends each request to one of the two at random; \
            weights 100:400, reservations 800 and 1000 IOPS, 64 outstanding each. Beside it SFQ(D) at each node.",
    device: "mclock-node",
    rows: &[
        RowSpec {
            id: "M10a",
            class: Class::Shape,
            must: "c1 within 5 % of 800 IOPS once c2 is there, in mode \"paper\", where the first node alone gives the roughly 1500 IOPS of \
                   the text, \
                   within 10 %, and weights alone (SFQ(D)) would give c1 less",
            paper: "close to 800 IOPS, where a distributed weight-proportional scheduler would have given about 440",
            note: "c2's requests pile up at the first node, so that its 1000 need 500 there beside c1's 800; below 1300 both fall short in \
                   proportion. As published the algorithm gives c1 less than 800 up to about 1450 (table \"by what a node gives\"): what \
                   c2 gets at the second node by its weight does not count for its reservation, so that it claims more than its \
                   due at the first. SFQ(D) at each node, which knows nothing of the other one, gives c1 301.",
        },
        RowSpec {
            id: "M10c",
            class: Class::Shape,
            must: "the same in mode \"product\"",
            paper: "close to 800 IOPS",
            note: "Wherever both reservations can be had, c1 gets its own.",
        },
        RowSpec {
            id: "M10b",
            class: Class::Shape,
            must: "c2 within 10 % of 1400 IOPS in mode \"paper\", where the first node alone gives the roughly 1500 IOPS of the text, within 10 %",
            paper: "around 1400 IOPS",
            note: "Twice what c1 leaves of the first node: c2's requests pile up there, and the second node idles.",
        },
    ],
    run: measure_skewed,
};

/// Service time of a request at a node of the real runs: 16 at a time, about 1500 a second.
const NODE_TIME: Duration = Duration::from_micros(10_600);
/// Seeds of the real runs.
const REAL_SEEDS: u64 = 5;

/// Clients of several real nodes.
fn real(name: &str, nodes: usize, vms: &[TrialVm], parts: &[(usize, usize)], paper: &[Option<f64>]) -> Vec<Trial> {
    let one = |seed: u64| {
        let mut values = Trial::all_values(parts, vms, &[Quantity::Iops]);
        values.iter_mut().zip(paper).for_each(|(value, paper)| value.paper = *paper);
        Trial {
            device: Device::Servers(NODE_TIME),
            nodes,
            seed,
            depth: THREADS,
            values,
            ..Trial::constant(format!("{name}, seed {seed}"), 0.0, vms.to_vec(), parts)
        }
    };
    (1..=REAL_SEEDS).map(one).collect()
}

fn real_client(name: &'static str, weight: u32, reservation: u64) -> TrialVm {
    let vm = TrialVm::new(name, weight, 8192);
    TrialVm { reservation, load: Load { outstanding: OUTSTANDING, ..vm.load }, ..vm }
}

/// Fig. 9 on three nodes.
pub(crate) fn trials() -> Vec<Trial> {
    let clients = |reservations: [u64; 3]| {
        let vm = |(name, (weight, reservation))| real_client(name, weight, reservation);
        ["c1", "c2", "c3"].into_iter().zip([100, 400, 600].into_iter().zip(reservations)).map(vm).collect::<Vec<_>>()
    };
    let parts = [(10, 60)];
    let mut trials = real("(a)", 3, &clients([0; 3]), &parts, &[]);
    trials.extend(real("(b)", 3, &clients([800, 1000, 100]), &parts, &PRINTED.map(Some)));
    trials
}

/// Fig. 10 on two nodes.
pub(crate) fn skewed_trials() -> Vec<Trial> {
    let c1 = TrialVm { node: Some(0), ..real_client("c1", 100, 800) };
    let c2 = TrialVm { start: 40, ..real_client("c2", 400, 1000) };
    let [one, two] = PRINTED_SKEWED.map(Some);
    real("both", 2, &[c1, c2], &[(10, 40), (50, 110)], &[None, one, two])
}

fn measure_skewed(point: &BandPoint) -> Result<Finding, LabError> {
    let clients = |reservations: [u64; 2]| {
        [
            Client { policy: policy(reservations[0], 0, 100), pinned: Some(0), start: 0 },
            Client { policy: policy(reservations[1], 0, 400), pinned: None, start: 40 },
        ]
    };
    let device = node(point)?;
    let mut table = Table::new("c1/c2 [IOPS]", &["scheduler", "c1 alone, 10 to 40 s", "both, 50 to 110 s"]);
    let (mut finding, mut first, mut all) = (Finding::default(), None, Vec::new());
    let (reserved, plain) = (clients([800, 1000]), clients([0, 0]));
    let hosts = modes().into_iter().map(|(name, form, host)| (format!("dmClock, {name}"), form, host, &reserved));
    let sfq = ("SFQ(D) at each node".to_owned(), None, Host::new("sfqd", THREADS), &plain);
    for (name, form, host, clients) in hosts.chain([sfq]) {
        let simulation =
            Cluster { nodes: 2, device: &device, clients, form, host, outstanding: OUTSTANDING, seconds: 110 }
                .run_simulation(point)?;
        let alone = mean_rate(&simulation, 0, 10, 40);
        let both = [0, 1].map(|vm| mean_rate(&simulation, vm, 50, 110));
        table.row([name, slashed(&[alone]), slashed(&both)]);
        all.push((alone, both));
        first.get_or_insert(simulation);
    }
    let [product, (node, paper), (_, weighted)] = all.try_into().expect("there are two modes, and SFQ(D)");
    let is_meant = within(node, NODE, ROUGHLY);
    let by_weight = weighted[0];
    for (id, (alone, both)) in [("M10c", product), ("M10a", (node, paper))] {
        let measured = format!("{:.0} IOPS of the {alone:.0} of the first node, by weight {by_weight:.0}", both[0]);
        let kept = within(both[0], 800.0, 0.05);
        finding.judge_if(is_meant && by_weight < 760.0, id, kept, measured).means([(PRINTED_SKEWED[0], both[0])]);
    }
    let kept = within(paper[1], PRINTED_SKEWED[1], 0.10);
    let measured = format!("{:.0} IOPS", paper[1]);
    finding.judge_if(is_meant, "M10b", kept, measured).means([(PRINTED_SKEWED[1], paper[1])]);
    finding.tables.push(table);
    if point.is_nominal() {
        finding.tables.push(capacities(&device, &reserved, point)?);
    }
    let simulation = first.expect("there are two modes");
    let lines = ["c1", "c2"].into_iter().zip(PRINTED_SKEWED).enumerate();
    let lines = lines.map(|(vm, (name, iops))| Line::new(name, rates(&simulation, vm)).published(vec![(80.0, iops)]));
    finding.charts.push(Chart::lines("dmClock, mode \"product\"", "time [s]", "IOPS", lines.collect()));
    Ok(finding)
}

/// The same for nodes of a stated rate, which are their threads.
fn capacities(device: &DeviceFile, clients: &[Client], point: &BandPoint) -> Result<Table, LabError> {
    let columns = ["a node gives [IOPS]", "dmClock, product", "dmClock, paper"];
    let mut table = Table::new("c1/c2 by what a node gives [IOPS]", &columns);
    for iops in [1050, 1200, 1300, 1400, 1450, 1500, 1750, 1950] {
        let mut device = device.clone();
        device.model = ModelFile::Servers { count: THREADS, iops: f64::from(iops) };
        let mut cells = vec![iops.to_string()];
        for (_, form, host) in modes() {
            let simulation =
                Cluster { nodes: 2, device: &device, clients, form, host, outstanding: OUTSTANDING, seconds: 110 }
                    .run_simulation(point)?;
            cells.push(slashed(&[0, 1].map(|vm| mean_rate(&simulation, vm, 50, 110))));
        }
        table.row(cells);
    }
    Ok(table)
}

pub(in crate::figures) const REMOTE: Figure = Figure {
    id: "mclock-told",
    paper: Paper::Mclock,
    label: "Section 3.2",
    title: "How wrong what clients tell can make an allocation",
    setup: "One client with a reservation of 900 IOPS and no weight, so that it gets its reservation and nothing else, 64 requests \
            outstanding at 1, 2, 3 and 5 nodes in turn, and at nodes drawn at random for 600 s, each a RAID-5 of six disks; what it was \
            dispatched in all, each second.",
    device: "mclock-node",
    rows: &[
        RowSpec {
            id: "M11",
            class: Class::Conformance,
            must: "in no span of whole seconds from 1 s on does what was dispatched differ from 900 a second by more than one request for \
                   each other server, mode \"paper\"",
            paper: "inaccurate by up to 1 request at each of the other servers",
            note: "A report counts when the request that brings it reaches the head of its queue. With a constant number of outstanding \
                   requests, as here, the error is constant; for a client whose backlog grows it grows too.",
        },
        RowSpec {
            id: "M11b",
            class: Class::Hardware,
            must: "the same in mode \"product\", which promises less (M11c)",
            paper: "inaccurate by up to 1 request at each of the other servers",
            note: "Here a report counts when it arrives, so a node misses what is in flight at the others, up to 16 requests each, and that \
                   varies.",
        },
        RowSpec {
            id: "M11c",
            class: Class::Conformance,
            must: "in mode \"product\", with nodes drawn at random, the same for 600 s within 16 requests for each other server: it does not drift",
            paper: "inaccurate by up to 1 request at each of the other servers",
            note: "A node's queue of the client is empty now and then, and fills while others have requests in flight that no report has counted. \
                   Forgiving what is owed then would count these twice, each time.",
        },
    ],
    run: measure_remote,
};

fn measure_remote(point: &BandPoint) -> Result<Finding, LabError> {
    const RESERVATION: u64 = 900;
    let columns = ["nodes", "product", "paper", "allowed", "product, random, 600 s", "allowed"];
    let mut table = Table::new("Furthest from 900 IOPS in any span [requests]", &columns);
    let [(_, product, in_product), (_, paper, in_paper)] = modes();
    let measured = [
        ("M11b", &product, &in_product, Told::InTurn, 1),
        ("M11", &paper, &in_paper, Told::InTurn, 1),
        ("M11c", &product, &in_product, Told::AtRandom, THREADS as usize),
    ];
    let (mut holds, mut words, mut each_server) = ([true; 3], [const { Vec::new() }; 3], 0.0f64);
    for nodes in [1, 2, 3, 5] {
        let mut cells = vec![nodes.to_string()];
        for ((id, form, host, how, each), (holds, words)) in measured.iter().zip(holds.iter_mut().zip(&mut words)) {
            let off = furthest(nodes, form.expect("clients tell"), host, (RESERVATION, *how), point)?;
            // With one node the deviation is that of the device: there are no reports.
            let allowed = each * (nodes - 1);
            *holds &= nodes == 1 || off <= allowed as f64;
            cells.push(format!("{off:.0}"));
            words.push(format!("{off:.0}"));
            if *id != "M11b" {
                cells.push(if nodes == 1 { "not judged".into() } else { allowed.to_string() });
            } else if nodes > 1 {
                each_server = each_server.max(off / (nodes - 1) as f64);
            }
        }
        table.row(cells);
    }
    let mut finding = Finding::default();
    for ((id, ..), (holds, words)) in measured.iter().zip(holds.into_iter().zip(words)) {
        let measured = format!("{} requests (1, 2, 3, 5 nodes)", words.join(", "));
        if *id == "M11b" {
            finding.show(id, measured).means([(1.0, each_server)]);
        } else {
            finding.judge(id, holds, measured);
        }
    }
    finding.tables.push(table);
    Ok(finding)
}

/// How the client of [`REMOTE`] chooses the node of a request, and for how long.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    InTurn,
    AtRandom,
}

/// Largest deviation of the dispatches from `reservation` per second, over any span of whole seconds.
fn furthest(
    nodes: usize,
    form: Form,
    host: &Host,
    (reservation, how): (u64, Told),
    point: &BandPoint,
) -> Result<f64, LabError> {
    let (placement, seconds) = match how {
        Told::InTurn => (Placement::RoundRobin(0), 60),
        Told::AtRandom => (Placement::Uniform(point.stream("placement/c1")), 600),
    };
    let device = node(point)?;
    let mut simulation = Simulation::new(host.gate()?, device.model(point), Duration::ZERO, Duration::from_secs(1));
    for _ in 1..nodes {
        simulation.add_node(host.gate()?, device.model(point));
    }
    let policy = Policy { weight: None, ..policy(reservation, 0, 1) };
    let vm = simulation.add_vm_at(placement, policy).map_err(refused)?;
    let workload = closed(OUTSTANDING, random_reads(8192, device.place(0).1), point, "c1");
    simulation.add_thread(vm, Thread::new(workload)).map_err(refused)?;
    simulation.track(vm, form);
    let mut ahead: Vec<f64> = Vec::new();
    for second in 1..=seconds {
        run(&mut simulation, second, "dmClock")?;
        let got: u64 = simulation.dispatched(vm).iter().sum();
        ahead.push(got as f64 - (reservation * second) as f64);
    }
    let (least, most) = ahead.iter().fold((f64::MAX, f64::MIN), |(least, most), off| (least.min(*off), most.max(*off)));
    Ok(most - least)
}
