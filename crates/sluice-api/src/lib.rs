//! Requests to the daemon, its replies and its events, as types that both sides read and write.
//!
//! | module | contents |
//! |---|---|
//! | [`request`] | requests, and the frame of every reply |
//! | [`status`] | VMs, volumes, NICs and devices now |
//! | [`top`] | the same in a compact form, for a display that asks every second |
//! | [`summary`] | whether all is well, computed from [`status`] |
//! | [`event`], [`cause`] | what happened to promises and devices, and why |
//! | [`list`] | names, clients, named policies, the past |
//! | [`change`] | what a change did, and what differs from the files |
//! | [`why`] | what broke the promises of a VM |
//! | [`policy`] | policies as they are in force |
//! | [`printed`] | lines on the standard output of the daemon |
//! | [`object`] | names of what is served |
//! | [`amount`] | how amounts look in text for people |
//! | [`shell`] | commands that can be copied into a shell |
//! | [`http`], [`problem`] | the client of HTTP on the socket, and its errors |
//!
//! The names of fields are those of `docs/output.md`, with their units at the end. A field that an older daemon does not send has its
//! default; one of a newer daemon is ignored, and a word of a newer daemon is read as the last one of its list.
#![forbid(unsafe_code)]

mod words;

pub mod amount;
pub mod body;
pub mod call;
pub mod cause;
pub mod change;
pub mod event;
pub mod http;
pub mod list;
pub mod object;
pub mod policy;
pub mod printed;
pub mod problem;
pub mod request;
pub mod shell;
pub mod status;
pub mod summary;
pub mod top;
pub mod why;

use serde::Serialize;
use serde_json::Value;

/// Version of the form of replies: it changes if a field changes its meaning or goes.
pub const VERSION: u32 = 1;

/// The fields of an object in alphabetical order. Those of objects in it are among them.
///
/// # Panics
/// If the object cannot be written as JSON, which all types of this crate can.
#[must_use]
pub fn fields(object: &impl Serialize) -> Vec<(String, Value)> {
    let Value::Object(all) = serde_json::to_value(object).expect("its keys are strings") else { return Vec::new() };
    all.into_iter()
        .flat_map(|(key, value)| match value {
            Value::Object(inner) => inner.into_iter().collect(),
            value => vec![(key, value)],
        })
        .collect()
}
