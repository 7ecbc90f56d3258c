//! Where hosts meet that share storage.

use core::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::quantity::Misread;
use crate::rbd::{self, RbdPool};
use crate::reader::Reader;

/// Start of a name of objects.
const SCHEME: &str = "rados:";
const HINT: &str =
    "write rados:POOL/NAME or rados:POOL/NAMESPACE/NAME; cluster and user are ceph_conf and ceph_user of the device";

/// Configuration file and user of a cluster for which nothing else is stated, as Ceph's own programs have them.
pub const CEPH_CONF: &str = "/etc/ceph/ceph.conf";
pub const CEPH_USER: &str = "admin";

/// Where hosts meet that share storage.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Meeting {
    /// A file or a block device.
    File(PathBuf),
    /// Objects of a Ceph cluster.
    Rados(RadosPlace),
}

/// Objects of a Ceph cluster in which hosts meet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RadosPlace {
    pub pool: RbdPool,
    /// Name of the object with the claims. Those with what each host uses are called `NAME.NUMBER`.
    pub name: String,
    /// Configuration file of the cluster.
    pub conf: PathBuf,
    /// The user without `client.` in front.
    pub user: String,
}

impl Meeting {
    /// Reads a place as a command has it. A relative path is one.
    ///
    /// # Errors
    /// Objects that are misspelt, with how to write them.
    pub fn of(text: &str, conf: &Path, user: &str) -> Result<Self, String> {
        match text.starts_with(SCHEME) {
            true => RadosPlace::read(text, conf, user)
                .map(Meeting::Rados)
                .map_err(|Misread { what, hint }| format!("{what}: {hint}")),
            false => Ok(Meeting::File(PathBuf::from(text))),
        }
    }

    /// Whether a key names objects and not a file.
    pub(crate) fn is_rados(reader: &Reader<'_>, key: &str) -> bool {
        reader.text(key).is_some_and(|text| text.starts_with(SCHEME))
    }

    pub(crate) fn read(reader: &Reader<'_>, key: &str, conf: &Path, user: &str) -> Option<Self> {
        let text = reader.text(key)?;
        let read = match text.starts_with(SCHEME) {
            true => RadosPlace::read(text, conf, user).map(Meeting::Rados),
            false => reader.absolute(key, text).map(Meeting::File),
        };
        read.map_err(|misread| reader.refuse_misread(key, misread)).ok()
    }

    /// Whether both are one place, although another user may connect to it.
    #[must_use]
    pub fn is_same_place(&self, other: &Meeting) -> bool {
        match (self, other) {
            (Meeting::Rados(one), Meeting::Rados(other)) => {
                (&one.pool, &one.name, &one.conf) == (&other.pool, &other.name, &other.conf)
            }
            (one, other) => one == other,
        }
    }

    /// The file or block device, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self {
            Meeting::File(path) => Some(path),
            Meeting::Rados(_) => None,
        }
    }

    /// As arguments of `sluice pool`.
    #[must_use]
    pub fn as_arguments(&self) -> String {
        let stated = self.stated_of_cluster().map(|(key, value)| format!(" --{} {value}", key.replace('_', "-")));
        stated.fold(self.to_string(), |arguments, stated| arguments + &stated)
    }

    /// Keys that a device needs besides, as the end of a sentence.
    #[must_use]
    pub fn keys_of_device(&self) -> String {
        let keys: Vec<String> = self.stated_of_cluster().map(|(key, value)| format!("{key} = \"{value}\"")).collect();
        if keys.is_empty() { String::new() } else { format!("; in its device {}", keys.join(" and ")) }
    }

    /// Keys and values of the cluster that differ from the defaults.
    fn stated_of_cluster(&self) -> impl Iterator<Item = (&'static str, String)> {
        let place = if let Meeting::Rados(place) = self { Some(place) } else { None };
        let all = place.map(|RadosPlace { conf, user, .. }| {
            [("ceph_conf", conf.display().to_string(), CEPH_CONF), ("ceph_user", user.clone(), CEPH_USER)]
        });
        let is_stated = |(_, value, default): &(&str, String, &str)| value != default;
        all.into_iter().flatten().filter(is_stated).map(|(key, value, _)| (key, value))
    }
}

impl RadosPlace {
    fn read(text: &str, conf: &Path, user: &str) -> Result<Self, Misread> {
        let (pool, name) = rbd::within(text, "name of objects of a Ceph cluster", HINT)?;
        Ok(RadosPlace { pool, name, conf: conf.to_owned(), user: user.to_owned() })
    }
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Meeting::File(path) => write!(f, "{}", path.display()),
            Meeting::Rados(RadosPlace { pool: RbdPool { pool, namespace }, name, .. }) if namespace.is_empty() => {
                write!(f, "{SCHEME}{pool}/{name}")
            }
            Meeting::Rados(RadosPlace { pool: RbdPool { pool, namespace }, name, .. }) => {
                write!(f, "{SCHEME}{pool}/{namespace}/{name}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        let read = |text: &str| Meeting::of(text, Path::new(CEPH_CONF), "sluice");
        for text in ["/srv/meta/sluice", "rados:vms/sluice", "rados:vms/tenant-a/sluice"] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        let place = read("rados:vms/sluice").unwrap();
        assert_eq!(place.as_arguments(), "rados:vms/sluice --ceph-user sluice");
        assert_eq!(place.keys_of_device(), "; in its device ceph_user = \"sluice\"");
        assert_eq!(read("/srv/meta/sluice").unwrap().keys_of_device(), "");
        let by_others = Meeting::of("rados:vms/sluice", Path::new(CEPH_CONF), "b").unwrap();
        assert!(place != by_others && place.is_same_place(&by_others));
        for text in ["rados:", "rados:vms", "rados:vms/", "rados:a/b/c/d", "rados:a/b:c"] {
            assert!(read(text).unwrap_err().contains("write rados:POOL/NAME"), "{text}");
        }
    }
}
