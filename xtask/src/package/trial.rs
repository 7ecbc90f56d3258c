//! Tests the package in a booted Debian: install, reload, crash, hang, upgrade, purge, with a client that stays connected.

use super::guest::{Guest, LONG, wait};
use super::{deb, previous, run};
use crate::workspace;
use sluice_client::vhost;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// The host file of the test.
const HOST: &str = r#"
[device.disk]
path = "/srv/vm"
capacity = "1000 iops@8KiB"
[vm.a.volume.v]
device = "disk"
source = "/srv/vm/a.img"
export = { socket = "/srv/vm/a.sock" }
[vm.b.volume.v]
device = "disk"
source = "/srv/vm/b.img"
export = { type = "vhost-user-blk", socket = "/srv/vm/b.sock" }
"#;

/// An uplink and a NIC, both TAPs.
const NETWORK: &str = r#"
[uplink.lan]
tap = "up0"
[vm.a.nic.eth0]
uplink = "lan"
tap = "tap-a"
"#;

const UNIT: &str = "/lib/systemd/system/sluice.service";

type Check = fn(&mut Trial) -> Result<(), String>;

/// The checks, in the order in which they depend on each other.
const CHECKS: &[(&str, Check)] = &[
    ("lintian finds nothing that is not explained", Trial::lintian),
    ("an upgrade from the previous version and the way back keep disks and changes", Trial::upgrade_and_return),
    ("installing it starts the service, which is then ready", Trial::install),
    ("a reload applies the host file, and a client connects", Trial::reload),
    ("a refused reload fails and changes nothing", Trial::refused_reload),
    ("members of group sluice may observe, and not change", Trial::roles),
    ("the shared page is not enabled, may observe, and stays when the daemon is restarted", Trial::shared_page),
    ("a killed daemon is restarted, and its client goes on", Trial::kill),
    ("a daemon that hangs is restarted by the watchdog", Trial::watchdog),
    ("TAPs keep their carrier over a restart, a crash and a reload", Trial::taps),
    ("an upgrade does not restart the daemon", Trial::upgrade),
    ("the laboratory is a package of its own", Trial::laboratory),
    ("the manual states the score of the unit", Trial::score),
    ("removing it stops the service, and purging it leaves no file", Trial::purge),
];

/// Runs the checks until one fails. Returns the numbers of passed and failed ones.
pub(super) fn run_checks(programs: &Path, previous: &str, target: &Path) -> Result<(u64, u64), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("The test boots a Debian with systemd-nspawn, which needs root; run it as root".to_owned());
    }
    let begun = Instant::now();
    let packages = tempfile::tempdir_in(target).map_err(|error| error.to_string())?;
    let fast = |package, revision| deb::build(package, programs, revision, deb::Compression::Fast, packages.path());
    let (first, second) = (fast(&deb::SLUICEGATE, 1)?, fast(&deb::SLUICEGATE, 2)?);
    let laboratory = fast(&deb::LABORATORY, 2)?;
    let previous = previous::package(previous, target)?;
    let links = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut trial = Trial { guest: Guest::boot(target)?, previous, first, second, laboratory, links, client: None };
    println!("booted after {:.1} s", begun.elapsed().as_secs_f64());
    let mut passed = 0;
    for (name, check) in CHECKS {
        let begun = Instant::now();
        if let Err(error) = check(&mut trial) {
            println!("FAILED: {name}: {error}");
            println!("{}", trial.guest.output(&["journalctl", "--no-pager", "-n", "60"]).0);
            return Ok((passed, 1));
        }
        println!("ok: {name} ({:.1} s)", begun.elapsed().as_secs_f64());
        passed += 1;
    }
    Ok((passed, 0))
}

struct Trial {
    guest: Guest,
    /// The package of the previous version.
    previous: PathBuf,
    /// The package, and one with a later version.
    first: PathBuf,
    second: PathBuf,
    /// The package of the laboratory, with the later version.
    laboratory: PathBuf,
    /// A folder with a short path, for the link to the guest's sockets.
    links: tempfile::TempDir,
    client: Option<Client>,
}

impl Trial {
    fn lintian(&mut self) -> Result<(), String> {
        let mut lintian = Command::new("lintian");
        lintian.args(["--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"]);
        lintian.args([&self.first, &self.laboratory]);
        run(&mut lintian).map(drop)
    }

    /// One client stays connected throughout.
    fn upgrade_and_return(&mut self) -> Result<(), String> {
        self.dpkg(&self.previous)?;
        self.serve()?;
        self.guest.run(&["sluice", "set", "a", "weight=5"])?;
        let user = self.show("User")?;
        self.dpkg(&self.first)?;
        self.guest.run(&["systemctl", "restart", "sluice"])?;
        self.kept_weight()?;
        // An installed host keeps its unit.
        if self.show("User")? != user {
            return Err("An upgrade has changed the user of the daemon".to_owned());
        }
        // Both versions write the same form of the state: `sluice state restore` is not needed.
        self.guest.run(&["systemctl", "stop", "sluice"])?;
        self.dpkg(&self.previous)?;
        self.guest.run(&["systemctl", "start", "sluice"])?;
        self.kept_weight()?;
        self.client = None;
        self.guest.run(&["dpkg", "--purge", "sluicegate"]).map(drop)
    }

    /// The daemon that runs now has the override of VM `a`, and the client reads and writes.
    fn kept_weight(&mut self) -> Result<(), String> {
        expect(&self.guest.run(&["sluice", "get", "overrides"])?, "a/weight")?;
        let pid = self.show("MainPID")?;
        self.client_works(&pid)
    }

    /// Serves [`HOST`], and connects a client to volume `a/v`.
    fn serve(&mut self) -> Result<PathBuf, String> {
        fs::create_dir_all(self.guest.path("/srv/vm")).map_err(|error| error.to_string())?;
        self.guest.run(&["truncate", "--size=16M", "/srv/vm/a.img", "/srv/vm/b.img"])?;
        if self.show("User")? == "sluice" {
            self.guest.run(&["chown", "-R", "sluice:", "/srv/vm"])?;
        }
        self.write_host(HOST)?;
        // A sealed daemon has only the folders that its file named at the start.
        self.guest.run(&["systemctl", "restart", "sluice"])?;
        let folder = self.links.path().join("vm");
        if !folder.exists() {
            std::os::unix::fs::symlink(self.guest.path("/srv/vm"), &folder).map_err(|error| error.to_string())?;
        }
        let mut client = Client::connect(&folder.join("a.sock"))?;
        client.ask("write -P 7 0 64k", "wrote 65536/65536")?;
        self.client = Some(client);
        Ok(folder)
    }

    fn install(&mut self) -> Result<(), String> {
        self.dpkg(&self.first)?;
        let guest = &self.guest;
        expect(&guest.run(&["systemctl", "is-active", "sluice"])?, "active")?;
        expect(&guest.run(&["systemctl", "is-enabled", "sluice"])?, "enabled")?;
        // The check of the watchdog has a shorter time of its own.
        expect(&self.show("Type")?, "notify")?;
        expect(&self.show("WatchdogUSec")?, "30s")?;
        expect(&self.show("StatusText")?, "Serving 0 volumes of 0 VMs on 0 devices")?;
        expect(&guest.run(&["stat", "-c", "%A %U %G", "/run/sluice/control.sock"])?, "srw-rw---- sluice sluice")?;
        expect(&self.show("User")?, "sluice")?;
        expect(&guest.run(&["sluice", "--version"])?, concat!("sluice ", env!("CARGO_PKG_VERSION")))?;
        expect(&guest.run(&["sluice", "status"])?, "Sealed by privileges, landlock, rings, seccomp")?;
        guest.run(&["test", "-e", "/usr/share/man/man5/sluice.toml.5.gz"])?;
        guest.run(&["test", "-e", "/usr/share/man/man1/sluice-serve.1.gz"])?;
        expect(&guest.run(&["cat", "/usr/share/sluice/prometheus/sluice.rules.yml"])?, "alert: SluiceDown")?;
        expect(&guest.run(&["cat", "/usr/share/sluice/grafana/sluice.json"])?, "\"uid\": \"sluicegate\"")?;
        expect(&guest.run(&["cat", "/usr/share/doc/sluicegate/how-to/troubleshooting.md"])?, "sluice report")?;
        // As an operator would, for a ticket.
        expect(&guest.run(&["sluice", "report", "--archive", "/srv/ticket.tar.gz"])?, "/srv/ticket.tar.gz: ")?;
        expect(&guest.run(&["tar", "-tzf", "/srv/ticket.tar.gz"])?, "/host/sluice.toml")
    }

    fn reload(&mut self) -> Result<(), String> {
        let folder = self.serve()?;
        // Guest memory is shared and mapped in spite of the sandbox.
        let failed = |error: vhost::ClientError| error.to_string();
        let mut vmm =
            vhost::Client::connect(&folder.join("b.sock"), &vhost::ClientOptions::default()).map_err(failed)?;
        let mut read = [0; 4096];
        vmm.write(8192, &[5; 4096]).and_then(|()| vmm.read(8192, &mut read)).map_err(failed)?;
        if read == [5; 4096] { Ok(()) } else { Err("a VMM read something else than it wrote".to_owned()) }
    }

    fn refused_reload(&mut self) -> Result<(), String> {
        let pid = self.show("MainPID")?;
        self.write_host(&HOST.replace("capacity", "capacitty"))?;
        self.guest.fails(&["systemctl", "reload", "sluice"])?;
        let journal = self.guest.run(&["journalctl", "--no-pager", "-u", "sluice"])?;
        expect(&journal, "did you mean 'capacity'?")?;
        expect(&self.guest.run(&["systemctl", "is-active", "sluice"])?, "active")?;
        self.client_works(&pid)?;
        self.write_host(HOST)?;
        self.guest.run(&["systemctl", "reload", "sluice"]).map(drop)
    }

    fn roles(&mut self) -> Result<(), String> {
        let member = ["setpriv", "--reuid=4711", "--regid=4711", "--groups=sluice", "sluice"];
        self.guest.run(&[&member[..], &["get", "overrides"]].concat())?;
        let refused = self.guest.fails(&[&member[..], &["set", "a", "weight=5"]].concat())?;
        expect(&refused, "needs the role change, and uid 4711 has the role observe")
    }

    fn shared_page(&mut self) -> Result<(), String> {
        let guest = &self.guest;
        expect(&guest.fails(&["systemctl", "is-enabled", "sluicegate-ui"])?, "disabled")?;
        let warnings = guest.run(&["systemd-analyze", "verify", "--man=no", "sluicegate-ui.service"])?;
        if !warnings.is_empty() {
            return Err(warnings);
        }
        guest.run(&["systemctl", "start", "sluicegate-ui"])?;
        let socket = "/run/sluicegate-ui/page.sock";
        let listens = || guest.output(&["test", "-S", socket]).1.then_some(());
        wait("the page listens", listens)?;
        expect(&guest.run(&["stat", "-c", "%A %U %G", socket])?, "srw-rw---- sluicegate-ui sluicegate-ui")?;
        let host = guest.run(&["uname", "-n"])?;
        // The guest has no curl.
        let ask = format!(
            "use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new('{socket}') or die $!; \
             print $s \"GET /vms/a HTTP/1.1\\r\\nHost: {}\\r\\nConnection: close\\r\\n\\r\\n\"; print <$s>;",
            host.trim()
        );
        let page = || guest.run(&["perl", "-e", &ask]).ok().filter(|page| page.contains("VM a"));
        wait("the page has the VM", page)?;
        guest.run(&["systemctl", "restart", "sluice"])?;
        wait("the page has the VM of the restarted daemon", page)?;
        expect(&guest.run(&["systemctl", "show", "--property=NRestarts", "sluicegate-ui"])?, "=0")
    }

    fn kill(&mut self) -> Result<(), String> {
        self.guest.run(&["sluice", "set", "a", "weight=5"])?;
        let pid = self.show("MainPID")?;
        self.signal("KILL", &pid)?;
        let now = self.wait_for_restart(&pid)?;
        expect(&self.guest.run(&["sluice", "get", "overrides"])?, "a/weight")?;
        // The sandbox leaves the drop-ins writable.
        self.guest.run(&["sluice", "set", "a", "weight=6", "--persist"])?;
        self.guest.run(&["grep", "weight = 6", "/etc/sluice/sluice.d/zz-sluice.toml"])?;
        self.client_works(&now)
    }

    fn watchdog(&mut self) -> Result<(), String> {
        let folder = self.guest.path("/etc/systemd/system/sluice.service.d");
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        fs::write(folder.join("test.conf"), "[Service]\nWatchdogSec=2s\nLimitCORE=0\n")
            .map_err(|error| error.to_string())?;
        self.guest.run(&["systemctl", "daemon-reload"])?;
        self.guest.run(&["systemctl", "restart", "sluice"])?;
        let pid = self.show("MainPID")?;
        self.client_works(&pid)?;
        self.signal("STOP", &pid)?;
        let now = self.wait_for_restart(&pid)?;
        let journal = self.guest.run(&["journalctl", "--no-pager", "-u", "sluice"])?;
        expect(&journal, "Watchdog timeout")?;
        self.client_works(&now)?;
        fs::remove_file(folder.join("test.conf")).map_err(|error| error.to_string())?;
        self.guest.run(&["systemctl", "daemon-reload"]).map(drop)
    }

    fn taps(&mut self) -> Result<(), String> {
        let folder = self.guest.path("/etc/systemd/system/sluice.service.d");
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        fs::copy(workspace::root().join("contrib/systemd/network.conf"), folder.join("network.conf"))
            .map_err(|error| error.to_string())?;
        // As udev does on a host; this container has none.
        self.guest.run(&["chmod", "666", "/dev/net/tun"])?;
        self.write_host(&format!("{HOST}{NETWORK}"))?;
        self.guest.run(&["systemctl", "daemon-reload"])?;
        self.guest.run(&["systemctl", "restart", "sluice"])?;
        let before = self.tap_states()?;
        if before.split_whitespace().step_by(3).any(|carrier| carrier != "1") {
            return Err(format!("The TAPs have no carrier: {before:?}"));
        }
        self.guest.run(&["systemctl", "restart", "sluice"])?;
        same(&before, &self.tap_states()?, "a restart")?;
        let pid = self.show("MainPID")?;
        self.signal("KILL", &pid)?;
        let now = self.wait_for_restart(&pid)?;
        same(&before, &self.tap_states()?, "a crash")?;
        self.guest.run(&["systemctl", "reload", "sluice"])?;
        same(&before, &self.tap_states()?, "a reload")?;
        self.client_works(&now)?;
        self.write_host(HOST)?;
        fs::remove_file(folder.join("network.conf")).map_err(|error| error.to_string())?;
        self.guest.run(&["systemctl", "daemon-reload"])?;
        self.guest.run(&["systemctl", "restart", "sluice"])?;
        self.guest.fails(&["test", "-e", "/sys/class/net/tap-a"]).map(drop)
    }

    /// Properties of the TAPs that show a flap, or another interface.
    fn tap_states(&self) -> Result<String, String> {
        let of =
            |tap: &str| ["carrier", "carrier_changes", "ifindex"].map(|name| format!("/sys/class/net/{tap}/{name}"));
        let files = [of("tap-a"), of("up0")].concat();
        self.guest.run(&[&["cat"][..], &files.iter().map(String::as_str).collect::<Vec<_>>()].concat())
    }

    fn upgrade(&mut self) -> Result<(), String> {
        let pid = self.show("MainPID")?;
        let said = self.dpkg(&self.second)?;
        expect(&said, "still runs the previous version")?;
        let installed = self.guest.run(&["dpkg-query", "-W", "-f", "${Version}", "sluicegate"])?;
        expect(&installed, concat!(env!("CARGO_PKG_VERSION"), "-2"))?;
        self.client_works(&pid)?;
        self.guest.run(&["systemctl", "restart", "sluice"])?;
        let now = self.show("MainPID")?;
        self.client_works(&now)
    }

    fn laboratory(&mut self) -> Result<(), String> {
        let missing = self.guest.output(&["sluice", "reproduce", "--list"]);
        expect(&missing.0, "install the package sluicegate-lab")?;
        self.dpkg(&self.laboratory)?;
        expect(&self.guest.run(&["sluice", "reproduce", "--list"])?, "mclock-allocation")?;
        self.guest.run(&["dpkg", "--purge", "sluicegate-lab"]).map(drop)
    }

    /// As root, with its own user, and with the drop-in of the host file, in which the daemon also serves.
    fn score(&mut self) -> Result<(), String> {
        let guest = &self.guest;
        let unit = guest.run(&["systemd-analyze", "security", "--no-pager", "--offline=true", UNIT])?;
        let own = guest.run(&["systemd-analyze", "security", "--no-pager", "sluice.service"])?;
        let text = guest.run(&["sluice", "check", "--unit", "/etc/sluice/sluice.toml"])?;
        let drop_in = guest.path("/etc/systemd/system/sluice.service.d/10-host.conf");
        fs::write(&drop_in, text).map_err(|error| error.to_string())?;
        guest.run(&["systemctl", "daemon-reload"])?;
        guest.run(&["systemctl", "restart", "sluice"])?;
        let least = guest.run(&["systemd-analyze", "security", "--no-pager", "sluice.service"])?;
        let looked = guest.run(&["sluice", "check", "--host", "/etc/sluice/sluice.toml"])?;
        expect(&looked, "Looking with the rights of user sluice")?;
        let pid = self.show("MainPID")?;
        self.client_works(&pid)?;
        fs::remove_file(&drop_in).map_err(|error| error.to_string())?;
        let manual = workspace::root().join("docs/service.md");
        let manual = fs::read_to_string(&manual).map_err(|error| format!("{}: {error}", manual.display()))?;
        for report in [unit, own, least] {
            let score =
                report.lines().find_map(|line| line.split("Overall exposure level for sluice.service: ").nth(1));
            let score = score.and_then(|rest| rest.split_whitespace().next()).ok_or(report.clone())?;
            expect(&manual, &format!("exposure level of {score}"))?;
        }
        Ok(())
    }

    fn purge(&mut self) -> Result<(), String> {
        let guest = &self.guest;
        self.client = None;
        guest.run(&["dpkg", "--remove", "sluicegate"])?;
        guest.fails(&["systemctl", "is-active", "sluice"])?;
        guest.run(&["test", "-e", "/etc/sluice/sluice.toml"])?;
        guest.run(&["dpkg", "--purge", "sluicegate"])?;
        let files = ["/usr/bin/sluice", "/usr/bin/sluiced", "/usr/share/doc/sluicegate", "/usr/share/sluice"];
        for path in ["/etc/sluice", "/var/lib/sluice", "/run/sluice"].iter().chain(&files) {
            guest.fails(&["test", "-e", path])?;
        }
        guest.run(&["test", "-e", "/srv/vm/a.img"])?;
        let links = guest.run(&["find", "/etc/systemd", "/lib/systemd", "/var/lib/systemd", "-name", "*sluice*"])?;
        if links.is_empty() { Ok(()) } else { Err(format!("Left: {links}")) }
    }

    fn dpkg(&self, package: &Path) -> Result<String, String> {
        fs::copy(package, self.guest.path("/srv/package.deb")).map_err(|error| error.to_string())?;
        self.guest.run(&["dpkg", "--install", "/srv/package.deb"])
    }

    fn write_host(&self, text: &str) -> Result<(), String> {
        fs::write(self.guest.path("/etc/sluice/sluice.toml"), text).map_err(|error| error.to_string())
    }

    /// The guest has no program `kill`, but its shell has the command.
    fn signal(&self, signal: &str, pid: &str) -> Result<String, String> {
        self.guest.run(&["sh", "-c", &format!("kill -{signal} {pid}")])
    }

    /// Returns a property of the service.
    fn show(&self, property: &str) -> Result<String, String> {
        let shown = self.guest.run(&["systemctl", "show", "--value", "--property", property, "sluice"])?;
        Ok(shown.trim().to_owned())
    }

    /// Waits until systemd has replaced the daemon with this number. Returns the new one.
    fn wait_for_restart(&self, pid: &str) -> Result<String, String> {
        wait("the service is restarted", || {
            let (state, now) = (self.show("ActiveState").ok()?, self.show("MainPID").ok()?);
            (state == "active" && now != pid && now != "0").then_some(now)
        })
    }

    /// The client, which was not restarted, reads what it wrote, and the daemon has this number.
    fn client_works(&mut self, pid: &str) -> Result<(), String> {
        let client = self.client.as_mut().ok_or("there is no client")?;
        client.ask("read -P 7 0 64k", "read 65536/65536")?;
        client.ask("write -P 9 1M 64k", "wrote 65536/65536")?;
        let now = self.show("MainPID")?;
        if now == pid { Ok(()) } else { Err(format!("the daemon was {pid} and is {now}")) }
    }
}

fn expect(text: &str, part: &str) -> Result<(), String> {
    if text.contains(part) { Ok(()) } else { Err(format!("'{part}' is not in: {text}")) }
}

fn same(before: &str, after: &str, what: &str) -> Result<(), String> {
    if before == after { Ok(()) } else { Err(format!("The TAPs changed by {what}: {before:?} became {after:?}")) }
}

/// QEMU's NBD client, which stays when the daemon goes, as in a VM.
struct Client {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Client {
    fn connect(socket: &Path) -> Result<Client, String> {
        let options =
            format!("driver=nbd,server.type=unix,server.path={},export=a/v,reconnect-delay=60", socket.display());
        let mut command = Command::new("qemu-io");
        command.args(["--image-opts", &options]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("Cannot start qemu-io: {error}"))?;
        let (stdin, stdout) = (child.stdin.take().expect("it is piped"), child.stdout.take().expect("it is piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Client { child, stdin, lines })
    }

    /// Sends a command, and waits for a line of output that contains `answer`.
    fn ask(&mut self, command: &str, answer: &str) -> Result<(), String> {
        writeln!(self.stdin, "{command}").map_err(|error| format!("qemu-io has ended: {error}"))?;
        loop {
            let line =
                self.lines.recv_timeout(LONG).map_err(|error| format!("qemu-io: no answer to {command}: {error}"))?;
            if line.contains(answer) {
                return Ok(());
            }
            if line.contains("failed") || line.contains("error") {
                return Err(format!("qemu-io: {command}: {line}"));
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
