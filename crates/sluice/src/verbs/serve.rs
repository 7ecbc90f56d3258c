//! `sluice serve FILE`
//!
//! SIGHUP loads the file again and applies it, all or nothing. SIGTERM and SIGINT drain: no more is read, what was read
//! is answered, then the daemon ends. SIGUSR1 prints the accounts of every VM.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde_json::json;
use sluice_config::Host;
use sluice_config::changes::Changes;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::control::changer::{Changer, News};
use crate::control::server::{Asked, Server};
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::plane::{Plane, accounts};

/// Serve the virtual disks of a host file.
///
/// SIGHUP reloads the file atomically and does not pause running VMs. SIGTERM completes the requests already received, then
/// exits. SIGUSR1 prints statistics for each VM.
///
/// Serving never waits for the log. When standard error is full, log lines are dropped, and the next line states how many.
/// Lines are rate limited for each VM and kind: 32 immediately, then one per second. Every 5 seconds "Lines left out" states
/// how many were suppressed.
#[derive(Args)]
pub(crate) struct Serve {
    /// Host file; files in the folder NAME.d next to NAME.toml override its keys.
    file: PathBuf,
}

impl Serve {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        sluice_io::socket_file::keep_new_files_private();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.serve(format))
    }

    async fn serve(self, format: Format) -> Result<(), Failure> {
        let mut signals = Signals::register()?;
        let (files, host) = sluice_config::load_changed(&self.file, &Changes::default()).map_err(Failure::Config)?;
        host.warnings.iter().for_each(crate::output::say);
        if let Some(descriptors) = sluice_io::limits::raise_descriptors()
            && descriptors < u64::from(host.nbd.connections_max)
        {
            let wanted = host.nbd.connections_max;
            tracing::warn!(descriptors, wanted, "Fewer descriptors than connections are allowed; raise LimitNOFILE");
        }
        let (_control, mut asked) = listen(host.daemon.control.as_deref())?;
        let (drain_timeout, ready) = (host.daemon.drain_timeout, Ready::of(&host));
        let runtime = tokio::runtime::Handle::current();
        let (changer, mut news) = Changer::start(self.file, (files, host), format, runtime)?;
        let mut serves = false;
        let ended = loop {
            tokio::select! {
                Some(news) = news.recv() => match news {
                    News::Started(Ok(())) => {
                        serves = true;
                        ready.say(format);
                    }
                    News::Started(Err(failure)) => return Err(failure),
                    News::Dead => break Err(Failure::Run(ALL_DOWN.into())),
                },
                _ = signals.reload.recv(), if serves => changer.reload(),
                Some(request) = asked.recv(), if serves => changer.change(request),
                _ = signals.report.recv() => changer.report(),
                _ = signals.terminate.recv() => break Ok(()),
                _ = signals.interrupt.recv() => break Ok(()),
            }
        };
        match tokio::time::timeout(drain_timeout, changer.end()).await {
            Ok(Ok(plane)) => drain(plane, format).await,
            _ => tracing::error!("A change that is being made does not end: the daemon ends without draining"),
        }
        ended
    }
}

/// What the daemon ends with when it has nothing to serve any more.
const ALL_DOWN: &str = "Every device is down: nothing is served; see the log, and restart the daemon";

struct Signals {
    reload: Signal,
    terminate: Signal,
    interrupt: Signal,
    report: Signal,
}

impl Signals {
    fn register() -> std::io::Result<Signals> {
        Ok(Signals {
            reload: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            report: signal(SignalKind::user_defined1())?,
        })
    }
}

/// What is said when everything is served.
struct Ready {
    devices: usize,
    vms: usize,
    volumes: usize,
}

impl Ready {
    fn of(host: &Host) -> Ready {
        let volumes = host.vms.values().map(|vm| vm.volumes.len()).sum();
        Ready { devices: host.devices.len(), vms: host.vms.len(), volumes }
    }

    fn say(&self, format: Format) {
        let Ready { devices, vms, volumes } = self;
        tracing::info!(devices, vms, volumes, "Ready");
        if format == Format::Json {
            output::json(&json!({ "event": "ready", "devices": devices, "vms": vms, "volumes": volumes }));
        }
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
