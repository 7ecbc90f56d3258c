//! Which program this is: results that are kept belong to the very program that made them.
//!
//! A version does not tell: between two releases every build has the same one. So it is the file itself, by a hash of its
//! bytes; a build that differs in nothing has the same.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;

use crate::failure::Failure;

/// This very program, in 16 hexadecimal digits.
///
/// # Errors
/// Its file cannot be read.
pub(crate) fn hash() -> Result<String, Failure> {
    let unread = |error| Failure::Run(format!("Cannot read this program, to know its results again: {error}").into());
    let mut hash = DefaultHasher::new();
    hash.write(&std::env::current_exe().and_then(std::fs::read).map_err(unread)?);
    Ok(format!("{:016x}", hash.finish()))
}
