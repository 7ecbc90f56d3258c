//! A connection to a cluster: who it is, and whom it locks out.

use std::ffi::CStr;
use std::fmt;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::library::{self, Handle, Library};
use super::{CephError, check, text};

/// Options without which no image is served. Without a cache a write ends when the cluster has it, calls that do not block may be made by a thread
/// that serves others, and data that a guest changes while it is sent is copied before.
pub(super) const NEEDED: [(&str, &str); 4] = [
    ("rbd_cache", "false"),
    ("rbd_persistent_cache_mode", "disabled"),
    ("rbd_non_blocking_aio", "true"),
    ("rbd_disable_zero_copy_writes", "true"),
];
/// Further options of every connection: how long the monitors may be silent, in seconds, and that a client whose lock librbd takes is locked out.
const SETTINGS: [(&str, &str); 5] = [
    ("rbd_blocklist_on_break_lock", "true"),
    ("client_mount_timeout", "4"),
    ("rados_mon_op_timeout", "4"),
    ("log_to_stderr", "false"),
    ("admin_socket", ""),
];
/// Length of a buffer for a cluster's id.
const FSID_LEN: usize = 64;

/// A cluster, as the host file states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSpec {
    /// Its configuration file.
    pub conf: PathBuf,
    /// The user without `client.` in front.
    pub user: String,
}

/// A connection. The cluster knows it by its address, and can lock it out.
pub struct Cluster {
    library: &'static Library,
    handle: Handle,
    address: String,
    fsid: String,
}

// SAFETY: Ceph documents that any thread may use a cluster's handle, several at the same time.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

/// A pool, or a namespace of one, over a connection.
pub(super) struct Pool {
    pub(super) cluster: Arc<Cluster>,
    pub(super) handle: Handle,
    id: i64,
}

// SAFETY: as a cluster's handle.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Cluster {
    /// Connects. May take 4 s.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn connect(spec: &ClusterSpec) -> Result<Arc<Cluster>, String> {
        let library = library::get()?;
        let (user, conf) = (text(&spec.user), text(&spec.conf.to_string_lossy()));
        let mut handle = ptr::null_mut();
        let failed = |error: CephError| error.to_string();
        // SAFETY: both texts and the place of the handle outlive the call.
        let made = unsafe { (library.rados_create)(&raw mut handle, user.as_ptr()) };
        check(made, || format!("no connection can be made as client.{}", spec.user)).map_err(failed)?;
        let mut cluster = Cluster { library, handle, address: String::new(), fsid: String::new() };
        // SAFETY: the handle is that of a cluster that is not connected, and the text outlives the call.
        let read = unsafe { (library.rados_conf_read_file)(handle, conf.as_ptr()) };
        check(read, || format!("{} cannot be read", spec.conf.display())).map_err(failed)?;
        NEEDED.iter().chain(&SETTINGS).for_each(|(option, value)| cluster.set(option, value));
        // SAFETY: as above.
        let connected = unsafe { (library.rados_connect)(handle) };
        check(connected, || "no connection to the cluster".to_owned()).map_err(|error| refused(&error, spec))?;
        cluster.fsid = cluster.read_fsid().map_err(failed)?;
        cluster.address = cluster.read_address().map_err(failed)?;
        Ok(Arc::new(cluster))
    }

    /// Sets an option. A library that does not know one has no use for it.
    fn set(&self, option: &str, value: &str) {
        let (option, value) = (text(option), text(value));
        // SAFETY: both texts outlive the call.
        unsafe { (self.library.rados_conf_set)(self.handle, option.as_ptr(), value.as_ptr()) };
    }

    fn read_fsid(&self) -> Result<String, CephError> {
        let mut buffer = [0; FSID_LEN];
        // SAFETY: the buffer has as many bytes as the call is told.
        let read = unsafe { (self.library.rados_cluster_fsid)(self.handle, buffer.as_mut_ptr(), FSID_LEN) };
        check(read, || "the id of the cluster".to_owned())?;
        // SAFETY: the library has ended the text in the buffer, which is longer than an id.
        Ok(unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned())
    }

    fn read_address(&self) -> Result<String, CephError> {
        let mut told = ptr::null_mut();
        // SAFETY: the place of the text outlives the call.
        let read = unsafe { (self.library.rados_getaddrs)(self.handle, &raw mut told) };
        check(read, || "the address of the connection".to_owned())?;
        // SAFETY: the call has succeeded, so there is a text, which is freed after it was copied.
        let address = unsafe { CStr::from_ptr(told) }.to_string_lossy().into_owned();
        // SAFETY: the text is the library's, and nothing refers to it any more.
        unsafe { (self.library.rados_buffer_free)(told) };
        Ok(address)
    }

    /// Returns the address by which the cluster knows this connection, and no other one.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the id of the cluster.
    #[must_use]
    pub fn fsid(&self) -> &str {
        &self.fsid
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    /// Locks a connection out for a time. When this returns, what it still sends has no effect after anything that is read from now on.
    ///
    /// # Errors
    /// The user may not, or the monitors do not answer.
    pub fn lock_out(&self, address: &str, time: Duration) -> Result<(), CephError> {
        let mut bytes = text(address).into_bytes_with_nul();
        let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        // SAFETY: the text outlives the call.
        let added = unsafe { (self.library.rados_blocklist_add)(self.handle, bytes.as_mut_ptr().cast(), seconds) };
        check(added, || format!("the connection {address} cannot be locked out"))?;
        // SAFETY: the handle is that of a connected cluster.
        let waited = unsafe { (self.library.rados_wait_for_latest_osdmap)(self.handle) };
        check(waited, || "the newest map of the cluster".to_owned()).map(drop)
    }

    /// Opens a pool, or a namespace of one.
    ///
    /// # Errors
    /// The pool does not exist, or the user may not use it.
    pub(super) fn pool(self: &Arc<Self>, name: &str, namespace: &str) -> Result<Pool, CephError> {
        let (pool, space) = (text(name), text(namespace));
        let mut handle = ptr::null_mut();
        // SAFETY: the text and the place of the handle outlive the call.
        let made = unsafe { (self.library.rados_ioctx_create)(self.handle, pool.as_ptr(), &raw mut handle) };
        check(made, || format!("the pool {name}"))?;
        // SAFETY: the handle was just made, and the text outlives the call.
        unsafe { (self.library.rados_ioctx_set_namespace)(handle, space.as_ptr()) };
        // SAFETY: the handle was just made.
        let id = unsafe { (self.library.rados_ioctx_get_id)(handle) };
        Ok(Pool { cluster: Arc::clone(self), handle, id })
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("fsid", &self.fsid).field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: nothing uses the handle any more: pools and images hold a reference to this.
        unsafe { (self.library.rados_shutdown)(self.handle) };
    }
}

impl Pool {
    pub(super) fn id(&self) -> i64 {
        self.id
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: nothing uses the handle any more: images hold a reference to this.
        unsafe { (self.cluster.library.rados_ioctx_destroy)(self.handle) };
    }
}

/// A refused connection for people, with what to change.
fn refused(error: &CephError, spec: &ClusterSpec) -> String {
    let conf = spec.conf.display();
    match error.errno {
        libc::ENOENT | libc::EACCES | libc::EPERM => {
            format!(
                "{error}: there is no key of client.{0} where {conf} says, or the cluster does not accept it",
                spec.user
            )
        }
        libc::ETIMEDOUT => format!("{error}: no monitor of {conf} has answered for 4 s"),
        _ => error.to_string(),
    }
}
