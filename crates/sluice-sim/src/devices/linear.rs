//! The linear model of Linux' iocost: costs of requests from six numbers, as a device, and as the line in
//! `io.cost.model` that the kernel reads and writes.
//!
//! A page of 4 KiB costs `4096 / bps`. A request also has a base cost, `1 / iops` minus its page, one for sequential
//! and one for random requests, which begin more than 16 MiB from the end of the previous one. Reads and writes have
//! separate numbers. Flushes and discards cost nothing.
//!
//! Example: the HDD defaults have 370 random reads per second and 174 MB/s. A page takes 23.5 us and a random read
//! 2,702.7 us, so the base is 2,679.2 us, and a random read of 16 KiB takes 2,773.3 us.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use sluice_sched::gate::Slot;
use sluice_sched::{Instant, Kind};

use super::{Job, Model, nanos};

const PAGE: u64 = 4096;
/// Distance from the end of the last request above which a request counts as random.
const NEAR: u64 = 16 << 20;

/// The six numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coefficients {
    /// Sequential read throughput in bytes per second.
    pub rbps: u64,
    /// Sequential reads of 4 KiB per second.
    pub rseqiops: u64,
    /// Random reads of 4 KiB per second.
    pub rrandiops: u64,
    /// Sequential write throughput in bytes per second.
    pub wbps: u64,
    /// Sequential writes of 4 KiB per second.
    pub wseqiops: u64,
    /// Random writes of 4 KiB per second.
    pub wrandiops: u64,
}

/// Their names in the line, in its order.
const NAMES: [&str; 6] = ["rbps", "rseqiops", "rrandiops", "wbps", "wseqiops", "wrandiops"];

/// A line that is not valid for `io.cost.model`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// An unknown word.
    #[error(
        "'{0}' is not part of io.cost.model; expected '8:16 ctrl=user model=linear rbps=N rseqiops=N rrandiops=N \
         wbps=N wseqiops=N wrandiops=N'"
    )]
    Word(String),
    /// Another model.
    #[error("Model '{0}' is not supported; use model=linear")]
    Model(String),
    /// A missing number.
    #[error("io.cost.model has no {0}; add {0}=N, as the kernel writes it")]
    Missing(&'static str),
    /// An invalid number, or 0.
    #[error("{name}={value} is not valid; write a whole number above 0")]
    Number {
        /// Name of the number.
        name: String,
        /// Its value.
        value: String,
    },
}

impl Coefficients {
    /// Defaults of the kernel for a hard disk.
    pub const HDD: Self = Self::new([174_019_176, 41_708, 370, 178_075_866, 42_705, 378]);
    /// Defaults for an SSD with queue depth 1.
    pub const SSD_QD1: Self = Self::new([245_855_193, 61_575, 6_946, 141_365_009, 33_716, 26_796]);
    /// Defaults for an SSD.
    pub const SSD: Self = Self::new([488_636_629, 8_932, 8_518, 427_891_549, 28_755, 21_940]);
    /// Defaults for a fast SSD.
    pub const SSD_FAST: Self = Self::new([3_102_524_156, 724_816, 778_122, 1_742_780_862, 425_702, 443_193]);

    const fn new(numbers: [u64; 6]) -> Self {
        let [rbps, rseqiops, rrandiops, wbps, wseqiops, wrandiops] = numbers;
        Coefficients { rbps, rseqiops, rrandiops, wbps, wseqiops, wrandiops }
    }

    const fn numbers(&self) -> [u64; 6] {
        [self.rbps, self.rseqiops, self.rrandiops, self.wbps, self.wseqiops, self.wrandiops]
    }
}

impl fmt::Display for Coefficients {
    /// `ctrl=user model=linear rbps=...`, the part after the device's number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ctrl=user model=linear")?;
        NAMES.iter().zip(self.numbers()).try_for_each(|(name, number)| write!(f, " {name}={number}"))
    }
}

impl FromStr for Coefficients {
    type Err = LineError;

    /// Parses a line, with or without the device's number at its start.
    fn from_str(line: &str) -> Result<Self, LineError> {
        let mut numbers = [None; 6];
        for (index, word) in line.split_whitespace().enumerate() {
            let Some((name, value)) = word.split_once('=') else {
                let is_device =
                    |(major, minor): (&str, &str)| major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok();
                if index == 0 && word.split_once(':').is_some_and(is_device) {
                    continue;
                }
                return Err(LineError::Word(word.to_owned()));
            };
            match (name, NAMES.iter().position(|known| *known == name)) {
                ("ctrl", _) if ["auto", "user"].contains(&value) => {}
                ("model", _) if value == "linear" => {}
                ("model", _) => return Err(LineError::Model(value.to_owned())),
                (_, Some(place)) => {
                    let number = value.parse().ok().filter(|number| *number > 0);
                    let wrong = || LineError::Number { name: name.to_owned(), value: value.to_owned() };
                    numbers[place] = Some(number.ok_or_else(wrong)?);
                }
                _ => return Err(LineError::Word(word.to_owned())),
            }
        }
        let mut found = [0; 6];
        for (place, number) in numbers.into_iter().enumerate() {
            found[place] = number.ok_or(LineError::Missing(NAMES[place]))?;
        }
        Ok(Coefficients::new(found))
    }
}

/// Costs of one direction, in seconds.
#[derive(Debug, Clone, Copy)]
struct Costs {
    page: f64,
    follows: f64,
    elsewhere: f64,
}

impl Costs {
    fn new(bps: u64, seqiops: u64, randiops: u64) -> Self {
        let page = PAGE as f64 / bps as f64;
        let base = |iops: u64| (1.0 / iops as f64 - page).max(0.0);
        Costs { page, follows: base(seqiops), elsewhere: base(randiops) }
    }
}

/// A device that follows the model, one request at a time.
#[derive(Debug)]
pub struct Linear {
    reads: Costs,
    writes: Costs,
    /// End of the last request.
    cursor: u64,
    line: VecDeque<(Slot, u64)>,
    serving: Option<(Instant, Slot)>,
    busy: u64,
}

impl Linear {
    /// A device with these numbers.
    #[must_use]
    pub fn new(coefficients: &Coefficients) -> Self {
        let Coefficients { rbps, rseqiops, rrandiops, wbps, wseqiops, wrandiops } = *coefficients;
        let (reads, writes) = (Costs::new(rbps, rseqiops, rrandiops), Costs::new(wbps, wseqiops, wrandiops));
        Linear { reads, writes, cursor: 0, line: VecDeque::new(), serving: None, busy: 0 }
    }

    fn cost(&mut self, job: &Job) -> u64 {
        let costs = match job.kind {
            Kind::Read => self.reads,
            Kind::Write => self.writes,
            Kind::Flush | Kind::Discard | Kind::WriteZeroes => return 1,
        };
        let base = if job.offset.abs_diff(self.cursor) > NEAR { costs.elsewhere } else { costs.follows };
        self.cursor = job.offset + u64::from(job.length);
        nanos(base + costs.page * u64::from(job.length).div_ceil(PAGE) as f64).max(1)
    }

    fn start_next(&mut self, now: Instant) {
        self.serving = self.line.pop_front().map(|(slot, takes)| {
            self.busy += takes;
            (Instant::from_nanos(now.as_nanos() + takes), slot)
        });
    }
}

impl Model for Linear {
    fn submit(&mut self, now: Instant, job: Job) {
        let takes = self.cost(&job);
        self.line.push_back((job.slot, takes));
        if self.serving.is_none() {
            self.start_next(now);
        }
    }

    fn next(&self) -> Option<Instant> {
        self.serving.map(|(ends, _)| ends)
    }

    fn take(&mut self, now: Instant) -> Option<Slot> {
        let (ends, slot) = self.serving.filter(|(ends, _)| *ends <= now)?;
        self.start_next(ends);
        Some(slot)
    }

    fn jobs_held(&self) -> usize {
        self.line.len() + usize::from(self.serving.is_some())
    }

    fn busy_nanos(&self) -> u64 {
        self.busy
    }

    fn servers(&self) -> u32 {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_is_parsed() {
        let line = "8:16 ctrl=auto model=linear rbps=174019176 rseqiops=41708 rrandiops=370 wbps=178075866 \
                    wseqiops=42705 wrandiops=378\n";
        let read: Coefficients = line.parse().unwrap();
        assert_eq!(read, Coefficients::HDD);
        assert_eq!(read.to_string().parse(), Ok(read));
        assert!(read.to_string().starts_with("ctrl=user model=linear rbps=174019176 rseqiops=41708 "));
        let cases = [
            ("8:16 ctrl=user model=cubic", "Model 'cubic' is not supported"),
            ("ctrl=user model=linear rbps=1", "io.cost.model has no rseqiops; add rseqiops=N"),
            ("rbps=0", "rbps=0 is not valid; write a whole number above 0"),
            ("rbps=ten", "rbps=ten is not valid; write"),
            ("sda rbps=1", "'sda' is not part of io.cost.model"),
            ("vrate=100", "'vrate=100' is not part"),
        ];
        for (line, expected) in cases {
            let error = line.parse::<Coefficients>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    /// Requests per second for `length` bytes, `step` bytes apart.
    fn rate(coefficients: &Coefficients, kind: Kind, length: u32, step: u64) -> f64 {
        let mut device = Linear::new(coefficients);
        let count = 1000;
        for slot in 0..count {
            let offset = u64::from(slot) * step;
            device.submit(Instant::ZERO, Job { slot: Slot(slot), kind, offset, length });
        }
        let mut last = Instant::ZERO;
        while let Some(at) = device.next() {
            device.take(at).unwrap();
            last = at;
        }
        assert_eq!(device.busy_nanos(), last.as_nanos());
        f64::from(count) / last.since(Instant::ZERO).as_secs_f64()
    }

    #[test]
    fn the_device_reaches_its_parameters() {
        let model = Coefficients::SSD_FAST;
        let far = 1 << 30;
        let table = [
            (Kind::Read, 4096, 4096, model.rseqiops as f64),
            (Kind::Write, 4096, 4096, model.wseqiops as f64),
            // 443,193 requests of 4 KiB would exceed the write throughput, which is the bound.
            (Kind::Write, 4096, far, model.wbps as f64 / 4096.0),
            (Kind::Read, 4096, far, model.rrandiops.min(model.rbps / 4096) as f64),
            (Kind::Write, 1 << 20, 1 << 20, model.wbps as f64 / (1 << 20) as f64),
        ];
        for (kind, length, step, expected) in table {
            let off = rate(&model, kind, length, step) / expected - 1.0;
            assert!(off.abs() < 0.02, "{kind:?} of {length}: {off:.3}");
        }
        // 370 random, 41,708 sequential.
        assert!((rate(&Coefficients::HDD, Kind::Read, 4096, far) / 370.0 - 1.0).abs() < 0.01);
    }
}
