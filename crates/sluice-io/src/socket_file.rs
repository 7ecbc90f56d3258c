//! A listening Unix socket with its owner and permissions, in a folder that a tenant may write.
//!
//! `bind` makes the file of a socket, and only then can its owner and mode be changed by path. In a folder that a tenant
//! may write, the path can lead to another file by then: the tenant puts a symbolic link there and gets the file it names.
//! So the socket is made in a folder of mode 0700 beside its place, by the descriptor of that folder. It gets its mode and
//! owner there, listens, and is renamed into place. A rename does not follow links and replaces what a dead daemon left.
//! Where the place is that of another socket of this process, the two are exchanged, and back again if the change that the
//! new one belongs to is not made.
//!
//! The stated owner of a socket may write its folder, as libvirt's user may write libvirt's folders: replacing the socket
//! harms nobody but that owner. A folder that others may write is refused, unless it is sticky, as `/tmp` is.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::thread::UnshareFlags;

use crate::path_walk::{self, Exposed, Trust, WalkError};

/// Connections that wait to be accepted, as tokio and the standard library have it.
const BACKLOG: i32 = 1024;
/// Bytes of a socket's name that its address keeps for whoever lists sockets; the rest of the address is the folder.
const SHOWN_MAX: usize = 80;
/// Where /proc is mounted, the open files of this process.
const DESCRIPTORS: &str = "/proc/self/fd";
/// Names that are tried for the private folder, of which a tenant may take some.
const NAMES_MAX: u32 = 100;

/// A socket that cannot be made.
#[derive(Debug)]
pub enum SocketFileError {
    /// A process listens there.
    InUse,
    /// There is a file that is not a socket.
    NotASocket,
    /// Users that are not trusted may change the folder.
    Exposed(Exposed),
    /// A symbolic link in the path that such users may change.
    Link(PathBuf),
    /// The file cannot be made there.
    Folder(io::Error),
    /// The file cannot get its owner.
    Owner(io::Error),
}

impl From<WalkError> for SocketFileError {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::Link { link, .. } => SocketFileError::Link(link),
            WalkError::System(errno) => SocketFileError::Folder(errno.into()),
        }
    }
}

impl From<Errno> for SocketFileError {
    fn from(errno: Errno) -> Self {
        SocketFileError::Folder(errno.into())
    }
}

/// Which file it is: device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId(u64, u64);

/// The file of a listening socket. Dropping it removes the file, if it is still this socket's.
#[derive(Debug)]
pub struct SocketFile {
    folder: OwnedFd,
    name: OsString,
    id: FileId,
    /// Has the file that was there before, until this one is kept.
    displaced: Option<PrivateFolder>,
}

impl SocketFile {
    /// Which file it is.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Removes the file in whose place this one is; until then dropping this puts it back.
    pub fn keep(&mut self) {
        self.displaced = None;
    }

    fn is_in_place(&self) -> bool {
        let there = rustix::fs::statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        there.is_ok_and(|stat| id_of(&stat) == self.id)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.is_in_place() {
            return;
        }
        let _ = match self.displaced.take() {
            Some(private) => private.exchange(&self.name),
            None => rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty()),
        };
    }
}

/// Sets the umask of this process: what it makes from now on belongs to its user alone, unless it is given other permissions.
pub fn keep_new_files_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// A socket that listens and is not in its place yet. Dropping it removes it.
#[derive(Debug)]
pub struct Prepared {
    listener: UnixListener,
    folder: OwnedFd,
    name: OsString,
    id: FileId,
    private: PrivateFolder,
    /// The socket that is `ours` is at its place.
    replaces: bool,
}

impl Prepared {
    /// Puts the socket in its place. Replaces a socket at which no process listens, and the one that is `ours`, which comes
    /// back if the new one is dropped before it is kept.
    ///
    /// # Errors
    /// [`SocketFileError`]; nothing has changed then.
    pub fn place(self) -> Result<(UnixListener, SocketFile), SocketFileError> {
        let Prepared { listener, folder, name, id, private, replaces } = self;
        if replaces {
            private.exchange(&name)?;
            return Ok((listener, SocketFile { folder, name, id, displaced: Some(private) }));
        }
        private.move_to(&name)?;
        Ok((listener, SocketFile { folder, name, id, displaced: None }))
    }
}

/// Makes a socket for `path` that listens, does not block, and has its owner, group and mode before it can be reached there.
///
/// # Errors
/// [`SocketFileError`]; nothing has changed then. At the path is neither nothing, nor a socket at which no process listens, nor
/// the one that is `ours`.
pub fn prepare(
    path: &Path,
    owner: Option<u32>,
    group: Option<u32>,
    mode: u32,
    ours: Option<FileId>,
) -> Result<Prepared, SocketFileError> {
    let walked = path_walk::to_folder(path, &Trust::daemon().and(owner, group))?;
    if let Some(exposed) = walked.exposed {
        return Err(SocketFileError::Exposed(exposed));
    }
    let (folder, name) = (walked.folder, walked.name);
    let replaces = is_ours(&folder, &name, ours)?;
    let private = PrivateFolder::make(&folder, &name)?;
    let listener = private.listen(Mode::from_raw_mode(mode))?;
    let made = open(&private.itself, &private.socket)?;
    let (user, group) = (owner.map(Uid::from_raw), group.map(Gid::from_raw));
    let owned = rustix::fs::chownat(&made, "", user, group, AtFlags::EMPTY_PATH);
    owned.map_err(|errno| SocketFileError::Owner(errno.into()))?;
    let id = id_of(&rustix::fs::fstat(&made)?);
    Ok(Prepared { listener, folder, name, id, private, replaces })
}

/// Whether `ours` is there. Refuses everything else but a socket at which nobody listens.
fn is_ours(folder: &OwnedFd, name: &OsStr, ours: Option<FileId>) -> Result<bool, SocketFileError> {
    let file = match open(folder, name) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    };
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(SocketFileError::NotASocket);
    }
    if ours == Some(id_of(&stat)) {
        return Ok(true);
    }
    // Not blocking: a process that does not accept may have a full backlog.
    let probe = stream_socket()?;
    let connect = |address: &SocketAddrUnix| rustix::net::connect(&probe, address);
    match with_address(&in_proc(&file), folder, name, connect) {
        Err(Errno::CONNREFUSED) => Ok(false),
        Ok(()) if has_ended(&probe) => Ok(false),
        _ => Err(SocketFileError::InUse),
    }
}

/// Whether the process that listens at the other end has ended. A killed daemon whose disk hangs keeps its descriptors, and
/// so its listening sockets, until the kernel has completed its last request.
fn has_ended(probe: &OwnedFd) -> bool {
    let Ok(listener) = rustix::net::sockopt::socket_peercred(probe) else { return false };
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{}/stat", listener.pid.as_raw_pid())) else { return false };
    // `PID (NAME) STATE ...`; the name may have brackets of its own.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// The file itself, also if it is a symbolic link.
fn open(folder: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// The name that the kernel gives to an open file, whatever is renamed.
fn in_proc(file: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("{DESCRIPTORS}/{}", file.as_raw_fd()))
}

/// Calls `call` with an address of `name` in `folder`. Addresses hold paths, and a path of the host's may lead elsewhere by
/// now, so it is `in_proc`; where /proc is not mounted, a thread goes into the folder and calls with the name alone.
fn with_address<T: Send>(
    in_proc: &Path,
    folder: &OwnedFd,
    name: &OsStr,
    call: impl FnOnce(&SocketAddrUnix) -> Result<T, Errno> + Send,
) -> Result<T, Errno> {
    if rustix::fs::stat(DESCRIPTORS).is_ok() {
        return call(&SocketAddrUnix::new(in_proc)?);
    }
    let there = || {
        // SAFETY: the thread gets a working folder of its own; descriptors and memory stay shared.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }?;
        rustix::process::fchdir(folder)?;
        call(&SocketAddrUnix::new(name)?)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, there).map_err(|_| Errno::AGAIN)?;
        thread.join().expect("the calls do not panic")
    })
}

fn stream_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn id_of(stat: &Stat) -> FileId {
    FileId(stat.st_dev, stat.st_ino)
}

/// A folder of the daemon's own in a folder that others may write, for one socket. Dropping it removes both.
#[derive(Debug)]
struct PrivateFolder {
    parent: OwnedFd,
    name: String,
    itself: OwnedFd,
    /// The name of the socket.
    socket: OsString,
}

impl PrivateFolder {
    fn make(parent: &OwnedFd, socket: &OsStr) -> Result<Self, Errno> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let folder = rustix::io::fcntl_dupfd_cloexec(parent, 0)?;
        let socket = OsStr::from_bytes(&socket.as_bytes()[..socket.len().min(SHOWN_MAX)]).to_owned();
        for _ in 0..NAMES_MAX {
            let name = format!(".sluice-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            match rustix::fs::mkdirat(parent, &name, Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(errno) => return Err(errno),
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let itself = rustix::fs::openat(parent, &name, flags, Mode::empty())?;
            let stat = rustix::fs::fstat(&itself)?;
            // Whoever may write `parent` may have put another folder there.
            let ours = stat.st_uid == rustix::process::geteuid().as_raw();
            if ours && stat.st_mode & 0o777 == 0o700 {
                return Ok(PrivateFolder { parent: folder, name, itself, socket });
            }
        }
        Err(Errno::EXIST)
    }

    fn listen(&self, mode: Mode) -> Result<UnixListener, Errno> {
        let socket = stream_socket()?;
        // The file gets these permissions less the umask; without this it would get all of them.
        rustix::fs::fchmod(&socket, mode)?;
        let bind = |address: &SocketAddrUnix| rustix::net::bind(&socket, address);
        with_address(&in_proc(&self.itself).join(&self.socket), &self.itself, &self.socket, bind)?;
        rustix::fs::chmodat(&self.itself, &self.socket, mode, AtFlags::empty())?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(UnixListener::from(socket))
    }

    fn move_to(&self, name: &OsStr) -> Result<(), Errno> {
        rustix::fs::renameat(&self.itself, &self.socket, &self.parent, name)
    }

    /// The file here goes there, and the one there comes here.
    fn exchange(&self, name: &OsStr) -> Result<(), Errno> {
        rustix::fs::renameat_with(&self.itself, &self.socket, &self.parent, name, RenameFlags::EXCHANGE)
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.itself, &self.socket, AtFlags::empty());
        let _ = rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixStream;

    use tempfile::TempDir;

    use super::*;
    use crate::path_walk::beside;

    fn listen(
        path: &Path,
        owner: Option<u32>,
        group: Option<u32>,
        mode: u32,
        ours: Option<FileId>,
    ) -> Result<(UnixListener, SocketFile), SocketFileError> {
        prepare(path, owner, group, mode, ours)?.place()
    }

    /// A user that no file belongs to.
    const TENANT: u32 = 54_321;

    fn mode_of(path: &Path) -> (u32, u32) {
        let metadata = fs::symlink_metadata(path).unwrap();
        (metadata.mode() & 0o777, metadata.uid())
    }

    #[test]
    fn a_link_in_the_folder_of_a_tenant_got_the_mode_and_owner_of_the_socket() {
        let here = TempDir::new().unwrap();
        let secret = here.path().join("secret");
        fs::write(&secret, "").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let before = mode_of(&secret);
        let theirs = here.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        chown(&theirs, Some(TENANT), None).unwrap();
        let (path, link) = (theirs.join("a.sock"), theirs.join("link"));
        let replace = || {
            let _ = symlink(&secret, &link);
            if fs::symlink_metadata(&path).is_ok_and(|there| !there.is_symlink()) {
                let _ = fs::rename(&link, &path);
            }
        };
        beside(replace, || {
            for _ in 0..300 {
                drop(listen(&path, Some(TENANT), None, 0o666, None));
                assert_eq!(mode_of(&secret), before);
                let _ = fs::remove_file(&path);
            }
        });
    }

    #[test]
    fn a_socket_could_be_reached_before_it_had_its_mode_and_owner() {
        let here = TempDir::new().unwrap();
        let path = here.path().join("a.sock");
        let look = || {
            if let Ok(there) = fs::symlink_metadata(&path) {
                assert_eq!((there.mode() & 0o777, there.uid()), (0o620, TENANT));
                // It listens, too.
                let connected = UnixStream::connect(&path).map_err(|error| error.kind());
                assert!(matches!(connected, Ok(_) | Err(io::ErrorKind::NotFound)), "{connected:?}");
            }
        };
        beside(look, || {
            // Those that have lost their file go on listening: a connection that finds it a moment before is not refused.
            let listening = (0..300).map(|_| listen(&path, Some(TENANT), None, 0o620, None).unwrap().0);
            drop(listening.collect::<Vec<_>>());
        });
        assert_eq!(fs::read_dir(here.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn a_folder_that_strangers_may_write_is_refused() {
        let here = TempDir::new().unwrap();
        let open = here.path().join("open");
        fs::create_dir(&open).unwrap();
        let listen = |mode, owner| {
            fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
            listen(&open.join("a.sock"), owner, None, 0o600, None).map(drop)
        };
        assert!(matches!(listen(0o777, None), Err(SocketFileError::Exposed(_))));
        assert!(listen(0o1777, None).is_ok());
        chown(&open, Some(TENANT), None).unwrap();
        assert!(matches!(listen(0o755, None), Err(SocketFileError::Exposed(_))));
        assert!(listen(0o755, Some(TENANT)).is_ok());
        symlink(here.path(), open.join("link")).unwrap();
        let through = self::listen(&open.join("link/a.sock"), None, None, 0o600, None);
        assert!(matches!(through, Err(SocketFileError::Link(link)) if link == open.join("link")));
    }

    #[test]
    fn a_dead_daemons_socket_is_replaced_and_nothing_else() {
        let here = TempDir::new().unwrap();
        let path = here.path().join(format!("{}.sock", "n".repeat(90)));
        let listen = || listen(&path, None, None, 0o600, None);
        drop(UnixListener::bind(here.path().join("s")).unwrap());
        fs::rename(here.path().join("s"), &path).unwrap();
        let (listener, file) = listen().unwrap();
        assert!(matches!(listen(), Err(SocketFileError::InUse)));
        assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket(), "a refusal leaves it there");
        drop(listener);
        let (second, its_file) = listen().unwrap();
        drop(file);
        assert!(path.exists(), "the first one's end leaves the second one's file");
        drop((second, its_file));
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        assert!(matches!(listen(), Err(SocketFileError::NotASocket)));
        fs::remove_file(&path).unwrap();
        symlink(here.path().join("elsewhere"), &path).unwrap();
        assert!(matches!(listen(), Err(SocketFileError::NotASocket)));
        assert_eq!(fs::read_dir(here.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_socket_that_takes_the_place_of_ours_gives_it_back_unless_it_is_kept() {
        let here = TempDir::new().unwrap();
        let path = here.path().join("a.sock");
        let there = || fs::symlink_metadata(&path).map(|there| there.ino()).unwrap();
        let listen = |ours| listen(&path, None, None, 0o600, ours);
        let (listener, file) = listen(None).unwrap();
        let first = there();
        let new = listen(Some(file.id())).unwrap();
        assert_ne!(there(), first);
        assert!(matches!(listen(Some(file.id())), Err(SocketFileError::InUse)), "it has another's place now");
        drop(new);
        assert_eq!(there(), first, "nothing has changed");
        assert!(UnixStream::connect(&path).is_ok());
        let (second, mut kept) = listen(Some(file.id())).unwrap();
        kept.keep();
        drop((listener, file));
        assert_eq!(fs::read_dir(here.path()).unwrap().count(), 1);
        UnixStream::connect(&path).unwrap();
        second.accept().unwrap();
        drop((second, kept));
        assert_eq!(fs::read_dir(here.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_full_backlog_does_not_hold_up_the_one_who_asks() {
        let here = TempDir::new().unwrap();
        let path = here.path().join("a.sock");
        let socket = stream_socket().unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        assert!(matches!(listen(&path, None, None, 0o600, None), Err(SocketFileError::InUse)));
    }
}
