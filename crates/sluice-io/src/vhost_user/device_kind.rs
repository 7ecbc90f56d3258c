//! The properties that distinguish one kind of virtio device from others. The rest of a session is the same for all kinds.

use vhost::vhost_user::message::VhostUserProtocolFeatures;

/// The results of the negotiation with the guest's driver that the device thread needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Driver {
    /// Feature bits that the driver acknowledged.
    pub features: u64,
    /// Whether writes may be cached until a flush. Otherwise each write is durable when it is answered.
    pub write_back: bool,
}

/// A kind of virtio device.
pub trait DeviceKind: Clone + PartialEq + Send + Sync + 'static {
    /// Contents of the configuration space as the driver has written them.
    type Written: Default + Copy + PartialEq + Send;

    /// Returns the feature bits that are offered.
    fn features(&self) -> u64;

    /// Returns the protocol features that are offered.
    fn protocol_features(&self) -> VhostUserProtocolFeatures;

    /// Returns the number of queues, 1 to 256.
    fn queues(&self) -> u16;

    /// Returns what the device thread must know of a driver that acknowledged `features`.
    fn driver(&self, features: u64, written: Self::Written) -> Driver;

    /// Returns `len` bytes of the configuration space from `offset`, for a driver that acknowledged `features`; `None`
    /// if they end past the readable part.
    fn read_config(&self, features: u64, written: Self::Written, offset: u32, len: u32) -> Option<Vec<u8>>;

    /// Returns the effect of a driver's write of `bytes` at `offset`; `None` if they cannot be written.
    fn write_config(&self, features: u64, offset: u32, bytes: &[u8]) -> Option<Self::Written>;

    /// Whether the device can have this MTU; only NICs have one.
    fn accepts_mtu(&self, _mtu: u64) -> bool {
        false
    }
}
