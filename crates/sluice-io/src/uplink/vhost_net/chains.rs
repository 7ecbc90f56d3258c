//! The chains that were taken from a transmit queue and are not returned yet.
//!
//! They are returned in the order of the ring, although a frame for another NIC of this host overtakes one that waits for the uplink.
//! A VMM keeps no in-flight log for a NIC: after a crash of the daemon its rings continue at the used index. With chains returned in
//! order, that is the first frame that was not sent.

use std::collections::VecDeque;

use crate::virtio::queue::Taken;

#[derive(Debug, Clone, Copy)]
struct TakenChain {
    taken: Taken,
    /// Frames that were made of it.
    frames: u32,
    /// Frames that are on their way.
    left: u32,
}

/// The chains of one queue.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    chains: VecDeque<TakenChain>,
    /// Number of the first.
    first: u64,
}

impl Chains {
    /// Adds a chain; returns its number.
    pub(crate) fn push(&mut self, taken: Taken) -> u64 {
        self.chains.push_back(TakenChain { taken, frames: 1, left: 1 });
        self.end() - 1
    }

    /// States how many frames were made of the chain that was added last.
    pub(crate) fn set_frames(&mut self, frames: u32) {
        if let Some(last) = self.chains.back_mut() {
            (last.frames, last.left) = (frames, frames);
        }
    }

    /// Records that a frame of a chain has been sent or dropped.
    pub(crate) fn frame_ended(&mut self, number: u64) {
        if let Some(chain) = number.checked_sub(self.first).and_then(|at| self.chains.get_mut(at as usize)) {
            chain.left = chain.left.saturating_sub(1);
        }
    }

    /// Removes the first chain, if all of its frames have ended.
    pub(crate) fn next_ended(&mut self) -> Option<Taken> {
        let first = self.chains.front().filter(|chain| chain.left == 0)?.taken;
        self.chains.pop_front();
        self.first += 1;
        Some(first)
    }

    /// Removes the chains that go back into the available ring, the last first: all from the first of which no frame has been sent,
    /// according to `taken_back` frames of each chain that were taken back. Frames for other NICs of the host that had overtaken it are sent
    /// twice.
    pub(crate) fn rewind(&mut self, taken_back: impl Fn(u64) -> u32) -> Vec<Taken> {
        let is_unsent =
            |at: usize, chain: &TakenChain| chain.left > 0 && taken_back(self.first + at as u64) == chain.frames;
        let from = (0..self.chains.len()).find(|at| is_unsent(*at, &self.chains[*at])).unwrap_or(self.chains.len());
        let back = self.chains.drain(from..).map(|chain| chain.taken).collect::<Vec<_>>();
        back.into_iter().rev().collect()
    }

    /// Returns the number of the next chain.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.chains.len() as u64
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.chains.len()
    }

    /// Forgets all chains.
    pub(crate) fn clear(&mut self) {
        self.first += self.chains.len() as u64;
        self.chains.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(head: u16) -> Taken {
        Taken { head, position: Some(head) }
    }

    #[test]
    fn chains_return_in_the_order_of_the_ring() {
        let mut chains = Chains::default();
        let numbers: Vec<u64> = (0..4).map(|head| chains.push(taken(head))).collect();
        chains.frame_ended(numbers[1]);
        assert_eq!((chains.next_ended(), chains.len()), (None, 4));
        chains.frame_ended(numbers[0]);
        let returned: Vec<_> = std::iter::from_fn(|| chains.next_ended()).map(|taken| taken.head).collect();
        assert_eq!((returned, chains.len()), (vec![0, 1], 2));
        assert_eq!(chains.push(taken(9)), 4);
        chains.set_frames(2);
        [2, 3, 4].iter().for_each(|number| chains.frame_ended(*number));
        assert_eq!(std::iter::from_fn(|| chains.next_ended()).count(), 2, "a frame of the last is on its way");
        chains.frame_ended(4);
        chains.frame_ended(0);
        assert_eq!(chains.next_ended().map(|taken| taken.head), Some(9));
    }

    #[test]
    fn unsent_chains_go_back_into_the_ring_and_partly_sent_ones_do_not() {
        let mut chains = Chains::default();
        for frames in [1, 3, 1, 0, 2] {
            chains.push(taken(10 + chains.len() as u16));
            chains.set_frames(frames);
        }
        // Of the second, one of three frames has been sent; the fourth went to another NIC.
        let back = chains.rewind(|number| [0, 2, 1, 0, 2][number as usize]);
        assert_eq!(back.iter().map(|taken| taken.head).collect::<Vec<_>>(), [14, 13, 12]);
        assert_eq!(chains.len(), 2);
        assert_eq!(chains.rewind(|_| 0).len(), 0);
        chains.clear();
        assert_eq!((chains.len(), chains.push(taken(1))), (0, 2), "no number is used twice for frames on the way");
    }
}
