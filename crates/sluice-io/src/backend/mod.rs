//! Between the gate and the stores: requests, volumes, and the io_uring that carries the operations of a device thread.
//!
//! | file | contents |
//! |---|---|
//! | `disk` | the device of the gate: its submissions become operations of stores |
//! | `request`, `volume` | requests of clients, volumes |
//! | `bridge` | guests with smaller blocks than the disk |
//! | `merged` | merged submissions |
//! | `parts`, `client_faults` | long requests and zeroes, what clients are refused |
//! | `ring`, `rings` | io_uring; the rings of the process, and what the kernel carries out for them |
//! | `tag`, `retry` | the user data of operations, operations to be submitted again |
//! | `buffer` | memory for data |

pub(crate) mod bridge;
pub mod buffer;
pub mod client_faults;
pub(crate) mod disk;
pub(crate) mod merged;
pub(crate) mod occupancy;
pub(crate) mod parts;
pub(crate) mod request;
pub(crate) mod retry;
pub mod ring;
pub mod rings;
pub(crate) mod tag;
pub(crate) mod volume;
