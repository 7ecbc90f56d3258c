//! Which queued requests begin at a given byte: a table of rows, each a list of those whose address falls into it.
//!
//! The rows are lists threaded through one entry per queued request, so that taking one out costs constant time even if
//! all begin at one byte, and nothing is allocated once the table has its size. A row keeps the order in which requests
//! came; nobody ever walks over the whole table, so its order decides nothing.

use super::queues::NIL;

#[derive(Debug, Clone, Copy)]
struct Entry {
    address: u64,
    left: u32,
    right: u32,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    first: u32,
    last: u32,
}

const EMPTY: Row = Row { first: NIL, last: NIL };

/// The table.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// By the number under which a request was put in.
    entries: Vec<Entry>,
    rows: Vec<Row>,
    len: usize,
}

impl Default for Addresses {
    fn default() -> Self {
        Addresses { entries: Vec::new(), rows: vec![EMPTY; 64], len: 0 }
    }
}

impl Addresses {
    /// Addresses are multiples of a sector, so what tells them apart is in the middle; the multiplication brings it up.
    fn row(&self, address: u64) -> usize {
        let mixed = address.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> (64 - self.rows.len().trailing_zeros())) as usize
    }

    /// The request `number` begins at `address`.
    pub(crate) fn insert(&mut self, number: u32, address: u64) {
        if self.len >= self.rows.len() {
            self.grow();
        }
        self.len += 1;
        let index = number as usize;
        if index >= self.entries.len() {
            self.entries.resize(index + 1, Entry { address: 0, left: NIL, right: NIL });
        }
        self.entries[index].address = address;
        self.append(number);
    }

    fn append(&mut self, number: u32) {
        let row = self.row(self.entries[number as usize].address);
        let left = std::mem::replace(&mut self.rows[row].last, number);
        *(if left == NIL { &mut self.rows[row].first } else { &mut self.entries[left as usize].right }) = number;
        let entry = &mut self.entries[number as usize];
        (entry.left, entry.right) = (left, NIL);
    }

    /// Twice as many rows. Those of one address stay in their order.
    #[cold]
    fn grow(&mut self) {
        let rows = vec![EMPTY; self.rows.len() * 2];
        for row in std::mem::replace(&mut self.rows, rows) {
            let mut number = row.first;
            while number != NIL {
                let next = self.entries[number as usize].right;
                self.append(number);
                number = next;
            }
        }
    }

    /// The request `number`, which was put in, leaves.
    pub(crate) fn remove(&mut self, number: u32) {
        let Entry { address, left, right } = self.entries[number as usize];
        let row = self.row(address);
        *(if left == NIL { &mut self.rows[row].first } else { &mut self.entries[left as usize].right }) = right;
        *(if right == NIL { &mut self.rows[row].last } else { &mut self.entries[right as usize].left }) = left;
        self.len -= 1;
    }

    /// Of those that begin at `address` the one that was put in first.
    pub(crate) fn first(&self, address: u64) -> Option<u32> {
        let mut number = self.rows[self.row(address)].first;
        while number != NIL && self.entries[number as usize].address != address {
            number = self.entries[number as usize].right;
        }
        (number != NIL).then_some(number)
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
        assert!(table.rows.len() > 64, "it has grown");
    }
}
