//! `sluice serve FILE`
//!
//! SIGHUP reloads the file atomically. SIGTERM and SIGINT drain: the daemon reads no more requests, answers those it
//! has read, and exits. SIGUSR1 prints statistics of every VM.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::thread;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use sluice_config::Host;
use sluice_io::endpoint::Bound;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::control::changer::{Begin, Changer, PATH_TIMEOUT, ServerEvent};
use crate::control::socket::{Asked, ControlSocket};
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::server::{Force, Progress, Server, ServerError, stats};
use crate::state::folder::StateFolder;
use crate::state::overrides::Override;
use crate::state::time::Time;

/// Serve the virtual disks of a host file.
///
/// SIGHUP reloads the file atomically and does not pause running VMs; `sluice apply` does the same and reports the result. A
/// volume whose source, offset or size differs from when it was last served is held back until it is forced. SIGTERM completes the requests already received, then
/// exits. SIGUSR1 prints statistics for each VM.
///
/// Serving never waits for the log. When standard error is full, log lines are dropped, and the next line states how many.
/// Lines are rate limited for each VM and kind: 32 immediately, then one per second. Every 5 seconds "Log lines suppressed" states
/// how many were suppressed.
#[derive(Args)]
pub(crate) struct Serve {
    /// Host file; files in the folder NAME.d next to NAME.toml override its keys.
    file: PathBuf,
    /// Serves a VM or volume (db1 or db1/root) although its source, offset or size has changed since it was last served. '*' stands for all, also for a host
    /// file without volumes.
    #[arg(long, value_name = "NAME")]
    force: Vec<String>,
}

impl Serve {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        sluice_io::socket_file::keep_new_files_private();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.serve(format))
    }

    async fn serve(self, format: Format) -> Result<(), Failure> {
        let mut signals = Signals::register()?;
        sluice_io::signals::release();
        let Some(Begun { begin, control }) = begin(&self.file, Force::new(self.force), &mut signals).await? else {
            return Ok(());
        };
        let host = &begin.host;
        host.warnings.iter().for_each(crate::output::message);
        sluice_io::limits::raise_descriptors();
        let (_control, mut asked) = listen(control)?;
        let (drain_timeout, ready) = (host.daemon.drain_timeout, Ready::of(host));
        let runtime = tokio::runtime::Handle::current();
        let (changer, mut news) = Changer::start(begin, format, runtime)?;
        let mut serves = false;
        let ended = loop {
            tokio::select! {
                Some(news) = news.recv() => match news {
                    ServerEvent::Started(Ok(())) => {
                        serves = true;
                        ready.print(format);
                    }
                    ServerEvent::Started(Err(failure)) => return Err(failure),
                    ServerEvent::Dead => break Err(Failure::Run(ALL_DOWN.into())),
                    ServerEvent::Panicked => break Err(Failure::Run(NO_CHANGES.into())),
                },
                _ = signals.reload.recv(), if serves => changer.reload(),
                Some(request) = asked.recv(), if serves => changer.change(request),
                _ = signals.report.recv() => changer.report(),
                _ = signals.terminate.recv() => break Ok(()),
                _ = signals.interrupt.recv() => break Ok(()),
            }
        };
        let deadline = Instant::now() + drain_timeout;
        match tokio::time::timeout_at(deadline.into(), changer.end(ended.is_ok())).await {
            Ok(Ok(server)) => drain(server, deadline, format).await,
            Ok(Err(_)) => tracing::error!("Exiting without draining"),
            Err(_) => tracing::error!("A running change does not complete: exiting without draining"),
        }
        ended
    }
}

/// The error when no device serves any more.
const ALL_DOWN: &str = "Every device is down: nothing is served; see the log, and restart the daemon";

/// The error after a panic of the thread that makes changes.
const NO_CHANGES: &str = "The thread that applies changes panicked: see the log, and restart the daemon";

/// The signal's number on every architecture of Linux except Alpha, MIPS, PA-RISC and SPARC.
const SIGXFSZ: i32 = 25;

struct Signals {
    reload: Signal,
    terminate: Signal,
    interrupt: Signal,
    report: Signal,
    /// Makes a write above the file size limit, by the log or by a volume, an error instead of the end of the daemon.
    _file_size: Signal,
}

impl Signals {
    fn register() -> std::io::Result<Signals> {
        Ok(Signals {
            reload: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            report: signal(SignalKind::user_defined1())?,
            _file_size: signal(SignalKind::from_raw(SIGXFSZ))?,
        })
    }
}

/// Reports that everything is served.
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

    fn print(&self, format: Format) {
        let Ready { devices, vms, volumes } = self;
        tracing::info!(devices, vms, volumes, "Ready");
        if format == Format::Json {
            output::json(&json!({ "event": "ready", "devices": devices, "vms": vms, "volumes": volumes }));
        }
    }
}

/// State before anything is served.
struct Begun {
    begin: Begin,
    control: Option<Bound>,
}

impl Begun {
    /// Reads the file and the state, and makes the control socket; `progress` has the path that it waits for.
    fn of(file: &Path, force: Force, progress: &Progress) -> Result<Begun, Failure> {
        progress.set(file);
        let (files, own) = sluice_config::load_files(file).map_err(Failure::Config)?;
        let path = own.daemon.state.clone().or_else(state_of_environment);
        let opened = path.map(|path| {
            progress.set(&path);
            StateFolder::open(&path)
        });
        let (folder, on_disk) =
            opened.transpose()?.map_or_else(Default::default, |(folder, saved)| (Some(folder), saved));
        let mut saved = on_disk.clone();
        let mut gone = saved.overrides.expire(Time::now());
        gone.extend(saved.overrides.settle(&files));
        let host = files.changed(&saved.overrides.changes()).map_err(|found| {
            let names: Vec<String> = saved.overrides.iter().map(Override::name).collect();
            let path = folder.as_ref().map_or_else(String::new, |folder| folder.path().display().to_string());
            output::message(format_args!(
                "error: The file is right by itself, but not with the changes made at run time: {}. Correct the file, or take \
                 changes back with `sluice reset NAME --state {path}`",
                names.join(", ")
            ));
            Failure::Config(found)
        })?;
        let bind = |path: &PathBuf| {
            progress.set(path);
            ControlSocket::bind(path)
        };
        let control = host.daemon.control.as_ref().map(bind).transpose()?;
        let file = file.to_owned();
        Ok(Begun { begin: Begin { file, files, host, folder, on_disk, saved, gone, force }, control })
    }
}

/// The state directory that systemd made for the daemon; of several, the first.
fn state_of_environment() -> Option<PathBuf> {
    let paths = std::env::var_os("STATE_DIRECTORY")?;
    std::env::split_paths(&paths).next().filter(|path| path.is_absolute())
}

/// Begins in a separate thread, because a file system that hangs would keep this one from receiving signals. Returns
/// `None` if a signal ends the daemon first.
async fn begin(file: &Path, force: Force, signals: &mut Signals) -> Result<Option<Begun>, Failure> {
    let (reply, begun) = oneshot::channel();
    let progress = Progress::new();
    let (file, own) = (file.to_owned(), progress.clone());
    thread::Builder::new().name("begin".to_owned()).spawn(move || {
        let _ = reply.send(Begun::of(&file, force, &own));
    })?;
    let mut begun = pin!(begun);
    loop {
        let (path, since) = progress.now();
        tokio::select! {
            begun = &mut begun => return begun.expect("it answers, or panics").map(Some),
            () = tokio::time::sleep_until((since + PATH_TIMEOUT).into()) => {
                if progress.now().1 == since {
                    return Err(ServerError::Hangs { path, seconds: PATH_TIMEOUT.as_secs() }.into());
                }
            }
            _ = signals.terminate.recv() => return Ok(None),
            _ = signals.interrupt.recv() => return Ok(None),
        }
    }
}

/// Starts the control socket. Without one the channel never receives anything.
fn listen(bound: Option<Bound>) -> Result<(Option<ControlSocket>, mpsc::Receiver<Asked>), Failure> {
    match bound {
        Some(bound) => {
            let (socket, asked) = ControlSocket::start(bound)?;
            Ok((Some(socket), asked))
        }
        None => Ok((None, mpsc::channel(1).1)),
    }
}

/// Drains the devices. Returns at most a second after `deadline`, even if disks hang.
async fn drain(server: Server, deadline: Instant, format: Format) {
    let timeout = server.host().daemon.drain_timeout;
    let host = server.host_state();
    let draining = server.drain(deadline);
    let outstanding: u64 = draining.outstanding();
    tracing::info!(outstanding, "Draining");
    draining.until(deadline).await;
    if draining.has_ended() {
        tracing::info!("Drained");
    } else {
        tracing::warn!(?timeout, "Drain timed out: queued requests are dropped");
    }
    stats::print(&draining.finish().await, &host, format);
}
