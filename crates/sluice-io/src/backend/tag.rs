//! The object of an operation of the ring, packed into the operation's user data.
//!
//! ```text
//!     bits  63..56         55..48       31..0
//!           owner          operation    index of the object in its owner's table
//! ```
//!
//! The owner is the loop (its wake-up and its timer), a store, or a frontend. The last two define their operations themselves.

use crate::slab::FrontendNumber;
use crate::store::{StoreEvent, StoreNumber};

const WAKEUP: u8 = 1;
const TIMER: u8 = 2;
const IGNORED: u8 = 3;
const STORES: u8 = 4;
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
    /// An operation of a store.
    Store(StoreEvent),
    /// An operation of a frontend: its kind, and the index of its object in the frontend's table.
    Frontend(FrontendNumber, u8, u32),
}

impl Tag {
    pub(crate) fn pack(self) -> u64 {
        let (owner, operation, index) = match self {
            Tag::Wakeup => (WAKEUP, 0, 0),
            Tag::Timer => (TIMER, 0, 0),
            Tag::Ignored => (IGNORED, 0, 0),
            Tag::Store(StoreEvent { kind: StoreNumber(kind), operation, index }) => (STORES + kind, operation, index),
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
            FRONTENDS.. => Tag::Frontend(FrontendNumber(owner - FRONTENDS), operation, index),
            STORES.. => Tag::Store(StoreEvent { kind: StoreNumber(owner - STORES), operation, index }),
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
            Tag::Store(StoreEvent { kind: StoreNumber(2), operation: 9, index: u32::MAX }),
            Tag::Frontend(FrontendNumber(3), 7, 1 << 31),
        ] {
            assert_eq!(Tag::unpack(tag.pack()), tag);
        }
    }
}
