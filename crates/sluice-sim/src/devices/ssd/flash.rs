//! Flash translation: the map, the blocks, and garbage collection, without time.

use std::hint::black_box;
use std::ops::Range;

use crate::devices::ssd::numbers::Numbers;

/// Number of random writes that [`Flash::fetch`] prepares together.
pub(super) const FETCHED: usize = 64;
/// No page.
pub(super) const NONE: u32 = u32::MAX;
/// Maximum part of the spare blocks that the collector may use itself: more would be an artefact of a small model.
const RESERVE_PART: f64 = 0.10;

/// Geometry of the flash.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Geometry {
    /// Channels.
    pub channels: u32,
    /// Dies of a channel.
    pub dies: u32,
    /// Planes of a die.
    pub planes: u32,
    /// Blocks of a plane.
    pub blocks: u32,
    /// Pages of a block.
    pub pages: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Spare area as a part of the size that the host sees.
    pub spare: f64,
    /// Number of free blocks of a plane below which it collects.
    pub reserve: u32,
}

impl Geometry {
    /// Planes of all channels.
    #[must_use]
    pub const fn planes_in_all(&self) -> u32 {
        self.channels * self.dies * self.planes
    }

    /// Pages of all planes.
    #[must_use]
    pub fn physical_pages(&self) -> u64 {
        u64::from(self.planes_in_all()) * u64::from(self.blocks) * u64::from(self.pages)
    }

    /// Pages that the host sees.
    #[must_use]
    pub fn host_pages(&self) -> u64 {
        (self.physical_pages() as f64 / (1.0 + self.spare)) as u64
    }

    /// Checks that the geometry behaves like a real drive.
    ///
    /// # Errors
    /// [`GeometryError`] with the cause.
    pub fn check(&self) -> Result<(), GeometryError> {
        let Geometry { blocks, pages, reserve, spare, .. } = *self;
        if self.planes_in_all() == 0 || pages == 0 || pages > u32::from(u16::MAX) || blocks < 4 {
            return Err(GeometryError::Empty);
        }
        if self.physical_pages() >= u64::from(NONE) {
            return Err(GeometryError::TooLarge(self.physical_pages()));
        }
        let spare_part = spare / (1.0 + spare);
        let (spare_blocks, kept) = (f64::from(blocks) * spare_part, reserve + 2);
        if f64::from(kept) > spare_blocks * RESERVE_PART {
            let wanted = (f64::from(kept) / RESERVE_PART / spare_part).ceil() as u32;
            let spare_percent = spare * 100.0;
            return Err(GeometryError::TooFewSpareBlocks { blocks, spare_percent, spare_blocks, kept, wanted });
        }
        Ok(())
    }
}

/// A geometry that does not behave like a real drive.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum GeometryError {
    /// The collector's own blocks use up the spare area.
    #[error(
        "A plane of {blocks} blocks with {spare_percent:.0} % spare has {spare_blocks:.0} spare blocks, of which the \
         garbage collector keeps {kept} free. That is more than a tenth, so garbage collection would be an artefact of \
         the small model. Use at least {wanted} blocks"
    )]
    TooFewSpareBlocks {
        /// Blocks of a plane.
        blocks: u32,
        /// In percent of the size that the host sees.
        spare_percent: f64,
        /// Spare blocks of a plane.
        spare_blocks: f64,
        /// Reserve and open blocks.
        kept: u32,
        /// Sufficient number of spare blocks.
        wanted: u32,
    },
    /// A dimension is zero.
    #[error("A drive needs at least one channel, die, plane and page, and four blocks per plane")]
    Empty,
    /// More pages than the map can address.
    #[error("{0} pages are more than the map can address: 4,294,967,294; use a smaller drive or larger pages")]
    TooLarge(u64),
}

/// Consequences of a page write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) plane: usize,
    /// Valid pages that were copied first.
    pub(super) copied: u32,
    pub(super) erased: u32,
}

/// Full blocks of one plane by number of valid pages: lists in one array.
#[derive(Debug, Clone)]
pub(super) struct Plane {
    pub(super) free: Vec<u32>,
    /// Open blocks for the host's pages and for copies.
    pub(super) open: [u32; 2],
    /// First block for each number of valid pages.
    pub(super) heads: Vec<u32>,
}

/// The flash of a drive.
#[derive(Debug, Clone)]
pub(super) struct Flash {
    geometry: Geometry,
    /// Physical page of each host page.
    pub(super) map: Numbers,
    /// Host page of each physical page.
    pub(super) back: Numbers,
    pub(super) valid: Vec<u16>,
    /// Written pages of each block.
    pub(super) filled: Vec<u16>,
    /// Links in the list of full, closed blocks with as many valid pages.
    pub(super) next: Vec<u32>,
    previous: Vec<u32>,
    pub(super) planes: Vec<Plane>,
    pub(super) turn: usize,
    host_writes: u64,
    flash_writes: u64,
    /// Pages that were copied to free their blocks.
    copies: u64,
    /// Buffer for the pages of a block that is being freed.
    moved: Vec<u32>,
}

impl Flash {
    pub(super) fn new(geometry: Geometry) -> Result<Self, GeometryError> {
        geometry.check()?;
        let Geometry { blocks, pages, .. } = geometry;
        let physical = geometry.physical_pages();
        let count = geometry.planes_in_all() * blocks;
        let planes = (0..geometry.planes_in_all()).map(|plane| {
            let mut free: Vec<u32> = (plane * blocks..(plane + 1) * blocks).rev().collect();
            let open = [free.pop(), free.pop()].map(|block| block.expect("a plane has four blocks or more"));
            Plane { free, open, heads: vec![NONE; pages as usize + 1] }
        });
        Ok(Flash {
            geometry,
            map: Numbers::new(NONE, geometry.host_pages() as usize),
            back: Numbers::new(NONE, physical as usize),
            valid: vec![0; count as usize],
            filled: vec![0; count as usize],
            next: vec![NONE; count as usize],
            previous: vec![NONE; count as usize],
            planes: planes.collect(),
            turn: 0,
            host_writes: 0,
            flash_writes: 0,
            copies: 0,
            moved: Vec::with_capacity(pages as usize),
        })
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Pages that the host sees.
    pub(super) fn pages(&self) -> u64 {
        self.map.len() as u64
    }

    /// The plane that has a page; `None` if it was never written.
    pub(super) fn plane_of(&self, page: u64) -> Option<usize> {
        let physical = *self.map.get(page as usize)?;
        (physical != NONE).then(|| self.plane_of_block(physical / self.geometry.pages))
    }

    fn plane_of_block(&self, block: u32) -> usize {
        (block / self.geometry.blocks) as usize
    }

    /// Reads what writes of these pages will need, without changing anything. Each of them waits for memory, because the map of
    /// a large drive is in no cache; reads that do not depend on each other wait together.
    pub(super) fn fetch(&self, pages: &[u64]) {
        let (map, back): (&[u32], &[u32]) = (&self.map, &self.back);
        let written = |physical: &u32| *physical != NONE;
        let mut at = [NONE; FETCHED];
        at.iter_mut().zip(pages).for_each(|(at, page)| *at = map[*page as usize]);
        let pages = at.iter().copied().filter(written).map(|physical| back[physical as usize]);
        black_box(pages.fold(0, |all, page| all ^ page));
    }

    /// Writes a page of the host on the next plane.
    pub(super) fn write(&mut self, page: u64) -> Written {
        let plane = self.turn;
        self.turn = (self.turn + 1) % self.planes.len();
        self.host_writes += 1;
        self.discard(page);
        let (copied, erased) = self.collect(plane);
        self.copies += u64::from(copied);
        self.program(plane, 0, page as u32);
        Written { plane, copied, erased }
    }

    /// Discards a page.
    pub(super) fn discard(&mut self, page: u64) {
        let physical = std::mem::replace(&mut self.map[page as usize], NONE);
        if physical != NONE {
            self.invalidate(physical);
        }
    }

    fn invalidate(&mut self, physical: u32) {
        let block = physical / self.geometry.pages;
        self.back[physical as usize] = NONE;
        let listed = self.is_full(block) && !self.planes[self.plane_of_block(block)].open.contains(&block);
        if listed {
            self.unlink(block);
        }
        self.valid[block as usize] -= 1;
        if listed {
            self.link(block);
        }
    }

    fn is_full(&self, block: u32) -> bool {
        u32::from(self.filled[block as usize]) == self.geometry.pages
    }

    /// Writes a page to an open block of a plane: 0 for the host, 1 for the collector.
    pub(super) fn program(&mut self, plane: usize, which: usize, page: u32) {
        let block = self.block_with_room(plane, which);
        self.fill(block, std::iter::once(page));
    }

    /// Returns an open block of a plane; if it is full, the next one.
    fn block_with_room(&mut self, plane: usize, which: usize) -> u32 {
        let block = self.planes[plane].open[which];
        if !self.is_full(block) {
            return block;
        }
        let next = self.planes[plane].free.pop().expect("the reserve is filled before a write");
        self.planes[plane].open[which] = next;
        self.link(block);
        next
    }

    /// Writes pages to a block until it is full. Returns the number of written pages.
    fn fill(&mut self, block: u32, pages: impl Iterator<Item = u32>) -> u32 {
        let filled = u32::from(self.filled[block as usize]);
        let (first, end) = (block * self.geometry.pages + filled, (block + 1) * self.geometry.pages);
        let (map, back): (&mut [u32], &mut [u32]) = (&mut self.map, &mut self.back);
        let mut count = 0;
        for (physical, page) in (first..end).zip(pages) {
            map[page as usize] = physical;
            back[physical as usize] = page;
            count += 1;
        }
        self.filled[block as usize] += count as u16;
        self.valid[block as usize] += count as u16;
        self.flash_writes += u64::from(count);
        count
    }

    /// Frees blocks of a plane up to its reserve; returns the number of copied pages and of erased blocks.
    fn collect(&mut self, plane: usize) -> (u32, u32) {
        let (mut copied, mut erased) = (0, 0);
        let mut moved = std::mem::take(&mut self.moved);
        while self.planes[plane].free.len() < self.geometry.reserve as usize {
            let Some(victim) = self.planes[plane].heads.iter().copied().find(|head| *head != NONE) else { break };
            if u32::from(self.valid[victim as usize]) == self.geometry.pages {
                break;
            }
            self.unlink(victim);
            let first = victim * self.geometry.pages;
            self.fetch_map(first..first + self.geometry.pages);
            let pages = &mut self.back[first as usize..(first + self.geometry.pages) as usize];
            moved.extend(pages.iter().copied().filter(|page| *page != NONE));
            pages.fill(NONE);
            copied += moved.len() as u32;
            let mut left = &moved[..];
            while !left.is_empty() {
                let block = self.block_with_room(plane, 1);
                let count = self.fill(block, left.iter().copied());
                left = &left[count as usize..];
            }
            moved.clear();
            (self.valid[victim as usize], self.filled[victim as usize]) = (0, 0);
            self.planes[plane].free.insert(0, victim);
            erased += 1;
        }
        self.moved = moved;
        (copied, erased)
    }

    /// Reads the entries in the map of these physical pages; see [`Flash::fetch`].
    fn fetch_map(&self, pages: Range<u32>) {
        let map: &[u32] = &self.map;
        let back = self.back[pages.start as usize..pages.end as usize].iter();
        let entries = back.filter(|page| **page != NONE).map(|page| map[*page as usize]);
        black_box(entries.fold(0, |all, entry| all ^ entry));
    }

    pub(super) fn link(&mut self, block: u32) {
        let plane = self.plane_of_block(block);
        let head = &mut self.planes[plane].heads[usize::from(self.valid[block as usize])];
        let after = std::mem::replace(head, block);
        (self.next[block as usize], self.previous[block as usize]) = (after, NONE);
        if after != NONE {
            self.previous[after as usize] = block;
        }
    }

    fn unlink(&mut self, block: u32) {
        let plane = self.plane_of_block(block);
        let (before, after) = (self.previous[block as usize], self.next[block as usize]);
        match before {
            NONE => self.planes[plane].heads[usize::from(self.valid[block as usize])] = after,
            before => self.next[before as usize] = after,
        }
        if after != NONE {
            self.previous[after as usize] = before;
        }
        (self.next[block as usize], self.previous[block as usize]) = (NONE, NONE);
    }

    pub(super) fn forget_counts(&mut self) {
        (self.host_writes, self.flash_writes, self.copies) = (0, 0, 0);
    }

    pub(super) fn write_amplification(&self) -> f64 {
        if self.host_writes == 0 { 1.0 } else { self.flash_writes as f64 / self.host_writes as f64 }
    }

    /// Checks that all written pages are host writes or copies, and that the map matches the pages.
    pub(super) fn check_invariants(&self) -> Result<(), String> {
        let (host, copies, all) = (self.host_writes, self.copies, self.flash_writes);
        if host + copies != all {
            return Err(format!("{host} pages of the host and {copies} copies were written, but {all} in total"));
        }
        match self.is_consistent() {
            true => Ok(()),
            false => Err("the map does not match the pages".to_owned()),
        }
    }

    pub(super) fn is_consistent(&self) -> bool {
        let mapped = self.map.iter().enumerate().filter(|(_, physical)| **physical != NONE);
        let back = mapped.clone().all(|(page, physical)| self.back[*physical as usize] == page as u32);
        let valid: u64 = self.valid.iter().map(|count| u64::from(*count)).sum();
        back && valid == mapped.count() as u64
    }
}
