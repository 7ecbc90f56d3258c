//! A vhost-user-blk front end without a VM, for the demo, the benchmarks and the tests of the back end.
//!
//! Problem: a guest under emulation spends more on a request than any back end does, and a VMM sends well-formed
//! messages in one order alone. This front end has guest memory, rings and requests of its own and speaks the protocol
//! as a VMM does, but lean enough to measure with, and open enough to break every rule: any message, any descriptor, any
//! index.
//!
//! | part | where |
//! |---|---|
//! | guest memory | [`memory`] |
//! | a split ring, unchecked | [`ring`] |
//! | requests on a ring, checked | [`queue`], [`request`] |
//! | sleeping until a device answers | [`waiter`] |
//! | messages | [`link`], [`session`] |
//! | the device's description of itself | [`config`] |
//!
//! There is no thread and no lock. One thread can drive any number of queues, or each queue goes to a thread of its own
//! ([`Client::take_queues`]). Completions are polled for, or waited for by an eventfd; the device is rung when it asks
//! for it. A [`Client`] outlives its connection: [`Client::reconnect`] keeps memory, rings, what is in flight, and the
//! in-flight log, as a VMM does when its back end has died.
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
//!     free.extend(client.wait(0, 1)?.iter().map(|answer| answer.slot));
//! }
//! # Ok::<(), sluice_client::vhost::ClientError>(())
//! ```
//!
//! Bounds: a queue has [`ClientOptions::slots`] requests in flight and as many descriptors as its ring; beyond them
//! [`Queue::submit`] refuses.

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
use self::queue::{Manner, Measures};
pub use self::request::{Cuts, Request};
pub use self::session::{Inflight, Session};
pub use self::waiter::Waiter;

pub mod config;
pub mod link;
#[allow(unsafe_code, reason = "it is mapped, and the daemon writes to it")]
pub mod memory;
pub mod queue;
pub mod request;
pub mod ring;
pub mod session;
pub mod waiter;

/// What can go wrong for a front end.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket, the memory or an eventfd cannot be had.
    #[error("Cannot connect to the vhost-user back end")]
    Connect(#[source] io::Error),
    /// The connection failed, or nothing came in time.
    #[error("The connection to the vhost-user back end failed")]
    Io(#[source] io::Error),
    /// The back end closed the connection.
    #[error("The vhost-user back end closed the connection")]
    Closed,
    /// The back end refused a message.
    #[error("The vhost-user back end refused {request:?} with {code}")]
    Refused {
        /// Which message.
        request: FrontendReq,
        /// With which number.
        code: u64,
    },
    /// The back end broke the protocol.
    #[error("The vhost-user back end broke the protocol: {what}")]
    Protocol {
        /// What it did.
        what: &'static str,
    },
    /// The device lacks something that was asked for.
    #[error("The vhost-user back end lacks what is needed: {what}")]
    Lacking {
        /// What.
        what: &'static str,
    },
    /// There is no such slot, or its request is in flight.
    #[error("Slot {slot} is in use or does not exist: take answers first")]
    Busy {
        /// Which.
        slot: u16,
    },
    /// There are not enough descriptors.
    #[error("Not enough descriptors are free: take answers first, or use a larger ring")]
    Full,
    /// More data than a slot holds.
    #[error("A request has {len_bytes} bytes of data, more than a slot holds: split it")]
    TooLong {
        /// How many.
        len_bytes: usize,
    },
    /// A request that was waited for ended with an error.
    #[error("A request ended with status {status}")]
    Status {
        /// What the device put into its status byte.
        status: u8,
    },
}

/// How to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientOptions {
    /// Queues.
    pub queues: u16,
    /// Entries of each ring, a power of two.
    pub queue_size: u16,
    /// Requests of each queue that can be in flight.
    pub slots: u16,
    /// Most data of one request, in bytes.
    pub data_len_max: usize,
    /// Into how many regions the guest memory is cut.
    pub regions: usize,
    /// Features to take where the device offers them.
    pub features: u64,
    /// Protocol features to take where the back end offers them.
    pub protocol_features: VhostUserProtocolFeatures,
    /// Ring each queue when it is started, for back ends that do not look at the ring by themselves.
    pub kick_at_start: bool,
    /// Longest wait for a message, or for an answer in [`Client::wait`].
    pub patience: Duration,
}

impl Default for ClientOptions {
    /// One queue of 256 entries, 64 requests of up to 64 KiB, one region, all features, no ringing, 10 s.
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
            patience: Duration::from_secs(10),
        }
    }
}

/// All features that this front end knows.
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

/// All protocol features that this front end knows.
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
    /// How the memory is handed over.
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
    /// [`ClientError::Connect`], or what the exchange ran into.
    pub fn connect(path: &Path, options: &ClientOptions) -> Result<Client, ClientError> {
        Client::connect_with(path, options, None)
    }

    /// The same with an in-flight log that is there already, of another front end's or of none that fits.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with(
        path: &Path,
        options: &ClientOptions,
        inflight: Option<Inflight>,
    ) -> Result<Client, ClientError> {
        let ClientOptions { queue_size: size, slots, data_len_max, .. } = *options;
        let measures = Measures { size, slots, data_len_max };
        let len = measures.len_bytes() * usize::from(options.queues);
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
        let manner = Manner { event_index: has(VIRTIO_RING_F_EVENT_IDX), indirect: has(VIRTIO_RING_F_INDIRECT_DESC) };
        for index in 0..options.queues {
            let offset = usize::from(index) * measures.len_bytes();
            let queue =
                Queue::new(Arc::clone(&client.memory), offset, measures, manner).map_err(ClientError::Connect)?;
            client.waiter.add(&queue, index.into()).map_err(ClientError::Connect)?;
            client.queues.push(queue);
        }
        client.start()?;
        Ok(client)
    }

    /// Leaves, without a word: memory, rings and what is in flight stay as they are.
    pub fn disconnect(&mut self) {
        self.session = None;
    }

    /// Connects anew, as a VMM does when its back end has come back: same memory, same rings, same in-flight log. Each
    /// ring goes on where the used index stands; what was taken beyond it is the log's affair.
    ///
    /// # Errors
    /// As [`Client::connect`]; and [`ClientError::Lacking`] if a feature in force is not offered any more.
    pub fn reconnect(&mut self, path: &Path) -> Result<(), ClientError> {
        let before = self.features;
        self.disconnect();
        self.settle(path)?;
        if self.features != before {
            return Err(ClientError::Lacking { what: "the features that were in force before" });
        }
        self.start()
    }

    /// The connection, for messages of any kind.
    ///
    /// # Errors
    /// [`ClientError::Closed`] after [`Client::disconnect`].
    pub fn session(&self) -> Result<&Session, ClientError> {
        self.session.as_ref().ok_or(ClientError::Closed)
    }

    /// A queue.
    ///
    /// # Panics
    /// If there is none of that number.
    pub fn queue(&mut self, index: u16) -> &mut Queue {
        &mut self.queues[usize::from(index)]
    }

    /// The queues, to be driven elsewhere; the connection stays here.
    pub fn take_queues(&mut self) -> Vec<Queue> {
        std::mem::take(&mut self.queues)
    }

    /// Guest memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Hands the memory over in so many regions when it connects the next time.
    pub fn cut_memory(&mut self, regions: usize) {
        self.table = self.memory.cut(regions);
    }

    /// Features in force.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.features
    }

    /// What the device said of itself when it was asked last.
    #[must_use]
    pub fn config(&self) -> &BlockConfig {
        &self.config
    }

    /// The in-flight log, if the back end keeps one.
    #[must_use]
    pub fn inflight(&self) -> Option<&Inflight> {
        self.inflight.as_ref()
    }

    /// Takes the log away: a front end that comes back without one.
    pub fn take_inflight(&mut self) -> Option<Inflight> {
        self.inflight.take()
    }

    /// Asks the device for its description again.
    ///
    /// # Errors
    /// What the exchange ran into.
    pub fn read_config(&mut self) -> Result<&BlockConfig, ClientError> {
        self.config = BlockConfig::parse(&self.session()?.config(0, CONFIG_LEN)?);
        Ok(&self.config)
    }

    /// Starts a queue at this entry of its available ring.
    ///
    /// # Errors
    /// What the exchange ran into.
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

    /// Stops a queue; returns the entry of its available ring at which it goes on. What the device has taken is answered.
    ///
    /// # Errors
    /// What the exchange ran into.
    pub fn stop_queue(&mut self, index: u16) -> Result<u16, ClientError> {
        self.session()?.ring_base(index)
    }

    /// Waits until so many answers have come on a queue, or nothing is in flight, and returns all that have come.
    ///
    /// # Errors
    /// [`ClientError::Protocol`]; [`ClientError::Io`] when the patience ends.
    pub fn wait(&mut self, index: u16, answers: usize) -> Result<Vec<Completion>, ClientError> {
        let answered = self.wait_within(index, answers, self.options.patience)?;
        if answered.len() < answers && self.queue(index).in_flight() > 0 {
            return Err(ClientError::Io(io::ErrorKind::TimedOut.into()));
        }
        Ok(answered)
    }

    /// The same, but for a while of its own: what has come by then is returned, even if it is nothing.
    ///
    /// # Errors
    /// [`ClientError::Protocol`], [`ClientError::Io`].
    pub fn wait_within(
        &mut self,
        index: u16,
        answers: usize,
        patience: Duration,
    ) -> Result<Vec<Completion>, ClientError> {
        let began = Instant::now();
        let (mut answered, mut rung) = (Vec::new(), Vec::new());
        let queue = &mut self.queues[usize::from(index)];
        loop {
            queue.reap(&mut answered)?;
            let left = patience.saturating_sub(began.elapsed());
            if answered.len() >= answers || queue.in_flight() == 0 || left.is_zero() {
                return Ok(answered);
            }
            if queue.arm() {
                rung.clear();
                self.waiter.wait(Some(left), &mut rung).map_err(ClientError::Io)?;
            }
        }
    }

    /// One request on a queue on which nothing else is in flight; its data are those of slot 0.
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
            _ => Err(ClientError::Protocol { what: "not one answer to one request" }),
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

    /// Everything up to the memory table: what is in force, what the device is, where the memory lies.
    fn settle(&mut self, path: &Path) -> Result<(), ClientError> {
        let options = &self.options;
        let mut session = Session::connect(path, options.patience)?;
        let offered = session.features()?;
        self.features = offered & options.features;
        if offered & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0 {
            let offered = session.protocol_features()?;
            session.set_protocol_features(offered & options.protocol_features.bits())?;
        }
        session.set_owner()?;
        let has_queues = if session.has(VhostUserProtocolFeatures::MQ) { session.queues_max()? } else { 1 };
        if has_queues < options.queues.into() {
            return Err(ClientError::Lacking { what: "as many queues" });
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
