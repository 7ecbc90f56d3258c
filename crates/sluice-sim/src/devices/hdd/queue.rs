//! Internal queue of a drive, and the choice of the command that it can reach first.
//!
//! Each choice compares all commands, which is most of the cost of a simulated disk. So it has two passes. The first
//! one calculates lower bounds in single precision from parallel arrays, four or more commands at a time and without
//! branches. The second one uses double precision, only for commands that may be the first by their bounds. Single
//! precision is off by some microseconds, and commands differ by some hundred, so one or two are left. The result
//! always equals that of double precision.
//!
//! Whether the cache contains a command is determined once, when the command arrives or segments change. Only the
//! growing segment, which a command may also continue, is compared at each choice.

use sluice_sched::Kind;

use super::cache::{Cache, Moved};
use super::seek::Curve;
use super::writes::Writes;
use super::{Command, Motion};

/// Adding and subtracting it rounds values up to this size to a whole number.
const ROUND: f64 = 1.5 * (1u64 << 52) as f64;
const ROUND_HALF: f32 = 1.5 * (1u32 << 23) as f32;
/// Distance, as a part of the stroke, from which single precision distinguishes two positions and the root of their
/// distance.
const APART: f32 = 1e-6;
/// Values that are compared together.
const LANES: usize = 8;
/// Maximum age in seconds of the origin of ages.
const EPOCH: f64 = 1.0;

/// Commands in no order, as parallel arrays of the values that a choice needs.
#[derive(Debug, Default)]
pub(super) struct Queue {
    commands: Vec<Command>,
    /// First byte of a read; for another command, one that no segment has.
    offset: Vec<f64>,
    /// 0 if a segment contains the command, otherwise 1.
    medium: Vec<f32>,
    position: Vec<f32>,
    angle: Vec<f32>,
    aged: Vec<f32>,
    begin: Vec<f32>,
    /// Lower bound of its time.
    least: Vec<f32>,
    /// Origin of ages.
    epoch: f64,
}

/// Input of a choice other than the commands.
struct ChoiceContext<'a> {
    head: f64,
    turned: f64,
    motion: &'a Motion,
    /// Range of the growing segment.
    growing: (f64, f64),
    writes: &'a Writes,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.commands.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    pub(super) fn push(&mut self, command: Command, cache: &Cache) {
        let reads = command.job.kind == Kind::Read;
        let held = reads && cache.has(command.job.offset, u64::from(command.job.length));
        let offset = if reads { command.job.offset as f64 } else { -1.0 };
        self.offset.push(offset);
        self.medium.push(if held { 0.0 } else { 1.0 });
        self.position.push(command.position as f32);
        self.angle.push(command.angle as f32);
        self.aged.push((command.aged - self.epoch) as f32);
        self.begin.push(offset as f32);
        self.least.push(0.0);
        self.commands.push(command);
    }

    /// Removes the command that is reached first; one that needs no medium is reached immediately.
    pub(super) fn take(&mut self, now: f64, head: f64, motion: &Motion, cache: &Cache, writes: &Writes) -> Command {
        let context = ChoiceContext { head, turned: motion.turned(now), motion, growing: cache.growing(), writes };
        let index = if self.len() == 1 { 0 } else { self.choose(&context) };
        debug_assert_eq!(index, self.first_of(0..self.len(), &context).1, "double precision chooses another command");
        self.offset.swap_remove(index);
        for values in [&mut self.medium, &mut self.position, &mut self.angle, &mut self.aged, &mut self.begin] {
            values.swap_remove(index);
        }
        self.least.pop();
        self.commands.swap_remove(index)
    }

    fn choose(&mut self, context: &ChoiceContext<'_>) -> usize {
        let (Curve::Formula { .. }, false) = (&context.motion.curve, context.writes.is_on()) else {
            return self.first_of(0..self.len(), context).1;
        };
        self.keep_epoch();
        let off = self.bound(context);
        let least = least(&self.least);
        let best = self.first_of(self.up_to(least + 2.0 * off), context);
        // A command with an unusable bound may have been the smallest, and its exact time larger.
        let bound = (best.0 - self.epoch) as f32 + 2.0 * off;
        if bound <= least + 2.0 * off { best.1 } else { self.first_of(self.up_to(bound), context).1 }
    }

    /// Commands with a bound up to `bound`, in order.
    fn up_to(&self, bound: f32) -> impl Iterator<Item = usize> {
        let chunks = self.least.chunks(LANES).enumerate();
        let some = chunks.filter(move |(_, costs)| costs.iter().fold(false, |some, cost| some | (*cost <= bound)));
        some.flat_map(move |(chunk, costs)| {
            let here = costs.iter().enumerate().filter(move |(_, cost)| **cost <= bound);
            here.map(move |(index, _)| chunk * LANES + index)
        })
    }

    /// The smallest time among these, and its index; the earlier one of two equals.
    fn first_of(&self, indices: impl Iterator<Item = usize>, context: &ChoiceContext<'_>) -> (f64, usize) {
        let costs = indices.map(|index| (self.cost(index, context), index));
        costs.fold((f64::INFINITY, 0), |best, cost| if cost.0 < best.0 { cost } else { best })
    }

    /// Seconds until a command is reached, less its bonus.
    ///
    /// Example: at 7,200 rpm a command is 0.3 revolutions ahead, and the seek takes 4 ms or 0.48 revolutions. The sector has
    /// passed by then, and comes again after 0.82 revolutions, 6.8 ms: 10.8 ms in total.
    fn cost(&self, index: usize, context: &ChoiceContext<'_>) -> f64 {
        let (command, motion) = (&self.commands[index], context.motion);
        let (start, end) = context.growing;
        let growing = (start <= self.offset[index]) & (self.offset[index] <= end);
        let at_once = context.writes.is_on() && context.writes.at_once(&command.job);
        if growing || self.medium[index] == 0.0 || at_once {
            return command.aged;
        }
        let seek = motion.curve.time((command.position - context.head).abs());
        let turns = command.angle - context.turned - seek * motion.per_second;
        let part = turns - ((turns + ROUND) - ROUND);
        let part = if part < 0.0 { part + 1.0 } else { part };
        command.aged + (seek + part * motion.turn)
    }

    /// Calculates the lower bounds; returns their maximum error.
    fn bound(&mut self, context: &ChoiceContext<'_>) -> f32 {
        let Curve::Formula { knee, near, root, far, slope } = context.motion.curve else { return f32::INFINITY };
        let off = Off::of(root, slope, context.motion);
        let [head, turned, turn, per_second] =
            [context.head, context.turned, context.motion.turn, context.motion.per_second].map(|value| value as f32);
        let [knee, near, root, far, slope] = [knee, near, root, far, slope].map(|value| value as f32);
        let past = 1.0 - off.turns;
        // Wider by the error of single precision for this number of bytes.
        let (start, end) = context.growing;
        let (middle, half) = (((start + end) / 2.0) as f32, ((end - start) / 2.0 + end * 1e-6) as f32);
        for (least, position) in self.least.iter_mut().zip(&self.position) {
            let distance = (position - head).abs();
            let (short, long) = (near + root * distance.sqrt(), far + slope * distance);
            let seek = if distance <= knee { short } else { long };
            *least = if distance < APART { 0.0 } else { seek };
        }
        let count = self.least.len();
        let (least, angle, aged) = (&mut self.least[..count], &self.angle[..count], &self.aged[..count]);
        let (begin, medium) = (&self.begin[..count], &self.medium[..count]);
        for index in 0..count {
            let (seek, begin, medium) = (least[index], begin[index], medium[index]);
            let turns = angle[index] - turned - seek * per_second;
            let part = turns - ((turns + ROUND_HALF) - ROUND_HALF);
            let part = part + if part < 0.0 { 1.0 } else { 0.0 };
            // The angle may be just past, or just before.
            let part = if part > past { 0.0 } else { part };
            let needed = if (begin - middle).abs() <= half { 0.0 } else { medium };
            let needed = if seek > 0.0 { needed } else { 0.0 };
            least[index] = aged[index] + needed * (seek + part * turn);
        }
        off.seconds
    }

    /// Keeps ages within the range of single precision.
    fn keep_epoch(&mut self) {
        let latest = self.commands[self.commands.len() - 1].aged;
        if latest - self.epoch > EPOCH {
            self.epoch = latest;
            for (aged, command) in self.aged.iter_mut().zip(&self.commands) {
                *aged = (command.aged - latest) as f32;
            }
        }
    }

    /// Updates the queue after a new segment has started.
    pub(super) fn segments_moved(&mut self, moved: Moved, cache: &Cache) {
        if let Some((start, end)) = moved.stays {
            let inside = |offset: &f64| (start <= *offset) & (*offset < end);
            if self.offset.iter().fold(false, |some, offset| some | inside(offset)) {
                for ((medium, offset), command) in self.medium.iter_mut().zip(&self.offset).zip(&self.commands) {
                    let has = (start <= *offset) & (*offset + f64::from(command.job.length) <= end);
                    *medium = if has { 0.0 } else { *medium };
                }
            }
        }
        if moved.gone {
            self.refresh(cache);
        }
    }

    /// Updates the queue after a segment was evicted.
    pub(super) fn refresh(&mut self, cache: &Cache) {
        if !self.medium.iter().fold(false, |some, medium| some | (*medium == 0.0)) {
            return;
        }
        for (medium, command) in self.medium.iter_mut().zip(&self.commands).filter(|(medium, _)| **medium == 0.0) {
            let held = cache.has(command.job.offset, u64::from(command.job.length));
            *medium = if held { 0.0 } else { 1.0 };
        }
    }
}

/// The smallest of these values.
fn least(costs: &[f32]) -> f32 {
    let smaller = |a: f32, b: f32| if a < b { a } else { b };
    let (chunks, rest) = costs.as_chunks::<LANES>();
    let mut lanes = [f32::INFINITY; LANES];
    for chunk in chunks {
        for (lane, cost) in lanes.iter_mut().zip(chunk) {
            *lane = smaller(*cost, *lane);
        }
    }
    lanes.iter().chain(rest).fold(f32::INFINITY, |least, cost| smaller(*cost, least))
}

/// Maximum error of single precision.
struct Off {
    /// Of an angle, in revolutions.
    turns: f32,
    /// In total, in seconds.
    seconds: f32,
}

impl Off {
    /// A position is off by 6e-8 of the stroke, a distance by twice as much, and the root of one of at least [`APART`]
    /// by 6e-5.
    fn of(root: f64, slope: f64, motion: &Motion) -> Self {
        let seek = root * 1e-4 + (root + slope) * 5e-7 + 1e-7;
        let turns = seek * motion.per_second + 5e-6;
        Off { turns: turns as f32, seconds: (seek + turns * motion.turn + 1e-6) as f32 }
    }
}
