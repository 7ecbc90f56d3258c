//! The seal of the process: what the kernel does for it from now on.
//!
//! | file | contents |
//! |---|---|
//! | `calls` | the system calls that it may make, each with its reason |
//! | `filter` | the filter that the kernel applies to them |
//! | `trap` | what becomes of a call that is not on the list |
//!
//! The operations of its rings are in [`crate::backend::rings`].

pub mod calls;
mod filter;
mod trap;

pub use calls::Feature;
pub use filter::{FilterError, seal, seal_helper};
pub use trap::{Refused, refused};

/// Takes from this process, and from what it starts, the right to gain privileges, and from others that of its user to look into it.
///
/// # Errors
/// That of the kernel.
pub fn close() -> std::io::Result<()> {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, setrlimit};
    rustix::thread::set_no_new_privs(true)?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Makes what a sealed process may not make: this number of rings, and the one that is asked about descriptors.
///
/// # Errors
/// That of the kernel: see [`crate::backend::ring::Ring::new`].
pub fn prepare(rings: usize) -> std::io::Result<()> {
    crate::backend::rings::fill(rings)?;
    crate::vhost_user::eventfd::prepare()
}
