//! Completion on the command line with the names that the running daemon serves.
//!
//! A shell that has run `source <(COMPLETE=bash sluice)` calls `sluice` for each completion, and this module answers with
//! the names of VMs, volumes, NICs, devices, uplinks, policies and overrides, and with the keys that a target has (`keys.rs`). The scripts of `sluice completions` know only commands and options.
//! A daemon that does not answer in time, or refuses, has no names: completion must not stop the shell or print errors.

mod bash;
mod keys;

use std::cell::LazyCell;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::{Command, CommandFactory};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};
use sluice_api::change::Overrides;
use sluice_api::list::{self, Policies};

use crate::control::Request;
use crate::control::client::Daemon;

/// Maximum time for the daemon's answer. A key press waits for it.
const ANSWER: Duration = Duration::from_millis(500);
/// Maximum number of names that are offered.
const NAMES_MAX: usize = 2_000;

/// Kind of the names that an argument takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Vms,
    Volumes,
    VmsAndVolumes,
    Devices,
    Everything,
    Overrides,
    Policies,
    /// Assignments to keys of the target before them.
    Keys,
}

/// Arguments with names: the verbs that lead to it, its id, and what it names.
const ARGUMENTS: &[(&[&str], &str, Names)] = &[
    (&["set"], "target", Names::VmsAndVolumes),
    (&["set"], "keys", Names::Keys),
    (&["attach"], "target", Names::VmsAndVolumes),
    (&["attach"], "keys", Names::Keys),
    (&["detach"], "target", Names::Volumes),
    (&["resize"], "target", Names::Volumes),
    (&["accept-loss"], "target", Names::VmsAndVolumes),
    (&["takeover"], "target", Names::Volumes),
    (&["set"], "reset", Names::Overrides),
    (&["reset"], "names", Names::Overrides),
    (&["describe"], "name", Names::Everything),
    (&["get", "vms"], "names", Names::Vms),
    (&["get", "volumes"], "names", Names::VmsAndVolumes),
    (&["get", "clients"], "names", Names::VmsAndVolumes),
    (&["get", "devices"], "names", Names::Devices),
    (&["get", "policies"], "names", Names::Policies),
    (&["get", "history"], "target", Names::VmsAndVolumes),
    (&["why"], "vm", Names::Vms),
    (&["events"], "vm", Names::Vms),
    (&["events"], "device", Names::Devices),
    (&["export"], "vm", Names::Vms),
];

/// Answers a shell that asks for completions, and exits. Returns if no shell asks.
pub(crate) fn answer() {
    let shells: [&dyn EnvCompleter; 5] = [&bash::Bash, &Elvish, &Fish, &Powershell, &Zsh];
    CompleteEnv::with_factory(command).shells(Shells(&shells)).complete();
}

/// Returns the command line, whose arguments know the names.
fn command() -> Command {
    ARGUMENTS.iter().fold(crate::Cli::command(), |command, (verbs, id, names)| with_names(command, verbs, id, *names))
}

fn with_names(command: Command, verbs: &[&'static str], id: &'static str, names: Names) -> Command {
    match verbs.split_first() {
        Some((verb, rest)) => command.mut_subcommand(verb, |command| with_names(command, rest, id, names)),
        // Not `mut_arg`, which moves the argument behind the other positional ones.
        None => command.mut_args(|argument| match argument.get_id() == id {
            true => argument.add(ArgValueCompleter::new(move |typed: &OsStr| candidates(names, typed))),
            false => argument,
        }),
    }
}

fn candidates(names: Names, typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let found = match names {
        Names::Keys => assignments(&target_of(std::env::args_os())),
        names => known(names),
    };
    let known = found.into_iter().filter(|name| name.starts_with(typed));
    known.take(NAMES_MAX).map(CompletionCandidate::new).collect()
}

/// Assignments to keys of a target, with names that the daemon serves.
fn assignments(target: &str) -> Vec<String> {
    // Each kind is asked for once, and only if a key takes its names.
    let (policies, devices) = (LazyCell::new(|| known(Names::Policies)), LazyCell::new(|| known(Names::Devices)));
    keys::of(target, &|kind| if kind == "policy" { policies.clone() } else { devices.clone() })
}

/// Returns the target of the unfinished command line: the first word behind `set` or `attach` that is no option.
fn target_of(words: impl Iterator<Item = OsString>) -> String {
    let words = words.filter_map(|word| word.into_string().ok());
    let mut behind = words.skip_while(|word| word != "set" && word != "attach").skip(1).peekable();
    while let Some(word) = behind.next() {
        match word.as_str() {
            "--socket" => drop(behind.next()),
            word if word.starts_with('-') => {}
            word => return word.to_owned(),
        }
    }
    String::new()
}

/// Asks the daemon. Returns no names if it does not answer in time.
fn known(names: Names) -> Vec<String> {
    let (sender, receiver) = channel();
    let daemon = Daemon::at(socket_of(std::env::args_os()));
    // The thread ends with the process if the daemon hangs.
    std::thread::spawn(move || sender.send(ask(&daemon, names)));
    let mut found = receiver.recv_timeout(ANSWER).unwrap_or_default();
    // A policy on two devices is listed twice.
    found.sort();
    found.dedup();
    found
}

fn ask(daemon: &Daemon, names: Names) -> Vec<String> {
    match names {
        Names::Overrides => {
            let all: Overrides = daemon.get(&Request::GetOverrides).unwrap_or_default();
            all.overrides.into_iter().map(|known| known.name).collect()
        }
        Names::Policies => {
            let all: Policies = daemon.get(&Request::Policies).unwrap_or_default();
            all.policies.into_iter().map(|known| known.policy_name).collect()
        }
        _ => names_of(names, &daemon.get(&Request::Names).unwrap_or_default()),
    }
}

fn names_of(names: Names, all: &list::Names) -> Vec<String> {
    let vms = || all.vms.iter().map(|vm| vm.vm.clone()).collect::<Vec<_>>();
    let volumes = || all.vms.iter().flat_map(|vm| &vm.volumes).map(volume).collect::<Vec<_>>();
    let devices = || all.devices.iter().map(|device| device.device.clone()).collect::<Vec<_>>();
    match names {
        Names::Vms => vms(),
        Names::Volumes => volumes(),
        Names::VmsAndVolumes => [vms(), volumes()].concat(),
        Names::Devices => devices(),
        Names::Everything => [vms(), volumes(), devices()].concat(),
        Names::Overrides | Names::Policies | Names::Keys => Vec::new(),
    }
}

fn volume(list::VolumeName { vm, volume }: &list::VolumeName) -> String {
    format!("{vm}/{volume}")
}

/// Returns the socket that the unfinished command line names.
fn socket_of(words: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let mut words = words.skip_while(|word| word != "--socket");
    words.nth(1).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_argument_with_names_exists() {
        let whole = crate::Cli::command();
        for (verbs, id, _) in ARGUMENTS {
            let verb = verbs.iter().try_fold(&whole, |command, verb| command.find_subcommand(verb));
            let verb = verb.unwrap_or_else(|| panic!("{verbs:?}"));
            assert!(verb.get_arguments().any(|argument| argument.get_id() == id), "{verbs:?} {id}");
        }
        command().debug_assert();
    }

    #[test]
    fn names_are_taken_from_the_status() {
        let vm = |vm: &str| {
            let volume = list::VolumeName { vm: vm.to_owned(), volume: "root".to_owned() };
            list::VmNames { vm: vm.to_owned(), volumes: vec![volume] }
        };
        let devices = vec![list::DeviceName { device: "nvme0".to_owned() }];
        let all = list::Names { vms: vec![vm("db"), vm("web")], devices, ..list::Names::default() };
        assert_eq!(names_of(Names::Vms, &all), ["db", "web"]);
        assert_eq!(names_of(Names::VmsAndVolumes, &all), ["db", "web", "db/root", "web/root"]);
        assert_eq!(names_of(Names::Everything, &all).len(), 5);
        assert!(names_of(Names::Vms, &list::Names::default()).is_empty());
    }

    #[test]
    fn the_target_is_read_from_the_command_line() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>().into_iter();
        assert_eq!(target_of(words("sluice -- sluice set --socket /run/x web/nic/eth0 we")), "web/nic/eth0");
        assert_eq!(target_of(words("sluice -- sluice attach web/data --dry-run dev")), "web/data");
        assert_eq!(target_of(words("sluice -- sluice set")), "");
    }

    #[test]
    fn the_socket_is_read_from_the_command_line() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>().into_iter();
        assert_eq!(socket_of(words("sluice -- sluice set --socket /run/x w")), Some("/run/x".into()));
        assert_eq!(socket_of(words("sluice -- sluice set w --socket")), None);
    }
}
