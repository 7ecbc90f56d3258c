//! `sluice serve FILE`
//!
//! SIGHUP loads the file again and applies it, all or nothing. SIGTERM and SIGINT drain: no more is read, what was read
//! is answered, then the daemon ends. SIGUSR1 prints the accounts of every VM.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use sluice_config::changes::Changes;
use tokio::sync::mpsc;

use crate::control::apply::{Attempt, LEAVING_MAX, PAUSE, State};
use crate::control::server::{Asked, Server};
use crate::failure::{Failure, chain};
use crate::output::{self, Format};
use crate::plane::{Plane, PlaneError, accounts};

/// How often volumes that are out of service are tried again.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Serve the virtual disks of a host file.
///
/// SIGHUP applies a changed file, all or nothing, without a pause for VMs. SIGTERM drains and ends. SIGUSR1 prints the
/// accounts of every VM.
#[derive(Args)]
pub(crate) struct Serve {
    /// The host file; the files in the folder NAME.d beside NAME.toml are laid over it.
    file: PathBuf,
}

impl Serve {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.serve(format))
    }

    async fn serve(self, format: Format) -> Result<(), Failure> {
        let mut reload = signal(SignalKind::hangup())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut report = signal(SignalKind::user_defined1())?;
        let changes = Changes::default();
        let (files, host) = sluice_config::load_changed(&self.file, &changes).map_err(Failure::Config)?;
        host.warnings.iter().for_each(|warning| anstream::eprintln!("{warning}"));
        if let Some(descriptors) = sluice_io::limits::raise_descriptors()
            && descriptors < u64::from(host.nbd.connections_max)
        {
            let wanted = host.nbd.connections_max;
            tracing::warn!(descriptors, wanted, "Fewer descriptors than connections are allowed; raise LimitNOFILE");
        }
        let mut plane = Plane::new();
        let down = plane.down();
        let (_control, mut asked) = listen(host.daemon.control.as_deref())?;
        plane.apply(&host)?;
        let mut state = State { files, changes };
        say_ready(&plane, format);
        // A request that is tried again and again for a while; others wait for their turn meanwhile.
        let mut waiting: Option<Attempt> = None;
        // Since when the file is tried to be applied again and again.
        let mut reloading: Option<Instant> = None;
        let ended = loop {
            tokio::select! {
                _ = reload.recv() => reloading = reload_file(&self.file, &mut plane, &mut state, Instant::now()),
                Some(request) = asked.recv(), if waiting.is_none() => {
                    waiting = Attempt::new(request).carry_out(&mut plane, &mut state);
                }
                () = tokio::time::sleep(PAUSE), if waiting.is_some() || reloading.is_some() => {
                    waiting = waiting.take().and_then(|attempt| attempt.carry_out(&mut plane, &mut state));
                    reloading = reloading.and_then(|since| reload_file(&self.file, &mut plane, &mut state, since));
                }
                () = tokio::time::sleep(RETRY_EVERY), if !plane.missing().is_empty() => retry(&mut plane),
                _ = report.recv() => print_accounts(&plane, format),
                () = down.notified() => if plane.is_dead() {
                    break Err(Failure::Run("Every device is down: nothing is served any more; restart the daemon".into()));
                },
                _ = terminate.recv() => break Ok(()),
                _ = interrupt.recv() => break Ok(()),
            }
        };
        drain(plane, format).await;
        ended
    }
}

fn say_ready(plane: &Plane, format: Format) {
    let host = plane.host();
    let volumes: usize = host.vms.values().map(|vm| vm.volumes.len()).sum();
    let (devices, vms) = (host.devices.len(), host.vms.len());
    tracing::info!(devices, vms, volumes, "Ready");
    if format == Format::Json {
        output::json(&json!({ "event": "ready", "devices": devices, "vms": vms, "volumes": volumes }));
    }
}

/// The control socket, and a channel out of which never comes anything if there is none.
fn listen(path: Option<&Path>) -> Result<(Option<Server>, mpsc::Receiver<Asked>), Failure> {
    match path {
        Some(path) => {
            let (server, asked) = Server::start(path)?;
            Ok((Some(server), asked))
        }
        None => Ok((None, mpsc::channel(1).1)),
    }
}

/// Loads the file and applies it; comes back with `since` if that must be tried again after [`PAUSE`], because the last
/// requests of volumes that have left still hold bytes.
fn reload_file(file: &Path, plane: &mut Plane, state: &mut State, since: Instant) -> Option<Instant> {
    let (files, host) = match sluice_config::load_changed(file, &state.changes) {
        Ok(loaded) => loaded,
        Err(diagnostics) => {
            anstream::eprintln!("{diagnostics}");
            tracing::error!(errors = diagnostics.errors(), "File is wrong: everything stays as it was");
            return None;
        }
    };
    let warnings = host.warnings.clone();
    let socket_moved = host.daemon.control != plane.host().daemon.control;
    let leaving = plane.had_leaving();
    let applied = plane.apply(&host);
    if applied.as_ref().is_err_and(PlaneError::is_busy) && leaving && since.elapsed() < LEAVING_MAX {
        return Some(since);
    }
    warnings.iter().for_each(|warning| anstream::eprintln!("{warning}"));
    if socket_moved {
        tracing::warn!("The control socket stays where it is until the daemon is started anew");
    }
    match applied {
        Ok(changes) => {
            state.files = files;
            let kept = state.changes.len();
            tracing::info!(changes, kept, "File applied");
        }
        Err(error) => {
            tracing::error!(error = chain(&error), "File cannot be applied: everything stays as it was");
        }
    }
    None
}

fn print_accounts(plane: &Plane, format: Format) {
    accounts::print(&plane.snapshots(), &plane.guest_sockets(), &plane.missing_names(), format);
}

/// Volumes that are out of service are tried again.
fn retry(plane: &mut Plane) {
    let host = plane.host().clone();
    if let Err(error) = plane.apply(&host) {
        tracing::error!(error = chain(&error), "Volumes stay out of service");
    }
}

/// Ends within the drain time-out and a second, whatever the disks do.
async fn drain(plane: Plane, format: Format) {
    let timeout = plane.host().daemon.drain_timeout;
    let deadline = Instant::now() + timeout;
    let (sockets, missing) = (plane.guest_sockets(), plane.missing_names());
    let draining = plane.drain();
    let outstanding: u64 = draining.outstanding();
    tracing::info!(outstanding, "Draining");
    draining.until(deadline).await;
    if draining.is_over() {
        tracing::info!("Drained");
    } else {
        tracing::warn!(?timeout, "Not drained in time: what waits is not served");
    }
    accounts::print(&draining.finish().await, &sockets, &missing, format);
}
