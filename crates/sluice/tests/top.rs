//! `sluice top` in a pseudo terminal, and as text for scripts, with a real daemon.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use crate::common::{Daemon, LONG, Place, run, sluice, tool, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// `sluice top` on a terminal, between commands that show the terminal's modes.
struct OnTerminal {
    child: Child,
    keys: ChildStdin,
    written: Receiver<Vec<u8>>,
    screen: Screen,
    /// The device of the terminal.
    path: String,
    pid: Pid,
}

/// The characters of a screen, and its cursor.
type Saved = (Vec<Vec<char>>, (usize, usize));

/// A terminal, as far as the program under test uses it: characters, and the sequences that move, clear, and switch to
/// the other screen and back. Only changes are written, so a text may arrive in pieces.
struct Screen {
    rows: Vec<Vec<char>>,
    cursor: (usize, usize),
    /// A sequence whose end has not arrived.
    pending: String,
    /// Rows and cursor of the normal screen, while the program has its own.
    normal: Option<Saved>,
}

impl Screen {
    fn new() -> Screen {
        Screen { rows: vec![vec![' '; 200]; 60], cursor: (0, 0), pending: String::new(), normal: None }
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            // A character of several bytes takes one place. Only ASCII is looked for.
            if matches!(byte, 0x80..=0xbf) {
                continue;
            }
            let letter = char::from(byte);
            if letter == '\u{1b}' {
                self.pending = letter.to_string();
            } else if !self.pending.is_empty() {
                self.pending.push(letter);
                let is_end = self.pending.len() > 2 && letter.is_ascii_alphabetic();
                if is_end || self.pending.len() == 2 && letter != '[' {
                    let sequence = std::mem::take(&mut self.pending);
                    self.obey(&sequence);
                }
            } else if letter == '\n' {
                self.cursor.0 += 1;
            } else if letter == '\r' {
                self.cursor.1 = 0;
            } else if letter >= ' ' {
                if self.cursor.1 == self.rows[0].len() {
                    self.cursor = (self.cursor.0 + 1, 0);
                }
                let (row, column) = self.cursor;
                self.rows[row][column] = letter;
                self.cursor.1 += 1;
            }
        }
    }

    fn obey(&mut self, sequence: &str) {
        match sequence {
            "\u{1b}[2J" => self.rows.iter_mut().for_each(|row| row.fill(' ')),
            "\u{1b}[?1049h" => self.normal = Some((self.rows.clone(), self.cursor)),
            "\u{1b}[?1049l" => (self.rows, self.cursor) = self.normal.take().expect("it left the normal screen"),
            _ => {
                let Some(place) = sequence.strip_prefix("\u{1b}[").and_then(|text| text.strip_suffix('H')) else {
                    return;
                };
                let (row, column) = place.split_once(';').unwrap_or(("1", "1"));
                self.cursor = (row.parse::<usize>().unwrap() - 1, column.parse::<usize>().unwrap() - 1);
            }
        }
    }

    /// The text after a name on its line, once the next line has begun.
    fn value(&self, name: &str) -> Option<String> {
        let lines: Vec<String> = self.text().lines().map(str::to_owned).collect();
        let at = lines.iter().position(|line| line.starts_with(name))?;
        (at < self.cursor.0).then(|| lines[at][name.len()..].to_owned())
    }

    fn text(&self) -> String {
        let rows = self.rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned());
        rows.collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }
}

impl OnTerminal {
    #[track_caller]
    fn start(place: &Place, options: &str) -> OnTerminal {
        let (program, socket) = (env!("CARGO_BIN_EXE_sluice"), place.socket("control"));
        let top = format!("echo pid=$$; exec {program} top {options} --socket {}", socket.display());
        let commands =
            format!("stty cols 100 rows 24; echo tty=$(tty); sh -c '{top}'; echo ended=$?; stty -a; echo modes=");
        let file = place.write("commands", commands);
        let mut command = tool("script", "bsdutils");
        command.arg("--quiet").arg("--flush").arg("--command").arg(format!("sh {}", file.display())).arg("/dev/null");
        command.env("TERM", "xterm").env("NO_COLOR", "1").env_remove("RUST_LOG");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let keys = child.stdin.take().unwrap();
        let mut reader = child.stdout.take().unwrap();
        let (sender, written) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        let screen = Screen::new();
        let mut top = OnTerminal { child, keys, written, screen, path: String::new(), pid: Pid::INIT };
        top.until("the number of the process", |screen| screen.value("pid=").is_some());
        top.path = top.screen.value("tty=").unwrap();
        top.pid = Pid::from_raw(top.screen.value("pid=").unwrap().parse().unwrap()).unwrap();
        // The daemon takes its first sample after a second.
        top.until("the VM", |screen| screen.rows.iter().any(|row| row.starts_with(&['a', ' '])));
        top
    }

    /// Waits until the terminal shows this.
    #[track_caller]
    fn shows(&mut self, text: &str) {
        self.until(text, |screen| screen.text().contains(text));
    }

    #[track_caller]
    fn until(&mut self, what: &str, is_so: impl Fn(&Screen) -> bool) {
        let deadline = Instant::now() + LONG;
        while !is_so(&self.screen) {
            match self.written.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.screen.write(&bytes),
                Err(_) => panic!("not shown: {what}\n{}", self.screen.text()),
            }
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// The modes of the terminal, or its size, as `stty` reads and sets them.
    fn stty(&self, arguments: &[&str]) -> String {
        run(tool("stty", "coreutils").args(["-F", &self.path]).args(arguments)).ok()
    }

    /// Waits for its end, with success, and with the terminal as it was.
    #[track_caller]
    fn end(mut self) {
        self.until("its end", |screen| screen.normal.is_none() && screen.value("modes=").is_some());
        assert_eq!(self.screen.value("ended=").unwrap(), "0");
        let modes = self.screen.text();
        assert!(modes.contains(" icanon") && modes.contains(" echo "), "{modes}");
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A host with one VM on a device that stores nothing.
fn host(place: &Place) -> String {
    place.control_keys()
        + "[device.disk]\nbackend = \"null\"\ncapacity = \"1000 iops@8KiB\"\n[vm.a]\nreservation = \"300 iops\"\n\
           limit = \"500 iops\"\n[vm.a.volume.v]\ndevice = \"disk\"\nsize = \"64MiB\"\n"
        + &format!("export = {{ socket = \"{}\" }}\n", place.volume_socket("a", "v").display())
}

#[test]
fn top_changes_a_limit_survives_the_daemon_and_restores_the_terminal() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    let mut top = OnTerminal::start(&place, "");
    assert!(top.stty(&["-a"]).contains("-icanon"), "keys are read one by one");
    top.press("s");
    top.shows("Set a: _");
    top.press("limit=400 iops\r");
    top.shows("y: change it now");
    top.press("y");
    top.shows("Any key: close");
    assert!(top.screen.text().contains("400"), "{}", top.screen.text());
    top.press("x");
    top.until("the dialog closes", |screen| !screen.text().contains("Any key"));
    top.press("s");
    top.shows("Set a: _");
    top.press("limit=10 iops\r");
    top.shows("y: change it now");
    top.press("y");
    top.shows("REFUSED; nothing has changed");
    top.press("\r");
    top.shows("Set a: limit=10 iops_");
    (0..20).for_each(|_| top.press("\u{7f}"));
    top.shows("Set a: _");
    top.press("weight=7\r");
    top.shows("now weight = 100");
    top.press("y");
    top.shows("Any key: close");
    top.press("xd");
    top.shows("Latency, from arrival");
    top.stty(&["cols", "60", "rows", "15"]);
    top.until("the lines of the new size", |screen| screen.rows[14].starts_with(&['E', 's', 'c']));
    daemon.kill();
    top.shows("NO CONNECTION");
    let _daemon = Daemon::serve(&place, &host);
    top.until("the connection is back", |screen| !screen.text().contains("NO CONNECTION"));
    top.press("q");
    top.end();
}

#[test]
fn the_terminal_is_restored_on_a_signal() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let top = OnTerminal::start(&place, "--sort name");
    kill_process(top.pid, Signal::TERM).unwrap();
    top.end();
}

#[test]
fn batch_prints_the_figures_that_get_prints() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place));
    let top = |options: &[&str]| run(sluice().args(["top", "--socket"]).arg(place.socket("control")).args(options));
    until("the first sample", || top(&["--batch", "-n1", "-o", "csv"]).ok().contains("disk"));
    let two = top(&["--batch", "-n2", "-o", "jsonl"]).ok();
    let lines: Vec<Value> = two.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "one VM, two times: {two}");
    let once: Value = serde_json::from_str(&top(&["--batch", "-n1", "-o", "json"]).ok()).unwrap();
    let get = run(sluice().args(["get", "vms", "-o", "json", "--socket"]).arg(place.socket("control"))).ok();
    let get: Value = serde_json::from_str(&get).unwrap();
    let (vm, known) = (&once["vms"][0], &get["vms"][0]);
    assert_eq!((&vm["vm"], &vm["device"], &vm["now"]["state"]), (&known["vm"], &known["device"], &known["state"]));
    assert_eq!(vm["now"]["reservation"]["iops"], known["policy"]["reservation_iops"]);
    assert_eq!(vm["now"]["limit"]["iops"], known["policy"]["limit_iops"]);
    let without = top(&["-n1"]);
    assert!(without.failed().contains("There is no terminal to draw on: use --batch"));
    daemon.terminate();
    assert_eq!(top(&["--batch"]).code(), Some(5));
}
