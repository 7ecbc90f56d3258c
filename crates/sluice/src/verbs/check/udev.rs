//! `sluice check --udev`: rules of udev that give the disks of one host file to the daemon's own user.

use std::collections::BTreeSet;
use std::path::Path;

use sluice_config::Host;

use sluice_daemon::reach::is_disk;

/// Returns the rules. A disk is named as the host file names it, so that it belongs to the daemon also after it gets another kernel name.
pub(super) fn rules(file: &Path, host: &Host) -> String {
    let mut text = format!(
        "# For {}, by `sluice check --udev`. Write it to /etc/udev/rules.d/90-sluice.rules, then run\n\
         # `udevadm control --reload && udevadm trigger --settle --subsystem-match=block`.\n\
         # Members of the group may only observe the daemon, so the mode gives them no disk.\n",
        file.display().to_string().replace('\n', " "),
    );
    for name in disks(host) {
        for key in keys(&name) {
            let name = literal(&name);
            text += &format!(
                "SUBSYSTEM==\"block\", {key}==\"{name}\", OWNER=\"sluice\", GROUP=\"sluice\", MODE=\"0600\"\n"
            );
        }
    }
    text
}

/// Names and patterns of disks, below `/dev`.
fn disks(host: &Host) -> BTreeSet<String> {
    let devices = host.devices.values().flat_map(|device| &device.paths);
    let devices = devices.filter(|path| path.is_pattern() || is_disk(path.path())).map(|path| path.path());
    let volumes = host.vms.values().flat_map(|vm| vm.volumes.values()).filter_map(|volume| volume.source.file());
    let meetings = host.devices.values().filter_map(|device| device.pool.as_ref()?.meeting.file());
    let all = devices.chain(volumes.chain(meetings).filter(|path| is_disk(path)));
    all.filter_map(|path| Some(path.strip_prefix("/dev").ok()?.to_str()?.to_owned())).collect()
}

/// Returns the keys of udev that may match a name: `KERNEL` for a device node, `SYMLINK` for a link, both while neither exists.
fn keys(name: &str) -> &'static [&'static str] {
    match std::fs::symlink_metadata(Path::new("/dev").join(name)) {
        Ok(found) if found.file_type().is_symlink() => &["SYMLINK"],
        Ok(_) => &["KERNEL"],
        Err(_) if name.contains('/') => &["SYMLINK"],
        Err(_) => &["KERNEL", "SYMLINK"],
    }
}

/// A name as a pattern of udev, in which `*` alone stands for several characters. One that has a meaning there becomes any character.
fn literal(name: &str) -> String {
    name.chars().map(|letter| if "[]?|\"\\".contains(letter) { '?' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disk_is_given_to_the_daemon_by_the_name_that_the_host_file_has() {
        let text = "[device.d]\npath = [\"/dev/none\", \"/dev/rbd/vms/*\", \"/srv/vm\"]\n[vm.a.volume.v]\ndevice = \"d\"\n\
                    source = \"/dev/disk/by-id/a|b\"\nexport = { socket = \"/run/sluice/a\" }\n";
        let host = sluice_config::parse("host.toml", text).unwrap_or_else(|errors| panic!("{errors}"));
        let found = rules(Path::new("/etc/own/host.toml"), &host);
        let lines: Vec<&str> = found.lines().filter(|line| !line.starts_with('#')).collect();
        let rule = |key: &str, name: &str| {
            format!("SUBSYSTEM==\"block\", {key}==\"{name}\", OWNER=\"sluice\", GROUP=\"sluice\", MODE=\"0600\"")
        };
        let expected = [
            rule("SYMLINK", "disk/by-id/a?b"),
            rule("KERNEL", "none"),
            rule("SYMLINK", "none"),
            rule("SYMLINK", "rbd/vms/*"),
        ];
        assert_eq!(lines, expected);
        if Path::new("/dev/loop0").exists() {
            assert_eq!(keys("loop0"), ["KERNEL"]);
        }
    }
}
