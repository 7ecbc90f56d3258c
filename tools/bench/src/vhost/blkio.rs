//! Load by the independent crate `blkio`: closed loops of random reads, a thread for each queue.
//!
//! Only unsafe code can read its completions, so they are counted and carry no latencies. All reads of a queue go to the
//! same memory, which nothing reads.

use std::mem::MaybeUninit;
use std::path::Path;
use std::time::{Duration, Instant};

use blkio::{Blkio, Blkioq, Completion, ReqFlags};

use super::BLOCK;

/// Memory regions have a multiple of this length.
const REGION_LEN: usize = 2 << 20;

/// A connection under load.
pub(super) struct BlkioLoad {
    queues: Vec<Loop>,
    /// Owns the memory.
    _blkio: Blkio,
}

/// One queue.
struct Loop {
    queue: Blkioq,
    address: usize,
    blocks: u64,
    random: u64,
    /// Number of requests to submit.
    missing: usize,
    completions: Vec<MaybeUninit<Completion>>,
    poll: bool,
}

impl BlkioLoad {
    /// Connects with `queues` queues, which keep `depth` requests in flight each.
    pub(super) fn start(socket: &Path, queues: u16, depth: u16, poll: bool) -> Result<BlkioLoad, String> {
        let start = || -> Result<BlkioLoad, blkio::Error> {
            let mut blkio = Blkio::new("virtio-blk-vhost-user")?;
            blkio.set_str("path", &socket.to_string_lossy())?;
            blkio.set_bool("read-only", true)?;
            blkio.connect()?;
            blkio.set_i32("num-queues", queues.into())?;
            let started = blkio.start()?.queues;
            let len = (started.len() * BLOCK as usize).next_multiple_of(REGION_LEN);
            let region = blkio.alloc_mem_region(len)?;
            blkio.map_mem_region(&region)?;
            let blocks = blkio.get_u64("capacity")? / u64::from(BLOCK);
            let queue = |(number, queue)| Loop {
                queue,
                address: region.addr + number * BLOCK as usize,
                blocks,
                random: 0x9e37_79b9_7f4a_7c15 ^ number as u64,
                missing: depth.into(),
                completions: (0..depth).map(|_| MaybeUninit::uninit()).collect(),
                poll,
            };
            Ok(BlkioLoad { queues: started.into_iter().enumerate().map(queue).collect(), _blkio: blkio })
        };
        start().map_err(|error| error.message().to_owned())
    }

    /// Runs for about `time`. Returns the number of completed requests per second.
    pub(super) fn run(&mut self, time: Duration) -> Result<f64, String> {
        let begin = Instant::now();
        let counts = std::thread::scope(|scope| {
            let threads: Vec<_> = self.queues.iter_mut().map(|each| scope.spawn(|| each.run(begin + time))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect::<Result<Vec<_>, _>>()
        });
        let counts = counts.map_err(|error| error.message().to_owned())?;
        Ok(counts.into_iter().sum::<usize>() as f64 / begin.elapsed().as_secs_f64())
    }
}

impl Loop {
    /// Runs until `end`. Returns the number of completed requests.
    fn run(&mut self, end: Instant) -> Result<usize, blkio::Error> {
        let mut completed = 0;
        while Instant::now() < end {
            for _ in 0..std::mem::take(&mut self.missing) {
                // xorshift64
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                let offset = self.random % self.blocks * u64::from(BLOCK);
                self.queue.read(offset, self.address as *mut u8, BLOCK as usize, 0, ReqFlags::empty());
            }
            let least = usize::from(!self.poll);
            self.missing = self.queue.do_io(&mut self.completions, least, None, None)?;
            completed += self.missing;
        }
        Ok(completed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_does_not_exist_is_an_error_with_a_message() {
        let error = BlkioLoad::start(Path::new("/nonexistent/socket"), 1, 1, false).err().unwrap();
        assert!(!error.is_empty());
    }
}
