//! Reads from the mode and the access control list (ACL) of a folder which users other than its owner may use it.
//!
//! The mode bits of a folder with an ACL do not tell: the bits of the group are the ACL's mask. Example: `/images` is
//! root's with mode 0755, and `setfacl -m u:1000:rwx /images` makes it 0775. User 1000 may write there, and the folder's
//! group may not.
//!
//! - `system.posix_acl_access` states users and groups, each within the mask.
//! - `system.nfs4_acl` is the list of a file server with NFSv4 ([RFC 7530], section 6). Entries that deny are not
//!   counted, so more users may seem to have access than have it, and never fewer.
//!
//! [RFC 7530]: https://www.rfc-editor.org/rfc/rfc7530#section-6

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Stat, XattrFlags};
use rustix::io::Errno;

use crate::users;

/// Permission to create and remove entries.
const WRITE: u32 = 2;
/// Permission to reach the entries.
const ENTER: u32 = 1;
/// Permission to change the permissions or the owner of the folder, which a list of NFSv4 can give.
const TAKE: u32 = 8;

const POSIX_LIST: &str = "system.posix_acl_access";
const NFS_LIST: &str = "system.nfs4_acl";

/// Users whom one entry of a mode or an ACL names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The owner of the folder.
    Owner,
    /// A user, by number.
    User(u32),
    /// The members of a group, by number.
    Group(u32),
    /// A user or group of a file server that has no number here.
    Unknown,
    /// All other users.
    Others,
}

/// Permissions of the users of one entry: bits of a mode, of which [`WRITE`] and [`ENTER`] matter, and [`TAKE`].
type Entry = (Who, u32);

/// Permissions of a folder.
#[derive(Debug, PartialEq, Eq)]
pub struct FolderAccess {
    owner: u32,
    entries: Vec<Entry>,
}

impl FolderAccess {
    /// Reads the ACL of the folder that `path` leads to, and whose status is `stat`.
    ///
    /// # Errors
    /// The ACL exists and cannot be read.
    pub fn read(path: &Path, stat: &Stat) -> Result<Self, Errno> {
        let entries = if let Some(list) = attribute(path, POSIX_LIST)? {
            posix(&list, stat).ok_or(Errno::BADMSG)?
        } else if let Some(list) = attribute(path, NFS_LIST)? {
            nfs(&list, stat).ok_or(Errno::BADMSG)?
        } else {
            let [owner, group, others] = [6, 3, 0].map(|shift| stat.st_mode >> shift & 7);
            vec![(Who::Owner, owner), (Who::Group(stat.st_gid), group), (Who::Others, others)]
        };
        Ok(FolderAccess { owner: stat.st_uid, entries })
    }

    /// Returns those who may write to it and are not its owner, the widest first.
    pub(crate) fn writers(&self) -> impl Iterator<Item = Who> {
        self.others_with(WRITE | TAKE)
    }

    /// Returns those who are not its owner and may make themselves it, or give themselves any permission.
    pub(crate) fn takers(&self) -> impl Iterator<Item = Who> {
        self.others_with(TAKE)
    }

    fn others_with(&self, bits: u32) -> impl Iterator<Item = Who> {
        let found = self.entries.iter().rev().filter(move |(who, of)| *who != Who::Owner && of & bits != 0);
        found.map(|(who, _)| *who)
    }

    /// Whether a user with these groups may reach its entries.
    #[must_use]
    pub fn may_enter(&self, user: u32, groups: &[u32]) -> bool {
        self.allows(user, groups, ENTER)
    }

    fn allows(&self, user: u32, groups: &[u32], bit: u32) -> bool {
        let is_owner = user == self.owner;
        let of_user = |who: &Who| if is_owner { *who == Who::Owner } else { *who == Who::User(user) };
        let of_groups = |who: &Who| !is_owner && matches!(who, Who::Group(group) if groups.contains(group));
        // The first of these that has an entry decides.
        for applies in [&of_user as &dyn Fn(&Who) -> bool, &of_groups] {
            let mut entries = self.entries.iter().filter(|(who, _)| applies(who)).peekable();
            if entries.peek().is_some() {
                return entries.any(|(_, bits)| bits & bit != 0);
            }
        }
        self.entries.iter().any(|(who, bits)| *who == Who::Others && bits & bit != 0)
    }
}

/// Gives the file `to` the POSIX ACL of the file `from`, if that has one.
///
/// # Errors
/// The file system refuses.
pub fn copy_list(from: &Path, to: impl AsFd) -> Result<(), Errno> {
    let Some(list) = attribute(from, POSIX_LIST)? else { return Ok(()) };
    rustix::fs::fsetxattr(to, POSIX_LIST, &list, XattrFlags::empty())
}

/// Reads an extended attribute. Returns `None` if the file has none of that name, or its file system knows none.
fn attribute(path: &Path, name: &str) -> Result<Option<Vec<u8>>, Errno> {
    loop {
        let read = rustix::fs::getxattr_query(path, name).and_then(|len| {
            let mut value = vec![0; len];
            let len = rustix::fs::getxattr(path, name, value.as_mut_slice())?;
            value.truncate(len);
            Ok(value)
        });
        return match read {
            Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            // It has grown in between.
            Err(Errno::RANGE) => continue,
            Err(errno) => Err(errno),
        };
    }
}

/// Parses a list of POSIX: a version, then a tag, permissions and a number for each entry, in the order owner, users,
/// group of the folder, groups, mask, others. Returns `None` for another version or a cut list.
fn posix(list: &[u8], stat: &Stat) -> Option<Vec<Entry>> {
    const VERSION: u32 = 2;
    let (version, entries) = list.split_first_chunk()?;
    if u32::from_le_bytes(*version) != VERSION || !entries.len().is_multiple_of(8) {
        return None;
    }
    let mut mask = 7;
    let mut found = Vec::new();
    for entry in entries.chunks_exact(8) {
        let [tag, bits] = [0, 2].map(|at| u16::from_le_bytes([entry[at], entry[at + 1]]));
        let number = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let who = match tag {
            0x01 => Who::Owner,
            0x02 => Who::User(number),
            0x04 => Who::Group(stat.st_gid),
            0x08 => Who::Group(number),
            0x10 => {
                mask = u32::from(bits);
                continue;
            }
            0x20 => Who::Others,
            _ => return None,
        };
        found.push((who, u32::from(bits)));
    }
    for (_, bits) in found.iter_mut().filter(|(who, _)| !matches!(who, Who::Owner | Who::Others)) {
        *bits &= mask;
    }
    Some(found)
}

/// Parses a list of NFSv4 in its form on the wire. Returns `None` for a cut list.
fn nfs(list: &[u8], stat: &Stat) -> Option<Vec<Entry>> {
    const ALLOW: u32 = 0;
    const ONLY_FOR_NEW_FILES: u32 = 0x8;
    const IS_GROUP: u32 = 0x40;
    // Add a file, add a folder, delete a child.
    const WRITES: u32 = 0x2 | 0x4 | 0x40;
    const ENTERS: u32 = 0x20;
    // Change the list, change the owner.
    const TAKES: u32 = 0x4_0000 | 0x8_0000;

    let rest = &mut &*list;
    let mut found = Vec::new();
    for _ in 0..take_number(rest)? {
        let [kind, flags, mask, len] = [take_number(rest)?, take_number(rest)?, take_number(rest)?, take_number(rest)?];
        // The length is rounded up to words.
        let name = take(rest, len.checked_next_multiple_of(4)? as usize)?.get(..len as usize)?;
        if kind == ALLOW && flags & ONLY_FOR_NEW_FILES == 0 {
            let given = [(WRITES, WRITE), (ENTERS, ENTER), (TAKES, TAKE)].into_iter().filter(|(of, _)| mask & of != 0);
            let bits = given.fold(0, |bits, (_, bit)| bits | bit);
            found.push((named(name, flags & IS_GROUP != 0, stat), bits));
        }
    }
    Some(found)
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(taken)
}

fn take_number(rest: &mut &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(take(rest, 4)?.try_into().ok()?))
}

/// Finds whom an entry of NFSv4 names: `OWNER@`, `GROUP@`, `EVERYONE@`, or a name or number with a domain.
fn named(name: &[u8], is_group: bool, stat: &Stat) -> Who {
    match name {
        b"OWNER@" => return Who::Owner,
        b"GROUP@" => return Who::Group(stat.st_gid),
        b"EVERYONE@" => return Who::Others,
        _ => {}
    }
    let name = str::from_utf8(name).ok().and_then(|name| name.split('@').next()).unwrap_or_default();
    let who = if is_group { users::group(name).map(Who::Group) } else { users::user(name).map(Who::User) };
    who.unwrap_or(Who::Unknown)
}

/// For tests of every crate.
#[doc(hidden)]
pub mod testing {
    use super::*;

    /// Sets the POSIX ACL of a file: entries of tag, permissions and number in their order.
    ///
    /// # Panics
    /// The file system has no ACLs.
    pub fn set_posix_list(path: &Path, entries: &[(u16, u16, u32)]) {
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, bits, number) in entries {
            list.extend([tag.to_le_bytes(), bits.to_le_bytes()].concat());
            list.extend(number.to_le_bytes());
        }
        rustix::fs::setxattr(path, POSIX_LIST, &list, XattrFlags::empty()).unwrap();
    }

    /// Lets one user do everything in a folder in which all others may only read.
    ///
    /// # Panics
    /// The file system has no ACLs.
    pub fn let_write(path: &Path, user: u32) {
        let none = u32::MAX;
        let entries = [(0x01, 7, none), (0x02, 7, user), (0x04, 5, none), (0x10, 7, none), (0x20, 5, none)];
        set_posix_list(path, &entries);
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    const NONE: u32 = u32::MAX;

    fn read(path: &Path) -> FolderAccess {
        FolderAccess::read(path, &rustix::fs::stat(path).unwrap()).unwrap()
    }

    fn writers(entries: &[Entry]) -> Vec<Who> {
        FolderAccess { owner: 0, entries: entries.to_vec() }.writers().collect()
    }

    #[test]
    fn the_mode_decides_without_a_list() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let place = TempDir::new().unwrap();
        chown(place.path(), Some(7), Some(8)).unwrap();
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o1731)).unwrap();
        let access = read(place.path());
        assert_eq!(access.writers().collect::<Vec<_>>(), [Who::Group(8)]);
        let may = |user, groups: &[u32]| [WRITE, ENTER].map(|bit| access.allows(user, groups, bit));
        assert_eq!(may(7, &[]), [true, true]);
        assert_eq!(may(9, &[8]), [true, true]);
        assert_eq!(may(9, &[9]), [false, true]);
    }

    #[test]
    fn an_entry_counts_within_the_mask_and_the_group_bits_of_the_mode_are_no_entry() {
        let place = TempDir::new().unwrap();
        let set = |mask| {
            let entries = [(1, 7, NONE), (2, 7, 21), (2, 5, 22), (4, 5, NONE), (8, 7, 31), (0x10, mask, NONE)];
            testing::set_posix_list(place.path(), &[&entries[..], &[(0x20, 1, NONE)]].concat());
            read(place.path())
        };
        let access = set(7);
        assert_eq!(rustix::fs::stat(place.path()).unwrap().st_mode & 0o777, 0o771, "the folder's group may not write");
        assert_eq!(access.writers().collect::<Vec<_>>(), [Who::Group(31), Who::User(21)]);
        assert!(access.allows(21, &[], WRITE) && !access.allows(22, &[31], WRITE), "the entry of the user decides");
        assert!(access.allows(23, &[31], WRITE) && !access.allows(23, &[], WRITE));
        assert_eq!(set(5).writers().count(), 0);
    }

    /// A list as an NFSv4 server sends it.
    fn on_wire(entries: &[(u32, u32, u32, &str)]) -> Vec<u8> {
        let mut list = (entries.len() as u32).to_be_bytes().to_vec();
        for (kind, flags, mask, name) in entries {
            for word in [*kind, *flags, *mask, name.len() as u32] {
                list.extend(word.to_be_bytes());
            }
            list.extend(name.bytes());
            list.resize(list.len().next_multiple_of(4), 0);
        }
        list
    }

    #[test]
    fn a_list_of_nfs_names_those_who_may_write_besides_the_owner() {
        let place = TempDir::new().unwrap();
        let stat = rustix::fs::stat(place.path()).unwrap();
        let (all, read) = (0x1f_01ff, 0x12_00a9);
        // What a server makes of mode 0755.
        let plain = [(0, 0, all, "OWNER@"), (0, 0x40, read, "GROUP@"), (0, 0, read, "EVERYONE@")];
        assert_eq!(writers(&nfs(&on_wire(&plain), &stat).unwrap()), []);
        let cases = [
            ((0, 0, 0x2, "EVERYONE@"), Some(Who::Others)),
            ((0, 0x40, 0x40, "GROUP@"), Some(Who::Group(stat.st_gid))),
            ((0, 0, 0x4, "1000"), Some(Who::User(1000))),
            ((0, 0, 0x4_0000, "root@example.org"), Some(Who::User(0))),
            ((0, 0x40, 0x8_0000, "root@example.org"), Some(Who::Group(0))),
            ((0, 0, 0x2, "nobody-has-this-name@example.org"), Some(Who::Unknown)),
            ((0, 0x8, 0x2, "EVERYONE@"), None),
            ((1, 0, 0x2, "EVERYONE@"), None),
        ];
        for (entry, expected) in cases {
            let list = on_wire(&[&plain[..], &[entry]].concat());
            let entries = nfs(&list, &stat).unwrap();
            assert_eq!(writers(&entries), Vec::from_iter(expected), "{entry:?}");
            // The sticky bit does not keep these from it.
            let takes = entry.2 & 0xc_0000 != 0;
            let access = FolderAccess { owner: stat.st_uid, entries };
            assert_eq!(access.takers().next(), expected.filter(|_| takes), "{entry:?}");
        }
    }

    #[test]
    fn a_damaged_list_is_an_error_and_never_a_list_without_entries() {
        let place = TempDir::new().unwrap();
        let stat = rustix::fs::stat(place.path()).unwrap();
        let list = on_wire(&[(0, 0, 0x2, "EVERYONE@"), (0, 0, 0x2, "1000")]);
        for len in 0..list.len() {
            assert_eq!(nfs(&list[..len], &stat), None, "{len}");
        }
        let [mut too_long, mut too_many] = [list.clone(), list];
        too_long[16..20].fill(0xff);
        too_many[..4].fill(0xff);
        assert_eq!([nfs(&too_long, &stat), nfs(&too_many, &stat)], [None, None]);
        testing::let_write(place.path(), 21);
        let list = attribute(place.path(), POSIX_LIST).unwrap().unwrap();
        for len in (0..list.len()).filter(|len| len % 8 != 4) {
            assert_eq!(posix(&list[..len], &stat), None, "{len}");
        }
        let other_version = [&3_u32.to_le_bytes()[..], &list[4..]].concat();
        assert_eq!(posix(&other_version, &stat), None);
    }
}
