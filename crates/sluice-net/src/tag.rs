//! Putting a VLAN tag on and taking it off, on a copy of the first bytes of a frame.
//!
//! A tag is four bytes behind the two addresses. The offload header counts from the start of the frame, so it moves too:
//! [`OffloadHeader::shifted`] by [`LEN`].

use crate::frame::{ETHERNET_LEN, PREFIX_LEN, TAG_LEN, VLAN_TAG};

#[cfg(doc)]
use crate::OffloadHeader;

/// Length of a tag in bytes.
pub const LEN: u16 = TAG_LEN as u16;
/// Length of a prefix with a tag on it.
pub const TAGGED_LEN: usize = PREFIX_LEN + TAG_LEN;

const ADDRESSES_LEN: usize = 12;

/// Copies `prefix` to `tagged` with the tag of `vlan`, and returns the bytes written. A prefix without a whole Ethernet header, or longer than
/// [`PREFIX_LEN`], gives an empty slice.
pub fn put_on<'a>(prefix: &[u8], vlan: u16, tagged: &'a mut [u8; TAGGED_LEN]) -> &'a [u8] {
    if !(ETHERNET_LEN..=PREFIX_LEN).contains(&prefix.len()) {
        return &[];
    }
    let length = prefix.len() + TAG_LEN;
    tagged[..ADDRESSES_LEN].copy_from_slice(&prefix[..ADDRESSES_LEN]);
    tagged[ADDRESSES_LEN..ADDRESSES_LEN + 2].copy_from_slice(&VLAN_TAG.to_be_bytes());
    tagged[ADDRESSES_LEN + 2..ADDRESSES_LEN + TAG_LEN].copy_from_slice(&(vlan & 0x0fff).to_be_bytes());
    tagged[ADDRESSES_LEN + TAG_LEN..length].copy_from_slice(&prefix[ADDRESSES_LEN..]);
    &tagged[..length]
}

/// Takes the outer 802.1Q tag off `prefix` by moving the addresses, and returns the frame's bytes without it. `None` if there is no such tag.
pub fn take_off(prefix: &mut [u8]) -> Option<&mut [u8]> {
    let is_tagged =
        prefix.len() >= ETHERNET_LEN + TAG_LEN && prefix[ADDRESSES_LEN..ETHERNET_LEN] == VLAN_TAG.to_be_bytes();
    if !is_tagged {
        return None;
    }
    prefix.copy_within(..ADDRESSES_LEN, TAG_LEN);
    Some(&mut prefix[TAG_LEN..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    #[test]
    fn a_tag_that_is_put_on_is_seen_and_taken_off() {
        let frame: Vec<u8> = (0..60).collect();
        let mut space = [0; TAGGED_LEN];
        let tagged = put_on(&frame, 4094, &mut space);
        assert_eq!(tagged.len(), 64);
        let seen = parse(tagged, 64).unwrap();
        assert_eq!((seen.vlan, seen.tags, seen.ether_type), (Some(4094), 1, 0x0c0d));
        let mut copy = tagged.to_vec();
        assert_eq!(take_off(&mut copy).unwrap(), frame);
        assert!(take_off(&mut frame.clone()).is_none(), "there is no tag");
        assert!(take_off(&mut copy[..17]).is_none(), "it is truncated");
        assert!(put_on(&frame[..13], 1, &mut space).is_empty());
    }
}
