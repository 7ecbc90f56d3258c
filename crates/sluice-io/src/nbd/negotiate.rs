//! The handshake over a stream: the rules of [`super::handshake`], driven by reads and writes.
//!
//! Nothing is read ahead: after the reply to `GO` or `EXPORT_NAME` the socket moves to a device thread, and a request
//! that the client has already sent must still be in it. So every read has the exact length that the state machine
//! requires. A handshake consists of a few messages, so its cost does not matter.
//!
//! There is no timeout here. The caller must set one, otherwise a client that falls silent would keep its connection
//! forever.

use std::io::{self, Read, Write};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::limits::{is_memory_for_clients, reserve};

pub use super::handshake::{Exports, Listed, NegotiateError, Negotiated};
use super::handshake::{GREETING, Handshake, OPTION_HEADER_LEN, Step, Tls};

/// Length up to which memory for an option is not checked for, in bytes. The client was accepted with room for much more, and the check
/// takes two system calls.
const UNCHECKED_MAX: usize = 4096;

/// The end of a handshake, or of its part before TLS.
pub enum End<'a, E: ?Sized> {
    Chosen(Negotiated),
    /// TLS follows, and then [`go_on`].
    StartTls(Handshake<'a, E>),
}

/// Runs the server's side of the handshake, without TLS, until the client has chosen an export.
///
/// # Errors
/// [`NegotiateError`]: close the connection. On success the next byte of the stream is the first byte of the first
/// request.
pub async fn negotiate<S, E>(stream: &mut S, exports: &E) -> Result<Negotiated, NegotiateError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    E: Exports + ?Sized,
{
    match begin(stream, exports, Tls::No).await? {
        End::Chosen(negotiated) => Ok(negotiated),
        End::StartTls(_) => unreachable!("it was not offered"),
    }
}

/// Runs the server's side of the handshake until the client has chosen an export or starts TLS.
///
/// # Errors
/// As [`negotiate`].
pub async fn begin<'a, S, E>(stream: &mut S, exports: &'a E, tls: Tls) -> Result<End<'a, E>, NegotiateError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    E: Exports + ?Sized,
{
    let mut handshake = Handshake::new(exports, tls);
    send(stream, &GREETING).await?;
    let mut flags = [0; 4];
    receive(stream, &mut flags, "its flags").await?;
    handshake.client_flags(flags)?;
    go_on(stream, handshake).await
}

/// Runs the rest of a handshake.
///
/// # Errors
/// As [`negotiate`].
pub async fn go_on<'a, S, E>(stream: &mut S, mut handshake: Handshake<'a, E>) -> Result<End<'a, E>, NegotiateError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    E: Exports + ?Sized,
{
    let (mut payload, mut out) = (Vec::new(), Vec::new());
    loop {
        let mut header = [0; OPTION_HEADER_LEN];
        receive(stream, &mut header, "an option").await?;
        let header = handshake.option_header(&header)?;
        let len = header.len_bytes as usize;
        payload.clear();
        if (len > UNCHECKED_MAX && !is_memory_for_clients(len)) || !reserve(&mut payload, len) {
            return Err(NegotiateError::Io(io::ErrorKind::OutOfMemory.into()));
        }
        payload.resize(len, 0);
        receive(stream, &mut payload, "the rest of an option").await?;
        out.clear();
        let step = handshake.option(header.code, &payload, &mut out);
        let sent = send(stream, &out).await;
        // The reason why the handshake ended says more than the failure to send the reply.
        let step = step?;
        sent?;
        match step {
            Step::Next => {}
            Step::Admit => {
                let (exports, hello, key) = handshake.proven().expect("a proof came");
                let admitted = exports.admit(hello, key).await;
                out.clear();
                handshake.admitted(admitted, &mut out);
                send(stream, &out).await?;
            }
            Step::StartTls => return Ok(End::StartTls(handshake)),
            Step::Chosen(negotiated) => return Ok(End::Chosen(negotiated)),
        }
    }
}

/// The same over a blocking stream, for threads without a runtime and for fuzzing from memory.
///
/// # Errors
/// As [`negotiate`]. A read timeout of the stream shows as [`NegotiateError::Io`].
pub fn negotiate_blocking<S, E>(stream: &mut S, exports: &E) -> Result<Negotiated, NegotiateError>
where
    S: Read + Write + Unpin,
    E: Exports + ?Sized,
{
    let mut stream = Blocking(stream);
    let future = pin!(negotiate(&mut stream, exports));
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("a blocking stream is always ready"),
    }
}

async fn receive<S: AsyncRead + Unpin>(
    stream: &mut S,
    bytes: &mut [u8],
    awaited: &'static str,
) -> Result<(), NegotiateError> {
    match stream.read_exact(bytes).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(NegotiateError::Closed { awaited }),
        Err(error) => Err(NegotiateError::Io(error)),
    }
}

async fn send<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> Result<(), NegotiateError> {
    stream.write_all(bytes).await.map_err(NegotiateError::Io)?;
    stream.flush().await.map_err(NegotiateError::Io)
}

/// A blocking stream as an async one: each poll makes the whole call and is ready.
struct Blocking<'a, S>(&'a mut S);

impl<S: Read + Unpin> AsyncRead for Blocking<'_, S> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let got = uninterrupted(|| self.0.read(buf.initialize_unfilled()));
        Poll::Ready(got.map(|len| buf.advance(len)))
    }
}

impl<S: Write + Unpin> AsyncWrite for Blocking<'_, S> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(uninterrupted(|| self.0.write(bytes)))
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(uninterrupted(|| self.0.flush()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

/// Repeats a call that a signal interrupted.
fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests;
