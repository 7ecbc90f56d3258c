//! Fig. 1: the throughput that a database loses when other VMs start.

use sluice_report::Table;
use sluice_sched::Instant;
use sluice_sched::params::ParamTable;
use sluice_sim::workloads::{Workload, profiles};

use crate::band::BandPoint;
use crate::device::DeviceFile;
use crate::experiment::{Experiment, ExperimentVm, stream_of};
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::setup::{Host, mean_rate, policy, refused};

pub(in crate::figures) const FIGURE: Figure = Figure {
    id: "mclock-dilution",
    paper: Paper::Mclock,
    label: "Fig. 1",
    title: "Orders of a DVDStore VM before and after four other VMs start",
    setup: "Ten disks as RAID-0, 32 requests at the array, equal weights (SFQ(D)); a VM with a DVDStore-like load: orders of a fixed number \
            of requests each, which is assumed. After 60 s four VMs with the same load come. In the paper they are on two other hosts of the array, and \
            here behind the same gate. mClock with a reservation of what the VM had before stands beside it.",
    device: "mclock-array",
    rows: &[RowSpec {
        id: "M13",
        class: Class::Hardware,
        must: "orders fall when four VMs start",
        paper: "from 500 to 275 orders per second",
        note: "How much depends on how many requests the benchmark keeps outstanding, which the paper does not say. A gate of one host, \
               as here, sees all five VMs; those of the paper's three hosts do not.",
    }],
    run: measure,
};

fn run_simulation(host: &Host, reservation: u64, point: &BandPoint) -> Result<[f64; 2], LabError> {
    let device = DeviceFile::load(FIGURE.device)?;
    let (_, span) = device.place(0);
    let store = |vm: &str, volume| {
        let context = profiles::BuildContext { volume, start: Instant::ZERO, random: stream_of(point, vm) };
        profiles::build("dvdstore-like", context, &ParamTable::new())
    };
    store("store", span).map_err(refused)?;
    let stores = ["store", "VM1", "VM2", "VM3", "VM4"].map(|vm| {
        move |span| -> Box<dyn Workload> { store(vm, span).expect("it could be made before, of the same size") }
    });
    let vms = stores.iter().enumerate().map(|(number, make)| match number {
        0 => ExperimentVm { policy: policy(reservation, 0, 100), start: 0, make },
        _ => ExperimentVm { policy: policy(0, 0, 100), start: 60, make },
    });
    let experiment = Experiment { vms: vms.collect(), changes: Vec::new(), span, seconds: 120 };
    let run = experiment.run_simulation(host.gate()?, device.model(point), host.scheduler)?;
    Ok([mean_rate(&run, 0, 10, 60), mean_rate(&run, 0, 70, 120)])
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let shares = run_simulation(&Host::new("sfqd", 32), 0, point)?;
    let reserved = run_simulation(&Host::new("mclock", 32), shares[0] as u64, point)?;
    let mut table = Table::new("Requests per second of the database", &["scheduler", "alone", "with four others"]);
    for (name, [alone, with]) in [("SFQ(D)", shares), ("mClock, reservation of what it had alone", reserved)] {
        table.row([name.to_owned(), format!("{alone:.0}"), format!("{with:.0}")]);
    }
    let mut finding = Finding::default();
    let less = |[alone, with]: [f64; 2]| 100.0 * (1.0 - with / alone);
    let measured = format!("{:.0} % less; {:.0} % with a reservation", less(shares), less(reserved));
    finding.show("M13", measured).means([(275.0 / 500.0, shares[1] / shares[0])]);
    finding.tables.push(table);
    Ok(finding)
}
