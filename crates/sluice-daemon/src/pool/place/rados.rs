//! Objects of a Ceph cluster where hosts meet.
//!
//! ```text
//!     NAME              header, then the claims of all hosts
//!     NAME:1 ... NAME:n what each host uses
//! ```
//!
//! All claims are in one object because the cluster compares and writes an object in one step. An object that is missing or short is one of zeroes,
//! except that NAME exists. A name has no colon, so the objects of one place are never those of another.

use std::io;

use rustix::io::Errno;
use sluice_config::RadosPlace;
use sluice_io::ceph::objects::{Objects, Part};
use sluice_io::ceph::{CephError, Cluster, ClusterSpec};
use sluice_pool::block::{self, BLOCKS, HOSTS_MAX, Header, SIZE};

use super::{Access, Place};

/// Number of blocks in the object with the claims.
const WITH_CLAIMS: usize = BLOCKS - HOSTS_MAX as usize;

/// The objects of a place.
pub(super) struct OfHosts {
    objects: Objects,
    name: String,
}

impl OfHosts {
    pub(super) fn open(place: &RadosPlace, access: Access) -> io::Result<OfHosts> {
        let own = OfHosts::connect(place)?;
        match access {
            Access::Read => own.read_with_claims(0).map(drop)?,
            // A user who may only read is told now.
            Access::Write => own.objects.touch(&own.name).map_err(failed)?,
        }
        Ok(own)
    }

    pub(super) fn make(place: &RadosPlace) -> io::Result<OfHosts> {
        let own = OfHosts::connect(place)?;
        own.objects.make(&own.name, &vec![0; WITH_CLAIMS * SIZE]).map_err(failed)?;
        // What a pool has left whose first object was removed. Without a header no host writes.
        (1..=usize::from(HOSTS_MAX)).try_for_each(|host| own.objects.remove(&own.of_host(host))).map_err(failed)?;
        Ok(own)
    }

    fn connect(place: &RadosPlace) -> io::Result<OfHosts> {
        let RadosPlace { pool, name, conf, user } = place;
        let cluster = Cluster::connect(&ClusterSpec { conf: conf.clone(), user: user.clone() });
        let objects = Objects::open(&cluster.map_err(io::Error::other)?, &pool.pool, &pool.namespace);
        // Not `NotFound`, which is what a place is that was not made.
        Ok(OfHosts { objects: objects.map_err(io::Error::other)?, name: name.clone() })
    }

    fn of_host(&self, host: usize) -> String {
        format!("{}:{host}", self.name)
    }

    /// Reads the header, and blocks of claims in the same moment.
    fn read_with_claims(&self, claims: usize) -> io::Result<Vec<u8>> {
        let length = (1 + claims) * SIZE;
        let part = Part { object: self.name.clone(), offset: 0, length };
        let mut read = self.objects.read(&[part]).remove(0).map_err(failed)?;
        read.resize(length, 0);
        Ok(read)
    }

    /// Reads what this number of hosts use.
    fn read_usage(&self, hosts: usize) -> io::Result<Vec<u8>> {
        let part = |host| Part { object: self.of_host(host), offset: 0, length: SIZE };
        let parts: Vec<Part> = (1..=hosts).map(part).collect();
        let mut blocks = Vec::with_capacity(hosts * SIZE);
        for read in self.objects.read(&parts) {
            let end = blocks.len() + SIZE;
            match read {
                Ok(read) => blocks.extend(read),
                Err(error) if error.errno == Errno::NOENT.raw_os_error() => {}
                Err(error) => return Err(failed(error)),
            }
            blocks.resize(end, 0);
        }
        Ok(blocks)
    }
}

impl Place for OfHosts {
    fn is_at_its_name(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn read(&self, count: usize) -> io::Result<Vec<u8>> {
        let claims = block::claims_of(1);
        let mut blocks = self.read_with_claims(count.saturating_sub(claims))?;
        let of_claims = blocks.split_off(SIZE);
        // The objects of hosts that the pool does not have are not looked for.
        let hosts = block::decode::<Header>(&blocks).map_or(HOSTS_MAX, |header| header.hosts);
        let before_claims = count.min(claims);
        blocks.extend(self.read_usage(usize::from(hosts.min(HOSTS_MAX)).min(before_claims - 1))?);
        blocks.resize(before_claims * SIZE, 0);
        blocks.extend(of_claims);
        Ok(blocks)
    }

    fn write(&self, first: usize, bytes: &[u8]) -> io::Result<()> {
        let claims = block::claims_of(1);
        let before_claims = bytes.len().min(claims.saturating_sub(first) * SIZE);
        let (others, of_claims) = bytes.split_at(before_claims);
        for (at, block) in (first..).zip(others.chunks(SIZE)) {
            let written = match at {
                0 => self.objects.write(&self.name, 0, block),
                _ if block.iter().all(|byte| *byte == 0) => self.objects.remove(&self.of_host(at)),
                _ => self.objects.write(&self.of_host(at), 0, block),
            };
            written.map_err(failed)?;
        }
        // One write, so that of two claims none is left.
        match of_claims.is_empty() {
            true => Ok(()),
            false => self.objects.write(&self.name, offset(first.max(claims)), of_claims).map_err(failed),
        }
    }

    fn write_if(&self, before: &[u8], first: usize, bytes: &[u8]) -> io::Result<bool> {
        let claims = block::claims_of(1) * SIZE;
        let expected = [&before[..SIZE], &before[claims..]].concat();
        self.objects.write_if(&self.name, &expected, offset(first), bytes).map_err(failed)
    }

    fn lock(&self, _block: usize) -> io::Result<()> {
        Ok(())
    }
}

/// Offset in bytes of the header or of a claim, in the object with both.
fn offset(block: usize) -> u64 {
    (block.saturating_sub(usize::from(HOSTS_MAX)) * SIZE) as u64
}

fn failed(error: CephError) -> io::Error {
    // Other kinds mean something of a file.
    let kind = match Errno::from_raw_os_error(error.errno) {
        Errno::NOENT => io::ErrorKind::NotFound,
        // A connection that was locked out serves nothing any more.
        Errno::SHUTDOWN => io::ErrorKind::NotConnected,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
