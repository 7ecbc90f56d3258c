//! The state of an aged drive in a file: filling a drive and overwriting it twice takes longer than most simulations.
//!
//! A file is for one geometry, one stream of random numbers and one recipe of ageing, all of which stand in its head; it ends with a checksum.
//! What does not fit, or is not whole, is refused with a reason, and the state is made anew and written over it. All that is
//! read is checked against the geometry before it is used, so that no file can make a map that points nowhere. Numbers are
//! written and read one by one: beside the drive itself a file takes no memory.
//!
//! Layout, in numbers of four bytes, the lowest byte first: magic and version, the key, next plane, the map; for each plane its
//! two open blocks with how far they are filled, its free blocks in their order, and its full ones in the order in which they
//! are collected; at the end eight bytes of checksum.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::NamedTempFile;

use super::Ssd;
use super::flash::{Flash, Geometry, NONE};
use crate::random::Stream;

/// `SLSD`, and the version of the layout behind it.
const MAGIC: u32 = 0x4453_4c53;
const VERSION: u32 = 1;

/// How a drive is aged: filled in order, then so many times its capacity in random pages.
#[derive(Debug, Clone)]
pub struct Ageing {
    /// Where the random pages come from.
    pub random: Stream,
    /// Times the capacity; 0: filled and no more.
    pub times: f64,
}

impl Ageing {
    /// Another one for another stream.
    fn key(&self) -> u64 {
        self.random.clone().below(u64::MAX)
    }
}

/// A folder in which states of aged drives are kept, for as many runs at once as there are.
#[derive(Debug)]
pub struct States {
    folder: PathBuf,
    refused: Mutex<Vec<String>>,
}

impl States {
    /// In this folder, which is there.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        States { folder, refused: Mutex::default() }
    }

    /// Ages a drive, or takes what is kept.
    pub(crate) fn age(&self, ssd: &mut Ssd, ageing: &Ageing) {
        if let Some(error) = ssd.age_from(&self.folder, ageing) {
            self.refused().push(format!("{error}; the drive was aged again"));
        }
    }

    /// What could not be read or written, since this was asked last.
    #[must_use]
    pub fn take_refused(&self) -> Vec<String> {
        std::mem::take(&mut *self.refused())
    }

    fn refused(&self) -> MutexGuard<'_, Vec<String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a file is not the state that is asked for.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It cannot be read or written.
    #[error("Cannot use {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Of another drive, stream, recipe or version.
    #[error("{0} is the state of a drive with other parameters, seed or ageing")]
    OtherParameters(PathBuf),
    /// Cut off, or changed.
    #[error("{path} is damaged: {what}")]
    Broken {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
}

/// Where a state of this kind is kept in a folder.
#[must_use]
pub fn path_in(folder: &Path, geometry: &Geometry, ageing: &Ageing) -> PathBuf {
    folder.join(format!("ssd-{:016x}.state", checksum(&head(geometry, ageing))))
}

fn head(geometry: &Geometry, ageing: &Ageing) -> [u32; 15] {
    let Geometry { channels, dies, planes, blocks, pages, page_bytes, spare, reserve } = *geometry;
    let [spare, times] = [spare, ageing.times].map(f64::to_bits);
    let halves = |number: u64| [number as u32, (number >> 32) as u32];
    let ([s0, s1], [t0, t1], [r0, r1]) = (halves(spare), halves(times), halves(ageing.key()));
    [MAGIC, VERSION, channels, dies, planes, blocks, pages, page_bytes, reserve, s0, s1, t0, t1, r0, r1]
}

/// Eight bytes over all before them, in steps of eight; at its end what is left, filled up with zeros.
struct Checksum {
    sum: u64,
    /// The number before, of a step that is not whole yet.
    half: Option<u32>,
}

impl Checksum {
    /// Over so many bytes that will come.
    fn of(bytes: u64) -> Self {
        Checksum { sum: bytes, half: None }
    }

    fn add(&mut self, number: u32) {
        match self.half.take() {
            Some(low) => self.mix(u64::from(low) | u64::from(number) << 32),
            None => self.half = Some(number),
        }
    }

    fn mix(&mut self, word: u64) {
        self.sum = (self.sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    fn end(mut self) -> u64 {
        if let Some(low) = self.half.take() {
            self.mix(u64::from(low));
        }
        self.sum
    }
}

/// That of these numbers.
pub(super) fn checksum(numbers: &[u32]) -> u64 {
    let mut sum = Checksum::of(4 * numbers.len() as u64);
    numbers.iter().for_each(|number| sum.add(*number));
    sum.end()
}

/// Writes a state: beside its place first, then to it, so that nobody finds half of one.
pub(super) fn save(path: &Path, flash: &Flash, ageing: &Ageing) -> Result<(), SnapshotError> {
    write(path, flash, ageing).map_err(|source| SnapshotError::Io { path: path.to_owned(), source })
}

fn write(path: &Path, flash: &Flash, ageing: &Ageing) -> io::Result<()> {
    let beside = NamedTempFile::with_prefix_in(".unfinished-", path.parent().unwrap_or(Path::new(".")))?;
    // Who holds it is at work: what a killed one has left has no lock. Where there are no locks, it stays.
    let _held = beside.as_file().try_lock();
    let head = head(&flash.geometry(), ageing);
    let mut count = head.len() as u64;
    flash.numbers(&mut |_| count += 1);
    let (mut file, mut sum) = (BufWriter::new(beside.as_file()), Checksum::of(4 * count));
    let mut written = Ok(());
    let mut put = |number: u32| {
        sum.add(number);
        if written.is_ok() {
            written = file.write_all(&number.to_le_bytes());
        }
    };
    head.into_iter().for_each(&mut put);
    flash.numbers(&mut put);
    written?;
    file.write_all(&sum.end().to_le_bytes())?;
    file.flush()?;
    drop(file);
    beside.persist(path).map(drop).map_err(|error| error.error)
}

/// Reads a state; nothing if there is no such file. The drive is new afterwards if the file is not it.
pub(super) fn load(path: &Path, flash: &mut Flash, ageing: &Ageing) -> Result<Option<()>, SnapshotError> {
    let failed = |source| SnapshotError::Io { path: path.to_owned(), source };
    let broken = |what| SnapshotError::Broken { path: path.to_owned(), what };
    let expected = head(&flash.geometry(), ageing);
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let length = file.metadata().map_err(failed)?.len();
    if length > 4 * (expected.len() as u64 + flash.numbers_max()) + 8 {
        return Err(broken("it is longer than such a state can be"));
    }
    let Some(content) = length.checked_sub(8).filter(|content| content.is_multiple_of(4)) else {
        return Err(broken("it is truncated"));
    };
    // Once for the checksum, and once more for what it says.
    let mut numbers = Numbers::of(&mut file, content);
    if expected.into_iter().any(|number| numbers.next() != Some(number)) {
        return Err(numbers.error.map_or(SnapshotError::OtherParameters(path.to_owned()), failed));
    }
    if !numbers.match_checksum().map_err(failed)? {
        return Err(broken("its checksum does not match"));
    }
    file.seek(SeekFrom::Start(4 * expected.len() as u64)).map_err(failed)?;
    let mut numbers = Numbers::of(&mut file, content - 4 * expected.len() as u64);
    let restored = match flash.restore(&mut numbers) {
        Ok(()) if numbers.left > 0 => Err("data follow its end"),
        restored => restored,
    };
    if let Err(what) = restored {
        *flash = Flash::new(flash.geometry()).expect("it was one before");
        return Err(numbers.error.map_or(broken(what), failed));
    }
    Ok(Some(()))
}

/// The numbers of a file, one after the other; none behind an error.
struct Numbers<'a> {
    file: BufReader<&'a mut File>,
    left: u64,
    sum: Checksum,
    error: Option<io::Error>,
}

impl<'a> Numbers<'a> {
    /// From here on, so many bytes.
    fn of(file: &'a mut File, bytes: u64) -> Self {
        Numbers { file: BufReader::new(file), left: bytes / 4, sum: Checksum::of(bytes), error: None }
    }

    /// Whether all of them have the checksum that stands behind them.
    fn match_checksum(mut self) -> io::Result<bool> {
        self.by_ref().for_each(drop);
        let mut sum = [0; 8];
        self.error.map_or_else(|| self.file.read_exact(&mut sum), Err)?;
        Ok(self.sum.end() == u64::from_le_bytes(sum))
    }
}

impl Iterator for Numbers<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        let mut bytes = [0; 4];
        if let Err(error) = self.file.read_exact(&mut bytes) {
            (self.left, self.error) = (0, Some(error));
            return None;
        }
        let number = u32::from_le_bytes(bytes);
        self.sum.add(number);
        Some(number)
    }
}

impl Flash {
    /// How many numbers a state has at most.
    fn numbers_max(&self) -> u64 {
        let blocks = u64::from(self.geometry().planes_in_all()) * u64::from(self.geometry().blocks);
        1 + self.pages() + blocks + 6 * u64::from(self.geometry().planes_in_all())
    }

    /// All that is not derived from something else.
    fn numbers(&self, put: &mut impl FnMut(u32)) {
        put(self.turn as u32);
        self.map.iter().for_each(|physical| put(*physical));
        for plane in &self.planes {
            plane.open.iter().for_each(|block| {
                put(*block);
                put(u32::from(self.filled[*block as usize]));
            });
            put(plane.free.len() as u32);
            plane.free.iter().for_each(|block| put(*block));
            for head in &plane.heads {
                let mut block = *head;
                while block != NONE {
                    put(block);
                    block = self.next[block as usize];
                }
            }
        }
    }

    /// Takes all that over, if it can be: what is wrong with it otherwise.
    fn restore(&mut self, numbers: &mut impl Iterator<Item = u32>) -> Result<(), &'static str> {
        const CUT: &str = "it is truncated";
        let geometry = self.geometry();
        let pages = geometry.pages;
        self.turn = numbers.next().ok_or(CUT)? as usize;
        if self.turn >= self.planes.len() {
            return Err("it names a plane that does not exist");
        }
        for page in 0..self.map.len() {
            let physical = numbers.next().ok_or(CUT)?;
            self.map[page] = physical;
            if physical == NONE {
                continue;
            }
            let back = self.back.get_mut(physical as usize).ok_or("it names a page that does not exist")?;
            if *back != NONE {
                return Err("two pages have the same position");
            }
            *back = page as u32;
            self.valid[(physical / pages) as usize] += 1;
        }
        for plane in 0..self.planes.len() {
            self.restore_plane(plane, numbers).ok_or("its blocks do not make up whole planes")?;
        }
        Ok(())
    }

    /// Each block of a plane is open, free or full, and none is two of them.
    fn restore_plane(&mut self, plane: usize, numbers: &mut impl Iterator<Item = u32>) -> Option<()> {
        let Geometry { blocks, pages, .. } = self.geometry();
        let first = plane as u32 * blocks;
        let mut seen = vec![false; blocks as usize];
        let mut block = |numbers: &mut dyn Iterator<Item = u32>| {
            let block = numbers.next()?;
            let seen = seen.get_mut(block.checked_sub(first)? as usize)?;
            (!std::mem::replace(seen, true)).then_some(block)
        };
        for which in 0..2 {
            let open = block(numbers)?;
            let filled = numbers.next().filter(|filled| *filled <= pages)?;
            // Pages behind what is filled are empty.
            let behind = &self.back[(open * pages + filled) as usize..((open + 1) * pages) as usize];
            if behind.iter().any(|page| *page != NONE) {
                return None;
            }
            self.filled[open as usize] = filled as u16;
            self.planes[plane].open[which] = open;
        }
        let free = numbers.next().filter(|free| *free <= blocks)?;
        let free: Vec<u32> = (0..free).map(|_| block(numbers)).collect::<Option<_>>()?;
        if free.iter().any(|block| self.valid[*block as usize] > 0) {
            return None;
        }
        let full = (0..blocks - 2 - free.len() as u32).map(|_| block(numbers)).collect::<Option<Vec<u32>>>()?;
        self.planes[plane].free = free;
        // A block comes to the front of its list.
        for block in full.into_iter().rev() {
            self.filled[block as usize] = pages as u16;
            self.link(block);
        }
        Some(())
    }
}
