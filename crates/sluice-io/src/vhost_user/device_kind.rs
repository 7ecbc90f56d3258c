//! What one kind of virtio device says of itself. Everything else of a session is the same for all kinds.

use vhost::vhost_user::message::VhostUserProtocolFeatures;

/// What the guest's driver has settled for, as far as the device thread must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Driver {
    /// Feature bits that it acknowledged.
    pub features: u64,
    /// Writes may be cached until a flush; else each is durable when it is answered.
    pub write_back: bool,
}

/// A kind of virtio device, as a volume (or a network) is offered by it.
pub trait DeviceKind: Clone + PartialEq + Send + Sync + 'static {
    /// What a driver writes to the configuration space; at first nothing.
    type Written: Default + Copy + PartialEq + Send;

    /// Feature bits that are offered.
    fn features(&self) -> u64;

    /// Protocol features that are offered.
    fn protocol_features(&self) -> VhostUserProtocolFeatures;

    /// Queues that are offered, 1 to 256.
    fn queues(&self) -> u16;

    /// What the device thread must know of a driver that acknowledged `features`.
    fn driver(&self, features: u64, written: Self::Written) -> Driver;

    /// `len` bytes of the configuration space from `offset` on, as a driver sees it that acknowledged `features`; nothing if
    /// they end beyond what can be asked for.
    fn read_config(&self, features: u64, written: Self::Written, offset: u32, len: u32) -> Option<Vec<u8>>;

    /// What becomes of the configuration space when a driver writes `bytes` at `offset`; nothing if they cannot be written.
    fn write_config(&self, features: u64, offset: u32, bytes: &[u8]) -> Option<Self::Written>;
}
