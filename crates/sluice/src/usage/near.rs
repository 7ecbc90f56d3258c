//! Words of other programs, and what to write instead.

/// What people write, and what to write instead. A word that is meant only after a command has that before it; `*` stands for any word
/// that is too much for the command, `--*` for any option that it does not have.
pub(super) const NEAR: &[(&[&str], &str)] = &[
    // Service managers.
    (&["start", "daemon", "up", "run"], "systemctl start sluice, or sluice serve FILE"),
    (
        &["stop", "down", "kill", "quit", "shutdown"],
        "sluice detach VM for one VM; systemctl stop sluice, which ends the disks of all",
    ),
    (&["restart"], "systemctl restart sluice, or sluice apply FILE for a changed host file"),
    (&["enable", "disable"], "systemctl enable sluice, or systemctl disable sluice"),
    (&["reload", "update", "sync", "refresh"], "sluice apply FILE"),
    (&["log", "logs", "journal", "tail"], "sluice events for what happened; the log is in journalctl -u sluice"),
    (&["ping", "health"], "sluice status"),
    // Lists.
    (&["ps", "stats", "iotop", "htop", "watch", "monitor"], "sluice top, or sluice get vms"),
    (&["list", "ls", "dump"], "sluice get vms, sluice get volumes or sluice get devices"),
    (&["show", "info", "inspect", "view", "cat"], "sluice describe NAME"),
    (&["get all", "get *"], "what to list: vms, volumes, devices, clients, policies, history or overrides"),
    (&["get nics", "get nic", "get disks", "get disk"], "sluice get volumes, which lists NICs too"),
    (&["get uplinks", "get uplink", "get nodes"], "sluice get devices, which lists uplinks too"),
    (&["get connections", "get sessions"], "sluice get clients"),
    (&["get pods", "get domains", "get guests"], "sluice get vms"),
    (&["get changes", "get config"], "sluice get overrides for changes at run time; the rest is in the host file"),
    // Changes.
    (
        &["limit", "throttle", "qos", "blkdeviotune", "edit", "patch", "config", "reserve"],
        "sluice set VM limit=\"500 iops\"",
    ),
    (&["add", "create", "new", "attach-disk", "mount", "plug"], "sluice attach VM/VOLUME KEY=VALUE..."),
    (&["remove", "rm", "delete", "del", "detach-disk", "unplug"], "sluice detach VM/VOLUME"),
    (&["grow", "extend", "blockresize"], "sluice resize VM/VOLUME SIZE"),
    (&["undo", "revert", "rollback", "unset"], "sluice reset NAME; sluice get overrides lists the names"),
    (&["validate", "verify", "lint", "test", "configtest"], "sluice check FILE"),
    (&["explain", "diagnose", "reason"], "sluice why VM"),
    (&["dumpxml", "xml", "qemu"], "sluice export libvirt-xml VM, or sluice export qemu-args VM"),
    (&["version"], "sluice --version"),
    // Too much, or a flag of another program.
    (&["status *"], "sluice describe NAME, or sluice why VM; --watch takes no number"),
    (&["top *"], "sluice top --filter TEXT, or sluice why VM"),
    (&["events *"], "sluice events --vm VM, or sluice events --device DEVICE; a time of two words needs quotes"),
    (&["get history *"], "sluice get history VM --since TIME, with quotes around a time of two words"),
    (&["get overrides *"], "sluice get overrides, which lists all"),
    (&["resize *"], "sluice resize VM/VOLUME SIZE, the size in one word as in 20GiB"),
    (
        &["why *", "describe *", "detach *", "reset *", "accept-loss *", "takeover *"],
        "the command with one name alone, once for each",
    ),
    (
        &["check *", "apply *", "serve *"],
        "the command with one host file; files in its folder NAME.d are merged over it",
    ),
    (&["export *"], "sluice export FORMAT VM, or sluice export FORMAT VM FILE, in this order"),
    (&["why --vm", "describe --vm"], "the VM without an option: sluice why VM, or sluice describe VM"),
    (&["why --device"], "sluice describe DEVICE, or sluice events --device DEVICE"),
    (&["--json", "--yaml", "--format", "--jsonl", "--csv", "--wide"], "-o json, wide, jsonl or csv"),
    (&["-c", "--config", "--file", "-f", "--conf"], "the host file without an option, as in sluice check FILE"),
    (&["-y", "--yes", "--no-prompt"], "the command without it: nothing is asked"),
    (&["-a", "--all", "--all-namespaces", "-n", "--namespace"], "the command without it: all that match are shown"),
    (&["--debug"], "-vv"),
    (
        &["--no-pager", "--no-color", "--color"],
        "the command without it; there is no pager, and NO_COLOR=1 turns colours off",
    ),
    (&["--host", "--connect", "--url", "--endpoint"], "--socket PATH: the daemon is on this host"),
    (&["--from", "--after"], "--since TIME"),
    (&["--to", "--before"], "--until TIME"),
    (&["top -d", "top --delay", "top -i"], "--interval TIME"),
    (&["top -p", "top --vm"], "--filter TEXT"),
    (&["resize --*"], "the size without an option, as in sluice resize VM/VOLUME SIZE"),
    (&["--duration", "--ttl", "--timeout", "--expires"], "--for TIME, as in --for 2h"),
    (&["--temporary", "--once", "--now", "--live", "--runtime", "--current"], "--until-restart, or --for TIME"),
    (&["--save", "--permanent", "--write"], "--persist"),
    (&["--message", "-m", "--comment"], "--reason TEXT"),
    (&["events --tail", "events --watch", "events -w"], "--follow"),
    (&["--follow", "--tail"], "--watch, or sluice events --follow"),
    (&["set --*", "attach --*"], "KEY=VALUE without dashes, as in limit=\"500 iops\""),
];

/// Returns what to write instead of `word`, which is wrong after the commands `path`.
pub(super) fn remedy(path: &str, word: &str) -> Option<&'static str> {
    let word = word.to_lowercase();
    let find = |name: &str| NEAR.iter().find(|(words, _)| words.contains(&name)).map(|(_, remedy)| *remedy);
    let after = find(format!("{path} {word}").trim_start());
    // A word means the same everywhere only if it is an option.
    after.or_else(|| if word.starts_with('-') { find(&word) } else { None })
}

/// Returns what to write instead of a word that is too much after the commands `path` and resembles none of theirs.
pub(super) fn remedy_of_surplus(path: &str, word: &str) -> Option<&'static str> {
    if word.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return Some("a number or a time above zero");
    }
    let kind = if word.starts_with('-') { "--*" } else { "*" };
    remedy(path, kind)
}
