//! Look-up of queued requests by start address: a hash table of small rows, and an ordered set for overflows.
//!
//! With an ordered set alone, each insertion, removal and look-up waits for memory four times, which is more than
//! everything else that Flubber does with a request. A table waits once. But a guest chooses the addresses of its
//! requests. A guest that knows the hash could use addresses of one row only, and each look-up of that row would walk
//! over the queue. So a row has eight slots, and requests that find their row full go into the ordered set.
//!
//! For each slot one byte of the address' hash is stored separately, so the bytes of tens of thousands of requests stay
//! in the CPU caches. Nearly every look-up ends with the eight bytes of a row. The numbers of the requests are read
//! only where a byte matches.
//!
//! Bounds: look-up, insertion and removal cost one row and, while the ordered set is not empty, logarithmic time in its
//! length, for any addresses. The table grows by one row at a time (linear hashing), which redistributes one row. It
//! never shrinks, and nothing is allocated after it has reached its largest size. There are at least two rows for three
//! requests, so with random addresses at most one request in a hundred finds its row full.
//!
//! Of several requests at one address, the first inserted one is found, in the table or in the set.

use crate::elevator::{Forest, Tree};
use crate::steps::step;

/// Slots of a row, one for each byte of a word.
const ROW_SLOTS: usize = 8;
/// Slot of requests in the ordered set.
const OVERFLOW: u8 = ROW_SLOTS as u8;
/// A one in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

#[derive(Debug)]
pub(crate) struct Addresses {
    /// Marks of the slots by row, one byte each; 0 is free.
    marks: Vec<u64>,
    /// Requests by row and slot.
    numbers: Vec<[u32; ROW_SLOTS]>,
    /// Slot of each request, by its number.
    slots: Vec<u8>,
    keys: Vec<u128>,
    /// Requests that found their row full.
    forest: Forest<u128>,
    tree: Tree,
    overflow: usize,
    len: usize,
    /// Smallest number of the form 2^n - 1 that is not below the last row's number.
    mask: usize,
    entered: u64,
}

impl Default for Addresses {
    fn default() -> Self {
        Addresses {
            marks: vec![0; ROW_SLOTS],
            numbers: vec![[0; ROW_SLOTS]; ROW_SLOTS],
            slots: Vec::new(),
            keys: Vec::new(),
            forest: Forest::default(),
            tree: Tree::default(),
            overflow: 0,
            len: 0,
            mask: ROW_SLOTS - 1,
            entered: 0,
        }
    }
}

/// Sorted by address, then by insertion.
fn key(address: u64, order: u64) -> u128 {
    u128::from(address) << 64 | u128::from(order)
}

fn address(key: u128) -> u64 {
    (key >> 64) as u64
}

/// Addresses are multiples of a sector. Both halves of the product together depend on all of their digits.
fn hash(address: u64) -> u64 {
    let wide = u128::from(address) * 0x9E37_79B9_7F4A_7C15;
    (wide >> 64) as u64 ^ wide as u64
}

/// Byte that marks a slot, from digits that do not select the row; never 0.
fn mark(hash: u64) -> u64 {
    (hash >> 56).max(1)
}

/// Slots of a row whose mark is `mark`, by the highest bit of each byte. There may be false ones, but not before the
/// first true one.
fn marked(marks: u64, mark: u64) -> u64 {
    let differs = marks ^ (mark * ONES);
    differs.wrapping_sub(ONES) & !differs & (ONES << 7)
}

impl Addresses {
    /// Inserts the request `number`, which begins at `address`.
    pub(crate) fn insert(&mut self, number: u32, address: u64) {
        self.len += 1;
        if 2 * self.len > 3 * self.marks.len() {
            self.grow();
        }
        let key = key(address, self.entered);
        self.entered += 1;
        let index = number as usize;
        if index >= self.keys.len() {
            self.keys.resize(index + 1, 0);
            self.slots.resize(index + 1, OVERFLOW);
        }
        self.keys[index] = key;
        let hash = hash(address);
        if !self.put(number, hash) {
            self.slots[index] = OVERFLOW;
            self.forest.insert(&mut self.tree, key, number);
            self.overflow += 1;
        }
    }

    /// Inserts a request into its row; returns whether there was a free slot.
    fn put(&mut self, number: u32, hash: u64) -> bool {
        step();
        let row = self.row(hash);
        let marks = &mut self.marks[row];
        let free = marked(*marks, 0);
        if free == 0 {
            return false;
        }
        let slot = free.trailing_zeros() as usize / 8;
        *marks |= mark(hash) << (8 * slot);
        self.numbers[row][slot] = number;
        self.slots[number as usize] = slot as u8;
        true
    }

    /// Row of a hash: its last digits, with one digit less if that row does not exist yet.
    fn row(&self, hash: u64) -> usize {
        let row = hash as usize & self.mask;
        if row < self.marks.len() { row } else { row & self.mask >> 1 }
    }

    /// Adds a row, and moves some of the requests of one row to it.
    fn grow(&mut self) {
        step();
        let new = self.marks.len();
        let old = new - (1 << new.ilog2());
        let marks = std::mem::take(&mut self.marks[old]);
        let numbers = self.numbers[old];
        self.mask |= new;
        self.marks.push(0);
        self.numbers.push([0; ROW_SLOTS]);
        for slot in (0..ROW_SLOTS).filter(|slot| marks >> (8 * slot) & 0xFF > 0) {
            let number = numbers[slot];
            let fits = self.put(number, hash(address(self.keys[number as usize])));
            debug_assert!(fits, "each of the two rows gets at most eight");
        }
    }

    /// Removes the request `number`, which was inserted at `address`.
    pub(crate) fn remove(&mut self, number: u32, address: u64) {
        step();
        self.len -= 1;
        let slot = self.slots[number as usize];
        if slot == OVERFLOW {
            self.forest.remove(&mut self.tree, &self.keys[number as usize]);
            self.overflow -= 1;
        } else {
            let row = self.row(hash(address));
            self.marks[row] &= !(0xFF << (8 * slot));
        }
    }

    /// The first inserted request of those that begin at `at`.
    pub(crate) fn first(&self, at: u64) -> Option<u32> {
        step();
        let hash = hash(at);
        let row = self.row(hash);
        let same = marked(self.marks[row], mark(hash));
        if same == 0 && self.overflow == 0 { None } else { self.compare(at, row, same) }
    }

    /// The same, among these slots of a row and the ordered set.
    fn compare(&self, at: u64, row: usize, mut same: u64) -> Option<u32> {
        let mut found = None;
        if self.overflow > 0 {
            let [_, next] = self.forest.around(&self.tree, &key(at, 0));
            found = next.filter(|(key, _)| address(*key) == at);
        }
        while same != 0 {
            step();
            let slot = same.trailing_zeros() as usize / 8;
            same &= same - 1;
            let number = self.numbers[row][slot];
            let key = self.keys[number as usize];
            let taken = self.marks[row] >> (8 * slot) & 0xFF > 0;
            if taken && address(key) == at && found.is_none_or(|(first, _)| key < first) {
                found = Some((key, number));
            }
        }
        found.map(|(_, number)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::counted;

    /// Addresses of few rows in a table for thousands of requests.
    fn colliding() -> impl Iterator<Item = u64> {
        (0..).map(|page| page * 4096).filter(|address| hash(*address).is_multiple_of(1024))
    }

    #[test]
    fn the_first_request_at_an_address_is_found_after_insertions_and_removals() {
        let crowded: Vec<u64> = colliding().take(300).collect();
        for addresses in [(0..300).map(|page| page * 4096).collect(), crowded] {
            compare_with_a_list(&addresses);
        }
    }

    fn compare_with_a_list(addresses: &[u64]) {
        let mut table = Addresses::default();
        let mut model: Vec<(u32, u64)> = Vec::new();
        let mut free: Vec<u32> = (0..1000).rev().collect();
        let mut random = 1u64;
        for step in 0..20_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let grows = step / 2000 % 2 == 0;
            if (random >> 60 < if grows { 10 } else { 6 }) && !free.is_empty() {
                let (number, address) = (free.pop().expect("not empty"), addresses[(random >> 33) as usize % 300]);
                table.insert(number, address);
                model.push((number, address));
            } else if !model.is_empty() {
                let (number, address) = model.remove((random >> 33) as usize % model.len());
                table.remove(number, address);
                free.push(number);
            }
            let address = addresses[(random >> 20) as usize % 300];
            let first = model.iter().find(|(_, known)| *known == address).map(|(number, _)| *number);
            assert_eq!(table.first(address), first);
            assert_eq!(table.first(address + 1), None);
        }
        table.insert(1000, u64::MAX);
        assert_eq!(table.first(u64::MAX), Some(1000));
    }

    #[test]
    fn random_addresses_rarely_find_their_row_full() {
        let mut table = Addresses::default();
        let mut random = 1u64;
        for number in 0..50_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            table.insert(number, random >> 24 << 12);
            assert!(table.overflow <= 20 + table.len / 100, "{} of {}", table.overflow, table.len);
        }
    }

    #[test]
    fn a_guest_that_knew_the_hash_slowed_down_all_look_ups() {
        let mut table = Addresses::default();
        let addresses: Vec<u64> = colliding().take(8192).collect();
        let mut most = 0;
        for (number, address) in (0..).zip(&addresses) {
            most = most.max(counted(|| table.insert(number, *address)).1);
        }
        assert!(table.overflow > 8000, "{}", table.overflow);
        for (number, address) in (0..).zip(&addresses) {
            assert_eq!(table.first(*address), Some(number));
            most = most.max(counted(|| table.first(*address)).1);
            most = most.max(counted(|| table.remove(number, *address)).1);
        }
        assert!(most <= 40, "{most} steps for one of 8192");
    }
}
