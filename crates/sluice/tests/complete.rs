//! Completions: with the names that the daemon serves, and without a daemon.

use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::common::{Daemon, MIB, Place, run, sluice, tool, until};

/// Returns the candidates for the last of `words`, without options.
fn candidates(socket: &Path, words: &[&str]) -> Vec<String> {
    let mut command = sluice();
    command.env("COMPLETE", "bash").env("SLUICE_SOCKET", socket).env("_CLAP_IFS", "\n");
    command.env("_CLAP_COMPLETE_INDEX", words.len().to_string()).env("_CLAP_COMPLETE_COMP_TYPE", "9");
    let ended = run(command.args(["--", "sluice"]).args(words));
    assert_eq!(ended.stderr, "", "{words:?}");
    ended.ok().lines().filter(|line| !line.starts_with('-')).map(str::to_owned).collect()
}

/// Waits until these are the candidates. Nothing is offered when the daemon does not answer in time.
fn offers(socket: &Path, words: &[&str], offered: &[&str]) {
    // polls: the daemon may answer too late.
    until(&format!("{words:?}: {offered:?}"), || candidates(socket, words) == offered);
}

#[test]
fn names_of_running_vms_are_completed() {
    let place = Place::new();
    let [a, b] = ["web.img", "db.img"].map(|name| place.image(name, 4 * MIB));
    let volumes = place.volume("web", "root", &a, "") + &place.volume("db", "data", &b, "");
    let _daemon = Daemon::serve(&place, &(place.control_keys() + &place.device("") + &volumes));
    let socket = place.socket("control");
    offers(&socket, &["set", ""], &["db", "db/data", "web", "web/root"]);
    offers(&socket, &["resize", "w"], &["web/root"]);
    offers(&socket, &["get", "devices", "d"], &["disk"]);
    offers(&socket, &["describe", "d"], &["db", "db/data", "disk"]);
    offers(&socket, &["reset", "w"], &[""; 0]);
    run(sluice().args(["set", "web", "weight=200", "--socket"]).arg(&socket)).ok();
    offers(&socket, &["reset", "w"], &["web/weight"]);
    offers(&socket, &["set", "web", "weig"], &["weight=", "weight=none"]);
    offers(&socket, &["set", "web", "net.wei"], &["net.weight=", "net.weight=none"]);
    offers(&socket, &["attach", "web/more", "dev"], &["device=disk"]);
    offers(&socket, &["attach", "web/nic/eth0", "receive.w"], &["receive.weight="]);
    let elsewhere = place.socket("none");
    let named = ["set", "--socket", socket.to_str().unwrap(), "we"];
    offers(&elsewhere, &named, &["web", "web/root"]);
    offers(&elsewhere, &["set", "we"], &[""; 0]);
}

/// What bash offers for a line, as readline breaks it into words.
fn in_bash(socket: &Path, words: &[&str], current: &str) -> String {
    let registration = run(sluice().env("COMPLETE", "bash")).ok();
    // Options of a completion can be set only while readline runs one.
    let script = format!(
        "compopt() {{ :; }}\n{registration}\nCOMP_WORDS=(sluice \"${{@:2}}\") COMP_CWORD=$(($# - 1)) COMP_TYPE=9\n\
         function=$(complete -p sluice | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n$function sluice \"$1\" before\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let mut bash = tool("bash", "bash");
    run(bash.args(["-c", &script, "bash", current]).args(words).env("SLUICE_SOCKET", socket)).ok()
}

#[test]
fn bash_did_not_complete_the_value_behind_an_equals_sign() {
    let place = Place::new();
    let image = place.image("web.img", 4 * MIB);
    let host = place.control_keys() + "[policy.gold]\nweight = 200\n" + &place.device("");
    let _daemon = Daemon::serve(&place, &(host + &place.volume("web", "root", &image, "")));
    let socket = place.socket("control");
    for (words, current, offered) in [
        (&["set", "web", "policy", "=", "g"][..], "g", "gold"),
        (&["set", "web", "policy", "="], "", "gold"),
        (&["attach", "web/more", "device", "=", "di"], "di", "disk"),
        (&["set", "web", "policy", "=", "gold", "policy"], "policy", "policy=gold"),
        (&["set", "web", "policy", "=", "gold", "limit", "=", "u"], "u", "unlimited"),
        // As with a `COMP_WORDBREAKS` without the equals sign.
        (&["set", "web", "policy=g"], "policy=g", "policy=gold"),
        (&["set", "w"], "w", "web\nweb/root"),
        (&["attach", "web/nic/eth0", "spoof", "=", "x"], "x", ""),
    ] {
        // polls: nothing is offered when the daemon does not answer in time.
        until(offered, || in_bash(&socket, words, current).trim_end() == offered);
    }
    until("a space ends the assignment", || {
        in_bash(&socket, &["set", "web", "weight", "=", ""], "").lines().any(|line| line == "policy=gold")
    });
}

#[test]
fn a_daemon_that_does_not_answer_does_not_stop_the_shell() {
    let place = Place::new();
    let socket = place.socket("silent");
    // Connections are accepted by the kernel and never answered.
    let _listener = UnixListener::bind(&socket).unwrap();
    assert_eq!(candidates(&socket, &["detach", "w"]), [""; 0]);
    assert_eq!(candidates(&socket, &["deta"]), ["detach"]);
}

#[test]
fn scripts_work_in_a_shell() {
    let script = run(sluice().args(["completions", "bash"])).ok();
    let ask = "COMP_WORDS=(sluice deta) COMP_CWORD=1; _sluice sluice deta sluice; echo \"${COMPREPLY[*]}\"";
    assert_eq!(run(tool("bash", "bash").args(["-c", &format!("{script}\n{ask}")])).ok(), "detach\n");
    for shell in ["bash", "zsh", "fish"] {
        let registration = run(sluice().env("COMPLETE", shell)).ok();
        assert!(registration.contains("sluice"), "{shell}: {registration}");
    }
    let registration = run(sluice().env("COMPLETE", "bash")).ok();
    run(tool("bash", "bash").args(["-c", &format!("{registration}\ncomplete -p sluice")])).ok();
}
