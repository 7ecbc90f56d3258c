//! Four VMs with the paper's weights on its drive.

use std::time::Duration;

use sluice_sim::devices::ssd::Ssd;
use sluice_sim::engine::{Placement, Simulation, Thread};
use sluice_sim::workloads::{Address, Mix, Workload};

use crate::band::BandPoint;
use crate::device::{DeviceFile, ModelFile};
use crate::figure::LabError;
use crate::setup::{Host, closed, policy, refused, run};

/// The device of all figures.
pub(super) const DEVICE: &str = "mcfq-ssd";
/// Table 2.
pub(super) const WEIGHTS: [u32; 4] = [10, 7, 4, 1];
/// Their names.
pub(super) const VMS: [&str; 4] = ["VM1", "VM2", "VM3", "VM4"];
/// Write test: outstanding requests per VM, and their length.
pub(super) const WRITES: (u32, u32) = (16, 64 << 10);
/// Measured seconds on an aged drive: after two of the manager's longest windows, 30 of these at the nominal point, and 10 elsewhere, where
/// the seeds and points are many. In a minute there are only three of them, and the results were random.
pub(super) fn long(point: &BandPoint) -> (usize, usize) {
    if point.number() == 0 && !point.is_sweep() { (40, 640) } else { (40, 240) }
}

/// Queue depth of the drive, as with SATA.
pub(super) const DEPTH: u32 = 31;

/// CFQ with groups.
pub(super) fn cfq() -> Host {
    Host::new("cfq", DEPTH)
}

/// CFQ with the manager of time slices.
pub(super) fn mcfq(mode: &str, window: i64) -> Host {
    Host::new("mcfq", DEPTH).text("mode", mode).number("window", window)
}

/// Part of a correction that the manager applies, in percent.
pub(super) fn gain(point: &BandPoint) -> i64 {
    (100.0 * point.setting("mots-gain")).round() as i64
}

/// The drive, clean and aged.
pub(super) struct Drives {
    pub(super) clean: Ssd,
    pub(super) aged: Ssd,
    pub(super) bytes: u64,
}

impl Drives {
    pub(super) fn new(point: &BandPoint) -> Result<Drives, LabError> {
        let file = DeviceFile::load(DEVICE)?;
        let ModelFile::Ssd(drive) = &file.model else {
            return Err(LabError::Device(DEVICE.into(), "it must be an SSD".into()));
        };
        Ok(Drives { clean: drive.clean(point)?, aged: drive.aged(point)?, bytes: used(&file) })
    }

    /// Size of one VM's volume in bytes.
    pub(super) fn volume(&self) -> u64 {
        volume_of(self.bytes)
    }
}

/// Bytes of the drive that are used. At a point of the range it may be smaller than at the nominal one.
fn used(file: &DeviceFile) -> u64 {
    file.bytes() / 100 * 95
}

fn volume_of(bytes: u64) -> u64 {
    bytes / WEIGHTS.len() as u64 / 4096 * 4096
}

/// The same without a drive: 0 without its file.
pub(super) fn volume() -> u64 {
    DeviceFile::load(DEVICE).map_or(0, |file| volume_of(used(&file)))
}

/// Bytes per second of each VM in each second.
pub(super) struct Shares {
    seconds: Vec<[f64; 4]>,
}

impl Shares {
    /// Mean bandwidth in multiples of the last VM's.
    pub(super) fn ratios(&self) -> [f64; 4] {
        let sums: [f64; 4] = std::array::from_fn(|vm| self.seconds.iter().map(|second| second[vm]).sum());
        sums.map(|sum| sum / sums[3].max(1.0))
    }

    /// Sum of the relative deviations of the other VMs from their weights.
    pub(super) fn error(&self) -> f64 {
        error(&self.ratios())
    }

    /// Deviation of the VMs' parts of a second's bandwidth from those by weight, summed; the mean over the seconds.
    pub(super) fn noise(&self) -> f64 {
        let all: f64 = WEIGHTS.iter().map(|weight| f64::from(*weight)).sum();
        let off = |second: &[f64; 4]| -> f64 {
            let sum = second.iter().sum::<f64>().max(1.0);
            second.iter().zip(WEIGHTS).map(|(got, weight)| (got / sum - f64::from(weight) / all).abs()).sum()
        };
        self.seconds.iter().map(off).sum::<f64>() / self.seconds.len().max(1) as f64
    }

    /// Megabytes per second of a VM over time, for a chart: at most two minutes.
    pub(super) fn series(&self, vm: usize) -> Vec<(f64, f64)> {
        self.seconds.iter().take(120).enumerate().map(|(at, second)| (at as f64, second[vm] / 1e6)).collect()
    }

    /// Megabytes per second of all VMs.
    pub(super) fn rate(&self) -> f64 {
        self.seconds.iter().flatten().sum::<f64>() / 1e6 / self.seconds.len().max(1) as f64
    }

    /// As in Table 1.
    pub(super) fn text(&self) -> String {
        self.ratios().map(|ratio| format!("{ratio:.1}")).join(":")
    }
}

fn error(ratios: &[f64; 4]) -> f64 {
    (0..3).map(|vm| (ratios[vm] / f64::from(WEIGHTS[vm]) * f64::from(WEIGHTS[3]) - 1.0).abs()).sum()
}

/// The write test: 16 random writes of 64 KiB outstanding per VM, unless swept.
pub(super) fn writes(
    outstanding: u32,
    length: u32,
    volume: u64,
    point: &BandPoint,
) -> impl FnMut(usize) -> Result<Box<dyn Workload>, LabError> {
    let mix = Mix { reads: 0.0, length, address: Address::random(0, volume) };
    let point = *point;
    move |vm| Ok(closed(outstanding, mix.clone(), &point, VMS[vm]))
}

/// Runs every VM with a workload of `make`, measured from second `from` to `to`.
pub(super) fn share(
    host: &Host,
    drive: &Ssd,
    volume: u64,
    seconds: (usize, usize),
    make: impl FnMut(usize) -> Result<Box<dyn Workload>, LabError>,
) -> Result<Shares, LabError> {
    share_in([0, 1, 2, 3], host, drive, volume, seconds, make)
}

/// The same with VMs that are added in another order, and therefore have other turns.
pub(super) fn share_in(
    order: [usize; 4],
    host: &Host,
    drive: &Ssd,
    volume: u64,
    (from, to): (usize, usize),
    mut make: impl FnMut(usize) -> Result<Box<dyn Workload>, LabError>,
) -> Result<Shares, LabError> {
    let model = Box::new(drive.clone());
    let mut simulation = Simulation::new(host.gate()?, model, Duration::ZERO, Duration::from_secs(1));
    let mut numbers = [0; 4];
    for vm in order {
        numbers[vm] = simulation.add_vm_at(Placement::Pinned(0), policy(0, 0, WEIGHTS[vm])).map_err(refused)?;
        let thread = Thread::new(make(vm)?).at(vm as u64 * volume).synchronous();
        simulation.add_thread(numbers[vm], thread).map_err(refused)?;
    }
    run(&mut simulation, to as u64, host.scheduler)?;
    let got =
        |vm: usize, second: usize| simulation.record(numbers[vm]).series().get(second).map_or(0, |window| window.bytes);
    let seconds = (from..to).map(|second| std::array::from_fn(|vm| got(vm, second) as f64)).collect();
    Ok(Shares { seconds })
}
