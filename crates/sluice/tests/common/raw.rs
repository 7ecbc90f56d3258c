//! A small NBD client that sends any bytes, so that it can also misbehave. It shares no code with the daemon.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::LONG;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const FUA: u16 = 1;

pub(crate) const EIO: u32 = 5;
pub(crate) const ENOSPC: u32 = 28;
pub(crate) const ESHUTDOWN: u32 = 108;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

/// A connection in the transmission phase, with simple replies.
pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
    pub(crate) size_bytes: u64,
    cookie: u64,
}

/// Connects with a timeout for reads and writes.
pub(crate) fn connect(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(LONG))?;
    stream.set_write_timeout(Some(LONG))?;
    Ok(stream)
}

/// Receives the greeting and sends the flags; options are next.
pub(crate) fn greet(socket: &Path) -> io::Result<UnixStream> {
    greeted(connect(socket)?)
}

/// As [`greet`], of a client that is connected.
pub(crate) fn greeted(mut stream: UnixStream) -> io::Result<UnixStream> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    stream.write_all(&3_u32.to_be_bytes())?;
    Ok(stream)
}

/// Returns the bytes of an option.
pub(crate) fn option(code: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [b"IHAVEOPT".as_slice(), &code.to_be_bytes(), &len, payload].concat()
}

/// Returns the bytes of a request header.
pub(crate) fn header(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

impl Raw {
    /// Enters the transmission phase with `EXPORT_NAME`.
    pub(crate) fn open(socket: &Path, export: &str) -> io::Result<Raw> {
        Raw::enter(greet(socket)?, export)
    }

    /// As [`Raw::open`], after the greeting.
    pub(crate) fn enter(mut stream: UnixStream, export: &str) -> io::Result<Raw> {
        stream.write_all(&option(1, export.as_bytes()))?;
        let mut answer = [0; 10];
        stream.read_exact(&mut answer)?;
        let size_bytes = u64::from_be_bytes(answer[..8].try_into().unwrap());
        Ok(Raw { stream, size_bytes, cookie: 0 })
    }

    /// Sends a request without waiting. Returns its cookie.
    pub(crate) fn send(&mut self, command: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> io::Result<u64> {
        self.cookie += 1;
        let mut bytes = header(command, flags, self.cookie, offset, length);
        bytes.extend_from_slice(data);
        self.stream.write_all(&bytes)?;
        Ok(self.cookie)
    }

    /// Receives the next reply: its cookie and its error, or 0. The caller reads the data of a read.
    pub(crate) fn reply(&mut self) -> io::Result<(u64, u32)> {
        let mut bytes = [0; 16];
        self.stream.read_exact(&mut bytes)?;
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(number(0), SIMPLE_REPLY_MAGIC);
        Ok((u64::from_be_bytes(bytes[8..].try_into().unwrap()), number(4)))
    }

    pub(crate) fn data(&mut self, length: u32) -> io::Result<Vec<u8>> {
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    /// Reads, or returns the error.
    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        let cookie = self.send(READ, 0, offset, length, &[]).expect("the connection holds");
        match self.reply().expect("the connection holds") {
            (answered, 0) if answered == cookie => Ok(self.data(length).expect("the connection holds")),
            (_, errno) => Err(errno),
        }
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), u32> {
        self.ask(WRITE, 0, offset, data.len() as u32, data)
    }

    pub(crate) fn flush(&mut self) -> Result<(), u32> {
        self.ask(FLUSH, 0, 0, 0, &[])
    }

    /// Sends any request whose reply has no data.
    pub(crate) fn ask(&mut self, command: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> Result<(), u32> {
        self.send(command, flags, offset, length, data).expect("the connection holds");
        match self.reply().expect("the connection holds").1 {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Waits for the end of the connection. Returns `false` if a reply arrives first.
    pub(crate) fn is_disconnected(&mut self) -> bool {
        is_closed(&mut self.stream)
    }

    pub(crate) fn close(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Waits until the other side closes, and ignores its data.
pub(crate) fn is_closed(stream: &mut UnixStream) -> bool {
    let mut rest = [0; 4096];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}
