//! Memory of the daemon per VM.
//!
//! Each VM has a null volume at a socket of its own. The daemon is started with 10 VMs, with 1,000 and with 2,000, and its anonymous resident
//! memory is read when the monitor has taken samples, so that its history is nearly empty; [`super::past`] has the memory of a full one. What one more VM takes is the
//! difference to 10 VMs, divided by the difference in number. Then a client connects to each NBD socket and sends nothing, and after that each
//! client reads 4 KiB, so that all statistics are in use.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use sluice_client::nbd::{Client, Command};

use super::super::report::{Bound, Cell, Report, Table};
use super::super::server::{Server, sluice_binary};

/// Time for the first samples of the monitor, which takes one each second.
const SAMPLES: Duration = Duration::from_millis(2500);
/// Number of VMs that the others are compared with.
const FEW: usize = 10;
/// Maximum for a VM without a client, and for a client that sends nothing, in KB.
const VM_KB_MAX: f64 = 32.0;
const CLIENT_KB_MAX: f64 = 16.0;

/// Runs this part for this build, or for another one.
pub(super) fn run(report: &mut Report, program: Option<&Path>, quick: bool) -> Result<(), String> {
    let _ = sluice_io::limits::raise_descriptors();
    let own = sluice_binary();
    let mut builds = vec![("this build", own)];
    builds.extend(program.map(|program| ("beside", program.to_owned())));
    let sizes: &[usize] = if quick { &[100] } else { &[1000, 2000] };
    let columns =
        ["build", "socket", "VMs", "per VM", "per client that sends nothing", "per VM and client after a read"];
    let mut table = Table::new("Anonymous resident memory of the daemon, in KB", &columns);
    for (name, program) in &builds {
        for kind in ["nbd", "vhost-user-blk"] {
            let few = Daemon::start(program, kind, FEW)?.resident_kb()?;
            for &vms in sizes {
                eprintln!("observe: memory of {name} with {vms} VMs, {kind}");
                let daemon = Daemon::start(program, kind, vms)?;
                let without = daemon.resident_kb()?;
                let per_vm = (without - few) / (vms - FEW) as f64;
                let (mut per_client, mut after_read) = (f64::NAN, f64::NAN);
                if kind == "nbd" {
                    let mut clients = daemon.connect(vms)?;
                    per_client = (daemon.resident_kb()? - without) / vms as f64;
                    clients.iter_mut().try_for_each(read)?;
                    after_read = per_vm + (daemon.resident_kb()? - without) / vms as f64;
                }
                if *name == "this build" && Some(&vms) == sizes.last() {
                    report.target(format!("memory per VM, {kind} [KB]"), Bound::AtMost(VM_KB_MAX), per_vm);
                    if kind == "nbd" {
                        report.target(
                            "memory per client that sends nothing [KB]",
                            Bound::AtMost(CLIENT_KB_MAX),
                            per_client,
                        );
                    }
                }
                let numbers = [per_vm, per_client, after_read].map(|kb| Cell::Number(kb, 1));
                let names = [Cell::text(*name), Cell::text(kind), Cell::text(vms.to_string())];
                table.row(names.into_iter().chain(numbers).collect());
            }
        }
    }
    report.table(table);
    Ok(())
}

/// Reads 4 KiB.
fn read(client: &mut Client) -> Result<(), String> {
    let failed = |error| format!("A client of the daemon failed: {error}");
    client.submit(0, Command::Read { offset: 0, len: 4096 }).map_err(failed)?;
    client.flush_output().map_err(failed)?;
    while client.in_flight() > 0 {
        client.receive(None, &mut |_| {}).map_err(failed)?;
    }
    Ok(())
}

/// A daemon and the folder of its sockets.
struct Daemon {
    server: Server,
    sockets: tempfile::TempDir,
}

impl Daemon {
    fn start(program: &Path, kind: &str, vms: usize) -> Result<Daemon, String> {
        let failed = |error: std::io::Error| format!("Cannot make a folder for sockets: {error}");
        let sockets = tempfile::tempdir_in("/dev/shm").map_err(failed)?;
        let folder = sockets.path();
        let mut host =
            "[nbd]\nconnections_max = 8000\n[device.disk]\nbackend = \"null\"\ncapacity = \"9000000 iops@8KiB\"\n"
                .to_owned();
        for vm in 0..vms {
            let _ = writeln!(
                host,
                "[vm.vm{vm}]\n[vm.vm{vm}.volume.v]\ndevice = \"disk\"\nsize = \"1GiB\"\nexport = {{ type = \"{kind}\", socket = \"{}\" }}",
                socket(folder, vm).display()
            );
        }
        let server = Server::build_of_sluice(program, folder, "host", &host, vec![socket(folder, vms - 1)])?;
        Ok(Daemon { server, sockets })
    }

    /// Connects a client to each of the sockets.
    fn connect(&self, vms: usize) -> Result<Vec<Client>, String> {
        let connect = |vm| {
            Client::connect_unix(socket(self.sockets.path(), vm), &format!("vm{vm}/v"))
                .map_err(|error| format!("Cannot connect client {vm}: {error}"))
        };
        (0..vms).map(connect).collect()
    }

    /// Anonymous resident memory after the next samples, in KB of 1,000 bytes.
    fn resident_kb(&self) -> Result<f64, String> {
        // waits: a sample that has what happened last, which the daemon does not announce.
        thread::sleep(SAMPLES);
        super::host::resident_kb(self.server.pid())
    }
}

fn socket(folder: &Path, vm: usize) -> PathBuf {
    folder.join(format!("{vm}.sock"))
}
