//! A listening Unix socket with its owner and permissions, in a folder that a tenant may write.
//!
//! `bind` creates the file of a socket, and only then can its owner and mode be changed by path. In a folder that a tenant may write, the path can lead to another file by then: the tenant puts a symbolic link there and gets the file it names. So the socket is created in a private folder of mode 0700 in the same folder, by the descriptor of the private folder. It gets its mode and owner there, starts to listen, and is renamed to its final path. A rename does not follow links, and replaces the file of a dead daemon. If another socket of this process has that path, the two files are exchanged, and exchanged back if the change is not committed.
//!
//! The configured owner of a socket may write its folder, as libvirt's user may write libvirt's folders: only that
//! owner could be harmed by a replaced socket. A folder that other users may write is rejected, unless it is sticky, as
//! `/tmp` is.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::by_descriptor::{in_proc, with_path};
use crate::outside;
use crate::path_walk::{self, Exposed, Trust, WalkError};
use crate::rights;

/// Length of the queue of connections that are not accepted yet, as in tokio and the standard library.
const BACKLOG: i32 = 1024;
/// Maximum number of bytes of a socket's name in its address, for tools that list sockets. The rest of the address is
/// the folder.
const SHOWN_MAX: usize = 80;
/// Number of names that are tried for the private folder; a tenant may have taken some.
const NAMES_MAX: u32 = 100;

/// Why a socket cannot be created.
#[derive(Debug)]
pub enum SocketFileError {
    /// Another process listens there.
    InUse,
    /// The path is a file that is not a socket.
    NotASocket,
    /// Untrusted users may change the folder.
    Exposed(Exposed),
    /// The path contains a symbolic link that untrusted users may change.
    Link(PathBuf),
    /// The file cannot be created there.
    Folder(io::Error),
    /// The owner of the file cannot be set.
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

/// Identity of a file: device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId(u64, u64);

/// The file of a listening socket. Dropping it removes the file, if it is still this socket's.
#[derive(Debug)]
pub struct SocketFile {
    folder: OwnedFd,
    name: OsString,
    id: FileId,
    /// Contains the previous file until this one is kept.
    displaced: Option<PrivateFolder>,
}

impl SocketFile {
    /// Returns the identity of the file.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Removes the previous file. Without this call, dropping `self` restores it.
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

/// Sets the umask of this process, so that new files belong to its user alone unless they are given other permissions.
pub fn keep_new_files_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// A listening socket without its final path. Dropping it removes it.
#[derive(Debug)]
pub struct Prepared {
    listener: UnixListener,
    folder: OwnedFd,
    name: OsString,
    id: FileId,
    private: PrivateFolder,
    /// Whether the socket that is `ours` has the path.
    replaces: bool,
}

impl Prepared {
    /// Gives the socket its final path. Replaces a socket at which no process listens, and the one that is `ours`,
    /// which is restored if the new one is dropped before it is kept.
    ///
    /// # Errors
    /// [`SocketFileError`]; then nothing has changed.
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

/// Creates a listening, non-blocking socket for `path`, which has its owner, group and mode before it can be reached
/// there.
///
/// # Errors
/// [`SocketFileError`]; then nothing has changed. The path must not exist, or be a socket at which no process listens,
/// or the one that is `ours`.
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
    let replaces = is_ours(path, &folder, &name, ours)?;
    let private = PrivateFolder::make(&folder, &name)?;
    let listener = private.listen(Mode::from_raw_mode(mode))?;
    let made = open(&private.itself, &private.socket)?;
    let (user, group) = (owner.map(Uid::from_raw), group.map(Gid::from_raw));
    let owned = rustix::fs::chownat(&made, "", user, group, AtFlags::EMPTY_PATH);
    owned.map_err(|errno| SocketFileError::Owner(errno.into()))?;
    let id = id_of(&rustix::fs::fstat(&made)?);
    Ok(Prepared { listener, folder, name, id, private, replaces })
}

/// Whether the path is the socket that is `ours`. Fails if it is anything else than a socket at which no process
/// listens.
fn is_ours(path: &Path, folder: &OwnedFd, name: &OsStr, ours: Option<FileId>) -> Result<bool, SocketFileError> {
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
    let is_used = match outside::get() {
        Some(outside) => outside.listens(path),
        None => answers(folder, name, &file),
    };
    if is_used { Err(SocketFileError::InUse) } else { Ok(false) }
}

/// Whether a process listens at the socket at `path`, or nobody can tell.
#[must_use]
pub fn listens(path: &Path) -> bool {
    let Ok(walked) = path_walk::to_folder(path, &Trust::daemon()) else { return true };
    open(&walked.folder, &walked.name).map_or(true, |file| answers(&walked.folder, &walked.name, &file))
}

/// Whether a process listens at a socket.
fn answers(folder: &OwnedFd, name: &OsStr, file: &OwnedFd) -> bool {
    // Non-blocking, because a process that does not accept may have a full backlog.
    let Ok(probe) = stream_socket() else { return true };
    let connect = |address: &SocketAddrUnix| rustix::net::connect(&probe, address);
    match with_address(&in_proc(file), folder, name, connect) {
        Err(Errno::CONNREFUSED) => false,
        Ok(()) => !has_ended(&probe),
        Err(_) => true,
    }
}

/// Whether the process that listens at the other end has ended. A killed daemon whose disk hangs keeps its descriptors,
/// and so its listening sockets, until the kernel has completed its last request.
fn has_ended(probe: &OwnedFd) -> bool {
    let Ok(listener) = rustix::net::sockopt::socket_peercred(probe) else { return false };
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{}/stat", listener.pid.as_raw_pid())) else { return false };
    // `PID (NAME) STATE ...`; the name may contain brackets.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Opens the file itself, even if it is a symbolic link.
fn open(folder: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Calls `call` with an address of `name` in `folder`. An address contains a path, which is `in_proc`.
fn with_address<T: Send>(
    in_proc: &Path,
    folder: &OwnedFd,
    name: &OsStr,
    call: impl FnOnce(&SocketAddrUnix) -> Result<T, Errno> + Send,
) -> Result<T, Errno> {
    with_path(in_proc, folder, name, |path| call(&SocketAddrUnix::new(path)?))
}

fn stream_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn id_of(stat: &Stat) -> FileId {
    FileId(stat.st_dev, stat.st_ino)
}

/// A private folder for one socket, in a folder that others may write. Dropping it removes both.
#[derive(Debug)]
struct PrivateFolder {
    parent: OwnedFd,
    name: String,
    itself: OwnedFd,
    /// Name of the socket.
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
            // A user that may write `parent` may have put another folder there.
            let ours = stat.st_uid == rustix::process::geteuid().as_raw();
            if ours && stat.st_mode & 0o777 == 0o700 {
                return Ok(PrivateFolder { parent: folder, name, itself, socket });
            }
        }
        Err(Errno::EXIST)
    }

    fn listen(&self, mode: Mode) -> Result<UnixListener, Errno> {
        let socket = stream_socket()?;
        // The file gets these permissions without those of the umask; otherwise it would get all of them.
        rustix::fs::fchmod(&socket, mode)?;
        let bind = |address: &SocketAddrUnix| rustix::net::bind(&socket, address);
        with_address(&in_proc(&self.itself).join(&self.socket), &self.itself, &self.socket, bind)?;
        rustix::fs::chmodat(&self.itself, &self.socket, mode, AtFlags::empty())?;
        // An old kernel has no such option; `sluice doctor` says so.
        let _ = rights::allow(&socket, false);
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(UnixListener::from(socket))
    }

    fn move_to(&self, name: &OsStr) -> Result<(), Errno> {
        rustix::fs::renameat(&self.itself, &self.socket, &self.parent, name)
    }

    /// Exchanges the file in the private folder with the one at `name`.
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
    use crate::folder_access;
    use crate::path_walk::{Stranger, run_concurrently};

    fn listen(
        path: &Path,
        owner: Option<u32>,
        group: Option<u32>,
        mode: u32,
        ours: Option<FileId>,
    ) -> Result<(UnixListener, SocketFile), SocketFileError> {
        prepare(path, owner, group, mode, ours)?.place()
    }

    /// A user that owns no file.
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
        run_concurrently(replace, || {
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
                // It also listens.
                let connected = UnixStream::connect(&path).map_err(|error| error.kind());
                assert!(matches!(connected, Ok(_) | Err(io::ErrorKind::NotFound)), "{connected:?}");
            }
        };
        run_concurrently(look, || {
            // Sockets without their file continue to listen: a connection that has just found the file is not refused.
            let listening = (0..300).map(|_| listen(&path, Some(TENANT), None, 0o620, None).unwrap().0);
            drop(listening.collect::<Vec<_>>());
        });
        assert_eq!(fs::read_dir(here.path()).unwrap().count(), 0, "no file is left");
    }

    #[test]
    fn a_folder_that_untrusted_users_may_write_is_rejected() {
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
        chown(&open, Some(0), None).unwrap();
        folder_access::testing::let_write(&open, TENANT);
        let by_list = self::listen(&open.join("a.sock"), None, None, 0o600, None);
        let Err(SocketFileError::Exposed(Exposed { by, .. })) = by_list else { panic!("the ACL was not read") };
        assert_eq!(by, Stranger::User(TENANT));
        assert!(self::listen(&open.join("a.sock"), Some(TENANT), None, 0o600, None).is_ok());
        symlink(here.path(), open.join("link")).unwrap();
        let through = self::listen(&open.join("link/a.sock"), None, None, 0o600, None);
        assert!(matches!(through, Err(SocketFileError::Link(link)) if link == open.join("link")));
    }

    #[test]
    fn only_the_socket_of_a_dead_daemon_is_replaced() {
        let here = TempDir::new().unwrap();
        let path = here.path().join(format!("{}.sock", "n".repeat(90)));
        let listen = || listen(&path, None, None, 0o600, None);
        drop(UnixListener::bind(here.path().join("s")).unwrap());
        fs::rename(here.path().join("s"), &path).unwrap();
        let (listener, file) = listen().unwrap();
        assert!(matches!(listen(), Err(SocketFileError::InUse)));
        assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket(), "a rejection leaves the file there");
        drop(listener);
        let (second, its_file) = listen().unwrap();
        drop(file);
        assert!(path.exists(), "the end of the first leaves the file of the second");
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
    fn a_socket_that_replaces_ours_restores_it_unless_it_is_kept() {
        let here = TempDir::new().unwrap();
        let path = here.path().join("a.sock");
        let there = || fs::symlink_metadata(&path).map(|there| there.ino()).unwrap();
        let listen = |ours| listen(&path, None, None, 0o600, ours);
        let (listener, file) = listen(None).unwrap();
        let first = there();
        let new = listen(Some(file.id())).unwrap();
        assert_ne!(there(), first);
        assert!(
            matches!(listen(Some(file.id())), Err(SocketFileError::InUse)),
            "the path belongs to another socket now"
        );
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
    fn a_full_backlog_does_not_block_the_check() {
        let here = TempDir::new().unwrap();
        let path = here.path().join("a.sock");
        let socket = stream_socket().unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        assert!(matches!(listen(&path, None, None, 0o600, None), Err(SocketFileError::InUse)));
    }
}
