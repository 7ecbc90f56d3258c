//! Which queued requests begin at a given byte: an ordered set of addresses.
//!
//! A guest chooses the addresses of its requests, so a table of rows is no choice: whoever knows how addresses are
//! dealt to rows asks for those of one row, and every look at that row walks over the queue. In an ordered set a look,
//! an entry and a removal cost the logarithm of the queue's length, whatever the addresses are, and nothing is allocated
//! once the set has had its largest size. Of those at one address the first that was put in is found.

use crate::elevator::{Forest, Tree};

/// The set.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    /// By the number under which a request was put in.
    keys: Vec<u128>,
    forest: Forest<u128>,
    tree: Tree,
    entered: u64,
}

fn key(address: u64, order: u64) -> u128 {
    u128::from(address) << 64 | u128::from(order)
}

impl Addresses {
    /// The request `number` begins at `address`.
    pub(crate) fn insert(&mut self, number: u32, address: u64) {
        let key = key(address, self.entered);
        self.entered += 1;
        let index = number as usize;
        if index >= self.keys.len() {
            self.keys.resize(index + 1, 0);
        }
        self.keys[index] = key;
        self.forest.insert(&mut self.tree, key, number);
    }

    /// The request `number`, which was put in, leaves.
    pub(crate) fn remove(&mut self, number: u32) {
        self.forest.remove(&mut self.tree, &self.keys[number as usize]);
    }

    /// Of those that begin at `address` the one that was put in first.
    pub(crate) fn first(&self, address: u64) -> Option<u32> {
        let [_, found] = self.forest.around(&self.tree, &key(address, 0));
        found.filter(|(key, _)| (key >> 64) as u64 == address).map(|(_, number)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_at_an_address_is_found_whatever_comes_and_goes() {
        let mut table = Addresses::default();
        let mut model: Vec<(u32, u64)> = Vec::new();
        let mut free: Vec<u32> = (0..1000).rev().collect();
        let mut random = 1u64;
        for step in 0..20_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let grows = step / 2000 % 2 == 0;
            if (random >> 60 < if grows { 10 } else { 6 }) && !free.is_empty() {
                let (number, address) = (free.pop().expect("not empty"), (random >> 33) % 300 * 4096);
                table.insert(number, address);
                model.push((number, address));
            } else if !model.is_empty() {
                let (number, _) = model.remove((random >> 33) as usize % model.len());
                table.remove(number);
                free.push(number);
            }
            let address = (random >> 20) % 300 * 4096;
            let first = model.iter().find(|(_, known)| *known == address).map(|(number, _)| *number);
            assert_eq!(table.first(address), first);
            assert_eq!(table.first(address + 1), None);
        }
        table.insert(1000, u64::MAX);
        assert_eq!(table.first(u64::MAX), Some(1000));
    }
}
