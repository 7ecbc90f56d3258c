//! How-to pages, followed word by word: their files are written and their commands are run, in order.
//!
//! Folders of the host are replaced by those of the test, and accounts by the test's. Installation, download, systemd and
//! KVM are replaced by [`STAND_INS`]: a reload of the service is what the unit runs,
//! `sluice apply --wait`, and so is a restart, because the daemon's first host file names the folder of the test.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::guest::Guest;
use crate::common::guest::machine::Machine;
use crate::common::{Daemon, Place, libvirt, run, script, sluice, tool};

/// Commands that a test cannot run as they are. `status` may report a promise broken by a busy machine, and `doctor` an error
/// of this machine.
const STAND_INS: &str = r#"
set -euo pipefail
chown() { [ "$1" = sluice: ]; }
apt() { [ "$1" = install ] || [ "$*" = update ]; }
curl() { [ "$1 $2" = "-L -o" ] && qemu-img create -q -f qcow2 "$3" 64M; }
systemctl() { [ "$2" = sluice ] && [[ "$1" = re@(load|start) ]] && sluice apply --wait "$HOST_FILE"; }
sluice() { command sluice "$@" || case "$1 $?" in "status 6" | "doctor 1") ;; *) false ;; esac; }
qemu-system-x86_64() { printf '%s\n' "$@" >"$FOLDER/qemu-arguments"; }
virsh() {
    case "$1" in
    define) sed "s/type='kvm'/type='qemu'/" "$2" >"$LIBVIRT/web.xml" && "$LIBVIRT/virsh" define --validate "$LIBVIRT/web.xml" ;;
    start) "$LIBVIRT/virsh" domxml-to-native qemu-argv "$LIBVIRT/web.xml" ;;
    attach-device) cp "$3" "$LIBVIRT/disk.xml" &&
        "$LIBVIRT/virsh" "define $LIBVIRT/web.xml; attach-device $2 $LIBVIRT/disk.xml $4; dumpxml $2" ;;
    *) false ;;
    esac
}
"#;

/// A code block of a page.
struct Block {
    /// The words after the three backquotes, such as `sh`.
    kind: String,
    text: String,
    /// The file that the sentence before the block says to write.
    file: Option<String>,
}

fn blocks(page: &str) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/how-to").join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let (mut blocks, mut file, mut open): (Vec<Block>, _, Option<Block>) = (Vec::new(), None, None);
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(kind)) => open = Some(Block { kind: kind.to_owned(), text: String::new(), file: file.take() }),
            (None, None) => {
                if let Some(rest) = line.strip_prefix("Write `") {
                    file = rest.split_once('`').map(|(path, _)| path.to_owned());
                }
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.text += &format!("{line}\n"),
        }
    }
    assert!(open.is_none(), "{page}: a code block has no end");
    blocks
}

/// A reader who follows a page on a host with a running daemon.
struct Reader {
    place: Place,
    libvirt: tempfile::TempDir,
    daemon: Daemon,
}

impl Reader {
    /// Starts the daemon with the package's host file.
    fn new() -> Reader {
        let place = Place::new();
        let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/sluice.toml");
        let (control, state) = (place.socket("control.sock"), place.file("state"));
        let daemon = Daemon::serve_by(&place, &std::fs::read_to_string(packaged).unwrap(), |command| {
            let mut given = Command::new(command.get_program());
            given.args(command.get_args()).env("SLUICE_SOCKET", &control).env("STATE_DIRECTORY", &state);
            given
        });
        place.write("folder", place.folder().to_str().unwrap());
        Reader { libvirt: virsh_script(), place, daemon }
    }

    fn host_file(&self) -> PathBuf {
        self.place.file("host.toml")
    }

    /// Returns the text for this host: its folders and group.
    fn here(&self, text: &str) -> String {
        let group = if rustix::process::geteuid().is_root() { 65534 } else { rustix::process::getegid().as_raw() };
        let sockets = self.place.socket("");
        text.replace("/etc/sluice/sluice.toml", self.host_file().to_str().unwrap())
            .replace("/srv/vm", self.place.file("vm").to_str().unwrap())
            .replace("/run/sluice", sockets.to_str().unwrap().trim_end_matches('/'))
            .replace("group = \"kvm\"", &format!("group = \"{group}\""))
    }

    /// Runs commands in the folder in which the last ones ended, and returns their output.
    #[track_caller]
    fn run(&self, commands: &str) -> String {
        let folder = self.place.file("folder");
        let script = format!(
            "{STAND_INS}\ncd \"$(cat '{folder}')\"\n{}\npwd >'{folder}'",
            self.here(commands),
            folder = folder.display()
        );
        let program = PathBuf::from(sluice().get_program());
        let mut bash = tool("bash", "bash");
        let path = std::env::var("PATH").unwrap_or_default();
        bash.env("PATH", format!("{}:{path}:/usr/sbin", program.parent().unwrap().display()));
        bash.env("SLUICE_SOCKET", self.place.socket("control.sock")).env("HOST_FILE", self.host_file());
        bash.env("FOLDER", self.place.folder()).env("LIBVIRT", self.libvirt.path());
        run(bash.args(["-c", &script])).ok()
    }

    /// Does what a block says, and returns the output of its commands.
    #[track_caller]
    fn follow(&self, block: &Block) -> String {
        match (block.kind.as_str(), &block.file) {
            ("sh", None) => self.run(&block.text),
            ("toml" | "xml", Some(file)) => {
                std::fs::write(self.here(file), self.here(&block.text)).unwrap();
                String::new()
            }
            (kind, file) => panic!("a block of kind '{kind}' for {file:?}:\n{}", block.text),
        }
    }

    /// Returns the words of QEMU's command line without those that need KVM or a terminal.
    fn qemu_arguments(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.place.file("qemu-arguments")).unwrap();
        let rest = text.strip_prefix("-accel\nkvm\n-cpu\nhost\n-smp\n2\n-nographic\n");
        rest.unwrap_or_else(|| panic!("{text}")).lines().map(str::to_owned).collect()
    }
}

/// Makes a folder with a program `virsh` that runs the embedded driver there.
fn virsh_script() -> tempfile::TempDir {
    let folder = libvirt::folder();
    let command = libvirt::virsh(folder.path());
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let quoted: Vec<String> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let home = folder.path().display();
    let text = format!("#!/bin/sh\nHOME='{home}' XDG_RUNTIME_DIR='{home}' exec {} \"$@\"\n", quoted.join(" "));
    script(&folder.path().join("virsh"), &text);
    folder
}

#[test]
fn the_first_vm_with_qemu_works_as_printed() {
    let (reader, blocks) = (Reader::new(), blocks("first-vm-qemu.md"));
    let (mut guest, mut printed) = (None, String::new());
    for block in &blocks {
        if block.kind == "sh guest" {
            guest.get_or_insert_with(|| Guest::boot(Machine::new([]).with(reader.qemu_arguments()))).sh(&block.text);
            assert!(reader.daemon.accounts().vm("web")["completed"]["read"].as_u64() >= Some(1000));
        } else {
            printed += &reader.follow(block);
        }
    }
    assert!(guest.is_some(), "the page uses the VM");
    for part in ["web", "500 iops", "try it", "4000 iops"] {
        assert!(printed.contains(part), "{part}\n{printed}");
    }
    let left = reader.run("sluice get overrides -o json");
    assert!(left.contains("\"overrides\":[]"), "the page takes its change back: {left}");
}

#[test]
fn the_first_vm_with_libvirt_works_as_printed() {
    let (reader, blocks) = (Reader::new(), blocks("first-vm-libvirt.md"));
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (mut printed, mut disk): (String, Option<String>) = (String::new(), None);
    for block in &blocks {
        // What `sluice export` has printed is in the domain that the page writes.
        if let (Some(disk), "xml") = (&disk, block.kind.as_str()) {
            let domain = reader.here(&block.text);
            assert!(flat(&domain).contains(&flat(disk)), "{disk}\n{domain}");
        }
        let output = reader.follow(block);
        if block.text.contains("--volume boot") {
            disk = Some(output.clone());
        }
        printed += &output;
    }
    assert!(disk.is_some(), "the page exports a volume");
    let sockets = reader.place.socket("");
    let connected = format!("path={}web-boot.sock,reconnect=1", sockets.display());
    for part in [&*connected, "\"share\":true", "<source protocol='nbd' name='web/data'"] {
        assert!(printed.contains(part), "{part}\n{printed}");
    }
}

/// Host files in the pages, and parts of them, are read by the program.
#[test]
fn host_files_in_the_pages_are_accepted() {
    let device = "[device.disk]\npath = \"/srv\"\n[vm.x.volume.v]\ndevice = \"disk\"\nsource = \"/srv/x\"\nexport = { socket = \"/run/x\" }\n";
    let mut read = 0;
    for page in ["backup.md", "from-other-limits.md"] {
        for block in blocks(page).iter().filter(|block| block.text.starts_with('[')) {
            let place = Place::new();
            let file = place.write("host.toml", format!("{device}{}", block.text));
            run(sluice().arg("check").arg(file)).ok();
            read += 1;
        }
    }
    assert_eq!(read, 2);
}
