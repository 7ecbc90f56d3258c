//! Spreading frames over the receive queues of a NIC.
//!
//! All frames of a connection go to one queue, so that they keep their order. Frames that are not IP, and fragments, whose ports are not in
//! each of them, are told apart by their addresses only.

use crate::{Frame, Network, Transport};

/// Bytes of the ports of TCP and UDP.
const PORTS_LEN: usize = 4;
const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns a number that is the same for all frames of a connection in one direction. `prefix` is what the frame was parsed from.
#[must_use]
pub fn flow(frame: &Frame, prefix: &[u8]) -> u32 {
    let mut hash = match frame.network {
        Network::Ipv4 { source, destination } => {
            mix(u64::from(source.to_bits()) << 32 | u64::from(destination.to_bits()), 0)
        }
        Network::Ipv6 { source, destination } => [source.to_bits(), destination.to_bits()]
            .into_iter()
            .fold(0, |hash, address| mix(address as u64, mix((address >> 64) as u64, hash))),
        Network::Arp(_) | Network::Other | Network::Malformed => 0,
    };
    let at = usize::from(frame.transport_at);
    let is_whole = frame.headers > 0 && matches!(frame.transport, Transport::Tcp | Transport::Udp { .. });
    if let Some(ports) = prefix.get(at..at + PORTS_LEN).filter(|_| is_whole) {
        hash = mix(ports.iter().fold(0, |ports, byte| ports << 8 | u64::from(*byte)), hash);
    }
    (hash >> 32) as u32
}

fn mix(word: u64, hash: u64) -> u64 {
    let mixed = (word ^ hash).wrapping_mul(PRIME);
    mixed ^ mixed >> 29
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    /// A UDP datagram; `fragment` is the word with flags and offset.
    fn datagram(port: u16, fragment: u16) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 46, 0, 7];
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 9, 0, 26, 0, 0]);
        frame.resize(60, 0);
        frame
    }

    fn flow_of(bytes: &[u8]) -> u32 {
        flow(&parse(bytes, bytes.len() as u32).unwrap(), bytes)
    }

    #[test]
    fn connections_are_spread_and_one_stays_together() {
        assert_eq!(flow_of(&datagram(1000, 0)), flow_of(&datagram(1000, 0)));
        for queues in [2, 3, 4, 8] {
            let mut counts = vec![0; queues];
            (0..8000).for_each(|port| counts[flow_of(&datagram(port, 0)) as usize % queues] += 1);
            let fair = 8000 / queues;
            assert!(counts.iter().all(|count| (fair * 9 / 10..fair * 11 / 10).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn fragments_of_a_datagram_stay_together() {
        let [first, second] = [0x2000, 3].map(|fragment| flow_of(&datagram(1000, fragment)));
        assert_eq!(first, second);
    }

    #[test]
    fn frames_without_addresses_stay_together() {
        let arp = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[8, 6], &[0; 46]].concat();
        assert_eq!(flow_of(&arp), 0);
    }
}
