//! A VM's disk as the VM sees it: a client of the protocol that the host file states.

use std::io;
use std::time::Duration;

use sluice_client::nbd;
use sluice_client::vhost;
use sluice_config::{ListenAddress, Protocol, VolumeExport};

/// Why a client lost its disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Over NBD.
    #[error(transparent)]
    Nbd(#[from] nbd::ClientError),
    /// Over vhost-user-blk.
    #[error(transparent)]
    Vhost(#[from] vhost::ClientError),
}

/// A connected disk.
pub enum Disk {
    Nbd(nbd::Client),
    Vhost(Box<vhost::Client>),
}

/// A request. Its cookie is less than the maximum number of outstanding requests.
#[derive(Debug, Clone, Copy)]
pub struct DiskRequest {
    pub cookie: u64,
    pub offset: u64,
    pub is_read: bool,
}

impl Disk {
    /// Connects, for at most `outstanding` requests of `len` bytes. All writes have the same data.
    pub fn connect(export: &VolumeExport, outstanding: u32, len: u32) -> Result<Disk, DiskError> {
        let ListenAddress::Unix { path, .. } = &export.endpoint else {
            unreachable!("a testbed's host file has Unix sockets")
        };
        match export.protocol {
            Protocol::Nbd => Ok(Disk::Nbd(nbd::Client::connect_unix(path, &export.name)?)),
            Protocol::VhostUserBlk { .. } => {
                let slots = u16::try_from(outstanding).expect("a VM of a testbed has few requests outstanding");
                let data_len_max = len as usize;
                let options = vhost::ClientOptions { slots, data_len_max, ..vhost::ClientOptions::default() };
                Ok(Disk::Vhost(Box::new(vhost::Client::connect(path, &options)?)))
            }
        }
    }

    pub fn size_bytes(&self) -> u64 {
        match self {
            Disk::Nbd(client) => client.size_bytes(),
            Disk::Vhost(client) => client.config().size_bytes(),
        }
    }

    /// Submits a request. A write sends `data`; a read has the same length.
    pub fn submit(&mut self, request: DiskRequest, data: &[u8]) -> Result<(), DiskError> {
        let DiskRequest { cookie, offset, is_read } = request;
        let len = data.len() as u32;
        match self {
            Disk::Nbd(client) if is_read => client.submit(cookie, nbd::Command::Read { offset, len })?,
            Disk::Nbd(client) => client.submit(cookie, nbd::Command::Write { offset, data, fua: false })?,
            Disk::Vhost(client) => {
                let (queue, slot) = (client.queue(0), cookie as u16);
                if is_read {
                    queue.submit(slot, vhost::Request::Read { offset, len })?;
                } else {
                    queue.write_data(slot, data);
                    queue.submit(slot, vhost::Request::Write { offset, len })?;
                }
            }
        }
        Ok(())
    }

    pub fn in_flight(&mut self) -> usize {
        match self {
            Disk::Nbd(client) => client.in_flight(),
            Disk::Vhost(client) => client.queue(0).in_flight().into(),
        }
    }

    /// Makes submitted requests visible to the server, waits for a completion, and appends the cookies of all
    /// completed requests to `completed`. Returns the error of a failed request, if there is one.
    pub fn receive(&mut self, timeout: Duration, completed: &mut Vec<u64>) -> Result<Option<io::Error>, DiskError> {
        match self {
            Disk::Nbd(client) => {
                let mut failed = None;
                client.receive(Some(timeout), &mut |reply: nbd::Reply<'_>| {
                    completed.push(reply.cookie);
                    failed = failed.or(reply.result.err());
                })?;
                Ok(failed.map(|errno| io::Error::from_raw_os_error(errno as i32)))
            }
            Disk::Vhost(client) => {
                client.queue(0).publish()?;
                let answers = client.wait_within(0, 1, timeout)?;
                completed.extend(answers.iter().map(|answer| u64::from(answer.slot)));
                let failed = answers.iter().find(|answer| answer.status != 0);
                Ok(failed.map(|answer| io::Error::other(format!("the device returned status {}", answer.status))))
            }
        }
    }

    /// Disconnects.
    pub fn disconnect(self) -> Result<(), DiskError> {
        match self {
            Disk::Nbd(client) => Ok(client.disconnect()?),
            Disk::Vhost(_) => Ok(()),
        }
    }
}
