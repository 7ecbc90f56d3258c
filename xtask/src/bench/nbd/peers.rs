//! Who is compared, and how each is told to serve the same.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::super::server::Server;
use super::Shape;

/// A server, or what else stands in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench::nbd) enum Kind {
    /// Ours, with mClock.
    Sluice,
    /// qemu-storage-daemon.
    Qsd,
    Nbdkit,
    /// Ours without a device: the client's ceiling.
    Canned,
    /// No server: fio's io_uring engine on the file itself.
    Fio,
}

impl Kind {
    pub(in crate::bench::nbd) fn name(self) -> &'static str {
        match self {
            Kind::Sluice => "sluice",
            Kind::Qsd => "qsd",
            Kind::Nbdkit => "nbdkit",
            Kind::Canned => "canned",
            Kind::Fio => "bare fio",
        }
    }

    /// What must be installed.
    pub(in crate::bench::nbd) fn program(self) -> Option<&'static str> {
        match self {
            Kind::Sluice | Kind::Canned => None,
            Kind::Qsd => Some("qemu-storage-daemon"),
            Kind::Nbdkit => Some("nbdkit"),
            Kind::Fio => Some("fio"),
        }
    }

    pub(in crate::bench::nbd) fn export(self) -> &'static str {
        match self {
            Kind::Sluice => "vm/disk",
            Kind::Nbdkit => "",
            _ => "disk",
        }
    }

    /// Starts it, if it is a process.
    pub(in crate::bench::nbd) fn start(
        self,
        null: bool,
        file: &Path,
        sockets: &Path,
    ) -> Result<Option<Server>, String> {
        let socket = sockets.join(self.name());
        let server = match self {
            Kind::Sluice => Server::sluice(sockets, "host", &host_file(null, file, &socket), vec![socket])?,
            Kind::Qsd => Server::start(&mut qsd(null, file, &socket), vec![socket])?,
            Kind::Nbdkit => Server::start(&mut nbdkit(null, file, &socket), vec![socket])?,
            Kind::Canned | Kind::Fio => return Ok(None),
        };
        Ok(Some(server))
    }
}

/// One VM with a reservation, a limit and a weight, none of which holds it back.
fn host_file(null: bool, file: &Path, socket: &Path) -> String {
    let device = match null {
        true => "backend = \"null\"".to_owned(),
        false => format!("path = \"{}\"", file.display()),
    };
    let store = match null {
        true => "size = \"1GiB\"".to_owned(),
        false => format!("source = \"{}\"", file.display()),
    };
    format!(
        "[device.disk]\n{device}\ndepth = 128\ncapacity = \"9000000 iops@8KiB\"\n\
         [vm.vm]\nreservation = \"1000 iops@8KiB\"\nlimit = \"9000000 iops@8KiB\"\nweight = 200\n\
         [vm.vm.volume.disk]\ndevice = \"disk\"\n{store}\nexport = {{ socket = \"{}\" }}\n",
        socket.display()
    )
}

fn qsd(null: bool, file: &Path, socket: &Path) -> Command {
    let node = match null {
        true => "driver=null-co,read-zeroes=on,size=1073741824,node-name=disk".to_owned(),
        // Locks are off because the same file is served by others, all of which only read.
        false => {
            format!("driver=file,filename={},cache.direct=on,aio=io_uring,locking=off,node-name=disk", file.display())
        }
    };
    let mut command = Command::new("qemu-storage-daemon");
    command.arg("--blockdev").arg(node);
    command.arg("--nbd-server").arg(format!("addr.type=unix,addr.path={},max-connections=64", socket.display()));
    command.arg("--export").arg("type=nbd,id=disk,node-name=disk,name=disk,writable=off");
    command
}

fn nbdkit(null: bool, file: &Path, socket: &Path) -> Command {
    let mut command = Command::new("nbdkit");
    command.arg("--foreground").arg("--unix").arg(socket);
    match null {
        true => command.args(["null", "size=1G"]),
        false => command.arg("file").arg(file).arg("cache=none"),
    };
    command
}

/// Runs fio on the file itself. Returns IOPS, p50 and p99 in microseconds.
pub(in crate::bench) fn fio(file: &Path, shape: Shape, time: Duration) -> Result<(f64, f64, f64), String> {
    let mut command = Command::new("fio");
    command.args(["--name=bare", "--ioengine=io_uring", "--direct=1", "--rw=randread", "--bs=4k", "--minimal"]);
    command.args(["--time_based", "--randrepeat=0", "--group_reporting", "--thread"]);
    command.arg(format!("--filename={}", file.display())).arg(format!("--size={}", super::size_of(file)));
    command.arg(format!("--runtime={}ms", time.as_millis()));
    command.arg(format!("--iodepth={}", shape.depth)).arg(format!("--numjobs={}", shape.connections));
    let output = command.output().map_err(|error| format!("Cannot start fio: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).ok_or_else(|| format!("fio said: {text} {}", String::from_utf8_lossy(&output.stderr)))
}

/// Reads fio's terse output, version 3.
pub(in crate::bench) fn parse(text: &str) -> Option<(f64, f64, f64)> {
    let fields: Vec<&str> = text.lines().find(|line| line.starts_with("3;"))?.split(';').collect();
    let percentile = |name: &str| fields.iter().find_map(|field| field.strip_prefix(name)?.parse().ok());
    Some((fields.get(7)?.parse().ok()?, percentile("50.000000%=")?, percentile("99.000000%=")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terse_output_of_fio_is_understood() {
        let line =
            "3;fio-3.33;bare;0;0;4096;40960;10240;100;1;2;3;4;5;6;7;8;1.000000%=9;50.000000%=410;99.000000%=2000;x";
        assert_eq!(parse(line), Some((10240.0, 410.0, 2000.0)));
        assert_eq!(parse("fio: error"), None);
    }

    #[test]
    fn the_host_file_that_is_measured_is_sound() {
        let host = host_file(true, Path::new("/x"), Path::new("/run/sluice"));
        assert!(host.contains("backend = \"null\"") && host.contains("socket = \"/run/sluice\""), "{host}");
    }
}
