//! `sluice check --unit`: a drop-in for the shipped unit that leaves the daemon only the files and disks of one host file.
//!
//! systemd gives the daemon its view of the file system when it starts, so two things matter. A path that is missing then
//! fails the unit, unless a `-` stands in front of it. And a folder that is a mount point is made writable by its parent:
//! what is mounted there later would otherwise be hidden below the folder that was there at the start.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use sluice_config::{DiskPath, Files, Host};

use crate::output;
use sluice_daemon::preflight;
use sluice_daemon::reach::{Reach, is_disk, mount_points, through_mount};

/// Folders that the unit itself makes writable.
const OWN: [&str; 2] = ["/run/sluice", "/var/lib/sluice"];
/// Folders that `ProtectHome=yes` hides.
const HOMES: [&str; 3] = ["/home", "/root", "/run/user"];

/// Folders of which the service has its own, by `PrivateTmp=`.
const PRIVATE: [&str; 2] = ["/tmp", "/var/tmp"];

/// What a host file needs.
#[derive(Debug, Default)]
struct Needs {
    /// Folders in which files are changed or made.
    writable: BTreeSet<PathBuf>,
    /// Block devices.
    disks: BTreeSet<PathBuf>,
    /// Drivers of the block devices that patterns match, by their names in `/proc/devices`; `*` for every driver. The unit names them
    /// because a disk that appears later has no name yet.
    drivers: BTreeSet<String>,
    /// Files that are read or started.
    readable: BTreeSet<PathBuf>,
    /// Whether TAPs are opened.
    taps: bool,
    /// Whether something is reached over IP.
    network: bool,
}

/// Returns a host file with what was attached at run time, and a comment if that is not known. The environment of the caller does not count,
/// because the service has its own.
pub(super) fn with_attached(files: &Files, own: Host) -> (Host, String) {
    let state = own.daemon.state.clone().unwrap_or_else(|| PathBuf::from(OWN[1]));
    match preflight::with_changes(files, &own, &state) {
        Ok(host) => (host, String::new()),
        Err(error) => {
            let error = error.replace('\n', " ");
            (own, format!("# Volumes that were attached at run time are not in it. {error}\n"))
        }
    }
}

/// Returns the drop-in for a host file.
pub(super) fn drop_in(file: &Path, host: &Host) -> String {
    let mut needs = needs(host);
    let warning = private(&needs);
    // For `--persist`.
    needs.add_folder_of(&std::path::absolute(file).unwrap_or_else(|_| file.to_owned()));
    let mounts = mount_points();
    let writable: BTreeSet<&Path> = needs.writable.iter().map(|folder| through_mount(folder, &mounts)).collect();
    let is_home = |path: &PathBuf| HOMES.iter().any(|home| path.starts_with(home));
    let sees_homes = needs.writable.iter().chain(&needs.readable).any(is_home);
    let mut text = format!(
        "# For {}, by `sluice check --unit`. Write it to /etc/systemd/system/sluice.service.d/10-host.conf, then run\n\
         # `systemctl daemon-reload && systemctl restart sluice`. Print it again when the host file names other folders or disks,\n\
         # and before `sluice attach` of a source elsewhere.\n\
         [Service]\n\
         ProtectHome={}\n\
         ProtectSystem=strict\n",
        file.display().to_string().replace('\n', " "),
        if sees_homes { "read-only" } else { "yes" },
    );
    if let Some(warning) = warning {
        output::message(format!("warning: {warning}"));
        text += &format!("# {warning}\n");
    }
    for folder in writable {
        text += &format!("ReadWritePaths={}\n", word("-", folder));
    }
    text += "# Only these disks, instead of all.\nDeviceAllow=\n";
    if needs.taps {
        text += "DeviceAllow=/dev/net/tun rw\n";
    }
    for driver in &needs.drivers {
        text += &format!("DeviceAllow=block-{driver} rw\n");
    }
    for disk in &needs.disks {
        text += &format!("DeviceAllow={} rw\n", word("", disk));
    }
    if !needs.network {
        text += "# Nothing is reached over a network.\nRestrictAddressFamilies=\nRestrictAddressFamilies=AF_UNIX\nIPAddressDeny=any\n\
                 PrivateNetwork=yes\n";
    }
    text
}

/// Returns a warning of the folders that the service cannot see because it has its own for temporary files.
fn private(needs: &Needs) -> Option<String> {
    let parents = needs.readable.iter().filter_map(|path| path.parent());
    let folders = needs.writable.iter().map(PathBuf::as_path).chain(parents);
    let is_private = |path: &&Path| PRIVATE.iter().any(|private| path.starts_with(private));
    let names: BTreeSet<String> = folders.filter(is_private).map(|path| path.display().to_string()).collect();
    let names = names.into_iter().collect::<Vec<_>>().join(", ").replace('\n', " ");
    (!names.is_empty()).then(|| {
        format!(
            "/tmp and /var/tmp are private to the service, so it cannot see {names}: move the images and sockets to another folder"
        )
    })
}

fn needs(host: &Host) -> Needs {
    let reach = Reach::of(host);
    let mut needs = Needs { taps: reach.taps, network: reach.has_network(), ..Needs::default() };
    needs.writable.extend(reach.folders.iter().chain(&reach.sockets).cloned());
    reach.sources.iter().for_each(|(source, is_read_only)| needs.add_source(source, *is_read_only));
    reach.places.iter().filter_map(|place| place.file()).for_each(|place| needs.add_source(place, false));
    host.devices.values().flat_map(|device| &device.paths).for_each(|disk| needs.add_disks(disk));
    needs.readable.extend(reach.programs);
    // The default state directory and that of the default socket are in `OWN`.
    match &host.daemon.state {
        Some(state) if state.is_dir() => drop(needs.writable.insert(state.clone())),
        Some(state) => needs.add_folder_of(state),
        None => {}
    }
    needs.writable.retain(|folder| !OWN.iter().any(|own| folder.starts_with(own)));
    needs
}

impl Needs {
    fn add_folder_of(&mut self, path: &Path) {
        self.writable.extend(path.parent().map(Path::to_owned));
    }

    /// Adds a disk under a name in `/dev`, because systemd ignores other names. A link that leads there from elsewhere is read.
    fn add_disk(&mut self, path: &Path) {
        if path.starts_with("/dev") {
            self.disks.insert(path.to_owned());
            return;
        }
        self.disks.extend(fs::canonicalize(path));
        self.readable.insert(path.to_owned());
    }

    /// Adds the disks of a device.
    fn add_disks(&mut self, path: &DiskPath) {
        if !path.is_pattern() {
            if is_disk(path.path()) {
                self.add_disk(path.path());
            }
            return;
        }
        let found = path.found().unwrap_or_default();
        let numbers = found.iter().filter_map(|path| fs::metadata(path).ok());
        let numbers: BTreeSet<u32> = numbers
            .filter(|found| found.file_type().is_block_device())
            .map(|found| rustix::fs::major(found.rdev()))
            .collect();
        if !path.path().starts_with("/dev") {
            self.readable.insert(path.path().to_owned());
        }
        let drivers = fs::read_to_string("/proc/devices").unwrap_or_default();
        let named = numbers.iter().map(|number| driver(&drivers, *number).unwrap_or("*").to_owned());
        self.drivers.extend(named);
        if numbers.is_empty() {
            self.drivers.insert("*".to_owned());
        }
    }

    fn add_source(&mut self, source: &Path, is_read_only: bool) {
        if is_disk(source) {
            return self.add_disk(source);
        }
        // A link leads to the file that is written.
        let target = fs::canonicalize(source).unwrap_or_else(|_| source.to_owned());
        if !is_read_only {
            self.add_folder_of(&target);
        }
        self.readable.extend([source.to_owned(), target]);
    }
}

/// Returns the name of the driver with this number, in the text of `/proc/devices`.
fn driver(devices: &str, number: u32) -> Option<&str> {
    let (_, block) = devices.split_once("Block devices:")?;
    let mut drivers = block.lines().filter_map(|line| line.trim().split_once(' '));
    drivers.find(|(major, _)| *major == number.to_string()).map(|(_, name)| name)
}

/// A path as a word of a unit.
fn word(before: &str, path: &Path) -> String {
    let text = path.display().to_string().replace('%', "%%");
    if text.contains([' ', '\t', '"', '\'', '\\']) {
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        return format!("\"{before}{quoted}\"");
    }
    format!("{before}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_in_names_the_folders_and_disks_of_the_host_file() {
        let text = "[daemon]\nstate = \"/srv/state\"\nsource_root = \"/srv/new vms\"\n[device.d]\npath = \"/dev/none\"\n\
                    [vm.a.volume.v]\ndevice = \"d\"\nsource = \"/srv/vm/a.img\"\nexport = { socket = \"/run/sluice/a\" }\n\
                    [vm.a.volume.w]\ndevice = \"d\"\nsource = \"/dev/vg/w\"\nexport = { socket = \"/run/vm/w\" }\n\
                    [vm.a.volume.x]\ndevice = \"d\"\nsource = \"/iso/x\"\nread_only = true\n\
                    export = { socket = \"/run/vm/x\" }\n";
        let host = sluice_config::parse("host.toml", text).unwrap_or_else(|errors| panic!("{errors}"));
        let found = drop_in(Path::new("/etc/own/host.toml"), &host);
        let lines: Vec<&str> = found.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "[Service]",
            "ProtectHome=yes",
            "ProtectSystem=strict",
            "ReadWritePaths=-/etc/own",
            "ReadWritePaths=-/run/vm",
            "ReadWritePaths=-/srv",
            "ReadWritePaths=\"-/srv/new vms\"",
            "ReadWritePaths=-/srv/vm",
            "DeviceAllow=",
            "DeviceAllow=/dev/none rw",
            "DeviceAllow=/dev/vg/w rw",
            "RestrictAddressFamilies=",
            "RestrictAddressFamilies=AF_UNIX",
            "IPAddressDeny=any",
            "PrivateNetwork=yes",
        ];
        assert_eq!(lines, expected);
        let pool = text.replace("[vm.a.volume.v]", "capacity = \"9 iops\"\nlatency = \"9ms\"\n[device.d.pool]\nmeeting = \"/meet/place\"\nhost = 1\n[vm.a.volume.v]");
        let host = sluice_config::parse("host.toml", &pool).unwrap_or_else(|errors| panic!("{errors}"));
        assert!(drop_in(Path::new("/etc/own/host.toml"), &host).contains("ReadWritePaths=-/meet\n"));
        let more = "[device.slow]\npath = \"/srv/vm/a.img\"\ncapacity = \"100 iops\"\ndelay = { time = \"1ms\", log = \"/log/slow/requests\" }\n\
                    [uplink.u]\nbridge = \"br0\"\nrate = \"1Gbit/s\"\n[vm.a.nic.n]\nuplink = \"u\"\n\
                    socket = \"/run/nic/n\"\n[alert.all]\ncommand = \"/run/user/alert\"\n";
        let host =
            sluice_config::parse("host.toml", &(text.to_owned() + more)).unwrap_or_else(|errors| panic!("{errors}"));
        let found = drop_in(Path::new("/etc/own/host.toml"), &host);
        for line in [
            "ReadWritePaths=-/log/slow",
            "ReadWritePaths=-/run/nic",
            "DeviceAllow=/dev/net/tun rw",
            "ProtectHome=read-only",
        ] {
            assert!(found.lines().any(|found| found == line), "{line} is missing in:\n{found}");
        }
        assert!(!found.contains("PrivateNetwork"), "an uplink is a network:\n{found}");
        let home = sluice_config::parse("host.toml", &text.replace("/iso/x", "/run/user/x")).unwrap();
        assert!(drop_in(Path::new("/etc/own/host.toml"), &home).contains("ProtectHome=read-only\n"));
    }

    #[test]
    fn a_link_to_a_disk_was_named_instead_of_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("disk");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let mut needs = Needs::default();
        needs.add_disk(&link);
        needs.add_disk(Path::new("/dev/vg/w"));
        assert_eq!(needs.disks, ["/dev/null", "/dev/vg/w"].map(PathBuf::from).into());
        assert_eq!(needs.readable, [link].into());
    }

    #[test]
    fn a_pattern_is_the_drivers_of_its_disks_because_later_ones_have_no_name_yet() {
        let devices = "Character devices:\n  1 mem\n\nBlock devices:\n  7 loop\n252 rbd\n259 blkext\n";
        assert_eq!((driver(devices, 252), driver(devices, 7), driver(devices, 1)), (Some("rbd"), Some("loop"), None));
        let unit = |path: &str| {
            let host = sluice_config::parse("host.toml", &format!("[device.d]\npath = {path}\n"));
            drop_in(Path::new("/etc/own/host.toml"), &host.unwrap_or_else(|errors| panic!("{errors}")))
        };
        let found = unit("[\"/dev/none\", \"/dev/no-folder/*\"]");
        assert!(found.contains("DeviceAllow=block-* rw\nDeviceAllow=/dev/none rw\n"), "{found}");
        if Path::new("/dev/loop0").exists() {
            assert!(unit("\"/dev/loop*\"").contains("DeviceAllow=block-loop rw\n"));
        }
    }

    #[test]
    fn images_that_the_service_cannot_see_are_named() {
        let warning = |source: &str, keys: &str| {
            let text = format!(
                "[device.d]\npath = \"/srv\"\n[vm.a.volume.v]\ndevice = \"d\"\nsource = \"{source}\"\n{keys}\n\
                 export = {{ socket = \"/run/sluice/a\" }}\n"
            );
            private(&needs(&sluice_config::parse("host.toml", &text).unwrap_or_else(|errors| panic!("{errors}"))))
        };
        assert!(warning("/var/tmp/vm/a.img", "").unwrap().contains("cannot see /var/tmp/vm: move"));
        assert!(warning("/tmp/a.iso", "read_only = true").unwrap().contains("cannot see /tmp: move"));
        assert_eq!(warning("/srv/tmp/a.img", ""), None);
        let host = sluice_config::parse("host.toml", "[nbd]\nsocket = \"/tmp/nbd\"\n").unwrap();
        let found = drop_in(Path::new("/tmp/own/host.toml"), &host);
        assert!(
            found.contains("\n# /tmp and /var/tmp are private to the service, so it cannot see /tmp: move"),
            "{found}"
        );
    }
}
