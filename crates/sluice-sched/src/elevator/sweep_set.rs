//! A sorted set for sweeps: its entries are in leaves, and a leaf is sorted when the sweep reaches it.
//!
//! A sweep needs order only where it is. An arrival somewhere else among tens of thousands of requests is appended to the
//! leaf of its range. It reads the index of the ranges, which is small enough for a cache, and then only writes to the leaf, so that
//! nothing waits for the leaf's memory. In a sorted block it would compare keys that are in no cache, and then move others
//! by a distance that depends on them, which the CPU cannot predict. The one leaf that is sorted is the *open* leaf. Its
//! entries are in descending order, so that a sweep takes the last one. When the sweep has emptied it, the next leaf
//! is opened.
//!
//! Bounds: a leaf has at most [`ROOM`] entries, so an insertion or a removal takes time in proportion to that, and to the
//! logarithm of the number of leaves. A leaf with at most [`SPARSE`] entries is merged with a neighbour, so the number of
//! leaves follows the number of entries. Nothing is allocated after the set has reached its largest size. The same input
//! produces the same shape.
//!
//! Example: 5, 9, 3 and 7 are inserted into an empty set. Its only leaf holds them in this order. 3 is taken, which opens
//! the leaf: it is now 9, 7, 5. Then 8 is inserted between 9 and 7, and 5 is taken from the end.

use core::cmp::Reverse;

use crate::elevator::tree::{Forest, Tree};
use crate::steps::step;

const NIL: u32 = u32::MAX;
/// Entries per leaf.
const ROOM: usize = 64;
/// A leaf with at most this number of entries is merged with a neighbour if both together have at most `JOINED`.
const SPARSE: usize = ROOM / 8;
const JOINED: usize = ROOM / 2;

/// An entry: its key, in two words, and its number.
#[derive(Debug, Clone, Copy, Default)]
struct Item {
    high: u64,
    low: u64,
    link: u32,
}

impl Item {
    fn new(key: u128, link: u32) -> Item {
        Item { high: (key >> 64) as u64, low: key as u64, link }
    }

    /// As one number, keys compare without a branch.
    fn key(&self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }

    fn pair(self) -> (u128, u32) {
        (self.key(), self.link)
    }
}

/// Entries of a range of keys.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Leaf {
    /// Hashes of the offsets (the upper half of a key), by position. Not maintained in the open leaf. Those behind the last entry are remains.
    marks: [u16; ROOM],
    items: [Item; ROOM],
}

/// The fields of a leaf that an insertion reads. They are stored apart from its items, so that those of all leaves fit into a cache.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Head {
    /// Entry with the largest key, if there is one.
    last: Item,
    /// Keys of the leaf are not below this; 0 for the first leaf.
    bound: (u64, u64),
    before: u32,
    behind: u32,
    len: u32,
}

/// Links of entries in order of their keys. All keys are different.
#[derive(Debug)]
pub(crate) struct SweepSet {
    /// Leaves by the lower bounds of their keys.
    index: Forest<u128>,
    bounds: Tree,
    heads: Vec<Head>,
    leaves: Vec<Leaf>,
    free: Vec<u32>,
    /// The first leaf; the only one that may be empty.
    first: u32,
    /// The sorted leaf.
    open: u32,
    /// Whether `open` has changed since [`SweepSet::each_opened`].
    opened: bool,
}

impl Default for SweepSet {
    fn default() -> Self {
        let (index, heads, leaves, free) = (Forest::default(), Vec::new(), Vec::new(), Vec::new());
        SweepSet { index, bounds: Tree::default(), heads, leaves, free, first: NIL, open: NIL, opened: false }
    }
}

fn mark(offset: u64) -> u16 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}

impl Leaf {
    const EMPTY: Leaf = Leaf { marks: [0; ROOM], items: [Item { high: 0, low: 0, link: NIL }; ROOM] };

    fn put(&mut self, place: usize, item: Item) {
        (self.items[place], self.marks[place]) = (item, mark(item.high));
    }

    /// Whether an entry may have this offset.
    fn may_have(&self, offset: u64) -> bool {
        let mark = mark(offset);
        self.marks.iter().fold(0, |any, known| any | u16::from(*known == mark)) != 0
    }
}

impl Head {
    fn bound(&self) -> u128 {
        u128::from(self.bound.0) << 64 | u128::from(self.bound.1)
    }

    fn last(&self) -> Option<Item> {
        (self.len > 0).then_some(self.last)
    }
}

impl SweepSet {
    fn head(&self, leaf: u32) -> &Head {
        step();
        &self.heads[leaf as usize]
    }

    fn head_mut(&mut self, leaf: u32) -> &mut Head {
        step();
        &mut self.heads[leaf as usize]
    }

    /// The entries of a leaf.
    fn items(&self, leaf: u32) -> &[Item] {
        step();
        &self.leaves[leaf as usize].items[..self.heads[leaf as usize].len as usize]
    }

    /// A leaf with its entries and room for more, and its head.
    fn both_mut(&mut self, leaf: u32) -> (&mut Leaf, &mut Head) {
        step();
        (&mut self.leaves[leaf as usize], &mut self.heads[leaf as usize])
    }

    /// The leaf of a key.
    fn find(&self, key: u128) -> Option<u32> {
        self.index.floor(&self.bounds, &key)
    }

    /// Adds an empty leaf after `before`.
    fn allocate(&mut self, before: u32, bound: u128) -> u32 {
        let behind = if before == NIL { self.first } else { self.head(before).behind };
        let bound_words = ((bound >> 64) as u64, bound as u64);
        let head = Head { last: Item::default(), bound: bound_words, before, behind, len: 0 };
        let leaf = match self.free.pop() {
            Some(leaf) => {
                self.heads[leaf as usize] = head;
                leaf
            }
            None => {
                self.heads.push(head);
                self.leaves.push(Leaf::EMPTY);
                self.heads.len() as u32 - 1
            }
        };
        match before {
            NIL => self.first = leaf,
            before => self.head_mut(before).behind = leaf,
        }
        if behind != NIL {
            self.head_mut(behind).before = leaf;
        }
        self.index.insert(&mut self.bounds, bound, leaf);
        leaf
    }

    /// Removes an empty leaf. The one before it gets its range; the first leaf stays.
    fn release(&mut self, leaf: u32) {
        let Head { before, behind, .. } = *self.head(leaf);
        self.open = if self.open == leaf { NIL } else { self.open };
        if before == NIL {
            return;
        }
        self.index.remove(&mut self.bounds, &self.heads[leaf as usize].bound());
        self.head_mut(before).behind = behind;
        if behind != NIL {
            self.head_mut(behind).before = before;
        }
        self.free.push(leaf);
    }

    /// Inserts an entry with a unique key. With `ASKS`, returns false if no other one has the same upper half of the key.
    #[inline]
    pub(crate) fn insert<const ASKS: bool>(&mut self, key: u128, link: u32) -> bool {
        let leaf = match self.find(key) {
            Some(leaf) => leaf,
            None => self.allocate(NIL, 0),
        };
        if leaf == self.open {
            return self.insert_sorted(key, link);
        }
        let item = Item::new(key, link);
        let (known, head) = self.both_mut(leaf);
        let near = ASKS && (known.may_have(item.high) || head.bound.0 == item.high);
        known.put(head.len as usize, item);
        if head.len == 0 || key > head.last.key() {
            head.last = item;
        }
        head.len += 1;
        if head.len as usize == ROOM {
            self.split(leaf, link);
        }
        near
    }

    /// Inserts an entry into the open leaf.
    fn insert_sorted(&mut self, key: u128, link: u32) -> bool {
        let item = Item::new(key, link);
        let (known, head) = self.both_mut(self.open);
        let len = head.len as usize;
        let place = known.items[..len].partition_point(|known| known.key() > key);
        known.items.copy_within(place..len, place + 1);
        known.items[place] = item;
        head.len += 1;
        head.last = known.items[0];
        let same = |place: usize| known.items[place].high == item.high;
        let near = place < len && same(place + 1) || place > 0 && same(place - 1) || head.bound.0 == item.high;
        if head.len as usize == ROOM {
            self.split_open(place == 0);
        }
        near
    }

    /// Splits a full leaf whose last entry was inserted last. If that is the last of all, it alone moves to the new leaf, so
    /// sequential insertions fill their leaves.
    fn split(&mut self, leaf: u32, inserted: u32) {
        let Head { last, behind, .. } = *self.head(leaf);
        let alone = behind == NIL && last.link == inserted;
        let (known, _) = self.both_mut(leaf);
        let keep = if alone { ROOM - 1 } else { ROOM / 2 };
        if !alone {
            known.items.select_nth_unstable_by_key(keep, Item::key);
        }
        let moved = known.items;
        let right = self.allocate(leaf, moved[keep].key());
        let (new, head) = self.both_mut(right);
        (0..).zip(&moved[keep..]).for_each(|(place, item)| new.put(place, *item));
        (head.len, head.last) = ((ROOM - keep) as u32, last);
        let (known, head) = self.both_mut(leaf);
        (0..).zip(&moved[..keep]).for_each(|(place, item)| known.put(place, *item));
        let largest = moved[..keep].iter().max_by_key(|item| item.key()).expect("a half is not empty");
        (head.len, head.last) = (keep as u32, *largest);
    }

    /// Splits the full open leaf; the part that a sweep reaches next stays open.
    fn split_open(&mut self, inserted_last: bool) {
        let open = self.open;
        let alone = inserted_last && self.head(open).behind == NIL;
        let count = if alone { 1 } else { ROOM / 2 };
        let moved = self.leaves[open as usize].items;
        let right = self.allocate(open, moved[count - 1].key());
        let (new, head) = self.both_mut(right);
        (0..).zip(&moved[..count]).for_each(|(place, item)| new.put(place, *item));
        (head.len, head.last) = (count as u32, moved[0]);
        let (known, head) = self.both_mut(open);
        known.items.copy_within(count.., 0);
        (head.len, head.last) = ((ROOM - count) as u32, moved[count]);
    }

    /// Makes the leaf of a key the sorted one.
    fn open(&mut self, key: u128) -> u32 {
        let leaf = self.find(key).expect("the key is in the set");
        if leaf == self.open {
            return leaf;
        }
        self.close();
        // The leaf may have been merged with the one that was closed.
        let leaf = self.find(key).expect("the key is in the set");
        self.sort(leaf);
        leaf
    }

    fn sort(&mut self, leaf: u32) {
        let (known, head) = self.both_mut(leaf);
        known.items[..head.len as usize].sort_unstable_by_key(|item| Reverse(item.key()));
        (self.open, self.opened) = (leaf, true);
    }

    /// Ends the order of the open leaf.
    fn close(&mut self) {
        let leaf = core::mem::replace(&mut self.open, NIL);
        if leaf == NIL {
            return;
        }
        let (known, head) = self.both_mut(leaf);
        (0..head.len as usize).for_each(|place| known.marks[place] = mark(known.items[place].high));
        self.merge_if_sparse(leaf);
    }

    /// Merges a leaf that is not open with a neighbour, if it has few entries.
    fn merge_if_sparse(&mut self, leaf: u32) {
        let Head { before, behind, len, .. } = *self.head(leaf);
        if len == 0 {
            return self.release(leaf);
        }
        let fits = |other: u32| other != NIL && other != self.open && (self.head(other).len + len) as usize <= JOINED;
        if len as usize <= SPARSE && fits(before) {
            self.join(before, leaf);
        } else if len as usize <= SPARSE && fits(behind) {
            self.join(leaf, behind);
        }
    }

    /// Moves the entries of `right` into its left neighbour.
    fn join(&mut self, left: u32, right: u32) {
        let (Leaf { items, .. }, Head { last, len, .. }) = (self.leaves[right as usize], *self.head(right));
        let (known, head) = self.both_mut(left);
        for item in &items[..len as usize] {
            known.put(head.len as usize, *item);
            head.len += 1;
        }
        head.last = last;
        self.release(right);
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, key: u128, link: u32) {
        let leaf = self.find(key).expect("the key is in the set");
        let place = self.items(leaf).iter().position(|item| item.link == link).expect("it is in the set");
        let open = self.open == leaf;
        let (known, head) = self.both_mut(leaf);
        let left = head.len as usize - 1;
        head.len -= 1;
        if open {
            known.items.copy_within(place + 1..=left, place);
            head.last = known.items[0];
        } else {
            (known.items[place], known.marks[place]) = (known.items[left], known.marks[left]);
            if head.last.link == link {
                let largest = known.items[..left].iter().max_by_key(|item| item.key());
                head.last = largest.copied().unwrap_or_default();
            }
        }
        if left == 0 {
            self.release(leaf);
        } else if !open {
            self.merge_if_sparse(leaf);
        }
    }

    /// Removes an entry, and opens its leaf. Returns the entries before and after it.
    #[inline]
    pub(crate) fn take(&mut self, key: u128, link: u32) -> [Option<(u128, u32)>; 2] {
        let last = if self.open == NIL { None } else { self.items(self.open).last() };
        let leaf = if last.is_some_and(|last| last.link == link) { self.open } else { self.open(key) };
        let (known, head) = self.both_mut(leaf);
        let left = head.len as usize - 1;
        let items = &mut known.items[..=left];
        let place = if items[left].link == link { left } else { items.partition_point(|item| item.key() > key) };
        assert!(items.get(place).is_some_and(|item| item.link == link), "it is in the set");
        items.copy_within(place + 1.., place);
        (head.len, head.last) = (left as u32, items[0]);
        let after = place.checked_sub(1).map(|after| items[after]);
        let before = items[..left].get(place).copied();
        let Head { before: left_leaf, behind, .. } = *head;
        let before = before.or_else(|| (left_leaf != NIL).then(|| self.head(left_leaf).last()).flatten());
        if left == 0 {
            self.release(leaf);
            if behind != NIL {
                self.sort(behind);
            }
        }
        let after = after.or_else(|| (behind != NIL).then(|| self.smallest(behind)).flatten());
        [before, after].map(|found| found.map(Item::pair))
    }

    /// Calls `each` for the entries of the open leaf, if it was opened since the last call.
    #[inline]
    pub(crate) fn each_opened(&mut self, each: impl FnMut(u32)) {
        if core::mem::take(&mut self.opened) && self.open != NIL {
            self.items(self.open).iter().map(|item| item.link).for_each(each);
        }
    }

    /// The smallest entry of a leaf.
    fn smallest(&self, leaf: u32) -> Option<Item> {
        let items = self.items(leaf);
        let found = if leaf == self.open { items.last() } else { items.iter().min_by_key(|item| item.key()) };
        found.copied()
    }

    /// The entry with the smallest key.
    pub(crate) fn first(&self) -> Option<(u128, u32)> {
        if self.first == NIL {
            return None;
        }
        let behind = self.head(self.first).behind;
        let found = self.smallest(self.first).or_else(|| (behind != NIL).then(|| self.smallest(behind)).flatten());
        found.map(Item::pair)
    }

    /// The last entry below `key`, and the first one at or above it.
    pub(crate) fn around(&self, key: u128) -> [Option<(u128, u32)>; 2] {
        let Some(leaf) = self.find(key) else { return [None; 2] };
        let items = self.items(leaf).iter();
        let below = items.clone().filter(|item| item.key() < key).max_by_key(|item| item.key()).copied();
        let above = items.filter(|item| item.key() >= key).min_by_key(|item| item.key()).copied();
        let Head { before, behind, .. } = *self.head(leaf);
        let below = below.or_else(|| (before != NIL).then(|| self.head(before).last()).flatten());
        let above = above.or_else(|| (behind != NIL).then(|| self.smallest(behind)).flatten());
        [below, above].map(|found| found.map(Item::pair))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    impl SweepSet {
        /// Checks the invariants of all leaves; returns their number.
        fn check(&self, entries: usize) -> usize {
            let (mut leaf, mut before, mut least, mut count, mut found) = (self.first, NIL, 0, 0, 0);
            while leaf != NIL {
                let head = *self.head(leaf);
                let keys: Vec<u128> = self.items(leaf).iter().map(Item::key).collect();
                let to = if head.behind == NIL { u128::MAX } else { self.head(head.behind).bound() };
                assert!(head.bound() == least && head.before == before && (!keys.is_empty() || before == NIL));
                assert!(keys.len() < ROOM && keys.iter().all(|key| (least..to).contains(key)));
                assert_eq!(head.last().map(|last| last.key()), keys.iter().max().copied());
                if leaf == self.open {
                    assert!(keys.is_sorted_by(|a, b| a > b));
                } else {
                    let known = &self.leaves[leaf as usize];
                    assert!((0..keys.len()).all(|place| known.marks[place] == mark(known.items[place].high)));
                }
                (count, found) = (count + 1, found + keys.len());
                (before, leaf, least) = (leaf, head.behind, to);
            }
            assert_eq!((found, count + self.free.len()), (entries, self.leaves.len()));
            count
        }
    }

    fn next(random: &mut u64) -> u64 {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *random >> 16
    }

    type Model = BTreeMap<u128, u32>;

    fn owned(found: Option<(&u128, &u32)>) -> Option<(u128, u32)> {
        found.map(|(key, link)| (*key, *link))
    }

    fn neighbours(model: &Model, key: u128) -> [Option<(u128, u32)>; 2] {
        [owned(model.range(..key).next_back()), owned(model.range(key..).next())]
    }

    /// Whether an insertion must report another entry with the same upper half.
    fn has_same(model: &Model, key: u128) -> bool {
        let from = key >> 64 << 64;
        model.range(from..=from | u128::from(u64::MAX)).next().is_some()
    }

    #[test]
    fn it_is_a_sorted_set() {
        // The number of offsets: all alike, few, and many.
        for offsets in [1, 40, 1 << 40] {
            let (mut set, mut model, mut random) = (SweepSet::default(), Model::new(), offsets);
            let (mut sweep, mut unasked) = (0, 0);
            for step in 0..40_000u32 {
                // The set grows to some thousand entries and shrinks to none, several times.
                let grows = step / 4_000 % 2 == 0;
                let key = u128::from(next(&mut random) % offsets) << 64 | u128::from(step);
                let what = next(&mut random) % 16;
                let from = if what.is_multiple_of(4) { key } else { sweep };
                let near = owned(model.range(from..).next().or_else(|| model.iter().next()));
                match near {
                    Some((near, link)) if what < if grows { 5 } else { 13 } => {
                        model.remove(&near);
                        if what == 4 {
                            set.remove(near, link);
                        } else {
                            let around = set.take(near, link);
                            assert_eq!(around, neighbours(&model, near));
                            sweep = around[1].map_or(0, |(key, _)| key);
                        }
                    }
                    _ => {
                        let same = has_same(&model, key);
                        let said = set.insert::<true>(key, step);
                        assert!(said || !same, "step {step}");
                        unasked += u32::from(said && !same);
                        model.insert(key, step);
                    }
                }
                let mut fetched = Vec::new();
                set.each_opened(|link| fetched.push(link));
                assert!(fetched.iter().all(|link| model.values().any(|known| known == link)));
                assert_eq!(set.first(), owned(model.first_key_value()));
                assert_eq!(set.around(key), neighbours(&model, key));
                if step % 100 == 0 {
                    let leaves = set.check(model.len());
                    assert!(leaves <= 3 + 2 * model.len() / SPARSE, "{leaves} leaves for {} entries", model.len());
                }
            }
            assert!(unasked < 100 || offsets < 100, "{unasked} insertions asked for a search that found nothing");
        }
    }

    #[test]
    fn sequential_insertions_fill_their_leaves_and_a_sweep_empties_them() {
        let mut set = SweepSet::default();
        for link in 0..65_536 {
            set.insert::<true>(u128::from(link + 1) << 64, link);
        }
        let full = ROOM - 1;
        assert_eq!(set.check(65_536), 65_536_usize.div_ceil(full));
        let mut opened = 0;
        for link in 0..65_536u32 {
            let [before, after] = set.take(u128::from(link + 1) << 64, link);
            assert_eq!(before, None);
            assert_eq!(after.map(|(_, link)| link), (link < 65_535).then_some(link + 1));
            set.each_opened(|_| opened += 1);
        }
        assert_eq!((set.check(0), opened), (1, 65_535), "the first one is taken by the step that opens its leaf");
    }

    #[test]
    fn sparse_leaves_are_merged() {
        let mut set = SweepSet::default();
        (0..65_536).for_each(|link| {
            set.insert::<true>(u128::from(link) << 64, link);
        });
        for link in (0..65_536u32).filter(|link| !link.is_multiple_of(64)) {
            set.remove(u128::from(link) << 64, link);
        }
        let leaves = set.check(1024);
        assert!(leaves <= 1024 / SPARSE, "{leaves} for 1024 entries");
    }
}
