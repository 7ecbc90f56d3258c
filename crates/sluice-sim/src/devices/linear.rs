//! The linear model of Linux' iocost: what a request costs by six numbers, as a device, and as the line that the kernel reads
//! and writes in `io.cost.model`.
//!
//! A page of 4 KiB costs `4096 / bps`; a request costs a base beside its pages, `1 / iops` less the page that such a request
//! has, of which there is one for requests that follow and one for others: those that begin more than 16 MiB from where the
//! last one ended. Reads and writes have numbers of their own. Flushes and discards cost nothing.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use sluice_sched::gate::Slot;
use sluice_sched::{Instant, Kind};

use super::{Job, Model, nanos};

const PAGE: u64 = 4096;
/// Further from where the last request ended it is another place.
const NEAR: u64 = 16 << 20;

/// The six numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coefficients {
    /// Bytes per second that are read in order.
    pub rbps: u64,
    /// Reads of 4 KiB per second, in order.
    pub rseqiops: u64,
    /// Anywhere.
    pub rrandiops: u64,
    /// Bytes per second that are written in order.
    pub wbps: u64,
    /// Writes of 4 KiB per second, in order.
    pub wseqiops: u64,
    /// Anywhere.
    pub wrandiops: u64,
}

/// Their names in the line, in its order.
const NAMES: [&str; 6] = ["rbps", "rseqiops", "rrandiops", "wbps", "wseqiops", "wrandiops"];

/// Why a line is none of `io.cost.model`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// A word that means nothing there.
    #[error(
        "'{0}' is not part of io.cost.model; expected '8:16 ctrl=user model=linear rbps=N rseqiops=N rrandiops=N \
         wbps=N wseqiops=N wrandiops=N'"
    )]
    Word(String),
    /// Not the linear one.
    #[error("Model '{0}' is not supported; use model=linear")]
    Model(String),
    /// A number that is left out.
    #[error("io.cost.model has no {0}; add {0}=N, as the kernel writes it")]
    Missing(&'static str),
    /// A number that is none, or 0.
    #[error("{name}={value} is not valid; write a whole number above 0")]
    Number {
        /// Which.
        name: String,
        /// What is there.
        value: String,
    },
}

impl Coefficients {
    /// The kernel's defaults for a hard disk.
    pub const HDD: Self = Self::new([174_019_176, 41_708, 370, 178_075_866, 42_705, 378]);
    /// For an SSD with a queue of one.
    pub const SSD_QD1: Self = Self::new([245_855_193, 61_575, 6_946, 141_365_009, 33_716, 26_796]);
    /// For an SSD.
    pub const SSD: Self = Self::new([488_636_629, 8_932, 8_518, 427_891_549, 28_755, 21_940]);
    /// For a fast SSD.
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
    /// `ctrl=user model=linear rbps=...`, what is written behind the device's number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ctrl=user model=linear")?;
        NAMES.iter().zip(self.numbers()).try_for_each(|(name, number)| write!(f, " {name}={number}"))
    }
}

impl FromStr for Coefficients {
    type Err = LineError;

    /// Reads a line, with the device's number at its start or without.
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

/// What one direction costs, in seconds.
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

/// A device that takes as long as the model says, one request after the other.
#[derive(Debug)]
pub struct Linear {
    reads: Costs,
    writes: Costs,
    /// Where the last request ended.
    cursor: u64,
    line: VecDeque<(Slot, u64)>,
    serving: Option<(Instant, Slot)>,
    busy: u64,
}

impl Linear {
    /// By these numbers.
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
    fn a_line_is_read_as_the_kernel_writes_it() {
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

    /// Requests per second of so many of a length, `step` bytes apart.
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
    fn the_device_does_what_its_numbers_say() {
        let model = Coefficients::SSD_FAST;
        let far = 1 << 30;
        let table = [
            (Kind::Read, 4096, 4096, model.rseqiops as f64),
            (Kind::Write, 4096, 4096, model.wseqiops as f64),
            // 443,193 of 4 KiB would be more bytes than it writes: those bound them.
            (Kind::Write, 4096, far, model.wbps as f64 / 4096.0),
            (Kind::Read, 4096, far, model.rrandiops.min(model.rbps / 4096) as f64),
            (Kind::Write, 1 << 20, 1 << 20, model.wbps as f64 / (1 << 20) as f64),
        ];
        for (kind, length, step, expected) in table {
            let off = rate(&model, kind, length, step) / expected - 1.0;
            assert!(off.abs() < 0.02, "{kind:?} of {length}: {off:.3}");
        }
        // 370 anywhere, 41,708 in order.
        assert!((rate(&Coefficients::HDD, Kind::Read, 4096, far) / 370.0 - 1.0).abs() < 0.01);
    }
}
