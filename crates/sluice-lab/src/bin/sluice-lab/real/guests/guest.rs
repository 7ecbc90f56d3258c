//! A guest: QEMU, and the line to the guest's first process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use sluice_lab::real::Load;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};

use super::super::run::Sample;
use super::image::Image;
use sluice_client::programs;

/// Maximum time of a boot: emulated, on a busy machine.
const BOOT_MAX: Duration = Duration::from_secs(240);
/// Maximum time until a guest answers.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Interval of checks whether QEMU still runs before it has connected.
const CHECK_EVERY: Duration = Duration::from_millis(50);
const MEMORY: &str = "256M";
/// Niceness of QEMU above that of this process.
const BEHIND_SERVER: &str = "5";
/// Do not wait for missing hardware, and print only errors on the console. The time is that of the emulated HPET, which is the host's. The
/// kernel measures the speed of the emulated TSC at boot, and on a busy machine finds several times too much or too little.
const KERNEL: &str = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on audit=0 selinux=0 apparmor=0 \
                      tsc=unstable clocksource=hpet rcupdate.rcu_expedited=1 8250.nr_uarts=1 no_timer_check cryptomgr.notests";
/// Requests of the disk's queue: more than any guest has outstanding.
const QUEUE: u32 = 128;

/// The disk of a guest.
#[derive(Debug, Clone)]
pub(super) enum Disk {
    /// The socket of a vhost-user-blk server.
    Vhost(PathBuf),
    /// A part of a block device of the host.
    Block { device: String, offset: u64, size: u64 },
}

/// Why a guest cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum GuestError {
    #[error("Guest {vm}: QEMU cannot be started")]
    Start {
        vm: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("Guest {vm}: {what}; QEMU and the guest's kernel printed: {printed}")]
    Lost { vm: &'static str, what: &'static str, printed: String },
}

/// Counters of a guest's disk since it was attached, and the guest's time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Counters {
    uptime_seconds: f64,
    requests: f64,
    total_ms: f64,
}

impl Counters {
    /// Reads an answer: the uptime, and the counters as in the kernel's documentation of block statistics.
    fn parse(line: &str) -> Option<Counters> {
        let numbers: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let [uptime, reads, _, _, reads_ms, writes, _, _, writes_ms, ..] = numbers[..] else { return None };
        Some(Counters { uptime_seconds: uptime, requests: reads + writes, total_ms: reads_ms + writes_ms })
    }

    /// What has happened since `earlier`.
    pub(super) fn since(&self, earlier: &Counters) -> Sample {
        Sample {
            seconds: self.uptime_seconds - earlier.uptime_seconds,
            requests: self.requests - earlier.requests,
            total_ms: self.total_ms - earlier.total_ms,
        }
    }
}

/// A running guest. Dropping it ends it.
pub(super) struct Guest {
    vm: &'static str,
    qemu: Child,
    lines: Option<(Lines<BufReader<OwnedReadHalf>>, OwnedWriteHalf)>,
    listener: UnixListener,
    /// Its console, and what QEMU prints.
    printed: [PathBuf; 2],
}

impl Guest {
    /// Starts QEMU. Files of the guest are in `folder`.
    pub(super) fn power_on(
        vm: &'static str,
        load: &Load,
        image: &Image,
        disk: &Disk,
        folder: &Path,
    ) -> Result<Guest, GuestError> {
        let failed = |source| GuestError::Start { vm, source };
        let [port, console, errors] = ["port", "console", "errors"].map(|name| folder.join(format!("{vm}.{name}")));
        let listener = UnixListener::bind(&port).map_err(failed)?;
        // The server comes first: a guest that waits for a CPU is slower, a server that waits makes all guests slower.
        let mut command = programs::command("nice");
        command.args(["-n", BEHIND_SERVER]).arg(programs::find("qemu-system-x86_64").unwrap_or_default());
        command.args(arguments(load, image, disk, &port, &console));
        command.stdout(Stdio::null()).stderr(File::create(&errors).map_err(failed)?);
        let qemu = command.spawn().map_err(failed)?;
        Ok(Guest { vm, qemu, lines: None, listener, printed: [console, errors] })
    }

    /// The process of QEMU.
    pub(super) fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// Waits until it has booted.
    pub(super) async fn ready(&mut self) -> Result<(), GuestError> {
        let boot = async {
            let (input, output) = self.connected().await?.into_split();
            self.lines = Some((BufReader::new(input).lines(), output));
            self.line().await
        };
        match tokio::time::timeout(BOOT_MAX, boot).await {
            Ok(Some(line)) if line == "ready" => Ok(()),
            Ok(_) => Err(self.lost("it has ended before it booted")),
            Err(_) => Err(self.lost("it does not boot")),
        }
    }

    /// Starts its load.
    pub(super) async fn go(&mut self) -> Result<(), GuestError> {
        self.send("go\n").await.ok_or_else(|| self.lost("it has ended"))
    }

    /// Returns its counters now.
    pub(super) async fn look(&mut self) -> Result<Counters, GuestError> {
        let answer = async {
            self.send("look\n").await?;
            Counters::parse(&self.line().await?)
        };
        match tokio::time::timeout(ANSWER_MAX, answer).await {
            Ok(Some(counters)) => Ok(counters),
            Ok(None) => Err(self.lost("it has ended")),
            Err(_) => Err(self.lost("it does not answer")),
        }
    }

    /// Waits until QEMU has connected; `None` if it has ended.
    async fn connected(&mut self) -> Option<UnixStream> {
        loop {
            match tokio::time::timeout(CHECK_EVERY, self.listener.accept()).await {
                Ok(accepted) => return accepted.ok().map(|(stream, _)| stream),
                Err(_) if self.qemu.try_wait().is_ok_and(|ended| ended.is_none()) => {}
                Err(_) => return None,
            }
        }
    }

    async fn send(&mut self, line: &str) -> Option<()> {
        self.lines.as_mut()?.1.write_all(line.as_bytes()).await.ok()
    }

    async fn line(&mut self) -> Option<String> {
        self.lines.as_mut()?.0.next_line().await.ok()?
    }

    fn lost(&self, what: &'static str) -> GuestError {
        let printed = self.printed.each_ref().map(|file| std::fs::read(file).unwrap_or_default());
        let printed = printed.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
        GuestError::Lost { vm: self.vm, what, printed: printed.join("; ") }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// QEMU's arguments. It always emulates, so that it runs without KVM.
fn arguments(load: &Load, image: &Image, disk: &Disk, port: &Path, console: &Path) -> Vec<String> {
    let load = format!("outstanding={} writers={} request_bytes={}", load.outstanding, load.writers(), load.length);
    let memory = format!("memory-backend-memfd,id=guest-memory,size={MEMORY},share=on");
    let [kernel, first] = [&image.kernel, &image.first_file_system].map(|file| file.display().to_string());
    let mut words: Vec<String> = "-nodefaults -no-user-config -display none -cpu Nehalem -smp 1 -machine"
        .split(' ')
        .map(str::to_owned)
        .collect();
    let mut add = |of: &[&str]| words.extend(of.iter().map(|word| (*word).to_owned()));
    add(&["q35,accel=tcg,hpet=on,memory-backend=guest-memory", "-m", MEMORY, "-object", &memory]);
    add(&["-kernel", &kernel, "-initrd", &first, "-append", &format!("{KERNEL} {load}")]);
    add(&["-serial", &format!("file:{}", console.display())]);
    add(&["-chardev", &format!("socket,id=port,path={}", port.display())]);
    add(&["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=port"]);
    let queue = format!("num-queues=1,queue-size={QUEUE}");
    match disk {
        Disk::Vhost(socket) => {
            add(&["-chardev", &format!("socket,id=disk,path={}", socket.display())]);
            add(&["-device", &format!("vhost-user-blk-pci,chardev=disk,{queue}")]);
        }
        Disk::Block { device, offset, size } => {
            // The disks are different parts of the device, whose lock only one could have.
            let host = format!(
                "file.driver=host_device,file.filename={device},file.cache.direct=on,file.aio=native,file.locking=off"
            );
            add(&[
                "-blockdev",
                &format!("driver=raw,node-name=disk,offset={offset},size={size},cache.direct=on,{host}"),
            ]);
            add(&["-device", &format!("virtio-blk-pci,drive=disk,{queue}")]);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_and_subtracted() {
        let first = Counters::parse("10.25 100 0 3200 500 10 0 20 60 32 700 560 0 0 0 0 0 0").unwrap();
        assert_eq!(first, Counters { uptime_seconds: 10.25, requests: 110.0, total_ms: 560.0 });
        let second = Counters::parse("11.25 200 0 6400 1500 20 0 40 160").unwrap();
        assert_eq!(second.since(&first), Sample { seconds: 1.0, requests: 110.0, total_ms: 1100.0 });
        for wrong in ["", "ready", "10.25 100 0 3200", "10.25 a 0 3200 500 10 0 20 60"] {
            assert_eq!(Counters::parse(wrong), None, "{wrong}");
        }
    }
}
