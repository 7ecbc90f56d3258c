//! Numbered places: what the kernel and the gate name by an index lives here until its last mention.

use std::ops::{Index, IndexMut};

/// Values by index; an index is reused after its value has been removed.
#[derive(Debug)]
pub(crate) struct Table<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = Some(value);
                index
            }
            None => {
                self.entries.push(Some(value));
                (self.entries.len() - 1) as u32
            }
        }
    }

    /// # Panics
    /// If there is nothing at `index`.
    pub(crate) fn remove(&mut self, index: u32) -> T {
        let value = self.entries[index as usize].take().expect("an index in use has a value");
        self.free.push(index);
        value
    }

    /// Drops a value where it lies: one that is large is not moved for it.
    ///
    /// # Panics
    /// If there is nothing at `index`.
    pub(crate) fn clear(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        assert!(entry.is_some(), "an index in use has a value");
        *entry = None;
        self.free.push(index);
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, value)| Some((index as u32, value.as_ref()?)))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Index<u32> for Table<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        self.entries[index as usize].as_ref().expect("an index in use has a value")
    }
}

impl<T> IndexMut<u32> for Table<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.entries[index as usize].as_mut().expect("an index in use has a value")
    }
}
