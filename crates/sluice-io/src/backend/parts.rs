//! Requests that are too long to be at the gate as a whole.
//!
//! A request for zeroes, and a read or write of a guest whose driver was told no maximum length, can be 4 GiB long. Such a request
//! arrives at the gate part by part, each part when the previous one has completed: 64 MiB that the device zeroes by itself, 4
//! pieces of zeroes that are written, or as many pieces of a read or write as fit into the window of the VM. The gate charges
//! each piece as a request of its own length. In the VM's window the request holds the bytes of one part, or of the buffer of a bridged
//! request. A copy of a guest's data exists for one part at a time. Other requests of the VM pass between the parts.
//!
//! Most volumes zero by themselves: the file system punches a hole, or the disk has a command. This costs the device
//! little, and the gate charges it per MiB. On other volumes zeroes are written. Such a request is a write at the gate:
//! charged by its length, counted against limits in bytes, and split as writes are. If its store finds out only by an attempt that it
//! cannot zero, the slot ends without effect, and the request arrives again, as a write of the range that is not zeroed yet.
//!
//! Example: a VM is limited to 1 MiB/s and zeroes 4 GiB on a volume that cannot zero by itself. Its next read waits for the 1 MiB
//! that is at the gate, which takes a second, and not for 4 GiB, which take 68 minutes.

use sluice_sched::{GateSettings, Kind};

use crate::backend::disk::Backend;
use crate::backend::request::{Body, IoRequest, Place};
use crate::reactor::spec::Window;
use crate::slab::IoId;
use crate::store::{StoreInfo, Zeroing};

/// Pieces of a write that one request for zeroes has at the gate concurrently. Few, because later requests of its VM wait
/// until they complete; several, so that the device has the next piece while it writes one.
const PIECES: u64 = 4;

/// Determines the next arrival at the gate: sets `part` of the request to the number of bytes after `done`, and returns
/// the kind and the number of bytes by which the request's share of its VM's window grows.
pub(crate) fn next_part(io: &mut IoRequest, store: &StoreInfo, settings: &GateSettings, window: Window) -> (Kind, u64) {
    let kind = io.gate_kind();
    io.part = io.gate_length() - io.done;
    let (kind, part_max) = match io.body {
        Body::Read | Body::Write => (kind, transfer_max(settings, window)),
        Body::Zero { no_hole, .. } => match store.zeroing(no_hole) {
            Zeroing::Cheap => (kind, settings.discard_max.0.max(512)),
            Zeroing::LikeWrite | Zeroing::No => {
                (Kind::Write, transfer_max(settings, window).min(piece_max(settings) * PIECES))
            }
        },
        Body::Refused if kind == Kind::Write => (kind, transfer_max(settings, window)),
        Body::Flush | Body::Discard | Body::Query(_) | Body::Answered | Body::Refused => return (kind, 0),
    };
    io.part = u32::try_from(part_max).map_or(io.part, |most| io.part.min(most));
    let needed = u64::from(io.part).max(io.bridge_len().unwrap_or(0) as u64);
    let more = if kind == Kind::WriteZeroes { 0 } else { needed.saturating_sub(io.occupies.window) };
    io.occupies.window += more;
    (kind, more)
}

impl Backend {
    /// Records that the gate has completed the part of a request. What was read into a copy of a guest's data goes to the guest.
    /// Returns whether another part follows.
    pub(crate) fn part_done(&mut self, id: IoId) -> bool {
        let io = &self.ios[id];
        // The memory of a guest whose VMM has disconnected is not written any more.
        if let (Some(guest), Place::Buffer(buffer), Body::Read) = (&io.data.guest, &io.data.place, &io.body)
            && io.errno == 0
            && !io.abandoned
            && io.bridge.is_none()
        {
            guest.fill(io.done, buffer.bytes(io.part as usize));
        }
        self.drop_copy(id);
        let io = &mut self.ios[id];
        io.done += io.part;
        io.done < io.gate_length()
    }

    /// Gives up the copy of a guest's data, of which nothing is at the disk. The next part may have another length. The steps of
    /// a bridged request share one buffer, which stays.
    pub(crate) fn drop_copy(&mut self, id: IoId) {
        let io = &mut self.ios[id];
        if io.data.guest.is_some() && io.bridge_len().is_none() {
            io.data.take_buffer().into_iter().for_each(|buffer| self.pool.give(buffer));
        }
    }
}

fn piece_max(settings: &GateSettings) -> u64 {
    settings.transfer_max.0.max(512)
}

/// Returns the maximum number of bytes that one read or write has at the gate: as many whole pieces as the window has room for,
/// and at least one.
pub(crate) fn transfer_max(settings: &GateSettings, window: Window) -> u64 {
    let piece = piece_max(settings);
    (window.bytes / piece).max(1).saturating_mul(piece)
}
