//! The seal of the process: what the kernel does for it from now on.
//!
//! | file | contents |
//! |---|---|
//! | `calls` | the system calls that it may make, each with its reason |
//! | `filter` | the filter that the kernel applies to them |
//! | `trap` | what becomes of a call that is not on the list |
//!
//! The operations of its rings are in [`crate::backend::rings`].

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

pub mod calls;
mod filter;
mod trap;

pub use calls::Feature;
pub use filter::{can_filter, seal, seal_helper};
pub use trap::{Refused, refused};

/// Capabilities that serving may take, of those that the process has: files and sockets of any owner, interfaces, priorities, limits.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::SYS_RESOURCE);

/// Takes from this process, and from what it starts, the right to gain privileges and the capabilities that it does not use, and from others
/// of its user a look into it. For a process with one thread.
///
/// # Errors
/// That of the kernel.
pub fn close() -> std::io::Result<()> {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, setrlimit};
    rustix::thread::set_no_new_privs(true)?;
    let own = capabilities(None)?;
    let kept = CapabilitySets {
        effective: own.effective & KEPT,
        permitted: own.permitted & KEPT,
        inheritable: CapabilitySet::empty(),
    };
    // A unit that has left nothing else forbids the call.
    if kept != own {
        set_capabilities(None, kept)?;
    }
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Makes what a sealed process may not make: this number of rings, the one that is asked about descriptors, and as many of the spare rings as
/// the user may lock memory for.
///
/// # Errors
/// That of the kernel: see [`crate::backend::ring::Ring::new`].
pub fn prepare(rings: usize, spare: usize) -> std::io::Result<()> {
    crate::vhost_user::eventfd::prepare()?;
    crate::backend::rings::fill(rings)?;
    let _ = crate::backend::rings::fill(rings + spare);
    Ok(())
}
