//! Storage that hosts share: the place where they meet, the process that reads and writes it, and the thread that follows it.

use std::hash::{BuildHasher, Hasher, RandomState};

mod claiming;
mod exchange;
pub mod helper;
pub mod manage;
pub mod place;

pub(crate) use claiming::Promised;
pub(crate) use exchange::{PoolExchange, Stated};

/// A random number. It is no secret: two of them must differ.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
