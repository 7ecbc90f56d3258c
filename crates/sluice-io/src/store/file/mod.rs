//! Volumes in files, in block devices, or in ranges of them.
//!
//! | file | contents |
//! |---|---|
//! | `mod` | the volumes: opening, replacing, closing |
//! | `steps` | operations: the steps of each, on the ring |
//! | `shared`, `lost` | what volumes of one file share: syncs, and the loss after a failed one |
//! | `zeroing` | how a range is zeroed, and what is learnt of it |
//! | `jobs` | work of the helper threads |
//!
//! An operation continues where a short transfer stopped. A write that must be durable carries its own sync where the file system honours
//! that, and otherwise a sync follows it.

pub(crate) mod jobs;
mod lost;
mod shared;
mod steps;
mod zeroing;

use std::sync::Arc;
use std::time::Duration;

use sluice_sched::{Instant, Kind};

use crate::slab::{Id as _, Slab, ids};
use crate::source::faults::LOOK_EVERY;
use crate::source::{Capabilities, ExtentMap, FaultReport, Loss, Source};
use crate::store::{
    AllocationQuery, Answer, Blocks, Context, Done, Label, Op, OpIndex, Open, Store, StoreEvent, StoreInfo,
    StoreNumber, StoreRef, StoreSpec, Volumes, Zeroing,
};
use jobs::{BlockingJob, BlockingResult, Jobs};
use shared::{FileKey, Files};
use steps::Running;

/// Minimum interval between two updates of the extent map of a volume whose blocks have moved.
const REMAP_EVERY: Duration = Duration::from_secs(5);

/// A volume in a file, as the control plane states it.
#[derive(Debug, Clone)]
pub struct FileSpec {
    /// The open and locked source.
    pub source: Arc<Source>,
    /// The extents on the disk; `None` if they are not known.
    pub extents: Option<ExtentMap>,
}

ids! {
    /// A volume of this store.
    FileVolumeKey;
}

struct Volume {
    label: Label,
    source: Arc<Source>,
    extents: Option<ExtentMap>,
    file: FileKey,
    can: Capabilities,
    info: StoreInfo,
    /// When its blocks were last mapped.
    mapped: Instant,
    /// Last look at the size of its file.
    looked: Instant,
}

/// All volumes in files of a device thread.
pub(crate) struct FileStore {
    kind: StoreNumber,
    volumes: Slab<FileVolumeKey, Volume>,
    files: Files,
    /// By [`OpIndex`].
    running: Vec<Option<Running>>,
    done: Vec<(OpIndex, Done)>,
    /// Replaced sources, with the operations that may still name their descriptors by number.
    retired: Vec<(Arc<Source>, Vec<OpIndex>)>,
    /// Flushes that a sync has covered; kept for its memory.
    covered: Vec<OpIndex>,
    /// Number of zero-range operations that file systems still accept; `None`: all.
    #[cfg(test)]
    pub(crate) zeroing_left: Option<u32>,
}

impl Store for FileStore {
    fn info(&self, volume: StoreRef) -> &StoreInfo {
        &self.volume(volume.index).info
    }

    fn start(&mut self, context: &mut Context<'_>, op: &Op<'_>) {
        self.begin(context, op);
    }

    fn event(&mut self, context: &mut Context<'_>, event: StoreEvent, result: i32) {
        self.operation_completed(context, OpIndex(event.index), result);
    }

    fn next_done(&mut self, _now: Instant) -> Option<(OpIndex, Done)> {
        self.done.pop()
    }
}

impl Open for FileStore {
    type Spec = FileSpec;

    fn new(kind: StoreNumber) -> Self {
        FileStore {
            kind,
            volumes: Slab::default(),
            files: Files::default(),
            running: Vec::new(),
            done: Vec::new(),
            retired: Vec::new(),
            covered: Vec::new(),
            #[cfg(test)]
            zeroing_left: None,
        }
    }

    fn open(&mut self, now: Instant, label: Label, spec: FileSpec) -> u32 {
        let file = self.open_file(&spec.source);
        self.volumes.insert(Volume::new(now, label, spec, file)).index()
    }

    /// Keeps the replaced source of a volume open until no operation names its descriptor any more. Otherwise the next file
    /// could get the same number, and an operation that the kernel has not looked at yet would go there.
    fn replace(&mut self, volume: u32, spec: FileSpec) {
        let file = self.open_file(&spec.source);
        let key = self.volumes.id_at(volume);
        let known = &mut self.volumes[key];
        let new = Volume { looked: known.looked, ..Volume::new(known.mapped, known.label.clone(), spec, file) };
        let Volume { source, file, .. } = std::mem::replace(known, new);
        self.files.close(file);
        let running = self.running.iter().enumerate();
        let users = running.filter(|(_, op)| op.as_ref().is_some_and(|op| op.volume == key));
        self.retired.push((source, users.map(|(index, _)| OpIndex(index as u32)).collect()));
        self.retired.retain(|(_, users)| !users.is_empty());
    }
}

impl Volumes for FileStore {
    fn close(&mut self, volume: u32, jobs: &Jobs) {
        let Volume { source, file, .. } = self.volumes.remove(self.volumes.id_at(volume));
        self.files.close(file);
        if source.is_buffered() {
            jobs.close(source);
        }
    }

    fn describe(&self, volume: u32) -> StoreSpec {
        let Volume { source, extents, .. } = self.volume(volume);
        StoreSpec::File(FileSpec { source: Arc::clone(source), extents: extents.clone() })
    }

    fn address(&self, volume: u32, offset: u64) -> Option<u64> {
        self.volume(volume).extents.as_ref()?.physical(offset)
    }

    fn allocation(&self, volume: u32, query: &AllocationQuery, jobs: &Jobs) -> Answer {
        let AllocationQuery { io, part, spans_max } = *query;
        let source = Arc::clone(&self.volume(volume).source);
        match jobs.send(BlockingJob::Allocation {
            io,
            find: Box::new(move |spans_max| source.allocation(part, spans_max)),
            spans_max,
        }) {
            true => Answer::Later,
            false => Answer::Failed(libc::EIO),
        }
    }

    fn count_end(&self, volume: u32, kind: Kind, errno: i32) {
        let source = &self.volume(volume).source;
        match errno {
            0 => source.count_success(kind),
            _ => source.count_failure(kind, errno),
        }
    }

    fn faults(&self, volume: u32) -> FaultReport {
        self.volume(volume).source.faults()
    }

    fn accept_loss(&mut self, volume: u32) {
        self.accept_loss_of(self.volumes.id_at(volume));
    }
}

impl FileStore {
    fn volume(&self, index: u32) -> &Volume {
        &self.volumes[self.volumes.id_at(index)]
    }

    /// Adds a volume to its file. A loss persists when the thread restarts, and when another volume on the file is opened.
    fn open_file(&mut self, source: &Source) -> FileKey {
        let file = self.files.open(source.id());
        if self.files.is_failed(file) {
            source.set_loss(Loss::OfFile);
        }
        self.files.set_failed(file, source.loss() == Loss::OfFile);
        file
    }

    /// Handles the result of a job of the helper threads.
    pub(crate) fn job_done(&mut self, context: &mut Context<'_>, result: BlockingResult) {
        match result {
            BlockingResult::Extents { volume, source, extents } => {
                let Some(volume) = self.volumes.get_mut(volume) else { return };
                if Arc::ptr_eq(&volume.source, &source) && extents.is_some() {
                    volume.extents = extents;
                }
            }
            BlockingResult::Zeroing { volume, source, found } => {
                if let Some(volume) = self.volumes.get_mut(volume) {
                    volume.learn_zeroing(&source, found);
                }
            }
            BlockingResult::Discard { op, result } => self.operation_completed(context, op, result),
            BlockingResult::Allocation { .. } | BlockingResult::Dial { .. } | BlockingResult::ImageSize { .. } => {
                unreachable!("it belongs to a request or to another store")
            }
        }
    }
}

impl Volume {
    fn new(now: Instant, label: Label, spec: FileSpec, file: FileKey) -> Self {
        let FileSpec { source, extents } = spec;
        let can = source.capabilities();
        let info = StoreInfo {
            memory: Some(if source.is_buffered() { 1 } else { source.alignment().memory }),
            buffered: source.is_buffered(),
            bridged: source.bridged_block().map(|size| Blocks { size, claims: source.claims().clone() }),
            zeroing: (Zeroing::No, Zeroing::No),
        };
        let mut volume = Volume { label, source, extents, file, can, info, mapped: now, looked: now };
        volume.note_zeroing();
        volume
    }

    /// Looks where its file ends before an operation, if the last look is too long ago for it; see
    /// [`faults`](crate::source::faults). A write is short, and rarely the first one past a new end.
    fn look_at_end(&mut self, now: Instant, may_wait: bool) {
        let is_due = !may_wait || now.since(self.looked) >= LOOK_EVERY;
        if is_due && self.source.has_size_at_hand() {
            self.looked = now;
            // A file system that does not answer fails the request itself.
            let _ = self.source.look_at_sizes();
        }
    }

    /// Records that bytes were written. Returns whether the extent map should be updated.
    fn wrote(&mut self, now: Instant, offset: u64, length: u32) -> bool {
        let Some(extents) = &mut self.extents else { return false };
        extents.note_write(offset, u64::from(length));
        let due = extents.is_stale() && now.since(self.mapped) >= REMAP_EVERY;
        if due {
            self.mapped = now;
        }
        due
    }
}
