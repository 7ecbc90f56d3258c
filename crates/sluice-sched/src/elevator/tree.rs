//! Sorted sets of numbered entries: B+-trees with wide blocks.
//!
//! For each arrival and each dispatch an elevator searches among tens of thousands of queued requests. In a binary tree
//! this takes some twenty steps, each of which waits for memory. Here a step compares all keys of a block, whose few
//! cache lines are fetched concurrently, and four steps are enough for 30,000 entries.
//!
//! Many trees share one [`Forest`], whose blocks are in one vector: nothing is allocated after it has reached its
//! largest size. A block holds at most [`SLOTS`] keys. A block with few keys is merged with a neighbour, so the number
//! of blocks and the height follow the number of entries. The same input produces the same shape.

use crate::steps::step;

const NIL: u32 = u32::MAX;
/// Keys per block: with keys of two words, five cache lines.
const SLOTS: usize = 15;
const _: () =
    assert!(SLOTS == 3 + 4 * 3, "a search looks at three keys, then at three of one of the four parts between");
/// A block with at most this number of keys is merged with a neighbour if both together have at most `JOINED`.
const UNDERFULL: usize = 3;
const JOINED: usize = 11;
/// Blocks have at least four links on average, and there are fewer than 2^32 entries.
const HEIGHT_MAX: usize = 24;

/// Sort key of a tree.
pub(crate) trait Key: Copy + Ord {
    /// Larger than every key in use.
    const LAST: Self;
}

impl Key for u128 {
    const LAST: Self = u128::MAX;
}

impl Key for (u64, u32) {
    const LAST: Self = (u64::MAX, u32::MAX);
}

impl Key for (u128, u64) {
    const LAST: Self = (u128::MAX, u64::MAX);
}

impl Key for (u8, i128, u64) {
    const LAST: Self = (u8::MAX, i128::MAX, u64::MAX);
}

/// Entries in order of their keys, or child blocks, each with a lower bound of its keys (that of the first child is
/// unused).
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Block<K> {
    /// Unused keys are [`Key::LAST`], so all keys can be compared without a look at their number.
    keys: [K; SLOTS],
    links: [u32; SLOTS],
    len: u32,
    /// Neighbours of a leaf block.
    before: u32,
    behind: u32,
}

/// Blocks of all trees.
#[derive(Debug)]
pub(crate) struct Forest<K> {
    blocks: Vec<Block<K>>,
    /// First free block; the next one is in `behind`.
    free: u32,
    /// Leaf block of the last removal. A sweep removes the next entry there.
    hint: u32,
}

/// One sorted set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tree {
    root: u32,
    /// Number of steps from the root to the leaf blocks.
    height: u32,
}

impl Default for Tree {
    fn default() -> Self {
        Tree { root: NIL, height: 0 }
    }
}

impl<K> Default for Forest<K> {
    fn default() -> Self {
        Forest { blocks: Vec::new(), free: NIL, hint: NIL }
    }
}

/// Path from the root to a leaf block: at each level the block and the index of the link.
type Path = [(u32, u32); HEIGHT_MAX];

impl<K: Key> Block<K> {
    const EMPTY: Self = Block { keys: [K::LAST; SLOTS], links: [NIL; SLOTS], len: 0, before: NIL, behind: NIL };

    fn len(&self) -> usize {
        self.len as usize
    }

    /// Number of leading entries for which `is_left` is true: by quarters, then within one, so keys that are compared
    /// together are fetched together.
    fn count(&self, is_left: impl Fn(usize, &K) -> bool) -> usize {
        let left = |index: usize| usize::from(is_left(index, &self.keys[index]));
        let from = 4 * (left(3) + left(7) + left(11));
        from + left(from) + left(from + 1) + left(from + 2)
    }

    /// Number of smaller keys.
    fn below(&self, key: &K) -> usize {
        self.count(|_, known| known < key)
    }

    /// Index of the link that leads to a key.
    fn toward(&self, key: &K) -> usize {
        self.count(|index, known| index == 0 || known <= key) - 1
    }

    fn put(&mut self, index: usize, key: K, link: u32) {
        let len = self.len();
        self.keys.copy_within(index..len, index + 1);
        self.links.copy_within(index..len, index + 1);
        (self.keys[index], self.links[index]) = (key, link);
        self.len += 1;
    }

    fn take(&mut self, index: usize) {
        let len = self.len();
        self.keys.copy_within(index + 1..len, index);
        self.links.copy_within(index + 1..len, index);
        self.keys[len - 1] = K::LAST;
        self.len -= 1;
    }

    fn get(&self, index: usize) -> Option<(K, u32)> {
        (index < self.len()).then(|| (self.keys[index], self.links[index]))
    }

    fn last(&self) -> Option<(K, u32)> {
        self.get(self.len().checked_sub(1)?)
    }
}

impl<K: Key> Forest<K> {
    fn at(&self, block: u32) -> &Block<K> {
        step();
        &self.blocks[block as usize]
    }

    fn at_mut(&mut self, block: u32) -> &mut Block<K> {
        step();
        &mut self.blocks[block as usize]
    }

    fn allocate(&mut self) -> u32 {
        if self.free == NIL {
            self.blocks.push(Block::EMPTY);
            return self.blocks.len() as u32 - 1;
        }
        let block = self.free;
        self.free = self.at(block).behind;
        *self.at_mut(block) = Block::EMPTY;
        block
    }

    fn release(&mut self, block: u32) {
        let free = self.free;
        let released = self.at_mut(block);
        released.behind = free;
        self.free = block;
        // The block may be used for child blocks next.
        self.hint = if self.hint == block { NIL } else { self.hint };
    }

    /// The leaf block of a key.
    fn find(&self, tree: &Tree, key: &K) -> Option<&Block<K>> {
        if tree.root == NIL {
            return None;
        }
        let mut block = self.at(tree.root);
        for _ in 0..tree.height {
            block = self.at(block.links[block.toward(key)]);
        }
        Some(block)
    }

    /// Like `find`, and the path.
    fn find_path(&self, tree: &Tree, key: &K) -> (Path, u32) {
        let mut path = [(NIL, 0); HEIGHT_MAX];
        let mut at = tree.root;
        for level in (0..tree.height as usize).rev() {
            let block = self.at(at);
            let index = block.toward(key);
            path[level] = (at, index as u32);
            at = block.links[index];
        }
        (path, at)
    }

    /// The entry before `index` in a leaf block.
    fn before_index(&self, block: &Block<K>, index: usize) -> Option<(K, u32)> {
        match index {
            0 if block.before == NIL => None,
            0 => self.at(block.before).last(),
            _ => block.get(index - 1),
        }
    }

    /// The entry at `index`; after the last one, the first of the next block.
    fn at_index(&self, block: &Block<K>, index: usize) -> Option<(K, u32)> {
        match block.get(index) {
            None if block.behind != NIL => self.at(block.behind).get(0),
            found => found,
        }
    }

    /// Inserts an entry with a unique key. Returns the entry before it.
    pub(crate) fn insert(&mut self, tree: &mut Tree, key: K, thing: u32) -> Option<(K, u32)> {
        if tree.root == NIL {
            tree.root = self.allocate();
        }
        let (path, at) = self.find_path(tree, &key);
        let block = self.at(at);
        let index = block.below(&key);
        let before = self.before_index(block, index);
        if block.len() < SLOTS {
            self.at_mut(at).put(index, key, thing);
        } else {
            let last = block.behind == NIL;
            let right = self.put_full(at, index, last, key, thing);
            self.link(tree, &path, right);
        }
        before
    }

    /// Inserts a link into a full block by splitting it; returns the new block, which follows it. If the link is the
    /// last of all (`last`), the full block stays as it is, so sequential insertions fill their blocks.
    fn put_full(&mut self, at: u32, index: usize, last: bool, key: K, link: u32) -> u32 {
        let keep = if last && index == SLOTS { SLOTS } else { SLOTS / 2 };
        let right = self.allocate();
        let left = self.at_mut(at);
        let mut new = Block { before: at, behind: left.behind, ..Block::EMPTY };
        let moved = SLOTS - keep;
        new.keys[..moved].copy_from_slice(&left.keys[keep..]);
        new.links[..moved].copy_from_slice(&left.links[keep..]);
        new.len = moved as u32;
        left.keys[keep..].fill(K::LAST);
        (left.len, left.behind) = (keep as u32, right);
        if index < keep || index == keep && moved > 0 {
            left.put(index, key, link);
        } else {
            new.put(index - keep, key, link);
        }
        if new.behind != NIL {
            self.at_mut(new.behind).before = right;
        }
        *self.at_mut(right) = new;
        right
    }

    /// Links a new block after the one at the end of the path.
    fn link(&mut self, tree: &mut Tree, path: &Path, mut right: u32) {
        for &(at, index) in &path[..tree.height as usize] {
            let (key, index) = (self.at(right).keys[0], index as usize + 1);
            if self.at(at).len() < SLOTS {
                return self.at_mut(at).put(index, key, right);
            }
            right = self.put_full(at, index, true, key, right);
        }
        let root = self.allocate();
        let (old, new) = (self.at(tree.root).keys[0], self.at(right).keys[0]);
        self.at_mut(root).put(0, old, tree.root);
        self.at_mut(root).put(1, new, right);
        (tree.root, tree.height) = (root, tree.height + 1);
        assert!(tree.height < HEIGHT_MAX as u32, "blocks have at least four links on average");
    }

    /// Removes an entry of this tree, whose key is in no other tree. Returns the entries before and after it.
    pub(crate) fn remove(&mut self, tree: &mut Tree, key: &K) -> [Option<(K, u32)>; 2] {
        if let Some(block) = self.blocks.get_mut(self.hint as usize) {
            let index = block.below(key);
            if block.len() > UNDERFULL + 1 && block.get(index).is_some_and(|(known, _)| known == *key) {
                block.take(index);
                let block = self.at(self.hint);
                return [self.before_index(block, index), self.at_index(block, index)];
            }
        }
        let (path, at) = self.find_path(tree, key);
        self.hint = at;
        let block = self.at_mut(at);
        let index = block.below(key);
        assert!(block.get(index).is_some_and(|(known, _)| known == *key), "it is in the tree");
        block.take(index);
        let left = block.len();
        let block = self.at(at);
        let around = [self.before_index(block, index), self.at_index(block, index)];
        if left <= UNDERFULL {
            self.shrink(tree, &path);
        }
        around
    }

    /// Merges blocks along the path that have few links with a neighbour, and frees empty ones.
    fn shrink(&mut self, tree: &mut Tree, path: &Path) {
        for (level, &(parent, index)) in path[..tree.height as usize].iter().enumerate() {
            let (family, index) = (self.at(parent), index as usize);
            let block = self.at(family.links[index]);
            let len = block.len();
            let fits = |other: usize| family.get(other).is_some_and(|(_, link)| self.at(link).len() + len <= JOINED);
            let gone = match index {
                _ if len > UNDERFULL => return,
                _ if len > 0 && fits(index + 1) => index + 1,
                1.. if len == 0 || fits(index - 1) => index,
                0 if len == 0 => index,
                _ => return,
            };
            let (key, link) = (family.keys[gone], family.links[gone]);
            match gone.checked_sub(1).map(|left| family.links[left]) {
                None => self.unchain(link),
                Some(left) => self.join(left, link, (level > 0).then_some(key)),
            }
            self.at_mut(parent).take(gone);
            self.release(link);
        }
        while tree.height > 0 && self.at(tree.root).len() == 1 {
            let root = tree.root;
            (tree.root, tree.height) = (self.at(root).links[0], tree.height - 1);
            self.release(root);
        }
        if self.at(tree.root).len() == 0 {
            self.release(tree.root);
            *tree = Tree::default();
        }
    }

    /// Moves the links of `right` into its left neighbour. `key` is the first key of `right` if it holds child blocks.
    fn join(&mut self, left: u32, right: u32, key: Option<K>) {
        self.unchain(right);
        let mut moved = *self.at(right);
        moved.keys[0] = key.unwrap_or(moved.keys[0]);
        let block = self.at_mut(left);
        let (from, count) = (block.len(), moved.len());
        block.keys[from..from + count].copy_from_slice(&moved.keys[..count]);
        block.links[from..from + count].copy_from_slice(&moved.links[..count]);
        block.len += moved.len;
    }

    fn unchain(&mut self, block: u32) {
        let Block { before, behind, .. } = *self.at(block);
        if before != NIL {
            self.at_mut(before).behind = behind;
        }
        if behind != NIL {
            self.at_mut(behind).before = before;
        }
    }

    /// The entry with the smallest key.
    pub(crate) fn first(&self, tree: &Tree) -> Option<(K, u32)> {
        self.outermost(tree, |_| 0)?.get(0)
    }

    /// The entry with the largest key.
    pub(crate) fn last(&self, tree: &Tree) -> Option<(K, u32)> {
        self.outermost(tree, |block| block.len() - 1)?.last()
    }

    fn outermost(&self, tree: &Tree, side: impl Fn(&Block<K>) -> usize) -> Option<&Block<K>> {
        if tree.root == NIL {
            return None;
        }
        let mut block = self.at(tree.root);
        for _ in 0..tree.height {
            block = self.at(block.links[side(block)]);
        }
        Some(block)
    }

    /// The last entry below `key`, and the first one at or above it.
    pub(crate) fn around(&self, tree: &Tree, key: &K) -> [Option<(K, u32)>; 2] {
        let Some(block) = self.find(tree, key) else { return [None; 2] };
        let index = block.below(key);
        [self.before_index(block, index), self.at_index(block, index)]
    }

    /// The number of the last entry at or below `key`.
    #[inline]
    pub(crate) fn floor(&self, tree: &Tree, key: &K) -> Option<u32> {
        let block = self.find(tree, key)?;
        let index = block.count(|_, known| known <= key);
        self.before_index(block, index).map(|(_, thing)| thing)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    impl Forest<u128> {
        /// Checks the invariants of all blocks of a tree; returns their number.
        fn check(&self, tree: &Tree) -> usize {
            if tree.root == NIL {
                return 0;
            }
            let mut level = vec![(tree.root, 0, u128::MAX)];
            let mut count = 1;
            for _ in 0..tree.height {
                level = level.iter().flat_map(|(block, low, high)| self.inside(*block, *low, *high)).collect();
                count += level.len();
            }
            for (index, (at, low, high)) in level.iter().enumerate() {
                let block = self.at(*at);
                let keys = &block.keys[..block.len()];
                assert!(!keys.is_empty() && keys.is_sorted() && keys[0] >= *low && keys[keys.len() - 1] < *high);
                assert!(block.keys[block.len()..].iter().all(|key| *key == u128::LAST));
                assert_eq!(block.behind, level.get(index + 1).map_or(NIL, |next| next.0));
                assert_eq!(block.before, if index == 0 { NIL } else { level[index - 1].0 });
            }
            count
        }

        /// The children of a block, with the range of keys of each.
        fn inside(&self, at: u32, low: u128, high: u128) -> Vec<(u32, u128, u128)> {
            let block = self.at(at);
            assert!(block.len() > 0, "empty block in the tree");
            let from = |index: usize| if index == 0 { low } else { block.keys[index] };
            let to = |index: usize| if index + 1 < block.len() { block.keys[index + 1] } else { high };
            (0..block.len()).map(|index| (block.links[index], from(index), to(index))).collect()
        }
    }

    fn next(random: &mut u64) -> u64 {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *random >> 16
    }

    #[test]
    fn trees_are_sorted_sets() {
        let mut forest = Forest::default();
        let mut trees = [(Tree::default(), BTreeMap::new()), (Tree::default(), BTreeMap::new())];
        let mut random = 1u64;
        let owned = |found: Option<(&u128, &u32)>| found.map(|(key, thing)| (*key, *thing));
        for step in 0..60_000u32 {
            // The trees grow to some thousand entries and shrink to none, several times.
            let grows = step / 6_000 % 2 == 0;
            let (tree, model) = &mut trees[next(&mut random) as usize % 2];
            let key = u128::from(next(&mut random) % 500) << 64 | u128::from(step);
            let near = owned(model.range(key..).next().or_else(|| model.iter().next_back()));
            match near {
                Some((near, _)) if next(&mut random) % 8 < if grows { 1 } else { 7 } => {
                    model.remove(&near);
                    let around = [owned(model.range(..near).next_back()), owned(model.range(near..).next())];
                    assert_eq!(forest.remove(tree, &near), around);
                }
                _ => {
                    assert_eq!(forest.insert(tree, key, step), owned(model.range(..key).next_back()));
                    model.insert(key, step);
                }
            }
            assert_eq!(forest.first(tree), owned(model.first_key_value()));
            assert_eq!(forest.last(tree), owned(model.last_key_value()));
            let around = [owned(model.range(..key).next_back()), owned(model.range(key..).next())];
            assert_eq!(forest.around(tree, &key), around);
            let near = key ^ u128::from(step % 3);
            assert_eq!(forest.floor(tree, &near), model.range(..=near).next_back().map(|(_, thing)| *thing));
            if step % 100 == 0 {
                let blocks: usize = trees.iter().map(|(tree, _)| forest.check(tree)).sum();
                let things: usize = trees.iter().map(|(_, model)| model.len()).sum();
                assert!(blocks <= 2 + things / 3, "{blocks} blocks for {things} things");
            }
        }
    }

    #[test]
    fn sequential_insertions_fill_their_blocks() {
        let (mut forest, mut tree) = (Forest::default(), Tree::default());
        (0..65_536u32).for_each(|thing| {
            forest.insert(&mut tree, u128::from(thing), thing);
        });
        let blocks = forest.check(&tree);
        assert_eq!(blocks, 4370 + 292 + 20 + 2 + 1);
        assert_eq!(tree.height, 4, "15^4 < 65,536 < 15^5");
        // A sweep frees the blocks.
        for thing in 0..65_536u32 {
            let behind = forest.remove(&mut tree, &u128::from(thing))[1];
            assert_eq!(behind.map(|(_, thing)| thing), (thing < 65_535).then_some(thing + 1));
        }
        assert_eq!(tree, Tree::default());
    }

    #[test]
    fn sparse_blocks_are_merged() {
        let (mut forest, mut tree) = (Forest::default(), Tree::default());
        (0..65_536u32).for_each(|thing| {
            forest.insert(&mut tree, u128::from(thing), thing);
        });
        for thing in (0..65_536u128).filter(|thing| thing % 64 != 0) {
            forest.remove(&mut tree, &thing);
        }
        let blocks = forest.check(&tree);
        assert!(blocks <= 1024 / 3, "{blocks} for 1024 things");
        assert!(tree.height <= 4, "{}", tree.height);
    }
}
