//! The device side of the gate: disk operations, and the io_uring that carries them.

pub mod buffer;
pub mod delay;
pub(crate) mod disk;
pub(crate) mod jobs;
pub(crate) mod lost;
pub(crate) mod merged;
pub(crate) mod request;
pub(crate) mod retry;
pub mod ring;
pub mod slot_log;
pub mod sync;
pub(crate) mod tag;
pub(crate) mod volume;
pub(crate) mod zeroes;
