//! State files of aged drives: filling a drive and overwriting it twice takes longer than most simulations.
//!
//! A file belongs to one geometry, one stream of random numbers and one kind of ageing, which its header states; it
//! ends with a checksum. A file that does not match, or is damaged, is rejected with a reason, and the drive is aged
//! again and the file replaced. Everything that is read is checked against the geometry before it is used, so no file
//! can cause an invalid map. Numbers are written and read one by one, so a file needs no memory in addition to the
//! drive.
//!
//! Layout in 32-bit little-endian numbers: magic and version, key, next plane, map; for each plane its two open blocks
//! with their fill levels, its free blocks in order, and its full blocks in the order of collection; then a checksum of
//! eight bytes.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::NamedTempFile;

use super::Ssd;
use super::flash::{Flash, Geometry, NONE};
use crate::random::Stream;

/// `SLSD`, followed by the version of the layout.
const MAGIC: u32 = 0x4453_4c53;
const VERSION: u32 = 1;

/// Kind of ageing: filled sequentially, then overwritten in random pages.
#[derive(Debug, Clone)]
pub struct Ageing {
    /// Stream of the random pages.
    pub random: Stream,
    /// Random writes as a multiple of the capacity; 0 only fills the drive.
    pub times: f64,
}

impl Ageing {
    /// Differs for different streams.
    fn key(&self) -> u64 {
        self.random.clone().below(u64::MAX)
    }
}

/// A folder with state files of aged drives, which several runs may use concurrently.
#[derive(Debug)]
pub struct States {
    folder: PathBuf,
    refused: Mutex<Vec<String>>,
}

impl States {
    /// Uses this existing folder.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        States { folder, refused: Mutex::default() }
    }

    /// Ages a drive, from its state file if there is one.
    pub(crate) fn age(&self, ssd: &mut Ssd, ageing: &Ageing) {
        if let Some(error) = ssd.age_from(&self.folder, ageing) {
            self.refused().push(format!("{error}; the drive was aged again"));
        }
    }

    /// Errors of reading and writing since the last call.
    #[must_use]
    pub fn take_refused(&self) -> Vec<String> {
        std::mem::take(&mut *self.refused())
    }

    fn refused(&self) -> MutexGuard<'_, Vec<String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Reading or writing failed.
    #[error("Cannot use {path}: {source}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file for another drive, stream, kind of ageing or version.
    #[error("{0} is the state of a drive with other parameters, seed or ageing")]
    OtherParameters(PathBuf),
    /// Truncated or modified.
    #[error("{path} is damaged: {what}")]
    Broken {
        path: PathBuf,
        /// The defect.
        what: &'static str,
    },
}

/// Path of the state file in a folder.
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

/// A checksum of eight bytes, in steps of eight; the last step is padded with zeros.
struct Checksum {
    sum: u64,
    /// First half of an incomplete step.
    half: Option<u32>,
}

impl Checksum {
    /// For this number of bytes.
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

/// Checksum of these numbers.
pub(super) fn checksum(numbers: &[u32]) -> u64 {
    let mut sum = Checksum::of(4 * numbers.len() as u64);
    numbers.iter().for_each(|number| sum.add(*number));
    sum.end()
}

/// Writes a state: to a temporary file first, then renamed, so that no reader finds a partial one.
pub(super) fn save(path: &Path, flash: &Flash, ageing: &Ageing) -> Result<(), SnapshotError> {
    write(path, flash, ageing).map_err(|source| SnapshotError::Io { path: path.to_owned(), source })
}

fn write(path: &Path, flash: &Flash, ageing: &Ageing) -> io::Result<()> {
    let beside = NamedTempFile::with_prefix_in(".unfinished-", path.parent().unwrap_or(Path::new(".")))?;
    // A temporary file that is locked is in use; one without a lock is left from a killed process. Without support for
    // locks, it stays.
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

/// Reads a state; `None` if the file does not exist. The drive is new afterwards if the file cannot be used.
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
    // Once for the checksum, and once for the contents.
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
        *flash = Flash::new(flash.geometry()).expect("the geometry was valid before");
        return Err(numbers.error.map_or(broken(what), failed));
    }
    Ok(Some(()))
}

/// Numbers of a file in sequence; none after an error.
struct Numbers<'a> {
    file: BufReader<&'a mut File>,
    left: u64,
    sum: Checksum,
    error: Option<io::Error>,
}

impl<'a> Numbers<'a> {
    /// From the current position, this number of bytes.
    fn of(file: &'a mut File, bytes: u64) -> Self {
        Numbers { file: BufReader::new(file), left: bytes / 4, sum: Checksum::of(bytes), error: None }
    }

    /// Whether all of them match the checksum that follows.
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
    /// Maximum number of numbers in a state.
    fn numbers_max(&self) -> u64 {
        let blocks = u64::from(self.geometry().planes_in_all()) * u64::from(self.geometry().blocks);
        1 + self.pages() + blocks + 6 * u64::from(self.geometry().planes_in_all())
    }

    /// All state that is not derived.
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

    /// Restores the state; returns the defect if it is invalid.
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

    /// Each block of a plane is open, free or full, and only one of these.
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
            // Pages after the fill level are empty.
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
        // A block is inserted at the front of its list.
        for block in full.into_iter().rev() {
            self.filled[block as usize] = pages as u16;
            self.link(block);
        }
        Some(())
    }
}
