//! What a VMM has said of one ring, and when that is enough to start it.
//!
//! A ring starts when everything is there: memory, features, size, addresses, a kick, and that it is enabled. It stops when
//! the VMM asks for its base, and then waits for another kick.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use vm_memory::GuestAddress;

use super::eventfd::is_eventfd;
use super::memory::Table;

/// Most entries of a ring.
pub const ENTRIES_MAX: u16 = 1024;

/// Why a ring cannot be as the VMM wants it.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// There is no such ring.
    #[error("There is no ring {0}")]
    Unknown(u32),
    /// So many entries there cannot be.
    #[error("A ring of {0} entries is invalid; use a power of two, at most {ENTRIES_MAX}")]
    Size(u32),
    /// An index of 16 bits.
    #[error("Invalid index {0} of an available ring")]
    Base(u32),
    /// What can be set only while it is stopped.
    #[error("Ring {0} is running; stop it first")]
    Running(u32),
    /// A flag of its addresses that was not negotiated.
    #[error("Ring {0}: dirty logging is not supported")]
    Log(u32),
    /// Where it is said to be is no memory, or no place for it.
    #[error("Ring {0}: each of its three areas must be aligned and lie within one memory region")]
    Addresses(u32),
    /// It would have to be looked at all the time.
    #[error("Ring {0} has no kick descriptor; polling is not supported")]
    Polling(u32),
    /// Something else than an eventfd.
    #[error("Notification descriptor must be an eventfd")]
    NoEventfd,
    /// The system says no.
    #[error("Cannot use a notification descriptor: {0}")]
    Io(#[from] io::Error),
}

/// Where the VMM finds the parts of a ring in its own memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserPlaces {
    /// The descriptor table.
    pub descriptors: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
}

/// Where the guest finds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// The descriptor table.
    pub descriptors: GuestAddress,
    /// The available ring.
    pub available: GuestAddress,
    /// The used ring.
    pub used: GuestAddress,
}

/// One ring.
#[derive(Debug, Default)]
pub struct Ring {
    /// Entries; 0: not said yet.
    pub size: u16,
    /// Not said yet, if absent.
    pub places: Option<UserPlaces>,
    /// The next entry of the available ring.
    pub base: u16,
    /// What starts it; given away when it starts.
    pub kick: Option<OwnedFd>,
    /// Rung for the guest.
    pub call: Option<Arc<OwnedFd>>,
    /// Rung when the guest has broken it.
    pub error: Option<Arc<OwnedFd>>,
    /// As the VMM wants it.
    pub enabled: bool,
    /// Where it runs.
    pub running: Option<Places>,
}

impl Ring {
    /// Where its parts are for the guest: each in one piece, aligned as VIRTIO 1.3, 2.7 wants them, with the words for
    /// notifications behind them.
    #[must_use]
    pub fn find(&self, memory: &Table) -> Option<Places> {
        let UserPlaces { descriptors, available, used } = self.places?;
        let size = u64::from(self.size);
        let find = |user, len, alignment: u64| {
            memory.translate(user, len).filter(|address| address.0.is_multiple_of(alignment))
        };
        Some(Places {
            descriptors: find(descriptors, 16 * size, 16)?,
            available: find(available, 6 + 2 * size, 2)?,
            used: find(used, 6 + 8 * size, 4)?,
        })
    }
}

/// An eventfd, made to never block. What is no eventfd could block for ever, or be a file of ours.
pub fn eventfd(descriptor: OwnedFd) -> Result<OwnedFd, RingError> {
    if !is_eventfd(&descriptor)? {
        return Err(RingError::NoEventfd);
    }
    let flags = fcntl_getfl(descriptor.as_fd()).map_err(io::Error::from)?;
    fcntl_setfl(descriptor.as_fd(), flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use rustix::event::EventfdFlags;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use vhost::vhost_user::message::VhostUserMemoryRegion;

    use super::*;
    use crate::vhost_user::mapping::MappingOwner;

    #[test]
    fn only_eventfds_ring() {
        let made = eventfd(rustix::event::eventfd(0, EventfdFlags::empty()).unwrap()).unwrap();
        assert!(fcntl_getfl(&made).unwrap().contains(OFlags::NONBLOCK));
        let (pipe, _) = io::pipe().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let folder = rustix::fs::open(".", OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        // The kernel makes it as it makes eventfds.
        let timer =
            rustix::time::timerfd_create(rustix::time::TimerfdClockId::Monotonic, rustix::time::TimerfdFlags::empty());
        for other in [pipe.into(), null.into(), folder, timer.unwrap()] {
            assert!(matches!(eventfd(other), Err(RingError::NoEventfd)));
        }
    }

    #[test]
    fn a_ring_lies_in_one_piece_and_aligned() {
        let bell = Arc::new(rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 0x3000).unwrap();
        let region = VhostUserMemoryRegion::new(0x10_0000, 0x3000, 0x7000_0000, 0);
        let table = Table::empty(MappingOwner { bell: Some(bell), quota: None }).with(&region, &file).unwrap();
        let find = |descriptors, available, used, size| {
            let places = UserPlaces { descriptors, available, used };
            Ring { size, places: Some(places), ..Ring::default() }.find(&table)
        };
        let base = 0x7000_0000;
        let expected = Places {
            descriptors: GuestAddress(0x10_0000),
            available: GuestAddress(0x10_1000),
            used: GuestAddress(0x10_2000),
        };
        assert_eq!(find(base, base + 0x1000, base + 0x2000, 256), Some(expected));
        assert_eq!(find(base + 8, base + 0x1000, base + 0x2000, 16), None);
        assert_eq!(find(base, base + 0x1001, base + 0x2000, 16), None);
        assert_eq!(find(base, base + 0x1000, base + 0x2002, 16), None);
        assert_eq!(find(base, base + 0x1000, base + 0x3000 - 6 - 128 + 4, 16), None, "a word beyond the end");
        assert_eq!(find(base + 0x2000, base, base, 512), None, "its table is too long");
        assert_eq!(find(u64::MAX - 15, base, base, 16), None, "it wraps");
        assert_eq!(find(0, 0, 0, 16), None);
        assert_eq!(Ring::default().find(&table), None);
    }
}
