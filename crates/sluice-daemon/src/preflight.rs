//! Looks at the host for a host file, without a daemon: `sluice check --host`, and a start that fails.
//!
//! Everything that a start needs is tried, and all that is wrong is reported together: the state directory, the control
//! socket, and with [`rehearse`] each disk, volume and socket. If a daemon serves the file already, it has the locks and the
//! sockets, which is then no error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_api::object::ObjectId;
use sluice_config::{Files, Host, Port, Uplink};
use sluice_io::endpoint::{Bound, ListenError};
use sluice_io::uplink::link::interface;

use crate::control::changer::{PATH_TIMEOUT, aside};
use crate::control::roles;
use crate::control::socket::{self, ControlSocket};
use crate::failure::chain;
use crate::findings::{Finding, Level};
use crate::metrics::http::Exporter;
use crate::server::{Force, Guard, Problem, ProblemKind, Rehearsal, descriptors, rehearse, tls, without};
use crate::space;
use crate::state::Saved;
use crate::state::folder::{Damaged, StateFolder};
use crate::state::overrides::Override;
use crate::state::start::Restored;

/// The state directory of a daemon with this host file: that of the file, or the one that systemd made.
pub fn state_path(own: &Host) -> Option<PathBuf> {
    own.daemon.state.clone().or_else(state_of_environment)
}

/// The state directory that systemd made.
fn state_of_environment() -> Option<PathBuf> {
    let paths = std::env::var_os("STATE_DIRECTORY")?;
    std::env::split_paths(&paths).next().filter(|path| path.is_absolute())
}

/// State directory of the packaged unit.
const STATE_OF_UNIT: &str = "/var/lib/sluice";

/// The state directory of a daemon with this host file, which may be missing or wrong, or of the packaged unit.
pub fn state_folder(file: &Path) -> PathBuf {
    let own = sluice_config::load_files(file).ok().and_then(|(_, own)| own.daemon.state.clone());
    own.or_else(state_of_environment).unwrap_or_else(|| PathBuf::from(STATE_OF_UNIT))
}

/// Returns the state of the daemon with this host file, which may run; without a state directory an empty one.
///
/// # Errors
/// It cannot be read, or is damaged.
pub fn saved(own: &Host) -> Result<Saved, String> {
    let path = state_path(own).unwrap_or_else(|| PathBuf::from(STATE_OF_UNIT));
    if !path.exists() {
        return Ok(Saved::default());
    }
    let (state, _) = StateFolder::look(&path).map_err(|error| chain(&error))?;
    state.error.map_or(Ok(state.saved), |error| Err(chain(&error)))
}

/// Returns what a start with these files would find, apart from errors in them.
pub fn look(files: &Files, own: &Host) -> std::io::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let known = state(own, &mut findings);
    let is_without_state = known.is_none();
    let (state, is_state_used) = known.unwrap_or_default();
    let Restored { saved, lost, host, .. } = Restored::of(state, files, false, || {});
    findings.extend(changes(files, &saved, &lost));
    let host = host.unwrap_or_else(|_| own.clone());
    let aside = aside::held(&saved.overrides, &host);
    for (name, reason) in &aside {
        let text = format!("would be held back: {reason}");
        findings.push(Finding::new(Level::Error, "held-back", format!("volume {name}"), text));
    }
    let host = without(&host, aside.keys()).into_owned();
    let is_served = control(&host, is_state_used, &mut findings);
    findings.extend((is_without_state && !is_served).then(no_state));
    findings.extend(metrics(&host, is_served));
    findings.extend(roles::missing(&host.daemon.access).into_iter().map(|text| {
        let fix = "create it, or correct [daemon.access]";
        Finding::new(Level::Warning, "access", "", text).fix(fix)
    }));
    let host = Arc::new(host);
    let force = Force::default();
    let Rehearsal { problems, held, bridged, other_gpt, limited } =
        rehearse(&host, &Guard { saved: &saved, force: &force, held: &BTreeMap::new() }, PATH_TIMEOUT, |_| {})?;
    findings.extend(problems.into_iter().map(|problem| of_problem(problem, is_served)));
    for (name, reason) in held {
        let fix = format!("correct the file or restore the source, or accept it with `sluice serve --force {name}`");
        let text = format!("would be held back: {reason}");
        findings.push(Finding::new(Level::Error, "held-back", format!("volume {name}"), text).fix(fix));
    }
    findings.extend(host.uplinks.values().filter_map(|uplink| {
        let (Port::Bridge(name) | Port::Nic(name)) = &uplink.port else { return None };
        too_long(uplink, interface::mtu(name).ok()?.into())
    }));
    findings.extend(space::findings(&host));
    findings.extend(tls::findings(&host));
    if !rustix::process::geteuid().is_root() {
        findings.extend(of_user(&host));
    }
    findings.extend(bridged.into_iter().map(|(name, blocks)| {
        let fix = format!("if no guest has used it, block_size = \"{}B\" avoids this", blocks.disk);
        Finding::new(Level::Note, "block-size", format!("volume {name}"), blocks.cost()).fix(fix)
    }));
    findings.extend(other_gpt.into_iter().map(|(name, stated, of_gpt)| {
        let text =
            format!("Its block size is {stated} bytes, and its GPT was made for {of_gpt}: a guest finds no partitions");
        let fix = format!("remove the key, or write block_size = \"{of_gpt}B\"");
        Finding::new(Level::Warning, "block-size", format!("volume {name}"), text).fix(fix)
    }));
    findings.extend(limited.into_iter().map(|(name, limits)| of_image(&name, &limits)));
    sluice_io::limits::raise_descriptors();
    findings.extend(descriptors(&host).map(|text| {
        let fix = "limits of a service are in its unit (LimitNOFILE), those of this shell in `ulimit -Hn`";
        Finding::new(Level::Warning, "descriptors", "", text).fix(fix)
    }));
    findings.extend(of_kernel(&host));
    Ok(findings)
}

/// The finding about limits that librbd puts on an image.
fn of_image(name: &ObjectId, limits: &[(String, String)]) -> Finding {
    let options: Vec<_> = limits.iter().map(|(option, value)| format!("{option} = {value}")).collect();
    let text = format!(
        "Its image has limits below the scheduler ({}): a reservation above them is not met, and its requests count as slow ones of the device",
        options.join(", ")
    );
    let fix = "remove them with `rbd config image rm`, from a pool with `rbd config pool rm`, and state the limit of the VM here";
    Finding::new(Level::Warning, "image-limit", format!("volume {name}"), text).fix(fix)
}

/// What the kernel does not do for this user.
fn of_kernel(host: &Host) -> Vec<Finding> {
    let ring = sluice_io::backend::ring::Ring::new().err().map(|error| {
        let text = format!("cannot be used by this user: {error}");
        Finding::new(Level::Error, "io_uring", "", text).fix("run `sluice doctor`")
    });
    ring.into_iter().chain(crate::jail::findings(Some(host))).collect()
}

/// Returns the host with the changes made at run time that a state directory has, if it is there.
///
/// # Errors
/// The state cannot be read.
pub fn with_changes(files: &Files, own: &Host, state: &Path) -> Result<Host, String> {
    if !state.exists() {
        return Ok(own.clone());
    }
    let (state, _) = StateFolder::look(state).map_err(|error| chain(&error))?;
    let Restored { host, damage, .. } = Restored::of(state, files, false, || {});
    match damage {
        Some(error) => Err(chain(&error)),
        None => Ok(host.unwrap_or_else(|_| own.clone())),
    }
}

/// Returns everything that keeps this host file from being served, apart from the state directory and the control socket.
/// `waits_for` is called with each path that it waits for.
pub fn problems(host: &Arc<Host>, saved: &Saved, force: &Force, waits_for: impl FnMut(&Path)) -> Vec<String> {
    match rehearse(host, &Guard { saved, force, held: &BTreeMap::new() }, PATH_TIMEOUT, waits_for) {
        Ok(rehearsal) => rehearsal.problems.into_iter().map(|problem| problem.text).collect(),
        Err(error) => vec![format!("Cannot look at the host: {error}")],
    }
}

/// Finds changes made at run time that would not be in force.
fn changes(files: &Files, saved: &Saved, lost: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let names: Vec<String> = saved.overrides.aside().map(Override::name).collect();
    if !names.is_empty() {
        let found = files.changed(&saved.overrides.all_changes());
        let found = found.err().map_or_else(String::new, |found| format!(": {found}"));
        let names = names.join(", ");
        let text = format!("not valid with changes made at run time, which would be set aside ({names}){found}");
        let fix = "correct the file, or undo changes with `sluice reset NAME`";
        findings.push(Finding::new(Level::Error, "overrides", "", text).fix(fix));
    }
    findings.extend(lost.iter().map(|name| {
        let text = format!("the change made at run time {name} is lost: its part of the state file is damaged");
        Finding::new(Level::Error, "overrides", "", text)
    }));
    findings
}

/// Returns notes for a daemon that is not root: rights that it lacks for later disks, and for naming processes.
fn of_user(host: &Host) -> Vec<Finding> {
    let patterns = host.devices.values().filter(|device| device.paths.iter().any(sluice_config::DiskPath::is_pattern));
    let note = |about, text, fix| Finding::new(Level::Note, "user", about, text).fix(fix);
    let (later, rules) =
        ("A disk that joins later is opened as this user", "rules of udev give it: `sluice check --udev FILE`");
    let holder = "The process that holds an image open is not named if another user runs it or it is a sealed daemon";
    let later = patterns.map(|device| note(format!("device {}", device.name), later, rules));
    later.chain([note(String::new(), holder, "`fuser FILE` as root")]).collect()
}

fn of_problem(problem: Problem, is_served: bool) -> Finding {
    let Problem { about, text, kind } = problem;
    match kind {
        ProblemKind::Taken if is_served => {
            let text = format!("In use, perhaps by the running daemon itself: {text}");
            Finding::new(Level::Note, "in-use", about, text)
        }
        ProblemKind::Fatal => Finding::new(Level::Error, "host", about, text),
        ProblemKind::Taken | ProblemKind::OutOfService => {
            Finding::new(Level::Error, "out-of-service", about, format!("would be out of service: {text}"))
        }
    }
}

/// A service that runs has the one that its unit states, which this shell does not know.
fn no_state() -> Finding {
    let text = "There is no state directory, so changes at run time that must last are refused";
    let fix =
        "the service has one, by StateDirectory= in its unit; otherwise set state = \"/var/lib/sluice\" in [daemon]";
    Finding::new(Level::Note, "state", "", text).fix(fix)
}

/// Reads the state, or what is not damaged of it. Returns it, and whether a daemon uses it; `None`: no state directory is known. If
/// neither the file nor the environment names one, it is that of the packaged unit, if it is there.
fn state(own: &Host, findings: &mut Vec<Finding>) -> Option<(Damaged, bool)> {
    let of_unit = || Some(PathBuf::from(STATE_OF_UNIT)).filter(|path| path.is_dir());
    let path = state_path(own).or_else(of_unit)?;
    let about = path.display().to_string();
    Some(match StateFolder::look(&path) {
        Ok((state, is_used)) => {
            if is_used {
                let text = "A daemon uses it. Volumes that it serves are not opened, so it is not known whether they would be held back";
                let fix = "`sluice apply --dry-run FILE` says what a reload would do";
                findings.push(Finding::new(Level::Note, "state", &about, text).fix(fix));
            }
            findings.extend(state.error.as_ref().map(|error| Finding::new(Level::Error, "state", about, chain(error))));
            (state, is_used)
        }
        Err(error) => {
            findings.push(Finding::new(Level::Error, "state", about, chain(&error)));
            (Damaged::default(), false)
        }
    })
}

/// Tries the endpoint of metrics.
fn metrics(host: &Host, is_served: bool) -> Option<Finding> {
    let endpoint = Exporter::endpoint(&host.daemon)?;
    let about = format!("metrics {endpoint}");
    let error = Bound::prepare(endpoint, None).map(drop).err()?;
    let kind = if matches!(error, ListenError::InUse(_)) { ProblemKind::Taken } else { ProblemKind::Fatal };
    Some(of_problem(Problem { about, text: chain(&error), kind }, is_served))
}

/// Tries the control socket. Returns whether a daemon seems to serve this file.
fn control(host: &Host, is_state_used: bool, findings: &mut Vec<Finding>) -> bool {
    let Some((path, is_stated)) = socket::path(&host.daemon) else { return is_state_used };
    let about = path.display().to_string();
    match Bound::prepare(ControlSocket::endpoint(&path), None).map(drop) {
        Ok(()) => is_state_used,
        Err(ListenError::InUse(_)) => {
            findings.push(Finding::new(Level::Note, "control", about, "A daemon listens there"));
            true
        }
        Err(error) => {
            // A daemon starts without a socket that the file does not state.
            let level = if is_stated { Level::Error } else { Level::Warning };
            findings.push(Finding::new(level, "control", about, chain(&error)));
            is_state_used
        }
    }
}

/// Returns a finding if frames of the uplink are longer than what its interface carries, with this MTU.
pub fn too_long(uplink: &Uplink, mtu: u64) -> Option<Finding> {
    let (Port::Bridge(name) | Port::Nic(name)) = &uplink.port else { return None };
    let text = format!(
        "{name} carries packets of {mtu} bytes, and the uplink's mtu is {}: longer frames are lost",
        uplink.mtu
    );
    let fix = format!("ip link set {name} mtu {}, or lower mtu in the host file", uplink.mtu);
    let found = Finding::new(Level::Warning, "network", format!("uplink {}", uplink.link.name), text).fix(fix);
    (mtu < u64::from(uplink.mtu)).then_some(found)
}
