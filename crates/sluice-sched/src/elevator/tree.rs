//! Sorted sets over numbered things: a treap whose links lie beside the things, so that nothing is allocated for each.
//!
//! Many trees share one [`Forest`]; a thing is in one of them at most. Ranks come from a counter that is scrambled, so
//! the shape repeats with the input, and no input can be made that spoils it by its keys alone.

const NIL: u32 = u32::MAX;

/// Half a cache line with a key of two words: a search through many waits for little else than memory.
#[derive(Debug, Clone, Copy)]
struct Links<K> {
    key: K,
    left: u32,
    right: u32,
    parent: u32,
    /// 0: in no tree.
    rank: u32,
}

/// The links of all trees.
#[derive(Debug)]
pub(crate) struct Forest<K> {
    links: Vec<Links<K>>,
    ranks: u32,
}

/// One sorted set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tree {
    root: u32,
}

impl Default for Tree {
    fn default() -> Self {
        Tree { root: NIL }
    }
}

impl<K> Default for Forest<K> {
    fn default() -> Self {
        Forest { links: Vec::new(), ranks: 0 }
    }
}

fn known(index: u32) -> Option<u32> {
    (index != NIL).then_some(index)
}

impl<K: Copy + Ord> Forest<K> {
    fn at(&self, index: u32) -> &Links<K> {
        &self.links[index as usize]
    }

    fn at_mut(&mut self, index: u32) -> &mut Links<K> {
        &mut self.links[index as usize]
    }

    fn rank(&mut self) -> u32 {
        self.ranks = self.ranks.wrapping_add(1);
        let mut mixed = self.ranks.wrapping_mul(0x9e37_79b9);
        mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x85eb_ca6b);
        mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
        (mixed ^ (mixed >> 16)) | 1
    }

    /// Puts a thing that is in no tree into this one; keys are unique.
    pub(crate) fn insert(&mut self, tree: &mut Tree, index: u32, key: K) {
        let rank = self.rank();
        if self.links.len() <= index as usize {
            self.links.resize(index as usize + 1, Links { key, left: NIL, right: NIL, parent: NIL, rank: 0 });
        }
        assert!(self.at(index).rank == 0, "a thing is in one tree at most");
        let (mut parent, mut at) = (NIL, tree.root);
        while at != NIL {
            parent = at;
            let links = self.at(at);
            at = if key < links.key { links.left } else { links.right };
        }
        self.links[index as usize] = Links { key, left: NIL, right: NIL, parent, rank };
        if parent == NIL {
            tree.root = index;
            return;
        }
        if key < self.at(parent).key {
            self.at_mut(parent).left = index;
        } else {
            self.at_mut(parent).right = index;
        }
        while let Some(parent) = known(self.at(index).parent)
            && self.at(parent).rank < rank
        {
            self.rotate_up(tree, index, parent);
        }
    }

    /// Takes a thing out of the tree that it is in.
    pub(crate) fn remove(&mut self, tree: &mut Tree, index: u32) {
        assert!(self.at(index).rank != 0, "it is in a tree");
        loop {
            let Links { left, right, .. } = *self.at(index);
            let up = match (known(left), known(right)) {
                (None, _) => {
                    self.replace(tree, index, right);
                    break;
                }
                (_, None) => {
                    self.replace(tree, index, left);
                    break;
                }
                (Some(left), Some(right)) if self.at(left).rank > self.at(right).rank => left,
                (_, Some(right)) => right,
            };
            self.rotate_up(tree, up, index);
        }
        self.at_mut(index).rank = 0;
    }

    /// Hangs `child`, or nothing, where `index` hangs.
    fn replace(&mut self, tree: &mut Tree, index: u32, child: u32) {
        let parent = self.at(index).parent;
        if child != NIL {
            self.at_mut(child).parent = parent;
        }
        match known(parent) {
            None => tree.root = child,
            Some(parent) => {
                let links = self.at_mut(parent);
                if links.left == index {
                    links.left = child;
                } else {
                    links.right = child;
                }
            }
        }
    }

    fn rotate_up(&mut self, tree: &mut Tree, index: u32, parent: u32) {
        self.replace(tree, parent, index);
        let Links { left, right, .. } = *self.at(index);
        let inner = if self.at(parent).left == index {
            self.at_mut(parent).left = right;
            self.at_mut(index).right = parent;
            right
        } else {
            self.at_mut(parent).right = left;
            self.at_mut(index).left = parent;
            left
        };
        if inner != NIL {
            self.at_mut(inner).parent = parent;
        }
        self.at_mut(parent).parent = index;
    }

    /// The key of a thing that is in a tree.
    pub(crate) fn key(&self, index: u32) -> K {
        self.at(index).key
    }

    /// Whether a thing is in a tree.
    #[cfg(test)]
    pub(crate) fn contains(&self, index: u32) -> bool {
        self.links.get(index as usize).is_some_and(|links| links.rank != 0)
    }

    /// The thing with the smallest key.
    pub(crate) fn first(&self, tree: &Tree) -> Option<u32> {
        known(tree.root).map(|root| self.leftmost(root))
    }

    /// The thing with the largest key.
    pub(crate) fn last(&self, tree: &Tree) -> Option<u32> {
        let mut at = known(tree.root)?;
        while let Some(right) = known(self.at(at).right) {
            at = right;
        }
        Some(at)
    }

    fn leftmost(&self, mut at: u32) -> u32 {
        while let Some(left) = known(self.at(at).left) {
            at = left;
        }
        at
    }

    /// The next larger one.
    pub(crate) fn after(&self, index: u32) -> Option<u32> {
        if let Some(right) = known(self.at(index).right) {
            return Some(self.leftmost(right));
        }
        let mut at = index;
        while let Some(parent) = known(self.at(at).parent) {
            if self.at(parent).left == at {
                return Some(parent);
            }
            at = parent;
        }
        None
    }

    /// The next smaller one.
    pub(crate) fn before(&self, index: u32) -> Option<u32> {
        if let Some(mut at) = known(self.at(index).left) {
            while let Some(right) = known(self.at(at).right) {
                at = right;
            }
            return Some(at);
        }
        let mut at = index;
        while let Some(parent) = known(self.at(at).parent) {
            if self.at(parent).right == at {
                return Some(parent);
            }
            at = parent;
        }
        None
    }

    /// The first thing whose key is not smaller than `key`.
    pub(crate) fn at_or_after(&self, tree: &Tree, key: &K) -> Option<u32> {
        let (mut at, mut found) = (tree.root, None);
        while at != NIL {
            let links = self.at(at);
            if links.key < *key {
                at = links.right;
            } else {
                found = Some(at);
                at = links.left;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn trees_are_sorted_sets() {
        let mut forest = Forest::default();
        let mut trees = [(Tree::default(), BTreeMap::new()), (Tree::default(), BTreeMap::new())];
        let mut random = 1u64;
        for step in 0..40_000u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let index = (random >> 40) as u32 % 512;
            let (tree, model) = &mut trees[index as usize % 2];
            let key = ((random >> 50) as u32 % 64, step);
            if forest.contains(index) {
                assert_eq!(model.remove(&forest.key(index)), Some(index));
                forest.remove(tree, index);
            } else {
                forest.insert(tree, index, key);
                model.insert(key, index);
            }
            assert_eq!(forest.first(tree), model.first_key_value().map(|(_, index)| *index));
            assert_eq!(forest.last(tree), model.last_key_value().map(|(_, index)| *index));
            let from = model.range(key..).next().map(|(_, index)| *index);
            assert_eq!(forest.at_or_after(tree, &key), from);
            if let Some(from) = from {
                let key = forest.key(from);
                assert_eq!(forest.before(from), model.range(..key).next_back().map(|(_, index)| *index));
                let behind = (std::ops::Bound::Excluded(key), std::ops::Bound::Unbounded);
                assert_eq!(forest.after(from), model.range(behind).next().map(|(_, index)| *index));
            }
        }
    }

    #[test]
    fn sorted_input_makes_no_list() {
        let (mut forest, mut tree) = (Forest::default(), Tree::default());
        (0..65_536u32).for_each(|index| forest.insert(&mut tree, index, index));
        let depth = |mut at: u32| {
            let mut depth = 0;
            while let Some(parent) = known(forest.at(at).parent) {
                (at, depth) = (parent, depth + 1);
            }
            depth
        };
        let deepest = (0..65_536).map(depth).max().unwrap();
        assert!(deepest <= 64, "{deepest} of 16 at the least");
    }
}
