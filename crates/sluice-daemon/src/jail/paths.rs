//! Landlock: the folders and files of the host file, and what the kernel says of itself.

use std::os::fd::AsFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::look::{Right, Rule};

/// What is restricted, as far as the kernel knows it.
const VERSION: ABI = ABI::V6;

/// Restricts this thread, and those that it starts. Returns what the kernel lacks.
///
/// # Errors
/// The reason in words.
pub(super) fn restrict(rules: &[Rule], ports: &[u16]) -> Result<Option<String>, String> {
    let restricted =
        ruleset(rules, ports).and_then(RulesetCreated::restrict_self).map_err(|error| error.to_string())?;
    let version = match restricted.landlock {
        LandlockStatus::NotEnabled => {
            return Err("the kernel has it and it is off: add landlock to lsm= of its command line".to_owned());
        }
        LandlockStatus::NotImplemented => {
            return Err("the kernel does not have it (Linux 5.13 with CONFIG_SECURITY_LANDLOCK), or the unit or container forbids it".to_owned());
        }
        LandlockStatus::Available { effective_abi, .. } => effective_abi,
    };
    Ok((restricted.ruleset != RulesetStatus::FullyEnforced).then(|| {
        format!("the kernel has version {} of it: before 6 it does not restrict all of truncating files, ioctl of devices, ports and signals", version as i32)
    }))
}

fn ruleset(rules: &[Rule], ports: &[u16]) -> Result<RulesetCreated, RulesetError> {
    let created = Ruleset::default()
        .handle_access(AccessFs::from_all(VERSION))?
        .handle_access(AccessNet::from_all(VERSION))?
        // Sockets without a path are not restricted: the service manager may have one.
        .scope(Scope::Signal)?
        .create()?;
    // A path that has gone since then needs no rule.
    let opened = rules.iter().filter_map(|rule| Some((rule, PathFd::new(&rule.path).ok()?)));
    let paths = opened.map(|(rule, opened)| {
        let beneath = PathBeneath::new(opened.as_fd().try_clone_to_owned().ok()?, access(rule));
        // The kernel makes another folder there, which has no rule, when nothing holds this one.
        if rule.right == Right::Kernel {
            std::mem::forget(opened);
        }
        Some(Ok(beneath))
    });
    let ports = ports.iter().map(|port| Ok(NetPort::new(*port, AccessNet::BindTcp)));
    created.add_rules::<_, _, _, RulesetError>(paths.flatten())?.add_rules::<_, _, _, RulesetError>(ports)
}

fn access(rule: &Rule) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let all = match rule.right {
        Right::Read => read,
        Right::Kernel => read | AccessFs::WriteFile | AccessFs::Truncate,
        Right::Device => read | AccessFs::WriteFile | AccessFs::IoctlDev,
        Right::Write => {
            AccessFs::from_all(VERSION)
                & !(AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev)
        }
    };
    if rule.is_folder { all } else { all & AccessFs::from_file(VERSION) }
}
