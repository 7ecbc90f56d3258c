//! A table whose values keep their index until they are removed; the index is then used again.
//!
//! Its users hold exactly one reference to a value: a token or slot of the gate, or a link of a list. So an index needs
//! no generation, and a removed value stays in place until its index is used again, which saves a flag in each entry.
//!
//! Example: values get the indices 0, 1 and 2. Value 1 is removed; the next value gets index 1, and the one after it 3.

use core::ops::{Index, IndexMut};

/// Values by index.
#[derive(Debug, Clone)]
pub struct Slab<T> {
    values: Vec<T>,
    /// Indices of removed values; the last one is used next.
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { values: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// The index that the next value gets.
    #[inline]
    #[must_use]
    pub fn next_index(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.values.len() as u32)
    }

    /// Adds a value and returns its index.
    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.values[index as usize] = value;
                index
            }
            None => {
                self.values.push(value);
                (self.values.len() - 1) as u32
            }
        }
    }

    /// Removes a value, which must not have been removed before, and returns it; it stays readable until the next
    /// `insert`.
    #[inline]
    pub fn remove(&mut self, index: u32) -> &mut T {
        self.free.push(index);
        &mut self.values[index as usize]
    }

    /// The value, or `None` if no value has had the index yet.
    #[inline]
    #[must_use]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.values.get(index as usize)
    }

    /// As [`Slab::get`].
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.values.get_mut(index as usize)
    }

    /// All values by index, including removed ones whose index has not been used again.
    pub fn entries(&self) -> &[T] {
        &self.values
    }

    /// As [`Slab::entries`].
    pub fn entries_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// Number of values that have not been removed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: u32) -> &T {
        &self.values[index as usize]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.values[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_that_was_freed_last_is_used_first() {
        let mut slab = Slab::default();
        let indices: Vec<u32> = (0..3).map(|value| slab.insert(value)).collect();
        assert_eq!((indices, slab.len(), slab.next_index()), (vec![0, 1, 2], 3, 3));
        assert_eq!(*slab.remove(0), 0);
        slab.remove(1);
        assert_eq!((slab.len(), slab.next_index(), slab[2]), (1, 1, 2));
        let indices: Vec<u32> = (3..6).map(|value| slab.insert(value)).collect();
        assert_eq!((indices, slab.entries()), (vec![1, 0, 3], &[4, 3, 2, 5][..]));
        assert_eq!((slab.get(3), slab.get(4)), (Some(&5), None));
    }
}
