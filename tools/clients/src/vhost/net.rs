//! A vhost-user-net front end without a VM: one receive and one transmit queue, polled.
//!
//! Chains of the transmit queue have two descriptors, the header and the frame; buffers of the receive queue one. The front end
//! outlives its connection ([`NetClient::reconnect`]), and then states the base of a VMM whose back end has crashed: the used index.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MAC, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_MTU,
};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

use super::ClientError;
use super::memory::{Memory, PAGE};
use super::ring::{Descriptor, NEXT, Ring, WRITE};
use super::session::Session;

/// Index of the receive queue.
pub const RECEIVE: u16 = 0;
/// Index of the transmit queue.
pub const TRANSMIT: u16 = 1;
/// Length of the header before each frame.
pub const HEADER_LEN: usize = 12;
/// Length of a receive buffer.
pub const BUFFER_LEN: usize = 2048;
/// Room for a transmitted frame with its header.
const SLOT_LEN: usize = 17 * PAGE;

/// Features that are accepted if the device offers them.
pub const ALL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    | 1 << VIRTIO_F_VERSION_1
    | 1 << VIRTIO_RING_F_EVENT_IDX
    | 1 << VIRTIO_NET_F_CSUM
    | 1 << VIRTIO_NET_F_GUEST_CSUM
    | 1 << VIRTIO_NET_F_HOST_TSO4
    | 1 << VIRTIO_NET_F_HOST_TSO6
    | 1 << VIRTIO_NET_F_GUEST_TSO4
    | 1 << VIRTIO_NET_F_GUEST_TSO6
    | 1 << VIRTIO_NET_F_MAC
    | 1 << VIRTIO_NET_F_MTU
    | 1 << VIRTIO_NET_F_MRG_RXBUF;

/// Options of a connection.
#[derive(Debug, Clone)]
pub struct NetOptions {
    /// Entries of each ring, a power of two.
    pub queue_size: u16,
    /// Frames that may be on their way.
    pub slots: u16,
    /// Features to accept if the device offers them.
    pub features: u64,
    /// Receive buffers that the device gets at the start.
    pub buffers: u16,
    /// Maximum wait for a message.
    pub timeout: Duration,
}

impl Default for NetOptions {
    fn default() -> Self {
        NetOptions {
            queue_size: 256,
            slots: 64,
            features: ALL_FEATURES,
            buffers: 256,
            timeout: Duration::from_secs(10),
        }
    }
}

#[derive(Debug)]
struct Half {
    ring: Ring,
    kick: OwnedFd,
    call: OwnedFd,
    /// Next entry of the available ring.
    next: u16,
    /// Index of the used ring up to which chains were taken back.
    seen: u16,
}

impl Half {
    fn new(memory: &Arc<Memory>, offset: usize, size: u16) -> Result<Self, ClientError> {
        let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let made = |event: rustix::io::Result<OwnedFd>| event.map_err(|error| ClientError::Connect(error.into()));
        let ring = Ring::new(Arc::clone(memory), offset, size);
        Ok(Half { ring, kick: made(event())?, call: made(event())?, next: 0, seen: 0 })
    }

    fn publish(&mut self, heads: &[u16], event_index: bool) -> Result<(), ClientError> {
        let before = self.next;
        for head in heads {
            self.ring.write_available(self.next, *head);
            self.next = self.next.wrapping_add(1);
        }
        self.ring.set_available_index(self.next);
        if self.ring.wants_kick(event_index, before, self.next) {
            rustix::io::write(&self.kick, &1u64.to_ne_bytes()).map_err(|error| ClientError::Io(error.into()))?;
        }
        Ok(())
    }
}

/// A received frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The header of [`HEADER_LEN`] bytes.
    pub header: Vec<u8>,
    pub frame: Vec<u8>,
}

/// A front end with its memory and rings, connected or not.
#[derive(Debug)]
pub struct NetClient {
    options: NetOptions,
    memory: Arc<Memory>,
    session: Option<Session>,
    receive: Half,
    transmit: Half,
    /// Offset of the receive buffers, and of the transmit slots.
    buffers: usize,
    slots: usize,
    free: Vec<u16>,
    /// Slots in the order in which their chains were returned.
    returned: Vec<u16>,
    features: u64,
}

impl NetClient {
    /// Connects, starts both queues, and gives the device its receive buffers.
    ///
    /// # Errors
    /// [`ClientError::Connect`], or an error of the exchange.
    pub fn connect(path: &Path, options: &NetOptions) -> Result<NetClient, ClientError> {
        let size = options.queue_size;
        let rings = 2 * Ring::len_bytes(size);
        let buffers = rings;
        let slots = buffers + usize::from(size) * BUFFER_LEN;
        let len = slots + usize::from(options.slots) * SLOT_LEN;
        let memory = Arc::new(Memory::new(len.next_multiple_of(PAGE), 1).map_err(ClientError::Connect)?);
        let mut client = NetClient {
            receive: Half::new(&memory, 0, size)?,
            transmit: Half::new(&memory, rings / 2, size)?,
            memory,
            session: None,
            buffers,
            slots,
            free: (0..options.slots).rev().collect(),
            returned: Vec::new(),
            features: 0,
            options: options.clone(),
        };
        client.start(path, 0, 0)?;
        let posted: Vec<u16> = (0..options.buffers.min(size)).collect();
        client.post(&posted)?;
        Ok(client)
    }

    /// Reconnects like a VMM whose back end has crashed: both rings continue at their used indices.
    ///
    /// # Errors
    /// As [`NetClient::connect`].
    pub fn reconnect(&mut self, path: &Path) -> Result<(), ClientError> {
        self.session = None;
        let bases = (self.receive.ring.used_index(), self.transmit.ring.used_index());
        self.start(path, bases.0, bases.1)
    }

    /// Closes the connection.
    pub fn disconnect(&mut self) {
        self.session = None;
    }

    fn start(&mut self, path: &Path, receive: u16, transmit: u16) -> Result<(), ClientError> {
        let mut session = Session::connect(path, self.options.timeout)?;
        let wanted = VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::CONFIG;
        session.set_protocol_features(session.protocol_features()? & wanted.bits())?;
        session.set_owner()?;
        // As QEMU does: the rings are enabled before the features are set.
        session.enable_ring(RECEIVE, true)?;
        session.enable_ring(TRANSMIT, true)?;
        self.features = session.features()? & self.options.features;
        session.set_features(self.features)?;
        session.set_memory_table(&self.memory)?;
        for (index, half, base) in [(RECEIVE, &self.receive, receive), (TRANSMIT, &self.transmit, transmit)] {
            session.set_ring_size(index, self.options.queue_size.into())?;
            session.set_ring_base(index, base)?;
            session.set_ring_addresses(index, half.ring.parts().map(|offset| self.memory.user(offset)))?;
            session.set_ring_call(index, Some(half.call.as_fd()))?;
            session.set_ring_kick(index, Some(half.kick.as_fd()))?;
        }
        self.session = Some(session);
        Ok(())
    }

    /// Returns the connection, for messages of any kind.
    ///
    /// # Errors
    /// [`ClientError::Closed`] after [`NetClient::disconnect`].
    pub fn session(&self) -> Result<&Session, ClientError> {
        self.session.as_ref().ok_or(ClientError::Closed)
    }

    fn has(&self, feature: u32) -> bool {
        self.features & 1 << feature != 0
    }

    /// Transmits frames with their headers, each in two descriptors, or in one if the header is empty: then the frame has to begin with it.
    /// Those for which no slot is free are left out; returns how many were sent.
    ///
    /// # Errors
    /// [`ClientError::Io`], [`ClientError::TooLong`].
    pub fn send(&mut self, frames: &[(&[u8], &[u8])]) -> Result<usize, ClientError> {
        let mut heads = Vec::new();
        for (header, frame) in frames {
            if header.len() + frame.len() > SLOT_LEN {
                return Err(ClientError::TooLong { len_bytes: frame.len() });
            }
            let Some(slot) = self.free.pop() else { break };
            let place = self.slots + usize::from(slot) * SLOT_LEN;
            self.memory.write(place, header);
            self.memory.write(place + header.len(), frame);
            let (first, second) = (2 * slot, 2 * slot + 1);
            let address = self.memory.guest(place);
            let header_len = header.len() as u32;
            let mut last = first;
            if header_len > 0 {
                self.write(first, Descriptor { address, len: header_len, flags: NEXT, next: second });
                last = second;
            }
            let address = self.memory.guest(place + header.len());
            self.write(last, Descriptor { address, len: frame.len() as u32, flags: 0, next: 0 });
            heads.push(first);
        }
        let event_index = self.has(VIRTIO_RING_F_EVENT_IDX);
        self.transmit.publish(&heads, event_index)?;
        Ok(heads.len())
    }

    fn write(&self, index: u16, descriptor: Descriptor) {
        self.transmit.ring.write_descriptor(index % self.options.queue_size, descriptor);
    }

    /// Takes returned chains of the transmit queue back, and returns the slots of the frames in the order in which they were returned.
    pub fn reclaim(&mut self) -> Vec<u16> {
        let used = self.transmit.ring.used_index();
        while self.transmit.seen != used {
            let slot = (self.transmit.ring.used(self.transmit.seen).head / 2) as u16;
            self.transmit.seen = self.transmit.seen.wrapping_add(1);
            self.free.push(slot);
            self.returned.push(slot);
        }
        std::mem::take(&mut self.returned)
    }

    /// Returns the used index and the available index of the transmit ring.
    #[must_use]
    pub fn transmit_indices(&self) -> (u16, u16) {
        (self.transmit.ring.used_index(), self.transmit.next)
    }

    /// Gives receive buffers to the device.
    ///
    /// # Errors
    /// [`ClientError::Io`].
    pub fn post(&mut self, buffers: &[u16]) -> Result<(), ClientError> {
        for &buffer in buffers {
            let address = self.memory.guest(self.buffers + usize::from(buffer) * BUFFER_LEN);
            let descriptor = Descriptor { address, len: BUFFER_LEN as u32, flags: WRITE, next: 0 };
            self.receive.ring.write_descriptor(buffer, descriptor);
        }
        let event_index = self.has(VIRTIO_RING_F_EVENT_IDX);
        self.receive.publish(buffers, event_index)
    }

    /// Returns the next received frame with its header, and gives its buffers back to the device if `again`.
    ///
    /// # Errors
    /// [`ClientError::Io`]; [`ClientError::Protocol`] if the device states more buffers than it has returned.
    pub fn receive(&mut self, again: bool) -> Result<Option<Received>, ClientError> {
        let used = self.receive.ring.used_index();
        if used == self.receive.seen {
            return Ok(None);
        }
        let mut bytes = self.buffer(self.receive.seen);
        let mut buffers = vec![self.receive.ring.used(self.receive.seen).head as u16];
        let count = u16::from_le_bytes([bytes[10], bytes[11]]).max(1);
        if used.wrapping_sub(self.receive.seen) < count {
            return Err(ClientError::Protocol { what: "a frame has more buffers than were returned" });
        }
        for at in 1..count {
            let position = self.receive.seen.wrapping_add(at);
            bytes.extend(self.buffer(position));
            buffers.push(self.receive.ring.used(position).head as u16);
        }
        self.receive.seen = self.receive.seen.wrapping_add(count);
        if again {
            self.post(&buffers)?;
        }
        let frame = bytes.split_off(HEADER_LEN);
        Ok(Some(Received { header: bytes, frame }))
    }

    /// Returns the bytes in the buffer at a position of the used ring.
    fn buffer(&self, position: u16) -> Vec<u8> {
        let used = self.receive.ring.used(position);
        let mut bytes = vec![0; (used.len as usize).min(BUFFER_LEN)];
        self.memory.read(self.buffers + used.head as usize * BUFFER_LEN, &mut bytes);
        bytes
    }
}
