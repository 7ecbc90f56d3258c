//! The VMs' load: one thread per VM, which keeps requests outstanding on its disk through the real socket.
//!
//! A VM is a closed loop, in which each reply is followed by the next request, or a program decides (`program`). A measuring window
//! ends at the end of a batch of replies and not at an exact time. So replies that a delayed thread finds together all count in the
//! same window.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sluice_config::VolumeExport;

use super::TestbedError;
use super::disk::{Disk, DiskError, DiskRequest};
use super::program::{Ask, ProgramMaker, Running};

/// Maximum wait for a reply before a client checks whether it should stop.
const REPLY_WAIT: Duration = Duration::from_millis(100);
/// Sleep of a client that submits nothing, before it checks again.
const IDLE_SLEEP: Duration = Duration::from_millis(5);
/// Maximum wait for outstanding requests at the end.
const DISCONNECT_MAX: Duration = Duration::from_secs(2);
/// Maximum time without a reply for a VM.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Length of the part of a disk that is written repeatedly, in bytes.
pub const LOG_LEN: u64 = 1 << 20;
/// Longest latency that is recorded exactly, in microseconds.
const LATENCY_MAX_US: u64 = 60_000_000;

/// Access pattern of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Random reads. The first `log_writers` of its outstanding requests write a log, as databases do.
    Random {
        /// These requests never read. If the real disk is stuck and blocks the writes, reads continue.
        log_writers: u64,
    },
    /// Sequential reads of the whole disk, repeatedly.
    Scan,
}

/// The requests of a VM.
#[derive(Clone)]
pub enum Requests {
    /// Each reply is followed by the next request.
    Pattern(Pattern),
    /// Whatever this makes decides.
    Program(ProgramMaker),
}

/// The load of a VM.
#[derive(Clone)]
pub struct LoadVm {
    pub name: &'static str,
    /// Its disk, or several over NBD, to one of which each request goes at random.
    pub exports: Vec<VolumeExport>,
    /// Decides which request goes to which of several disks.
    pub seed: u64,
    /// Maximum number of outstanding requests.
    pub outstanding: u32,
    /// Length of its requests in bytes; for a program the maximum.
    pub request_len: u32,
    /// Cost of one of its requests.
    pub cost: f64,
    pub requests: Requests,
    /// Whether it submits from the beginning.
    pub starts: bool,
    /// Whether it may get no replies for longer than `SILENCE_MAX`.
    pub may_starve: bool,
}

/// Requests of a VM in one or several windows of time.
#[derive(Clone)]
pub struct Window {
    time: Duration,
    service: f64,
    latencies_us: Histogram<u64>,
}

/// Statistics of a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Normalised requests per second.
    pub iops: f64,
    /// Median latency seen by the VM, in microseconds.
    pub p50_us: u64,
    /// 99th percentile of the latency seen by the VM, in microseconds.
    pub p99_us: u64,
    /// Mean latency seen by the VM, in microseconds.
    pub mean_us: f64,
}

/// All clients. Dropping it tells them to stop and does not wait for them: they own only their sockets.
pub struct Load {
    drivers: Vec<Driver>,
}

struct Driver {
    vm: &'static str,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), TestbedError>>>,
}

/// State shared by a client's thread and the testbed.
struct Shared {
    stop: AtomicBool,
    asking: AtomicBool,
    tally: Mutex<Tally>,
    /// When the VM's program was done, since its start.
    ended: OnceLock<Duration>,
}

/// Counters of a client.
struct Tally {
    since: Instant,
    window: Window,
    /// Since the start of the client, for the live display.
    service_total: f64,
    cut: Cut,
}

/// State of the window's end.
enum Cut {
    No,
    /// At the end of the next batch.
    Requested,
    Done(Window),
}

impl Load {
    /// Starts a client for each VM. The clients connect while the caller's runtime runs.
    pub fn start(vms: Vec<LoadVm>) -> std::io::Result<Self> {
        let mut load = Load { drivers: Vec::new() };
        for load_vm in vms {
            let shared = Arc::new(Shared {
                stop: AtomicBool::new(false),
                asking: AtomicBool::new(load_vm.starts),
                tally: Mutex::new(Tally::new()),
                ended: OnceLock::new(),
            });
            let vm = load_vm.name;
            let own = Arc::clone(&shared);
            // A program cannot be sent to the thread, which therefore makes the client.
            let run = move || Client::new(load_vm, own).run();
            let thread = thread::Builder::new().name(format!("vm-{vm}")).spawn(run)?;
            load.drivers.push(Driver { vm, shared, thread: Some(thread) });
        }
        Ok(load)
    }

    /// Makes a VM start to submit requests.
    pub fn start_vm(&self, vm: usize) {
        self.drivers[vm].shared.asking.store(true, Ordering::Relaxed);
    }

    /// Makes a VM stop submitting requests.
    pub fn quiet(&self, vm: usize) {
        self.drivers[vm].shared.asking.store(false, Ordering::Relaxed);
    }

    /// Returns the normalised requests of each VM since the start.
    pub fn service(&self) -> Vec<f64> {
        self.drivers.iter().map(|driver| driver.shared.tally().service_total).collect()
    }

    /// Returns when the program of each VM was done, since the VM's start. `None`: it is not, or there is none.
    pub fn ended(&self) -> Vec<Option<Duration>> {
        self.drivers.iter().map(|driver| driver.shared.ended.get().copied()).collect()
    }

    /// Ends the window and begins the next. Returns the window of each VM.
    pub async fn cut(&mut self) -> Result<Vec<Window>, TestbedError> {
        for driver in &self.drivers {
            driver.shared.tally().cut = Cut::Requested;
        }
        let called = Instant::now();
        let mut all = Vec::new();
        while all.len() < self.drivers.len() {
            self.check()?;
            let done = self.drivers[all.len()].shared.tally().take();
            match done {
                Some(window) => all.push(window),
                None if called.elapsed() > SILENCE_MAX => {
                    return Err(TestbedError::Silence {
                        vm: self.drivers[all.len()].vm,
                        seconds: SILENCE_MAX.as_secs(),
                    });
                }
                None => tokio::time::sleep(IDLE_SLEEP).await,
            }
        }
        Ok(all)
    }

    /// Checks all clients. Returns the error of a failed one.
    pub fn check(&mut self) -> Result<(), TestbedError> {
        for driver in &mut self.drivers {
            if driver.thread.as_ref().is_some_and(JoinHandle::is_finished) {
                driver.join()?;
            }
        }
        Ok(())
    }

    /// Waits for outstanding requests and disconnects all clients.
    pub fn finish(mut self) -> Result<(), TestbedError> {
        self.stop();
        self.drivers.iter_mut().try_for_each(Driver::join)
    }

    fn stop(&self) {
        self.drivers.iter().for_each(|driver| driver.shared.stop.store(true, Ordering::Relaxed));
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Driver {
    fn join(&mut self) -> Result<(), TestbedError> {
        let ended = self.thread.take().map(JoinHandle::join);
        ended.map_or(Ok(()), |ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Shared {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Window {
    /// Creates an empty window.
    fn new() -> Self {
        let latencies_us = Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).expect("these bounds are in order");
        Window { time: Duration::ZERO, service: 0.0, latencies_us }
    }

    /// Returns its length in seconds.
    pub fn seconds(&self) -> f64 {
        self.time.as_secs_f64()
    }

    /// Returns the statistics of several windows together.
    pub fn together<'a>(windows: impl IntoIterator<Item = &'a Window>) -> Measured {
        let mut all = Window::new();
        for window in windows {
            all.time += window.time;
            all.service += window.service;
            all.latencies_us.add(&window.latencies_us).expect("their bounds are the same");
        }
        let seconds = all.time.as_secs_f64();
        Measured {
            iops: if seconds > 0.0 { all.service / seconds } else { 0.0 },
            p50_us: all.latencies_us.value_at_quantile(0.5),
            p99_us: all.latencies_us.value_at_quantile(0.99),
            mean_us: all.latencies_us.mean(),
        }
    }
}

impl Tally {
    fn new() -> Self {
        Tally { since: Instant::now(), window: Window::new(), service_total: 0.0, cut: Cut::No }
    }

    fn record(&mut self, cost: f64, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.window.latencies_us.saturating_record(micros);
        self.window.service += cost;
        self.service_total += cost;
    }

    /// Returns the window that has ended.
    fn take(&mut self) -> Option<Window> {
        match std::mem::replace(&mut self.cut, Cut::No) {
            Cut::Done(window) => Some(window),
            other => {
                self.cut = other;
                None
            }
        }
    }

    /// Ends the window if that was requested.
    fn cut_if_requested(&mut self, now: Instant) {
        if matches!(self.cut, Cut::Requested) {
            self.window.time = now.saturating_duration_since(self.since);
            self.since = now;
            self.cut = Cut::Done(std::mem::replace(&mut self.window, Window::new()));
        }
    }
}

/// The client of one VM, in its own thread.
struct Client {
    load_vm: LoadVm,
    shared: Arc<Shared>,
    /// Data of its writes.
    data: Vec<u8>,
    /// Position of its next request.
    cursor: Cursor,
    /// The VM's program, if it has one and the VM has started.
    running: Option<Running>,
    /// Arrival time of each outstanding request, by cookie. With a program it is the time at which the request was due.
    arrived_at: Vec<Instant>,
    /// Cookies that are not in use.
    free: Vec<u64>,
}

impl Client {
    fn new(load_vm: LoadVm, shared: Arc<Shared>) -> Self {
        Client {
            shared,
            data: vec![0x5a; load_vm.request_len as usize],
            cursor: Cursor::default(),
            running: None,
            arrived_at: vec![Instant::now(); load_vm.outstanding as usize],
            free: (0..u64::from(load_vm.outstanding)).collect(),
            load_vm,
        }
    }

    fn run(mut self) -> Result<(), TestbedError> {
        let vm = self.load_vm.name;
        let failed = self.serve().map_err(|source| TestbedError::Client { vm, source })?;
        failed.map_or(Ok(()), |source| Err(TestbedError::Request { vm, source }))
    }

    /// Submits until it is told to stop, or until a request fails. Returns the error of the failed request.
    fn serve(&mut self) -> Result<Option<std::io::Error>, DiskError> {
        let mut disk = Disk::connect(
            &self.load_vm.exports,
            self.load_vm.outstanding,
            self.load_vm.request_len,
            self.load_vm.seed,
        )?;
        let shared = Arc::clone(&self.shared);
        while !shared.stop.load(Ordering::Relaxed) {
            if shared.asking.load(Ordering::Relaxed) {
                self.submit_all(&mut disk)?;
            }
            let next = self.running.as_ref().and_then(Running::next);
            // A request that is due waits for a free cookie.
            let until_next =
                next.map(|next| next.saturating_duration_since(Instant::now())).filter(|_| !self.free.is_empty());
            if disk.in_flight() == 0 {
                thread::sleep(until_next.unwrap_or(IDLE_SLEEP).min(IDLE_SLEEP));
                shared.tally().cut_if_requested(Instant::now());
            } else if let Some(error) = self.receive(&mut disk, until_next.unwrap_or(REPLY_WAIT).min(REPLY_WAIT))? {
                return Ok(Some(error));
            }
        }
        let leaving = Instant::now();
        while disk.in_flight() > 0 && leaving.elapsed() < DISCONNECT_MAX {
            self.receive(&mut disk, REPLY_WAIT)?;
        }
        disk.disconnect()?;
        Ok(None)
    }

    /// Submits what has arrived: as many requests as replies, or what the program has due.
    fn submit_all(&mut self, disk: &mut Disk) -> Result<(), DiskError> {
        let now = Instant::now();
        match &self.load_vm.requests {
            Requests::Pattern(pattern) => {
                let (pattern, len) = (*pattern, self.load_vm.request_len);
                while let Some(cookie) = self.free.pop() {
                    let (offset, is_read) = self.cursor.next(pattern, cookie, disk.size_bytes(), len);
                    self.submit(disk, cookie, Ask { offset, len, is_read }, now)?;
                }
            }
            Requests::Program(maker) => {
                let mut running = self.running.take().unwrap_or_else(|| Running { program: maker.0(), began: now });
                while let Some(cookie) = self.free.last().copied()
                    && let Some((ask, due)) = running.take(now)
                {
                    self.free.pop();
                    self.submit(disk, cookie, ask, due)?;
                }
                self.running = Some(running);
            }
        }
        Ok(())
    }

    fn submit(&mut self, disk: &mut Disk, cookie: u64, ask: Ask, arrived: Instant) -> Result<(), DiskError> {
        let Ask { offset, len, is_read } = ask;
        self.arrived_at[cookie as usize] = arrived;
        disk.submit(DiskRequest { cookie, offset, is_read }, &self.data[..len as usize])
    }

    fn receive(&mut self, disk: &mut Disk, timeout: Duration) -> Result<Option<std::io::Error>, DiskError> {
        let before = self.free.len();
        let failed = disk.receive(timeout, &mut self.free)?;
        let now = Instant::now();
        let mut tally = self.shared.tally();
        for &cookie in &self.free[before..] {
            tally.record(self.load_vm.cost, now.saturating_duration_since(self.arrived_at[cookie as usize]));
        }
        if let Some(running) = &mut self.running {
            (before..self.free.len()).for_each(|_| running.completed(now));
            if self.free.len() == self.arrived_at.len() && running.next().is_none() {
                self.shared.ended.get_or_init(|| running.time(now));
            }
        }
        if self.free.len() > before || self.load_vm.may_starve {
            tally.cut_if_requested(now);
        }
        Ok(failed)
    }
}

/// Positions of requests: counters, which are scattered where the pattern is random.
#[derive(Default)]
struct Cursor {
    requests: u64,
    writes: u64,
}

impl Cursor {
    /// Returns the position of a request, and whether it is a read.
    fn next(&mut self, pattern: Pattern, cookie: u64, size: u64, len: u32) -> (u64, bool) {
        let len = u64::from(len);
        let places = (size / len).max(1);
        self.requests += 1;
        match pattern {
            Pattern::Scan => (self.requests % places * len, true),
            Pattern::Random { log_writers } if cookie < log_writers => {
                self.writes += 1;
                (self.writes % places.min(LOG_LEN / len) * len, false)
            }
            Pattern::Random { .. } => (scatter(self.requests) % places * len, true),
        }
    }
}

/// The finaliser of splitmix64: scatters successive numbers, in the same way in every run.
pub(super) fn scatter(number: u64) -> u64 {
    let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_ends_one_window_and_begins_the_next() {
        let mut tally = Tally::new();
        let start = tally.since;
        (0..500).for_each(|_| tally.record(1.0, Duration::from_millis(1)));
        tally.cut_if_requested(start + Duration::from_secs(1));
        assert!(tally.take().is_none(), "no cut was requested");
        tally.cut = Cut::Requested;
        assert!(tally.take().is_none(), "no reply has arrived since");
        tally.cut_if_requested(start + Duration::from_secs(2));
        let first = tally.take().expect("it was requested");
        assert_eq!(Window::together([&first]), Measured { iops: 250.0, p50_us: 1000, p99_us: 1000, mean_us: 1000.0 });

        (0..300).for_each(|_| tally.record(2.0, Duration::from_millis(3)));
        tally.cut = Cut::Requested;
        tally.cut_if_requested(start + Duration::from_secs(4));
        let second = tally.take().expect("it was requested");
        let both = Window::together([&first, &second]);
        assert_eq!((both.iops, both.p50_us, both.p99_us), (1100.0 / 4.0, 1000, 3001));
        assert_eq!(tally.service_total, 1100.0);
    }

    #[test]
    fn requests_stay_on_the_disk_and_writes_in_the_log() {
        let (mut cursor, pattern) = (Cursor::default(), Pattern::Random { log_writers: 2 });
        for cookie in (0..16).cycle().take(10_000) {
            let (offset, read) = cursor.next(pattern, cookie, 64 << 20, 8192);
            assert_eq!(read, cookie >= 2);
            let end = if read { 64 << 20 } else { LOG_LEN };
            assert!(offset % 8192 == 0 && offset + 8192 <= end, "{cookie}: {offset}");
        }
        let mut scan = Cursor::default();
        let first: Vec<_> = (0..3).map(|cookie| scan.next(Pattern::Scan, cookie, 128 << 10, 65_536)).collect();
        assert_eq!(first, [(65_536, true), (0, true), (65_536, true)]);
    }
}
