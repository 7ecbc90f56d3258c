//! The operation that an event of the ring completes: its kind and the index of its object, packed into the user data.

/// The kind of operation that an event of the ring completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Tag {
    Wakeup = 1,
    Receive = 2,
    Send = 3,
    Disk = 4,
    /// A guest has added requests to a queue.
    Kick = 5,
    /// An interrupt for a guest.
    Call = 6,
    /// Another operation of a queue.
    Other = 7,
}

pub(crate) fn tag(tag: Tag, index: u32) -> u64 {
    (tag as u64) << 56 | u64::from(index)
}

pub(crate) fn untag(user_data: u64) -> (Tag, u32) {
    let tag = match user_data >> 56 {
        1 => Tag::Wakeup,
        2 => Tag::Receive,
        3 => Tag::Send,
        4 => Tag::Disk,
        5 => Tag::Kick,
        6 => Tag::Call,
        7 => Tag::Other,
        other => unreachable!("no operation was tagged {other}"),
    };
    (tag, user_data as u32)
}
