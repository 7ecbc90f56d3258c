//! The places where hosts meet: blocks that each have one writer. A new kind of place is a file here, and a line in each list of this one.

use std::io;

use sluice_config::Meeting;

mod file;
mod rados;

/// An open place.
pub trait Place {
    /// Whether its name still leads to it: a file that was removed or replaced is where no other host looks.
    ///
    /// # Errors
    /// That of looking.
    fn is_at_its_name(&self) -> io::Result<bool>;

    /// Reads the first `count` blocks.
    ///
    /// # Errors
    /// That of the storage; `UnexpectedEof` if the place is shorter.
    fn read(&self, count: usize) -> io::Result<Vec<u8>>;

    /// Writes whole blocks.
    ///
    /// # Errors
    /// That of the storage.
    fn write(&self, first: usize, bytes: &[u8]) -> io::Result<()>;

    /// Writes blocks of claims if the header and the claims are still as in `before`, which are all blocks as they were read. Returns whether
    /// they were.
    ///
    /// # Errors
    /// That of the storage; `Unsupported` where [`Way`] is not to compare.
    fn write_if(&self, _before: &[u8], _first: usize, _bytes: &[u8]) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Keeps other processes of this host from writing a block, until this place is closed. Where claims are compared it does nothing: a claim that
    /// arrives late changes nothing, and usage that does is written again within a period.
    ///
    /// # Errors
    /// Another process writes it, or it cannot be locked.
    fn lock(&self, block: usize) -> io::Result<()>;
}

/// How a place is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// How claims are changed at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A claim is written as tried, judged by what is read after that, then confirmed or withdrawn.
    Try,
    /// All claims are read and judged, and the claim is written if they are still the same.
    Compare,
}

/// Opens a place.
///
/// # Errors
/// That of the storage: `NotFound` if nothing is there, `Unsupported` if it cannot be a place.
pub fn open(meeting: &Meeting, access: Access) -> io::Result<Box<dyn Place>> {
    Ok(match meeting {
        Meeting::File(path) => Box::new(file::Blocks::open(path, access)?),
        Meeting::Rados(place) => Box::new(rados::OfHosts::open(place, access)?),
    })
}

/// Makes a place full of zeroes.
///
/// # Errors
/// That of the storage, also if something is there.
pub(super) fn make(meeting: &Meeting) -> io::Result<Box<dyn Place>> {
    Ok(match meeting {
        Meeting::File(path) => Box::new(file::Blocks::make(path)?),
        Meeting::Rados(place) => Box::new(rados::OfHosts::make(place)?),
    })
}

pub(super) fn way(meeting: &Meeting) -> Way {
    match meeting {
        Meeting::File(_) => Way::Try,
        Meeting::Rados(_) => Way::Compare,
    }
}

/// Returns how many requests of the storage a read of `count` blocks is.
pub(super) fn requests_of_read(meeting: &Meeting, count: u32, hosts: u8) -> u64 {
    match meeting {
        Meeting::File(_) => 1,
        // The header is in the object of the claims, and each host has an object of its own.
        Meeting::Rados(_) => u64::from(count.min(1 + u32::from(hosts))),
    }
}

/// Returns how many requests of the storage a host makes in a period: it reads what all hosts use, and writes what it does.
pub(super) fn requests_of_period(meeting: &Meeting, hosts: u8) -> u64 {
    requests_of_read(meeting, 1 + u32::from(hosts), hosts) + 1
}
