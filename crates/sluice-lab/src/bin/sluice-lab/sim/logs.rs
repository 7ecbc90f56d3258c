//! A line for every request: as CSV, or in fio's log format.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::rc::Rc;

use sluice_console::lab::Log;
use sluice_sched::{Kind, Phase};
use sluice_sim::engine::Completed;
use sluice_sim::scenario::Requests;
use sluice_sim::scenario::file::Loaded;

use super::folder::cannot;
use sluice_daemon::failure::Failure;

/// A log that is being written. Errors are reported at the end.
pub(crate) struct Writing {
    writer: Rc<RefCell<Writer>>,
}

enum Writer {
    Requests {
        file: BufWriter<File>,
        names: Vec<String>,
        failed: Option<io::Error>,
    },
    #[cfg(feature = "parquet")]
    Parquet {
        file: super::columns::Columns,
        failed: Option<io::Error>,
    },
    Fio {
        vms: Vec<FioLogs>,
        failed: Option<io::Error>,
    },
}

/// fio's logs of one VM: time in ms, value, direction, block size, offset, priority, time of issue in ns.
struct FioLogs {
    bandwidth: BufWriter<File>,
    rate: BufWriter<File>,
    latency: BufWriter<File>,
    window: u64,
    /// End of the run, in nanoseconds. Requests that complete then belong to the last window.
    end: u64,
    /// The current window, and its requests and bytes by direction.
    filling: u64,
    counts: [(u64, u64); 3],
}

impl Writing {
    /// Creates the files in `folder`.
    pub(crate) fn new(log: Log, folder: &Path, loaded: &Loaded) -> Result<Self, Failure> {
        let create = |name: &str| {
            let path = folder.join(name);
            File::create(&path).map(BufWriter::new).map_err(|error| cannot("write", &path, &error))
        };
        let vms = &loaded.scenario.vms;
        let writer = match log {
            Log::Requests => {
                let mut file = create("requests.csv")?;
                writeln!(
                    file,
                    "vm,thread,node,operation,offset_bytes,length_bytes,arrived_ns,completed_ns,dispatched_ns,phase"
                )?;
                Writer::Requests { file, names: vms.iter().map(|vm| vm.name.clone()).collect(), failed: None }
            }
            #[cfg(feature = "parquet")]
            Log::Parquet => {
                let path = folder.join("requests.parquet");
                let opened = File::create(&path).map_err(|error| cannot("write", &path, &error))?;
                let file = super::columns::Columns::new(opened, vms.iter().map(|vm| vm.name.as_str()));
                Writer::Parquet { file: file.map_err(|error| cannot("write", &path, &error.into()))?, failed: None }
            }
            #[cfg(not(feature = "parquet"))]
            Log::Parquet => {
                let how = "requests.parquet needs a program built with `cargo build --release -p sluice --features parquet`; \
                           `--log requests` writes the same as CSV";
                return Err(Failure::Refused(how.to_owned()));
            }
            Log::Fio => {
                let logs = |vm: &sluice_sim::scenario::Vm| {
                    Ok(FioLogs {
                        bandwidth: create(&format!("{}_bw.1.log", vm.name))?,
                        rate: create(&format!("{}_iops.1.log", vm.name))?,
                        latency: create(&format!("{}_lat.1.log", vm.name))?,
                        window: loaded.scenario.settings.window.as_nanos() as u64,
                        end: loaded.scenario.settings.duration.as_nanos() as u64,
                        filling: 0,
                        counts: [(0, 0); 3],
                    })
                };
                Writer::Fio { vms: vms.iter().map(logs).collect::<Result<_, Failure>>()?, failed: None }
            }
        };
        Ok(Writing { writer: Rc::new(RefCell::new(writer)) })
    }

    /// Channel to which a run reports its requests.
    pub(crate) fn watcher(&self) -> Requests {
        let writer = Rc::clone(&self.writer);
        Rc::new(RefCell::new(move |completed_request: &Completed| {
            writer.borrow_mut().completed_request(completed_request)
        }))
    }

    /// Everything has been told.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        match &mut *self.writer.borrow_mut() {
            Writer::Requests { file, failed, .. } => {
                failed.take().map_or(Ok(()), Err)?;
                file.flush()?;
            }
            #[cfg(feature = "parquet")]
            Writer::Parquet { file, failed } => {
                failed.take().map_or(Ok(()), Err)?;
                file.finish().map_err(io::Error::from)?;
            }
            Writer::Fio { vms, failed } => {
                failed.take().map_or(Ok(()), Err)?;
                for logs in vms {
                    logs.close_window()?;
                    [&mut logs.bandwidth, &mut logs.rate, &mut logs.latency].into_iter().try_for_each(Write::flush)?;
                }
            }
        }
        Ok(())
    }
}

impl Writer {
    fn completed_request(&mut self, completed_request: &Completed) {
        let (written, failed) = match self {
            Writer::Requests { file, names, failed } => {
                (row(file, &names[completed_request.vm], completed_request), failed)
            }
            #[cfg(feature = "parquet")]
            Writer::Parquet { file, failed } => {
                (file.completed_request(completed_request).map_err(io::Error::from), failed)
            }
            Writer::Fio { vms, failed } => (vms[completed_request.vm].completed_request(completed_request), failed),
        };
        if let Err(error) = written {
            failed.get_or_insert(error);
        }
    }
}

/// As it is called in a log.
pub(super) fn operation(kind: Kind) -> &'static str {
    match kind {
        Kind::Read => "read",
        Kind::Write => "write",
        Kind::Flush => "flush",
        Kind::Discard => "discard",
        Kind::WriteZeroes => "write-zeroes",
    }
}

/// The phase of its dispatch, as logs name it.
pub(super) fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::None => "none",
        Phase::Reservation => "reservation",
        Phase::Weight => "weight",
    }
}

fn row(file: &mut impl Write, vm: &str, completed_request: &Completed) -> io::Result<()> {
    let Completed { thread, node, offset, length, arrived, completed, dispatched, .. } = completed_request;
    let (operation, phase) = (operation(completed_request.kind), phase(completed_request.phase));
    let [arrived, completed, dispatched] = [arrived, completed, dispatched].map(|at| at.as_nanos());
    writeln!(file, "{vm},{thread},{node},{operation},{offset},{length},{arrived},{completed},{dispatched},{phase}")
}

impl FioLogs {
    fn completed_request(&mut self, completed_request: &Completed) -> io::Result<()> {
        let direction = match completed_request.kind {
            Kind::Read => 0,
            Kind::Write | Kind::WriteZeroes => 1,
            Kind::Discard => 2,
            // Its logs have no flushes.
            Kind::Flush => return Ok(()),
        };
        let (at, issued) = (completed_request.completed.as_nanos(), completed_request.arrived.as_nanos());
        let last = self.end.saturating_sub(1) / self.window;
        while (at / self.window).min(last) > self.filling {
            self.close_window()?;
            self.filling += 1;
        }
        let (requests, bytes) = &mut self.counts[direction];
        (*requests, *bytes) = (*requests + 1, *bytes + u64::from(completed_request.length));
        let latency = at - issued;
        let (millis, length, offset) = (at / 1_000_000, completed_request.length, completed_request.offset);
        writeln!(self.latency, "{millis}, {latency}, {direction}, {length}, {offset}, 0, {issued}")
    }

    /// The rates of the window that is over, at its end: in KiB per second, and in requests per second.
    fn close_window(&mut self) -> io::Result<()> {
        let begins = self.filling * self.window;
        let ends = (begins + self.window).min(self.end);
        let (millis, length) = (ends / 1_000_000, u128::from(ends - begins));
        for (direction, (requests, bytes)) in std::mem::take(&mut self.counts).into_iter().enumerate() {
            if requests > 0 {
                let per_second = |count: u64| u128::from(count) * 1_000_000_000 / length;
                let (rate, bandwidth) = (per_second(requests), per_second(bytes) / 1024);
                writeln!(self.bandwidth, "{millis}, {bandwidth}, {direction}, 0, 0, 0, 0")?;
                writeln!(self.rate, "{millis}, {rate}, {direction}, 0, 0, 0, 0")?;
            }
        }
        Ok(())
    }
}
