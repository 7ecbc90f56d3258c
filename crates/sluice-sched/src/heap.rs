//! A priority queue of owners whose keys change: an indexed 4-ary heap.
//!
//! `std::collections::BinaryHeap` can neither change nor remove an entry that is not at the top, and every dispatch
//! moves an owner in two orders at once. Four children a node halve the depth and fit two cache lines.

const ABSENT: u32 = u32::MAX;
const ARITY: usize = 4;

/// Smallest key first; an owner is in it at most once. Every change costs O(log n).
#[derive(Debug)]
pub struct IndexedHeap<K> {
    entries: Vec<(K, u32)>,
    places: Vec<u32>,
}

impl<K> Default for IndexedHeap<K> {
    fn default() -> Self {
        IndexedHeap { entries: Vec::new(), places: Vec::new() }
    }
}

impl<K: Ord + Copy> IndexedHeap<K> {
    /// The smallest key and its owner.
    #[must_use]
    pub fn peek(&self) -> Option<(K, u32)> {
        self.entries.first().copied()
    }

    /// How many owners are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nobody is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The key of `owner`, if it is in.
    #[must_use]
    pub fn get(&self, owner: u32) -> Option<K> {
        match self.places.get(owner as usize) {
            Some(&place) if place != ABSENT => Some(self.entries[place as usize].0),
            _ => None,
        }
    }

    /// Puts `owner` in with `key`, or changes its key.
    pub fn set(&mut self, owner: u32, key: K) {
        if owner as usize >= self.places.len() {
            self.places.resize(owner as usize + 1, ABSENT);
        }
        let place = self.places[owner as usize];
        if place == ABSENT {
            self.entries.push((key, owner));
            self.sift_up(self.entries.len() - 1);
            return;
        }
        let place = place as usize;
        let rises = key < self.entries[place].0;
        self.entries[place].0 = key;
        if rises {
            self.sift_up(place);
        } else {
            self.sift_down(place);
        }
    }

    /// Takes `owner` out, if it is in.
    pub fn remove(&mut self, owner: u32) {
        let Some(&place) = self.places.get(owner as usize) else { return };
        if place == ABSENT {
            return;
        }
        self.places[owner as usize] = ABSENT;
        let place = place as usize;
        let last = self.entries.pop().expect("an owner with a place has an entry");
        if place < self.entries.len() {
            let rises = last.0 < self.entries[place].0;
            self.entries[place] = last;
            self.places[last.1 as usize] = place as u32;
            if rises {
                self.sift_up(place);
            } else {
                self.sift_down(place);
            }
        }
    }

    /// Changes every key by a function that keeps their order.
    pub fn map_keys(&mut self, mut change: impl FnMut(K) -> K) {
        for (key, _) in &mut self.entries {
            *key = change(*key);
        }
    }

    fn sift_up(&mut self, mut place: usize) {
        let moving = self.entries[place];
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.entries[parent].0 <= moving.0 {
                break;
            }
            self.put(place, self.entries[parent]);
            place = parent;
        }
        self.put(place, moving);
    }

    fn sift_down(&mut self, mut place: usize) {
        let moving = self.entries[place];
        loop {
            let first = place * ARITY + 1;
            let last = (first + ARITY).min(self.entries.len());
            let Some(smallest) = (first..last).min_by_key(|child| self.entries[*child].0) else { break };
            if moving.0 <= self.entries[smallest].0 {
                break;
            }
            self.put(place, self.entries[smallest]);
            place = smallest;
        }
        self.put(place, moving);
    }

    fn put(&mut self, place: usize, entry: (K, u32)) {
        self.places[entry.1 as usize] = place as u32;
        self.entries[place] = entry;
    }
}
