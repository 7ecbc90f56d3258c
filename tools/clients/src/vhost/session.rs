//! The front end's half of the message exchange: one method per message.
//!
//! With REPLY_ACK every message without a reply is acknowledged, and a refusal is an error here. Messages are sent in
//! any order and state, because tests need that.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost::vhost_user::message::{
    BackendReq, FrontendReq, VhostUserConfig, VhostUserConfigFlags, VhostUserInflight, VhostUserMemory,
    VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserSingleMemoryRegion, VhostUserVringAddr,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vm_memory::ByteValued;

use super::ClientError;
use super::link::{Link, Message, NEED_REPLY, REPLY};
use super::memory::{Memory, Region};

/// Value in a message about a ring's descriptor: there is none.
pub const NO_DESCRIPTOR: u64 = 1 << 8;

/// The in-flight log of a device: memory that the back end creates and the front end keeps for the next back end.
#[derive(Debug)]
pub struct Inflight {
    pub file: OwnedFd,
    /// Length, in bytes.
    pub len: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Number of queues.
    pub queues: u16,
    /// Number of entries of each queue.
    pub queue_size: u16,
}

/// A connection to a back end.
#[derive(Debug)]
pub struct Session {
    link: Link,
    /// Negotiated protocol features.
    protocol: u64,
    /// The front end's end of the back-end channel, on which the back end sends requests.
    channel: Option<Link>,
    timeout: Duration,
}

impl Session {
    /// Connects. Each wait for a message lasts at most `timeout`.
    ///
    /// # Errors
    /// [`ClientError::Connect`].
    pub fn connect(path: &Path, timeout: Duration) -> Result<Session, ClientError> {
        let stream = UnixStream::connect(path).map_err(ClientError::Connect)?;
        let link = Link::new(stream, timeout).map_err(ClientError::Connect)?;
        Ok(Session { link, protocol: 0, channel: None, timeout })
    }

    /// Returns the socket, for messages of any kind.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Returns the features that the device offers.
    ///
    /// # Errors
    /// As for every message: [`ClientError::Io`], [`ClientError::Closed`], [`ClientError::Protocol`], and
    /// [`ClientError::Refused`] if the message is acknowledged.
    pub fn features(&self) -> Result<u64, ClientError> {
        self.ask_number(FrontendReq::GET_FEATURES, &[])
    }

    pub fn set_features(&self, features: u64) -> Result<(), ClientError> {
        self.tell(FrontendReq::SET_FEATURES, &features.to_ne_bytes(), &[])
    }

    /// Returns the protocol features that the back end offers.
    pub fn protocol_features(&self) -> Result<u64, ClientError> {
        self.ask_number(FrontendReq::GET_PROTOCOL_FEATURES, &[])
    }

    pub fn set_protocol_features(&mut self, features: u64) -> Result<(), ClientError> {
        self.tell(FrontendReq::SET_PROTOCOL_FEATURES, &features.to_ne_bytes(), &[])?;
        self.protocol = features;
        Ok(())
    }

    /// Whether a protocol feature was negotiated.
    #[must_use]
    pub fn has(&self, feature: VhostUserProtocolFeatures) -> bool {
        self.protocol & feature.bits() != 0
    }

    pub fn set_owner(&self) -> Result<(), ClientError> {
        self.tell(FrontendReq::SET_OWNER, &[], &[])
    }

    /// Returns the back end's maximum number of queues.
    pub fn queues_max(&self) -> Result<u64, ClientError> {
        self.ask_number(FrontendReq::GET_QUEUE_NUM, &[])
    }

    /// Returns the back end's maximum number of memory slots.
    pub fn memory_slots_max(&self) -> Result<u64, ClientError> {
        self.ask_number(FrontendReq::GET_MAX_MEM_SLOTS, &[])
    }

    /// Reads the configuration space.
    pub fn config(&self, offset: u32, len: u32) -> Result<Vec<u8>, ClientError> {
        let header = VhostUserConfig::new(offset, len, VhostUserConfigFlags::empty());
        let mut payload = header.as_slice().to_vec();
        payload.resize(payload.len() + len as usize, 0);
        let reply = self.ask(FrontendReq::GET_CONFIG, &payload, &[])?;
        let space = reply.payload.get(header.as_slice().len()..).unwrap_or_default();
        if space.len() != len as usize {
            return Err(ClientError::Protocol { what: "the configuration space has another length" });
        }
        Ok(space.to_vec())
    }

    /// Writes to the configuration space.
    pub fn set_config(&self, offset: u32, bytes: &[u8]) -> Result<(), ClientError> {
        let header = VhostUserConfig::new(offset, bytes.len() as u32, VhostUserConfigFlags::WRITABLE);
        self.tell(FrontendReq::SET_CONFIG, &[header.as_slice(), bytes].concat(), &[])
    }

    /// Sends the memory table.
    pub fn set_memory_table(&self, memory: &Memory) -> Result<(), ClientError> {
        self.set_table(memory, memory.regions())
    }

    /// Sends another table of the same memory.
    pub fn set_table(&self, memory: &Memory, regions: &[Region]) -> Result<(), ClientError> {
        let count = VhostUserMemory::new(regions.len() as u32);
        let mut payload = count.as_slice().to_vec();
        for Region { guest, offset, len } in regions {
            let region = VhostUserMemoryRegion::new(*guest, *len as u64, memory.user(*offset), *offset as u64);
            payload.extend_from_slice(region.as_slice());
        }
        self.tell(FrontendReq::SET_MEM_TABLE, &payload, &vec![memory.as_fd(); regions.len()])
    }

    /// Adds a region to the table.
    pub fn add_region(&self, memory: &Memory, region: Region) -> Result<(), ClientError> {
        self.tell(FrontendReq::ADD_MEM_REG, single(memory, region).as_slice(), &[memory.as_fd()])
    }

    /// Removes a region from the table.
    pub fn remove_region(&self, memory: &Memory, region: Region) -> Result<(), ClientError> {
        self.tell(FrontendReq::REM_MEM_REG, single(memory, region).as_slice(), &[])
    }

    /// Sets the number of entries of a ring.
    pub fn set_ring_size(&self, index: u16, size: u32) -> Result<(), ClientError> {
        self.ring(FrontendReq::SET_VRING_NUM, index, size)
    }

    /// Sets the user addresses of a ring's areas: descriptor table, available ring, used ring.
    pub fn set_ring_addresses(&self, index: u16, parts: [u64; 3]) -> Result<(), ClientError> {
        let [descriptors, available, used] = parts;
        let none = VhostUserVringAddrFlags::empty();
        let address = VhostUserVringAddr::new(u32::from(index), none, descriptors, used, available, 0);
        self.tell(FrontendReq::SET_VRING_ADDR, address.as_slice(), &[])
    }

    /// Sets the next entry of the available ring that the back end takes.
    pub fn set_ring_base(&self, index: u16, base: u16) -> Result<(), ClientError> {
        self.ring(FrontendReq::SET_VRING_BASE, index, u32::from(base))
    }

    /// Stops a ring and returns the next entry of its available ring that the back end would take.
    pub fn ring_base(&self, index: u16) -> Result<u16, ClientError> {
        let state = VhostUserVringState::new(u32::from(index), 0);
        let reply = self.ask(FrontendReq::GET_VRING_BASE, state.as_slice(), &[])?;
        reply.ring_base()
    }

    /// Sets the eventfd by which the front end kicks the back end.
    pub fn set_ring_kick(&self, index: u16, kick: Option<BorrowedFd<'_>>) -> Result<(), ClientError> {
        self.ring_descriptor(FrontendReq::SET_VRING_KICK, index, kick)
    }

    /// Sets the eventfd by which the back end reports completions.
    pub fn set_ring_call(&self, index: u16, call: Option<BorrowedFd<'_>>) -> Result<(), ClientError> {
        self.ring_descriptor(FrontendReq::SET_VRING_CALL, index, call)
    }

    /// Sets the eventfd by which the back end reports a broken ring.
    pub fn set_ring_error(&self, index: u16, error: Option<BorrowedFd<'_>>) -> Result<(), ClientError> {
        self.ring_descriptor(FrontendReq::SET_VRING_ERR, index, error)
    }

    /// Enables or disables a ring.
    pub fn enable_ring(&self, index: u16, enabled: bool) -> Result<(), ClientError> {
        self.ring(FrontendReq::SET_VRING_ENABLE, index, u32::from(enabled))
    }

    /// Requests an in-flight log for `queues` queues of `queue_size` entries.
    pub fn inflight(&self, queues: u16, queue_size: u16) -> Result<Inflight, ClientError> {
        let size = VhostUserInflight::new(0, 0, queues, queue_size);
        let mut reply = self.ask(FrontendReq::GET_INFLIGHT_FD, size.as_slice(), &[])?;
        let bytes = reply
            .payload
            .get(..16)
            .ok_or(ClientError::Protocol { what: "the reply about the in-flight log is too short" })?;
        let (len, offset) = bytes.split_at(8);
        let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        let file = reply.files.pop().ok_or(ClientError::Protocol { what: "the in-flight log has no file" })?;
        Ok(Inflight { file, len: number(len), offset: number(offset), queues, queue_size })
    }

    /// Sends an in-flight log.
    pub fn set_inflight(&self, inflight: &Inflight) -> Result<(), ClientError> {
        let Inflight { file, len, offset, queues, queue_size } = inflight;
        let message = VhostUserInflight::new(*len, *offset, *queues, *queue_size);
        self.tell(FrontendReq::SET_INFLIGHT_FD, message.as_slice(), &[file.as_fd()])
    }

    /// Resets the device.
    pub fn reset_device(&self) -> Result<(), ClientError> {
        self.tell(FrontendReq::RESET_DEVICE, &[], &[])
    }

    /// Opens the back-end channel.
    pub fn open_channel(&mut self) -> Result<(), ClientError> {
        let (ours, theirs) = UnixStream::pair().map_err(ClientError::Io)?;
        self.tell(FrontendReq::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])?;
        self.channel = Some(Link::new(ours, self.timeout).map_err(ClientError::Io)?);
        Ok(())
    }

    /// Waits until the back end reports a change of the configuration space. Returns `false` after `timeout`.
    pub fn config_changed(&self, timeout: Duration) -> Result<bool, ClientError> {
        let channel =
            self.channel.as_ref().ok_or(ClientError::Protocol { what: "the back-end channel is not open" })?;
        let time = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let ready = poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&time));
        if ready.map_err(|error| ClientError::Io(error.into()))? == 0 {
            return Ok(false);
        }
        let message = channel.receive()?;
        if message.flags & NEED_REPLY != 0 {
            channel.send(message.request, REPLY, &0u64.to_ne_bytes(), &[])?;
        }
        match message.request == BackendReq::CONFIG_CHANGE_MSG as u32 {
            true => Ok(true),
            false => Err(ClientError::Protocol { what: "an unknown message on the back-end channel" }),
        }
    }

    /// Sends a message without a reply. With REPLY_ACK it waits for the acknowledgement.
    pub fn tell(&self, request: FrontendReq, payload: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        if !self.has(VhostUserProtocolFeatures::REPLY_ACK) {
            return self.link.send(request as u32, 0, payload, files);
        }
        self.link.send(request as u32, NEED_REPLY, payload, files)?;
        match self.answer(request)?.number()? {
            0 => Ok(()),
            code => Err(ClientError::Refused { request, code }),
        }
    }

    /// Sends a message and waits for its reply.
    pub fn ask(&self, request: FrontendReq, payload: &[u8], files: &[BorrowedFd<'_>]) -> Result<Message, ClientError> {
        self.link.send(request as u32, 0, payload, files)?;
        self.answer(request)
    }

    /// Waits for the reply to a message that was sent with [`Session::link`].
    pub fn answer(&self, request: FrontendReq) -> Result<Message, ClientError> {
        let reply = self.link.receive()?;
        if reply.request != request as u32 || reply.flags & REPLY == 0 {
            return Err(ClientError::Protocol { what: "a reply to another message" });
        }
        Ok(reply)
    }

    fn ask_number(&self, request: FrontendReq, payload: &[u8]) -> Result<u64, ClientError> {
        self.ask(request, payload, &[])?.number()
    }

    fn ring(&self, request: FrontendReq, index: u16, number: u32) -> Result<(), ClientError> {
        self.tell(request, VhostUserVringState::new(u32::from(index), number).as_slice(), &[])
    }

    fn ring_descriptor(
        &self,
        request: FrontendReq,
        index: u16,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), ClientError> {
        let none = if file.is_none() { NO_DESCRIPTOR } else { 0 };
        self.tell(request, &(u64::from(index) | none).to_ne_bytes(), file.as_slice())
    }
}

impl Message {
    /// Returns the payload as a number.
    ///
    /// # Errors
    /// [`ClientError::Protocol`] if it has another length.
    pub fn number(&self) -> Result<u64, ClientError> {
        let bytes = self.payload.as_slice().try_into();
        bytes.map(u64::from_ne_bytes).map_err(|_| ClientError::Protocol { what: "a reply has a wrong length" })
    }

    /// Parses the payload of the reply to GET_VRING_BASE.
    ///
    /// # Errors
    /// [`ClientError::Protocol`] if it has another length.
    pub fn ring_base(&self) -> Result<u16, ClientError> {
        Ok((self.number()? >> 32) as u16)
    }
}

fn single(memory: &Memory, region: Region) -> VhostUserSingleMemoryRegion {
    let Region { guest, offset, len } = region;
    VhostUserSingleMemoryRegion::new(guest, len as u64, memory.user(offset), offset as u64)
}
