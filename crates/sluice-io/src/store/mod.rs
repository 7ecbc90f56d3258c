//! Stores: where the data of volumes are, behind the gate.
//!
//! A kind of store is a folder or file with a type that implements `Store`, `Volumes` and `Open`, and a line in the list at the end of
//! this file, from which tags, dispatch and [`StoreSpec`] follow. A device thread has one of each, with all its volumes of that kind: what
//! volumes share (a sync of one file, a connection) is inside. `Stores` is all of them, and a store itself.
//!
//! ```text
//!     Gate --Submission--> [backend] --start(Op)--> [wrappers] --> [Stores] --> null, file, ...
//!                              ^                                       |
//!                              '----------- next_done() <--------------'   event(), from the ring
//! ```
//!
//! A store answers each operation once: `Done::Ok`, `Done::AtHand`, an error, or `Done::TooDear` if it cannot zero by itself. Then the request
//! arrives at the gate again, as the writes that it is; otherwise zeroes would escape the limits of writes.
//!
//! A wrapper is a store around another one, as `delay::Delayed` and `window::Windowed` are. It sees each operation and each result, and wrappers chain.

pub mod delay;
pub mod file;
mod null;
pub(crate) mod rbd;
pub(crate) mod remote;
pub mod slot_log;
pub(crate) mod window;

use std::sync::Arc;

use sluice_sched::gate::Slot;
use sluice_sched::{Instant, Kind, Request};

use crate::backend::ring::Ring;
use crate::slab::{Id as _, IoId, VolumeKey};
use crate::source::claims::Claims;
use crate::source::rbd::Rbd;
use crate::source::remote::Remote;
use crate::source::{Allocation, ByteRange, Facts, FaultReport, Source, Span};
use file::jobs::Jobs;

/// Index of an operation.
///
/// Gate slot `n` has index `2n`. Odd indices are for parts of merged submissions, which share one slot of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpIndex(pub(crate) u32);

/// Number of a kind of store: its position in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreNumber(pub(crate) u8);

/// A volume of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreRef {
    pub(crate) kind: StoreNumber,
    /// Its index among the volumes of this kind.
    pub(crate) index: u32,
}

/// Names of a volume, for log lines.
#[derive(Debug, Clone)]
pub(crate) struct Label {
    pub(crate) vm: String,
    pub(crate) volume: String,
}

/// An operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op<'a> {
    pub(crate) index: OpIndex,
    pub(crate) volume: StoreRef,
    pub(crate) what: What,
    /// Offset from the start of the volume.
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// Whether what it changes is durable when it ends.
    pub(crate) forced: bool,
    pub(crate) memory: Memory,
    /// Slot of the gate, which it shares with the other operations of a merged submission.
    pub(crate) slot: Slot,
    /// The gate's request, with the first operation of the slot.
    pub(crate) first: Option<&'a Request>,
}

/// The effect of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Read,
    Write,
    /// Only of a store that states that it can.
    Zero {
        /// Whether the range stays allocated.
        no_hole: bool,
    },
    /// Advice, which may have no effect.
    Discard,
    Flush,
}

/// The memory of a transfer, which stays until its operation has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Memory {
    None,
    /// One segment, as long as the operation.
    One(*mut u8),
    /// Several segments, and their number.
    Pieces(*mut libc::iovec, u32),
}

/// The result of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    Ok,
    /// As `Ok`, but the storage was not asked: what was never written is known to be zeroes.
    AtHand,
    /// A Linux errno.
    Failed(i32),
    /// The store cannot zero by itself, and has changed nothing. From now on [`Store::info`] states so.
    TooDear,
}

/// The way in which a store zeroes a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zeroing {
    /// By itself, at little cost.
    Cheap,
    /// By itself, and as far as it is known at the cost of a write.
    LikeWrite,
    /// Not by itself: zeroes are written.
    No,
}

/// Properties of a volume that decide how its requests reach the gate and pass it.
#[derive(Debug)]
pub(crate) struct StoreInfo {
    /// Alignment in bytes that the memory of transfers needs; `None`: it stores no data, and takes none.
    pub(crate) memory: Option<u32>,
    /// Whether writes go through the host's page cache.
    pub(crate) buffered: bool,
    /// Its blocks, if they are larger than those of the guest.
    pub(crate) bridged: Option<Blocks>,
    /// Its way to zero a range that need not stay allocated, and one that must.
    pub(crate) zeroing: (Zeroing, Zeroing),
}

/// Blocks of a store that guests write in part.
#[derive(Debug)]
pub(crate) struct Blocks {
    pub(crate) size: u32,
    pub(crate) claims: Claims,
}

/// A query for the allocated parts of a range.
pub(crate) struct AllocationQuery {
    /// The request that asks.
    pub(crate) io: IoId,
    /// In bytes of the volume.
    pub(crate) part: ByteRange,
    /// Maximum number of spans in the answer.
    pub(crate) spans_max: usize,
}

/// The answer of a store to a query.
pub(crate) enum Answer {
    Known(Vec<Span>),
    /// A helper thread answers.
    Later,
    /// A Linux errno.
    Failed(i32),
}

/// The parts of the device thread that a store uses.
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) ring: &'a mut Ring,
    pub(crate) jobs: &'a Jobs,
}

/// A store, or a wrapper around one. It never blocks.
pub(crate) trait Store {
    /// Returns what is known of a volume now.
    fn info(&self, volume: StoreRef) -> &StoreInfo;

    /// Starts an operation. Its end is reported by [`Store::next_done`], possibly immediately.
    fn start(&mut self, context: &mut Context<'_>, op: &Op<'_>);

    /// Handles the result of an operation of the ring, which the store has pushed with a tag of its own.
    fn event(&mut self, context: &mut Context<'_>, event: StoreEvent, result: i32) {
        let _ = (context, event, result);
    }

    /// Returns an operation that has ended. Called until it returns `None`.
    fn next_done(&mut self, now: Instant) -> Option<(OpIndex, Done)>;

    /// Returns when the next operation ends without an event of the ring.
    fn next_wakeup(&self) -> Option<Instant> {
        None
    }
}

/// An operation of the ring that belongs to a store: which operation it is, and its index, are the store's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreEvent {
    pub(crate) kind: StoreNumber,
    pub(crate) operation: u8,
    pub(crate) index: u32,
}

/// The volumes of a kind of store.
pub(crate) trait Volumes: Store {
    /// Removes a volume without operations.
    fn close(&mut self, volume: u32, jobs: &Jobs);

    /// Returns what is needed to open a volume again.
    fn describe(&self, volume: u32) -> StoreSpec;

    /// Returns the address of a byte on the device; `None` if it is not known.
    fn address(&self, volume: u32, offset: u64) -> Option<u64> {
        let _ = (volume, offset);
        None
    }

    /// Finds the parts of a range that hold data.
    fn allocation(&self, volume: u32, query: &AllocationQuery, jobs: &Jobs) -> Answer {
        let _ = (volume, jobs);
        Answer::Known(vec![Span { length: query.part.length, kind: Allocation::Data }])
    }

    /// Counts a request that has ended, with this error or 0.
    fn count_end(&self, volume: u32, kind: Kind, errno: i32) {
        let _ = (volume, kind, errno);
    }

    /// Returns what has failed.
    fn faults(&self, volume: u32) -> FaultReport {
        let _ = volume;
        FaultReport::default()
    }

    /// Lets writes and flushes succeed again after a loss.
    fn accept_loss(&mut self, volume: u32) {
        let _ = volume;
    }
}

/// A kind of store whose volumes can be opened and resized.
pub(crate) trait Open: Volumes {
    /// A volume, as the control plane states it.
    type Spec;

    fn new(kind: StoreNumber) -> Self;

    /// Adds a volume. Returns its index.
    fn open(&mut self, now: Instant, label: Label, spec: Self::Spec) -> u32;

    /// Gives a volume another size. Operations in flight end as before.
    fn replace(&mut self, volume: u32, spec: Self::Spec);
}

impl StoreInfo {
    /// Returns how it zeroes a range, which stays allocated if `no_hole`.
    pub(crate) fn zeroing(&self, no_hole: bool) -> Zeroing {
        if no_hole { self.zeroing.1 } else { self.zeroing.0 }
    }
}

impl Memory {
    /// The first segment, of at most `bytes`; `None` if there is none.
    pub(crate) fn first(&self, bytes: u32) -> Option<(*mut u8, u32)> {
        match *self {
            Memory::None => None,
            Memory::One(start) => Some((start, bytes)),
            Memory::Pieces(first, count) => {
                // SAFETY: the list stays until the operation has ended, and nothing changes it meanwhile.
                let pieces = unsafe { std::slice::from_raw_parts(first, count as usize) };
                let piece = pieces.iter().find(|piece| piece.iov_len > 0)?;
                Some((piece.iov_base.cast(), bytes.min(u32::try_from(piece.iov_len).unwrap_or(u32::MAX))))
            }
        }
    }

    /// Copies bytes into the first segments, and removes these.
    ///
    /// # Safety
    /// The operation has not ended, and has at least as many bytes.
    pub(crate) unsafe fn fill(&mut self, mut bytes: &[u8]) {
        while let Some((to, length)) = self.first(bytes.len() as u32).filter(|_| !bytes.is_empty()) {
            let (now, later) = bytes.split_at(length as usize);
            // SAFETY: the memory belongs to the operation until it has ended, and has as many bytes. A guest that reads or writes it
            // meanwhile gets what it asked for.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), to, now.len()) };
            // SAFETY: the caller's promise.
            unsafe { self.advance(now.len()) };
            bytes = later;
        }
    }

    /// Removes the first `bytes`.
    ///
    /// # Safety
    /// The operation has not ended, and has more than `bytes`.
    pub(crate) unsafe fn advance(&mut self, mut bytes: usize) {
        match self {
            Memory::None => {}
            Memory::One(start) => *start = start.wrapping_add(bytes),
            Memory::Pieces(first, count) => {
                // SAFETY: the list stays until the operation has ended, nothing else refers to it, and it has more than `bytes`.
                let mut pieces = unsafe { std::slice::from_raw_parts_mut(*first, *count as usize) };
                while let Some(piece) = pieces.split_off_first_mut() {
                    if piece.iov_len > bytes {
                        piece.iov_base = piece.iov_base.wrapping_byte_add(bytes);
                        piece.iov_len -= bytes;
                        return;
                    }
                    bytes -= piece.iov_len;
                    (*first, *count) = (pieces.as_mut_ptr(), *count - 1);
                }
            }
        }
    }
}

/// Defines [`StoreSpec`] and [`Stores`] from the list of stores: its field and variant, what the control plane states of a volume, its type.
macro_rules! stores {
    ($($(#[$doc:meta])* $field:ident: $name:ident $(($spec:ident: $stated:ty))? = $type:ty,)+) => {
        enum Number {
            $($name,)+
        }

        /// Location of a volume's data, as the control plane states it.
        #[derive(Debug, Clone)]
        pub enum StoreSpec {
            $($(#[$doc])* $name $(($stated))?,)+
        }

        /// All stores of a device thread.
        pub(crate) struct Stores {
            $(pub(crate) $field: $type,)+
        }

        impl Stores {
            pub(crate) fn new() -> Self {
                Stores { $($field: <$type>::new(StoreNumber(Number::$name as u8)),)+ }
            }

            pub(crate) fn open(&mut self, now: Instant, label: Label, spec: StoreSpec) -> StoreRef {
                match spec {
                    $(StoreSpec::$name $(($spec))? => StoreRef {
                        kind: StoreNumber(Number::$name as u8),
                        index: self.$field.open(now, label, { $($spec)? }),
                    },)+
                }
            }

            /// The kind of the store stays.
            pub(crate) fn replace(&mut self, volume: StoreRef, spec: StoreSpec) {
                match spec {
                    $(StoreSpec::$name $(($spec))? if volume.kind.0 == Number::$name as u8 => {
                        self.$field.replace(volume.index, { $($spec)? });
                    })+
                    spec => unreachable!("a volume does not become {spec:?}"),
                }
            }

            /// Returns the store of a volume.
            pub(crate) fn of(&self, volume: StoreRef) -> &dyn Volumes {
                $(if volume.kind.0 == Number::$name as u8 {
                    return &self.$field;
                })+
                unreachable!("no store has the number {}", volume.kind.0)
            }

            pub(crate) fn of_mut(&mut self, volume: StoreRef) -> &mut dyn Volumes {
                $(if volume.kind.0 == Number::$name as u8 {
                    return &mut self.$field;
                })+
                unreachable!("no store has the number {}", volume.kind.0)
            }
        }

        impl Store for Stores {
            fn info(&self, volume: StoreRef) -> &StoreInfo {
                $(if volume.kind.0 == Number::$name as u8 {
                    return self.$field.info(volume);
                })+
                unreachable!("no store has the number {}", volume.kind.0)
            }

            fn start(&mut self, context: &mut Context<'_>, op: &Op<'_>) {
                $(if op.volume.kind.0 == Number::$name as u8 {
                    return self.$field.start(context, op);
                })+
            }

            fn event(&mut self, context: &mut Context<'_>, event: StoreEvent, result: i32) {
                $(if event.kind.0 == Number::$name as u8 {
                    return self.$field.event(context, event, result);
                })+
            }

            fn next_done(&mut self, now: Instant) -> Option<(OpIndex, Done)> {
                None$(.or_else(|| self.$field.next_done(now)))+
            }

            fn next_wakeup(&self) -> Option<Instant> {
                [$(self.$field.next_wakeup()),+].into_iter().flatten().min()
            }
        }
    };
}

impl StoreSpec {
    /// Returns what is known of its source, whatever its kind; `None` if it has none.
    #[must_use]
    pub fn facts(&self) -> Option<&Facts> {
        match self {
            StoreSpec::Null => None,
            StoreSpec::File(file) => Some(&file.source),
            StoreSpec::Remote(source) => Some(source),
            StoreSpec::Rbd(source) => Some(source),
        }
    }

    /// Returns the open file or block device; `None` if it is in none.
    #[must_use]
    pub fn source(&self) -> Option<&Arc<Source>> {
        if let StoreSpec::File(file) = self { Some(&file.source) } else { None }
    }
}

impl Stores {
    /// Returns the address of a byte of a volume on the device. Volumes without a known address are far apart.
    pub(crate) fn address(&self, store: StoreRef, volume: VolumeKey, offset: u64) -> u64 {
        let apart = u64::from(volume.index()) << 44;
        self.of(store).address(store.index, offset).unwrap_or(apart + offset)
    }
}

stores! {
    /// Nowhere: reads return zeroes, and every request completes immediately. For measurements.
    null: Null = null::Null,
    /// In a file, a block device, or a range of one.
    file: File(spec: file::FileSpec) = file::FileStore,
    /// At another server, over NBD.
    remote: Remote(source: Arc<Source<Remote>>) = remote::RemoteStore,
    /// In an image of a Ceph cluster, over librbd.
    rbd: Rbd(source: Arc<Source<Rbd>>) = rbd::RbdStore,
}

#[cfg(test)]
mod tests;
