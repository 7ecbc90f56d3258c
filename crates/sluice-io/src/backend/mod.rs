//! Behind the gate: the disk and the io_uring that carries its operations.
//!
//! | file | contents |
//! |---|---|
//! | `device_queue` | the trait of what takes submissions and reports completions |
//! | `disk` | the disk: operations of the gate's slots |
//! | `delay`, `slot_log` | a wrapper that makes a queue slower, and its log |
//! | `request`, `volume` | requests of clients, volumes |
//! | `bridge` | guests with smaller blocks than the disk |
//! | `merged`, `sync`, `zeroes`, `lost` | merged submissions, shared syncs, zeroing, errors after a failed sync |
//! | `parts`, `client_faults` | long requests, what clients are refused |
//! | `ring`, `tag`, `retry` | io_uring, the user data of its operations, operations to be submitted again |
//! | `buffer`, `jobs` | memory for data, work of the helper threads |

pub(crate) mod bridge;
pub mod buffer;
pub mod client_faults;
pub mod delay;
pub(crate) mod device_queue;
pub(crate) mod disk;
pub(crate) mod jobs;
pub(crate) mod lost;
pub(crate) mod merged;
pub(crate) mod occupancy;
pub(crate) mod parts;
pub(crate) mod request;
pub(crate) mod retry;
pub mod ring;
pub mod slot_log;
pub(crate) mod sync;
pub(crate) mod tag;
pub(crate) mod volume;
pub(crate) mod zeroes;
