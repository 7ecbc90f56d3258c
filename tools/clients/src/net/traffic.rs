//! Traffic between namespaces: senders, sinks that count, and probes. Each runs on a thread of its own until it is dropped.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::Namespace;

/// Maximum time until a thread notices that it is to end.
const NOTICE: Duration = Duration::from_millis(50);
/// Datagrams are sent in groups at this interval.
const TICK: Duration = Duration::from_millis(1);
/// Maximum number of datagrams at once, after the thread was late.
const GROUP_MAX: u64 = 128;
/// Bytes that the kernel keeps for a sink that is not running.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Time after which the answer to a probe counts as lost.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Bytes of a probe.
const PROBE_LEN: usize = 64;

/// A thread that runs until this is dropped.
#[derive(Debug)]
struct Worker {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(work: impl FnOnce(&AtomicBool) + Send + 'static) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ends);
        Worker { ends, thread: Some(thread::spawn(move || work(&seen))) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn goes_on(ends: &AtomicBool) -> bool {
    !ends.load(Ordering::Relaxed)
}

/// Sends until it is dropped.
#[derive(Debug)]
pub struct Sender {
    stream: Option<TcpStream>,
    /// Datagrams that the kernel accepted.
    sent: Arc<AtomicU64>,
    _worker: Worker,
}

impl Sender {
    /// Sends datagrams of `length` bytes, `rate` per second.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn udp(from: &Namespace, to: SocketAddr, length: usize, rate: u64) -> io::Result<Self> {
        let socket = connected(from, to)?;
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        let worker = Worker::start(move |ends| send_datagrams(&socket, &vec![0x5a; length], rate, ends, &count));
        Ok(Sender { stream: None, sent, _worker: worker })
    }

    /// Sends exactly `count` datagrams, one each millisecond, so that no queue overflows. Returns when the kernel has accepted them.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn spaced(from: &Namespace, to: SocketAddr, length: usize, count: u64) -> io::Result<()> {
        let socket = connected(from, to)?;
        for _ in 0..count {
            socket.send(&vec![0x5a; length])?;
            // Paces the load.
            thread::sleep(TICK);
        }
        Ok(())
    }

    /// Sends over a TCP connection as fast as that takes it.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn tcp(from: &Namespace, to: SocketAddr) -> io::Result<Self> {
        let mut stream = from.enter(move || TcpStream::connect(to))??;
        let held = stream.try_clone()?;
        let worker = Worker::start(move |ends| {
            let room = vec![0x5a; 256 << 10];
            while goes_on(ends) && stream.write_all(&room).is_ok() {}
        });
        Ok(Sender { stream: Some(held), sent: Arc::default(), _worker: worker })
    }

    /// Returns the number of datagrams that the kernel has accepted.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn send_datagrams(socket: &UdpSocket, datagram: &[u8], rate: u64, ends: &AtomicBool, count: &AtomicU64) {
    let (mut last, mut owed) = (Instant::now(), 0.0);
    while goes_on(ends) {
        let now = Instant::now();
        owed = f64::min(owed + (now - last).as_secs_f64() * rate as f64, GROUP_MAX as f64);
        last = now;
        while owed >= 1.0 {
            owed -= 1.0;
            count.fetch_add(u64::from(socket.send(datagram).is_ok()), Ordering::Relaxed);
        }
        // Paces the load.
        thread::sleep(TICK);
    }
}

/// Receives and counts until it is dropped.
#[derive(Debug)]
pub struct Sink {
    bytes: Arc<AtomicU64>,
    frames: Arc<AtomicU64>,
    _worker: Worker,
}

impl Sink {
    /// Receives datagrams at a port.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn udp(at: &Namespace, port: u16) -> io::Result<Self> {
        let socket = receiver(at, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))?;
        let counters = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
        let [bytes, frames] = counters.clone();
        let worker = Worker::start(move |ends| {
            let mut room = [0; 2048];
            while goes_on(ends) {
                if let Ok(length) = socket.recv(&mut room) {
                    counters[0].fetch_add(length as u64, Ordering::Relaxed);
                    counters[1].fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(Sink { bytes, frames, _worker: worker })
    }

    /// Accepts connections at a port, and counts what comes over all of them.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn tcp(at: &Namespace, port: u16) -> io::Result<Self> {
        let listener = at.enter(move || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))??;
        sockopt::set_socket_timeout(&listener, sockopt::Timeout::Recv, Some(NOTICE))?;
        let bytes = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&bytes);
        let worker = Worker::start(move |ends| {
            let mut connections = Vec::new();
            while goes_on(ends) {
                if let Ok((stream, _)) = listener.accept() {
                    let counter = Arc::clone(&counter);
                    connections.push(Worker::start(move |ends| drain(stream, ends, &counter)));
                }
            }
        });
        Ok(Sink { bytes, frames: Arc::default(), _worker: worker })
    }

    /// Returns the number of bytes that have arrived, without headers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of datagrams that have arrived.
    #[must_use]
    pub fn datagrams(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }
}

fn drain(mut stream: TcpStream, ends: &AtomicBool, counter: &AtomicU64) {
    let _ = stream.set_read_timeout(Some(NOTICE));
    let mut room = vec![0; 256 << 10];
    while goes_on(ends) {
        match stream.read(&mut room) {
            Ok(0) => return,
            Ok(length) => drop(counter.fetch_add(length as u64, Ordering::Relaxed)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// A socket in a namespace that sends to `to`, which may be a broadcast address.
fn connected(from: &Namespace, to: SocketAddr) -> io::Result<UdpSocket> {
    let any = if to.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    from.enter(move || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_broadcast(true)?;
        socket.connect(to)?;
        Ok(socket)
    })?
}

fn receiver(at: &Namespace, address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = at.enter(move || UdpSocket::bind(address))??;
    sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER)?;
    socket.set_read_timeout(Some(NOTICE))?;
    Ok(socket)
}

/// Sends each datagram back, until it is dropped.
#[derive(Debug)]
pub struct Echo {
    _worker: Worker,
}

impl Echo {
    /// Answers at a port.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn start(at: &Namespace, port: u16) -> io::Result<Self> {
        Echo::on(at, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))
    }

    /// Answers at an address.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn on(at: &Namespace, address: SocketAddr) -> io::Result<Self> {
        let socket = receiver(at, address)?;
        let worker = Worker::start(move |ends| {
            let mut room = [0; 2048];
            while goes_on(ends) {
                if let Ok((length, from)) = socket.recv_from(&mut room) {
                    let _ = socket.send_to(&room[..length], from);
                }
            }
        });
        Ok(Echo { _worker: worker })
    }
}

/// Asks an [`Echo`], one question after the other.
#[derive(Debug)]
pub struct Probe {
    socket: UdpSocket,
    number: u64,
}

impl Probe {
    /// Makes a socket of a namespace for questions.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn new(from: &Namespace, to: SocketAddr) -> io::Result<Self> {
        Ok(Probe { socket: connected(from, to)?, number: 0 })
    }

    /// Returns the round trip of one question of 64 bytes, or `None` if it or its answer was lost.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn ask(&mut self) -> io::Result<Option<Duration>> {
        self.number += 1;
        let mut question = [0; PROBE_LEN];
        question[..8].copy_from_slice(&self.number.to_le_bytes());
        let asked = Instant::now();
        self.socket.send(&question)?;
        let mut answer = [0; PROBE_LEN];
        loop {
            let left = ANSWER_MAX.saturating_sub(asked.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.recv(&mut answer) {
                // A late answer to an earlier question is none to this one.
                Ok(_) if answer[..8] == question[..8] => return Ok(Some(asked.elapsed())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}
