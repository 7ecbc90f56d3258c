//! What `sluice pool` does at the place where hosts meet, without a daemon.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use sluice_config::Meeting;
use sluice_pool::block::{self, BLOCKS, Header, Host, SIZE, Unreadable, Usage};
use sluice_pool::claims::Claims;
use sluice_pool::dues::raw;
use sluice_pool::exchange::{meeting_rate, requests};
use sluice_sched::Iops;
use sluice_sched::units::StatedIops;

use super::place::{self, Access, Place, Way};

/// Default of `weight_floor`.
const WEIGHT_FLOOR_PERCENT: u64 = 2;
/// Size of a request that counts as one, if the capacity does not state it.
const REQUEST_BYTES: u64 = 8192;
/// Time after which every host that runs has written its block again: 4 periods of 1 s.
const WATCH: Duration = Duration::from_millis(4200);

/// Why a place cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("Cannot open {}: {}", .place, remedy(.error))]
    Open { place: String, error: io::Error },
    #[error("Cannot {what} {}: {}", .place, remedy(.error))]
    Access { place: String, what: &'static str, error: io::Error },
    #[error(
        "{} has a pool of {} hosts with {} already: add --keep to change its capacity or its number of hosts and keep what hosts have \
         reserved", .place, .header.hosts, capacity(.header)
    )]
    Exists { place: String, header: Header },
    #[error("{} holds something else: use another file or block device, or overwrite it with --force", .place)]
    Used { place: String },
    #[error("{} has no pool that can be read: its header {why}; write it with `sluice pool create`", .place)]
    NoPool { place: String, why: Unreadable },
    #[error("Hosts have changed their claims at {} meanwhile: try again", .place)]
    Changed { place: String },
    #[error("{} is too short: hosts need {} KiB", .place, BLOCKS * SIZE / 1024)]
    TooShort { place: String },
    #[error("Host {host} has something reserved, so its number cannot go: forget it first with `sluice pool forget {} --host {host}`", .place)]
    Claimed { place: String, host: Host },
    #[error("The claims of host {host} cannot be read: a block {why}. Start its daemon, or forget it with `sluice pool forget {} --host {host}`", .place)]
    UnreadableClaim { place: String, host: Host, why: Unreadable },
    #[error(
        "Hosts have {iops:.0} iops of the pool at {} reserved, which {capacity} does not keep: lower reservations first. The size of a request stays \
         as long as something is reserved", .place
    )]
    Reserved { place: String, iops: f64, capacity: String },
    #[error("A reference size of {0} bytes is no power of two: write a capacity such as \"20000 iops@8KiB\"")]
    RequestSize(u64),
    #[error("The {hosts} hosts need all of {capacity} to meet: state what the storage sustains, or fewer hosts")]
    NothingLeft { hosts: u8, capacity: String },
    #[error("The pool has the hosts 1 to {hosts}, and no host {host}")]
    NoHost { host: Host, hosts: u8 },
    #[error(
        "Host {host} runs: it has written its block in the last seconds. Stop its daemon first, or take `pool` out of its host file"
    )]
    Runs { host: Host },
}

fn remedy(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::InvalidInput => {
            "its file system has no direct I/O, which hosts need to see what others write; use a file on other storage or a block device".to_owned()
        }
        io::ErrorKind::Unsupported => "it is neither a file nor a block device".to_owned(),
        io::ErrorKind::NotFound => format!("{error}; prepare the place with `sluice pool create`"),
        io::ErrorKind::UnexpectedEof => format!("it is shorter than {} KiB", BLOCKS * SIZE / 1024),
        _ => error.to_string(),
    }
}

/// The capacity of a pool, in words.
#[must_use]
pub fn capacity(header: &Header) -> String {
    let size = sluice_sched::Bytes(header.request_bytes);
    format!("{}@{size}", Iops::from_milli(header.milli_iops.max(1)))
}

/// How a place is written.
#[derive(Debug, Clone, Copy)]
pub struct Creation {
    pub hosts: u8,
    pub capacity: StatedIops,
    /// Keeps what hosts have written of a pool that is there.
    pub keep: bool,
    /// Overwrites whatever is there.
    pub force: bool,
}

/// A pool as it stands at its place.
pub struct Look {
    pub header: Header,
    pub hosts: Vec<HostLook>,
    pub claims: Claims,
}

/// A host as it stands at the place.
pub struct HostLook {
    pub host: Host,
    pub usage: Result<Usage, Unreadable>,
    /// Whether it has written its block while it was watched.
    pub runs: bool,
}

/// Writes the place whole: the header last, so that a place that was written in part has none. Returns the header.
///
/// # Errors
/// [`PoolError`]. Nothing is written if the place holds something else.
pub fn create(meeting: &Meeting, how: &Creation) -> Result<Header, PoolError> {
    let StatedIops { iops, size } = how.capacity;
    let request_bytes = size.map_or(REQUEST_BYTES, |size| size.0);
    if !request_bytes.is_power_of_two() {
        return Err(PoolError::RequestSize(request_bytes));
    }
    let mut header = Header { pool: super::random(), hosts: how.hosts, milli_iops: iops.milli(), request_bytes };
    if most(meeting, &header) == 0 {
        return Err(PoolError::NothingLeft { hosts: how.hosts, capacity: capacity(&header) });
    }
    let failed = |what| move |error| PoolError::Access { place: meeting.to_string(), what, error };
    let metadata = meeting.file().and_then(|path| std::fs::metadata(path).ok());
    let is_empty = metadata.is_some_and(|found| found.is_file() && found.len() == 0);
    let opened = match place::open(meeting, Access::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !how.keep => place::make(meeting),
        opened => opened,
    };
    let place = match opened {
        // It was killed before it had written anything.
        Ok(place) if is_empty && !how.keep => {
            place.write(0, &vec![0; BLOCKS * SIZE]).map_err(failed("write"))?;
            place
        }
        opened => opened.map_err(|error| PoolError::Open { place: meeting.to_string(), error })?,
    };
    let blocks = match place.read(BLOCKS) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(PoolError::TooShort { place: meeting.to_string() });
        }
        read => read.map_err(failed("read"))?,
    };
    let known = block::decode::<Header>(&blocks[..SIZE]);
    let write = |header: &Header| place.write(0, &block::encode(header)).map_err(failed("write"));
    match known {
        Ok(known) if how.keep => {
            header.pool = known.pool;
            check_claims(meeting, &known, &header, &blocks)?;
            put(meeting, &*place, &blocks, 0, &block::encode(&header))?;
            // At a file a host may have confirmed one meanwhile.
            let after = place.read(BLOCKS).map_err(failed("read"))?;
            if let Err(error) = check_claims(meeting, &known, &header, &after) {
                write(&known)?;
                return Err(error);
            }
            return Ok(header);
        }
        Ok(header) if !how.force => return Err(PoolError::Exists { place: meeting.to_string(), header }),
        known => match (known.is_ok(), blocks.iter().any(|byte| *byte != 0)) {
            (false, true) if !how.force => return Err(PoolError::Used { place: meeting.to_string() }),
            (_, true) => place.write(0, &vec![0; BLOCKS * SIZE]).map_err(failed("write"))?,
            (_, false) => {}
        },
    }
    write(&header)?;
    Ok(header)
}

/// Writes blocks of the header or of claims, if the place can compare only if these still are as in `before`.
fn put(meeting: &Meeting, place: &dyn Place, before: &[u8], first: usize, bytes: &[u8]) -> Result<(), PoolError> {
    let written = match place::way(meeting) {
        Way::Try => place.write(first, bytes).map(|()| true),
        Way::Compare => place.write_if(before, first, bytes),
    };
    match written {
        Ok(true) => Ok(()),
        Ok(false) => Err(PoolError::Changed { place: meeting.to_string() }),
        Err(error) => Err(PoolError::Access { place: meeting.to_string(), what: "write", error }),
    }
}

/// Returns what hosts may reserve together in raw cost per second: the capacity without the requests by which they meet, and without the
/// default weight floor.
fn most(meeting: &Meeting, header: &Header) -> u64 {
    let requests = place::requests_of_period(meeting, header.hosts);
    let to_meet = meeting_rate(header.hosts, header.hosts, requests);
    let left = raw(Iops::from_milli(header.milli_iops.max(1))).saturating_sub(to_meet);
    left / 100 * (100 - WEIGHT_FLOOR_PERCENT)
}

/// Checks that what hosts have reserved fits another header of their pool.
fn check_claims(meeting: &Meeting, known: &Header, new: &Header, blocks: &[u8]) -> Result<(), PoolError> {
    let claims = Claims::read(&Header { hosts: block::HOSTS_MAX, ..known.clone() }, blocks);
    if let Some((host, why)) = claims.unreadable.first() {
        return Err(PoolError::UnreadableClaim { place: meeting.as_arguments(), host: *host, why: *why });
    }
    if let Some(claim) = claims.held.iter().find(|claim| claim.host > new.hosts && claim.reserved > 0) {
        return Err(PoolError::Claimed { place: meeting.as_arguments(), host: claim.host });
    }
    let (held, most) = (claims.sum(), most(meeting, new));
    if held > most || held > 0 && known.request_bytes != new.request_bytes {
        return Err(PoolError::Reserved { place: meeting.to_string(), iops: requests(held), capacity: capacity(new) });
    }
    Ok(())
}

/// Reads the header of a pool.
///
/// # Errors
/// [`PoolError`].
pub fn header(meeting: &Meeting) -> Result<Header, PoolError> {
    read(meeting, Access::Write).map(|(_, header, _)| header)
}

/// What to do if a host file states another capacity than the pool has.
#[must_use]
pub fn other_capacity(header: &Header, meeting: &Meeting) -> String {
    format!(
        "the pool has capacity = \"{}\", and the host file another one: write that, or change the pool with `sluice pool create {} --hosts {} \
         --capacity RATE --keep`",
        capacity(header),
        meeting.as_arguments(),
        header.hosts
    )
}

/// Reads the place, and again after all hosts that run have written.
///
/// # Errors
/// [`PoolError`].
pub fn look(meeting: &Meeting) -> Result<Look, PoolError> {
    let (place, header, before) = read(meeting, Access::Read)?;
    sleep(WATCH);
    let after =
        place.read(BLOCKS).map_err(|error| PoolError::Access { place: meeting.to_string(), what: "read", error })?;
    let usage = |host: Host, blocks: &[u8]| {
        let at = block::usage_of(host) * SIZE;
        block::decode::<Usage>(&blocks[at..at + SIZE])
    };
    let hosts = (1..=header.hosts).map(|host| {
        let (before, usage) = (usage(host, &before), usage(host, &after));
        HostLook { host, runs: usage.is_ok() && usage != before, usage }
    });
    Ok(Look { hosts: hosts.collect(), claims: Claims::read(&header, &after), header })
}

/// A place with a pool: its header, and all blocks.
type Opened = (Box<dyn Place>, Header, Vec<u8>);

fn read(meeting: &Meeting, access: Access) -> Result<Opened, PoolError> {
    let place = place::open(meeting, access).map_err(|error| PoolError::Open { place: meeting.to_string(), error })?;
    let blocks =
        place.read(BLOCKS).map_err(|error| PoolError::Access { place: meeting.to_string(), what: "read", error })?;
    let header = block::decode::<Header>(&blocks[..SIZE]);
    let header = header.map_err(|why| PoolError::NoPool { place: meeting.to_string(), why })?;
    Ok((place, header, blocks))
}

/// Removes what a host has written, so that others may reserve what it had.
///
/// # Errors
/// [`PoolError::Runs`] and others.
pub fn forget(meeting: &Meeting, host: Host) -> Result<(), PoolError> {
    let look = look(meeting)?;
    let hosts = look.header.hosts;
    let known = look.hosts.iter().find(|known| known.host == host).ok_or(PoolError::NoHost { host, hosts })?;
    if known.runs {
        return Err(PoolError::Runs { host });
    }
    let (place, _, before) = read(meeting, Access::Write)?;
    if Claims::read(&look.header, &before).of(host) != look.claims.of(host) {
        return Err(PoolError::Runs { host });
    }
    let zeroes = vec![0; 2 * SIZE];
    put(meeting, &*place, &before, block::claims_of(host), &zeroes)?;
    let cleared = place.write(block::usage_of(host), &zeroes[..SIZE]);
    cleared.map_err(|error| PoolError::Access { place: meeting.to_string(), what: "write", error })
}

/// What may keep hosts from meeting at a place that can be written, as far as this host can see it.
#[must_use]
pub fn warnings(meeting: &Meeting) -> Vec<String> {
    const NFS: u32 = 0x6969;
    const LOCAL: [(u32, &str); 4] =
        [(0xef53, "ext4"), (0x5846_5342, "XFS"), (0x9123_683e, "Btrfs"), (0x0102_1994, "tmpfs")];
    let Some(path) = meeting.file() else { return Vec::new() };
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let Ok(found) = rustix::fs::statfs(path) else { return Vec::new() };
    let kind = found.f_type as u32;
    let path = path.display();
    match LOCAL.iter().find(|(known, _)| *known == kind) {
        Some((_, name)) if is_file => vec![format!(
            "{path} is on a file system that one host mounts ({name}): other hosts reach it only if they share that; on a second host it \
             would be damaged"
        )],
        None if is_file && kind == NFS => {
            vec![format!(
                "{path} is on NFS: its server must export it with `sync`, or claims that were confirmed are lost with it"
            )]
        }
        _ => Vec::new(),
    }
}
