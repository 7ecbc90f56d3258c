//! An open RBD image: what it is, its lock, and its operations.
//!
//! An operation ends in a thread of librbd, which adds the result to the image's list of ended operations and signals an eventfd. The device
//! thread reads that eventfd with its ring.
//!
//! ```text
//!     device thread --rbd_aio_*--> librbd's threads --> [ended] --eventfd--> ring of the device thread
//! ```
//!
//! The memory of an operation is used by librbd until its end. `Image::leave` tells a device thread that stops by an eventfd when there is no
//! operation any more.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::cluster::{Cluster, NEEDED, Pool};
use super::library::{ConfigOption, Handle, Library, Watcher};
use super::parts::{Objects, Parts, differs};
use super::{CephError, check, text};
use crate::source::{Allocation, ByteRange, Span};
use crate::store::{Memory, OpIndex};

/// The lock of one writer, which librbd does not hand over when another client asks for it.
const EXCLUSIVE: c_int = 0;
/// Bits of an image's features.
const EXCLUSIVE_LOCK: u64 = 1 << 2;
/// The library knows which objects exist without asking for them.
const FAST_DIFF: u64 = 1 << 4;
/// Zeroes stay allocated.
const THICK: c_int = 1;
/// Maximum number of options of an image that are read.
const OPTIONS_MAX: usize = 256;
/// Maximum number of watchers of an image that are read.
const WATCHERS_MAX: usize = 64;
/// Length of buffers for short texts.
const TEXT_LEN: usize = 4096;

/// An image, as the host file states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSpec {
    pub pool: String,
    /// Empty: the pool's own.
    pub namespace: String,
    pub image: String,
    pub read_only: bool,
}

impl fmt::Display for ImageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            namespace if namespace.is_empty() => write!(f, "{}/{}", self.pool, self.image),
            namespace => write!(f, "{}/{namespace}/{}", self.pool, self.image),
        }
    }
}

/// An operation on a range of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Read,
    Write,
    Zero { no_hole: bool },
    Discard,
    Flush,
}

/// An open image. The last reference closes it, which may take as long as the cluster does.
pub struct Image {
    pool: Pool,
    handle: Handle,
    name: String,
    inbox: Arc<Inbox>,
    objects: Option<Objects>,
    /// Number of its watch.
    watch: Option<u64>,
}

// SAFETY: librbd documents that any thread may use an image, several at the same time.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

/// Ended operations of an image, and the number of those that have not ended.
struct Inbox {
    state: Mutex<State>,
    /// Signalled when an operation has ended.
    ended: OwnedFd,
    /// Signalled when the last one has ended, after [`Image::leave`].
    quiet: OwnedFd,
    /// Whether the image has changed, perhaps its size, since [`Image::has_changed`] was asked.
    changed: AtomicBool,
}

#[derive(Default)]
struct State {
    ended: Vec<(OpIndex, i64)>,
    in_flight: u32,
    /// Number of the device thread that uses the image, counted from its opening. Ended operations of earlier threads are dropped.
    generation: u32,
    /// Whether nothing more is started, and the end of the last operation is signalled.
    leaves: bool,
}

/// The end of an operation, in the hands of librbd.
struct Ticket {
    library: &'static Library,
    inbox: Arc<Inbox>,
    generation: u32,
    op: OpIndex,
}

impl Inbox {
    fn new() -> std::io::Result<Inbox> {
        let fd = || eventfd(0, EventfdFlags::CLOEXEC);
        Ok(Inbox { state: Mutex::default(), ended: fd()?, quiet: fd()?, changed: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, generation: u32, op: OpIndex, result: i64) {
        let mut state = self.lock();
        state.in_flight -= 1;
        if generation == state.generation {
            state.ended.push((op, result));
            // One signal for all until they are taken.
            if state.ended.len() == 1 {
                signal(&self.ended);
            }
        }
        if state.leaves && state.in_flight == 0 {
            signal(&self.quiet);
        }
    }
}

fn signal(fd: &OwnedFd) {
    // The counter cannot overflow: it is read, or signalled once for a list.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Called by librbd in one of its threads.
unsafe extern "C" fn ended(completion: Handle, ticket: *mut c_void) {
    // SAFETY: the pointer is that of the ticket that was given with the completion, and this is called once for it.
    let Ticket { library, inbox, generation, op } = *unsafe { Box::from_raw(ticket.cast::<Ticket>()) };
    // SAFETY: the completion is that of an operation that has ended, and is released after its result was read.
    let result = unsafe { (library.rbd_aio_get_return_value)(completion) };
    // SAFETY: as above.
    unsafe { (library.rbd_aio_release)(completion) };
    inbox.end(generation, op, result as i64);
}

/// Called by librbd in one of its threads when an image has changed.
unsafe extern "C" fn changed(inbox: *mut c_void) {
    // SAFETY: the pointer is that of the inbox of an image that is watched, which stays until the watch has ended.
    let inbox = unsafe { &*inbox.cast::<Inbox>() };
    inbox.changed.store(true, Ordering::Relaxed);
}

impl Image {
    /// Opens an image.
    ///
    /// # Errors
    /// It does not exist, or the cluster does not answer. `EINVAL`: it has a cache that cannot be switched off by this connection.
    pub fn open(cluster: &Arc<Cluster>, spec: &ImageSpec) -> Result<Image, CephError> {
        let library = cluster.library();
        let pool = cluster.pool(&spec.pool, &spec.namespace)?;
        let inbox = Inbox::new().map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EMFILE);
            CephError { what: "an eventfd".to_owned(), errno }
        })?;
        let name = text(&spec.image);
        let open = if spec.read_only { library.rbd_open_read_only } else { library.rbd_open };
        let mut handle = ptr::null_mut();
        // SAFETY: the pool is open, and the text and the place of the handle outlive the call. No snapshot is named.
        let opened = unsafe { open(pool.handle, name.as_ptr(), &raw mut handle, ptr::null()) };
        check(opened, || match -opened {
            libc::ENOENT => format!("there is no image {spec}"),
            libc::EPERM | libc::EACCES => format!("the user needs the caps `profile rbd` for the image {spec}"),
            _ => format!("the image {spec}"),
        })?;
        let inbox = Arc::new(inbox);
        let mut image = Image { pool, handle, name: spec.image.clone(), inbox, objects: None, watch: None };
        image.check_cache(spec)?;
        image.watch()?;
        Ok(image)
    }

    fn library(&self) -> &'static Library {
        self.pool.cluster.library()
    }

    /// Returns the connection.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.pool.cluster
    }

    /// Returns the name of the image in its pool.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn number(&self, get: unsafe extern "C" fn(Handle, *mut u64) -> c_int, what: &str) -> Result<u64, CephError> {
        let mut number = 0;
        // SAFETY: the image is open, and the place of the number outlives the call.
        let got = unsafe { get(self.handle, &raw mut number) };
        check(got, || format!("{what} of the image {}", self.name)).map(|_| number)
    }

    /// Returns its size in bytes now.
    ///
    /// # Errors
    /// The cluster does not tell.
    pub fn size_bytes(&self) -> Result<u64, CephError> {
        self.number(self.library().rbd_get_size, "the size")
    }

    /// Gives it another size, also a smaller one.
    ///
    /// # Errors
    /// The cluster does not do it.
    pub fn resize(&self, bytes: u64) -> Result<(), CephError> {
        // SAFETY: the image is open.
        let resized = unsafe { (self.library().rbd_resize)(self.handle, bytes) };
        check(resized, || format!("another size of the image {}", self.name)).map(drop)
    }

    fn features(&self) -> Result<u64, CephError> {
        self.number(self.library().rbd_get_features, "the features")
    }

    fn has(&self, feature: u64) -> bool {
        self.features().is_ok_and(|features| features & feature != 0)
    }

    /// Returns the identity of the image: that of its disk under the kernel's client.
    ///
    /// # Errors
    /// The cluster does not tell.
    pub fn identity(&self, spec: &ImageSpec) -> Result<String, CephError> {
        let mut id = [0; TEXT_LEN];
        // SAFETY: the image is open, and the buffer has as many bytes as the call is told.
        let got = unsafe { (self.library().rbd_get_id)(self.handle, id.as_mut_ptr(), TEXT_LEN) };
        check(got, || format!("the id of the image {}", self.name))?;
        // SAFETY: the call has ended the text in the buffer.
        let id = unsafe { CStr::from_ptr(id.as_ptr()) }.to_string_lossy();
        let namespace =
            if spec.namespace.is_empty() { String::new() } else { format!(" namespace {}", spec.namespace) };
        Ok(format!("rbd cluster {} pool {}{namespace} image {id}", self.cluster().fsid(), self.pool.id()))
    }

    /// Returns the options that are in force for the image: its own, those of its pool, and those of the connection.
    ///
    /// # Errors
    /// The cluster does not tell.
    pub fn options(&self) -> Result<Vec<(String, String)>, CephError> {
        let mut options: Vec<ConfigOption> = Vec::with_capacity(OPTIONS_MAX);
        let mut count = OPTIONS_MAX as c_int;
        // SAFETY: the image is open, and there is memory for as many options as the call is told.
        let listed =
            unsafe { (self.library().rbd_config_image_list)(self.handle, options.as_mut_ptr(), &raw mut count) };
        check(listed, || format!("the options of the image {}", self.name))?;
        // SAFETY: the call has filled in as many.
        unsafe { options.set_len(usize::try_from(count).unwrap_or(0)) };
        // SAFETY: each option has two texts until the list is cleaned up.
        let text = |at: *mut c_char| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned();
        let read = options.iter().map(|option| (text(option.name), text(option.value))).collect();
        // SAFETY: the list is that of the call above, and nothing refers to its texts any more.
        unsafe { (self.library().rbd_config_image_list_cleanup)(options.as_mut_ptr(), count) };
        Ok(read)
    }

    /// Refuses an image that has a cache, or another option that it must not have, by its pool or by itself.
    fn check_cache(&self, spec: &ImageSpec) -> Result<(), CephError> {
        let options = self.options()?;
        let is_other =
            |(name, value): &&(String, String)| NEEDED.iter().any(|(needed, wanted)| needed == name && wanted != value);
        let wrong = |what: String| Err(CephError { errno: libc::EINVAL, what });
        match options.iter().find(is_other) {
            Some((name, value)) => wrong(format!(
                "the image has {name} = {value}, with which it cannot be served: remove it with `rbd config image rm {spec} {name}`, or from the pool \
                 with `rbd config pool rm {} {name}`",
                spec.pool
            )),
            None if options.iter().all(|(name, _)| name != NEEDED[0].0) => {
                wrong(format!("librbd does not say whether the image {spec} has a cache"))
            }
            None => Ok(()),
        }
    }

    /// Takes the lock of the only writer. It stays until the image is closed.
    ///
    /// # Errors
    /// `EROFS`: another client has it. Others: the image has no such lock, or the cluster does not answer.
    pub fn lock(&self) -> Result<(), CephError> {
        if self.features()? & EXCLUSIVE_LOCK == 0 {
            let what = format!("the image {} has not the feature exclusive-lock", self.name);
            return Err(CephError { what, errno: libc::EOPNOTSUPP });
        }
        // SAFETY: the image is open.
        let acquired = unsafe { (self.library().rbd_lock_acquire)(self.handle, EXCLUSIVE) };
        check(acquired, || format!("the lock of the image {}", self.name)).map(drop)
    }

    /// Returns the address of the client that has the lock; `None`: none has.
    ///
    /// # Errors
    /// The cluster does not tell.
    pub fn owner(&self) -> Result<Option<String>, CephError> {
        let (mut mode, mut owner, mut count) = (0, ptr::null_mut(), 1);
        // SAFETY: the image is open, and there is a place for one owner: this lock has no more.
        let got =
            unsafe { (self.library().rbd_lock_get_owners)(self.handle, &raw mut mode, &raw mut owner, &raw mut count) };
        // `EINVAL`: an image without the feature has no owner.
        if got == -libc::ENOENT || got == -libc::EINVAL || got >= 0 && (count == 0 || owner.is_null()) {
            return Ok(None);
        }
        check(got, || format!("the owner of the image {}", self.name))?;
        // SAFETY: the call has stored a text.
        let address = unsafe { CStr::from_ptr(owner) }.to_string_lossy().into_owned();
        // SAFETY: the list of one text is that of the call above, and nothing refers to it any more.
        unsafe { (self.library().rbd_lock_get_owners_cleanup)(&raw mut owner, count) };
        Ok(Some(address))
    }

    /// Whether a client with this address has the image open, or had within the last 30 s. If the cluster does not tell, one has.
    pub(crate) fn is_watched_by(&self, address: &str) -> bool {
        let (mut watchers, mut count): (Vec<Watcher>, usize) = (Vec::with_capacity(WATCHERS_MAX), WATCHERS_MAX);
        // SAFETY: the image is open, and there is memory for as many watchers as the call is told.
        let listed = unsafe { (self.library().rbd_watchers_list)(self.handle, watchers.as_mut_ptr(), &raw mut count) };
        if listed < 0 {
            return true;
        }
        // SAFETY: the call has filled in as many.
        unsafe { watchers.set_len(count.min(WATCHERS_MAX)) };
        // SAFETY: each watcher has a text until the list is cleaned up.
        let is_it = |watcher: &Watcher| unsafe { CStr::from_ptr(watcher.address) }.to_string_lossy() == address;
        let found = watchers.iter().any(is_it);
        // SAFETY: the list is that of the call above, and nothing refers to its texts any more.
        unsafe { (self.library().rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), watchers.len()) };
        found
    }

    /// Takes the lock away from a client, which is locked out of the cluster before.
    ///
    /// # Errors
    /// The cluster does not answer. That the client has it no more is none.
    pub fn break_lock(&self, owner: &str) -> Result<(), CephError> {
        let owner = text(owner);
        // SAFETY: the image is open, and the text outlives the call.
        let broken = unsafe { (self.library().rbd_lock_break)(self.handle, EXCLUSIVE, owner.as_ptr()) };
        match broken {
            broken if broken == -libc::ENOENT => Ok(()),
            broken => check(broken, || format!("the lock of the image {}", self.name)).map(drop),
        }
    }

    /// Returns a text that was stored with the image.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub fn note(&self, key: &str) -> Result<Option<String>, CephError> {
        let (key, mut buffer, mut length) = (text(key), [0; TEXT_LEN], TEXT_LEN);
        // SAFETY: the image is open, and the buffer has as many bytes as the call is told.
        let got = unsafe {
            (self.library().rbd_metadata_get)(self.handle, key.as_ptr(), buffer.as_mut_ptr(), &raw mut length)
        };
        if got == -libc::ENOENT {
            return Ok(None);
        }
        check(got, || format!("the metadata of the image {}", self.name))?;
        // SAFETY: the call has ended the text in the buffer.
        Ok(Some(unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned()))
    }

    /// Stores a text with the image.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub fn set_note(&self, key: &str, value: &str) -> Result<(), CephError> {
        let (key, value) = (text(key), text(value));
        // SAFETY: the image is open, and the texts outlive the call.
        let set = unsafe { (self.library().rbd_metadata_set)(self.handle, key.as_ptr(), value.as_ptr()) };
        check(set, || format!("the metadata of the image {}", self.name)).map(drop)
    }

    /// Begins to be told of changes of the image.
    fn watch(&mut self) -> Result<(), CephError> {
        let mut number = 0;
        let to = Arc::as_ptr(&self.inbox).cast_mut().cast();
        // SAFETY: the image is open, and what the callback refers to outlives the watch, which ends before the image.
        let watched = unsafe { (self.library().rbd_update_watch)(self.handle, &raw mut number, changed, to) };
        check(watched, || format!("changes of the image {}", self.name))?;
        self.watch = Some(number);
        Ok(())
    }

    /// Whether the image has changed since this was asked before.
    pub(crate) fn has_changed(&self) -> bool {
        self.inbox.changed.load(Ordering::Relaxed) && self.inbox.changed.swap(false, Ordering::Relaxed)
    }

    // ---- Operations ----

    /// Returns the eventfd that is signalled when operations have ended.
    pub(crate) fn ended_fd(&self) -> RawFd {
        self.inbox.ended.as_raw_fd()
    }

    /// Returns the eventfd that is signalled after [`Image::leave`], when no operation is left.
    pub(crate) fn quiet_fd(&self) -> RawFd {
        self.inbox.quiet.as_raw_fd()
    }

    /// Begins to use the image in a device thread. What an earlier one has started is forgotten.
    pub(crate) fn enter(&self) {
        let mut state = self.inbox.lock();
        let generation = state.generation.wrapping_add(1);
        *state = State { in_flight: state.in_flight, generation, ..State::default() };
    }

    /// Ends the use in a device thread, and signals the first eventfd so that nothing waits for it. Returns whether operations are left.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.inbox.lock();
        state.leaves = true;
        signal(&self.inbox.ended);
        state.in_flight > 0
    }

    /// Moves the operations that have ended into `ended`, with the number of bytes or a negated errno.
    pub(crate) fn take_ended(&self, ended: &mut Vec<(OpIndex, i64)>) {
        ended.append(&mut self.inbox.lock().ended);
    }

    /// Starts an operation. Its end is added to those that have ended.
    ///
    /// # Safety
    /// The memory has `length` bytes if the operation transfers data, and stays until the operation has ended.
    pub(crate) unsafe fn start(&self, op: OpIndex, act: Act, range: ByteRange, memory: Memory) {
        let generation = {
            let mut state = self.inbox.lock();
            state.in_flight += 1;
            state.generation
        };
        let library = self.library();
        let ticket = Box::into_raw(Box::new(Ticket { library, inbox: Arc::clone(&self.inbox), generation, op }));
        let mut completion = ptr::null_mut();
        // SAFETY: the ticket is given away here, and comes back once, when the operation has ended.
        let made = unsafe { (library.rbd_aio_create_completion)(ticket.cast(), ended, &raw mut completion) };
        let started = match made {
            // SAFETY: the caller's promise.
            0 => unsafe { self.call(act, range, memory, completion) },
            errno => errno,
        };
        if started < 0 {
            if made == 0 {
                // SAFETY: the operation was not started, so nothing else refers to its completion.
                unsafe { (library.rbd_aio_release)(completion) };
            }
            // SAFETY: the operation was not started, so the ticket does not come back.
            drop(unsafe { Box::from_raw(ticket) });
            self.inbox.end(generation, op, started.into());
        }
    }

    /// Calls librbd.
    ///
    /// # Safety
    /// As [`Image::start`].
    unsafe fn call(&self, act: Act, range: ByteRange, memory: Memory, completion: Handle) -> c_int {
        let (library, image, ByteRange { offset, length }) = (self.library(), self.handle, range);
        let len = length as usize;
        // SAFETY: the image is open, the completion is new, and the memory stays until it is called.
        unsafe {
            match (act, memory) {
                (Act::Read, Memory::One(at)) => (library.rbd_aio_read)(image, offset, len, at.cast(), completion),
                (Act::Read, Memory::Pieces(first, count)) => {
                    (library.rbd_aio_readv)(image, first, count as c_int, offset, completion)
                }
                (Act::Write, Memory::One(at)) => {
                    (library.rbd_aio_write)(image, offset, len, at.cast_const().cast(), completion)
                }
                (Act::Write, Memory::Pieces(first, count)) => {
                    (library.rbd_aio_writev)(image, first, count as c_int, offset, completion)
                }
                (Act::Read | Act::Write, Memory::None) => -libc::EINVAL,
                (Act::Zero { no_hole }, _) => {
                    let how = if no_hole { THICK } else { 0 };
                    (library.rbd_aio_write_zeroes)(image, offset, len, completion, how, 0)
                }
                (Act::Discard, _) => (library.rbd_aio_discard)(image, offset, length, completion),
                (Act::Flush, _) => (library.rbd_aio_flush)(image, completion),
            }
        }
    }

    // ---- Parts ----

    /// Finds the parts of a range that hold data. May take as long as the cluster does.
    pub(crate) fn allocation(&self, range: ByteRange, spans_max: usize) -> Vec<Span> {
        let mut found = Parts::new(range, spans_max);
        if self.each_part(range, self.has(FAST_DIFF), &mut found).is_err() {
            return vec![Span { length: range.length, kind: Allocation::Data }];
        }
        found.until(range.end(), Allocation::Hole);
        found.spans
    }

    /// Calls `part` for each part of a range that holds data: whole objects, or as exactly as it is known.
    fn each_part(&self, range: ByteRange, whole_objects: bool, part: &mut Parts) -> Result<(), CephError> {
        let (ByteRange { offset, length }, with_parent) = (range, 1);
        // SAFETY: the image is open, and what the callback refers to outlives the call.
        let walked = unsafe {
            let to = ptr::from_mut(part).cast();
            let whole = u8::from(whole_objects);
            (self.library().rbd_diff_iterate2)(
                self.handle,
                ptr::null(),
                offset,
                length,
                with_parent,
                whole,
                differs,
                to,
            )
        };
        match walked {
            _ if part.is_full => Ok(()),
            walked => check(walked, || format!("the parts of the image {}", self.name)).map(drop),
        }
    }

    /// Finds out which objects exist, if the library answers reads of others by itself. To be called with the lock: librbd takes it for this, and from
    /// whom it may.
    pub(crate) fn look_for_objects(&mut self) {
        self.objects = self.find_objects();
    }

    fn find_objects(&self) -> Option<Objects> {
        let number = |get| self.number(get, "the layout").ok();
        // Without fast-diff the library would ask for each object. Striped data are in other objects than their offsets say.
        if !self.has(FAST_DIFF) || number(self.library().rbd_get_stripe_count)? != 1 {
            return None;
        }
        let (size, length) = (self.size_bytes().ok()?, number(self.library().rbd_get_stripe_unit)?.max(1));
        let mut parts = Parts::new(ByteRange::new(0, size), usize::MAX);
        self.each_part(ByteRange::new(0, size), true, &mut parts).ok()?;
        parts.until(size, Allocation::Hole);
        Some(Objects::of(size, length, &parts.spans))
    }

    /// Notes that a range was written.
    pub(crate) fn note_written(&self, range: ByteRange) {
        if let Some(objects) = &self.objects {
            objects.note(range);
        }
    }

    /// Whether a read of this range needs no storage: nothing was ever written there.
    pub(crate) fn is_never_written(&self, range: ByteRange) -> bool {
        self.objects.as_ref().is_some_and(|objects| !objects.hold(range))
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("name", &self.name).field("cluster", self.cluster()).finish_non_exhaustive()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Some(watch) = self.watch {
            // SAFETY: the watch is one of this image, and its callback is not called any more when this returns.
            unsafe { (self.library().rbd_update_unwatch)(self.handle, watch) };
        }
        // SAFETY: nothing uses the image any more: who starts operations holds a reference, and the library waits for those in flight.
        unsafe { (self.library().rbd_close)(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_thread_that_leaves_is_told_when_the_last_operation_ends_and_the_next_one_forgets_it() {
        let inbox = Inbox::new().unwrap();
        let read = |fd: &OwnedFd| {
            let mut count = [0; 8];
            rustix::io::read(fd, &mut count).map(|_| u64::from_ne_bytes(count)).unwrap()
        };
        inbox.lock().in_flight = 3;
        inbox.end(0, OpIndex(2), 4096);
        inbox.end(0, OpIndex(4), -5);
        assert_eq!(read(&inbox.ended), 1, "one signal for both");
        assert_eq!(std::mem::take(&mut inbox.lock().ended), [(OpIndex(2), 4096), (OpIndex(4), -5)]);
        inbox.lock().leaves = true;
        inbox.lock().generation = 1;
        inbox.end(0, OpIndex(6), 0);
        assert_eq!(read(&inbox.quiet), 1);
        assert!(inbox.lock().ended.is_empty(), "it concerns nobody");
    }
}
