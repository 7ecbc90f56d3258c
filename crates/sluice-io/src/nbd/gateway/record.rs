//! What goes with each request of a gateway, and with each reply to it. All numbers are in network byte order.

use sluice_sched::gate::Service;
use sluice_sched::tracker::{Sums, Told};
use sluice_sched::{Cost, Phase};

use super::StartId;
use crate::nbd::wire::{u16_at, u32_at, u64_at};

/// Maximum number of servers that a gateway is believed to use. What a VM may be behind here grows with it.
const SERVERS_MAX: u32 = 16;

/// Follows the header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestRecord {
    /// Number of the VM in the list of the handshake.
    pub vm: u16,
    pub told: Told,
}

/// Follows the header of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyRecord {
    pub phase: Phase,
    /// What the request was served, and what of it was served to meet the reservation.
    pub service: Service,
    pub reserved: Service,
    pub start: StartId,
}

impl RequestRecord {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 56;

    /// Any bytes have a meaning: sums that run backwards tell nothing, and of servers at most 16 are believed.
    #[must_use]
    pub fn parse(bytes: &[u8; RequestRecord::LEN]) -> RequestRecord {
        let sums = Sums {
            all: u64_at(bytes, 16),
            reserved: u64_at(bytes, 24),
            all_bytes: u64_at(bytes, 32),
            reserved_bytes: u64_at(bytes, 40),
        };
        let told = Told {
            sums,
            at_idle: u64_at(bytes, 48),
            servers: u32::from(u16_at(bytes, 2)).min(SERVERS_MAX),
            outstanding: u32_at(bytes, 4),
            sequence: u64_at(bytes, 8),
        };
        RequestRecord { vm: u16_at(bytes, 0), told }
    }

    /// Returns the record as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; RequestRecord::LEN] {
        let Told { sums, at_idle, servers, outstanding, sequence } = self.told;
        let servers = u16::try_from(servers).unwrap_or(u16::MAX);
        let mut bytes = [0; RequestRecord::LEN];
        bytes[0..2].copy_from_slice(&self.vm.to_be_bytes());
        bytes[2..4].copy_from_slice(&servers.to_be_bytes());
        bytes[4..8].copy_from_slice(&outstanding.to_be_bytes());
        let rest = [sequence, sums.all, sums.reserved, sums.all_bytes, sums.reserved_bytes, at_idle];
        bytes[8..].copy_from_slice(rest.map(u64::to_be_bytes).as_flattened());
        bytes
    }
}

impl ReplyRecord {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 48;

    /// Any bytes have a meaning: of a service more of which is reserved than there is, all is.
    #[must_use]
    pub fn parse(bytes: &[u8; ReplyRecord::LEN]) -> ReplyRecord {
        let phase = match u32_at(bytes, 0) {
            1 => Phase::Reservation,
            2 => Phase::Weight,
            _ => Phase::None,
        };
        let [cost, reserved_cost] = [4, 8].map(|at| match u32_at(bytes, at) {
            0 => Cost::NONE,
            raw => Cost::from_raw(raw),
        });
        let [all, reserved] = [16, 24].map(|at| u64_at(bytes, at));
        let service = Service { cost, bytes: all };
        let reserved = Service { cost: reserved_cost.min(cost), bytes: reserved.min(all) };
        let start = StartId(*bytes[32..].first_chunk().expect("as many are left"));
        ReplyRecord { phase, service, reserved, start }
    }

    /// Returns the record as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; ReplyRecord::LEN] {
        let phase: u32 = match self.phase {
            Phase::None => 0,
            Phase::Reservation => 1,
            Phase::Weight => 2,
        };
        let mut bytes = [0; ReplyRecord::LEN];
        let words = [phase, self.service.cost.raw(), self.reserved.cost.raw()];
        bytes[..12].copy_from_slice(words.map(u32::to_be_bytes).as_flattened());
        let sums = [self.service.bytes, self.reserved.bytes];
        bytes[16..32].copy_from_slice(sums.map(u64::to_be_bytes).as_flattened());
        bytes[32..].copy_from_slice(&self.start.0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn records_are_read_as_they_are_written(bytes in prop::array::uniform32(any::<u64>()), phase in 0u8..3) {
            let [vm, servers, outstanding, sequence, all, reserved, all_bytes, reserved_bytes, at_idle, ..] = bytes;
            let sums = Sums { all, reserved, all_bytes, reserved_bytes };
            let (servers, outstanding) = (1 + servers as u32 % SERVERS_MAX, outstanding as u32);
            let told = Told { sums, at_idle, servers, outstanding, sequence };
            let record = RequestRecord { vm: vm as u16, told };
            prop_assert_eq!(RequestRecord::parse(&record.encode()), record);
            let phase = [Phase::None, Phase::Reservation, Phase::Weight][usize::from(phase)];
            let service = Service { cost: Cost::from_raw(all as u32), bytes: all_bytes };
            let start = StartId([vm as u8; 16]);
            let record = ReplyRecord { phase, service, reserved: service.if_reserved(phase), start };
            prop_assert_eq!(ReplyRecord::parse(&record.encode()), record);
        }

        #[test]
        fn any_bytes_are_a_record_that_contradicts_nothing(
            request in prop::array::uniform32(any::<u8>()), reply in prop::array::uniform32(any::<u8>()),
        ) {
            let told = RequestRecord::parse([request, request].as_flattened().first_chunk().unwrap()).told;
            prop_assert!(told.servers <= SERVERS_MAX);
            let record = ReplyRecord::parse([reply, reply].as_flattened().first_chunk().unwrap());
            prop_assert!(record.reserved.cost <= record.service.cost && record.reserved.bytes <= record.service.bytes);
        }
    }
}
