//! Opens the folder of a path without following links that a tenant may have changed.
//!
//! The daemon often runs as root and opens paths in folders that other users may write: an image in the folder of a VM,
//! a socket in the folder of a VMM. A user that may write a folder may put a symbolic link there at any moment, even
//! between a check and the use of the same path. So the path is walked one component at a time, each by the descriptor
//! of the previous folder. A symbolic link is followed only if all users that could have created it are trusted, by the
//! mode of its folder and by its access control list ([`crate::folder_access`]). The result is a descriptor of the last
//! folder, which later renames do not change.
//!
//! Example: `/dev/disk/by-id/x` leads to `../../sda`. Only root may write `/dev/disk/by-id`, so the link is followed.
//! In `/srv/tenant`, which belongs to user 1000, a link is rejected.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::by_descriptor::{in_proc, with_path};
use crate::folder_access::{FolderAccess, Who};

/// Maximum number of symbolic links in a path, the same as in the kernel.
const LINKS_MAX: usize = 40;

const STICKY: u32 = 0o1000;

/// The users and groups that may change what a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    users: Vec<u32>,
    groups: Vec<u32>,
}

impl Trust {
    /// Returns root, and the daemon's own user and group.
    #[must_use]
    pub fn daemon() -> Self {
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Trust { users: vec![0, user], groups: vec![0, group] }
    }

    /// Adds a user and a group.
    #[must_use]
    pub fn and(mut self, user: Option<u32>, group: Option<u32>) -> Self {
        self.users.extend(user);
        self.groups.extend(group);
        self
    }

    /// Whether a user is trusted.
    #[must_use]
    pub fn user(&self, user: u32) -> bool {
        self.users.contains(&user)
    }

    /// Returns an untrusted user or group that may create and remove any entry of a folder. In a sticky folder only the
    /// owner of the folder may, and who may make itself the owner.
    fn untrusted_writer(&self, folder: &OwnedFd, stat: &Stat) -> Result<Option<Stranger>, Errno> {
        if !self.user(stat.st_uid) {
            return Ok(Some(Stranger::User(stat.st_uid)));
        }
        let access = access_of(folder, stat)?;
        Ok(if stat.st_mode & STICKY == 0 { self.first(access.writers()) } else { self.first(access.takers()) })
    }

    /// Returns an untrusted user or group that may create entries of a folder and is not its owner.
    fn named_writer(&self, folder: &OwnedFd, stat: &Stat) -> Result<Option<Stranger>, Errno> {
        Ok(self.first(access_of(folder, stat)?.writers()))
    }

    fn first(&self, mut of: impl Iterator<Item = Who>) -> Option<Stranger> {
        of.find_map(|who| self.stranger(who))
    }

    fn stranger(&self, who: Who) -> Option<Stranger> {
        match who {
            Who::Owner => None,
            Who::User(user) => (!self.user(user)).then_some(Stranger::User(user)),
            Who::Group(group) => (!self.groups.contains(&group)).then_some(Stranger::Group(group)),
            Who::Unknown => Some(Stranger::Unknown),
            Who::Others => Some(Stranger::Anyone),
        }
    }

    /// Returns an untrusted user or group that may replace `entry` of `folder`.
    fn replacer(&self, folder: &OwnedFd, stat: &Stat, entry: &Stat) -> Result<Option<Stranger>, Errno> {
        let by = self.untrusted_writer(folder, stat)?;
        if by.is_some() || stat.st_mode & STICKY == 0 || self.user(entry.st_uid) {
            return Ok(by);
        }
        // In a sticky folder the owner of the entry may, if it may write there.
        let may_write = self.named_writer(folder, stat)?.is_some();
        Ok(may_write.then_some(Stranger::User(entry.st_uid)))
    }
}

fn access_of(folder: &OwnedFd, stat: &Stat) -> Result<FolderAccess, Errno> {
    with_path(&in_proc(folder), folder, OsStr::new("."), |path: &Path| FolderAccess::read(path, stat))
}

/// A user or group outside of a [`Trust`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stranger {
    /// A user, by number.
    User(u32),
    /// The members of a group, by number.
    Group(u32),
    /// A user or group of a file server that this host does not know.
    Unknown,
    /// Every user.
    Anyone,
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stranger::User(user) => write!(f, "user {user}"),
            Stranger::Group(group) => write!(f, "group {group}"),
            Stranger::Unknown => f.write_str("a user or group that only the file server knows"),
            Stranger::Anyone => f.write_str("every user"),
        }
    }
}

/// A folder of the path that untrusted users may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exposed {
    pub folder: PathBuf,
    /// A user or group that may change it.
    pub by: Stranger,
}

/// Why a path cannot be walked.
#[derive(Debug)]
pub enum WalkError {
    /// A symbolic link that untrusted users may change.
    Link {
        link: PathBuf,
        /// A user or group that may change it.
        by: Stranger,
    },
    /// A system call failed.
    System(Errno),
}

impl From<Errno> for WalkError {
    fn from(errno: Errno) -> Self {
        WalkError::System(errno)
    }
}

/// The last folder of a path and the name in it.
#[derive(Debug)]
pub struct Walked {
    /// Opened with `O_PATH`.
    pub folder: OwnedFd,
    /// The last component, which need not exist.
    pub name: OsString,
    /// The first folder of the path that untrusted users may change, including the last one.
    pub exposed: Option<Exposed>,
}

/// Walks to the folder of the absolute path `path`. Does not look at the last component.
///
/// # Errors
/// [`WalkError`]; `EINVAL` for a path without a last component.
pub fn to_folder(path: &Path, trust: &Trust) -> Result<Walked, WalkError> {
    let mut walk = Walk::start(path, trust)?;
    let name = walk.rest.pop_back().ok_or(Errno::INVAL)?;
    while let Some(next) = walk.rest.pop_front() {
        walk.enter(&next)?;
    }
    if walk.exposed.is_none() {
        let by = trust.untrusted_writer(&walk.folder, &walk.stat)?;
        walk.note_exposure(by);
    }
    let exposed = walk.exposed;
    Ok(Walked { folder: walk.folder, name, exposed })
}

/// A file that a path leads to, which is not a symbolic link.
#[derive(Debug)]
pub struct Found {
    folder: OwnedFd,
    name: OsString,
    /// Opened with `O_PATH`: it keeps the inode, so that no other file gets its number.
    file: OwnedFd,
    stat: Stat,
}

/// Finds the file that the absolute path `path` leads to, through symbolic links that only trusted users can change.
///
/// # Errors
/// [`WalkError`].
pub fn to_file(path: &Path, trust: &Trust) -> Result<Found, WalkError> {
    let mut walk = Walk::start(path, trust)?;
    loop {
        let Some(next) = walk.rest.pop_front() else { return Ok(Found::look(walk.folder, OsString::from("."))?) };
        if !walk.rest.is_empty() {
            walk.enter(&next)?;
            continue;
        }
        let found = Found::look(walk.folder.try_clone().map_err(|_| Errno::MFILE)?, next)?;
        if FileType::from_raw_mode(found.stat.st_mode) != FileType::Symlink {
            return Ok(found);
        }
        walk.follow(&found.name)?;
    }
}

impl Found {
    fn look(folder: OwnedFd, name: OsString) -> Result<Self, Errno> {
        let file = rustix::fs::openat(&folder, &name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, NO_MODE)?;
        let stat = rustix::fs::fstat(&file)?;
        Ok(Found { folder, name, file, stat })
    }

    /// Returns its status.
    #[must_use]
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Returns its descriptor, which was opened with `O_PATH`.
    #[must_use]
    pub fn path_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Opens the file. Does not block if a pipe has replaced it.
    ///
    /// # Errors
    /// `ESTALE` if another file has replaced it, otherwise the error of the system call.
    pub fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let opened = rustix::fs::openat(&self.folder, &self.name, flags, NO_MODE);
        let opened = opened.map_err(|errno| if errno == Errno::LOOP { Errno::STALE } else { errno })?;
        let stat = rustix::fs::fstat(&opened)?;
        if (stat.st_dev, stat.st_ino) != (self.stat.st_dev, self.stat.st_ino) {
            return Err(Errno::STALE);
        }
        rustix::fs::fcntl_setfl(&opened, rustix::fs::fcntl_getfl(&opened)? - OFlags::NONBLOCK)?;
        Ok(opened)
    }
}

const NO_MODE: Mode = Mode::empty();

/// State of a walk.
struct Walk<'a> {
    trust: &'a Trust,
    folder: OwnedFd,
    stat: Stat,
    /// Path of the current folder, for messages.
    at: PathBuf,
    rest: VecDeque<OsString>,
    links: usize,
    exposed: Option<Exposed>,
}

impl<'a> Walk<'a> {
    fn start(path: &Path, trust: &'a Trust) -> Result<Self, Errno> {
        let folder = root()?;
        let stat = rustix::fs::fstat(&folder)?;
        let rest = components(path);
        Ok(Walk { trust, folder, stat, at: PathBuf::from("/"), rest, links: 0, exposed: None })
    }

    /// Enters a folder, or follows a symbolic link to one.
    fn enter(&mut self, name: &OsStr) -> Result<(), WalkError> {
        // Opened as a component in the middle of a path, so that an automounter mounts the file system.
        let inside = Path::new(name).join(".");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::openat2(&self.folder, &inside, flags, NO_MODE, ResolveFlags::NO_SYMLINKS) {
            Ok(folder) => {
                let stat = rustix::fs::fstat(&folder)?;
                self.look_for_exposure(&stat)?;
                (self.folder, self.stat) = (folder, stat);
                self.at.push(name);
                Ok(())
            }
            Err(Errno::LOOP) => self.follow(name),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Notes who may replace `entry` of the current folder, unless the path is exposed already.
    fn look_for_exposure(&mut self, entry: &Stat) -> Result<(), Errno> {
        if self.exposed.is_none() {
            let by = self.trust.replacer(&self.folder, &self.stat, entry)?;
            self.note_exposure(by);
        }
        Ok(())
    }

    fn note_exposure(&mut self, by: Option<Stranger>) {
        self.exposed = by.map(|by| Exposed { folder: self.at.clone(), by });
    }

    fn follow(&mut self, name: &OsStr) -> Result<(), WalkError> {
        let link = rustix::fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        self.look_for_exposure(&link)?;
        if let Some(Exposed { by, .. }) = self.exposed {
            return Err(WalkError::Link { link: self.at.join(name), by });
        }
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        let target = rustix::fs::readlinkat(&self.folder, name, Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            self.folder = root()?;
            self.stat = rustix::fs::fstat(&self.folder)?;
            self.at = PathBuf::from("/");
        }
        for component in components(&target).into_iter().rev() {
            self.rest.push_front(component);
        }
        Ok(())
    }
}

fn root() -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, NO_MODE)
}

/// Returns the names in a path. `..` is kept, because its meaning depends on the links before it.
fn components(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    names.map(|part| part.as_os_str().to_owned()).collect()
}

/// Runs `work` while another thread repeats `tenant`.
#[cfg(test)]
pub(crate) fn run_concurrently(tenant: impl Fn() + Sync, work: impl FnOnce()) {
    use std::sync::atomic::{AtomicBool, Ordering};

    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                tenant();
            }
        });
        // Also if `work` panics.
        let _end = End(&done);
        work();
    });
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    use tempfile::TempDir;

    use super::*;
    use crate::folder_access;

    /// A user that owns no file.
    const TENANT: u32 = 54_321;

    fn folder(parent: &Path, name: &str, owner: u32, mode: u32) -> PathBuf {
        let path = parent.join(name);
        fs::create_dir(&path).unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn inode(path: &Path) -> Result<u64, WalkError> {
        Ok(to_file(path, &Trust::daemon())?.stat().st_ino)
    }

    #[test]
    fn links_are_followed_where_only_trusted_users_can_change_them() {
        let here = TempDir::new().unwrap();
        let file = here.path().join("file");
        fs::write(&file, "").unwrap();
        let wanted = fs::metadata(&file).unwrap().ino();
        let inner = folder(here.path(), "inner", 0, 0o755);
        symlink(&file, here.path().join("absolute")).unwrap();
        symlink("../file", inner.join("relative")).unwrap();
        symlink("inner", here.path().join("folder")).unwrap();
        symlink("folder/relative", here.path().join("chain")).unwrap();
        symlink("loop", here.path().join("loop")).unwrap();
        for name in ["file", "absolute", "inner/relative", "folder/relative", "chain", "inner/../file"] {
            assert_eq!(inode(&here.path().join(name)).unwrap(), wanted, "{name}");
        }
        assert!(matches!(inode(&here.path().join("loop")), Err(WalkError::System(Errno::LOOP))));
        assert!(matches!(inode(&here.path().join("none")), Err(WalkError::System(Errno::NOENT))));
        assert!(matches!(inode(&here.path().join("file/x")), Err(WalkError::System(Errno::NOTDIR))));
    }

    #[test]
    fn a_file_that_was_replaced_after_the_walk_is_not_opened() {
        let here = TempDir::new().unwrap();
        let [path, other] = ["path", "other"].map(|name| here.path().join(name));
        fs::write(&path, "").unwrap();
        let found = to_file(&path, &Trust::daemon()).unwrap();
        let opened = found.open(OFlags::RDONLY).unwrap();
        assert!(!rustix::fs::fcntl_getfl(&opened).unwrap().contains(OFlags::NONBLOCK), "later I/O blocks");
        drop(opened);
        let replace = |how: &dyn Fn()| {
            how();
            fs::rename(&other, &path).unwrap();
            found.open(OFlags::RDONLY).unwrap_err()
        };
        assert_eq!(replace(&|| fs::write(&other, "").unwrap()), Errno::STALE);
        assert_eq!(replace(&|| symlink("/etc/passwd", &other).unwrap()), Errno::STALE);
        let pipe = || rustix::fs::mknodat(CWD, &other, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(replace(&pipe), Errno::STALE, "opening did not wait for a writer");
    }

    #[test]
    fn links_that_a_tenant_can_change_are_refused() {
        let here = TempDir::new().unwrap();
        let secret = here.path().join("secret");
        fs::write(&secret, "").unwrap();
        let cases = [
            ("owned", TENANT, 0o755, Stranger::User(TENANT)),
            ("group", 0, 0o775, Stranger::Group(TENANT)),
            ("open", 0, 0o777, Stranger::Anyone),
            ("sticky", 0, 0o1777, Stranger::User(TENANT)),
            ("listed", 0, 0o755, Stranger::User(TENANT)),
            ("listed and sticky", 0, 0o1755, Stranger::User(TENANT)),
        ];
        for (name, owner, mode, expected) in cases {
            let path = folder(here.path(), name, owner, mode);
            chown(&path, None, Some(TENANT)).unwrap();
            if name.starts_with("listed") {
                folder_access::testing::let_write(&path, TENANT);
            }
            let link = path.join("link");
            symlink(&secret, &link).unwrap();
            std::os::unix::fs::lchown(&link, Some(TENANT), Some(TENANT)).unwrap();
            let Err(WalkError::Link { link: found, by }) = inode(&link) else { panic!("{name} was followed") };
            assert_eq!((found, by), (link, expected));
            let below = folder(&path, "below", 0, 0o755);
            symlink(&secret, below.join("link")).unwrap();
            let refused = inode(&below.join("link"));
            // Only root can rename root's folder in a sticky one.
            assert_eq!(refused.is_err(), !name.ends_with("sticky"), "{name}");
        }
    }

    #[test]
    fn users_that_may_change_a_folder_are_found() {
        let here = TempDir::new().unwrap();
        let exposed = |path: &Path, trust: &Trust| to_folder(&path.join("a.sock"), trust).unwrap().exposed;
        let open = folder(here.path(), "open", 0, 0o777);
        assert_eq!(exposed(&open, &Trust::daemon()), Some(Exposed { folder: open.clone(), by: Stranger::Anyone }));
        let deeper = folder(&open, "deeper", 0, 0o700);
        assert_eq!(exposed(&deeper, &Trust::daemon()), Some(Exposed { folder: open, by: Stranger::Anyone }));
        let theirs = folder(here.path(), "theirs", TENANT, 0o770);
        let by = Stranger::User(TENANT);
        assert_eq!(exposed(&theirs, &Trust::daemon()), Some(Exposed { folder: theirs.clone(), by }));
        let both = Trust::daemon().and(Some(TENANT), Some(TENANT));
        assert_eq!(exposed(&theirs, &both), None, "its configured owner and group may write there");
        assert_eq!(
            exposed(&theirs, &Trust::daemon().and(Some(TENANT), None)).unwrap().by,
            Stranger::Group(TENANT),
            "the group is not stated"
        );
        let sticky = folder(here.path(), "sticky", 0, 0o1777);
        assert_eq!(exposed(&sticky, &Trust::daemon()), None);
        // `setfacl -m u:54321:rwx` on a folder of root with mode 0755.
        let listed = folder(here.path(), "listed", 0, 0o755);
        folder_access::testing::let_write(&listed, TENANT);
        assert_eq!(exposed(&listed, &Trust::daemon()).unwrap().by, Stranger::User(TENANT));
        assert_eq!(exposed(&listed, &Trust::daemon().and(Some(TENANT), None)), None, "the group may only read");
        let below = folder(&listed, "below", 0, 0o755);
        assert_eq!(exposed(&below, &Trust::daemon()).unwrap().folder, listed);
        folder_access::testing::let_write(&sticky, TENANT);
        fs::set_permissions(&sticky, fs::Permissions::from_mode(0o1755)).unwrap();
        assert_eq!(exposed(&sticky, &Trust::daemon()), None);
    }
}
