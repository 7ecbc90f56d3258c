//! The filters that the kernel applies to system calls. A call that is always allowed costs nothing: the kernel keeps a bit for it.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Op, SeccompCondition as Condition,
    SeccompFilter, SeccompRule,
};

use super::calls::{CALLS, DEADLY, Feature, Group, Only, Socket};
use super::trap;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Allows the listed system calls alone, for all threads and for ever.
///
/// # Errors
/// The reason in words; then nothing is filtered, or only the deadly calls.
pub fn seal(features: &[Feature]) -> Result<(), String> {
    trap::install();
    let mut rules = Rules::new();
    for group in CALLS {
        let alternatives = conditions(group, features);
        // A call without rules is allowed with every argument.
        assert!(
            matches!(group.only, Only::All) || !alternatives.is_empty(),
            "{}: no argument is allowed",
            group.reason
        );
        for (_, number) in group.calls {
            let these = alternatives.iter().map(|all| SeccompRule::new(all.clone()).expect("it has conditions"));
            rules.entry(*number).or_default().extend(these);
        }
    }
    let deadly = filter(numbers(DEADLY), SeccompAction::Allow, SeccompAction::KillProcess)?;
    let no_system = SeccompAction::Errno(libc::ENOSYS as u32);
    let threads = filter(numbers(&[("", libc::SYS_clone3)]), SeccompAction::Allow, no_system)?;
    let listed = filter(rules, SeccompAction::Trap, SeccompAction::Allow)?;
    [deadly, threads, listed].iter().try_for_each(apply)
}

/// Forbids what a process that starts programs never needs, for itself and for these programs.
///
/// # Errors
/// The reason in words.
pub fn seal_helper() -> Result<(), String> {
    let starts = [
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_setuid,
        libc::SYS_setgid,
        libc::SYS_setresuid,
        libc::SYS_setresgid,
    ];
    let mut rules = numbers(DEADLY);
    rules.retain(|number, _| !starts.contains(number));
    rules.insert(libc::SYS_io_uring_setup, Vec::new());
    apply(&filter(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))?)
}

/// Whether the kernel has filters: applies one to this thread that forbids nothing.
///
/// # Errors
/// The reason in words.
pub fn can_filter() -> Result<(), String> {
    let none =
        filter(numbers(&[("", libc::SYS_kexec_load)]), SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))?;
    seccompiler::apply_filter(&none).map_err(refused)
}

fn numbers(calls: &[(&str, i64)]) -> Rules {
    calls.iter().map(|(_, number)| (*number, Vec::new())).collect()
}

/// The alternatives of conditions with which the calls of a group are allowed.
fn conditions(group: &Group, features: &[Feature]) -> Vec<Vec<Condition>> {
    let condition =
        |argument: u8, length, op, value| Condition::new(argument, length, op, value).expect("there are six arguments");
    let socket = |socket: &Socket| {
        let family = condition(0, Length::Dword, Op::Eq, socket.family as u64);
        // Flags stand above the kind.
        let kind = socket.kind.map(|kind| condition(1, Length::Dword, Op::MaskedEq(0xf), kind as u64));
        let protocol = condition(2, Length::Dword, Op::Eq, 0);
        [family, protocol].into_iter().chain(kind).collect()
    };
    match group.only {
        Only::All => Vec::new(),
        Only::One(argument, values) => {
            values.iter().map(|(_, value)| vec![condition(argument, Length::Dword, Op::Eq, *value)]).collect()
        }
        Only::Bits(argument, mask, value, _) => {
            vec![vec![condition(argument, Length::Qword, Op::MaskedEq(mask), value)]]
        }
        Only::Own(argument) => {
            let own = u64::from(std::process::id());
            vec![vec![condition(argument, Length::Dword, Op::Eq, own)]]
        }
        Only::Sockets(kinds) => kinds
            .iter()
            .filter(|kind| kind.feature == Feature::Always || features.contains(&kind.feature))
            .map(socket)
            .collect(),
    }
}

fn filter(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Result<BpfProgram, String> {
    let architecture = std::env::consts::ARCH
        .try_into()
        .map_err(|_| "the kernel's filters are not known for this architecture".to_owned())?;
    let filter = SeccompFilter::new(rules, otherwise, matched, architecture);
    filter.and_then(TryInto::try_into).map_err(refused)
}

fn apply(program: &BpfProgram) -> Result<(), String> {
    seccompiler::apply_filter_all_threads(program).map_err(refused)
}

fn refused(error: impl std::fmt::Display) -> String {
    format!("the kernel does not filter system calls: {error}")
}
