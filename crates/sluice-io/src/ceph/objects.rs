//! Small objects of a pool that several hosts read and write.

use std::ptr;
use std::sync::Arc;

use super::cluster::Pool;
use super::library::Handle;
use super::{CephError, Cluster, check, text};

/// Errors from this one on say where a comparison has found another byte.
const DIFFERS: i32 = 4095;

/// How an object is created that must be new.
const EXCLUSIVE: i32 = 1;

/// The objects of a pool, or of a namespace of one. Calls wait as long as the cluster does.
pub struct Objects {
    pool: Pool,
}

/// A part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub object: String,
    /// In bytes.
    pub offset: u64,
    /// In bytes.
    pub length: usize,
}

/// A read that has been sent.
struct Sent {
    completion: Handle,
    buffer: Vec<u8>,
    sent: Result<u64, CephError>,
}

/// A write of one object, whose operations take place together or not at all.
struct Write<'a> {
    objects: &'a Objects,
    object: &'a str,
    handle: Handle,
}

impl Objects {
    /// Opens a pool, or a namespace of one if that is not empty.
    ///
    /// # Errors
    /// The pool does not exist, or the user may not use it.
    pub fn open(cluster: &Arc<Cluster>, pool: &str, namespace: &str) -> Result<Objects, CephError> {
        Ok(Objects { pool: cluster.pool(pool, namespace)? })
    }

    /// Reads parts of objects at the same time. What is past the end of an object is left out.
    ///
    /// # Errors
    /// Of each part its own: `ENOENT` without the object, others of the cluster.
    pub fn read(&self, parts: &[Part]) -> Vec<Result<Vec<u8>, CephError>> {
        let sent: Vec<Sent> = parts.iter().map(|part| self.send(part)).collect();
        sent.into_iter().zip(parts).map(|(sent, part)| self.receive(sent, part)).collect()
    }

    fn send(&self, part: &Part) -> Sent {
        let (library, name) = (self.pool.cluster.library(), text(&part.object));
        let mut sent = Sent { completion: ptr::null_mut(), buffer: vec![0; part.length], sent: Ok(0) };
        // SAFETY: the place of the completion outlives the call.
        let made = unsafe { (library.rados_aio_create_completion2)(ptr::null_mut(), None, &raw mut sent.completion) };
        sent.sent = check(made, || format!("a read of {}", part.object)).and_then(|_| {
            let buffer = sent.buffer.as_mut_ptr().cast();
            // SAFETY: the buffer stays where it is, and is not touched, until `receive` has waited for the completion.
            let read = unsafe {
                (library.rados_aio_read)(
                    self.pool.handle,
                    name.as_ptr(),
                    sent.completion,
                    buffer,
                    part.length,
                    part.offset,
                )
            };
            check(read, || format!("a read of {}", part.object))
        });
        sent
    }

    fn receive(&self, sent: Sent, part: &Part) -> Result<Vec<u8>, CephError> {
        let (library, Sent { completion, mut buffer, sent }) = (self.pool.cluster.library(), sent);
        let read = sent.and_then(|_| {
            // SAFETY: the completion is that of a read that was sent.
            let read = unsafe {
                (library.rados_aio_wait_for_complete)(completion);
                (library.rados_aio_get_return_value)(completion)
            };
            check(read, || format!("a read of {}", part.object))
        });
        if !completion.is_null() {
            // SAFETY: the read has ended or was not sent, and nothing refers to the completion any more.
            unsafe { (library.rados_aio_release)(completion) };
        }
        buffer.truncate(usize::try_from(read?).unwrap_or(usize::MAX));
        Ok(buffer)
    }

    /// Writes nothing to an object, as one who may write to it.
    ///
    /// # Errors
    /// `ENOENT` without the object, `EPERM` if the user may only read, others of the cluster.
    pub fn touch(&self, object: &str) -> Result<(), CephError> {
        self.write_all(object, |write| {
            write.must_exist();
            write.create(0);
        })
    }

    /// Makes an object with this content.
    ///
    /// # Errors
    /// `EEXIST` if it is there, others of the cluster.
    pub fn make(&self, object: &str, content: &[u8]) -> Result<(), CephError> {
        self.write_all(object, |write| {
            write.create(EXCLUSIVE);
            write.put(0, content);
        })
    }

    /// Writes a part of an object, which is made if it does not exist.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn write(&self, object: &str, offset: u64, bytes: &[u8]) -> Result<(), CephError> {
        self.write_all(object, |write| write.put(offset, bytes))
    }

    /// Writes a part of an object if its content, from its start, is still `expected`. Returns whether it was.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn write_if(&self, object: &str, expected: &[u8], offset: u64, bytes: &[u8]) -> Result<bool, CephError> {
        let written = self.write_all(object, |write| {
            write.must_have(expected);
            write.put(offset, bytes);
        });
        match written {
            Ok(()) => Ok(true),
            Err(error) if error.errno >= DIFFERS => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes an object, if it is there.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn remove(&self, object: &str) -> Result<(), CephError> {
        let name = text(object);
        // SAFETY: the text outlives the call.
        let removed = unsafe { (self.pool.cluster.library().rados_remove)(self.pool.handle, name.as_ptr()) };
        match check(removed, || format!("the object {object}")) {
            Err(error) if error.errno != libc::ENOENT => Err(error),
            _ => Ok(()),
        }
    }

    fn write_all(&self, object: &str, operations: impl FnOnce(&Write<'_>)) -> Result<(), CephError> {
        // SAFETY: the call has no arguments.
        let handle = unsafe { (self.pool.cluster.library().rados_create_write_op)() };
        let write = Write { objects: self, object, handle };
        operations(&write);
        write.carry_out()
    }
}

/// The bytes that its operations refer to outlive it: the caller of [`Objects::write_all`] has them.
impl Write<'_> {
    fn must_exist(&self) {
        // SAFETY: the operation was made and not carried out.
        unsafe { (self.objects.pool.cluster.library().rados_write_op_assert_exists)(self.handle) };
    }

    /// Creates the object; with [`EXCLUSIVE`] it must be new.
    fn create(&self, how: i32) {
        // SAFETY: as above. The category is not used any more.
        unsafe { (self.objects.pool.cluster.library().rados_write_op_create)(self.handle, how, ptr::null()) };
    }

    fn must_have(&self, expected: &[u8]) {
        let library = self.objects.pool.cluster.library();
        // SAFETY: as above. The buffer has as many bytes as the call is told; no result of its own is asked for.
        unsafe {
            (library.rados_write_op_cmpext)(self.handle, expected.as_ptr().cast(), expected.len(), 0, ptr::null_mut())
        };
    }

    fn put(&self, offset: u64, bytes: &[u8]) {
        let library = self.objects.pool.cluster.library();
        // SAFETY: as above.
        unsafe { (library.rados_write_op_write)(self.handle, bytes.as_ptr().cast(), bytes.len(), offset) };
    }

    fn carry_out(&self) -> Result<(), CephError> {
        let (pool, name) = (&self.objects.pool, text(self.object));
        // SAFETY: the text outlives the call, and the time of the write is the present.
        let written = unsafe {
            (pool.cluster.library().rados_write_op_operate)(self.handle, pool.handle, name.as_ptr(), ptr::null_mut(), 0)
        };
        check(written, || format!("a write of {}", self.object)).map(drop)
    }
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        // SAFETY: the operation was made, and has ended if it was carried out.
        unsafe { (self.objects.pool.cluster.library().rados_release_write_op)(self.handle) };
    }
}
