//! A list that stores its first element inline.
//!
//! Most VMs have one volume on a device, and one thread in a simulation. A `Vec` would keep it on the heap, and each request of the VM would wait for
//! one more cache miss.

use core::ops::{Index, IndexMut};

/// An ordered list of few elements.
#[derive(Debug, Clone)]
#[repr(C)]
pub struct InlineVec<T> {
    first: Option<T>,
    rest: Vec<T>,
}

impl<T> Default for InlineVec<T> {
    fn default() -> Self {
        InlineVec { first: None, rest: Vec::new() }
    }
}

impl<T> InlineVec<T> {
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The element with this index.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&T> {
        if index == 0 { self.first.as_ref() } else { self.rest.get(index - 1) }
    }

    /// All elements, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }

    /// As [`InlineVec::iter`].
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.rest)
    }

    /// Appends an element.
    pub fn push(&mut self, value: T) {
        match self.first {
            None => self.first = Some(value),
            Some(_) => self.rest.push(value),
        }
    }

    /// Keeps the elements for which `stays` returns true.
    pub fn retain(&mut self, mut stays: impl FnMut(&T) -> bool) {
        self.rest.retain(&mut stays);
        if self.first.as_ref().is_some_and(|first| !stays(first)) {
            self.first = (!self.rest.is_empty()).then(|| self.rest.remove(0));
        }
    }
}

impl<T> Index<usize> for InlineVec<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        self.get(index).expect("the index is that of an element")
    }
}

impl<T> IndexMut<usize> for InlineVec<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        let found = if index == 0 { self.first.as_mut() } else { self.rest.get_mut(index - 1) };
        found.expect("the index is that of an element")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_list() {
        let mut few = InlineVec::default();
        assert_eq!(few.len(), 0);
        few.push(1);
        assert_eq!((few.len(), few.get(0)), (1, Some(&1)));
        [2, 3, 4].into_iter().for_each(|value| few.push(value));
        few[0] += 10;
        few[2] += 10;
        assert_eq!(few.iter().copied().collect::<Vec<_>>(), [11, 2, 13, 4]);
        few.retain(|value| *value > 10);
        assert_eq!((few.len(), few[1], few.get(2)), (2, 13, None));
        few.retain(|value| *value != 11);
        assert_eq!((few.len(), few[0]), (1, 13));
        few.retain(|_| false);
        assert_eq!(few.len(), 0);
    }
}
