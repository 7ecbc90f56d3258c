//! The identity of this program: cached results belong to the exact program that made them.
//!
//! The version does not identify it, because all builds between two releases have the same one. So the identity is a
//! hash of the program's file; identical builds have the same hash.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;

use sluice_daemon::failure::Failure;

/// Returns the hash of this program, in 16 hexadecimal digits.
///
/// # Errors
/// The program's file cannot be read.
pub(crate) fn hash() -> Result<String, Failure> {
    let unread = |error| {
        Failure::Run(format!("Cannot read this program's file, which identifies cached results: {error}").into())
    };
    let mut hash = DefaultHasher::new();
    hash.write(&std::env::current_exe().and_then(std::fs::read).map_err(unread)?);
    Ok(format!("{:016x}", hash.finish()))
}
