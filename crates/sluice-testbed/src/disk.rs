//! A VM's disk as the VM sees it: a client of the protocol that the host file states.

use std::io;
use std::time::Duration;

use super::load::scatter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
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
    Nbd(Box<nbd::Client>),
    Vhost(Box<vhost::Client>),
    /// Several disks of the VM over NBD. Each request goes to one of them at random.
    Spread(Spread),
}

/// Several disks of a VM.
pub struct Spread {
    disks: Vec<nbd::Client>,
    /// Number of the next request, from which its disk follows.
    next: u64,
}

/// A request. Its cookie is less than the maximum number of outstanding requests.
#[derive(Debug, Clone, Copy)]
pub struct DiskRequest {
    pub cookie: u64,
    pub offset: u64,
    pub is_read: bool,
}

impl Disk {
    /// Connects to the disk of a VM, or to all that it has over NBD, for at most `outstanding` requests of `len` bytes. All writes have the
    /// same data. `seed` decides which requests go to which disk.
    pub fn connect(exports: &[VolumeExport], outstanding: u32, len: u32, seed: u64) -> Result<Disk, DiskError> {
        let [export] = exports else {
            let connected = exports.iter().map(|export| match Disk::connect_to(export, outstanding, len)? {
                Disk::Nbd(client) => Ok(*client),
                _ => unreachable!("several disks of a VM are over NBD"),
            });
            let disks = connected.collect::<Result<_, DiskError>>()?;
            return Ok(Disk::Spread(Spread { disks, next: seed << 32 }));
        };
        Disk::connect_to(export, outstanding, len)
    }

    fn connect_to(export: &VolumeExport, outstanding: u32, len: u32) -> Result<Disk, DiskError> {
        let ListenAddress::Unix { path, .. } = &export.endpoint else {
            unreachable!("a testbed's host file has Unix sockets")
        };
        match export.protocol {
            Protocol::Nbd => Ok(Disk::Nbd(Box::new(nbd::Client::connect_unix(path, &export.name)?))),
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
            Disk::Spread(spread) => spread.disks.iter().map(nbd::Client::size_bytes).min().unwrap_or(0),
        }
    }

    /// Submits a request. A write sends `data`; a read has the same length.
    pub fn submit(&mut self, request: DiskRequest, data: &[u8]) -> Result<(), DiskError> {
        let DiskRequest { cookie, offset, is_read } = request;
        let len = data.len() as u32;
        match self {
            Disk::Nbd(client) => client.submit(cookie, nbd_command(offset, is_read, data))?,
            Disk::Spread(spread) => {
                spread.next += 1;
                let at = scatter(spread.next) % spread.disks.len() as u64;
                spread.disks[at as usize].submit(cookie, nbd_command(offset, is_read, data))?;
            }
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
            Disk::Spread(spread) => spread.disks.iter().map(nbd::Client::in_flight).sum(),
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
            Disk::Spread(spread) => spread.receive(timeout, completed),
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
            Disk::Spread(spread) => Ok(spread.disks.into_iter().try_for_each(nbd::Client::disconnect)?),
        }
    }
}

impl Spread {
    fn receive(&mut self, timeout: Duration, completed: &mut Vec<u64>) -> Result<Option<io::Error>, DiskError> {
        let mut interest = Vec::new();
        for disk in &mut self.disks {
            let unsent = if disk.flush_output()? { PollFlags::empty() } else { PollFlags::OUT };
            interest.push(PollFlags::IN | unsent);
        }
        let fds = self.disks.iter().zip(interest).map(|(disk, interest)| PollFd::new(disk, interest));
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        match poll(&mut fds, Timespec::try_from(timeout).ok().as_ref()) {
            Err(Errno::INTR) | Ok(_) => {}
            Err(error) => return Err(nbd::ClientError::Io(error.into()).into()),
        }
        let mut failed = None;
        for disk in &mut self.disks {
            disk.try_receive(&mut |reply: nbd::Reply<'_>| {
                completed.push(reply.cookie);
                failed = failed.or(reply.result.err());
            })?;
        }
        Ok(failed.map(|errno| io::Error::from_raw_os_error(errno as i32)))
    }
}

fn nbd_command(offset: u64, is_read: bool, data: &[u8]) -> nbd::Command<'_> {
    match is_read {
        true => nbd::Command::Read { offset, len: data.len() as u32 },
        false => nbd::Command::Write { offset, data, fua: false },
    }
}
