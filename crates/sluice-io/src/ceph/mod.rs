//! Ceph: connections to clusters, RBD images and objects, by the libraries that Ceph installs.
//!
//! | file | contents |
//! |---|---|
//! | `library` | the functions of librados and librbd that are called, found when they are first needed |
//! | `cluster` | a connection: who it is, whom it locks out |
//! | `image` | an open image: its size, its lock, its operations |
//! | `parts` | the parts of an image that hold data |
//! | `objects` | small objects of a pool that several hosts read and write |
//!
//! The program is not linked to these libraries, and hosts without Ceph do not need them. They start threads of their own, which do the work of
//! requests and report their ends. They are never unloaded, because those threads may still run in them.
//!
//! Names and meanings are those of Ceph's documentation of librados and librbd.

pub mod cluster;
pub mod image;
mod library;
pub mod objects;
mod parts;

pub use cluster::{Cluster, ClusterSpec};
pub use image::{Image, ImageSpec};
pub use objects::Objects;

use std::ffi::CString;

/// A call that has failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {}", std::io::Error::from_raw_os_error(*errno))]
pub struct CephError {
    /// The attempt, for people.
    pub what: String,
    /// A Linux errno.
    pub errno: i32,
}

/// Turns a result of these libraries into a number, or into an error that says what was tried.
fn check<N: TryInto<i64>>(result: N, what: impl FnOnce() -> String) -> Result<u64, CephError> {
    let result = result.try_into().unwrap_or(i64::MAX);
    u64::try_from(result).map_err(|_| CephError { what: what(), errno: i32::try_from(-result).unwrap_or(libc::EIO) })
}

/// A text for these libraries. One with a zero byte names nothing there.
fn text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}
