//! An RBD image as a source: one writer at a time, which the lock of the image sees to.
//!
//! The connections of a host that were not closed are its own to lock out: a daemon that was killed still has the lock, and what it sent last may
//! still arrive. Connections of others are locked out by `sluice takeover` alone.

use std::sync::Arc;
use std::time::Duration;

use super::alignment::Alignment;
use super::claims::Claims;
use super::error::SourceError;
use super::facts::Facts;
use super::faults::Failures;
use super::loss::Mark;
use super::opened::Source;
use super::owner::Owner;
use crate::ceph::{CephError, Cluster, Image, ImageSpec};

/// Block size of the guest's disk, unless it is stated.
const SECTOR: u32 = 512;
/// A connection that was taken the lock of is locked out for a year: a host that was frozen may wake up late.
const OUT_OF_OTHER: Duration = Duration::from_secs(365 * 24 * 3600);
/// The same of an own connection, whose process has ended.
const OUT_OF_OWN: Duration = Duration::from_secs(3600);

/// An image, as the control plane states it.
pub struct RbdSpec {
    /// As the host file has it, for messages.
    pub name: String,
    pub image: ImageSpec,
    /// Bytes of the image from its start; `None`: all of it.
    pub length: Option<u64>,
    /// Block size of the guest's disk in bytes, if it is stated.
    pub block_size: Option<u32>,
    /// Whether discards of the guest free space.
    pub unmaps: bool,
    pub locking: Locking,
}

/// What is done about the lock of an image that is written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locking {
    /// Only finds out whether another client has it.
    Look,
    Take {
        /// Names this host to others.
        host: String,
        /// Addresses of this host's connections for the VM that have ended.
        own: Vec<String>,
        /// Address of the connection whose lock is taken away.
        takes_over: Option<String>,
    },
}

/// An image that was opened.
#[derive(Debug, Clone)]
pub struct Rbd {
    pub(crate) image: Arc<Image>,
    pub(crate) unmaps: bool,
    limits: Vec<(String, String)>,
}

impl RbdSpec {
    /// Opens the image and takes its lock. May take as long as the cluster does.
    ///
    /// # Errors
    /// The image does not suit the volume, or another client has its lock.
    pub fn open(&self, cluster: &Arc<Cluster>) -> Result<Source<Rbd>, SourceError> {
        let told = |error: CephError| self.failed(&error);
        let mut image = Image::open(cluster, &self.image).map_err(told)?;
        let identity = image.identity(&self.image).map_err(told)?;
        match &self.locking {
            _ if self.image.read_only => {}
            Locking::Look => self.look(&image)?,
            Locking::Take { host, own, takes_over } => self.lock(cluster, &image, host, (own, takes_over.as_ref()))?,
        }
        if self.locking != Locking::Look {
            image.look_for_objects();
        }
        let options = image.options().map_err(told)?;
        let is_limit =
            |(name, value): &(String, String)| name.starts_with("rbd_qos_") && name.ends_with("_limit") && value != "0";
        let limits = options.into_iter().filter(is_limit).collect();
        let block_size = self.block_size.unwrap_or(SECTOR);
        let size_bytes = size_of(&self.name, &image, self.length, block_size)?;
        let facts = Facts {
            size_bytes,
            name: self.name.clone(),
            identity: Some(identity),
            alignment: Alignment::new(1, SECTOR),
            block_size,
            read_only: self.image.read_only,
            lost: Mark::default(),
            failures: Arc::new(Failures::default()),
            claims: Claims::default(),
        };
        Ok(Source { facts, kind: Rbd { image: Arc::new(image), unmaps: self.unmaps, limits } })
    }

    fn failed(&self, error: &CephError) -> SourceError {
        let name = self.name.clone();
        match error.errno {
            libc::ESHUTDOWN => SourceError::LockedOut { name },
            _ => SourceError::Remote { name, why: error.to_string() },
        }
    }

    /// Refuses an image that could not be locked.
    fn look(&self, image: &Image) -> Result<(), SourceError> {
        match Owner::of(image) {
            Ok(None) => Ok(()),
            Ok(Some(owner)) => Err(SourceError::Locked { name: self.name.clone(), owner }),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Takes the lock: that of nobody, of an own connection that has ended, or of the one that is to be taken over.
    fn lock(
        &self,
        cluster: &Cluster,
        image: &Image,
        host: &str,
        (own, takes_over): (&[String], Option<&String>),
    ) -> Result<(), SourceError> {
        let failed = |why: String| SourceError::Remote { name: self.name.clone(), why };
        let told = |error: CephError| self.failed(&error);
        let refused = |error: CephError| match error.errno {
            libc::EROFS | libc::EBUSY => failed(format!("{error}: another client has just taken it")),
            libc::EOPNOTSUPP => {
                failed(format!("{error}: enable it with `rbd feature enable {} exclusive-lock`", self.image))
            }
            _ => self.failed(&error),
        };
        // librbd would wait until an owner that is dead has been silent for 30 s, and take its lock then, also that of another host.
        if let Some(owner) = Owner::of(image).map_err(told)? {
            let time = match &owner.address {
                address if own.contains(address) => OUT_OF_OWN,
                address if takes_over == Some(address) => OUT_OF_OTHER,
                _ => return Err(SourceError::Locked { name: self.name.clone(), owner }),
            };
            cluster.lock_out(&owner.address, time).map_err(told)?;
            image.break_lock(&owner.address).map_err(told)?;
        }
        image.lock().map_err(refused)?;
        Owner::sign(image, host).map_err(told)
    }
}

/// Returns the size of a volume, which is the whole image or the first `length` bytes of it.
fn size_of(name: &str, image: &Image, length: Option<u64>, block_size: u32) -> Result<u64, SourceError> {
    let failed = |why: String| SourceError::Remote { name: name.to_owned(), why };
    let whole = image.size_bytes().map_err(|error| failed(error.to_string()))?;
    let size = length.unwrap_or(whole);
    if size > whole {
        return Err(failed(format!(
            "the image has {whole} bytes, and the volume needs {size}: resize it, or lower `size`"
        )));
    }
    if size == 0 || !size.is_multiple_of(u64::from(block_size)) {
        let why =
            format!("its size of {size} bytes is not a multiple of {block_size}: resize the image, or state `size`");
        return Err(failed(why));
    }
    Ok(size)
}

impl Rbd {
    /// Extends the image so that a volume of it can have `length` bytes. Returns its previous size, if it was shorter.
    ///
    /// # Errors
    /// The cluster does not do it.
    pub fn extend(&self, length: u64) -> Result<Option<u64>, CephError> {
        let before = self.image.size_bytes()?;
        if before >= length {
            return Ok(None);
        }
        self.resize(length).map(|()| Some(before))
    }

    /// Returns the same volume with another length; `None`: up to the present end of the image.
    ///
    /// # Errors
    /// The image is shorter.
    pub fn resized(of: &Source<Rbd>, length: Option<u64>) -> Result<Source<Rbd>, SourceError> {
        let size_bytes = size_of(&of.name, &of.kind.image, length, of.block_size)?;
        Ok(Source { facts: Facts { size_bytes, ..of.facts.clone() }, kind: of.kind.clone() })
    }

    /// Gives the image another size. What is past its end then is lost.
    ///
    /// # Errors
    /// The cluster does not do it.
    pub fn resize(&self, bytes: u64) -> Result<(), CephError> {
        self.image.resize(bytes)
    }

    /// Returns the limits that librbd puts on the image, by the names of their options: what is promised of it does not hold above them.
    #[must_use]
    pub fn limits(&self) -> &[(String, String)] {
        &self.limits
    }
}
