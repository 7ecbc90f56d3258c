//! Fig. 8: a reservation protects databases from a newcomer.

use sluice_report::{Chart, Line, Table};
use sluice_sched::Instant;
use sluice_sched::params::ParamTable;
use sluice_sim::engine::Simulation;
use sluice_sim::workloads::{Workload, recipes};

use crate::band::Setting;
use crate::device::DeviceFile;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::scene::{Actor, Scene, stream_of};
use crate::setup::{Host, closed, mean_latency_ms, mean_rate, policy, random_reads, rates, refused, run, slashed};

/// Reservations and weights.
const VMS: [(&str, u64, u32); 3] = [("OLTP1", 500, 2), ("OLTP2", 500, 1), ("Iometer", 0, 1)];
/// When Iometer starts, in seconds.
const START: u64 = 115;
/// What is measured, in seconds: before, and after.
const PARTS: [(usize, usize); 2] = [(20, 115), (125, 285)];

pub(in crate::figures) const FIGURE: Figure = Figure {
    id: "mclock-oltp",
    paper: Paper::Mclock,
    label: "Fig. 8",
    title: "Two OLTP VMs with reservations, and Iometer from 115 s on",
    setup: "Ten disks as RAID-5, 32 requests at the array. Two VMs run the block-level recipe of Filebench's oltp (200 readers of 2 KiB, ten \
            writers, a log); weights 2:1, reservations of 500 IOPS. The third, weight 1, keeps 32 random reads of 16 KiB outstanding from \
            115 s on. A guest's page cache is not modelled: every read of the recipe reaches the disk.",
    device: "mclock-oltp",
    rows: &[
        RowSpec {
            id: "M8a",
            class: Class::Exact,
            must: "with mClock, in both modes, both OLTP VMs get at least 98 % of 500 IOPS while Iometer works",
            paper: "both at least 500 IOPS",
            note: "The recipe's readers and writers wait for each other and often leave nothing waiting at the host, and what is not asked for is \
                   not reserved: what each was dispatched in the worst of the seconds in which it always had requests waiting stands \
                   beside the mean. And the device, fitted to the total that the paper's numbers imply, gives hardly more than the 1000 \
                   that are reserved.",
        },
        RowSpec {
            id: "M8b",
            class: Class::Shape,
            must: "without (SFQ(D)) OLTP2 gets less than 70 % of its 500 IOPS after Iometer has come",
            paper: "OLTP2 about 250 IOPS",
            note: "",
        },
        RowSpec {
            id: "M8c",
            class: Class::Hardware,
            must: "latency of OLTP2's requests without and with mClock",
            paper: "lower with mClock",
            note: "",
        },
    ],
    run: measure,
};

/// A run, and of each OLTP VM while Iometer works: the seconds in which it always had requests waiting, and the least that it
/// was dispatched in one of them.
fn play(host: &Host, reserved: bool, setting: &Setting) -> Result<(Simulation, [(u64, u64); 2]), LabError> {
    let device = DeviceFile::load(FIGURE.device)?;
    let (_, span) = device.place(0);
    // Made once to have its error, then for the scene.
    let oltp = |vm: &str, volume| {
        let setting = recipes::Setting { volume, start: Instant::ZERO, random: stream_of(setting, vm) };
        recipes::build("filebench-oltp", setting, &ParamTable::new())
    };
    oltp("OLTP1", span).map_err(refused)?;
    let databases = ["OLTP1", "OLTP2"].map(|vm| {
        move |span| -> Box<dyn Workload> { oltp(vm, span).expect("it could be made before, of the same size") }
    });
    let iometer = |span| closed(32, random_reads(16 << 10, span), setting, "Iometer");
    let makes: [&dyn Fn(u64) -> Box<dyn Workload>; 3] = [&databases[0], &databases[1], &iometer];
    let actors = VMS.iter().zip(makes).enumerate().map(|(number, ((_, reservation, weight), make))| Actor {
        policy: policy(if reserved { *reservation } else { 0 }, 0, *weight),
        start: if number == 2 { START } else { 0 },
        make,
    });
    let scene = Scene { actors: actors.collect(), changes: Vec::new(), span, seconds: PARTS[1].1 as u64 };
    let mut simulation = scene.set_up(host.gate()?, device.model(setting))?;
    run(&mut simulation, PARTS[1].0 as u64, host.scheduler)?;
    let mut backlogged = [(0, u64::MAX); 2];
    for second in PARTS[1].0 as u64..PARTS[1].1 as u64 {
        let (before, mut always) = ([0, 1].map(|vm| dispatched(&simulation, vm)), [true; 2]);
        for part in 1..=500 {
            simulation.run_until(Instant::from_millis(second * 1000 + part * 2));
            (0..2).for_each(|vm| always[vm] &= simulation.account(vm).waiting > 0);
        }
        for vm in (0..2).filter(|vm| always[*vm]) {
            let got = dispatched(&simulation, vm) - before[vm];
            backlogged[vm] = (backlogged[vm].0 + 1, backlogged[vm].1.min(got));
        }
    }
    run(&mut simulation, PARTS[1].1 as u64, host.scheduler)?;
    Ok((simulation, backlogged))
}

fn dispatched(simulation: &Simulation, vm: usize) -> u64 {
    simulation.account(vm).dispatched.iter().sum()
}

fn measure(setting: &Setting) -> Result<Finding, LabError> {
    let (product, of_product) = play(&Host::new("mclock", 32), true, setting)?;
    let (paper, of_paper) = play(&Host::new("mclock", 32).text("mode", "paper"), true, setting)?;
    let (shares, _) = play(&Host::new("sfqd", 32), false, setting)?;
    let runs = [("mClock, product", product), ("mClock, paper", paper), ("SFQ(D)", shares)];
    let columns = ["scheduler", "before [IOPS]", "[ms]", "with Iometer [IOPS]", "[ms]"];
    let mut table = Table::new("OLTP1/OLTP2/Iometer", &columns);
    let rate = |run: &Simulation, part: usize| [0, 1, 2].map(|vm| mean_rate(run, vm, PARTS[part].0, PARTS[part].1));
    let latency =
        |run: &Simulation, part: usize| [0, 1, 2].map(|vm| mean_latency_ms(run, vm, PARTS[part].0, PARTS[part].1));
    for (name, simulation) in &runs {
        let cells = [0, 1].map(|part| [slashed(&rate(simulation, part)), slashed(&latency(simulation, part))]);
        table.row(std::iter::once((*name).to_owned()).chain(cells.concat()));
    }
    let mut finding = Finding::default();
    let backlogged = [of_product, of_paper].concat();
    let kept = runs[..2].iter().all(|(_, run)| rate(run, 1)[..2].iter().all(|got| *got >= 490.0));
    let words: Vec<_> = backlogged.iter().map(|(seconds, least)| format!("{least} in {seconds} s")).collect();
    let mean = slashed(&rate(&runs[0].1, 1)[..2]);
    finding.judge(
        "M8a",
        kept,
        format!("mean {mean} IOPS; least while backlogged: {} (product, paper)", words.join(", ")),
    );
    let without = rate(&runs[2].1, 1)[1];
    finding.judge("M8b", without < 350.0, format!("{without:.0} IOPS"));
    let (before, after) = (latency(&runs[2].1, 1)[1], latency(&runs[0].1, 1)[1]);
    finding.show("M8c", format!("{before:.0} ms without, {after:.0} ms with"));
    finding.tables.push(table);
    for (name, simulation) in [&runs[0], &runs[2]] {
        let lines = VMS.iter().enumerate().map(|(vm, (name, ..))| Line::new(*name, rates(simulation, vm))).collect();
        finding.charts.push(Chart::lines(name, "time [s]", "IOPS", lines));
    }
    Ok(finding)
}
