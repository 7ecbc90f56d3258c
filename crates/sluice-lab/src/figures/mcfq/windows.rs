//! Table 1: the window over which MoTS observes bandwidth.

use sluice_report::{Chart, Line, Table};

use crate::band::BandPoint;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::real::{self, Device, Form, Load, Parameters, Quantity, Trial, TrialVm};

use super::sharing::{self, DEVICE, Drives, Shares, VMS, WRITES, long, share, writes};

/// Windows of the table in seconds, with the paper's measurements: bandwidths of the first three VMs in multiples of the fourth's.
const WINDOWS: [(i64, [f64; 3]); 3] = [(5, [8.3, 7.3, 4.4]), (10, [10.3, 7.6, 4.4]), (20, [10.8, 8.2, 4.7])];
const PRINTED: &str = "8.3:7.3:4.4:1; 10.3:7.6:4.4:1; 10.8:8.2:4.7:1";
const MODES: [&str; 2] = ["paper", "window"];

const NEAREST: &str =
    "of windows of 5, 10 and 20 s the one of 10 s comes nearest to 10:7:4:1 (least sum of relative errors)";
const REDUCES: &str = "at a window of 10 s the error is smaller than under plain CFQ";

const fn shape(id: &'static str, must: &'static str, paper: &'static str, note: &'static str) -> RowSpec {
    RowSpec { id, class: Class::Shape, must, paper, note }
}

pub(crate) const FIGURE: Figure = Figure {
    id: "mcfq-windows",
    paper: Paper::Mcfq,
    label: "Table 1",
    title: "Bandwidth per window of MoTS",
    setup: "The four VMs and the aged drive of Fig. 2, with 16 random writes of 64 KiB outstanding in each [assumed]; measured for \
            ten minutes from 40 s on at the nominal point, elsewhere for 200 s. Mode \"paper\" corrects every second and averages twice, as the listing reads; mode \"window\" \
            corrects once a window; mode \"base\" every second from the base slice.",
    device: DEVICE,
    rows: &[
        shape(
            "C2a",
            NEAREST,
            PRINTED,
            "Mode \"paper\". A correction every second by what is averaged over a window, twice, comes too late and goes \
             too far: it swings for windows of 3 s and more, and the wider the longer the window: at 18 of the 21 points the one of \
             5 s comes nearest. See its errors by second, which are above plain CFQ's at every window.",
        ),
        shape(
            "C2b",
            REDUCES,
            "the bandwidth distribution is improved; no number of CFQ's can be read",
            "Mode \"paper\": as C2a. Mode \"window\" does it: C2e.",
        ),
        RowSpec {
            id: "C2c",
            class: Class::Hardware,
            must: "the ratios at windows of 5; 10; 20 s, mode \"paper\"",
            paper: PRINTED,
            note: "Modes \"window\" and \"base\" are in the table.",
        },
        shape(
            "C2d",
            NEAREST,
            PRINTED,
            "Mode \"window\". The longer the window, the less of what it sees is noise: at 19 of the 21 points the one of 20 s comes \
             nearest, and the one of 10 s right behind it (table). A longer window is worse where something changes within \
             it, and nothing here does.",
        ),
        shape(
            "C2e",
            REDUCES,
            "the bandwidth distribution is improved; no number of CFQ's can be read",
            "Mode \"window\".",
        ),
    ],
    run: measure,
};

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let drives = Drives::new(point)?;
    let volume = drives.volume();
    let run = |host| share(&host, &drives.aged, volume, long(point), writes(WRITES.0, WRITES.1, volume, point));
    let columns = [
        "scheduler",
        "window [s]",
        "VM1:VM2:VM3:VM4",
        "paper",
        "error of the ratio",
        "error of the parts, by second",
        "MB/s",
    ];
    let mut table = Table::new("Bandwidth in multiples of VM4's; 10:7:4:1 is due", &columns);
    let mut row = |name: &str, window: &str, paper: &str, shares: &Shares| {
        let numbers = [shares.error(), shares.noise()].map(|number| format!("{number:.2}"));
        let rate = format!("{:.0}", shares.rate());
        let cells = [name.to_owned(), window.to_owned(), shares.text(), paper.to_owned()];
        table.row(cells.into_iter().chain(numbers).chain([rate]));
    };
    let plain = run(sharing::cfq())?;
    row("CFQ", "", "", &plain);
    let (mut finding, mut bars) = (Finding::default(), Vec::new());
    let modes = if point.is_nominal() { &["paper", "window", "base"][..] } else { &MODES };
    for mode in modes {
        let mut all = Vec::new();
        for (window, [one, two, three]) in WINDOWS {
            let shares = run(sharing::mcfq(mode, window).number("gain", sharing::gain(point)))?;
            row(&format!("MCFQ, {mode}"), &window.to_string(), &format!("{one}:{two}:{three}:1"), &shares);
            all.push(shares);
        }
        if let Some(judged) = MODES.iter().position(|known| known == mode) {
            judge(&mut finding, [["C2a", "C2b"], ["C2d", "C2e"]][judged], &plain, &all);
        }
        if *mode == "paper" {
            finding.show("C2c", all.iter().map(Shares::text).collect::<Vec<_>>().join("; ")).means(means(&all));
        }
        let lines = VMS.iter().enumerate().map(|(vm, name)| Line::new(*name, all[1].series(vm))).collect();
        let title = format!("MCFQ, mode {mode}, a window of 10 s");
        finding.charts.push(Chart::lines(&title, "time after the first 40 s [s]", "MB/s", lines));
        bars.push(Line::bars(format!("mode {mode}"), &all[1].ratios()[..3]));
    }
    finding.tables.push(table);
    bars.extend([Line::bars("CFQ", &plain.ratios()[..3]), Line::bars("the paper", &WINDOWS[1].1)]);
    finding.charts.push(Chart::bars("A window of 10 s", "bandwidth in multiples of VM4's", &VMS[..3], bars));
    Ok(finding)
}

/// The ratios of Table 1 with those measured.
fn means(all: &[Shares]) -> Vec<(f64, f64)> {
    let of =
        |((_, printed), shares): (&(i64, [f64; 3]), &Shares)| printed.iter().copied().zip(shares.ratios()).collect();
    WINDOWS.iter().zip(all).map(of).collect::<Vec<Vec<_>>>().concat()
}

fn judge(finding: &mut Finding, ids: [&str; 2], plain: &Shares, all: &[Shares]) {
    let errors: Vec<f64> = all.iter().map(Shares::error).collect();
    let text = errors.iter().map(|error| format!("{error:.2}")).collect::<Vec<_>>().join(", ");
    finding.judge(ids[0], errors[1] < errors[0].min(errors[2]), format!("errors {text}")).means(means(all));
    let measured = format!("{:.2}, under CFQ {:.2}", errors[1], plain.error());
    finding.judge(ids[1], errors[1] < plain.error(), measured);
}

/// Measured seconds on real I/O.
const REAL_PARTS: [(usize, usize); 1] = [(20, 140)];

/// The same on real I/O: CFQ, and MCFQ in mode "window" with the window of 10 s.
pub(crate) fn trials() -> Vec<Trial> {
    let volume = sharing::volume();
    let vm = |(name, weight)| {
        let plain = TrialVm::new(name, weight, WRITES.1);
        TrialVm { load: Load { outstanding: WRITES.0, write_percent: 100, ..plain.load }, ..plain }
    };
    let trial = |scheduler, parameters: Parameters, printed: Option<[f64; 3]>| {
        let vms: Vec<TrialVm> = VMS.into_iter().zip(sharing::WEIGHTS).map(vm).collect();
        let mut values = Trial::all_values(&REAL_PARTS, &vms[..3], &[Quantity::Ratio]);
        values.extend(Trial::all_values(&REAL_PARTS, &vms, &[Quantity::Iops]));
        let printed: Vec<_> = printed.into_iter().flatten().map(Some).collect();
        real::print(&mut values, 0, Quantity::Ratio, &printed);
        Trial {
            device: Device::Drive { file: DEVICE, form: Form::Aged },
            disk_len: volume,
            range: volume,
            depth: sharing::DEPTH,
            scheduler,
            parameters,
            values,
            ..Trial::constant(scheduler, 0.0, vms, &REAL_PARTS)
        }
    };
    let (_, printed) = WINDOWS[1];
    vec![trial("cfq", &[], None), trial("mcfq", &[("mode", MODES[1]), ("window", "10")], Some(printed))]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the numbers that the page of real I/O states of plain CFQ with simulated runs.
    #[test]
    fn plain_cfq_has_two_rhythms_and_the_manager_one() {
        let of_vm2 = |mut trial: Trial, apart: u64| {
            (0..).zip(&mut trial.vms).for_each(|(number, vm)| vm.start = apart * number);
            trial.simulate().unwrap()[0][1].iops
        };
        let trials = trials();
        let [together, apart] = [0, 2].map(|apart| of_vm2(trials[0].clone(), apart));
        let said =
            format!("VM2 gets {together:.0} IOPS if all VMs begin at once, and {apart:.0} if each begins 2 s after");
        let page = real::ALL.iter().find(|figure| figure.figure.id == FIGURE.id).unwrap().without;
        assert!(page.contains(&said), "{said}");
        let [together, apart] = [0, 2].map(|apart| of_vm2(trials[1].clone(), apart));
        assert!(trials[1].is_near(Quantity::Iops, apart, together), "{together} {apart}");
    }
}
