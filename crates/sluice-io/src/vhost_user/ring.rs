//! The state of one ring as its VMM has set it, and when the ring can start.
//!
//! A ring starts when everything is set: memory, features, size, addresses, a kick descriptor, and that it is enabled.
//! It stops when the VMM requests its base, and then waits for another kick descriptor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use vm_memory::GuestAddress;

use super::eventfd::is_eventfd;
use super::memory::Table;
use crate::closing::Received;

/// Maximum number of entries of a ring.
pub const ENTRIES_MAX: u16 = 1024;

/// Why the state of a ring cannot be set.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The ring does not exist.
    #[error("There is no ring {0}")]
    Unknown(u32),
    /// The number of entries is invalid.
    #[error("A ring of {0} entries is invalid; use a power of two, at most {ENTRIES_MAX}")]
    Size(u32),
    /// The index does not have 16 bits.
    #[error("Invalid index {0} of an available ring")]
    Base(u32),
    /// The field can be set only while the ring is stopped.
    #[error("Ring {0} is running; stop it first")]
    Running(u32),
    /// The flag for dirty logging, which is not offered.
    #[error("Ring {0}: dirty logging is not supported")]
    Log(u32),
    /// The addresses are not in guest memory, or not aligned.
    #[error("Ring {0}: each of its three areas must be aligned and lie within one memory region")]
    Addresses(u32),
    /// There is no kick descriptor, so the ring would have to be polled all the time.
    #[error("Ring {0} has no kick descriptor; polling is not supported")]
    Polling(u32),
    /// The descriptor is not an eventfd.
    #[error("Notification descriptor must be an eventfd")]
    NoEventfd,
    /// A system call failed.
    #[error("Cannot use a notification descriptor: {0}")]
    Io(#[from] io::Error),
}

/// Addresses of a ring in the VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserRingAddresses {
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
}

/// Addresses of a ring in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingAddresses {
    pub descriptors: GuestAddress,
    pub available: GuestAddress,
    pub used: GuestAddress,
}

/// One ring.
#[derive(Debug, Default)]
pub struct Ring {
    /// Number of entries; 0 if not set yet.
    pub size: u16,
    /// `None` if not set yet.
    pub addresses: Option<UserRingAddresses>,
    /// Index of the next entry of the available ring.
    pub base: u16,
    /// The kick descriptor, which starts the ring; moved to the device thread at the start.
    pub kick: Option<OwnedFd>,
    /// Signalled for the guest.
    pub call: Option<Arc<OwnedFd>>,
    /// Signalled when the guest has broken the ring.
    pub error: Option<Arc<OwnedFd>>,
    /// Whether the VMM has enabled it.
    pub enabled: bool,
    /// Addresses with which it is running.
    pub running: Option<RingAddresses>,
}

impl Ring {
    /// Returns the guest addresses, if each area lies within one region, is aligned as VIRTIO 1.3, 2.7 requires, and
    /// has room for the notification fields after it.
    #[must_use]
    pub fn find(&self, memory: &Table) -> Option<RingAddresses> {
        let UserRingAddresses { descriptors, available, used } = self.addresses?;
        let size = u64::from(self.size);
        let find = |user, len, alignment: u64| {
            memory.translate(user, len).filter(|address| address.0.is_multiple_of(alignment))
        };
        Some(RingAddresses {
            descriptors: find(descriptors, 16 * size, 16)?,
            available: find(available, 6 + 2 * size, 2)?,
            used: find(used, 6 + 8 * size, 4)?,
        })
    }
}

/// Makes an eventfd non-blocking. Any other descriptor is rejected: it could block forever, or be one of the daemon's
/// files.
///
/// # Errors
/// [`RingError::NoEventfd`], [`RingError::Io`].
pub fn eventfd(descriptor: Received) -> Result<OwnedFd, RingError> {
    if !is_eventfd(&descriptor)? {
        return Err(RingError::NoEventfd);
    }
    let flags = fcntl_getfl(descriptor.as_fd()).map_err(io::Error::from)?;
    fcntl_setfl(descriptor.as_fd(), flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
    Ok(descriptor.into_checked())
}

#[cfg(test)]
mod tests {
    use rustix::event::EventfdFlags;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use vhost::vhost_user::message::VhostUserMemoryRegion;

    use super::*;
    use crate::closing::Closing;
    use crate::vhost_user::mapping::MappingOwner;

    #[test]
    fn only_eventfds_are_accepted_for_notifications() {
        let received = |descriptor| Received::new(descriptor, &Closing::default());
        let made = eventfd(received(rustix::event::eventfd(0, EventfdFlags::empty()).unwrap())).unwrap();
        assert!(fcntl_getfl(&made).unwrap().contains(OFlags::NONBLOCK));
        let (pipe, _) = io::pipe().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let folder = rustix::fs::open(".", OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        // The kernel creates it in the same way as eventfds.
        let timer =
            rustix::time::timerfd_create(rustix::time::TimerfdClockId::Monotonic, rustix::time::TimerfdFlags::empty());
        for other in [pipe.into(), null.into(), folder, timer.unwrap()] {
            assert!(matches!(eventfd(received(other)), Err(RingError::NoEventfd)));
        }
    }

    #[test]
    fn each_area_of_a_ring_is_aligned_and_within_one_region() {
        let fault_event = Arc::new(rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 0x3000).unwrap();
        let region = VhostUserMemoryRegion::new(0x10_0000, 0x3000, 0x7000_0000, 0);
        let table =
            Table::empty(MappingOwner { fault_event: Some(fault_event), quota: None }).with(&region, &file).unwrap();
        let find = |descriptors, available, used, size| {
            let addresses = UserRingAddresses { descriptors, available, used };
            Ring { size, addresses: Some(addresses), ..Ring::default() }.find(&table)
        };
        let base = 0x7000_0000;
        let expected = RingAddresses {
            descriptors: GuestAddress(0x10_0000),
            available: GuestAddress(0x10_1000),
            used: GuestAddress(0x10_2000),
        };
        assert_eq!(find(base, base + 0x1000, base + 0x2000, 256), Some(expected));
        assert_eq!(find(base + 8, base + 0x1000, base + 0x2000, 16), None);
        assert_eq!(find(base, base + 0x1001, base + 0x2000, 16), None);
        assert_eq!(find(base, base + 0x1000, base + 0x2002, 16), None);
        assert_eq!(find(base, base + 0x1000, base + 0x3000 - 6 - 128 + 4, 16), None, "a field past the end");
        assert_eq!(find(base + 0x2000, base, base, 512), None, "its table is too long");
        assert_eq!(find(u64::MAX - 15, base, base, 16), None, "its addresses wrap around");
        assert_eq!(find(0, 0, 0, 16), None);
        assert_eq!(Ring::default().find(&table), None);
    }
}
