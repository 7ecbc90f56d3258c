//! `sluice demo`: the same three VMs on the same device, first without and then with a policy.
//!
//! Problem: a promise is believed when it is seen. Model: temporary disks on a `delay` device of known capacity, served
//! by the very plane that `sluice serve` runs, and driven through the real sockets by clients that always want more.
//! First the scheduler is noop, then mClock; nothing else differs. At the end the VM with the reservation falls quiet,
//! to show that what is reserved and not asked for goes to the others.
//!
//! | part | where |
//! |---|---|
//! | disks, device, host file, VMs | `scene` |
//! | the VMs' requests, and what is measured of them | `load` |
//! | the VMs' disks, over NBD and vhost-user-blk | `disk` |
//! | whether the machine let us measure | `pauses` |
//! | what each VM should get | `share` |
//! | promises | `verdict` |
//! | what is seen | `progress`, `report` |
//!
//! Whatever ends it, the folder with disks and sockets is removed; a signal drops [`perform`] where it waits.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_config::Host;
use sluice_io::source::SourceError;
use sluice_sched::Iops;

use crate::failure::Failure;
use crate::plane::{Plane, PlaneError};

mod disk;
mod load;
mod pauses;
mod progress;
mod report;
mod scene;
mod share;
mod verdict;

use disk::DiskError;
use load::{Load, Measured, Window};
use pauses::Pauses;
use progress::Progress;
pub(crate) use report::Report;
use scene::{OLTP, Stage};
use share::Claim;

/// What passes before anything is measured: queues fill, clocks of the scheduler find their rhythm.
const WARM_UP: Duration = Duration::from_millis(1500);
/// Measurements are made of pieces of this length.
const PIECE: Duration = Duration::from_secs(1);
/// Until when after the beginning pieces that are not counted are replaced: while all ask, and while one is quiet.
const REPLACED_UNTIL: [Duration; 2] = [Duration::from_secs(18), Duration::from_secs(28)];
/// From when after the beginning on no measurement goes on for another piece, however few it has: with noop, while all
/// ask, and while one is quiet. What is outstanding then has its bounds too, so the whole takes less than 40 s on any machine.
const ENDED_BY: [Duration; 3] = [Duration::from_secs(10), Duration::from_secs(20), Duration::from_secs(30)];
/// How often it is looked what happens.
const GLANCE: Duration = Duration::from_millis(25);
/// How long the device may take for what is outstanding at the end of a phase.
const DRAIN_MAX: Duration = Duration::from_secs(3);

/// Why the demo could not run to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    /// The temporary folder or a disk in it cannot be made.
    #[error("Cannot make temporary disks in {folder}: free some space there, or set TMPDIR to another folder")]
    Disks {
        /// Where they should have been.
        folder: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No io_uring, which containers often forbid.
    #[error("io_uring is not allowed on this system: run outside the container, or allow io_uring in it")]
    NoRing {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No thread for a client.
    #[error("Cannot start the VMs' clients")]
    Clients(#[source] io::Error),
    /// A client lost its disk.
    #[error("VM {vm}: its client failed")]
    Client {
        /// Whose.
        vm: &'static str,
        /// Why.
        #[source]
        source: DiskError,
    },
    /// A request was refused.
    #[error("VM {vm}: a request failed; check the free space of the folder for temporary files")]
    Request {
        /// Whose.
        vm: &'static str,
        /// How.
        #[source]
        source: io::Error,
    },
    /// Nothing comes back.
    #[error("VM {vm}: no reply for {seconds} s; check the disk of the folder for temporary files")]
    Silence {
        /// Whose.
        vm: &'static str,
        /// For how long.
        seconds: u64,
    },
    /// A signal.
    #[error("Interrupted; the temporary disks are removed")]
    Interrupted,
}

/// A measurement.
struct Outcome {
    measured: Vec<Measured>,
    /// How long the machine paused.
    paused: Duration,
    /// Pieces that were not counted because of that.
    left_out: usize,
}

/// What one phase brought.
pub(crate) struct Phase {
    scheduler: &'static str,
    measured: Vec<Measured>,
}

/// Plays both phases and the quiet end, each measured in `pieces` of a second, and judges. Shows on standard error what
/// happens, unless `quiet`.
pub(crate) async fn perform(pieces: usize, quiet: bool) -> Result<Report, Failure> {
    let began = Instant::now();
    let stage = Stage::set().map_err(|source| {
        let folder = std::env::temp_dir().display().to_string();
        DemoError::Disks { folder, source }
    })?;
    let host = parse(&stage, "mclock", false)?;
    let device = &host.devices[scene::DEVICE];
    let capacity = device.capacity.iops.map_or(0.0, Iops::as_f64);
    let claims: Vec<Claim> = scene::CAST.iter().map(|actor| Claim::of(&host.vms[actor.name].policy)).collect();
    let mut progress = Progress::new(quiet, capacity, claims.clone());
    progress.say(&format!(
        "Three VMs share a device that does {capacity:.0} requests of 8 KiB per second, {}. Their disks: {}",
        scene::connections(),
        stage.path().display()
    ));
    let mut before = Performance::begin(&stage, "noop")?;
    if before.buffered {
        progress.say("That folder has no direct I/O: the disks go through the page cache, the device sets the pace.");
    }
    progress.begin("noop", "every request in the order in which it comes");
    let noop = before.measure(pieces, [began, began + ENDED_BY[0]], &mut progress).await?;
    let buffered = before.buffered;
    before.end().await?;

    let mut after = Performance::begin(&stage, "mclock")?;
    progress.begin("mclock", "the same load, with reservation, weight and limit in force");
    let until = [REPLACED_UNTIL[0], ENDED_BY[1]].map(|time| began + time);
    let mclock = after.measure(pieces, until, &mut progress).await?;
    progress.begin("mclock", "now oltp asks for nothing");
    after.load.quiet(OLTP);
    let until = [REPLACED_UNTIL[1], ENDED_BY[2]].map(|time| began + time);
    let quiet = after.measure(pieces, until, &mut progress).await?;
    after.end().await?;
    progress.end();

    let promises = verdict::judge(capacity, &claims, &mclock.measured, &quiet.measured);
    let paused = mclock.paused + quiet.paused;
    let left_out = mclock.left_out + quiet.left_out;
    if left_out > 0 {
        progress.say(&format!("The machine paused for {} ms: {left_out} s are not counted", paused.as_millis()));
    }
    let phase = |scheduler, outcome: Outcome| Phase { scheduler, measured: outcome.measured };
    Ok(Report { capacity, claims, phases: [phase("noop", noop), phase("mclock", mclock)], promises, buffered, paused })
}

fn parse(stage: &Stage, scheduler: &str, buffered: bool) -> Result<Arc<Host>, Failure> {
    let parsed = sluice_config::parse("the demo's host file", &stage.host_file(scheduler, buffered));
    parsed.map(Arc::new).map_err(Failure::Config)
}

/// A plane that serves, and its clients. The clients come first: they leave before what serves them goes.
struct Performance {
    load: Load,
    plane: Plane,
    pauses: Pauses,
    buffered: bool,
}

impl Performance {
    /// Serves the disks, with direct I/O if their filesystem can do it, and starts the clients.
    fn begin(stage: &Stage, scheduler: &str) -> Result<Self, Failure> {
        let host = parse(stage, scheduler, false)?;
        let mut plane = Plane::new();
        let buffered = match plane.apply(&host) {
            Ok(_) => false,
            Err(PlaneError::Volume { source: SourceError::NotDirect { .. }, .. }) => {
                plane.apply(&parse(stage, scheduler, true)?)?;
                true
            }
            Err(PlaneError::Device { source, .. }) if is_forbidden(&source) => {
                return Err(DemoError::NoRing { source }.into());
            }
            Err(other) => return Err(other.into()),
        };
        let load = Load::start(plane.host()).map_err(DemoError::Clients)?;
        let pauses = Pauses::watch();
        Ok(Performance { load, plane, pauses, buffered })
    }

    /// What each VM gets in `pieces`, after the warm-up. A piece in which the machine paused, and the next one, in which
    /// is caught up, do not count: others take their place until the first of two instants. If half of the pieces cannot
    /// be had that way, the machine is like that, and all count. At the second instant it ends in any case.
    async fn measure(
        &mut self,
        pieces: usize,
        [replaced_until, end_by]: [Instant; 2],
        progress: &mut Progress,
    ) -> Result<Outcome, DemoError> {
        self.play(WARM_UP, progress).await?;
        self.load.cut().await?;
        self.pauses = Pauses::watch();
        let (mut good, mut bad, mut paused) = (Vec::new(), Vec::new(), Duration::ZERO);
        let mut catching_up = false;
        loop {
            self.play(PIECE, progress).await?;
            let piece = self.load.cut().await?;
            let pause = self.pauses.take();
            let counts = pause.is_zero() && !catching_up;
            if counts {
                good.push(piece)
            } else {
                bad.push(piece)
            }
            catching_up = !pause.is_zero();
            paused += pause;
            let now = Instant::now();
            let enough = good.len() >= pieces || good.len() + bad.len() >= pieces && now >= replaced_until;
            if enough || now >= end_by {
                break;
            }
        }
        let left_out = if good.len() * 2 < pieces { 0 } else { bad.len() };
        let counted: Vec<_> = if left_out > 0 { good } else { good.into_iter().chain(bad).collect() };
        let vm = |vm: usize| Window::together(counted.iter().map(|piece| &piece[vm]));
        Ok(Outcome { measured: (0..scene::CAST.len()).map(vm).collect(), paused, left_out })
    }

    /// Lets it run, and shows it.
    async fn play(&mut self, time: Duration, progress: &mut Progress) -> Result<(), DemoError> {
        let end = Instant::now() + time;
        self.pauses.resume();
        loop {
            self.load.check()?;
            progress.show(self.load.service());
            let left = end.saturating_duration_since(Instant::now()).min(GLANCE);
            self.pauses.look(left);
            if left.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(left).await;
        }
    }

    /// The clients leave, then the device drains, so that the disks are free for whoever is next.
    async fn end(self) -> Result<(), DemoError> {
        let Performance { load, plane, .. } = self;
        load.finish()?;
        let deadline = Instant::now() + DRAIN_MAX;
        plane.drain(deadline).until(deadline).await;
        Ok(())
    }
}

/// Whether the system has no io_uring for us.
fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
}
