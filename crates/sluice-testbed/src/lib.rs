//! A testbed: temporary disks, the server of `sluice serve` in this process, and clients at its sockets that keep a
//! stated load on the disks. The demo and the papers' figures on real I/O run on it.
//!
//! | part | where |
//! |---|---|
//! | temporary folder, disks and sockets | `folder` |
//! | the VMs' requests and their measurements | `load` |
//! | loads that decide themselves what they submit, and when | `program` |
//! | the VMs' disks, over NBD and vhost-user-blk | `disk` |
//! | a loop device for the kernel's schedulers | `loop_device` |
//! | pauses of the machine | `pauses` |
#![forbid(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_config::Host;
use sluice_io::source::SourceError;
use sluice_io::store::delay::ModelMaker;

use sluice_daemon::failure::Failure;
use sluice_daemon::server::{Server, ServerError};

pub mod disk;
pub mod folder;
pub mod load;
pub mod loop_device;
pub mod pauses;
pub mod program;

use disk::DiskError;
use load::{Load, LoadVm, Window};
use pauses::Pauses;

/// Interval between two checks of the clients and updates of the display.
const CHECK_EVERY: Duration = Duration::from_millis(25);
/// Maximum time for the device to complete outstanding requests at the end.
const DRAIN_MAX: Duration = Duration::from_secs(3);

/// Why a testbed failed.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// The temporary folder or a disk in it cannot be made.
    #[error("Cannot make temporary disks in {folder}: free some space there, or set TMPDIR to another folder")]
    Disks {
        folder: String,
        #[source]
        source: io::Error,
    },
    /// io_uring is not available; containers often forbid it.
    #[error("io_uring is not allowed on this system; run outside the container, or allow io_uring in it")]
    NoRing {
        #[source]
        source: io::Error,
    },
    /// A client's thread cannot be started.
    #[error("Cannot start the VMs' clients")]
    Clients(#[source] io::Error),
    /// A client lost its disk.
    #[error("VM {vm}: the client failed")]
    Client {
        vm: &'static str,
        #[source]
        source: DiskError,
    },
    /// A request failed.
    #[error("VM {vm}: a request failed; check the free space of the folder for temporary files")]
    Request {
        vm: &'static str,
        #[source]
        source: io::Error,
    },
    /// A VM gets no replies.
    #[error("VM {vm}: no reply for {seconds} s; check the disk of the folder for temporary files")]
    Silence { vm: &'static str, seconds: u64 },
    /// A signal arrived.
    #[error("Interrupted; the temporary disks are removed")]
    Interrupted,
}

/// A running server and its clients. The clients are dropped first.
pub struct Testbed {
    pub load: Load,
    /// The last one is that of the clients; its volumes may be on the others.
    servers: Vec<Server>,
    pauses: Pauses,
    /// Pauses of the machine that are shorter do no harm.
    pause_min: Duration,
    /// Whether the disks use the page cache, because their file system has no direct I/O.
    pub buffered: bool,
}

impl Testbed {
    /// Serves host files, with direct I/O if the disks' file system supports it, and starts the clients at the last one. `parse` returns
    /// them for buffered or direct disks. A device of the first may get the completion times of a model.
    pub async fn begin(
        parse: &dyn Fn(bool) -> Result<Vec<Arc<Host>>, Failure>,
        model: Option<(&str, ModelMaker)>,
        vms: &dyn Fn(&Host) -> Vec<LoadVm>,
        pause_min: Duration,
    ) -> Result<Self, Failure> {
        let mut server = Server::of(None);
        if let Some((device, model)) = model {
            server.set_model(device, model);
        }
        let hosts = parse(false)?;
        let Some((first, others)) = hosts.split_first() else { unreachable!("a testbed serves something") };
        let (mut server, served) = apply(server, first).await;
        let (buffered, others) = match served {
            Ok(()) => (false, others.to_vec()),
            Err(ServerError::Volume { source: SourceError::NotDirect { .. }, .. }) => {
                let mut hosts = parse(true)?;
                let (again, served) = apply(server, &hosts.remove(0)).await;
                served?;
                server = again;
                (true, hosts)
            }
            Err(ServerError::Device { source, .. }) if is_forbidden(&source) => {
                return Err(TestbedError::NoRing { source }.into());
            }
            Err(other) => return Err(other.into()),
        };
        let mut servers = vec![server];
        for host in others {
            let (server, served) = apply(Server::of(None), &host).await;
            served?;
            servers.push(server);
        }
        let clients = vms(servers.last().expect("there is one").host());
        let load = Load::start(clients).map_err(TestbedError::Clients)?;
        let pauses = Pauses::watch(pause_min);
        Ok(Testbed { load, servers, pauses, pause_min, buffered })
    }

    /// Ends the windows of all VMs and begins the next. Returns them, and the total length of the machine's pauses in them.
    pub async fn cut(&mut self) -> Result<(Vec<Window>, Duration), TestbedError> {
        let windows = self.load.cut().await?;
        Ok((windows, self.pauses.take()))
    }

    /// Applies another host file to the clients' server while they run. The disks and sockets stay.
    pub async fn reload(&mut self, host: &Arc<Host>) -> Result<(), Failure> {
        let server = self.servers.pop().expect("there is one");
        let (server, served) = apply(server, host).await;
        self.servers.push(server);
        Ok(served?)
    }

    /// Watches the threads that have started until now, and forgets earlier pauses.
    pub fn watch_pauses(&mut self) {
        self.pauses = Pauses::watch(self.pause_min);
    }

    /// Lets the clients run until `end`. Calls `look` at each check of the clients.
    pub async fn run_until(&mut self, end: Instant, look: &mut dyn FnMut(&Load)) -> Result<(), TestbedError> {
        self.pauses.resume();
        loop {
            self.load.check()?;
            look(&self.load);
            let left = end.saturating_duration_since(Instant::now()).min(CHECK_EVERY);
            self.pauses.look(left);
            if left.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(left).await;
        }
    }

    /// Disconnects the clients, then drains the device, so that the next testbed can use the disks.
    pub async fn end(self) -> Result<(), TestbedError> {
        let Testbed { load, servers, .. } = self;
        load.finish()?;
        let deadline = Instant::now() + DRAIN_MAX;
        // The one of the clients first, which has connections to the others.
        for server in servers.into_iter().rev() {
            server.drain(deadline).until(deadline).await;
        }
        Ok(())
    }
}

/// Serves a host file. It may connect to a server whose handshakes are done by this thread's runtime, which must not wait for it.
async fn apply(mut server: Server, host: &Arc<Host>) -> (Server, Result<(), ServerError>) {
    let host = Arc::clone(host);
    let applied = tokio::task::spawn_blocking(move || {
        let served = server.apply(&host).map(drop);
        (server, served)
    });
    applied.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Whether the system forbids io_uring.
fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
}

/// Runs `work` until it ends or a signal asks this process to end.
pub fn run<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    use tokio::signal::unix::{Signal, SignalKind, signal};

    /// Waits for a signal; for ever if it cannot be caught.
    async fn arrival(signal: &mut io::Result<Signal>) {
        match signal {
            Ok(signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        let [interrupt, terminate, hangup] = &mut signals;
        tokio::select! {
            result = work => result,
            () = arrival(interrupt) => Err(TestbedError::Interrupted.into()),
            () = arrival(terminate) => Err(TestbedError::Interrupted.into()),
            () = arrival(hangup) => Err(TestbedError::Interrupted.into()),
        }
    })
}
