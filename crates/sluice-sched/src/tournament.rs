//! A priority queue of owners whose keys change: a tournament tree.
//!
//! Every dispatch moves an owner in two orders, usually the first owner, so the cost of changing the best key matters
//! most. In a heap this is a walk in which each step waits for a comparison and for memory, with branches that the CPU
//! mispredicts. Here an owner has a fixed position. Its group of four determines an entry of the next round, and so on
//! up to the final. The positions follow from the owner's number, so all groups are fetched concurrently, and the best
//! key of a group is found without a branch.
//!
//! Example, in groups of two: owners 0 to 3 have keys 7, 5, 6 and none. The second round has 5 (owner 1) and 6 (owner
//! 2), the final 5. Owner 1 changes to 9. The best of its group is 7 (owner 0), so the second round has 7 and 6, and
//! the final is 6.

use crate::request::RequestId;

/// Tag, oldest request and owner, from the most significant digit. As one number, keys compare without a branch, and
/// the final names the owner.
type Key = u128;

const OWNER_BITS: u32 = 20;
/// Digits of the request number that a key keeps, to break ties. Requests whose numbers differ by 17 trillion could
/// compare wrongly, which needs a tie at the moment when the counter passes a multiple of that.
const REQUEST_BITS: u32 = 64 - OWNER_BITS;
/// Key of an empty position: larger than all others.
const EMPTY: Key = Key::MAX;

const BITS: u32 = 2;
const GROUP: usize = 1 << BITS;
/// Rounds with the largest number of owners.
const ROUNDS_MAX: usize = OWNER_BITS as usize / BITS as usize;

/// The keys that compete for one entry of the next round; they fill a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Group([Key; GROUP]);

/// Owners by tag, ties broken by the older request. An owner, with a number below 2^20, is in it at most once. Every
/// change costs O(log n).
#[derive(Debug)]
pub struct Tournament {
    /// The final, its four groups, theirs, and so on to the first round, in which every owner has its position.
    groups: Vec<Group>,
    /// Index of the first group of the first round.
    first: usize,
    rounds: usize,
    best: Key,
}

impl Default for Tournament {
    fn default() -> Self {
        Tournament { groups: vec![Group([EMPTY; GROUP])], first: 0, rounds: 1, best: EMPTY }
    }
}

// rule: gate.tie-arrival
const fn key(tag: u64, head: RequestId, owner: u32) -> Key {
    (tag as Key) << 64 | (head.0 << OWNER_BITS) as Key | owner as Key
}

/// The digits of a request number that a key keeps.
#[must_use]
pub const fn key_digits(head: RequestId) -> u64 {
    head.0 & ((1 << REQUEST_BITS) - 1)
}

const fn tag(key: Key) -> u64 {
    (key >> 64) as u64
}

const fn owner(key: Key) -> u32 {
    key as u32 & ((1 << OWNER_BITS) - 1)
}

impl Group {
    #[inline]
    fn best(&self) -> Key {
        let [a, b, c, d] = self.0;
        a.min(b).min(c.min(d))
    }

    /// The best of the three other keys.
    #[inline(always)]
    fn best_beside(&self, place: usize) -> Key {
        let key = |flip: usize| self.0[(place ^ flip) % GROUP];
        key(1).min(key(2)).min(key(3))
    }
}

impl Tournament {
    /// The smallest tag, the kept digits of its request number, and the owner.
    #[inline]
    #[must_use]
    pub fn peek(&self) -> Option<(u64, u64, u32)> {
        let best = self.best;
        (best != EMPTY).then_some((tag(best), best as u64 >> OWNER_BITS, owner(best)))
    }

    /// Inserts `owner` with `tag` and its oldest request, or updates them.
    #[inline]
    pub fn set(&mut self, owner: u32, tag: u64, head: RequestId) {
        if self.first + (owner as usize >> BITS) >= self.groups.len() {
            self.grow(owner);
        }
        self.play(owner, key(tag, head, owner));
    }

    /// Removes `owner`, if it is present.
    #[inline]
    pub fn remove(&mut self, owner: u32) {
        let group = self.groups.get(self.first + (owner as usize >> BITS));
        if group.is_some_and(|group| group.0[owner as usize % GROUP] != EMPTY) {
            self.play(owner, EMPTY);
        }
    }

    /// Subtracts `by` from every tag; tags stop at 0. O(n log n).
    pub fn lower(&mut self, by: u64) {
        let all: Vec<Key> = self.groups[self.first..].iter().flat_map(|group| group.0).collect();
        for known in all.into_iter().filter(|key| *key != EMPTY) {
            let head = RequestId(known as u64 >> OWNER_BITS);
            self.play(owner(known), key(tag(known).saturating_sub(by), head, owner(known)));
        }
    }

    /// Updates all groups on the path of `owner`.
    fn play(&mut self, owner: u32, key: Key) {
        match self.rounds {
            1 => self.play_rounds::<1>(owner, key),
            2 => self.play_rounds::<2>(owner, key),
            3 => self.play_rounds::<3>(owner, key),
            4 => self.play_rounds::<4>(owner, key),
            5 => self.play_rounds::<5>(owner, key),
            6 => self.play_rounds::<6>(owner, key),
            7 => self.play_rounds::<7>(owner, key),
            8 => self.play_rounds::<8>(owner, key),
            9 => self.play_rounds::<9>(owner, key),
            _ => self.play_rounds::<ROUNDS_MAX>(owner, key),
        }
    }

    /// The same, with a known number of rounds. First the best of the other keys of each group on the path is found: these do not
    /// wait for each other. Then one comparison per round is left.
    #[inline(always)]
    fn play_rounds<const ROUNDS: usize>(&mut self, owner: u32, mut key: Key) {
        let mut path = [(0, 0); ROUNDS];
        let mut others = [EMPTY; ROUNDS];
        let (mut index, mut place) = (self.first + (owner as usize >> BITS), owner as usize % GROUP);
        for round in 0..ROUNDS {
            path[round] = (index, place);
            others[round] = self.groups[index].best_beside(place);
            place = index.wrapping_sub(1) % GROUP;
            index = index.wrapping_sub(1) / GROUP;
        }
        for round in 0..ROUNDS {
            let (index, place) = path[round];
            self.groups[index].0[place] = key;
            key = key.min(others[round]);
        }
        self.best = key;
    }

    /// Makes room for owners up to `owner`. Each round quadruples the room, and all groups are computed again.
    #[cold]
    fn grow(&mut self, owner: u32) {
        assert!(owner >> OWNER_BITS == 0, "the gate has at most 2^20 owners");
        let all: Vec<Key> = self.groups[self.first..].iter().flat_map(|group| group.0).collect();
        let mut round = self.groups.len() - self.first;
        while owner as usize >> BITS >= round {
            self.first += round;
            self.rounds += 1;
            round *= GROUP;
        }
        self.groups.clear();
        self.groups.resize(self.first + round, Group([EMPTY; GROUP]));
        for (group, keys) in self.groups[self.first..].iter_mut().zip(all.chunks(GROUP)) {
            group.0.copy_from_slice(keys);
        }
        for index in (1..self.groups.len()).rev() {
            self.groups[(index - 1) / GROUP].0[(index - 1) % GROUP] = self.groups[index].best();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_key_is_first_after_any_change() {
        let mut tournament = Tournament::default();
        let mut model = std::collections::BTreeMap::new();
        let mut random = 1u64;
        for step in 0..20_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // The numbers of owners grow, so every size occurs.
            let owner = (random >> 33) % (1 + step / 50);
            let tag = random >> 8 & 0xff;
            match random >> 61 {
                0 => {
                    tournament.remove(owner as u32);
                    model.remove(&owner);
                }
                1 if step % 100 == 0 => {
                    tournament.lower(16);
                    model.values_mut().for_each(|key: &mut (u64, u64)| key.0 = key.0.saturating_sub(16));
                }
                _ => {
                    tournament.set(owner as u32, tag, RequestId(step));
                    model.insert(owner, (tag, step));
                }
            }
            let best = model.iter().min_by_key(|(_, key)| **key).map(|(owner, key)| (key.0, key.1, *owner as u32));
            assert_eq!(tournament.peek(), best, "step {step}");
        }
        assert!(model.len() > 300);
    }
}
