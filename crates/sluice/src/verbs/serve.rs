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

/// Serve the virtual disks of a host file.
///
/// SIGHUP applies a changed file, all or nothing, without a pause for VMs. SIGTERM drains and ends. SIGUSR1 prints the
/// accounts of every VM.
///
/// Serving never waits for the log or for its reader. A line that finds standard error full is lost, and the next one that
/// is written says how many were. Of one kind of line about one VM there are 32 at once and then one per second; every 5
/// seconds "Lines left out" says how many more there would have been.
#[derive(Args)]
pub(crate) struct Serve {
    /// The host file; the files in the folder NAME.d beside NAME.toml are laid over it.
    file: PathBuf,
}

impl Serve {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        sluice_io::socket_file::keep_new_files_private();
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
        host.warnings.iter().for_each(crate::output::say);
        if let Some(descriptors) = sluice_io::limits::raise_descriptors()
            && descriptors < u64::from(host.nbd.connections_max)
        {
            let wanted = host.nbd.connections_max;
            tracing::warn!(descriptors, wanted, "Fewer descriptors than connections are allowed; raise LimitNOFILE");
        }
        let mut plane = Plane::new();
        let (_control, mut asked) = listen(host.daemon.control.as_deref())?;
        plane.apply(host)?;
        let mut state = State { files, changes };
        say_ready(&plane, format);
        // A request that is tried again and again for a while; others wait for their turn meanwhile.
        let mut waiting: Option<Attempt> = None;
        // Since when the file is tried to be applied again and again.
        let mut reloading: Option<Instant> = None;
        loop {
            tokio::select! {
                _ = reload.recv() => reloading = reload_file(&self.file, &mut plane, &mut state, Instant::now()),
                Some(request) = asked.recv(), if waiting.is_none() => {
                    waiting = Attempt::new(request).carry_out(&mut plane, &mut state);
                }
                () = tokio::time::sleep(PAUSE), if waiting.is_some() || reloading.is_some() => {
                    waiting = waiting.take().and_then(|attempt| attempt.carry_out(&mut plane, &mut state));
                    reloading = reloading.and_then(|since| reload_file(&self.file, &mut plane, &mut state, since));
                }
                _ = report.recv() => accounts::print(&plane.snapshots(), &plane.guest_sockets(), format),
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
        }
        drain(plane, format).await;
        Ok(())
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
            crate::output::say(&diagnostics);
            tracing::error!(errors = diagnostics.errors(), "File is wrong: everything stays as it was");
            return None;
        }
    };
    let warnings = host.warnings.clone();
    let socket_moved = host.daemon.control != plane.host().daemon.control;
    let leaving = plane.had_leaving();
    let applied = plane.apply(host);
    if applied.as_ref().is_err_and(PlaneError::is_busy) && leaving && since.elapsed() < LEAVING_MAX {
        return Some(since);
    }
    warnings.iter().for_each(crate::output::say);
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

async fn drain(plane: Plane, format: Format) {
    let timeout = plane.host().daemon.drain_timeout;
    let now = plane.snapshots();
    let outstanding: u64 = now.iter().flat_map(|device| &device.vms).map(|vm| u64::from(vm.outstanding)).sum();
    tracing::info!(outstanding, "Draining");
    let started = Instant::now();
    let sockets = plane.guest_sockets();
    let draining = plane.drain();
    while !draining.is_over() && started.elapsed() < timeout {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    if draining.is_over() {
        tracing::info!("Drained");
    } else {
        tracing::warn!(?timeout, "Not drained in time: what waits is not served");
    }
    accounts::print(&draining.finish(), &sockets, format);
}
