//! The order by offset of an elevator's queue. A [`Tree`] holds it for many short queues, and a [`SweepSet`] for a few long
//! ones.

use crate::elevator::sweep_set::SweepSet;
use crate::elevator::tree::{Forest, Tree};

/// Numbered entries in order of their keys; all keys are different.
pub(crate) trait Sorted: Default {
    /// Memory that all sets of a scheduler use together.
    type Shared: core::fmt::Debug + Default;

    /// Inserts an entry. With `ASKS`, returns false if no other one has the same upper half of the key.
    fn insert<const ASKS: bool>(&mut self, shared: &mut Self::Shared, key: u128, link: u32) -> bool;

    /// Removes an entry.
    fn remove(&mut self, shared: &mut Self::Shared, key: u128, link: u32);

    /// Removes an entry from which a sweep goes on. Returns the entries before and after it.
    fn take(&mut self, shared: &mut Self::Shared, key: u128, link: u32) -> [Option<(u128, u32)>; 2];

    /// Calls `each` for entries that a sweep takes next; for each of them only once.
    fn each_next(&mut self, each: impl FnMut(u32));

    /// The entry with the smallest key.
    fn first(&self, shared: &Self::Shared) -> Option<(u128, u32)>;

    /// The last entry below `key`, and the first one at or above it.
    fn around(&self, shared: &Self::Shared, key: u128) -> [Option<(u128, u32)>; 2];
}

impl Sorted for Tree {
    type Shared = Forest<u128>;

    fn insert<const ASKS: bool>(&mut self, forest: &mut Forest<u128>, key: u128, link: u32) -> bool {
        forest.insert(self, key, link).is_some_and(|(known, _)| known >> 64 == key >> 64)
    }

    fn remove(&mut self, forest: &mut Forest<u128>, key: u128, _link: u32) {
        forest.remove(self, &key);
    }

    fn take(&mut self, forest: &mut Forest<u128>, key: u128, _link: u32) -> [Option<(u128, u32)>; 2] {
        forest.remove(self, &key)
    }

    /// Its queues are so short that their requests are in a cache.
    fn each_next(&mut self, _each: impl FnMut(u32)) {}

    fn first(&self, forest: &Forest<u128>) -> Option<(u128, u32)> {
        forest.first(self)
    }

    fn around(&self, forest: &Forest<u128>, key: u128) -> [Option<(u128, u32)>; 2] {
        forest.around(self, &key)
    }
}

impl Sorted for SweepSet {
    type Shared = ();

    #[inline]
    fn insert<const ASKS: bool>(&mut self, (): &mut (), key: u128, link: u32) -> bool {
        self.insert::<ASKS>(key, link)
    }

    fn remove(&mut self, (): &mut (), key: u128, link: u32) {
        self.remove(key, link);
    }

    #[inline]
    fn take(&mut self, (): &mut (), key: u128, link: u32) -> [Option<(u128, u32)>; 2] {
        self.take(key, link)
    }

    #[inline]
    fn each_next(&mut self, each: impl FnMut(u32)) {
        self.each_opened(each);
    }

    fn first(&self, (): &()) -> Option<(u128, u32)> {
        self.first()
    }

    fn around(&self, (): &(), key: u128) -> [Option<(u128, u32)>; 2] {
        self.around(key)
    }
}
