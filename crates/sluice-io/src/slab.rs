//! Slabs: tables whose entries keep their index until they are removed.
//!
//! The kernel and the gate refer to an object by a 32-bit index, which is reused. Everything else uses an id: the index
//! and a generation that no other entry of this process ever had. The id of a removed entry finds nothing, even if its
//! index is in use again, and even after a restart of the device thread.
//!
//! Example: a session is entry 3, generation 7. It ends, and the next session becomes entry 3, generation 8. A message
//! to `{3, 7}` is stale and finds nothing.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};
use std::sync::atomic::{AtomicU64, Ordering};

/// Id of an entry of one kind of slab.
pub(crate) trait Id: Copy {
    fn new(index: u32, generation: u64) -> Self;
    fn index(self) -> u32;
    fn generation(self) -> u64;
}

/// Defines types of ids.
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) struct $name {
            index: u32,
            generation: u64,
        }

        impl $crate::slab::Id for $name {
            fn new(index: u32, generation: u64) -> Self {
                $name { index, generation }
            }

            fn index(self) -> u32 {
                self.index
            }

            fn generation(self) -> u64 {
                self.generation
            }
        }
    )*};
}

ids! {
    /// A VM on a device thread.
    VmId;
    /// A volume on a device thread. The gate's `VolumeId` identifies it within its VM.
    VolumeKey;
    /// A request of a client.
    IoId;
}

pub(crate) use ids;

/// Number of a frontend: its position in the list of frontends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrontendNumber(pub(crate) u8);

/// A client of any frontend: it sends requests, waits for room in the window of its VM, and gets replies. Only its
/// frontend knows its kind (an NBD connection, a virtqueue); other code only passes the reference on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientRef {
    pub(crate) frontend: FrontendNumber,
    index: u32,
    generation: u64,
}

impl ClientRef {
    pub(crate) fn new(frontend: FrontendNumber, id: impl Id) -> Self {
        ClientRef { frontend, index: id.index(), generation: id.generation() }
    }

    /// Returns the client's id in the table of its frontend.
    pub(crate) fn id<I: Id>(self) -> I {
        I::new(self.index, self.generation)
    }
}

/// Values by id.
#[derive(Debug)]
pub(crate) struct Slab<I, T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    next_generation: u64,
    ids: PhantomData<I>,
}

#[derive(Debug)]
struct Entry<T> {
    /// [`FREE`] if the entry is not in use.
    generation: u64,
    /// If the entry is free, what is left of the last value for reuse.
    value: Option<T>,
}

impl<T> Entry<T> {
    fn is_free(&self) -> bool {
        self.generation == FREE
    }
}

/// The generation of free entries, which no id has.
const FREE: u64 = u64::MAX;

/// Number of generations in a range. Each slab uses its own ranges, and takes a new one when a range is used up. At
/// 1,000,000 a second, 2^40 generations last for 12 days of a device thread.
const RANGE: u64 = 1 << 40;

fn next_range() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(RANGE, Ordering::Relaxed)
}

impl<I, T> Default for Slab<I, T> {
    fn default() -> Self {
        Slab { entries: Vec::new(), free: Vec::new(), next_generation: next_range(), ids: PhantomData }
    }
}

impl<I: Id, T> Slab<I, T> {
    /// Returns an entry for a new value.
    fn take_entry(&mut self) -> (I, &mut Entry<T>) {
        let generation = self.next_generation;
        self.next_generation += 1;
        if self.next_generation.is_multiple_of(RANGE) {
            self.next_generation = next_range();
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: FREE, value: None });
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[index as usize];
        entry.generation = generation;
        (I::new(index, generation), entry)
    }

    pub(crate) fn insert(&mut self, value: T) -> I {
        let (id, entry) = self.take_entry();
        entry.value = Some(value);
        id
    }

    /// Adds an entry with the value that `new` returns, which replaces in place what [`Slab::release`] left. This saves
    /// two moves of a large value.
    #[inline(always)]
    pub(crate) fn reuse(&mut self, new: impl FnOnce() -> T) -> (I, &mut T) {
        let (id, entry) = self.take_entry();
        match &mut entry.value {
            Some(value) => *value = new(),
            empty => *empty = Some(new()),
        }
        (id, entry.value.as_mut().expect("it was just set"))
    }

    /// # Panics
    /// If the id is stale.
    pub(crate) fn remove(&mut self, id: I) -> T {
        self.free_entry(id).value.take().expect("an entry in use has a value")
    }

    /// Removes an entry, but keeps its value for [`Slab::reuse`]. The caller drops what the value owns.
    ///
    /// # Panics
    /// If the id is stale.
    pub(crate) fn release(&mut self, id: I) -> &mut T {
        self.free_entry(id).value.as_mut().expect("an entry in use has a value")
    }

    fn free_entry(&mut self, id: I) -> &mut Entry<T> {
        let entry = &mut self.entries[id.index() as usize];
        assert!(entry.generation == id.generation(), "an id in use has a value");
        entry.generation = FREE;
        self.free.push(id.index());
        entry
    }

    pub(crate) fn get(&self, id: I) -> Option<&T> {
        let entry = self.entries.get(id.index() as usize)?;
        if entry.generation == id.generation() { entry.value.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, id: I) -> Option<&mut T> {
        let entry = self.entries.get_mut(id.index() as usize)?;
        if entry.generation == id.generation() { entry.value.as_mut() } else { None }
    }

    /// Returns the id of the current entry at `index`. For indices from the kernel and the gate, which refer to an
    /// entry only while it exists.
    ///
    /// # Panics
    /// If there is no entry.
    pub(crate) fn id_at(&self, index: u32) -> I {
        let entry = &self.entries[index as usize];
        assert!(!entry.is_free(), "an index in use has a value");
        I::new(index, entry.generation)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        let entries = self.entries.iter().enumerate().filter(|(_, entry)| !entry.is_free());
        entries.filter_map(|(index, entry)| Some((I::new(index as u32, entry.generation), entry.value.as_ref()?)))
    }

    pub(crate) fn ids(&self) -> Vec<I> {
        self.iter().map(|(id, _)| id).collect()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter(|entry| !entry.is_free()).filter_map(|entry| entry.value.as_mut())
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<I: Id, T> Index<I> for Slab<I, T> {
    type Output = T;

    fn index(&self, id: I) -> &T {
        self.get(id).expect("an id in use has a value")
    }
}

impl<I: Id, T> IndexMut<I> for Slab<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        self.get_mut(id).expect("an id in use has a value")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_replaced_entry_or_of_another_slab_finds_nothing() {
        let mut slab: Slab<VmId, &str> = Slab::default();
        let (first, other) = (slab.insert("first"), slab.insert("other"));
        assert_eq!((slab.remove(first), slab.get(first)), ("first", None));
        let second = slab.insert("second");
        assert_eq!((second.index(), slab.len()), (first.index(), 2));
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.get_mut(first), None);
        assert_eq!((slab[second], slab[other], slab.id_at(0)), ("second", "other", second));
        let mut restarted: Slab<VmId, &str> = Slab::default();
        restarted.insert("after the restart");
        assert_eq!((restarted.get(second), restarted.get(first)), (None, None));
    }

    #[test]
    #[should_panic(expected = "an id in use has a value")]
    fn a_stale_id_is_not_removed_twice() {
        let mut slab: Slab<VmId, u8> = Slab::default();
        let id = slab.insert(1);
        slab.remove(id);
        slab.insert(2);
        slab.remove(id);
    }

    #[test]
    fn a_released_value_is_found_by_no_id_until_its_entry_is_used_again() {
        let mut slab: Slab<VmId, u8> = Slab::default();
        let (first, value) = slab.reuse(|| 0);
        assert_eq!(std::mem::replace(value, 7), 0);
        *slab.release(first) += 1;
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.get_mut(first), None);
        assert_eq!((slab.len(), slab.iter().count()), (0, 0));
        assert_eq!(slab.values_mut().count(), 0);
        let (second, value) = slab.reuse(|| 5);
        assert_eq!((*value, second.index()), (5, first.index()));
        assert_eq!(slab.get(first), None);
        assert_eq!((slab.remove(second), slab.is_empty()), (5, true));
    }
}
