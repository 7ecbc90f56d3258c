//! The object of an operation of the ring, packed into the operation's user data.
//!
//! ```text
//!     bits  63..56         55..48       31..0
//!           owner          operation    index of the object in its owner's table
//! ```
//!
//! The owner is the loop (its wake-up and its timer), the disk, or a frontend, which defines its operations itself.

use crate::backend::device_queue::OpIndex;
use crate::slab::FrontendNumber;

const WAKEUP: u8 = 1;
const DISK: u8 = 2;
const TIMER: u8 = 3;
const IGNORED: u8 = 4;
const FRONTENDS: u8 = 16;

/// The object of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag {
    /// The mailbox has a message.
    Wakeup,
    /// The deadline timer has fired.
    Timer,
    /// An operation whose result is ignored.
    Ignored,
    /// An operation of the disk.
    Disk(OpIndex),
    /// An operation of a frontend: its kind, and the index of its object in the frontend's table.
    Frontend(FrontendNumber, u8, u32),
}

impl Tag {
    pub(crate) fn pack(self) -> u64 {
        let (owner, operation, index) = match self {
            Tag::Wakeup => (WAKEUP, 0, 0),
            Tag::Timer => (TIMER, 0, 0),
            Tag::Ignored => (IGNORED, 0, 0),
            Tag::Disk(index) => (DISK, 0, index.0),
            Tag::Frontend(FrontendNumber(number), operation, index) => (FRONTENDS + number, operation, index),
        };
        u64::from(owner) << 56 | u64::from(operation) << 48 | u64::from(index)
    }

    pub(crate) fn unpack(user_data: u64) -> Self {
        let (owner, operation, index) = ((user_data >> 56) as u8, (user_data >> 48) as u8, user_data as u32);
        match owner {
            WAKEUP => Tag::Wakeup,
            TIMER => Tag::Timer,
            IGNORED => Tag::Ignored,
            DISK => Tag::Disk(OpIndex(index)),
            FRONTENDS.. => Tag::Frontend(FrontendNumber(owner - FRONTENDS), operation, index),
            other => unreachable!("no operation has the owner {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_survives_packing() {
        for tag in [
            Tag::Wakeup,
            Tag::Timer,
            Tag::Ignored,
            Tag::Disk(OpIndex(u32::MAX)),
            Tag::Frontend(FrontendNumber(3), 7, 1 << 31),
        ] {
            assert_eq!(Tag::unpack(tag.pack()), tag);
        }
    }
}
