//! An RBD image as a source: one writer at a time, which the lock of the image sees to.
//!
//! The connections of a host that were not closed are its own to lock out: a daemon that was killed still has the lock, and what it sent last may
//! still arrive. Connections of others are locked out by `sluice takeover` alone.

use std::collections::BTreeSet;
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
/// Time for which a connection is locked out whose lock is taken: a host that was frozen may wake up late.
const OUT: Duration = Duration::from_secs(365 * 24 * 3600);

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

/// A connection of an earlier daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Former {
    pub address: String,
    /// Whether this host has not been started again since. Otherwise the connection may be that of the host of which this one is a copy, and counts
    /// as own when it has been silent for so long that the cluster has noticed.
    pub is_of_this_boot: bool,
}

/// What is done about the lock of an image that is written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locking {
    /// Only finds out whether another client has it.
    Look,
    Take {
        /// Names this host to others.
        host: String,
        /// Connections that earlier daemons of this state directory had for the VM.
        own: Vec<Former>,
        /// Addresses of the connections that this daemon has made.
        present: BTreeSet<String>,
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

/// The owner of a lock.
enum Whose {
    /// This daemon, which has not closed the image yet.
    Present,
    /// An earlier daemon of this host, or the client that is to lose it.
    Taken,
    Other,
}

impl Former {
    fn is_own(&self, image: &Image, address: &str) -> bool {
        self.address == address && (self.is_of_this_boot || !image.is_watched_by(address))
    }
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
            Locking::Take { host, own, present, takes_over } => {
                let whose = |address: &str| match () {
                    () if present.contains(address) => Whose::Present,
                    () if takes_over.as_deref() == Some(address) => Whose::Taken,
                    () if own.iter().any(|former| former.is_own(&image, address)) => Whose::Taken,
                    () => Whose::Other,
                };
                self.lock(&image, host, &whose)?;
            }
        }
        // The library uses what it knows only while it has the lock.
        if self.locking != Locking::Look && !self.image.read_only {
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
            Ok(Some(owner)) => Err(SourceError::Locked { name: self.name.clone(), owner: Box::new(owner) }),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Takes the lock: that of nobody, of an own connection that has ended, or of the one that is to be taken over.
    fn lock(&self, image: &Image, host: &str, whose: &dyn Fn(&str) -> Whose) -> Result<(), SourceError> {
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
            let name = self.name.clone();
            match whose(&owner.address) {
                Whose::Present => return Err(SourceError::Closing { name }),
                Whose::Other => return Err(SourceError::Locked { name, owner: Box::new(owner) }),
                Whose::Taken => {}
            }
            // librbd locks it out before, but for an hour only, which counts from then.
            image.break_lock(&owner.address).map_err(told)?;
            image.cluster().lock_out(&owner.address, OUT).map_err(told)?;
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
    /// Extends the image so that a volume of it can have `length` bytes. A longer one stays as it is.
    ///
    /// # Errors
    /// The cluster does not do it.
    pub fn extend(&self, length: u64) -> Result<(), CephError> {
        match self.image.size_bytes()? >= length {
            true => Ok(()),
            false => self.image.resize(length),
        }
    }

    /// Returns the same volume with another length; `None`: up to the present end of the image.
    ///
    /// # Errors
    /// The image is shorter.
    pub fn resized(of: &Source<Rbd>, length: Option<u64>) -> Result<Source<Rbd>, SourceError> {
        let size_bytes = size_of(&of.name, &of.kind.image, length, of.block_size)?;
        Ok(Source { facts: Facts { size_bytes, ..of.facts.clone() }, kind: of.kind.clone() })
    }

    /// Returns the limits that librbd puts on the image, by the names of their options: what is promised of it does not hold above them.
    #[must_use]
    pub fn limits(&self) -> &[(String, String)] {
        &self.limits
    }
}
