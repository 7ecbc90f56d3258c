//! Ceph: pools as devices, and images there.
//!
//! ```text
//!     device   path = "rbd:vms"           "rbd:vms/tenant-a"
//!     volume   source = "rbd:vms/db1"     "rbd:vms/tenant-a/db1"
//! ```
//!
//! The objects in which hosts meet (`rados:vms/sluice`) are named alike.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::quantity::Misread;

/// Start of both.
const SCHEME: &str = "rbd:";
/// Maximum length of a name in bytes.
const NAME_LEN_MAX: usize = 255;

/// A pool of a Ceph cluster, or a namespace of one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RbdPool {
    pub pool: String,
    /// Empty: the pool's own.
    pub namespace: String,
}

/// An RBD image.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RbdImage {
    pub pool: RbdPool,
    pub name: String,
}

/// Whether a text is meant as a pool or an image, and not as a path.
pub(crate) fn is_meant(text: &str) -> bool {
    text.starts_with(SCHEME)
}

const POOL_HINT: &str = "write rbd:POOL or rbd:POOL/NAMESPACE";
const IMAGE_HINT: &str =
    "write rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE; cluster and user are ceph_conf and ceph_user of its device";

/// The names of a text without its scheme, from one to three.
fn names<'a>(text: &'a str, kind: &str, hint: &str) -> Result<Vec<&'a str>, Misread> {
    let names: Vec<&str> = text.split_once(':').unwrap_or_default().1.split('/').collect();
    let is_name = |name: &&str| !name.is_empty() && name.len() <= NAME_LEN_MAX && !name.contains(['@', ':', '\0']);
    match names.iter().all(is_name) {
        true => Ok(names),
        false if text.contains('@') => Err(Misread {
            what: format!("'{text}' names a snapshot"),
            hint: "make an image of it with `rbd clone`, and write that image".to_owned(),
        }),
        false => Err(misread(text, kind, hint)),
    }
}

/// Reads what stands in a pool or in a namespace of one.
pub(crate) fn within(text: &str, kind: &str, hint: &str) -> Result<(RbdPool, String), Misread> {
    match *names(text, kind, hint)? {
        [pool, name] => Ok((RbdPool::new(pool, ""), name.to_owned())),
        [pool, namespace, name] => Ok((RbdPool::new(pool, namespace), name.to_owned())),
        _ => Err(misread(text, kind, hint)),
    }
}

fn misread(text: &str, kind: &str, hint: &str) -> Misread {
    Misread { what: format!("'{text}' is no {kind}"), hint: hint.to_owned() }
}

impl RbdPool {
    fn new(pool: &str, namespace: &str) -> Self {
        RbdPool { pool: pool.to_owned(), namespace: namespace.to_owned() }
    }

    pub(crate) fn read(text: &str) -> Result<Self, Misread> {
        let kind = "pool of a Ceph cluster";
        match *names(text, kind, POOL_HINT)? {
            [pool] => Ok(RbdPool::new(pool, "")),
            [pool, namespace] => Ok(RbdPool::new(pool, namespace)),
            _ => Err(misread(text, kind, POOL_HINT)),
        }
    }
}

impl RbdImage {
    pub(crate) fn read(text: &str) -> Result<Self, Misread> {
        let (pool, name) = within(text, "RBD image", IMAGE_HINT)?;
        Ok(RbdImage { pool, name })
    }
}

impl FromStr for RbdPool {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        RbdPool::read(text).map_err(|misread| misread.what)
    }
}

impl fmt::Display for RbdPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RbdPool { pool, namespace } = self;
        match namespace.is_empty() {
            true => write!(f, "{SCHEME}{pool}"),
            false => write!(f, "{SCHEME}{pool}/{namespace}"),
        }
    }
}

impl fmt::Display for RbdImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_and_images_are_read_as_they_are_written() {
        for text in ["rbd:vms", "rbd:vms/tenant-a"] {
            assert_eq!(RbdPool::read(text).unwrap().to_string(), text);
        }
        for text in ["rbd:vms/db1-root", "rbd:vms/tenant a/db1"] {
            assert_eq!(RbdImage::read(text).unwrap().to_string(), text);
        }
        for text in ["rbd:", "rbd:/a", "rbd:a/b/c", "rbd:a:id=x", "rbd:a//"] {
            assert_eq!(RbdPool::read(text).unwrap_err().hint, POOL_HINT, "{text}");
        }
        for text in ["rbd:a", "rbd:a//b", "rbd:a/b/c/d", "rbd:a/b:conf=/etc/c"] {
            assert_eq!(RbdImage::read(text).unwrap_err().hint, IMAGE_HINT, "{text}");
        }
        assert!(RbdImage::read("rbd:a/b@snap").unwrap_err().what.contains("snapshot"));
    }
}
