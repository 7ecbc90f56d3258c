//! How much is taken from one client before the next waiting client of its VM is served.
//!
//! Clients of a VM share its window, which has a number of requests and of bytes. Counted by requests alone, a client with
//! large requests would take the bytes of the window, and the next one would wait until they are freed.
//!
//! Example: the window has 64 requests and 16 MiB; one client sends reads of 1 MiB, another one of 4 KiB. They get 1 and 16
//! requests in turn. By requests alone they got 16 and none.

/// Requests and bytes that a client may still be served in its turn. One request of any size is always allowed, so that each turn makes progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    requests: u32,
    bytes: u64,
}

impl Budget {
    /// For the only waiting client of a VM, and for requests that have just arrived: the window limits them.
    pub(crate) const UNLIMITED: Budget = Budget { requests: u32::MAX, bytes: u64::MAX };

    /// For each of several waiting clients.
    pub(crate) const TURN: Budget = Budget { requests: 16, bytes: 1 << 20 };

    pub(crate) fn is_used_up(self) -> bool {
        self.requests == 0 || self.bytes == 0
    }

    /// Charges a request that occupies `bytes` of the window.
    pub(crate) fn charge(&mut self, bytes: u64) {
        self.requests = self.requests.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bytes: u64) -> u32 {
        let mut budget = Budget::TURN;
        let mut taken = 0;
        while !budget.is_used_up() {
            budget.charge(bytes);
            taken += 1;
        }
        taken
    }

    #[test]
    fn a_turn_ends_by_requests_or_by_bytes() {
        assert_eq!([0, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 32 << 20].map(taken), [16, 16, 16, 4, 1, 1]);
    }
}
