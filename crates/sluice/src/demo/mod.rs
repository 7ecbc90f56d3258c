//! `sluice demo`: the same three VMs on the same device, first without and then with a policy.
//!
//! Temporary disks lie on a `delay` device of known capacity. The code of `sluice serve` serves them, and clients
//! that always have requests outstanding use them through real sockets. The scheduler is first noop, then mClock;
//! nothing else differs. At the end the VM with the reservation submits nothing, to show that an unused reservation
//! goes to the others. Then their NICs share a link, again with both schedulers.
//!
//! | part | where |
//! |---|---|
//! | device, host file, VMs | `setup` |
//! | disks, server, clients and their measurements | `sluice_testbed` |
//! | the VMs' NICs and their link | `network` |
//! | expected shares | `share` |
//! | guarantees | `verdict` |
//! | output | `progress`, `report` |
//!
//! The folder with disks and sockets is removed however the demo ends. A signal drops the future of [`run`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_config::Host;
use sluice_sched::Iops;

use sluice_daemon::failure::Failure;
use sluice_testbed::load::{Load, Measured, Window};
use sluice_testbed::{Testbed, TestbedError, folder};

mod network;
mod progress;
mod report;
mod setup;
mod share;
mod verdict;

use network::{NetworkError, Shares};
use progress::Progress;
pub(crate) use report::Report;
use setup::{Fixture, OLTP};
use share::Claim;

/// Time before measuring starts: queues fill, and the scheduler's clocks settle.
const WARM_UP: Duration = Duration::from_millis(1500);
/// Length of a measured interval.
const PIECE: Duration = Duration::from_secs(1);
/// Time since the start until which discarded intervals are replaced: while all VMs submit, and while one is idle.
const REPLACED_UNTIL: [Duration; 2] = [Duration::from_secs(18), Duration::from_secs(28)];
/// Time since the start at which a measurement ends, however few intervals it has: with noop, while all VMs submit,
/// and while one is idle. Waiting for outstanding requests is bounded too, so the demo takes less than 40 s on any
/// machine.
const ENDED_BY: [Duration; 3] = [Duration::from_secs(10), Duration::from_secs(20), Duration::from_secs(30)];
/// Shorter pauses of the machine do no harm: the requests queued at the device and at the gate bridge them.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Why the demo failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    /// The disks, the server or a client failed.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// The network half failed.
    #[error(transparent)]
    Network(#[from] NetworkError),
}

/// A measurement.
struct Outcome {
    measured: Vec<Measured>,
    /// Total length of the machine's pauses.
    paused: Duration,
    /// Number of intervals that were discarded because of pauses.
    discarded: usize,
    /// Whether intervals with pauses were used, because too few had none.
    is_disturbed: bool,
}

/// Results of one phase.
pub(crate) struct Phase {
    scheduler: &'static str,
    measured: Vec<Measured>,
    is_disturbed: bool,
}

/// Runs both phases and the part with an idle VM, measures each in `pieces` intervals of a second, and checks the
/// guarantees. Prints progress on standard error unless `quiet`.
pub(crate) async fn run(pieces: usize, quiet: bool) -> Result<Report, Failure> {
    let began = Instant::now();
    let fixture = Fixture::set().map_err(folder::cannot)?;
    let host = parse(&fixture, "mclock", false)?;
    let device = &host.devices[setup::DEVICE];
    let capacity = device.capacity.iops.map_or(0.0, Iops::as_f64);
    let claims: Vec<Claim> = setup::VMS.iter().map(|demo_vm| Claim::of(&host.vms[demo_vm.name].policy)).collect();
    let mut progress = Progress::new(quiet, capacity, claims.clone());
    progress.print(&format!(
        "Three VMs share a device of {capacity:.0} requests of 8 KiB per second, {}. Their disks: {}",
        setup::connections(),
        fixture.0.path().display()
    ));
    let mut before = begin(&fixture, "noop").await?;
    if before.buffered {
        progress.print(
            "The folder has no direct I/O: the disks use the page cache, and the delay device limits their speed.",
        );
    }
    progress.begin("noop", "all requests in order of arrival");
    let noop = measure(&mut before, pieces, [began, began + ENDED_BY[0]], &mut progress).await?;
    let buffered = before.buffered;
    before.end().await?;

    let mut after = begin(&fixture, "mclock").await?;
    progress.begin("mclock", "the same load, with reservation, weight and limit");
    let until = [REPLACED_UNTIL[0], ENDED_BY[1]].map(|time| began + time);
    let mclock = measure(&mut after, pieces, until, &mut progress).await?;
    progress.begin("mclock", "oltp is idle");
    after.load.quiet(OLTP);
    let until = [REPLACED_UNTIL[1], ENDED_BY[2]].map(|time| began + time);
    let quiet = measure(&mut after, pieces, until, &mut progress).await?;
    after.end().await?;
    progress.end();
    progress.print(&format!("Their NICs share a link of {} Mbit/s, over vhost-user-net", network::LINK));
    let network = [on_the_link("noop", &fixture, &progress).await?, on_the_link("mclock", &fixture, &progress).await?];

    let mut promises = verdict::judge(capacity, &claims, &mclock, &quiet);
    promises.extend(verdict::judge_link(network::LINK as f64, &network::claims(), &network[1]));
    let paused = mclock.paused + quiet.paused + network[1].paused;
    let discarded = mclock.discarded + quiet.discarded;
    if discarded > 0 {
        progress.print(&format!("The threads were late by {} ms; {discarded} s are not counted", paused.as_millis()));
    }
    let phase = |scheduler, outcome: Outcome| Phase {
        scheduler,
        is_disturbed: outcome.is_disturbed,
        measured: outcome.measured,
    };
    let phases = [phase("noop", noop), phase("mclock", mclock)];
    Ok(Report { capacity, claims, phases, network, promises, buffered, paused })
}

/// Measures what the VMs get of the link.
async fn on_the_link(scheduler: &'static str, fixture: &Fixture, progress: &Progress) -> Result<Shares, DemoError> {
    let shares = network::measure(scheduler, fixture.0.sockets()).await?;
    let of = |(vm, mbit): (&setup::DemoVm, &f64)| format!("{} {mbit:.1}", vm.name);
    let rates: Vec<String> = setup::VMS.iter().zip(&shares.mbit).map(of).collect();
    progress.print(&format!("  {scheduler}: {} Mbit/s", rates.join(", ")));
    Ok(shares)
}

fn parse(fixture: &Fixture, scheduler: &str, buffered: bool) -> Result<Arc<Host>, Failure> {
    let parsed = sluice_config::parse("the demo's host file", &fixture.host_file(scheduler, buffered));
    parsed.map(Arc::new).map_err(Failure::Config)
}

/// Serves the disks and starts the clients.
async fn begin(fixture: &Fixture, scheduler: &str) -> Result<Testbed, Failure> {
    let parse = |buffered| Ok(vec![parse(fixture, scheduler, buffered)?]);
    Testbed::begin(&parse, None, &setup::loads, PAUSE_MIN).await
}

/// Measures `pieces` intervals after the warm-up. An interval in which the machine paused does not count, and
/// neither does the next one, in which the device catches up. They are replaced by others until the first of two
/// instants. If fewer than half of the intervals count then, all of them are used. The measurement ends at the
/// second instant in any case.
async fn measure(
    testbed: &mut Testbed,
    pieces: usize,
    [replaced_until, end_by]: [Instant; 2],
    progress: &mut Progress,
) -> Result<Outcome, DemoError> {
    let mut show = |load: &Load| progress.show(load.service());
    testbed.run_until(Instant::now() + WARM_UP, &mut show).await?;
    testbed.cut().await?;
    testbed.watch_pauses();
    let (mut good, mut bad, mut paused) = (Vec::new(), Vec::new(), Duration::ZERO);
    let mut catching_up = false;
    loop {
        testbed.run_until(Instant::now() + PIECE, &mut show).await?;
        let (piece, pause) = testbed.cut().await?;
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
    let is_disturbed = good.len() * 2 < pieces;
    let discarded = if is_disturbed { 0 } else { bad.len() };
    let counted: Vec<_> = if discarded > 0 { good } else { good.into_iter().chain(bad).collect() };
    let vm = |vm: usize| Window::together(counted.iter().map(|piece| &piece[vm]));
    Ok(Outcome { measured: (0..setup::VMS.len()).map(vm).collect(), paused, discarded, is_disturbed })
}
