//! Finds out which folders and files the daemon needs, for the rules of landlock. A process of its own does that. The path of a dead server would
//! hang a thread of the daemon, and a thread that exists before landlock is applied is not restricted by it.
//!
//! The rule of a folder lies on the folder. It lies on its nearest existing parent if the folder is missing, is a mount point or does not
//! respond, or if a volume in it is missing: a file system that is mounted there later would otherwise stay shut. The root is never allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sluice_config::{Host, Jail as Settings};

use crate::control::socket;
use crate::launcher::PROGRAM;
use crate::preflight;
use crate::reach::{Reach, mount_points, through_mount};

/// Name of the command of the daemon's program.
pub const COMMAND: &str = "look";

/// Maximum time until a path responds.
const PATH_MAX: Duration = Duration::from_secs(1);
/// Maximum time of the look.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// Where an uplink sets its interfaces: that the host has no IPv6 address on a TAP, that a port of a bridge is isolated.
const KERNEL: [&str; 2] = ["/proc/sys/net/ipv6/conf", "/sys/devices/virtual/net"];

/// Access that a rule gives to the files below its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Right {
    Read,
    /// Files are changed, made and removed.
    Write,
    /// Devices are read, written and controlled.
    Device,
    /// Settings of the kernel are read and written.
    Kernel,
}

/// A rule of landlock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Rule {
    pub(super) path: PathBuf,
    pub(super) right: Right,
    pub(super) is_folder: bool,
}

/// The rules for a host file, with what else the seal needs to know of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Look {
    pub(super) rules: Vec<Rule>,
    pub(super) ports: Vec<u16>,
    pub(super) reach: Reach,
    pub(super) settings: Settings,
    pub(super) warnings: Vec<String>,
}

impl Look {
    /// Starts a process that finds out the rules for this host file, and reads them.
    ///
    /// # Errors
    /// The reason in words. The start will say more of it.
    pub(super) fn ask(file: &Path) -> Result<Look, String> {
        // This program, also after an upgrade has replaced its file.
        let mut command = Command::new("/proc/self/exe");
        command.arg0(PROGRAM).arg(COMMAND).arg(file).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("its first process cannot be started: {error}"))?;
        let mut output = child.stdout.take().ok_or("its first process has no output")?;
        let (mut text, mut chunk, until) = (Vec::new(), [0; 4096], Instant::now() + LOOK_MAX);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let ready = poll(&mut [PollFd::new(&output, PollFlags::IN)], Timespec::try_from(left).ok().as_ref());
            match ready {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
                // It hangs where the daemon will.
                Ok(0) => break,
                Ok(_) => match output.read(&mut chunk).map_err(|error| error.to_string())? {
                    0 => break,
                    read => text.extend(&chunk[..read]),
                },
            }
        }
        let _ = child.kill();
        // It is not waited for if it hangs.
        for _ in 0..100 {
            if child.try_wait().is_ok_and(|ended| ended.is_some()) {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        serde_json::from_slice(&text).map_err(|_| "what the host file needs is not known: it cannot be read".to_owned())
    }
}

/// Prints the rules for this host file; nothing, if the file cannot be read.
pub fn run(file: &Path) {
    // What comes from a pipe comes once.
    let is_file = std::fs::metadata(file).is_ok_and(|found| found.is_file());
    let Some((files, own)) = is_file.then(|| sluice_config::load_files(file).ok()).flatten() else { return };
    let state = preflight::state_path(&own);
    // What was attached at run time. If that cannot be read, the start says so.
    let host = state.as_ref().and_then(|state| preflight::with_changes(&files, &own, state).ok());
    let look = Looking::new().at(file, &own, host.as_ref(), state.as_deref());
    if let Ok(text) = serde_json::to_string(&look) {
        println!("{text}");
    }
    // Threads that hang are not waited for.
    std::process::exit(0);
}

/// A look that goes on.
struct Looking {
    /// What has not responded by then counts as missing.
    until: Instant,
    mounts: BTreeSet<PathBuf>,
    /// Mount points with a path that did not respond.
    hung: BTreeSet<PathBuf>,
    /// What is known of paths.
    known: BTreeMap<PathBuf, Option<Found>>,
    rules: BTreeSet<Rule>,
    warnings: Vec<String>,
}

/// What a path leads to.
#[derive(Debug, Clone)]
struct Found {
    path: PathBuf,
    is_folder: bool,
    /// Whether it is a block device.
    is_disk: bool,
}

impl Looking {
    fn new() -> Looking {
        Looking {
            until: Instant::now() + LOOK_MAX / 2,
            mounts: mount_points(),
            hung: BTreeSet::new(),
            known: BTreeMap::new(),
            rules: BTreeSet::new(),
            warnings: Vec::new(),
        }
    }

    fn patience(&self) -> Duration {
        PATH_MAX.min(self.until.saturating_duration_since(Instant::now()))
    }

    /// Looks for the host of the files, and with what was changed at run time.
    fn at(mut self, file: &Path, own: &Host, changed: Option<&Host>, state: Option<&Path>) -> Look {
        let mut reach = Reach::of(own);
        let control = socket::path(&own.daemon);
        reach.sockets.extend(control.iter().filter_map(|(path, _)| path.parent()).map(Path::to_owned));
        // A folder that says which disk a device is, is where its images are.
        let disks = reach.disks.iter().filter(|disk| self.look(disk).is_some_and(|found| found.is_folder));
        let folders: Vec<PathBuf> = disks.filter(|disk| disk.as_path() != Path::new("/")).cloned().collect();
        reach.folders.extend(folders);
        changed.into_iter().for_each(|host| self.add_changes(&mut reach, &Reach::of(host)));
        self.look_at_all(&reach);
        self.system(&reach);
        self.own(file, state);
        for folder in reach.folders.iter().chain(&reach.sockets) {
            self.folder(folder, Right::Write);
        }
        for (source, is_read_only) in &reach.sources {
            self.source(source, if *is_read_only { Right::Read } else { Right::Write });
        }
        for disk in &reach.disks {
            self.disk(disk);
        }
        for key in &reach.keys {
            self.key(key);
        }
        self.warn_of_programs(&reach);
        let ports = reach.addresses.iter().map(std::net::SocketAddr::port).collect();
        let rules = self.rules.into_iter().collect();
        Look { rules, ports, reach, settings: own.daemon.jail.clone(), warnings: self.warnings }
    }

    /// Adds what was attached at run time in the folders of the files. The state, which the daemon itself writes, opens no other ones.
    fn add_changes(&mut self, reach: &mut Reach, changed: &Reach) {
        let (sources, sockets) = (reach.source_folders(), reach.sockets.clone());
        let is_in = |path: &Path, folders: &BTreeSet<PathBuf>| folders.iter().any(|folder| path.starts_with(folder));
        let new = changed.sources.iter().filter(|(source, _)| !reach.sources.contains_key(*source));
        let (known, strange): (Vec<_>, Vec<_>) = new.partition(|(source, _)| is_in(source, &sources));
        let text = |source: &Path| {
            format!(
                "{} was attached at run time, and the host file does not name its folder: name it as source_root",
                source.display()
            )
        };
        self.warnings.extend(strange.into_iter().map(|(source, _)| text(source)));
        reach.sources.extend(known.into_iter().map(|(source, is_read_only)| (source.clone(), *is_read_only)));
        reach.sockets.extend(changed.sockets.iter().filter(|folder| is_in(folder, &sockets)).cloned());
    }

    /// Warns of programs that the daemon could write.
    fn warn_of_programs(&mut self, reach: &Reach) {
        let writable: Vec<&Rule> = self.rules.iter().filter(|rule| rule.right == Right::Write).collect();
        let open = reach.programs.iter().filter(|program| writable.iter().any(|rule| program.starts_with(&rule.path)));
        self.warnings.extend(open.map(|program| {
            let program = program.display();
            format!("The daemon may change {program}, which runs outside its seal: move the program out of the folders of images, sockets and state")
        }));
    }

    /// Looks at all images at once, by a thread for each folder: a file system that does not respond keeps no other one waiting.
    fn look_at_all(&mut self, reach: &Reach) {
        let mut by_folder: BTreeMap<&Path, Vec<PathBuf>> = BTreeMap::new();
        for source in reach.sources.keys() {
            by_folder.entry(source.parent().unwrap_or(source)).or_default().push(source.clone());
        }
        let (sender, answers) = channel();
        for (folder, sources) in by_folder {
            let (sender, folder) = (sender.clone(), folder.to_owned());
            let look =
                move || [folder].into_iter().chain(sources).try_for_each(|path| sender.send((find(&path), path)));
            let _ = thread::Builder::new().spawn(look);
        }
        drop(sender);
        while let Ok((found, path)) = answers.recv_timeout(self.patience()) {
            self.known.insert(path, found);
        }
        // What has not responded counts as missing, and is not waited for again.
        for source in reach.sources.keys() {
            let folder = source.parent().unwrap_or(source);
            for path in [folder, source] {
                self.known.entry(path.to_owned()).or_insert(None);
            }
        }
    }

    /// What the kernel says of itself, time zones, and what every program has.
    fn system(&mut self, reach: &Reach) {
        for folder in ["/proc", "/sys", "/usr/share/zoneinfo"] {
            self.rule(Path::new(folder), Right::Read);
        }
        self.rule(Path::new("/etc/localtime"), Right::Read);
        for device in ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"] {
            self.rule(Path::new(device), Right::Device);
        }
        if reach.taps || reach.links {
            self.rule(Path::new("/dev/net/tun"), Right::Device);
            for folder in KERNEL {
                self.rule(Path::new(folder), Right::Kernel);
            }
        }
    }

    /// The folders of the host file, which the launcher writes for `--persist`, and of the state.
    fn own(&mut self, file: &Path, state: Option<&Path>) {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let target = self.look(&file).map_or_else(|| file.clone(), |found| found.path);
        let drop_ins = file.with_extension("d");
        let links = std::fs::read_dir(&drop_ins).into_iter().flatten().flatten().map(|entry| entry.path());
        let links: Vec<PathBuf> = links.filter_map(|drop_in| Some(self.look(&drop_in)?.path)).collect();
        for read in [&file, &target].into_iter().chain(&links) {
            match read.parent() {
                // The root is not allowed, so a file there must not be replaced.
                Some(folder) if folder == Path::new("/") => {
                    [read, &drop_ins].into_iter().for_each(|path| self.rule(path, Right::Read));
                }
                folder => self.rule(folder.unwrap_or(read), Right::Read),
            }
        }
        if let Some(state) = state {
            self.folder(state, Right::Write);
        }
    }

    /// Allows a key, and one that replaces its file later: its folder, unless that is the root.
    fn key(&mut self, key: &Path) {
        let folder = key.parent().filter(|folder| *folder != Path::new("/")).unwrap_or(key);
        self.rule(folder, Right::Read);
        if let Some(found) = self.look(key) {
            self.rule(&found.path, Right::Read);
        }
    }

    /// Allows what is below a folder, whatever is mounted there later.
    fn folder(&mut self, folder: &Path, right: Right) {
        let reached = through_mount(folder, &self.mounts).to_owned();
        self.nearest(&reached, right);
    }

    /// Allows what is below the nearest existing folder that responds.
    fn nearest(&mut self, folder: &Path, right: Right) {
        let mut at = folder;
        while at != Path::new("/") {
            if self.look(at).is_some() {
                return self.rule(at, right);
            }
            at = at.parent().unwrap_or(Path::new("/"));
        }
        let shown = folder.display();
        self.warnings
            .push(format!("{shown} is missing, and so it stays shut for this daemon: make it, and restart the daemon"));
    }

    /// Allows an image, with the other files of its folder, or a disk.
    fn source(&mut self, source: &Path, right: Right) {
        if is_device(source) {
            return self.devices();
        }
        let folder = source.parent().unwrap_or(Path::new("/"));
        match self.look(source) {
            Some(found) if is_device(&found.path) => self.devices(),
            Some(found) if found.is_disk || folder == Path::new("/") => {
                self.rule(source, if found.is_disk { Right::Device } else { right });
            }
            Some(found) => {
                let real = found.path.parent().unwrap_or(folder);
                self.folder(real, right);
                // Its links are read.
                let is_real = self.look(folder).is_some_and(|found| found.path == real);
                self.folder(folder, if is_real { right } else { Right::Read });
            }
            None => self.missing(source, right),
        }
    }

    /// Allows an image whose file system may be mounted later: at the nearest folder that exists, or below it.
    fn missing(&mut self, source: &Path, right: Right) {
        let mut folders = source.ancestors().skip(1);
        let Some(nearest) = folders.find(|folder| self.look(folder).is_some()) else { return };
        match nearest.parent().filter(|parent| *parent != Path::new("/")) {
            Some(parent) => self.rule(parent, right),
            None => {
                let (source, shown) = (source.display(), nearest.display());
                self.warnings.push(format!(
                    "{source} is missing: if its file system is mounted at {shown} later, restart the daemon"
                ));
                if nearest != Path::new("/") {
                    self.rule(nearest, right);
                }
            }
        }
    }

    /// Allows what a device names: disks, or a file on a disk, which is looked at and not opened.
    fn disk(&mut self, disk: &Path) {
        let found = self.look(disk);
        let is_pattern = disk.to_string_lossy().contains('*');
        if is_device(disk) || is_pattern || found.is_some_and(|found| is_device(&found.path)) {
            self.devices();
        }
        if is_pattern {
            disk.parent().into_iter().for_each(|folder| self.folder(folder, Right::Read));
        }
    }

    /// Allows the folder of devices: the file of a disk that is removed and returns is another one. Owner and mode say which disks the
    /// daemon's user may open, and the unit which its service may.
    fn devices(&mut self) {
        self.rule(Path::new("/dev"), Right::Device);
    }

    fn rule(&mut self, path: &Path, right: Right) {
        if let Some(found) = self.look(path) {
            self.rules.insert(Rule { path: path.to_owned(), right, is_folder: found.is_folder });
        }
    }

    /// What a path leads to; `None` if it is missing or does not respond.
    fn look(&mut self, path: &Path) -> Option<Found> {
        if self.hung.iter().any(|hung| path.starts_with(hung)) {
            return None;
        }
        if let Some(known) = self.known.get(path) {
            return known.clone();
        }
        let (sender, answer) = channel();
        let own = path.to_owned();
        let look = move || drop(sender.send(find(&own)));
        let started = thread::Builder::new().spawn(look).is_ok();
        let found = match answer.recv_timeout(if started { self.patience() } else { Duration::ZERO }) {
            Ok(found) => found,
            Err(_) => {
                // Everything is below the root, so that one says nothing.
                let mount = path.ancestors().find(|at| *at != Path::new("/") && self.mounts.contains(*at));
                self.hung.insert(mount.unwrap_or(path).to_owned());
                None
            }
        };
        self.known.insert(path.to_owned(), found.clone());
        found
    }
}

fn find(path: &Path) -> Option<Found> {
    // A link may lead to a disk that is activated later.
    let later = || std::fs::read_link(path).ok().filter(|target| is_device(target));
    let Ok(path) = std::fs::canonicalize(path) else {
        return later().map(|path| Found { path, is_folder: false, is_disk: true });
    };
    let kind = std::fs::metadata(&path).ok()?.file_type();
    Some(Found { path, is_folder: kind.is_dir(), is_disk: kind.is_block_device() })
}

/// Whether a path is in the folder of devices.
fn is_device(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}
