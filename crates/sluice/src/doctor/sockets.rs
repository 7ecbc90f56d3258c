//! Whether the user of libvirt's VMs can connect to the sockets of the host file.

use std::path::Path;

use sluice_config::{ListenAddress, Protocol};
use sluice_io::folder_access::FolderAccess;

use super::Subject;
use sluice_daemon::findings::{Finding, Level};

pub(super) const NAME: &str = "sockets";

/// The users under which libvirt runs QEMU by default: on Debian and Ubuntu, and on Fedora, RHEL and SUSE.
const USERS: [&str; 2] = ["libvirt-qemu", "qemu"];

/// A user with its groups.
struct User {
    name: String,
    uid: u32,
    /// The groups with their names.
    groups: Vec<(u32, String)>,
}

pub(super) fn run(subject: &Subject) -> Vec<Finding> {
    let (Some(host), Some(user)) = (&subject.host, libvirt_user(subject)) else { return Vec::new() };
    let volumes = host.vms.values().flat_map(|vm| vm.volumes.values().map(move |volume| (vm, volume)));
    let mut found = Vec::new();
    for (vm, volume) in volumes {
        let ListenAddress::Unix { path, owner, group, mode } = &volume.export.endpoint else { continue };
        if !may_connect(&user, owner.as_deref(), group.as_deref(), *mode) {
            let kind = if volume.export.protocol == Protocol::Nbd { "NBD" } else { "vhost-user" };
            let text = format!(
                "libvirt runs QEMU as {}, which cannot connect to the {kind} socket {}",
                user.name,
                path.display()
            );
            let fix = format!(
                "owner = \"{}\" in the export of the volume, or a group and a mode that allow it to write",
                user.name
            );
            let about = format!("volume {}/{}", vm.name, volume.name);
            found.push(Finding::new(Level::Warning, NAME, about, text).fix(fix));
        } else if let Some(folder) = closed_folder(subject, &user, path) {
            let text = format!("{} cannot enter {folder}, in which its socket is", user.name);
            let about = format!("volume {}/{}", vm.name, volume.name);
            found.push(Finding::new(Level::Warning, NAME, about, text).fix(format!("chmod o+x {folder}")));
        }
    }
    found
}

/// The user of `qemu.conf`, or of the distribution; `None` if libvirt is not installed, or QEMU runs as root.
fn libvirt_user(subject: &Subject) -> Option<User> {
    let conf = subject.read("etc/libvirt/qemu.conf")?;
    let of_conf = conf.lines().find_map(|line| {
        let value = line.trim().strip_prefix("user")?.trim_start().strip_prefix('=')?;
        Some(value.trim().trim_matches('"').trim_start_matches('+').to_owned())
    });
    let passwd = subject.read("etc/passwd").unwrap_or_default();
    let entry = |name: &str| {
        let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
        fields.into_iter().find(|fields| fields.len() > 3 && (fields[0] == name || fields[2] == name))
    };
    let fields = match of_conf {
        Some(name) => entry(&name)?,
        None => USERS.iter().find_map(|name| entry(name))?,
    };
    let (name, uid, primary) = (fields[0].to_owned(), fields[2].parse().ok()?, fields[3]);
    if uid == 0 {
        return None;
    }
    let group = subject.read("etc/group").unwrap_or_default();
    let groups = group.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let is_in = *fields.get(2)? == primary || fields.get(3)?.split(',').any(|member| member == name);
        is_in.then(|| Some((fields[2].parse().ok()?, fields[0].to_owned())))?
    });
    Some(User { groups: groups.collect(), name, uid })
}

/// Whether a user may write to a socket, which is what connecting needs.
fn may_connect(user: &User, owner: Option<&str>, group: Option<&str>, mode: u32) -> bool {
    let is_user = |name: &str| name == user.name || name.parse() == Ok(user.uid);
    let is_group = |name: &str| user.groups.iter().any(|(gid, own)| own == name || name.parse() == Ok(*gid));
    if owner.is_some_and(is_user) {
        return mode & 0o200 != 0;
    }
    if group.is_some_and(is_group) {
        return mode & 0o020 != 0;
    }
    mode & 0o002 != 0
}

/// Returns a folder above the socket that the user may not enter.
fn closed_folder(subject: &Subject, user: &User, socket: &Path) -> Option<String> {
    let groups: Vec<u32> = user.groups.iter().map(|(gid, _)| *gid).collect();
    let folders: Vec<&Path> = socket.ancestors().skip(1).filter(|folder| *folder != Path::new("/")).collect();
    folders.into_iter().rev().find_map(|folder| {
        let path = subject.path(folder.to_str()?);
        let access = FolderAccess::read(&path, &rustix::fs::stat(&path).ok()?).ok()?;
        (!access.may_enter(user.uid, &groups)).then(|| folder.display().to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fake, lines};
    use super::*;

    const DEVICE: &str = "[device.d]\nbackend = \"null\"\n";

    fn found(fake: &Fake, more: &str) -> Vec<String> {
        let volume = format!(
            "[vm.a.volume.v]\ndevice = \"d\"\nsize = \"1MiB\"\nexport = {{ type = \"vhost-user-blk\", socket = \"/run/s/a.sock\"{more} }}\n"
        );
        lines(&run(&fake.subject(&format!("{DEVICE}{volume}"))))
    }

    #[test]
    fn a_socket_that_libvirts_user_cannot_use_is_found() {
        let fake = Fake::new();
        assert_eq!(found(&fake, ""), [""; 0], "without libvirt there is nothing to say");
        fake.write("etc/libvirt/qemu.conf", "# user = \"root\"\n");
        fake.write("etc/passwd", "root:x:0:0::/root:/bin/sh\nlibvirt-qemu:x:64055:108:Libvirt:/var:/bin/false\n");
        fake.write("etc/group", "kvm:x:108:\ndisks:x:200:libvirt-qemu\nother:x:300:\n");
        let none = found(&fake, "");
        let message =
            "Warning volume a/v: libvirt runs QEMU as libvirt-qemu, which cannot connect to the vhost-user socket";
        assert!(none[0].starts_with(message), "{none:?}");
        for allowed in [
            ", owner = \"libvirt-qemu\"",
            ", owner = \"64055\"",
            ", group = \"disks\", mode = \"0660\"",
            ", group = \"kvm\", mode = \"0660\"",
        ] {
            assert_eq!(found(&fake, allowed), [""; 0], "{allowed}");
        }
        for refused in
            [", owner = \"root\"", ", group = \"other\", mode = \"0660\"", ", group = \"kvm\", mode = \"0640\""]
        {
            assert_eq!(found(&fake, refused).len(), 1, "{refused}");
        }
        fake.write("etc/libvirt/qemu.conf", "user = \"root\"\n");
        assert_eq!(found(&fake, ""), [""; 0], "root can connect to everything");
    }

    #[test]
    fn a_folder_that_libvirts_user_cannot_enter_is_found() {
        use std::os::unix::fs::PermissionsExt;
        let fake = Fake::new();
        fake.write("etc/libvirt/qemu.conf", "user = \"vm\"\n").write("etc/passwd", "vm:x:64055:64055::/:/bin/false\n");
        fake.write("run/s/x", "");
        let folder = fake.subject("").path("run/s");
        let set = |mode| std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
        set(0o711);
        assert_eq!(found(&fake, ", owner = \"vm\""), [""; 0]);
        set(0o700);
        let closed = found(&fake, ", owner = \"vm\"");
        assert!(closed[0].contains("vm cannot enter /run/s"), "{closed:?}");
        // As `setfacl -m u:64055:x` does: the owner, a user, the group, the mask and the others.
        let list = [(1, 7, u32::MAX), (2, 1, 64055), (4, 0, u32::MAX), (16, 1, u32::MAX), (32, 0, u32::MAX)];
        sluice_io::folder_access::testing::set_posix_list(&folder, &list);
        assert_eq!(found(&fake, ", owner = \"vm\""), [""; 0], "its entry lets it enter");
    }
}
