//! The host file: devices, the VMs that use them, and the guarantees of each VM.
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
//! Quantities have units; a number without its unit is rejected. All errors of a file are reported together, each with
//! its line and what to change, and the whole file is rejected. A reload loads the file again and compares; [`Host`]
//! supports this.
//!
//! The files in `NAME.d` that end in `.toml` override `NAME.toml`, in order of their names: a later value replaces an
//! earlier one, and tables merge.
//!
//! | part | where |
//! |---|---|
//! | files as one tree, each value with its span | `source`, `tree`, `dropins` |
//! | list of keys | [`fields`], and [`schema`] generated from it |
//! | the files without secrets | [`secret`] |
//! | changes at run time | [`changes`] |
//! | single tables | `reader`, `quantity`, `device`, `disk_path`, `node`, `uplink`, `policy`, `net_policy`, `vm`, `nic`, `export`, `daemon`, `alert` |
//! | checks across tables | `checks` |
//! | result | [`Host`], or [`Diagnostics`] |
#![forbid(unsafe_code)]

mod alert;
pub mod changes;
pub mod checks;
mod daemon;
pub mod device;
pub mod diagnostics;
mod disk_path;
pub mod dropins;
mod elsewhere;
pub mod entries;
mod export;
pub mod fields;
mod host;
mod known;
pub mod meeting;
pub mod model;
mod nearest;
mod net_policy;
mod nic;
pub mod node;
pub mod policy;
mod quantity;
pub mod rbd;
pub mod reader;
mod schema;
pub mod secret;
pub mod serial;
pub mod source;
pub mod tree;
mod uplink;
pub mod vm;

pub use alert::{ALERT_CLASSES, Alert, AlertTo};
pub use diagnostics::{DIAGNOSTICS_MAX, Diagnostic, Diagnostics, Severity};
pub use disk_path::DiskPath;
pub use host::{Files, load, load_files, parse};
pub use meeting::{Meeting, RadosPlace};
pub use model::{
    Access, Account, AsGateway, Backend, CONTROL_SOCKET, Ceph, Control, DaemonSettings, Delay, DelayTime, Device,
    History, Host, Jail, Layer, ListenAddress, NbdGateway, NbdSettings, NbdTls, NetPolicy, Nic, NicAccess, Node,
    NodeTls, Port, Protocol, Receive, Uplink, Vm, Volume, VolumeExport, VolumeSource, Window,
};
pub use node::{NodeAddress, NodeExport};
pub use rbd::{RbdImage, RbdPool};
pub use schema::{schema, schema_of};
