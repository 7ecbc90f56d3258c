//! `sluice serve FILE`
//!
//! SIGHUP reloads the file atomically. SIGTERM and SIGINT drain: the daemon reads no more requests, answers those it
//! has read, and exits. SIGUSR1 prints statistics of every VM.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use sluice_api::printed::{Line, Serving};
use sluice_config::{Diagnostics, Host, ListenAddress};
use sluice_io::endpoint::Bound;
use sluice_io::nbd::tls;
use sluice_io::reactor::priority;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::control::changer::{Begin, Changer, PATH_TIMEOUT, ServerEvent, Start};
use crate::control::roles::{self, Roles};
use crate::control::socket::{self, Asked, ControlSocket};
use crate::events::Events;
use crate::failure::{Failure, chain};
use crate::jail::Jail;
use crate::metrics;
use crate::metrics::http::Exporter;
use crate::monitor::{Board, Monitor};
use crate::notify;
use crate::output::{self, Format};
use crate::preflight;
use crate::server::{Force, Progress, Server, ServerError, stats};
use crate::service::Service;
use crate::state::Saved;
use crate::state::folder::{Damaged, StateError, StateFolder};
use crate::state::overrides::Override;
use crate::state::start::Restored;

/// Serve the virtual disks and NICs of a host file.
///
/// A volume or NIC that cannot be served is out of service, and all others are served: its source, its socket, its interface or
/// its device is missing or wrong. It is retried each second. The daemon does not start if the file itself is wrong or has lost all
/// volumes, if the state directory cannot be used, others may change it, it is in use or a newer program wrote it, if a stated
/// control socket cannot be made, if the path of one of these hangs, or without io_uring.
///
/// SIGHUP reloads the file atomically and does not pause running VMs; `sluice apply` does the same and reports the result. A
/// volume is held back until it is forced if its source or offset differs from when it was last served, or if it is smaller.
/// SIGTERM completes the requests already received, then exits. SIGUSR1 prints statistics for each VM.
///
/// Serving never waits for the log. When standard error is full, log lines are dropped, and the next line states how many.
/// Lines about VMs are rate limited for each VM and kind: 32 immediately, then one per second. Every 5 seconds "Log lines suppressed" states
/// how many were suppressed.
#[derive(Args)]
pub struct Serve {
    /// Host file; files in the folder NAME.d next to NAME.toml override its keys.
    file: PathBuf,
    /// Serves a volume, or those of a VM (db1/root or db1), that would be held back. '*' stands for all of them; it also accepts a
    /// host file without volumes.
    #[arg(long, value_name = "NAME")]
    force: Vec<String>,
    /// Fails if any device, volume, NIC or socket of the file cannot be served, instead of serving the others without it. A path
    /// that hangs is left out all the same.
    #[arg(long)]
    strict: bool,
    /// Level of log messages, as `sluice --log`: error, warn, info, debug or trace, also for one module.
    #[arg(id = "serve_log", long = "log", value_name = "LEVEL", value_parser = crate::output::log_filter)]
    log: Option<String>,
}

impl Serve {
    /// The stated level of log messages.
    pub(crate) fn log_level(&self) -> Option<String> {
        self.log.clone()
    }

    pub fn run(self, format: Format, mut jail: Jail) -> Result<(), Failure> {
        jail.use_launcher()?;
        // Makes its socket, while that is allowed.
        notify::notify(&[], &[])?;
        sluice_io::socket_file::keep_new_files_private();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.serve(format, jail))
    }

    /// The file whose volumes are served.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    async fn serve(self, format: Format, jail: Jail) -> Result<(), Failure> {
        let mut signals = Signals::register()?;
        sluice_io::signals::release();
        let force = (Force::new(self.force), self.strict);
        let Some(begun) = begin(&self.file, force, &mut signals).await? else { return Ok(()) };
        let Begun { begin, control, metrics } = begun;
        let files = begin.files.names().collect::<Vec<_>>().join(" ");
        let state = begin.folder.as_ref().map(|folder| folder.path().display().to_string());
        tracing::info!(version = env!("CARGO_PKG_VERSION"), files, state, "Starting");
        let host = &begin.start.host;
        host.warnings.iter().for_each(crate::output::message);
        sluice_io::limits::raise_descriptors();
        if host.daemon.real_time {
            use_real_time();
        }
        let (_control, mut asked) = listen(control)?;
        let (drain_timeout, runtime) = (host.daemon.drain_timeout, tokio::runtime::Handle::current());
        let (board, exported) = (Board::default(), metrics::Board::default());
        let _exporter = metrics.map(|bound| Exporter::start(bound, exported.clone())).transpose()?;
        let events = Events::start(begin.folder.as_ref().map(|folder| folder.path().to_owned()))?;
        let reporter = events.reporter();
        let monitor = Monitor::start(board.clone(), events, exported)?;
        jail.complete(&begin.start.host)?;
        let (changer, mut news) = Changer::start(begin, format, runtime, (board, reporter))?;
        let mut service = Service::of_environment();
        let mut serves = false;
        let ended = loop {
            tokio::select! {
                Some(news) = news.recv() => match news {
                    ServerEvent::Started(Ok((serving, status))) => {
                        serves = true;
                        print_ready(serving, format);
                        service.ready(status);
                    }
                    ServerEvent::Started(Err(failure)) => return Err(failure),
                    ServerEvent::Status(status) => service.set_status(status),
                    ServerEvent::Dead => break Err(Failure::Run(ALL_DOWN.into())),
                    ServerEvent::Panicked => break Err(Failure::Run(NO_CHANGES.into())),
                },
                _ = signals.reload.recv(), if serves => changer.reload(),
                Some(request) = asked.recv(), if serves => {
                    if let Some(request) = monitor.answer(request) {
                        changer.change(request);
                    }
                }
                _ = signals.report.recv() => changer.report(),
                _ = signals.terminate.recv() => break Ok("SIGTERM"),
                _ = signals.interrupt.recv() => break Ok("SIGINT"),
                () = service.tick(), if serves => service.beat(&changer),
            }
        };
        service.stopping(drain_timeout);
        // Before the drain, which ends the load and with it what it has broken.
        let why = ended.as_ref().ok().map(|signal| (*signal).to_owned());
        let recorded = tokio::spawn(monitor.end(why, RECORD_TIMEOUT));
        let deadline = Instant::now() + drain_timeout;
        end(&changer, ended.is_ok(), deadline, format).await;
        let _ = recorded.await;
        ended.map(drop)
    }
}

/// Gives real-time priority to the threads of devices and uplinks.
fn use_real_time() {
    match priority::use_real_time() {
        Ok(()) => tracing::info!("Threads of devices and uplinks have real-time priority, and do not poll"),
        Err(error) => {
            tracing::warn!(%error, fix = priority::FIX, "Real-time priority is not allowed: real_time has no effect")
        }
    }
}

/// Maximum time at the end for replies that TLS has not sent yet.
const TLS_END_MAX: Duration = Duration::from_secs(1);

/// Maximum time at the end for writing the ends of events: a sample, and a write.
const RECORD_TIMEOUT: Duration = Duration::from_secs(3);

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

/// Reports that the daemon is ready, and what it serves.
fn print_ready(serving: Serving, format: Format) {
    let Serving { devices, vms, volumes, uplinks, nics, out_of_service, held_back } = &serving;
    tracing::info!(devices, vms, volumes, uplinks, nics, out_of_service, held_back, "Ready");
    if format == Format::Json {
        output::json(&Line::Ready(serving));
    }
}

/// State before anything is served.
struct Begun {
    begin: Begin,
    control: Option<Bound>,
    metrics: Option<Bound>,
}

impl Begun {
    /// Reads the file and the state, and makes the control socket; `progress` has the path that it waits for.
    fn of(file: &Path, (force, strict): (Force, bool), progress: &Progress) -> Result<Begun, Failure> {
        progress.set(file);
        let (files, own) = sluice_config::load_files(file).map_err(Failure::Config)?;
        let opened = preflight::state_path(&own).map(|path| open_state(&path, strict, progress));
        let mut problems = Vec::new();
        let (folder, state) = match opened.transpose() {
            Ok(opened) => opened.map_or_else(Default::default, |(folder, damaged)| (Some(folder), damaged)),
            Err(error) => {
                problems.push(chain(&error));
                Default::default()
            }
        };
        let is_damaged = state.error.is_some();
        // A damaged state is written again in any case.
        let on_disk = if is_damaged { Saved::default() } else { state.saved.clone() };
        let restored = Restored::of(state, &files, strict, || progress.set(file));
        report(&restored);
        let Restored { saved, gone, host, .. } = restored;
        let host = host.map_err(|found| invalid_with(&saved, folder.as_ref(), found))?;
        let at = socket::path(&host.daemon);
        at.iter().for_each(|(path, _)| progress.set(path));
        let control = ControlSocket::bind(&host.daemon).unwrap_or_else(|error| {
            problems.push(chain(&error));
            None
        });
        let (control, group) = control.unzip();
        let metrics = bind_metrics(&host, strict, progress)?;
        progress.set(Path::new(roles::LOOKUP));
        let roles = Roles::of(&host.daemon.access, group);
        if !problems.is_empty() {
            if strict {
                let host = Arc::new(host);
                problems.extend(preflight::problems(&host, &saved, &force, |path| progress.set(path)));
            }
            return Err(Failure::Several(problems));
        }
        let (file, host) = (file.to_owned(), Arc::new(host));
        let start = Start { host, saved, is_damaged, gone, force, strict };
        Ok(Begun { begin: Begin { file, files, folder, on_disk, roles, start }, control, metrics })
    }
}

/// Opens the state directory. A damaged state is set aside, except by a strict start.
fn open_state(path: &Path, strict: bool, progress: &Progress) -> Result<(StateFolder, Damaged), StateError> {
    progress.set(path);
    match strict {
        true => StateFolder::open(path).map(|(folder, saved)| (folder, Damaged { saved, ..Damaged::default() })),
        false => StateFolder::open_damaged(path),
    }
}

/// Binds the socket of the metrics. Without it VMs are served all the same, except by a strict start.
fn bind_metrics(host: &Host, strict: bool, progress: &Progress) -> Result<Option<Bound>, Failure> {
    let Some(endpoint) = &host.daemon.metrics else { return Ok(None) };
    let path = match endpoint {
        ListenAddress::Unix { path, .. } => path.clone(),
        ListenAddress::Tcp(address) => address.to_string().into(),
    };
    progress.set(&path);
    if strict {
        return Exporter::bind(&host.daemon).map_err(Failure::from);
    }
    let (reply, bound) = std::sync::mpsc::channel();
    let settings = host.daemon.clone();
    thread::Builder::new().name("metrics".to_owned()).spawn(move || drop(reply.send(Exporter::bind(&settings))))?;
    // Shorter than the time after which the whole start is taken for hung.
    let error = match bound.recv_timeout(PATH_TIMEOUT / 2) {
        Ok(Ok(bound)) => return Ok(bound),
        Ok(Err(error)) => chain(&error),
        Err(_) => ServerError::Hangs { path, seconds: (PATH_TIMEOUT / 2).as_secs() }.to_string(),
    };
    tracing::error!(error, "Metrics are not served: restart the daemon when that is corrected");
    Ok(None)
}

/// Returns the error of files that are not valid with the changes made at run time.
fn invalid_with(saved: &Saved, folder: Option<&StateFolder>, found: Diagnostics) -> Failure {
    let names: Vec<String> = saved.overrides.iter().map(Override::name).collect();
    let path = folder.map_or_else(String::new, |folder| folder.path().display().to_string());
    output::message(format_args!(
        "error: The file is valid by itself, but not with the changes made at run time: {}. Correct the \
         file, or undo changes with `sluice reset NAME --state {path}`",
        names.join(", ")
    ));
    Failure::Config(found)
}

/// Writes what is lost of the state, and what is not in force.
fn report(Restored { saved, lost, damage, .. }: &Restored) {
    for name in lost {
        tracing::error!(name, "A change made at run time is lost: its part of the state file is damaged");
    }
    for known in saved.overrides.aside() {
        let (name, value) = (known.name(), known.value());
        tracing::error!(name, value, "Override set aside: with it the host file is not valid any more");
    }
    if let Some(error) = damage {
        let (error, held) = (chain(error), saved.unknown.len());
        tracing::error!(
            error,
            held,
            "State set aside as state.json.damaged: volumes whose entry is lost are held back"
        );
    }
}

/// Begins in a separate thread, because a file system that hangs would keep this one from receiving signals. Returns
/// `None` if a signal ends the daemon first.
async fn begin(file: &Path, how: (Force, bool), signals: &mut Signals) -> Result<Option<Begun>, Failure> {
    let (reply, begun) = oneshot::channel();
    let progress = Progress::default();
    let (file, own) = (file.to_owned(), progress.clone());
    thread::Builder::new().name("begin".to_owned()).spawn(move || {
        let _ = reply.send(Begun::of(&file, how, &own));
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

/// Ends changes, and drains the devices.
async fn end(changer: &Changer, is_stop: bool, deadline: Instant, format: Format) {
    match tokio::time::timeout_at(deadline.into(), changer.end(is_stop)).await {
        Ok(Ok(server)) => drain(server, deadline, format).await,
        Ok(Err(_)) => tracing::error!("Exiting without draining"),
        Err(_) => tracing::error!("A running change does not complete: exiting without draining"),
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
    // What devices have answered may be on its way through the thread for TLS.
    tls::finish(deadline.min(Instant::now() + TLS_END_MAX)).await;
    if draining.has_ended() {
        tracing::info!("Drained");
    } else {
        tracing::warn!(?timeout, "Drain timed out: queued requests are dropped");
    }
    stats::print(&draining.finish().await, host, format);
}
