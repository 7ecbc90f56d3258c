//! The servers of the comparison, and their configurations.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::contest::{self, ServerSettings, Store};
use super::super::server::Server;

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The daemon, with mClock.
    Sluice,
    /// Another build of it.
    Beside(usize),
    /// qemu-storage-daemon.
    Qsd,
    /// The same with a null volume that it does not know to be zeroes, so that it sends data.
    QsdData,
    Nbdkit,
    /// The canned server without a device: the client's ceiling.
    Canned,
    /// The same, which answers reads by holes.
    CannedHoles,
    /// fio's io_uring engine on the file, without a server.
    Fio,
}

impl contest::Kind for Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Sluice => "sluice",
            Kind::Beside(number) => contest::BESIDE[number],
            Kind::Qsd => "qsd",
            Kind::QsdData => "qsd data",
            Kind::Nbdkit => "nbdkit",
            Kind::Canned => "canned",
            Kind::CannedHoles => "canned holes",
            Kind::Fio => "bare fio",
        }
    }

    fn program(self) -> Option<&'static str> {
        match self {
            Kind::Sluice | Kind::Beside(_) | Kind::Canned | Kind::CannedHoles => None,
            Kind::Qsd | Kind::QsdData => Some("qemu-storage-daemon"),
            Kind::Nbdkit => Some("nbdkit"),
            Kind::Fio => Some("fio"),
        }
    }

    fn start(self, setting: &ServerSettings<'_>, socket: PathBuf) -> Result<Option<Server>, String> {
        let ServerSettings { store, file, sockets, beside } = *setting;
        let host = || host_file(store, file, &self.vm(), &socket);
        let server = match self {
            Kind::Sluice => Server::sluice(sockets, "host", &host(), vec![socket])?,
            Kind::Beside(number) => {
                Server::build_of_sluice(&beside[number], sockets, self.name(), &host(), vec![socket])?
            }
            Kind::Qsd => Server::start(&mut qsd(store, file, &socket, true), vec![socket])?,
            Kind::QsdData => Server::start(&mut qsd(store, file, &socket, false), vec![socket])?,
            Kind::Nbdkit => Server::start(&mut nbdkit(store, file, &socket), vec![socket])?,
            Kind::Canned | Kind::CannedHoles | Kind::Fio => return Ok(None),
        };
        Ok(Some(server))
    }
}

impl Kind {
    /// Name of its socket.
    pub(super) fn socket(self) -> String {
        contest::Kind::name(self).replace([' ', ','], "-")
    }

    pub(super) fn export(self) -> String {
        match self {
            Kind::Sluice | Kind::Beside(_) => format!("{}/disk", self.vm()),
            Kind::Nbdkit => String::new(),
            _ => "disk".to_owned(),
        }
    }

    /// The VM's name. Only one daemon at a time may read a file for a VM of a certain name.
    fn vm(self) -> String {
        contest::Kind::name(self).replace(' ', "")
    }
}

/// Returns the host file of one VM with a reservation, a limit and a weight, none of which is reached.
fn host_file(store: Store, file: &Path, vm: &str, socket: &Path) -> String {
    let device = match store {
        Store::Null => "backend = \"null\"".to_owned(),
        Store::File => format!("path = \"{}\"", file.display()),
    };
    let store = match store {
        Store::Null => "size = \"1GiB\"".to_owned(),
        Store::File => format!("source = \"{}\"\nread_only = true", file.display()),
    };
    format!(
        "[device.disk]\n{device}\ndepth = 128\ncapacity = \"9000000 iops@8KiB\"\n\
         [vm.{vm}]\nreservation = \"1000 iops@8KiB\"\nlimit = \"9000000 iops@8KiB\"\nweight = 200\n\
         [vm.{vm}.volume.disk]\ndevice = \"disk\"\n{store}\nexport = {{ socket = \"{}\" }}\n",
        socket.display()
    )
}

fn qsd(store: Store, file: &Path, socket: &Path, knows_zeroes: bool) -> Command {
    let node = match store {
        Store::Null => {
            let zeroes = if knows_zeroes { "on" } else { "off" };
            format!("driver=null-co,read-zeroes={zeroes},size=1073741824,node-name=disk")
        }
        // Locks are off because other servers serve the same file. All of them only read.
        Store::File => {
            format!("driver=file,filename={},cache.direct=on,aio=io_uring,locking=off,node-name=disk", file.display())
        }
    };
    let mut command = Command::new("qemu-storage-daemon");
    command.arg("--blockdev").arg(node);
    command.arg("--nbd-server").arg(format!("addr.type=unix,addr.path={},max-connections=64", socket.display()));
    command.arg("--export").arg("type=nbd,id=disk,node-name=disk,name=disk,writable=off");
    command
}

fn nbdkit(store: Store, file: &Path, socket: &Path) -> Command {
    let mut command = Command::new("nbdkit");
    command.arg("--foreground").arg("--unix").arg(socket);
    match store {
        Store::Null => command.args(["null", "size=1G"]),
        Store::File => command.arg("file").arg(file).arg("cache=none"),
    };
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_host_file_is_valid() {
        let host = host_file(Store::Null, Path::new("/x"), "vm", Path::new("/run/sluice"));
        assert!(host.contains("backend = \"null\"") && host.contains("socket = \"/run/sluice\""), "{host}");
    }
}
