//! Fig. 1 and Fig. 2: CFQ on a clean drive and on an aged one.

use sluice_report::{Chart, Line, Table};

use crate::band::BandPoint;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};

use super::sharing::{self, DEVICE, Drives, Shares, VMS, WRITES, long, share, share_in, writes};

/// Measured seconds on the clean drive, which must not fill up.
const CLEAN: (usize, usize) = (5, 25);

pub(in crate::figures) const FIGURE: Figure = Figure {
    id: "mcfq-aged",
    paper: Paper::Mcfq,
    label: "Fig. 1, Fig. 2",
    title: "Write performance with a clean and an aged SSD under CFQ",
    setup: "Four VMs of weights 10:7:4:1 share one SSD, 31 commands at once. Assumed: each has a quarter of the drive and direct I/O \
            (its writes are sync), and keeps 16 random writes of 64 KiB outstanding; measured from 5 to 25 s on the clean drive, which must not fill \
            up, and on the aged one from 40 s on for ten minutes, at other points than the nominal one for 200 s. Shape only: the curves cannot be \
            read in the copy that we have.",
    device: DEVICE,
    rows: &[
        RowSpec {
            id: "C1a",
            class: Class::Shape,
            must: "by the second, the VMs' parts of the bandwidth are at least twice as far from 10:7:4:1 on the aged drive as on the clean one",
            paper: "the performance of the bandwidth distribution varied widely when garbage collection occurs",
            note: "All planes fill their blocks together and collect together, and the drive is silent for a third of a second after every \
                   256 of these writes.",
        },
        RowSpec {
            id: "C1c",
            class: Class::Shape,
            must: "the error of the mean bandwidth ratio (sum of relative errors against 10:7:4:1) is at least twice as large on the aged \
                   drive as on the clean one",
            paper: "performance of the bandwidth distribution varied widely when garbage collection occurs; the curves cannot be read",
            note: "How far the aged drive is off in the mean depends on how CFQ's turns fall into its rhythm. With turns of 70 ms in \
                   place of 100 it is off by 0.28, with 130 ms by 1.23 (table). Where pages are programmed faster the clean drive is \
                   off by up to 0.55; with 4 writes outstanding, not 16, it is by 0.06 at the nominal point (table).",
        },
        RowSpec {
            id: "C1b",
            class: Class::Hardware,
            must: "the ratios, clean; aged",
            paper: "curves that cannot be read",
            note: "A turn of CFQ is paid for by its time, and what is collected in it was left by the writes of others.",
        },
    ],
    run: measure,
};

fn cells(name: String, shares: &Shares) -> [String; 5] {
    let numbers = [format!("{:.2}", shares.error()), format!("{:.2}", shares.noise()), format!("{:.0}", shares.rate())];
    let [error, noise, rate] = numbers;
    [name, shares.text(), error, noise, rate]
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let drives = Drives::new(point)?;
    let volume = drives.volume();
    let test = |(outstanding, length)| {
        let clean = share(&sharing::cfq(), &drives.clean, volume, CLEAN, writes(outstanding, length, volume, point))?;
        let aged =
            share(&sharing::cfq(), &drives.aged, volume, long(point), writes(outstanding, length, volume, point))?;
        Ok::<_, LabError>([clean, aged])
    };
    let columns = ["drive", "VM1:VM2:VM3:VM4", "error of the ratio", "error of the parts, by second", "MB/s"];
    let mut table = Table::new("Bandwidth under CFQ in multiples of VM4's; 10:7:4:1 is due", &columns);
    let [clean, aged] = test(WRITES)?;
    table.row(cells("clean".into(), &clean)).row(cells("aged".into(), &aged));
    if point.is_nominal() {
        for (outstanding, kib) in [(4, 16), (4, 64), (4, 256), (16, 16), (16, 256), (32, 64)] {
            let [clean, aged] = test((outstanding, kib << 10))?;
            let name = |drive| format!("{drive}, {outstanding} writes of {kib} KiB");
            table.row(cells(name("clean"), &clean)).row(cells(name("aged"), &aged));
        }
        let cfq = sharing::cfq;
        let turns = [
            ("aged, VM2 before VM1", [1, 0, 2, 3], cfq()),
            ("aged, VM4 first, VM1 last", [3, 2, 1, 0], cfq()),
            ("aged, turns of 70 ms, not 100", [0, 1, 2, 3], cfq().text("slice_sync", "70ms")),
            ("aged, turns of 130 ms", [0, 1, 2, 3], cfq().text("slice_sync", "130ms")),
        ];
        for (name, order, host) in turns {
            let make = writes(WRITES.0, WRITES.1, volume, point);
            table.row(cells(name.into(), &share_in(order, &host, &drives.aged, volume, long(point), make)?));
        }
    }
    let mut finding = Finding::default();
    let times = aged.error() / clean.error();
    let measured = format!("{:.2} aged, {:.2} clean: {times:.1} times", aged.error(), clean.error());
    finding.judge("C1c", times >= 2.0, measured);
    let times = aged.noise() / clean.noise();
    let measured = format!("{:.2} aged, {:.2} clean: {times:.1} times", aged.noise(), clean.noise());
    finding.judge("C1a", times >= 2.0, measured);
    finding.show("C1b", format!("{}; {}", clean.text(), aged.text()));
    finding.tables.push(table);
    for (title, shares) in [("Fig. 1: a clean SSD", &clean), ("Fig. 2: an aged SSD", &aged)] {
        let lines = VMS.iter().enumerate().map(|(vm, name)| Line::new(*name, shares.series(vm))).collect();
        finding.charts.push(Chart::lines(title, "time [s]", "MB/s", lines));
    }
    Ok(finding)
}
