//! The daemon as an ordinary user, and what `check --host` says of a host file for it.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::common::raw::Raw;
use crate::common::{Ended, MIB, Running, install, run, sluice, start, tool};

/// A user that every host has, and a number that no group of this host has.
const USER: &str = "nobody";
const GROUP: u32 = 64_110;

/// A folder of the user, in which only root may replace the programs.
struct Own {
    folder: TempDir,
    ids: (u32, u32),
}

impl Own {
    fn new() -> Own {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let user = sluice_io::users::user(USER).unwrap();
        let group = run(tool("id", "coreutils").args(["-g", USER])).ok().trim().parse().unwrap();
        let own = Own { folder, ids: (user, group) };
        let programs = PathBuf::from(sluice().get_program());
        own.folder_of_root("bin");
        for program in ["sluice", "sluiced"] {
            install(&programs.with_file_name(program), &own.path("bin").join(program));
        }
        own.folder_of_root("vm");
        chown(own.path("vm"), Some(own.ids.0), None).unwrap();
        own
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn folder_of_root(&self, name: &str) {
        std::fs::create_dir(self.path(name)).unwrap();
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn image(&self, name: &str, owner: Option<u32>) {
        let image = self.path("vm").join(name);
        std::fs::File::create_new(&image).unwrap().set_len(MIB).unwrap();
        std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o600)).unwrap();
        chown(image, owner, owner).unwrap();
    }

    /// Writes a host file with volumes, each a name and more keys of its export, and more lines.
    fn host(&self, volumes: &[(&str, &str)], more: &str) -> PathBuf {
        let vm = self.path("vm").display().to_string();
        let mut text = format!("[daemon]\ncontrol = \"{vm}/control\"\nstate = \"{vm}/state\"\n");
        text += &format!("[device.disk]\npath = \"{vm}\"\ncapacity = \"1000 iops\"\n{more}\n");
        for (name, keys) in volumes {
            text += &format!("[vm.a.volume.{name}]\ndevice = \"disk\"\nsource = \"{vm}/{name}.img\"\n");
            text += &format!("export = {{ socket = \"{vm}/{name}.sock\"{keys} }}\n");
        }
        let file = self.path("host.toml");
        std::fs::write(&file, text).unwrap();
        file
    }

    /// A command as the user, who is in group [`GROUP`] too.
    fn command(&self, words: &[&str], file: &Path) -> Command {
        let mut setpriv = tool("setpriv", "util-linux");
        let (user, group) = self.ids;
        setpriv.args([format!("--reuid={user}"), format!("--regid={group}"), format!("--groups={group},{GROUP}")]);
        setpriv.arg(self.path("bin").join("sluice")).args(words).arg(file).current_dir("/");
        setpriv
    }

    fn serve(&self, file: &Path) -> Running {
        let daemon = start(&mut self.command(&["--log-format", "text", "serve", "--strict"], file));
        daemon.stderr.up_to(&["Ready"]);
        daemon
    }

    fn ask(&self, verb: &[&str]) -> Ended {
        run(sluice().args(verb).arg("--socket").arg(self.path("vm").join("control")))
    }
}

#[test]
fn a_daemon_of_an_ordinary_user_serves_and_gives_its_sockets_to_a_group_of_its_own() {
    let own = Own::new();
    own.image("v.img", Some(own.ids.0));
    own.image("w.img", Some(own.ids.0));
    let group = format!(", group = \"{GROUP}\"");
    let file = own.host(&[("v", &group), ("w", &format!("{group}, type = \"vhost-user-blk\""))], "");
    let daemon = own.serve(&file);
    let socket = std::fs::metadata(own.path("vm").join("v.sock")).unwrap();
    assert_eq!((socket.uid(), socket.gid(), socket.mode() & 0o777), (own.ids.0, GROUP, 0o660));
    let mut client = Raw::open(&own.path("vm").join("v.sock"), "a/v").unwrap();
    client.write(0, &[7; 4096]).unwrap();
    own.ask(&["set", "a", "limit=500 iops"]).ok();
    run(&mut own.command(&["apply", "--socket", &own.path("vm").join("control").display().to_string()], &file)).ok();
    daemon.kill();
    let _daemon = own.serve(&file);
    let mut client = Raw::open(&own.path("vm").join("v.sock"), "a/v").unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    assert!(own.ask(&["get", "overrides"]).ok().contains("a/limit"), "a change outlasts the kill");
    let checked = run(&mut own.command(&["check", "--host"], &file)).ok();
    assert!(checked.contains("`fuser FILE` as root"), "{checked}");
}

#[test]
fn a_look_at_the_host_as_root_said_nothing_about_a_daemon_that_is_not_root() {
    let own = Own::new();
    own.image("v.img", None);
    own.image("w.img", Some(own.ids.0));
    let tap = "[uplink.u]\ntap = \"up-own\"\nrate = \"1Gbit/s\"\n[vm.a.nic.n]\nuplink = \"u\"\ntap = \"tap-own\"\n\
               [device.later]\npath = \"/dev/no-folder/*\"\n";
    let file = own.host(&[("v", ""), ("w", ", owner = \"daemon\"")], tap);
    let check = |options: &[&str]| run(sluice().args(["check", "--host"]).args(options).arg(&file));
    let checked = check(&["--user", USER]);
    assert_eq!(checked.code(), Some(1));
    assert!(checked.stderr.contains("Looking with the rights of user nobody"), "{}", checked.stderr);
    let found = checked.stdout;
    for part in [
        "v.img for writing: check that it exists and that this user may write it",
        "leave out `owner`, and state a `group` that this user is in",
        "CAP_NET_ADMIN",
        "`sluice check --udev FILE`",
    ] {
        assert!(found.contains(part), "{part}: {found}");
    }
    let as_root = check(&["--user", "root"]).stdout;
    assert!(!as_root.contains("v.img for writing") && !as_root.contains("leave out `owner`"), "{as_root}");
    assert!(check(&["--user", "no-such-user"]).failed().contains("There is no user no-such-user"));
    let other = run(&mut own.command(&["check", "--host", "--user", "root"], &file)).failed();
    assert!(other.contains("Only root can look as user root"), "{other}");
}

#[test]
fn an_export_names_the_group_that_the_user_of_the_vmm_needs() {
    let own = Own::new();
    let file = own.host(&[("v", ", group = \"vms\"")], "");
    let export = |format: &str| run(sluice().args(["-o", format, "export", "nbd-uri", "a"]).arg(&file));
    let text = export("table");
    assert!(text.stderr.contains("v.sock belongs to group vms: the user of the VMM must be in it"), "{}", text.stderr);
    let document: serde_json::Value = serde_json::from_str(&export("json").ok()).unwrap();
    assert_eq!(document["groups"], serde_json::json!(["vms"]));
}
