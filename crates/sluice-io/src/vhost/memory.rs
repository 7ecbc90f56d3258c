//! Guest memory: what a VMM shares with us.

use vm_memory::GuestMemoryMmap;

/// A memory table of a VMM, mapped. A request in flight holds the table that it came with, so nothing is unmapped under it.
pub type Memory = GuestMemoryMmap<()>;
