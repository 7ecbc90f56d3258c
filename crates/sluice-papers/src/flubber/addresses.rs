//! Look-up of queued requests by start address. Of several requests at one address, the first inserted one is found.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Addresses {
    /// Number of each request by its address and the order of insertion.
    sorted: BTreeMap<(u64, u64), u32>,
    /// Order of insertion of each request, by its number.
    orders: Vec<u64>,
    entered: u64,
}

impl Addresses {
    /// Inserts the request `number`, which begins at `address`.
    pub(crate) fn insert(&mut self, number: u32, address: u64) {
        let index = number as usize;
        if index >= self.orders.len() {
            self.orders.resize(index + 1, 0);
        }
        self.orders[index] = self.entered;
        self.sorted.insert((address, self.entered), number);
        self.entered += 1;
    }

    /// Removes the request `number`, which was inserted at `address`.
    pub(crate) fn remove(&mut self, number: u32, address: u64) {
        self.sorted.remove(&(address, self.orders[number as usize]));
    }

    /// Returns the first inserted request of those that begin at `at`.
    pub(crate) fn first(&self, at: u64) -> Option<u32> {
        self.sorted.range((at, 0)..=(at, u64::MAX)).next().map(|(_, number)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_request_at_an_address_is_found_after_insertions_and_removals() {
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
                let (number, address) = model.remove((random >> 33) as usize % model.len());
                table.remove(number, address);
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
