//! Handlers of messages (vhost-user specification, "Front-end message types").

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};
use vhost::vhost_user::message::{
    FrontendReq, VhostUserConfig, VhostUserInflight, VhostUserProtocolFeatures as Protocol,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddr, VhostUserVringState,
};
use vm_memory::ByteValued;

use super::{Answer, Refusal, Session};
use crate::vhost_user::device_kind::DeviceKind;
use crate::vhost_user::memory::REGIONS_MAX;
use crate::vhost_user::ring::{self, ENTRIES_MAX, Ring, RingError, UserRingAddresses};
use crate::vhost_user::wire::{Message, MessageError};
use crate::virtio::inflight::Log;

/// Length of an in-flight description without the padding that some compilers add.
const INFLIGHT_LEN: usize = 20;

impl<K: DeviceKind> Session<K> {
    /// Handles a message. If it is rejected, nothing has changed, except that a ring may not have started although the
    /// message itself is valid.
    pub(super) async fn handle(&mut self, mut message: Message) -> Result<Answer, Refusal> {
        let request = message.request().ok_or(Refusal::Unknown)?;
        match request {
            FrontendReq::SET_MEM_TABLE
            | FrontendReq::ADD_MEM_REG
            | FrontendReq::REM_MEM_REG
            | FrontendReq::SET_VRING_KICK
            | FrontendReq::SET_VRING_CALL
            | FrontendReq::SET_VRING_ERR
            | FrontendReq::SET_BACKEND_REQ_FD
            | FrontendReq::SET_INFLIGHT_FD => {}
            _ => message.no_descriptors()?,
        }
        match request {
            FrontendReq::GET_FEATURES => self.ask(&message, self.entry.kind.features()),
            FrontendReq::SET_FEATURES => self.set_features(message.number()?).await,
            FrontendReq::GET_PROTOCOL_FEATURES => self.ask(&message, self.entry.kind.protocol_features().bits()),
            FrontendReq::SET_PROTOCOL_FEATURES => self.set_protocol_features(message.number()?),
            FrontendReq::SET_OWNER => message.nothing().map(|()| Answer::Done).map_err(Refusal::from),
            FrontendReq::RESET_OWNER => self.reset_owner(&message).await,
            FrontendReq::SET_MEM_TABLE => self.set_memory_table(message).await,
            FrontendReq::GET_MAX_MEM_SLOTS => {
                self.needs(Protocol::CONFIGURE_MEM_SLOTS)?;
                self.ask(&message, REGIONS_MAX as u64)
            }
            FrontendReq::ADD_MEM_REG => self.add_region(message).await,
            FrontendReq::REM_MEM_REG => self.remove_region(message).await,
            FrontendReq::SET_VRING_NUM => self.set_ring_size(message.structure()?).await,
            FrontendReq::SET_VRING_ADDR => self.set_ring_addresses(message.structure()?).await,
            FrontendReq::SET_VRING_BASE => self.set_ring_base(message.structure()?),
            FrontendReq::GET_VRING_BASE => self.ring_base(message.structure()?).await,
            FrontendReq::SET_VRING_KICK => self.set_ring_kick(&mut message).await,
            FrontendReq::SET_VRING_CALL => self.set_ring_call(&mut message).await,
            FrontendReq::SET_VRING_ERR => {
                let (index, error) = self.ring_eventfd(&mut message)?;
                self.rings[index].error = error.map(Arc::new);
                Ok(Answer::Done)
            }
            FrontendReq::SET_VRING_ENABLE => self.enable_ring(message.structure()?).await,
            FrontendReq::GET_QUEUE_NUM => self.ask(&message, self.rings.len() as u64),
            FrontendReq::GET_CONFIG => self.config(&message),
            FrontendReq::SET_CONFIG => self.set_config(&message).await,
            FrontendReq::SET_BACKEND_REQ_FD => self.set_channel(&mut message),
            FrontendReq::GET_INFLIGHT_FD => self.inflight(&message),
            FrontendReq::SET_INFLIGHT_FD => self.set_inflight(&mut message),
            FrontendReq::NET_SET_MTU => {
                self.needs(Protocol::MTU)?;
                let accepts = self.entry.kind.accepts_mtu(message.number()?);
                if accepts { Ok(Answer::Done) } else { Err(Refusal::Config) }
            }
            FrontendReq::RESET_DEVICE => self.reset_device(&message).await,
            _ => Err(Refusal::Unknown),
        }
    }

    fn needs(&self, feature: Protocol) -> Result<(), Refusal> {
        if self.protocol.contains(feature) { Ok(()) } else { Err(Refusal::NotNegotiated(feature)) }
    }

    /// Replies to a message that only queries a value.
    fn ask(&self, message: &Message, answer: u64) -> Result<Answer, Refusal> {
        message.nothing()?;
        Ok(Answer::number(answer))
    }

    fn find(&self, index: u32) -> Result<usize, RingError> {
        let known = usize::try_from(index).ok().filter(|&index| index < self.rings.len());
        known.ok_or(RingError::Unknown(index))
    }

    fn find_stopped(&self, index: u32) -> Result<usize, RingError> {
        let found = self.find(index)?;
        if self.rings[found].running.is_some() { Err(RingError::Running(index)) } else { Ok(found) }
    }

    async fn set_features(&mut self, features: u64) -> Result<Answer, Refusal> {
        let never_offered = features & !self.entry.kind.features();
        if never_offered != 0 {
            return Err(Refusal::Features(never_offered));
        }
        if self.is_running() && self.features != Some(features) {
            return Err(Refusal::Running);
        }
        self.features = Some(features);
        // Without `VHOST_USER_F_PROTOCOL_FEATURES` the front end does not send `SET_VRING_ENABLE`, so rings start
        // enabled.
        if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            self.rings.iter_mut().for_each(|ring| ring.enabled = true);
        }
        self.start_rings().await?;
        Ok(Answer::Done)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<Answer, Refusal> {
        let never_offered = features & !self.entry.kind.protocol_features().bits();
        if never_offered != 0 {
            return Err(Refusal::Features(never_offered));
        }
        self.protocol = Protocol::from_bits_truncate(features);
        Ok(Answer::Done)
    }

    /// Deprecated. The specification allows to disable all rings or to do nothing.
    async fn reset_owner(&mut self, message: &Message) -> Result<Answer, Refusal> {
        message.nothing()?;
        for index in 0..self.rings.len() {
            self.enable(index, false).await?;
        }
        Ok(Answer::Done)
    }

    async fn set_memory_table(&mut self, message: Message) -> Result<Answer, Refusal> {
        let table = self.memory.replaced(&message.regions()?, &message.descriptors)?;
        // They are files in memory, which the mappings keep.
        message.descriptors.into_iter().for_each(|descriptor| drop(descriptor.into_checked()));
        self.adopt(table).await?;
        Ok(Answer::Done)
    }

    async fn add_region(&mut self, mut message: Message) -> Result<Answer, Refusal> {
        self.needs(Protocol::CONFIGURE_MEM_SLOTS)?;
        let region: VhostUserSingleMemoryRegion = message.structure()?;
        let file = message.one_descriptor()?;
        let table = self.memory.with(&region, &file)?;
        drop(file.into_checked());
        self.adopt(table).await?;
        Ok(Answer::Done)
    }

    /// Some front ends send a descriptor, which is closed.
    async fn remove_region(&mut self, message: Message) -> Result<Answer, Refusal> {
        self.needs(Protocol::CONFIGURE_MEM_SLOTS)?;
        let region: VhostUserSingleMemoryRegion = message.structure()?;
        let table = self.memory.without(&region)?;
        self.adopt(table).await?;
        Ok(Answer::Done)
    }

    async fn set_ring_size(&mut self, state: VhostUserVringState) -> Result<Answer, Refusal> {
        let index = self.find_stopped(state.index)?;
        let size = u16::try_from(state.num).ok().filter(|size| size.is_power_of_two() && *size <= ENTRIES_MAX);
        self.rings[index].size = size.ok_or(RingError::Size(state.num))?;
        self.apply_ring_state(index).await?;
        Ok(Answer::Done)
    }

    /// While a ring is running its addresses may be set again, as QEMU does around a migration, but not changed.
    async fn set_ring_addresses(&mut self, addresses: VhostUserVringAddr) -> Result<Answer, Refusal> {
        let index = self.find(addresses.index)?;
        if addresses.flags != 0 {
            return Err(RingError::Log(addresses.index).into());
        }
        let VhostUserVringAddr { descriptor, used, available, .. } = addresses;
        let addresses = Some(UserRingAddresses { descriptors: descriptor, available, used });
        if self.rings[index].running.is_some() && self.rings[index].addresses != addresses {
            return Err(RingError::Running(index as u32).into());
        }
        self.rings[index].addresses = addresses;
        self.apply_ring_state(index).await?;
        Ok(Answer::Done)
    }

    fn set_ring_base(&mut self, state: VhostUserVringState) -> Result<Answer, Refusal> {
        let index = self.find_stopped(state.index)?;
        self.rings[index].base = u16::try_from(state.num).map_err(|_| RingError::Base(state.num))?;
        Ok(Answer::Done)
    }

    async fn ring_base(&mut self, state: VhostUserVringState) -> Result<Answer, Refusal> {
        let index = self.find(state.index)?;
        let base = self.stop(index).await?;
        let state = VhostUserVringState::new(state.index, base.into());
        Ok(Answer::Reply(state.as_slice().to_vec(), None))
    }

    /// A running ring continues with the new kick descriptor.
    async fn set_ring_kick(&mut self, message: &mut Message) -> Result<Answer, Refusal> {
        let (index, kick) = self.ring_eventfd(message)?;
        let kick = kick.ok_or(RingError::Polling(index as u32))?;
        self.stop(index).await?;
        self.rings[index].kick = Some(kick);
        self.apply_ring_state(index).await?;
        Ok(Answer::Done)
    }

    async fn set_ring_call(&mut self, message: &mut Message) -> Result<Answer, Refusal> {
        let (index, call) = self.ring_eventfd(message)?;
        let call = call.map(Arc::new);
        if self.rings[index].running.is_some() {
            self.handle.set_call(index as u16, call.clone()).await.map_err(Refusal::Device)?;
        }
        self.rings[index].call = call;
        Ok(Answer::Done)
    }

    fn ring_eventfd(&self, message: &mut Message) -> Result<(usize, Option<OwnedFd>), Refusal> {
        let (index, descriptor) = message.ring_descriptor()?;
        Ok((self.find(index)?, descriptor.map(ring::eventfd).transpose()?))
    }

    /// May arrive before the features; QEMU does so for other devices.
    async fn enable_ring(&mut self, state: VhostUserVringState) -> Result<Answer, Refusal> {
        let index = self.find(state.index)?;
        match state.num {
            0 => self.enable(index, false).await?,
            1 => self.enable(index, true).await?,
            _ => return Err(MessageError::Value.into()),
        }
        Ok(Answer::Done)
    }

    async fn enable(&mut self, index: usize, enabled: bool) -> Result<(), Refusal> {
        if self.rings[index].running.is_some() {
            self.handle.enable_queue(index as u16, enabled).await.map_err(Refusal::Device)?;
        }
        self.rings[index].enabled = enabled;
        self.apply_ring_state(index).await
    }

    fn config(&self, message: &Message) -> Result<Answer, Refusal> {
        self.needs(Protocol::CONFIG)?;
        let (wanted, rest) = message.structure_and_rest::<VhostUserConfig>()?;
        if !rest.is_empty() && rest.len() != { wanted.size } as usize {
            return Err(MessageError::Length(message.payload.len()).into());
        }
        // Until the driver has acknowledged features, all that are offered apply.
        let features = self.features.unwrap_or_else(|| self.entry.kind.features());
        let part = self.entry.kind.read_config(features, self.written, wanted.offset, wanted.size);
        Ok(Answer::Reply([wanted.as_slice(), &part.ok_or(Refusal::Config)?].concat(), None))
    }

    async fn set_config(&mut self, message: &Message) -> Result<Answer, Refusal> {
        self.needs(Protocol::CONFIG)?;
        let (wanted, rest) = message.structure_and_rest::<VhostUserConfig>()?;
        if rest.len() != { wanted.size } as usize {
            return Err(MessageError::Length(message.payload.len()).into());
        }
        let features = self.features.unwrap_or(0);
        let written = self.entry.kind.write_config(features, wanted.offset, rest).ok_or(Refusal::Config)?;
        let before = std::mem::replace(&mut self.written, written);
        if before != written {
            self.handle.set_driver(self.driver()).await.map_err(Refusal::Device)?;
        }
        Ok(Answer::Done)
    }

    fn set_channel(&mut self, message: &mut Message) -> Result<Answer, Refusal> {
        self.needs(Protocol::BACKEND_REQ)?;
        let channel = message.one_descriptor()?;
        message.nothing()?;
        let unix = socket_domain(&channel).is_ok_and(|domain| domain == AddressFamily::UNIX);
        if !unix || !socket_type(&channel).is_ok_and(|kind| kind == SocketType::STREAM) {
            return Err(Refusal::Channel);
        }
        self.channel = Some(channel);
        Ok(Answer::Done)
    }

    /// The reply has the length of the request, because compilers differ in the padding.
    fn inflight(&self, message: &Message) -> Result<Answer, Refusal> {
        let wanted = self.inflight_shape(message)?;
        let (_, file, len) = Log::create(wanted.num_queues, wanted.queue_size, &self.owner)?;
        let made = VhostUserInflight::new(len, 0, wanted.num_queues, wanted.queue_size);
        Ok(Answer::Reply(made.as_slice()[..message.payload.len()].to_vec(), Some(file)))
    }

    fn set_inflight(&mut self, message: &mut Message) -> Result<Answer, Refusal> {
        let wanted = self.inflight_shape(message)?;
        if self.is_running() {
            return Err(Refusal::Running);
        }
        let file = message.one_descriptor()?;
        self.log = Some(Log::open(&wanted, &file, &self.owner)?);
        drop(file.into_checked());
        Ok(Answer::Done)
    }

    fn inflight_shape(&self, message: &Message) -> Result<VhostUserInflight, Refusal> {
        self.needs(Protocol::INFLIGHT_SHMFD)?;
        let len = message.payload.len();
        if len != INFLIGHT_LEN && len != size_of::<VhostUserInflight>() {
            return Err(MessageError::Length(len).into());
        }
        let mut wanted = VhostUserInflight::default();
        wanted.as_mut_slice()[..len].copy_from_slice(&message.payload);
        let fits = usize::from(wanted.num_queues) <= self.rings.len() && wanted.queue_size <= ENTRIES_MAX;
        if fits { Ok(wanted) } else { Err(MessageError::Value.into()) }
    }

    /// Resets everything except the memory and the channel to the VMM, which QEMU relies on.
    async fn reset_device(&mut self, message: &Message) -> Result<Answer, Refusal> {
        self.needs(Protocol::RESET_DEVICE)?;
        message.nothing()?;
        for index in 0..self.rings.len() {
            self.stop(index).await?;
            self.rings[index] = Ring::default();
        }
        // The driver that made those requests has been reset, so they are not done again.
        if let Some(log) = self.log.take() {
            log.clear();
        }
        (self.features, self.written) = (None, K::Written::default());
        Ok(Answer::Done)
    }
}
