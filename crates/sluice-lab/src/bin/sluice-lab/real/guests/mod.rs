//! Trials with guests: Linux under QEMU, without KVM, each with a disk that is a part of one real file.
//!
//! The file is a device of constant rate, to which all places are alike. With a scheduler of ours the server serves the parts over
//! vhost-user-blk. With one of the kernel's the server serves the whole file over NBD in the order of arrival, at the same rate, and the
//! kernel schedules before that:
//!
//! ```text
//! guest -- vhost-user-blk ------------------------------------------> scheduler -> delay -> file
//! guest -- virtio-blk, QEMU -- loop device: BFQ or blk-throttle -- FUSE -- NBD --> delay -> file
//! ```
//!
//! A guest keeps `outstanding` requests on its disk with as many processes, each of which sends its next request after the reply. It measures
//! as iostat does: from the kernel's counters of requests and of their total time. The host asks for them once a second.
//!
//! | part | where |
//! |---|---|
//! | kernel and first file system | `image`, `archive`, `init.sh` |
//! | QEMU, and the line to the guest | `guest` |
//! | the kernel's schedulers | `kernel` |

use std::time::{Duration, Instant};

use sluice_lab::real::{KernelScheduler, Seen, Trial};

use super::host::{Fixture, Protocol};
use super::results::Measured;
use super::run::{self, Run, Window};
use super::{compared, parsed};
use guest::{Counters, Disk, Guest};
use image::Image;
use kernel::KernelDevice;
use sluice_daemon::failure::Failure;
use sluice_testbed::{Testbed, folder};

mod guest;
pub(crate) mod image;
pub(super) mod kernel;

/// Shorter pauses of the machine do no harm: the 32 requests at a device of 1280 per second bridge 25 ms.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Runs a trial in guests, and simulated.
pub(super) async fn measure(trial: Trial, image: &Image) -> Result<Measured, Failure> {
    let run = run::repeated(async || measure_once(&trial, image).await).await?;
    Ok(compared(trial, vec![(Protocol::Guest, run)])?)
}

async fn measure_once(trial: &Trial, image: &Image) -> Result<Run<Seen>, Failure> {
    let fixture = Fixture::set(trial).map_err(folder::cannot)?;
    let parse = |buffered| match trial.kernel {
        None => Ok(vec![parsed(&fixture.host_file(trial, Protocol::Guest, buffered))?]),
        Some(_) => Ok(vec![parsed(&fixture.whole_file(trial, buffered))?]),
    };
    // Dropped in reverse order: the guests, the kernel's device, the server, the file.
    let mut testbed = Testbed::begin(&parse, None, &|_| Vec::new(), PAUSE_MIN).await?;
    let kernel = match trial.kernel {
        Some(scheduler) => Some(kernel_device(trial, &fixture, scheduler).await?),
        None => None,
    };
    let mut guests = boot(trial, image, &fixture, kernel.as_ref()).await?;
    let windows = windows(trial, &mut testbed, &mut guests).await?;
    drop(guests);
    drop(kernel);
    testbed.end().await?;
    Ok(Run::of(trial, &windows, &[]))
}

async fn kernel_device(trial: &Trial, fixture: &Fixture, scheduler: KernelScheduler) -> Result<KernelDevice, Failure> {
    let mut device = KernelDevice::set_up(fixture).await?;
    // What simulated mClock gives in the last interval: the trial is mClock's but for the kernel.
    let last = trial.simulate()?.pop().unwrap_or_default();
    let limits: Vec<f64> = last.iter().map(|seen| seen.iops).collect();
    device.schedule(scheduler, trial, &limits)?;
    Ok(device)
}

/// Boots all guests concurrently.
async fn boot(
    trial: &Trial,
    image: &Image,
    fixture: &Fixture,
    kernel: Option<&KernelDevice>,
) -> Result<Vec<Guest>, Failure> {
    let mut guests = Vec::new();
    for (number, vm) in trial.vms.iter().enumerate() {
        let disk = match kernel {
            None => Disk::Vhost(fixture.socket(vm.name)),
            Some(kernel) => {
                let (offset, size) = trial.place(number);
                Disk::Block { device: kernel.path(), offset, size }
            }
        };
        let guest = Guest::power_on(vm.name, &vm.load, image, &disk, fixture.sockets())?;
        if let Some(kernel) = kernel {
            kernel.add(vm.name, guest.pid())?;
        }
        guests.push(guest);
    }
    for guest in &mut guests {
        guest.ready().await?;
    }
    Ok(guests)
}

/// Starts the guests' loads at their times, and measures each second.
async fn windows(trial: &Trial, testbed: &mut Testbed, guests: &mut [Guest]) -> Result<Vec<Window>, Failure> {
    let mut before = look(guests).await?;
    testbed.watch_pauses();
    let began = Instant::now();
    let mut windows = Vec::new();
    for number in 0..trial.seconds() {
        for (vm, guest) in trial.vms.iter().zip(&mut *guests) {
            if vm.start == number as u64 {
                guest.go().await?;
            }
        }
        testbed.run_until(began + Duration::from_secs(number as u64 + 1), &mut |_| {}).await?;
        let now = look(guests).await?;
        let samples = now.iter().zip(&before).map(|(now, before)| now.since(before)).collect();
        windows.push(Window { samples, pause: testbed.cut().await?.1 });
        before = now;
    }
    Ok(windows)
}

/// Returns the counters of all guests.
async fn look(guests: &mut [Guest]) -> Result<Vec<Counters>, Failure> {
    let mut all = Vec::new();
    for guest in guests {
        all.push(guest.look().await?);
    }
    Ok(all)
}
