//! The entries of a table of a file, in order of their names.
//!
//! A map of the standard library has room for eleven entries in its smallest node, and most tables of a VM have one to four. With four
//! tables per VM that was 3 KB each.

use std::{iter, slice, vec};

use crate::tree::Node;

/// Nodes by name.
#[derive(Debug, Clone, Default)]
pub struct Entries(Vec<(String, Node)>);

impl Entries {
    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn position(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.as_str().cmp(name))
    }

    /// Returns the node of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Node> {
        self.position(name).ok().map(|index| &self.0[index].1)
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Node> {
        self.position(name).ok().map(|index| &mut self.0[index].1)
    }

    /// Whether there is an entry of this name.
    #[must_use]
    pub fn contains_key(&self, name: &str) -> bool {
        self.position(name).is_ok()
    }

    /// Returns the node of this name; inserts one if there is none.
    pub(crate) fn get_or_insert_with(&mut self, name: &str, new: impl FnOnce() -> Node) -> &mut Node {
        let index = self.position(name).unwrap_or_else(|index| {
            self.0.insert(index, (name.to_owned(), new()));
            index
        });
        &mut self.0[index].1
    }

    /// Inserts a node, or replaces the one of this name.
    pub(crate) fn insert(&mut self, name: String, node: Node) {
        match self.position(&name) {
            Ok(index) => self.0[index].1 = node,
            Err(index) => self.0.insert(index, (name, node)),
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        if let Ok(index) = self.position(name) {
            self.0.remove(index);
        }
    }

    /// The entries in order.
    pub fn iter(&self) -> Iter<'_> {
        self.into_iter()
    }
}

/// The entries of a table in order.
pub type Iter<'a> = iter::Map<slice::Iter<'a, (String, Node)>, fn(&'a (String, Node)) -> (&'a String, &'a Node)>;

impl<'a> IntoIterator for &'a Entries {
    type Item = (&'a String, &'a Node);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|(name, node)| (name, node))
    }
}

impl IntoIterator for Entries {
    type Item = (String, Node);
    type IntoIter = vec::IntoIter<(String, Node)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl FromIterator<(String, Node)> for Entries {
    /// Collects entries in any order. If several have the same name, the last of them is kept.
    fn from_iter<I: IntoIterator<Item = (String, Node)>>(entries: I) -> Self {
        let mut entries: Vec<_> = entries.into_iter().collect();
        // The sort is stable, and the first of each name is kept.
        entries.reverse();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries.dedup_by(|later, first| later.0 == first.0);
        entries.shrink_to_fit();
        Entries(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Value;

    fn node(number: i128) -> Node {
        Node { key: Default::default(), span: Default::default(), value: Value::Integer(number) }
    }

    fn shown(entries: &Entries) -> Vec<(String, i128)> {
        let number = |node: &Node| if let Value::Integer(number) = node.value { number } else { -1 };
        entries.iter().map(|(name, node)| (name.clone(), number(node))).collect()
    }

    #[test]
    fn entries_are_found_in_order_and_the_last_of_a_name_counts() {
        let mut entries: Entries =
            [("b", 1), ("a", 2), ("b", 3)].map(|(name, number)| (name.to_owned(), node(number))).into_iter().collect();
        assert_eq!(shown(&entries), [("a".to_owned(), 2), ("b".to_owned(), 3)]);
        entries.insert("aa".to_owned(), node(4));
        entries.insert("b".to_owned(), node(5));
        entries.get_or_insert_with("c", || node(6));
        entries.get_or_insert_with("a", || node(7));
        entries.remove("b");
        entries.remove("missing");
        let names: Vec<_> = entries.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "aa", "c"]);
        assert_eq!(shown(&entries).iter().map(|(_, number)| *number).collect::<Vec<_>>(), [2, 4, 6]);
        assert!(entries.get("b").is_none() && entries.get("c").is_some());
    }
}
