//! Fig. 3: four schedulers in the guest times four on the host, for five loads.

use std::time::Duration;

use sluice_report::{Chart, Line, Table};
use sluice_sim::devices::Model;
use sluice_sim::devices::read_ahead::ReadAhead;
use sluice_sim::devices::write_cache::{Filled, WriteCache};
use sluice_sim::stack::Ring;

use super::{DEVICE, ELEVATORS, Kernel, LOADS, Load, elevator, tiers};
use crate::band::BandPoint;
use crate::device::{DeviceFile, DriveFile, ModelFile};
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::setup::{Host, mean_rate, run, slashed};

/// Threads of FFSB.
const THREADS: u32 = 8;
/// Bytes that the controller reads ahead of a stream, and its stripe unit.
const READ_AHEAD: u64 = 1 << 20;
const STRIPE: u64 = 64 << 10;
/// Write cache of the controller in bytes.
const WRITE_CACHE: u64 = 256 << 20;
/// Time of a request that the controller completes.
const CONTROLLER: Duration = Duration::from_micros(100);
/// Measured windows of a machine with a write cache, after its warm-up.
const WINDOWS: u64 = 4;
/// Relative difference that counts as none.
const TIE: f64 = 0.05;
/// Maximum relative difference between the guest's schedulers for random writes.
const NO_DIFFERENCE: f64 = 0.10;
/// For each load, in the order of [`LOADS`]: the row for the effect of either choice, and that for the guests'
/// order. Random writes have only the latter.
const ROWS: [(Option<&str>, &str); 5] =
    [(Some("X2a"), "X3a"), (None, "X3e"), (Some("X2b"), "X3b"), (Some("X2c"), "X3c"), (Some("X2d"), "X3d")];

macro_rules! one_at_a_time {
    ($rest:literal) => {
        concat!(
            "Noop and deadline are equal and ahead, as in the paper; what does not come out is cfq above \
             anticipatory. Both wait for the next request of the thread that they have just served, which comes at once, so both \
             give the disk one request at a time, as one thread alone does (Fig. 2), and lie within ",
            $rest,
            " Idling is all that separates either from noop: table \"What it comes from\", nobody idles."
        )
    };
}

const RANDOM: &str = one_at_a_time!("some 6 % of each other; anticipatory is the one ahead.");

macro_rules! spread_row {
    ($id:literal, $load:literal) => {
        RowSpec {
            id: $id,
            class: Class::Shape,
            must: concat!($load, ": the host's choice changes less than 5 %, and less than the guest's"),
            paper: "changing the scheduler in Dom0 does not affect overall performance, that in the guest does more",
            note: "Eight threads have eight requests at most, and the nominal disk takes 32: none ever waits on the host, so that its \
                   scheduler has nothing to choose from.",
        }
    };
}

macro_rules! rank_row {
    ($id:literal, $load:literal, $note:expr) => {
        RowSpec {
            id: $id,
            class: Class::Shape,
            must: concat!(
                $load,
                ", guest: noop and deadline within 5 %, both above cfq, cfq above anticipatory, by 5 %"
            ),
            paper: "noop and deadline best, then cfq, anticipatory worst",
            note: $note,
        }
    };
}

pub(in crate::figures) const FIGURE: Figure = Figure {
    id: "two-tier-pairs",
    paper: Paper::TwoTier,
    label: "Fig. 3",
    title: "Open source Xen two-tier scheduling",
    setup: "One VM with eight threads of FFSB, direct I/O in blocks of 4 KiB, in 100 files of 32 MiB each (files and sizes are \
            assumptions, from FFSB's example); ten blocks to a random operation, a whole file to a sequential one; mixed is \
            random, half of it reads. The guest's scheduler, a ring of 32 requests of at most 44 KiB, the host's scheduler, \
            and the disk, which takes 32 commands. Both kernels are Linux 2.6.32, schedulers as they come. Guests are \
            compared by their mean over the four hosts.",
    device: DEVICE,
    rows: &[
        spread_row!("X2a", "random read"),
        spread_row!("X2b", "sequential read"),
        spread_row!("X2c", "sequential write"),
        spread_row!("X2d", "mixed"),
        rank_row!("X3a", "random read", RANDOM),
        rank_row!(
            "X3b",
            "sequential read",
            "A single disk is at its best with one reader at a time, and cfq and anticipatory give it one; noop and deadline \
             leave the choice to the disk, which changes between readers and loses a tenth (table \
             \"sequential read\"). With idling off all four are equal (table \"What it comes from\", nobody idles). For noop to \
             be ahead, as in the paper, something must read ahead for several streams at once: a RAID controller does, \
             and the paper names none."
        ),
        rank_row!("X3c", "sequential write", one_at_a_time!("1 % of each other.")),
        rank_row!("X3d", "mixed", RANDOM),
        RowSpec {
            id: "X3e",
            class: Class::Shape,
            must: "random write: the guest's schedulers within 10 % of each other",
            paper: "no significant differences",
            note: "Writes with direct I/O are waited for as reads are, so cfq and anticipatory wait for each thread's next \
                   one here too. With a cache of writes in the disk the difference is gone, as the paper has it: table \
                   \"What it comes from\", 16 MiB. The paper states no such cache, so the disk has none.",
        },
    ],
    run: measure,
};

/// Requests per second, by guest and host.
type Grid = [[f64; 4]; 4];

/// The disk with the controller of a point, and whether the controller's write cache has been full.
type Machine = (Box<dyn Model>, Option<Filled>);

/// The machine of a point: its disk's queue, and its controller.
fn machine(device: &DeviceFile, point: &BandPoint) -> Machine {
    let mut device = device.clone();
    let controller = point.setting("controller") as u32;
    let (reads_ahead, caches) = (controller & 1 != 0, controller & 2 != 0);
    let size = device.bytes();
    if let ModelFile::Drives { drive, .. } = &mut device.model {
        drive.queue = point.setting("sas-queue") as u32;
    }
    let (mut model, mut filled) = (device.model(point), None);
    if caches {
        let cache = WriteCache::new(model, WRITE_CACHE, CONTROLLER);
        filled = Some(cache.filled());
        model = Box::new(cache);
    }
    if reads_ahead {
        model = Box::new(ReadAhead::new(model, READ_AHEAD, STRIPE, size, CONTROLLER));
    }
    (model, filled)
}

fn rate(load: &Load, guest: &Host, host: &Host, machine: Machine, point: &BandPoint) -> Result<f64, LabError> {
    let threads = load.threads(THREADS, DeviceFile::load(DEVICE)?.bytes(), point)?;
    let (model, filled) = machine;
    let mut vm = tiers::virtual_machine(guest, host, Ring::XEN, model, threads)?;
    let Some(filled) = filled else {
        run(&mut vm, load.seconds, load.name)?;
        return Ok(vm.rate(0));
    };
    let from = tiers::warm_up(&mut vm, load.writes.then_some(&filled), load.window, load.name)?;
    let to = from + WINDOWS * load.window;
    run(&mut vm, to, load.name)?;
    Ok(mean_rate(&vm, 0, from as usize, to as usize))
}

fn kernel(point: &BandPoint) -> Kernel {
    if point.setting("guest-kernel") == 0.0 { Kernel::Linux2_6_32 } else { Kernel::El6 }
}

fn grid(load: &Load, point: &BandPoint) -> Result<Grid, LabError> {
    let device = DeviceFile::load(DEVICE)?;
    let mut grid = [[0.0; 4]; 4];
    for (row, guest) in grid.iter_mut().zip(ELEVATORS) {
        for (cell, host) in row.iter_mut().zip(ELEVATORS) {
            let (guest, host) = (elevator(guest, kernel(point)), elevator(host, Kernel::Linux2_6_32));
            *cell = rate(load, &guest, &host, machine(&device, point), point)?;
        }
    }
    Ok(grid)
}

/// Range of the values as a part of the mean.
fn spread(values: [f64; 4]) -> f64 {
    let (least, most) = values.into_iter().fold((f64::MAX, 0.0f64), |(l, m), value| (l.min(value), m.max(value)));
    (most - least) / mean(values)
}

fn mean(values: [f64; 4]) -> f64 {
    values.iter().sum::<f64>() / 4.0
}

/// Mean effect of the host's choice for one guest, and of the guest's choice for one host.
fn spreads(grid: &Grid) -> (f64, f64) {
    let columns = std::array::from_fn(|host| spread(grid.map(|row| row[host])));
    (mean(grid.map(spread)), mean(columns))
}

/// By guest, over all hosts.
fn by_guest(grid: &Grid) -> [f64; 4] {
    grid.map(mean)
}

/// Whether `a` exceeds `b` by more than the tolerance.
fn above(a: f64, b: f64) -> bool {
    b < (1.0 - TIE) * a
}

/// Noop and deadline equal, cfq below both, anticipatory below that.
fn ranked([noop, deadline, anticipatory, cfq]: [f64; 4]) -> bool {
    let tied = !above(noop, deadline) && !above(deadline, noop);
    tied && above(noop.min(deadline), cfq) && above(cfq, anticipatory)
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let mut finding = Finding::default();
    let mut lines: Vec<Line> = ELEVATORS.iter().map(|name| Line::new(*name, Vec::new())).collect();
    let mut groups = Vec::new();
    for (load, (spread_row, rank_row)) in LOADS.iter().zip(ROWS) {
        let grid = grid(load, point)?;
        let (guests, (of_host, of_guest)) = (by_guest(&grid), spreads(&grid));
        if let Some(id) = spread_row {
            let measured = format!("{:.1} % by host, {:.1} % by guest", 100.0 * of_host, 100.0 * of_guest);
            finding.judge(id, of_host < TIE && of_host < of_guest, measured);
        }
        let measured = format!("noop/deadline/anticipatory/cfq {} IOPS", slashed(&guests));
        let holds = if spread_row.is_some() { ranked(guests) } else { spread(guests) < NO_DIFFERENCE };
        finding.judge(rank_row, holds, measured);
        finding.tables.push(table(load, &grid));
        groups.push(load.name);
        lines.iter_mut().zip(guests).for_each(|(line, got)| line.points.push((0.0, 100.0 * got / guests[0])));
    }
    if point.is_nominal() {
        finding.tables.push(causes(point)?);
    }
    finding.charts.push(Chart::bars("By the guest's scheduler", "throughput [% of noop's]", &groups, lines));
    Ok(finding)
}

fn table(load: &Load, grid: &Grid) -> Table {
    let title = format!("{} [IOPS of 4 KiB], guest by host", load.name);
    let columns: Vec<_> = std::iter::once("guest").chain(ELEVATORS).collect();
    let mut table = Table::new(title, &columns);
    for (guest, row) in ELEVATORS.into_iter().zip(grid) {
        table.row(std::iter::once(guest.to_owned()).chain(row.map(|cell| format!("{cell:.0}"))));
    }
    table
}

/// The same with one change: the causes of the differences between guests.
fn causes(point: &BandPoint) -> Result<Table, LabError> {
    let device = DeviceFile::load(DEVICE)?;
    let with = |change: fn(&mut DriveFile)| {
        let mut changed = device.clone();
        if let ModelFile::Drives { drive, .. } = &mut changed.model {
            change(drive);
        }
        changed
    };
    let own = Kernel::Linux2_6_32;
    let runs = [
        ("as above", own, device.clone()),
        ("nobody idles: slice_idle and antic_expire 0", Kernel::NobodyIdles, device.clone()),
        ("elevators of Linux 2.6.18", Kernel::Linux2_6_18, device.clone()),
        ("a cache of writes of 16 MiB in the disk", own, with(|drive| drive.write_cache_bytes = 16 << 20)),
        ("a disk that takes one command at a time", own, with(|drive| drive.queue = 1)),
    ];
    let columns: Vec<_> = std::iter::once("run").chain(LOADS.iter().map(|load| load.name)).collect();
    let mut table = Table::new("What it comes from: guests noop/deadline/anticipatory/cfq above cfq [IOPS]", &columns);
    for (name, kernel, device) in runs {
        let mut cells = vec![name.to_owned()];
        for load in &LOADS {
            let mut guests = [0.0; 4];
            for (got, guest) in guests.iter_mut().zip(ELEVATORS) {
                let [guest, host] = [guest, "cfq"].map(|name| elevator(name, kernel));
                *got = rate(load, &guest, &host, (device.model(point), None), point)?;
            }
            cells.push(slashed(&guests));
        }
        table.row(cells);
    }
    Ok(table)
}
