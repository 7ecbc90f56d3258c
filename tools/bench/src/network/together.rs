//! Disk and link busy at once: what each VM gets of both, as a part of what it gets of each alone.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sluice_client::vhost::{Client, ClientError, ClientOptions, Request};

use super::lab::{Lab, Vm};

/// Outstanding requests of a VM.
const OUTSTANDING: u16 = 32;
/// Time after which a change of the load has its effect.
const SETTLED: Duration = Duration::from_millis(500);

/// A device of 4,000 requests per second. The folder of the sockets replaces `FOLDER`.
const DISKS: &str = r#"
[device.disk]
backend = "null"
depth = 4
[device.disk.delay]
time = "1ms"
parallel = 4
[vm.v0]
weight = 100
[vm.v0.volume.disk]
device = "disk"
size = "1GiB"
export = { type = "vhost-user-blk", socket = "FOLDER/disk0" }
[vm.v1]
weight = 300
[vm.v1.volume.disk]
device = "disk"
size = "1GiB"
export = { type = "vhost-user-blk", socket = "FOLDER/disk1" }
"#;

/// Returns four parts for two VMs that send: of the link for each VM, and of the disk for each.
pub(super) fn measure(link: f64, vms: &[Vm; 2], warm: Duration, time: Duration) -> io::Result<[f64; 4]> {
    let mut lab = Lab::start_with(link, vms, DISKS)?;
    thread::sleep(warm);
    let rates = |lab: &Lab, readers: &[Reader]| {
        let counts = || {
            let link = lab.arrived_mbit();
            [link[0], link[1], readers.first().map_or(0.0, Reader::count), readers.last().map_or(0.0, Reader::count)]
        };
        let (before, begin) = (counts(), Instant::now());
        thread::sleep(time);
        let (after, time) = (counts(), begin.elapsed().as_secs_f64());
        std::array::from_fn::<f64, 4, _>(|at| (after[at] - before[at]) / time)
    };
    let link_alone = rates(&lab, &[]);
    let readers = ["disk0", "disk1"].map(|name| Reader::start(lab.file(name)));
    let readers = readers.into_iter().collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
    thread::sleep(SETTLED);
    let both = rates(&lab, &readers);
    lab.stop_senders();
    thread::sleep(SETTLED);
    let disk_alone = rates(&lab, &readers);
    let alone = [link_alone[0], link_alone[1], disk_alone[2], disk_alone[3]];
    Ok(std::array::from_fn(|at| both[at] / alone[at]))
}

/// Keeps reads of 4 KiB outstanding until it is dropped.
struct Reader {
    ends: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<(), ClientError>>>,
}

impl Reader {
    fn start(socket: PathBuf) -> Result<Reader, ClientError> {
        let mut client = Client::connect(&socket, &ClientOptions { slots: OUTSTANDING, ..ClientOptions::default() })?;
        let (ends, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (end, count) = (Arc::clone(&ends), Arc::clone(&answered));
        let thread = thread::spawn(move || {
            let mut slots: Vec<u16> = (0..OUTSTANDING).collect();
            while !end.load(Ordering::Relaxed) {
                let queue = client.queue(0);
                for slot in slots {
                    queue.submit(slot, Request::Read { offset: u64::from(slot) << 12, len: 4096 })?;
                }
                queue.publish()?;
                queue.kick()?;
                let completed = client.wait(0, 1)?;
                count.fetch_add(completed.len() as u64, Ordering::Relaxed);
                slots = completed.iter().map(|completion| completion.slot).collect();
            }
            Ok(())
        });
        Ok(Reader { ends, answered, thread: Some(thread) })
    }

    fn count(&self) -> f64 {
        self.answered.load(Ordering::Relaxed) as f64
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
