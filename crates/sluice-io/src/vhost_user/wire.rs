//! Messages of the protocol as bytes: header, payload, descriptors, and replies.
//!
//! A message is a header of three words (request, flags, length of the payload) and the payload, in native byte order.
//! Descriptors arrive with its first byte. A [`Message`] has its announced length. The handler of the message checks
//! whether the length is the one that its type requires.

use vhost::vhost_user::message::{
    BackendReq, FrontendReq, MAX_ATTACHED_FD_ENTRIES, MAX_MSG_SIZE, VhostUserHeaderFlag, VhostUserMemory,
    VhostUserMemoryRegion, VhostUserMsgValidator,
};
use vm_memory::ByteValued;

use crate::closing::Received;

/// Length of a header, in bytes.
pub const HEADER_LEN: usize = 12;
/// Maximum length of a payload, in bytes.
pub const PAYLOAD_MAX: usize = MAX_MSG_SIZE;
/// Maximum number of descriptors of a message.
pub const DESCRIPTORS_MAX: usize = MAX_ATTACHED_FD_ENTRIES;

/// The only version of the protocol.
const VERSION: u32 = 1;
/// Bit in a message with a descriptor of a ring: there is no descriptor.
const NO_DESCRIPTOR: u64 = 1 << 8;
/// Bits in such a message with the index of the ring.
const RING: u64 = 0xff;

/// Why a connection cannot continue: the start of the next message is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Undefined flags, another version, or a reply instead of a request.
    #[error("Invalid message flags {0:#x}")]
    Flags(u32),
    /// Longer than [`PAYLOAD_MAX`].
    #[error("A message of {0} bytes exceeds the maximum of {PAYLOAD_MAX}")]
    Length(u32),
}

/// Why a message does not fit its type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The payload has a wrong length.
    #[error("Invalid payload length of {0} bytes")]
    Length(usize),
    /// A field has an invalid value.
    #[error("Invalid values in the payload")]
    Value,
    /// A wrong number of descriptors.
    #[error("Unexpected number of file descriptors: {0}")]
    Descriptors(usize),
}

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the request.
    pub request: u32,
    /// Whether the sender requests an acknowledgement, if that was negotiated.
    pub need_reply: bool,
    /// Length of the payload.
    pub len: usize,
}

impl Header {
    /// Parses the header of a front end's request.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, HeaderError> {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let (request, flags, len) = (word(0), word(4), word(8));
        let need_reply = VhostUserHeaderFlag::NEED_REPLY.bits();
        if flags & !need_reply != VERSION {
            return Err(HeaderError::Flags(flags));
        }
        match len as usize {
            fits @ ..=PAYLOAD_MAX => Ok(Header { request, need_reply: flags & need_reply != 0, len: fits }),
            _ => Err(HeaderError::Length(len)),
        }
    }
}

/// A message of a front end. Descriptors that are not taken out are closed by [`crate::closing`].
#[derive(Debug)]
pub struct Message {
    pub header: Header,
    pub payload: Vec<u8>,
    pub descriptors: Vec<Received>,
}

impl Message {
    /// Returns the type of the request, if it is known.
    #[must_use]
    pub fn request(&self) -> Option<FrontendReq> {
        FrontendReq::try_from(self.header.request).ok()
    }

    /// Checks that there is no payload and no descriptor.
    pub fn nothing(&self) -> Result<(), MessageError> {
        self.no_descriptors()?;
        self.exactly(0)
    }

    /// Checks that there is no descriptor.
    pub fn no_descriptors(&self) -> Result<(), MessageError> {
        match self.descriptors.len() {
            0 => Ok(()),
            many => Err(MessageError::Descriptors(many)),
        }
    }

    /// Takes the only descriptor.
    pub fn one_descriptor(&mut self) -> Result<Received, MessageError> {
        match self.descriptors.len() {
            1 => Ok(self.descriptors.remove(0)),
            other => Err(MessageError::Descriptors(other)),
        }
    }

    /// Returns the payload as a number.
    pub fn number(&self) -> Result<u64, MessageError> {
        let bytes = self.payload.as_slice().try_into();
        bytes.map(u64::from_ne_bytes).map_err(|_| MessageError::Length(self.payload.len()))
    }

    /// Returns the payload as a structure with valid values.
    pub fn structure<T: ByteValued + Default + VhostUserMsgValidator>(&self) -> Result<T, MessageError> {
        self.exactly(size_of::<T>())?;
        self.front()
    }

    /// Returns the structure at the start of the payload, and the rest.
    pub fn structure_and_rest<T>(&self) -> Result<(T, &[u8]), MessageError>
    where
        T: ByteValued + Default + VhostUserMsgValidator,
    {
        let rest = self.payload.get(size_of::<T>()..).ok_or(MessageError::Length(self.payload.len()))?;
        Ok((self.front()?, rest))
    }

    /// Returns the payload as a memory table.
    pub fn regions(&self) -> Result<Vec<VhostUserMemoryRegion>, MessageError> {
        let (count, rest) = self.structure_and_rest::<VhostUserMemory>()?;
        let len = size_of::<VhostUserMemoryRegion>();
        self.exactly(size_of::<VhostUserMemory>() + { count.num_regions } as usize * len)?;
        let read = |bytes: &[u8]| {
            let mut region = VhostUserMemoryRegion::default();
            region.as_mut_slice().copy_from_slice(bytes);
            region
        };
        Ok(rest.chunks_exact(len).map(read).collect())
    }

    /// Returns the index of a ring and the descriptor for it, if there is one.
    pub fn ring_descriptor(&mut self) -> Result<(u32, Option<Received>), MessageError> {
        let number = self.number()?;
        if number & !(RING | NO_DESCRIPTOR) != 0 {
            return Err(MessageError::Value);
        }
        let descriptor = match number & NO_DESCRIPTOR {
            0 => Some(self.one_descriptor()?),
            _ => self.no_descriptors().map(|()| None)?,
        };
        Ok(((number & RING) as u32, descriptor))
    }

    fn exactly(&self, len: usize) -> Result<(), MessageError> {
        if self.payload.len() == len { Ok(()) } else { Err(MessageError::Length(self.payload.len())) }
    }

    /// Returns the structure at the start of the payload, which is known to be long enough.
    fn front<T: ByteValued + Default + VhostUserMsgValidator>(&self) -> Result<T, MessageError> {
        let mut value = T::default();
        value.as_mut_slice().copy_from_slice(&self.payload[..size_of::<T>()]);
        if value.is_valid() { Ok(value) } else { Err(MessageError::Value) }
    }
}

/// Returns a reply to a request.
#[must_use]
pub fn reply(request: u32, payload: &[u8]) -> Vec<u8> {
    encode(request, VERSION | VhostUserHeaderFlag::REPLY.bits(), payload)
}

/// Returns a request to the front end that needs no reply.
#[must_use]
pub fn back_end_request(request: BackendReq) -> Vec<u8> {
    encode(request.into(), VERSION, &[])
}

fn encode(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let header = [request, flags, payload.len() as u32].map(u32::to_ne_bytes);
    [header.as_flattened(), payload].concat()
}

#[cfg(test)]
mod tests {
    use vhost::vhost_user::message::VhostUserVringState;

    use super::*;
    use crate::closing::Closing;

    fn header(request: u32, flags: u32, len: u32) -> Result<Header, HeaderError> {
        let bytes = [request, flags, len].map(u32::to_ne_bytes);
        Header::parse(bytes.as_flattened().try_into().unwrap())
    }

    fn message(payload: &[u8], descriptors: usize) -> Message {
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        let descriptor = || Received::new(file(), &Closing::default());
        Message {
            header: Header { request: 1, need_reply: false, len: payload.len() },
            payload: payload.to_vec(),
            descriptors: (0..descriptors).map(|_| descriptor()).collect(),
        }
    }

    #[test]
    fn invalid_headers_are_rejected() {
        assert_eq!(header(7, 1, 0), Ok(Header { request: 7, need_reply: false, len: 0 }));
        assert_eq!(header(7, 9, 4096), Ok(Header { request: 7, need_reply: true, len: 4096 }));
        assert_eq!(header(7, 1, 4097), Err(HeaderError::Length(4097)));
        assert_eq!(header(7, 1, u32::MAX), Err(HeaderError::Length(u32::MAX)));
        for flags in [0, 2, 3, 5, 0x11, u32::MAX] {
            assert_eq!(header(7, flags, 0), Err(HeaderError::Flags(flags)));
        }
    }

    #[test]
    fn payloads_of_a_wrong_length_are_rejected() {
        let number = message(&7u64.to_ne_bytes(), 0);
        assert_eq!(number.number(), Ok(7));
        assert_eq!(number.nothing(), Err(MessageError::Length(8)));
        assert_eq!(message(&[0; 7], 0).number(), Err(MessageError::Length(7)));
        let state = number.structure::<VhostUserVringState>().unwrap();
        assert_eq!(({ state.index } as u64 | ({ state.num } as u64) << 32).to_ne_bytes(), 7u64.to_ne_bytes());
        assert!(message(&[0; 9], 0).structure::<VhostUserVringState>().is_err());
        assert_eq!(message(&[], 0).nothing(), Ok(()));
        assert_eq!(message(&[], 1).nothing(), Err(MessageError::Descriptors(1)));
    }

    #[test]
    fn memory_tables_with_a_wrong_length_are_rejected() {
        let table = |count: u32, bytes: usize| {
            let mut payload = VhostUserMemory::new(count).as_slice().to_vec();
            payload.resize(8 + bytes, 1);
            message(&payload, 0).regions().map(|regions| regions.len())
        };
        assert_eq!(table(2, 64), Ok(2));
        assert_eq!(table(2, 63), Err(MessageError::Length(71)));
        assert_eq!(table(2, 32), Err(MessageError::Length(40)));
        assert_eq!(table(1, 64), Err(MessageError::Length(72)));
        assert_eq!(table(0, 0), Err(MessageError::Value));
        assert_eq!(table(u32::MAX, 64), Err(MessageError::Value));
        assert!(message(&[0; 7], 0).regions().is_err());
    }

    #[test]
    fn ring_messages_carry_one_descriptor_or_none() {
        let ring = |number: u64, descriptors| message(&number.to_ne_bytes(), descriptors).ring_descriptor();
        assert!(matches!(ring(3, 1), Ok((3, Some(_)))));
        assert!(matches!(ring(0x1ff, 0), Ok((255, None))));
        assert_eq!(ring(3, 0).unwrap_err(), MessageError::Descriptors(0));
        assert_eq!(ring(3, 2).unwrap_err(), MessageError::Descriptors(2));
        assert_eq!(ring(0x103, 1).unwrap_err(), MessageError::Descriptors(1));
        assert_eq!(ring(0x203, 1).unwrap_err(), MessageError::Value);
    }
}
