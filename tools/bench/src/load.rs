//! Load on NBD servers: closed loops of random reads in one thread, with the lean client.
//!
//! One thread drives all connections, so that on two CPUs the server has the other one for itself. The clock is read
//! once per iteration and not once per request, so a latency is exact to one iteration.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sluice_client::nbd::{Client, ClientError, Command};
use sluice_sched::gate::histogram::Histogram;

/// One connection of a load.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) socket: PathBuf,
    pub(super) export: String,
    /// Number of requests in flight.
    pub(super) depth: u32,
    /// Length of a read, in bytes.
    pub(super) block: u32,
}

/// Results of one connection in a period.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    pub(super) requests: u64,
    pub(super) seconds: f64,
    pub(super) latency: Histogram,
}

impl Outcome {
    pub(super) fn iops(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    /// Returns a percentile of the latencies, in microseconds.
    pub(super) fn percentile_us(&self, percent: f64) -> f64 {
        self.latency.percentile(percent).map_or(f64::NAN, |nanos| nanos as f64 / 1e3)
    }
}

/// Connections under load.
pub(super) struct Load {
    loops: Vec<Loop>,
    /// Start of the iteration.
    now: Instant,
    random: u64,
}

/// One connection.
struct Loop {
    client: Client,
    block: u32,
    blocks: u64,
    /// Submission time of each request.
    sent: Vec<Instant>,
    answered: Vec<u64>,
    outcome: Outcome,
}

impl Load {
    /// Connects, and submits the first requests.
    pub(super) fn start(targets: &[Target]) -> Result<Load, ClientError> {
        let now = Instant::now();
        let connect = |target: &Target| {
            let client = Client::connect_unix(&target.socket, &target.export)?;
            Ok(Loop {
                blocks: client.size_bytes() / u64::from(target.block),
                client,
                block: target.block,
                sent: vec![now; target.depth as usize],
                answered: (0..u64::from(target.depth)).collect(),
                outcome: Outcome::default(),
            })
        };
        let loops = targets.iter().map(connect).collect::<Result<_, ClientError>>()?;
        let mut load = Load { loops, now, random: 0x9e37_79b9_7f4a_7c15 };
        load.submit()?;
        Ok(load)
    }

    /// Runs for about `time`. Returns the results of each connection.
    pub(super) fn run(&mut self, time: Duration) -> Result<Vec<Outcome>, ClientError> {
        let begin = Instant::now();
        for each in &mut self.loops {
            each.outcome = Outcome::default();
        }
        while self.now.saturating_duration_since(begin) < time {
            self.receive()?;
            self.now = Instant::now();
            self.note();
            self.submit()?;
        }
        let seconds = self.now.duration_since(begin).as_secs_f64();
        let outcomes = self.loops.iter_mut().map(|each| Outcome { seconds, ..std::mem::take(&mut each.outcome) });
        Ok(outcomes.collect())
    }

    /// Receives the last replies and disconnects: nbdkit 1.32 aborts when a client closes without a disconnect
    /// request.
    pub(super) fn finish(self) -> Result<(), ClientError> {
        for Loop { mut client, .. } in self.loops {
            while client.in_flight() > 0 {
                client.receive(None, &mut |_| ())?;
            }
            client.disconnect()?;
        }
        Ok(())
    }

    /// Waits for replies on any connection, and receives all that have arrived.
    fn receive(&mut self) -> Result<(), ClientError> {
        if let [only] = self.loops.as_mut_slice() {
            let answered = &mut only.answered;
            only.client.receive(None, &mut |reply| answered.push(reply.cookie))?;
            return Ok(());
        }
        let polled = {
            let mut sockets: Vec<PollFd<'_>> =
                self.loops.iter().map(|each| PollFd::new(&each.client, PollFlags::IN)).collect();
            let patience = Timespec { tv_sec: 5, tv_nsec: 0 };
            let _ = poll(&mut sockets, Some(&patience)).map_err(|error| ClientError::Io(error.into()))?;
            sockets.iter().map(|socket| !socket.revents().is_empty()).collect::<Vec<_>>()
        };
        for (each, _) in self.loops.iter_mut().zip(polled).filter(|(_, ready)| *ready) {
            let answered = &mut each.answered;
            each.client.try_receive(&mut |reply| answered.push(reply.cookie))?;
        }
        Ok(())
    }

    fn note(&mut self) {
        for each in &mut self.loops {
            each.outcome.requests += each.answered.len() as u64;
            for cookie in &each.answered {
                let latency = self.now.saturating_duration_since(each.sent[*cookie as usize]);
                each.outcome.latency.add(latency.as_nanos() as u64);
            }
        }
    }

    /// Submits a request for each received reply.
    fn submit(&mut self) -> Result<(), ClientError> {
        for each in &mut self.loops {
            for cookie in each.answered.drain(..) {
                // xorshift64
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                let offset = self.random % each.blocks * u64::from(each.block);
                each.sent[cookie as usize] = self.now;
                each.client.submit(cookie, Command::Read { offset, len: each.block })?;
            }
            each.client.flush_output()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_client::canned::{CannedServer, Reads};
    use sluice_io::nbd::export::Export;

    #[test]
    fn closed_loops_complete_requests_on_every_connection() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("canned");
        let _server =
            CannedServer::bind_unix(&socket, Export::with_all_features("disk", 1 << 30), Reads::Data).unwrap();
        let target = Target { socket, export: "disk".to_owned(), depth: 4, block: 4096 };
        for connections in [1, 3] {
            let mut load = Load::start(&vec![target.clone(); connections]).unwrap();
            let outcomes = load.run(Duration::from_millis(20)).unwrap();
            assert_eq!(outcomes.len(), connections);
            assert!(outcomes.iter().any(|outcome| outcome.requests >= 4 && outcome.percentile_us(50.0) > 0.0));
            load.finish().unwrap();
        }
    }
}
