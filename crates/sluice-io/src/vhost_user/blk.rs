//! Features and configuration space of a virtio block device (VIRTIO 1.3, 5.2.3 and 5.2.4).
//!
//! Both follow from the [`VolumeInfo`]. Drivers send no smaller requests than its logical blocks. The number of segments is that of QEMU's devices, so that a request fits
//! into rings of 128 entries. Their maximum length is chosen so that a request with all segments does not exceed the
//! maximum length of a request.

use std::mem::{offset_of, size_of};

use vhost::vhost_user::message::{
    VHOST_USER_CONFIG_OFFSET, VhostUserProtocolFeatures as Protocol, VhostUserVirtioFeatures,
};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ,
    VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
    virtio_blk_config as Layout,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use super::device_kind::DeviceKind;
use super::device_kind::Driver;
use crate::volume::VolumeInfo;

/// Feature bit by which a driver requests event indices.
pub const EVENT_INDEX: u32 = VIRTIO_RING_F_EVENT_IDX;
/// Length of a sector in bytes. The configuration space states sizes in sectors, whatever the block size.
const SECTOR: u64 = 512;
/// Maximum number of data segments of a request, without header and status.
const SEGMENTS_MAX: u32 = 126;
/// Smallest `size_max` that the device offers: one guest page.
const SEGMENT_LEN_MIN: u32 = 4096;
/// Maximum length of a discard, in bytes.
const RANGE_MAX: u64 = 2 << 30;
/// Length of the readable configuration space, in bytes. Fields that are not defined read as zeroes.
const SPACE_LEN: usize = 256;
/// Offset of the only byte that a driver may write.
const WRITE_CACHE: u32 = offset_of!(Layout, wce) as u32;

/// Protocol features that are offered.
const PROTOCOL: Protocol = Protocol::MQ
    .union(Protocol::CONFIG)
    .union(Protocol::REPLY_ACK)
    .union(Protocol::CONFIGURE_MEM_SLOTS)
    .union(Protocol::RESET_DEVICE)
    .union(Protocol::BACKEND_REQ)
    .union(Protocol::INFLIGHT_SHMFD);

/// A virtio block device.
#[derive(Debug, Clone, PartialEq)]
pub struct Blk {
    /// Size and properties of the disk.
    pub info: VolumeInfo,
    /// Number of queues, 1 to 256.
    pub queues: u16,
}

impl DeviceKind for Blk {
    /// Whether the write cache is on, if the driver has set it.
    type Written = Option<bool>;

    fn features(&self) -> u64 {
        features(&self.info)
    }

    fn protocol_features(&self) -> Protocol {
        PROTOCOL
    }

    fn queues(&self) -> u16 {
        self.queues
    }

    fn driver(&self, features: u64, written: Option<bool>) -> Driver {
        Driver { features, write_back: write_back(features, written) }
    }

    fn read_config(&self, features: u64, written: Option<bool>, offset: u32, len: u32) -> Option<Vec<u8>> {
        read_config(&self.info, self.queues, write_back(features, written), offset, len)
    }

    fn write_config(&self, features: u64, offset: u32, bytes: &[u8]) -> Option<Option<bool>> {
        write_config(features, offset, bytes).map(Some)
    }
}

/// Whether `features` contain a bit.
#[must_use]
pub fn has(features: u64, bit: u32) -> bool {
    features & (1 << bit) != 0
}

/// Returns the features that are offered for a volume.
fn features(info: &VolumeInfo) -> u64 {
    let offered = [
        (true, VIRTIO_F_VERSION_1),
        (true, VIRTIO_RING_F_EVENT_IDX),
        (true, VIRTIO_RING_F_INDIRECT_DESC),
        (true, VIRTIO_BLK_F_SEG_MAX),
        (true, VIRTIO_BLK_F_SIZE_MAX),
        (true, VIRTIO_BLK_F_BLK_SIZE),
        (true, VIRTIO_BLK_F_TOPOLOGY),
        (true, VIRTIO_BLK_F_MQ),
        (info.flush, VIRTIO_BLK_F_FLUSH),
        (info.flush, VIRTIO_BLK_F_CONFIG_WCE),
        (info.trim && !info.read_only, VIRTIO_BLK_F_DISCARD),
        (info.write_zeroes && !info.read_only, VIRTIO_BLK_F_WRITE_ZEROES),
        (info.read_only, VIRTIO_BLK_F_RO),
    ];
    let bits = offered.iter().filter(|(is, _)| *is).fold(0, |bits, (_, bit)| bits | 1 << bit);
    bits | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
}

/// Whether writes may be cached until a flush: as the driver has set it, otherwise as the negotiated features imply
/// (5.2.5: with flush there is a cache, without flush there is none).
fn write_back(features: u64, set: Option<bool>) -> bool {
    let flushes = has(features, VIRTIO_BLK_F_FLUSH);
    match set {
        Some(set) if has(features, VIRTIO_BLK_F_CONFIG_WCE) => set && flushes,
        _ => flushes,
    }
}

/// Returns a part of the configuration space; `None` if it ends past the readable part. Some front ends add 0x100, the
/// offset of the space among the registers of virtio-mmio.
fn read_config(info: &VolumeInfo, queues: u16, write_back: bool, offset: u32, len: u32) -> Option<Vec<u8>> {
    let mut space = [0; SPACE_LEN];
    space[..size_of::<Layout>()].copy_from_slice(&config(info, queues, write_back));
    let start = in_space(offset) as usize;
    let end = start.checked_add(len as usize)?;
    space.get(start..end).filter(|part| !part.is_empty()).map(<[u8]>::to_vec)
}

/// Returns whether a driver's write to the configuration space turns the write cache on; `None` if it is not a valid
/// write to that field.
fn write_config(features: u64, offset: u32, bytes: &[u8]) -> Option<bool> {
    match (in_space(offset), bytes) {
        (WRITE_CACHE, [value @ 0..=1]) if has(features, VIRTIO_BLK_F_CONFIG_WCE) => Some(*value == 1),
        _ => None,
    }
}

fn in_space(offset: u32) -> u32 {
    if offset >= VHOST_USER_CONFIG_OFFSET { offset - VHOST_USER_CONFIG_OFFSET } else { offset }
}

fn config(info: &VolumeInfo, queues: u16, write_back: bool) -> [u8; size_of::<Layout>()] {
    let mut space = [0; size_of::<Layout>()];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    let block = block_len(info);
    let physical = info.block_preferred.max(block);
    let (segments, segment_len) = segments(info);
    put(offset_of!(Layout, capacity), &(info.size_bytes / SECTOR).to_le_bytes());
    put(offset_of!(Layout, size_max), &segment_len.to_le_bytes());
    put(offset_of!(Layout, seg_max), &segments.to_le_bytes());
    put(offset_of!(Layout, blk_size), &block.to_le_bytes());
    put(offset_of!(Layout, physical_block_exp), &[(physical / block).ilog2() as u8]);
    put(offset_of!(Layout, min_io_size), &u16::try_from(physical / block).unwrap_or(0).to_le_bytes());
    put(offset_of!(Layout, wce), &[u8::from(write_back)]);
    put(offset_of!(Layout, num_queues), &queues.to_le_bytes());
    let sectors = (RANGE_MAX / SECTOR) as u32;
    if info.trim && !info.read_only {
        put(offset_of!(Layout, max_discard_sectors), &sectors.to_le_bytes());
        put(offset_of!(Layout, max_discard_seg), &1u32.to_le_bytes());
        let aligned = physical / SECTOR as u32;
        put(offset_of!(Layout, discard_sector_alignment), &aligned.to_le_bytes());
    }
    if info.write_zeroes && !info.read_only {
        // The same as for a write. On a volume that cannot zero by itself, zeroes are written at the rate of the VM's
        // limit, and the guest waits for the reply.
        put(offset_of!(Layout, max_write_zeroes_sectors), &(info.block_maximum / SECTOR as u32).to_le_bytes());
        put(offset_of!(Layout, max_write_zeroes_seg), &1u32.to_le_bytes());
        put(offset_of!(Layout, write_zeroes_may_unmap), &[u8::from(info.trim)]);
    }
    space
}

/// Returns the logical block size, which is at least a sector.
fn block_len(info: &VolumeInfo) -> u32 {
    info.block_minimum.max(SECTOR as u32)
}

/// Returns the maximum number of segments, and their maximum length. Their product does not exceed the maximum length
/// of a request.
fn segments(info: &VolumeInfo) -> (u32, u32) {
    let longest = info.block_maximum / SEGMENTS_MAX;
    let longest = (longest + 1).next_power_of_two() / 2;
    let longest = longest.max(SEGMENT_LEN_MIN).max(block_len(info));
    ((info.block_maximum / longest).clamp(1, SEGMENTS_MAX), longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::sample;
    use sluice_client::vhost::config::BlockConfig;

    fn config_of(info: &VolumeInfo) -> BlockConfig {
        BlockConfig::parse(&read_config(info, 4, true, 0, 60).unwrap())
    }

    #[test]
    fn a_volume_with_everything() {
        let info = VolumeInfo { block_maximum: 64 << 20, ..sample() };
        let expected = BlockConfig {
            capacity: 2048,
            size_max: 512 << 10,
            seg_max: 126,
            block_size: 512,
            physical_block_exponent: 3,
            alignment_offset: 0,
            io_min: 8,
            io_opt: 0,
            write_cache: true,
            queues: 4,
            discard_sectors_max: 4 << 20,
            discard_segments_max: 1,
            discard_alignment: 8,
            zeroes_sectors_max: 128 << 10,
            zeroes_segments_max: 1,
            zeroes_may_unmap: true,
        };
        assert_eq!(config_of(&info), expected);
        let bits = [1, 2, 6, 9, 10, 11, 12, 13, 14, 28, 29, 30, 32];
        assert_eq!(features(&info), bits.iter().fold(0, |all, bit| all | 1u64 << bit));
    }

    #[test]
    fn a_read_only_volume_offers_no_feature_that_changes_it() {
        let info = VolumeInfo { read_only: true, ..sample() };
        let bits = features(&info);
        assert!(
            has(bits, VIRTIO_BLK_F_RO) && !has(bits, VIRTIO_BLK_F_DISCARD) && !has(bits, VIRTIO_BLK_F_WRITE_ZEROES)
        );
        assert_eq!((config_of(&info).discard_sectors_max, config_of(&info).zeroes_segments_max), (0, 0));
    }

    #[test]
    fn a_disk_of_4096_byte_blocks() {
        let info = VolumeInfo { block_minimum: 4096, ..sample() };
        let told = config_of(&info);
        assert_eq!((told.block_size, told.physical_block_exponent, told.io_min), (4096, 0, 1));
        assert_eq!(told.capacity, 2048, "in sectors of 512 bytes nevertheless");
    }

    #[test]
    fn no_offered_request_exceeds_the_maximum_length() {
        for shift in 12..27 {
            for block_minimum in [1, 512, 4096, 65536] {
                let info = VolumeInfo { block_maximum: 1 << shift, block_minimum, ..sample() };
                let (count, longest) = segments(&info);
                let fits = u64::from(count) * u64::from(longest) <= 1 << shift;
                assert!(fits || count == 1, "{count} segments of {longest} bytes in {}", 1u64 << shift);
                assert!(longest.is_power_of_two() && longest >= 4096);
            }
        }
    }

    #[test]
    fn parts_of_the_space_from_either_origin() {
        let info = sample();
        let whole = read_config(&info, 1, true, 0, 256).unwrap();
        assert_eq!(read_config(&info, 1, true, 20, 4).unwrap(), whole[20..24]);
        assert_eq!(read_config(&info, 1, true, 0x100, 256).unwrap(), whole);
        assert_eq!(read_config(&info, 1, true, 0x114, 4).unwrap(), whole[20..24]);
        assert!(whole[size_of::<Layout>()..].iter().all(|&byte| byte == 0));
        for (offset, len) in [(0, 0), (0, 257), (255, 2), (0x1ff, 2), (u32::MAX, 1), (1, u32::MAX), (0x1000, 1)] {
            assert_eq!(read_config(&info, 1, true, offset, len), None, "{offset}, {len}");
        }
    }

    #[test]
    fn only_the_write_cache_can_be_written() {
        let all = features(&sample());
        assert_eq!(write_config(all, 32, &[0]), Some(false));
        assert_eq!(write_config(all, 0x120, &[1]), Some(true));
        for (offset, bytes) in [(32, &[2][..]), (32, &[]), (32, &[0, 0]), (0, &[0; 8]), (31, &[0]), (33, &[0])] {
            assert_eq!(write_config(all, offset, bytes), None, "{offset}, {bytes:?}");
        }
        assert_eq!(write_config(all & !(1 << VIRTIO_BLK_F_CONFIG_WCE), 32, &[0]), None, "not negotiated");
    }

    #[test]
    fn the_write_cache_follows_the_driver() {
        let (flush, wce) = (1 << VIRTIO_BLK_F_FLUSH, 1 << VIRTIO_BLK_F_CONFIG_WCE);
        let cases = [
            (flush | wce, None, true),
            (flush | wce, Some(false), false),
            (flush | wce, Some(true), true),
            (flush, Some(false), true),
            (0, None, false),
            (wce, Some(true), false),
        ];
        for (features, set, expected) in cases {
            assert_eq!(write_back(features, set), expected, "{features:#x} {set:?}");
        }
    }
}
