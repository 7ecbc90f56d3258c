//! The back ends of the comparison, and their configurations.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::contest::{self, ServerSettings, Store};
use super::super::server::Server;
use crate::workspace;

/// Maximum number of queues of a device.
pub(super) const QUEUES: u16 = 4;

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The daemon, with mClock.
    Sluice,
    /// Another build of it.
    Beside(usize),
    /// The daemon, with noop.
    Noop,
    /// qemu-storage-daemon.
    Qsd,
    /// The common crates with their own connection handler: no disk, a thread for each queue.
    Plain,
    /// fio's io_uring engine on the file, without a server.
    Fio,
}

impl contest::Kind for Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Sluice => "sluice",
            Kind::Beside(number) => contest::BESIDE[number],
            Kind::Noop => "noop",
            Kind::Qsd => "qsd",
            Kind::Plain => "plain device",
            Kind::Fio => "bare fio",
        }
    }

    fn program(self) -> Option<&'static str> {
        match self {
            Kind::Sluice | Kind::Beside(_) | Kind::Noop | Kind::Plain => None,
            Kind::Qsd => Some("qemu-storage-daemon"),
            Kind::Fio => Some("fio"),
        }
    }

    fn start(self, setting: &ServerSettings<'_>, socket: PathBuf) -> Result<Option<Server>, String> {
        let ServerSettings { store, file, sockets, beside } = *setting;
        let host = |scheduler| host_file(self.name(), scheduler, store, file, &socket);
        let server = match self {
            Kind::Sluice => Server::sluice(sockets, "mclock", &host("mclock"), vec![socket])?,
            Kind::Noop => Server::sluice(sockets, "noop", &host("noop"), vec![socket])?,
            Kind::Beside(number) => {
                Server::build_of_sluice(&beside[number], sockets, self.name(), &host("mclock"), vec![socket])?
            }
            Kind::Qsd => Server::start(&mut qsd(store, file, &socket), vec![socket])?,
            Kind::Plain => {
                let queues = QUEUES.to_string();
                Server::start(Command::new(plain_device()).arg(&socket).arg(queues), vec![socket])?
            }
            Kind::Fio => return Ok(None),
        };
        Ok(Some(server))
    }
}

/// Returns the host file of one VM. With mClock it has a reservation, a limit and a weight, none of which is reached.
/// The VM is named after its server: a daemon that finds the same file locked for the same VM takes the other daemon
/// for its predecessor, and waits for it to exit.
fn host_file(server: &str, scheduler: &str, store: Store, file: &Path, socket: &Path) -> String {
    let vm = server.replace(' ', "-");
    let (device, source) = match store {
        Store::Null => ("backend = \"null\"".to_owned(), "size = \"1GiB\"".to_owned()),
        Store::File => (format!("path = \"{}\"", file.display()), format!("source = \"{}\"", file.display())),
    };
    let policy = match scheduler {
        "noop" => "",
        _ => "reservation = \"1000 iops@8KiB\"\nlimit = \"9000000 iops@8KiB\"\nweight = 200\n",
    };
    format!(
        "[device.disk]\n{device}\nscheduler = \"{scheduler}\"\ndepth = 128\ncapacity = \"9000000 iops@8KiB\"\n\
         [vm.{vm}]\n{policy}[vm.{vm}.volume.disk]\ndevice = \"disk\"\n{source}\nread_only = true\n\
         export = {{ type = \"vhost-user-blk\", socket = \"{}\" }}\n",
        socket.display()
    )
}

fn qsd(store: Store, file: &Path, socket: &Path) -> Command {
    let node = match store {
        Store::Null => "driver=null-co,read-zeroes=on,size=1073741824,node-name=disk".to_owned(),
        // Locks are off because other servers serve the same file. All of them only read.
        Store::File => {
            format!("driver=file,filename={},cache.direct=on,aio=io_uring,locking=off,node-name=disk", file.display())
        }
    };
    let export = format!(
        "type=vhost-user-blk,id=disk,node-name=disk,addr.type=unix,addr.path={},num-queues={QUEUES},iothread=io",
        socket.display()
    );
    let mut command = Command::new("qemu-storage-daemon");
    command.args(["--object", "iothread,id=io", "--blockdev", &node, "--export", &export]);
    command
}

/// Returns the build folder of the plain device. It is a separate workspace because of its dependencies.
fn plain_folder() -> PathBuf {
    workspace::root().join("target/plain-device")
}

pub(super) fn plain_device() -> PathBuf {
    plain_folder().join("release/plain-device")
}

pub(super) fn build_plain() -> Result<(), String> {
    eprintln!("building the plain device");
    let mut cargo = workspace::cargo();
    cargo.env("CARGO_TARGET_DIR", plain_folder()).args(["build", "--quiet", "--release", "--manifest-path"]);
    match cargo.arg("tools/plain-device/Cargo.toml").status() {
        Ok(status) if status.success() => Ok(()),
        _ => Err("Cannot build the plain device; see cargo's messages".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_host_files_are_valid() {
        for (scheduler, store) in [("mclock", Store::Null), ("noop", Store::File)] {
            let host =
                host_file("beside 2", scheduler, store, Path::new("/srv/vm/disk.img"), Path::new("/run/sluice/vm"));
            sluice_config::parse("measured", &host).unwrap();
        }
    }
}
