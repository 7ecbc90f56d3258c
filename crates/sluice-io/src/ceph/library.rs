//! The functions of librados and librbd that are called. They are looked up by name when the first image is opened.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// Version of Ceph whose libraries have all functions.
const SINCE: &str = "Ceph 16";

/// A handle of these libraries: a cluster, a pool, an image, a completion.
pub(super) type Handle = *mut c_void;
/// Called in a thread of librbd when an operation has ended.
pub(super) type Ended = unsafe extern "C" fn(Handle, *mut c_void);
/// Called in a thread of librbd when an image has changed.
pub(super) type Changed = unsafe extern "C" fn(*mut c_void);
/// Called for each part of an image that differs: offset, length, whether it exists.
pub(super) type Differs = unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// An option of an image, as librbd lists it.
#[repr(C)]
pub(super) struct ConfigOption {
    pub(super) name: *mut c_char,
    pub(super) value: *mut c_char,
    pub(super) source: c_int,
}

/// A client that has an image open, as librbd lists it.
#[repr(C)]
pub(super) struct Watcher {
    pub(super) address: *mut c_char,
    pub(super) id: i64,
    pub(super) cookie: u64,
}

/// Defines [`Library`] from the list of libraries: file name, Debian package, functions with their types.
macro_rules! libraries {
    ($($file:literal $package:literal {
        $(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)+
    })+) => {
        pub(super) struct Library {
            $($(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+)+
        }

        impl Library {
            fn load() -> Result<Library, String> {
                $(let file = Loaded::open($file, $package)?;
                $(let $name = file.find(stringify!($name))?;)+)+
                // SAFETY: each function has the type that Ceph documents for it.
                Ok(unsafe { Library { $($($name: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn($($argument),*) $(-> $result)?,
                >($name),)+)+ } })
            }
        }
    };
}

libraries! {
    "librados.so.2" "librados2" {
        fn rados_create(*mut Handle, *const c_char) -> c_int;
        fn rados_conf_read_file(Handle, *const c_char) -> c_int;
        fn rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
        fn rados_connect(Handle) -> c_int;
        fn rados_shutdown(Handle);
        fn rados_cluster_fsid(Handle, *mut c_char, usize) -> c_int;
        fn rados_getaddrs(Handle, *mut *mut c_char) -> c_int;
        fn rados_buffer_free(*mut c_char);
        fn rados_wait_for_latest_osdmap(Handle) -> c_int;
        fn rados_blocklist_add(Handle, *mut c_char, u32) -> c_int;
        fn rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
        fn rados_ioctx_set_namespace(Handle, *const c_char);
        fn rados_ioctx_get_id(Handle) -> i64;
        fn rados_ioctx_destroy(Handle);
        fn rados_remove(Handle, *const c_char) -> c_int;
        fn rados_create_write_op() -> Handle;
        fn rados_release_write_op(Handle);
        fn rados_write_op_assert_exists(Handle);
        fn rados_write_op_create(Handle, c_int, *const c_char);
        fn rados_write_op_cmpext(Handle, *const c_char, usize, u64, *mut c_int);
        fn rados_write_op_write(Handle, *const c_char, usize, u64);
        fn rados_write_op_operate(Handle, Handle, *const c_char, *mut libc::time_t, c_int) -> c_int;
        fn rados_aio_create_completion2(*mut c_void, Option<Ended>, *mut Handle) -> c_int;
        fn rados_aio_read(Handle, *const c_char, Handle, *mut c_char, usize, u64) -> c_int;
        fn rados_aio_wait_for_complete(Handle) -> c_int;
        fn rados_aio_get_return_value(Handle) -> c_int;
        fn rados_aio_release(Handle);
    }
    "librbd.so.1" "librbd1" {
        fn rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        fn rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
        fn rbd_close(Handle) -> c_int;
        fn rbd_resize(Handle, u64) -> c_int;
        fn rbd_get_size(Handle, *mut u64) -> c_int;
        fn rbd_get_stripe_unit(Handle, *mut u64) -> c_int;
        fn rbd_get_stripe_count(Handle, *mut u64) -> c_int;
        fn rbd_update_watch(Handle, *mut u64, Changed, *mut c_void) -> c_int;
        fn rbd_update_unwatch(Handle, u64) -> c_int;
        fn rbd_watchers_list(Handle, *mut Watcher, *mut usize) -> c_int;
        fn rbd_watchers_list_cleanup(*mut Watcher, usize);
        fn rbd_get_features(Handle, *mut u64) -> c_int;
        fn rbd_get_id(Handle, *mut c_char, usize) -> c_int;
        fn rbd_config_image_list(Handle, *mut ConfigOption, *mut c_int) -> c_int;
        fn rbd_config_image_list_cleanup(*mut ConfigOption, c_int);
        fn rbd_lock_acquire(Handle, c_int) -> c_int;
        fn rbd_lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
        fn rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
        fn rbd_lock_break(Handle, c_int, *const c_char) -> c_int;
        fn rbd_metadata_get(Handle, *const c_char, *mut c_char, *mut usize) -> c_int;
        fn rbd_metadata_set(Handle, *const c_char, *const c_char) -> c_int;
        fn rbd_diff_iterate2(Handle, *const c_char, u64, u64, u8, u8, Differs, *mut c_void) -> c_int;
        fn rbd_aio_create_completion(*mut c_void, Ended, *mut Handle) -> c_int;
        fn rbd_aio_get_return_value(Handle) -> isize;
        fn rbd_aio_release(Handle);
        fn rbd_aio_read(Handle, u64, usize, *mut c_char, Handle) -> c_int;
        fn rbd_aio_readv(Handle, *const libc::iovec, c_int, u64, Handle) -> c_int;
        fn rbd_aio_write(Handle, u64, usize, *const c_char, Handle) -> c_int;
        fn rbd_aio_writev(Handle, *const libc::iovec, c_int, u64, Handle) -> c_int;
        fn rbd_aio_write_zeroes(Handle, u64, usize, Handle, c_int, c_int) -> c_int;
        fn rbd_aio_discard(Handle, u64, u64, Handle) -> c_int;
        fn rbd_aio_flush(Handle, Handle) -> c_int;
    }
}

/// A library in this process. It stays there.
struct Loaded {
    handle: *mut c_void,
    file: &'static str,
    package: &'static str,
}

impl Loaded {
    fn open(file: &'static str, package: &'static str) -> Result<Loaded, String> {
        let name = CString::new(file).expect("a file name has no zero byte");
        // SAFETY: the name is a text. What the library does when it is loaded is its own affair, as that of a linked one.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match handle.is_null() {
            true => Err(format!("{}: install the package {package} of {SINCE} or later", last_error())),
            false => Ok(Loaded { handle, file, package }),
        }
    }

    fn find(&self, name: &str) -> Result<*mut c_void, String> {
        let text = CString::new(name).expect("a function's name has no zero byte");
        // SAFETY: the library is loaded, and the name is a text.
        let found = unsafe { libc::dlsym(self.handle, text.as_ptr()) };
        let Loaded { file, package, .. } = self;
        match found.is_null() {
            true => Err(format!("{file} has no function {name}: install the package {package} of {SINCE} or later")),
            false => Ok(found),
        }
    }
}

/// Why the last call of the loader has failed.
fn last_error() -> String {
    // SAFETY: the text stays until the next call of the loader in this thread.
    let told = unsafe { libc::dlerror() };
    match told.is_null() {
        true => "the library cannot be loaded".to_owned(),
        // SAFETY: as above.
        false => unsafe { CStr::from_ptr(told) }.to_string_lossy().into_owned(),
    }
}

/// The libraries, which are loaded now if they were not.
///
/// # Errors
/// One of them is missing, or too old: with the package to install. It is looked for again the next time.
pub(super) fn get() -> Result<&'static Library, String> {
    static LOADED: Mutex<Option<&'static Library>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    match *loaded {
        Some(library) => Ok(library),
        None => Ok(*loaded.insert(Box::leak(Box::new(Library::load()?)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_or_function_is_named_with_its_package() {
        let missing = Loaded::open("libsluicegate-none.so.9", "none9").err().unwrap();
        assert!(
            missing.contains("libsluicegate-none.so.9") && missing.contains("package none9 of Ceph 16"),
            "{missing}"
        );
        let libc = Loaded::open("libc.so.6", "libc6").unwrap();
        assert!(libc.find("dlopen").is_ok());
        let missing = libc.find("rbd_none").unwrap_err();
        assert_eq!(missing, "libc.so.6 has no function rbd_none: install the package libc6 of Ceph 16 or later");
    }
}
