//! The host file: which devices there are, which VMs use them, and what each VM is promised.
//!
//! ```toml
//! [device.nvme0]
//! path     = "/dev/nvme0n1"
//! capacity = "40000 iops@8KiB"
//!
//! [policy.gold]
//! reservation = "2000 iops@8KiB"
//! weight      = 400
//!
//! [vm.db1]
//! policy = "gold"
//!
//! [vm.db1.volume.root]
//! device = "nvme0"
//! source = "/srv/vm/db1.img"
//! export = { type = "nbd", socket = "/run/sluice/db1-root.sock" }
//! ```
//!
//! Quantities carry their units; a bare number is refused. Everything wrong with a file is reported at once, each
//! finding with its line and what to change, and the file is refused whole. A reload loads again and compares: all of
//! [`Host`] does.
//!
//! Beside `NAME.toml` the files in `NAME.d` that end in `.toml` are laid over it in the order of their names: a later
//! value replaces an earlier one, tables merge.
//!
//! | part | where |
//! |---|---|
//! | the files as one tree, each value with its place | `source`, `tree`, `dropins` |
//! | every key there is | [`fields`], from which [`schema`] follows |
//! | what was changed since | [`changes`] |
//! | one table | `reader`, `quantity`, `device`, `policy`, `vm`, `export` |
//! | across tables | `checks` |
//! | what comes out | [`Host`], or [`Diagnostics`] |
#![forbid(unsafe_code)]

pub mod changes;
pub mod checks;
pub mod device;
pub mod diagnostics;
pub mod dropins;
mod export;
pub mod fields;
mod host;
pub mod model;
mod nearest;
pub mod policy;
mod quantity;
pub mod reader;
mod schema;
pub mod source;
pub mod tree;
pub mod vm;

pub use diagnostics::{DIAGNOSTICS_MAX, Diagnostic, Diagnostics, Severity};
pub use host::{Files, load, load_changed, parse};
pub use model::{
    Backend, DaemonSettings, Delay, DelayTime, Device, Endpoint, Host, NbdSettings, Protocol, Vm, Volume, VolumeExport,
    Window,
};
pub use schema::{schema, schema_of};
