//! A vhost-user-blk front end without a VM, for the demo, the benchmarks and the tests of the back end.
//!
//! An emulated guest spends more time on a request than any back end does, and a VMM sends only well-formed messages
//! in one order. This front end has its own guest memory, rings and requests, and speaks the protocol like a VMM. It
//! is cheap enough to measure with, and can violate every rule: it sends any message, descriptor or index.
//!
//! | part | where |
//! |---|---|
//! | guest memory | [`memory`] |
//! | a split ring, unchecked | [`ring`] |
//! | requests on a ring, checked | [`queue`], [`request`] |
//! | sleeping until a device completes a request | [`waiter`] |
//! | messages | [`link`], [`session`] |
//! | the configuration space | [`config`] |
//!
//! There is no thread and no lock. One thread can drive any number of queues, or each queue moves to its own thread
//! ([`Client::take_queues`]). Completions are polled for, or waited for with an eventfd. The device is notified if it
//! requests it. A [`Client`] outlives its connection: [`Client::reconnect`] keeps memory, rings, requests in flight
//! and the in-flight log, like a VMM whose back end has died.
//!
//! Example, a closed loop of 32 reads:
//!
//! ```no_run
//! use std::path::Path;
//! use sluice_client::vhost::{Client, ClientOptions, Request};
//!
//! let mut client = Client::connect(Path::new("/run/sluice/vm1.sock"), &ClientOptions::default())?;
//! let mut free: Vec<u16> = (0..32).collect();
//! for _ in 0..100_000 {
//!     let queue = client.queue(0);
//!     for slot in free.drain(..) {
//!         queue.submit(slot, Request::Read { offset: u64::from(slot) * 4096, len: 4096 })?;
//!     }
//!     queue.publish()?;
//!     free.extend(client.wait(0, 1)?.iter().map(|completion| completion.slot));
//! }
//! # Ok::<(), sluice_client::vhost::ClientError>(())
//! ```
//!
//! Bounds: a queue has at most [`ClientOptions::slots`] requests in flight, and as many descriptors as its ring.
//! Above them [`Queue::submit`] returns an error.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vhost::vhost_user::message::VhostUserVirtioFeatures;
pub use vhost::vhost_user::message::{FrontendReq, VhostUserProtocolFeatures};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ,
    VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

pub use self::config::BlockConfig;
use self::config::CONFIG_LEN;
pub use self::memory::{Memory, Region};
pub use self::queue::{Completion, Queue};
use self::queue::{QueueDimensions, RingFeatures};
pub use self::request::{Cuts, Request};
pub use self::session::{Inflight, Session};
pub use self::waiter::Waiter;

pub mod config;
pub mod link;
#[allow(unsafe_code, reason = "it is mapped memory that the daemon writes")]
pub mod memory;
pub mod net;
pub mod queue;
pub mod request;
pub mod ring;
pub mod session;
pub mod waiter;

/// Errors of a front end.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket, the memory or an eventfd cannot be created or opened.
    #[error("Cannot connect to the vhost-user back end")]
    Connect(#[source] io::Error),
    /// The connection failed, or a message did not arrive in time.
    #[error("The connection to the vhost-user back end failed")]
    Io(#[source] io::Error),
    /// The back end closed the connection.
    #[error("The vhost-user back end closed the connection")]
    Closed,
    /// The back end refused a message.
    #[error("The vhost-user back end refused {request:?} with {code}")]
    Refused {
        request: FrontendReq,
        /// The number in the acknowledgement.
        code: u64,
    },
    /// The back end violated the protocol.
    #[error("The vhost-user back end violated the protocol: {what}")]
    Protocol {
        /// The violation.
        what: &'static str,
    },
    /// The back end does not offer a feature that the front end needs.
    #[error("The vhost-user back end does not offer {what}")]
    Lacking { what: &'static str },
    /// The slot does not exist, or its request is in flight.
    #[error("Slot {slot} is in use or does not exist; take completions first")]
    Busy { slot: u16 },
    /// Too few descriptors are free.
    #[error("Too few descriptors are free; take completions first, or use a larger ring")]
    Full,
    /// A request has more data than a slot holds.
    #[error("A request has {len_bytes} bytes of data, more than a slot holds; split it")]
    TooLong { len_bytes: usize },
    /// A request that the caller waited for failed.
    #[error("A request failed with status {status}")]
    Status {
        /// Value of the status byte.
        status: u8,
    },
}

/// Options of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientOptions {
    /// Number of queues.
    pub queues: u16,
    /// Entries of each ring, a power of two.
    pub queue_size: u16,
    /// Maximum number of requests in flight, for each queue.
    pub slots: u16,
    /// Maximum data of one request, in bytes.
    pub data_len_max: usize,
    /// Number of regions into which guest memory is split.
    pub regions: usize,
    /// Features to accept if the device offers them.
    pub features: u64,
    /// Protocol features to accept if the back end offers them.
    pub protocol_features: VhostUserProtocolFeatures,
    /// Kick each queue when it starts, for back ends that do not look at the ring on their own.
    pub kick_at_start: bool,
    /// Maximum wait for a message, or for a completion in [`Client::wait`].
    pub timeout: Duration,
}

impl Default for ClientOptions {
    /// One queue of 256 entries, 64 requests of up to 64 KiB, one region, all features, no kick at the start, a
    /// timeout of 10 s.
    fn default() -> ClientOptions {
        ClientOptions {
            queues: 1,
            queue_size: 256,
            slots: 64,
            data_len_max: 64 << 10,
            regions: 1,
            features: ALL_FEATURES,
            protocol_features: ALL_PROTOCOL_FEATURES,
            kick_at_start: false,
            timeout: Duration::from_secs(10),
        }
    }
}

/// All features that this front end supports.
pub const ALL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    | 1 << VIRTIO_F_VERSION_1
    | 1 << VIRTIO_RING_F_EVENT_IDX
    | 1 << VIRTIO_RING_F_INDIRECT_DESC
    | 1 << VIRTIO_BLK_F_SEG_MAX
    | 1 << VIRTIO_BLK_F_SIZE_MAX
    | 1 << VIRTIO_BLK_F_BLK_SIZE
    | 1 << VIRTIO_BLK_F_TOPOLOGY
    | 1 << VIRTIO_BLK_F_MQ
    | 1 << VIRTIO_BLK_F_FLUSH
    | 1 << VIRTIO_BLK_F_CONFIG_WCE
    | 1 << VIRTIO_BLK_F_DISCARD
    | 1 << VIRTIO_BLK_F_WRITE_ZEROES
    | 1 << VIRTIO_BLK_F_RO;

/// All protocol features that this front end supports.
pub const ALL_PROTOCOL_FEATURES: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::CONFIG)
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    .union(VhostUserProtocolFeatures::RESET_DEVICE)
    .union(VhostUserProtocolFeatures::BACKEND_REQ)
    .union(VhostUserProtocolFeatures::INFLIGHT_SHMFD);

/// A front end with its memory and queues, connected or not.
#[derive(Debug)]
pub struct Client {
    options: ClientOptions,
    memory: Arc<Memory>,
    /// The memory table to send.
    table: Vec<Region>,
    session: Option<Session>,
    queues: Vec<Queue>,
    inflight: Option<Inflight>,
    waiter: Waiter,
    features: u64,
    config: BlockConfig,
}

impl Client {
    /// Connects and starts all queues.
    ///
    /// # Errors
    /// [`ClientError::Connect`], or an error of the exchange.
    pub fn connect(path: &Path, options: &ClientOptions) -> Result<Client, ClientError> {
        Client::connect_with(path, options, None)
    }

    /// As [`Client::connect`], with an in-flight log that exists already: that of another front end, or one that does
    /// not fit.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with(
        path: &Path,
        options: &ClientOptions,
        inflight: Option<Inflight>,
    ) -> Result<Client, ClientError> {
        let ClientOptions { queue_size: size, slots, data_len_max, .. } = *options;
        let dimensions = QueueDimensions { size, slots, data_len_max };
        let len = dimensions.len_bytes() * usize::from(options.queues);
        let memory = Memory::new(len, options.regions).map_err(ClientError::Connect)?;
        let mut client = Client {
            options: options.clone(),
            table: memory.regions().to_vec(),
            memory: Arc::new(memory),
            session: None,
            queues: Vec::new(),
            inflight,
            waiter: Waiter::new().map_err(ClientError::Connect)?,
            features: 0,
            config: BlockConfig::default(),
        };
        client.settle(path)?;
        let has = |feature: u32| client.features & 1 << feature != 0;
        let ring_features =
            RingFeatures { event_index: has(VIRTIO_RING_F_EVENT_IDX), indirect: has(VIRTIO_RING_F_INDIRECT_DESC) };
        for index in 0..options.queues {
            let offset = usize::from(index) * dimensions.len_bytes();
            let queue = Queue::new(Arc::clone(&client.memory), offset, dimensions, ring_features)
                .map_err(ClientError::Connect)?;
            client.waiter.add(&queue, index.into()).map_err(ClientError::Connect)?;
            client.queues.push(queue);
        }
        client.start()?;
        Ok(client)
    }

    /// Closes the connection. Memory, rings and requests in flight stay as they are.
    pub fn disconnect(&mut self) {
        self.session = None;
    }

    /// Reconnects like a VMM whose back end is back: with the same memory, rings and in-flight log. Each ring
    /// continues at its used index; the in-flight log covers the requests taken after it.
    ///
    /// # Errors
    /// As [`Client::connect`]; and [`ClientError::Lacking`] if a negotiated feature is not offered any more.
    pub fn reconnect(&mut self, path: &Path) -> Result<(), ClientError> {
        let before = self.features;
        self.disconnect();
        self.settle(path)?;
        if self.features != before {
            return Err(ClientError::Lacking { what: "the features that were negotiated before" });
        }
        self.start()
    }

    /// Returns the connection, for messages of any kind.
    ///
    /// # Errors
    /// [`ClientError::Closed`] after [`Client::disconnect`].
    pub fn session(&self) -> Result<&Session, ClientError> {
        self.session.as_ref().ok_or(ClientError::Closed)
    }

    /// Returns a queue.
    ///
    /// # Panics
    /// If there is no queue with this index.
    pub fn queue(&mut self, index: u16) -> &mut Queue {
        &mut self.queues[usize::from(index)]
    }

    /// Returns the queues, for use in other threads. The connection stays here.
    pub fn take_queues(&mut self) -> Vec<Queue> {
        std::mem::take(&mut self.queues)
    }

    #[must_use]
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Splits the memory into `regions` regions at the next connection.
    pub fn cut_memory(&mut self, regions: usize) {
        self.table = self.memory.cut(regions);
    }

    /// Returns the negotiated features.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Returns the device's configuration space as it was last read.
    #[must_use]
    pub fn config(&self) -> &BlockConfig {
        &self.config
    }

    /// Returns the in-flight log, if the back end keeps one.
    #[must_use]
    pub fn inflight(&self) -> Option<&Inflight> {
        self.inflight.as_ref()
    }

    /// Removes and returns the in-flight log, for a front end that reconnects without one.
    pub fn take_inflight(&mut self) -> Option<Inflight> {
        self.inflight.take()
    }

    /// Reads the device's configuration space again.
    ///
    /// # Errors
    /// An error of the exchange.
    pub fn read_config(&mut self) -> Result<&BlockConfig, ClientError> {
        self.config = BlockConfig::parse(&self.session()?.config(0, CONFIG_LEN)?);
        Ok(&self.config)
    }

    /// Starts a queue at entry `base` of its available ring.
    ///
    /// # Errors
    /// An error of the exchange.
    pub fn start_queue(&mut self, index: u16, base: u16) -> Result<(), ClientError> {
        let session = self.session.as_ref().ok_or(ClientError::Closed)?;
        let queue = &mut self.queues[usize::from(index)];
        session.set_ring_size(index, queue.ring().size().into())?;
        session.set_ring_base(index, base)?;
        session.set_ring_addresses(index, queue.ring().parts().map(|part| self.memory.user(part)))?;
        session.set_ring_error(index, Some(queue.error()))?;
        session.set_ring_call(index, Some(queue.call()))?;
        session.set_ring_kick(index, Some(queue.kick_descriptor()))?;
        if self.features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0 {
            session.enable_ring(index, true)?;
        }
        if self.options.kick_at_start {
            queue.kick()?;
        }
        Ok(())
    }

    /// Stops a queue and returns the entry of its available ring at which it continues. The device has completed all
    /// earlier requests.
    ///
    /// # Errors
    /// An error of the exchange.
    pub fn stop_queue(&mut self, index: u16) -> Result<u16, ClientError> {
        self.session()?.ring_base(index)
    }

    /// Waits for `answers` completions on a queue, or until nothing is in flight. Returns all completions.
    ///
    /// # Errors
    /// [`ClientError::Protocol`]; [`ClientError::Io`] on timeout.
    pub fn wait(&mut self, index: u16, answers: usize) -> Result<Vec<Completion>, ClientError> {
        let answered = self.wait_within(index, answers, self.options.timeout)?;
        if answered.len() < answers && self.queue(index).in_flight() > 0 {
            return Err(ClientError::Io(io::ErrorKind::TimedOut.into()));
        }
        Ok(answered)
    }

    /// As [`Client::wait`], with its own timeout. Returns the completions until then, possibly none.
    ///
    /// # Errors
    /// [`ClientError::Protocol`], [`ClientError::Io`].
    pub fn wait_within(
        &mut self,
        index: u16,
        answers: usize,
        timeout: Duration,
    ) -> Result<Vec<Completion>, ClientError> {
        let began = Instant::now();
        let (mut answered, mut rung) = (Vec::new(), Vec::new());
        let queue = &mut self.queues[usize::from(index)];
        loop {
            queue.reap(&mut answered)?;
            let left = timeout.saturating_sub(began.elapsed());
            if answered.len() >= answers || queue.in_flight() == 0 || left.is_zero() {
                return Ok(answered);
            }
            if queue.arm() {
                rung.clear();
                self.waiter.wait(Some(left), &mut rung).map_err(ClientError::Io)?;
            }
        }
    }

    /// Runs one request on a queue with nothing in flight. Its data are those of slot 0.
    ///
    /// # Errors
    /// As [`Queue::submit`] and [`Client::wait`]; [`ClientError::Status`].
    pub fn perform(&mut self, index: u16, request: Request) -> Result<Completion, ClientError> {
        let queue = self.queue(index);
        queue.submit(0, request)?;
        queue.publish()?;
        let answers = self.wait(index, 1)?;
        match answers.as_slice() {
            [Completion { status, .. }] if *status != 0 => Err(ClientError::Status { status: *status }),
            [only] => Ok(*only),
            _ => Err(ClientError::Protocol { what: "it did not complete one request exactly once" }),
        }
    }

    /// Reads, with nothing else in flight on queue 0.
    ///
    /// # Errors
    /// As [`Client::perform`].
    pub fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), ClientError> {
        self.perform(0, Request::Read { offset, len: bytes.len() as u32 })?;
        self.queues[0].read_data(0, bytes);
        Ok(())
    }

    /// Writes, with nothing else in flight on queue 0.
    ///
    /// # Errors
    /// As [`Client::perform`].
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ClientError> {
        if bytes.len() > self.options.data_len_max {
            return Err(ClientError::TooLong { len_bytes: bytes.len() });
        }
        self.queues[0].write_data(0, bytes);
        self.perform(0, Request::Write { offset, len: bytes.len() as u32 }).map(|_| ())
    }

    /// Does the exchange up to the memory table: features, configuration space, memory.
    fn settle(&mut self, path: &Path) -> Result<(), ClientError> {
        let options = &self.options;
        let mut session = Session::connect(path, options.timeout)?;
        let offered = session.features()?;
        self.features = offered & options.features;
        if offered & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0 {
            let offered = session.protocol_features()?;
            session.set_protocol_features(offered & options.protocol_features.bits())?;
        }
        session.set_owner()?;
        let has_queues = if session.has(VhostUserProtocolFeatures::MQ) { session.queues_max()? } else { 1 };
        if has_queues < options.queues.into() {
            return Err(ClientError::Lacking { what: "enough queues" });
        }
        if session.has(VhostUserProtocolFeatures::BACKEND_REQ) {
            session.open_channel()?;
        }
        if session.has(VhostUserProtocolFeatures::CONFIG) {
            self.config = BlockConfig::parse(&session.config(0, CONFIG_LEN)?);
        }
        if session.has(VhostUserProtocolFeatures::INFLIGHT_SHMFD) {
            if self.inflight.is_none() {
                self.inflight = Some(session.inflight(options.queues, options.queue_size)?);
            }
            self.inflight.as_ref().map_or(Ok(()), |inflight| session.set_inflight(inflight))?;
        }
        session.set_features(self.features)?;
        if session.has(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS) {
            for region in &self.table {
                session.add_region(&self.memory, *region)?;
            }
        } else {
            session.set_table(&self.memory, &self.table)?;
        }
        self.session = Some(session);
        Ok(())
    }

    fn start(&mut self) -> Result<(), ClientError> {
        (0..self.queues.len()).try_for_each(|index| {
            let base = self.queues[index].ring().used_index();
            self.start_queue(index as u16, base)
        })
    }
}
