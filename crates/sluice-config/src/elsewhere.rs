//! Devices that are no disks of this host, and volumes there: one line in each list of this file for each kind.

use crate::model::VolumeSource;
use crate::node::{NodeAddress, NodeExport};
use crate::quantity::Misread;
use crate::rbd::{self, RbdImage, RbdPool};
use crate::reader::Reader;
use crate::tree::Value;

/// The path of a device that is another server or a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Elsewhere {
    Node(NodeAddress),
    Pool(RbdPool),
}

impl Elsewhere {
    fn of(text: &str) -> Option<Result<Self, Misread>> {
        match text {
            text if NodeAddress::is_meant(text) => Some(NodeAddress::read(text).map(Elsewhere::Node)),
            text if rbd::is_meant(text) => Some(RbdPool::read(text).map(Elsewhere::Pool)),
            _ => None,
        }
    }

    /// Reads a path that is no disk; `None` also if it has an error, which is reported.
    pub(crate) fn read(reader: &Reader<'_>, key: &str) -> Option<Self> {
        let Some(Value::Text(text)) = reader.node(key).map(|node| &node.value) else { return None };
        Elsewhere::of(text)?.map_err(|misread| reader.refuse_misread(key, misread)).ok()
    }

    /// Whether a path is meant as none of a disk.
    pub(crate) fn is_meant(reader: &Reader<'_>, key: &str) -> bool {
        matches!(reader.node(key).map(|node| &node.value), Some(Value::Text(text)) if Elsewhere::of(text).is_some())
    }

    /// Refuses one where a disk is meant.
    pub(crate) fn refuse(text: &str) -> Result<(), Misread> {
        let what = match text {
            text if NodeAddress::is_meant(text) => "a server",
            text if rbd::is_meant(text) => "a pool of a Ceph cluster",
            _ => return Ok(()),
        };
        let hint = "write it alone: it is a device of its own".to_owned();
        Err(Misread { what: format!("'{text}' is {what} and not a disk"), hint })
    }
}

/// A path, an export of a server, or an image.
pub(crate) fn read_source(reader: &Reader<'_>, key: &str) -> VolumeSource {
    let Some(text) = reader.text(key) else { return VolumeSource::Nothing };
    let read = match text {
        text if NodeAddress::is_meant(text) => NodeExport::read(text).map(VolumeSource::Nbd),
        text if rbd::is_meant(text) => RbdImage::read(text).map(VolumeSource::Rbd),
        text => reader.absolute(key, text).map(VolumeSource::File),
    };
    read.map_err(|misread| reader.refuse_misread(key, misread)).unwrap_or(VolumeSource::Nothing)
}
