//! The part of a VM's window that requests occupy, for the VM and for each of its volumes.

/// The part of a VM's window that requests occupy, from their arrival at a frontend to their reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Outstanding {
    pub(crate) requests: u32,
    pub(crate) bytes: u64,
}

impl Outstanding {
    /// Counts a request that occupies `bytes`.
    pub(crate) fn add(&mut self, bytes: u64) {
        (self.requests, self.bytes) = (self.requests + 1, self.bytes + bytes);
    }

    /// Counts more bytes of a request.
    pub(crate) fn add_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Counts the end of a request.
    pub(crate) fn remove(&mut self, bytes: u64) {
        (self.requests, self.bytes) = (self.requests - 1, self.bytes - bytes);
    }
}
