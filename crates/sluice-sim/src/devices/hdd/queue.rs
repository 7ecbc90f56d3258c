//! The commands that a drive holds, and which of them it reaches first.
//!
//! Each choice looks at all of them, so that it is most of what a simulated disk costs. Therefore what a choice looks at
//! lies apart, value by value, and is gone through without a branch, two or more commands at a time; and whether the cache
//! has all of a command is asked of all segments once, when the command comes or the segments have changed for it: only the
//! segment that grows, from which a command may also go on, is compared each time.

use sluice_sched::Kind;

use super::cache::{Cache, Moved};
use super::seek::Curve;
use super::writes::Writes;
use super::{Command, Motion};

/// To add and subtract it rounds to a whole number what is not larger than this.
const ROUND: f64 = 1.5 * (1u64 << 52) as f64;

/// Commands in no order; of each what is looked at in a choice.
#[derive(Debug, Default)]
pub(super) struct Queue {
    commands: Vec<Command>,
    place: Vec<f64>,
    angle: Vec<f64>,
    aged: Vec<f64>,
    /// The first byte of a read; of another command one that no segment has.
    offset: Vec<f64>,
    /// 0 if a segment has all of it, else 1.
    medium: Vec<f64>,
    cost: Vec<f64>,
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
        self.place.push(command.place);
        self.angle.push(command.angle);
        self.aged.push(command.aged);
        self.offset.push(if reads { command.job.offset as f64 } else { -1.0 });
        self.medium.push(if held { 0.0 } else { 1.0 });
        self.cost.push(0.0);
        self.commands.push(command);
    }

    /// Takes out the command that is reached first; one that needs no medium is reached at once.
    pub(super) fn take(&mut self, now: f64, head: f64, motion: &Motion, cache: &Cache, writes: &Writes) -> Command {
        let index = if self.len() == 1 { 0 } else { self.choose(now, head, motion, cache, writes) };
        for values in [&mut self.place, &mut self.angle, &mut self.aged, &mut self.offset, &mut self.medium] {
            values.swap_remove(index);
        }
        self.cost.pop();
        self.commands.swap_remove(index)
    }

    fn choose(&mut self, now: f64, head: f64, motion: &Motion, cache: &Cache, writes: &Writes) -> usize {
        self.seek(head, &motion.curve);
        self.turn(motion.turned(now), motion, cache.growing());
        if writes.is_on() {
            let at_once = self.commands.iter().map(|command| writes.at_once(&command.job));
            let costs = self.cost.iter_mut().zip(&self.aged).zip(at_once);
            costs.filter(|(_, at_once)| *at_once).for_each(|((cost, aged), _)| *cost = *aged);
        }
        let mut best = (f64::INFINITY, 0);
        for (index, cost) in self.cost.iter().enumerate() {
            if *cost < best.0 {
                best = (*cost, index);
            }
        }
        best.1
    }

    /// Costs become the seconds that the arm takes.
    fn seek(&mut self, head: f64, curve: &Curve) {
        let costs = self.cost.iter_mut().zip(&self.place);
        match curve {
            Curve::Formula { knee, near, root, far, slope } => costs.for_each(|(cost, place)| {
                let distance = (place - head).abs();
                let (short, long) = (near + root * distance.sqrt(), far + slope * distance);
                let seek = if distance <= *knee { short } else { long };
                *cost = if distance <= 0.0 { 0.0 } else { seek };
            }),
            Curve::Table(_) => costs.for_each(|(cost, place)| *cost = curve.time((place - head).abs())),
        }
    }

    /// Costs, which are seeks, become what there is to wait for: with the turn of the platter and the age.
    fn turn(&mut self, turned: f64, motion: &Motion, (start, end): (f64, f64)) {
        let count = self.cost.len();
        let (cost, angle, aged) = (&mut self.cost[..count], &self.angle[..count], &self.aged[..count]);
        let (offset, medium) = (&self.offset[..count], &self.medium[..count]);
        for index in 0..count {
            let seek = cost[index];
            let turns = angle[index] - turned - seek * motion.per_second;
            let part = turns - ((turns + ROUND) - ROUND);
            let part = if part < 0.0 { part + 1.0 } else { part };
            let growing = (start <= offset[index]) & (offset[index] <= end);
            let needed = if growing { 0.0 } else { medium[index] };
            cost[index] = aged[index] + needed * (seek + part * motion.turn);
        }
    }

    /// A new segment has begun.
    pub(super) fn segments_moved(&mut self, moved: Moved, cache: &Cache) {
        if let Some((start, end)) = moved.stays {
            for ((medium, offset), command) in self.medium.iter_mut().zip(&self.offset).zip(&self.commands) {
                let has = (start <= *offset) & (*offset + f64::from(command.job.length) <= end);
                *medium = if has { 0.0 } else { *medium };
            }
        }
        if moved.gone {
            self.look_again(cache);
        }
    }

    /// A segment is gone.
    pub(super) fn look_again(&mut self, cache: &Cache) {
        for (medium, command) in self.medium.iter_mut().zip(&self.commands).filter(|(medium, _)| **medium == 0.0) {
            let held = cache.has(command.job.offset, u64::from(command.job.length));
            *medium = if held { 0.0 } else { 1.0 };
        }
    }
}
