//! iperf 2, as in the paper: senders of datagrams, and receivers that print what arrives.

use std::io::{self, BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use sluice_client::net::{Namespace, OUTSIDE};
use sluice_lab::real::nics::{FLOW_MBIT, PAYLOAD};

use super::priority;

/// Time after which a receiver prints what has arrived, in seconds.
const EVERY_S: f64 = 0.1;
/// An interval of more seconds is the summary of a flow.
const INTERVAL_MAX_S: f64 = 1.5 * EVERY_S;
/// Fields of a line of the receiver.
const ADDRESS: usize = 1;
const PORT: usize = 2;
const INTERVAL: usize = 6;
const BYTES: usize = 7;

/// A running process, which is ended when this is dropped.
struct Process(Child);

impl Process {
    fn start(at: &Namespace, words: &str, output: Stdio) -> io::Result<Process> {
        let mut iperf = priority::command("iperf");
        iperf.args(words.split_whitespace());
        let mut command = at.command(&iperf);
        command.stdin(Stdio::null()).stdout(output).stderr(Stdio::null()).spawn().map(Process)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends flows until it is dropped.
pub(super) struct Sender {
    _process: Process,
}

impl Sender {
    /// Starts the flows of a VM. They end when this is dropped, at the latest a second after their time.
    pub(super) fn start(from: &Namespace, vm: usize, flows: u32, seconds: u64) -> io::Result<Sender> {
        let (to, port) = (OUTSIDE, port(vm));
        let most = seconds + 1;
        let words = format!("-c {to} -u -p {port} -b {FLOW_MBIT}m -l {PAYLOAD} -P {flows} -t {most}");
        Ok(Sender { _process: Process::start(from, &words, Stdio::null())? })
    }
}

/// Receives the flows of a VM, and keeps what iperf prints.
pub(super) struct Receiver {
    process: Process,
    reader: JoinHandle<Vec<(Instant, Line)>>,
}

impl Receiver {
    pub(super) fn start(at: &Namespace, vm: usize) -> io::Result<Receiver> {
        // iperf counts the bytes of a datagram up to the length that it reads.
        let words = format!("-s -u -p {} -l {PAYLOAD} -i {EVERY_S} -y C", port(vm));
        let mut process = Process::start(at, &words, Stdio::piped())?;
        let output = process.0.stdout.take().expect("it is a pipe");
        let reader = thread::Builder::new().name("iperf".to_owned()).spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.filter_map(|line| Some((Instant::now(), Line::parse(&line)?))).collect()
        })?;
        Ok(Receiver { process, reader })
    }

    /// Ends it, and returns what has arrived.
    pub(super) fn finish(self) -> Arrived {
        drop(self.process);
        Arrived(self.reader.join().expect("reading does not panic"))
    }
}

/// Port of a VM's flows.
fn port(vm: usize) -> usize {
    7001 + vm
}

/// Data of a flow that arrived in an interval, whose ends are seconds since the flow began.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    /// Address and port of the sender.
    flow: (String, String),
    from: f64,
    to: f64,
    bytes: f64,
}

impl Line {
    /// Parses a line; `None` for others, and for the summary at the end of a flow.
    fn parse(text: &str) -> Option<Line> {
        let fields: Vec<&str> = text.trim().split(',').collect();
        let (from, to) = fields.get(INTERVAL)?.split_once('-')?;
        let (from, to): (f64, f64) = (from.parse().ok()?, to.parse().ok()?);
        let flow = (fields[ADDRESS].to_owned(), fields[PORT].to_owned());
        let bytes = fields.get(BYTES)?.parse().ok()?;
        (to > from && to - from < INTERVAL_MAX_S).then_some(Line { flow, from, to, bytes })
    }
}

/// Lines of a receiver, and when each was read.
pub(super) struct Arrived(Vec<(Instant, Line)>);

impl Arrived {
    /// Returns the rates in the seconds after `began`, in Mb/s of data.
    ///
    /// A line is read after the end of its interval, so the earliest beginning of a flow that its lines give is the nearest. An
    /// interval that lies in two seconds counts for both in proportion.
    pub(super) fn rates(&self, began: Instant, seconds: usize) -> Vec<f64> {
        let mut rates = vec![0.0; seconds];
        for (_, line) in &self.0 {
            let begins = self.begins(&line.flow, began);
            let (from, to) = (begins + line.from, begins + line.to);
            for (second, rate) in rates.iter_mut().enumerate() {
                let inside = f64::min(to, second as f64 + 1.0) - f64::max(from, second as f64);
                *rate += line.bytes * 8e-6 * (inside.max(0.0) / (to - from));
            }
        }
        rates
    }

    /// Returns when a flow began, in seconds after `began`.
    fn begins(&self, flow: &(String, String), began: Instant) -> f64 {
        let of_flow = self.0.iter().filter(|(_, line)| line.flow == *flow);
        let after = |read: &Instant| read.saturating_duration_since(began).as_secs_f64();
        of_flow.map(|(read, line)| after(read) - line.to).fold(f64::MAX, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Lines of iperf 2.1.8.
    const FIRST: &str = "20261201010609,10.9.0.1,38365,10.9.0.2,7002,1,0.0-0.1,1225980,98077419,0.003,0,834,0.000,0";
    const SUMMARY: &str =
        "20261201010611,10.9.0.1,38365,10.9.0.2,7002,1,0.0-2.0,24970890,99882411,0.002,0,16987,0.000,0";

    fn line(port: &str, from: f64, to: f64, bytes: f64) -> Line {
        Line { flow: ("10.9.0.1".to_owned(), port.to_owned()), from, to, bytes }
    }

    #[test]
    fn lines_of_intervals_are_read_and_others_are_not() {
        assert_eq!(Line::parse(FIRST), Some(line("38365", 0.0, 0.1, 1_225_980.0)));
        for other in [SUMMARY, "", "[  1] local 10.9.0.2", "a,b,c,d,e,f,1.0-x,3,4"] {
            assert_eq!(Line::parse(other), None, "{other}");
        }
    }

    #[test]
    fn the_intervals_of_flows_are_put_into_the_seconds_of_the_trial() {
        let began = Instant::now();
        let read = |after_ms: u64| began + Duration::from_millis(after_ms);
        // One flow from 0.95 s on, whose first line was read late, and another one from 1.2 s on.
        let arrived = Arrived(vec![
            (read(1090), line("1", 0.0, 0.1, 1_000_000.0)),
            (read(1150), line("1", 0.1, 0.2, 2_000_000.0)),
            (read(1300), line("2", 0.0, 0.1, 500_000.0)),
        ]);
        let rates = arrived.rates(began, 3);
        assert!((rates[0] - 4.0).abs() < 1e-6 && (rates[1] - 24.0).abs() < 1e-6, "{rates:?}");
        assert_eq!(rates[2], 0.0);
    }
}
