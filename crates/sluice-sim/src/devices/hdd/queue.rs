//! The commands that a drive holds, and which of them it reaches first.
//!
//! Each choice looks at all of them, so that it is most of what a simulated disk costs. Therefore it looks twice: first at
//! what each command takes at least, in numbers of half the precision, which lie apart, value by value, and are gone through
//! without a branch, four or more commands at a time; and then, in full precision, at those alone that could be the first by
//! that. Half the precision is off by some microseconds where commands differ by some hundred, so that one or two are left.
//! The choice is that of full precision, always.
//!
//! Whether the cache has all of a command is asked of all segments once, when the command comes or the segments have changed
//! for it: only the segment that grows, from which a command may also go on, is compared each time.

use sluice_sched::Kind;

use super::cache::{Cache, Moved};
use super::seek::Curve;
use super::writes::Writes;
use super::{Command, Motion};

/// To add and subtract it rounds to a whole number what is not larger than this.
const ROUND: f64 = 1.5 * (1u64 << 52) as f64;
const ROUND_HALF: f32 = 1.5 * (1u32 << 23) as f32;
/// So far apart, as a part of the stroke, half the precision still tells two places apart, and their distance's root.
const APART: f32 = 1e-6;
/// Values that are looked at together.
const LANES: usize = 8;
/// Ages are counted from a time that is so many seconds of them ago at most.
const EPOCH: f64 = 1.0;

/// Commands in no order; of each what is looked at in a choice.
#[derive(Debug, Default)]
pub(super) struct Queue {
    commands: Vec<Command>,
    /// The first byte of a read; of another command one that no segment has.
    offset: Vec<f64>,
    /// 0 if a segment has all of it, else 1.
    medium: Vec<f32>,
    position: Vec<f32>,
    angle: Vec<f32>,
    aged: Vec<f32>,
    begin: Vec<f32>,
    /// What it takes at least.
    least: Vec<f32>,
    /// From when ages are counted.
    epoch: f64,
}

/// What a choice depends on beside the commands.
struct ChoiceContext<'a> {
    head: f64,
    turned: f64,
    motion: &'a Motion,
    /// From where to where the segment goes that grows.
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

    /// Takes out the command that is reached first; one that needs no medium is reached at once.
    pub(super) fn take(&mut self, now: f64, head: f64, motion: &Motion, cache: &Cache, writes: &Writes) -> Command {
        let context = ChoiceContext { head, turned: motion.turned(now), motion, growing: cache.growing(), writes };
        let index = if self.len() == 1 { 0 } else { self.choose(&context) };
        debug_assert_eq!(index, self.first_of(0..self.len(), &context).1, "full precision chooses otherwise");
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
        // What could be anything in half the precision may have been the least, and come out as more.
        let bound = (best.0 - self.epoch) as f32 + 2.0 * off;
        if bound <= least + 2.0 * off { best.1 } else { self.first_of(self.up_to(bound), context).1 }
    }

    /// Those that take so much at least or less, in order.
    fn up_to(&self, bound: f32) -> impl Iterator<Item = usize> {
        let chunks = self.least.chunks(LANES).enumerate();
        let some = chunks.filter(move |(_, costs)| costs.iter().fold(false, |some, cost| some | (*cost <= bound)));
        some.flat_map(move |(chunk, costs)| {
            let here = costs.iter().enumerate().filter(move |(_, cost)| **cost <= bound);
            here.map(move |(index, _)| chunk * LANES + index)
        })
    }

    /// What the first of these takes, and which it is; the one before of two alike.
    fn first_of(&self, indices: impl Iterator<Item = usize>, context: &ChoiceContext<'_>) -> (f64, usize) {
        let costs = indices.map(|index| (self.cost(index, context), index));
        costs.fold((f64::INFINITY, 0), |best, cost| if cost.0 < best.0 { cost } else { best })
    }

    /// Seconds until a command is reached, with its age.
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

    /// Finds what each command takes at least; by how much that may be wrong.
    fn bound(&mut self, context: &ChoiceContext<'_>) -> f32 {
        let Curve::Formula { knee, near, root, far, slope } = context.motion.curve else { return f32::INFINITY };
        let off = Off::of(root, slope, context.motion);
        let [head, turned, turn, per_second] =
            [context.head, context.turned, context.motion.turn, context.motion.per_second].map(|value| value as f32);
        let [knee, near, root, far, slope] = [knee, near, root, far, slope].map(|value| value as f32);
        let past = 1.0 - off.turns;
        // Wider by what half the precision leaves open of so many bytes.
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
            // It may be just past it, or just before.
            let part = if part > past { 0.0 } else { part };
            let needed = if (begin - middle).abs() <= half { 0.0 } else { medium };
            let needed = if seek > 0.0 { needed } else { 0.0 };
            least[index] = aged[index] + needed * (seek + part * turn);
        }
        off.seconds
    }

    /// Ages stay numbers that half the precision holds.
    fn keep_epoch(&mut self) {
        let latest = self.commands[self.commands.len() - 1].aged;
        if latest - self.epoch > EPOCH {
            self.epoch = latest;
            for (aged, command) in self.aged.iter_mut().zip(&self.commands) {
                *aged = (command.aged - latest) as f32;
            }
        }
    }

    /// A new segment has begun.
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

    /// A segment is gone.
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

/// The least of these, side by side.
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

/// By how much half the precision may be wrong.
struct Off {
    /// Of a turn of the platter.
    turns: f32,
    /// In all, in seconds.
    seconds: f32,
}

impl Off {
    /// A place is off by 6e-8 of the stroke, a distance by twice as much, and the root of one of [`APART`] or more by 6e-5.
    fn of(root: f64, slope: f64, motion: &Motion) -> Self {
        let seek = root * 1e-4 + (root + slope) * 5e-7 + 1e-7;
        let turns = seek * motion.per_second + 5e-6;
        Off { turns: turns as f32, seconds: (seek + turns * motion.turn + 1e-6) as f32 }
    }
}
