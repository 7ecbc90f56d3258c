//! A daemon with a thread that tries to leave it. This program is the daemon: it seals itself as `sluiced` does, and then tries.
//!
//! It has no harness, because the daemon must seal itself before the first other thread.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use sluice_client::nbd::{Client, Command as Request};
use sluice_daemon::jail::{self, Jail};
use sluice_daemon::output::{self, Format};
use sluice_daemon::serve::Serve;

mod attempts;

use attempts::{Around, DEADLY, REFUSED};

/// Maximum time for what the daemon does at once.
const LONG: Duration = Duration::from_secs(60);
/// What a tempted daemon writes when all attempts are over.
const OVER: &str = "ATTEMPTS ARE OVER";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        // Processes that a daemon starts.
        Some("look" | "launcher" | "meeting") => sluice_daemon::Cli::parse().run(),
        Some("tempted") => tempted(&mut arguments),
        Some("--list") => {
            TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
            ExitCode::SUCCESS
        }
        _ => test(),
    }
}

#[derive(Parser)]
struct Tempted {
    #[command(flatten)]
    serve: Serve,
}

/// Serves a host file, and tries what the words say.
fn tempted(arguments: &mut dyn Iterator<Item = String>) -> ExitCode {
    let [what, file, secret, program, port, socket] =
        std::array::from_fn(|_| arguments.next().expect("the test passes it"));
    let other = std::os::unix::process::parent_id();
    let (secret, program, socket) = (secret.into(), program.into(), socket.into());
    let around = Around { secret, program, port: port.parse().expect("a number"), socket, other };
    let serve = Tempted::parse_from(["tempted", &file]).serve;
    // As `sluiced` does.
    let jail = Jail::begin(Path::new(&file));
    output::choose_log(None, Format::Json, true);
    output::never_wait().expect("threads");
    output::start_logging(None, 0, false);
    thread::spawn(move || tempt(&what, &around));
    let code = match serve.run(Format::Json, jail) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(Format::Json),
    };
    output::end(code)
}

fn tempt(what: &str, around: &Around) {
    while jail::status().is_none() {
        // polls: the main thread, which seals this process.
        thread::sleep(Duration::from_millis(2));
    }
    if let Some((_, attempt)) = DEADLY.iter().find(|(name, _)| *name == what) {
        let _ = attempt(around);
        eprintln!("{OVER}");
        return;
    }
    for (name, attempt) in REFUSED {
        match attempt(around) {
            Ok(()) => eprintln!("ATTEMPT SUCCEEDED: {name}"),
            Err(error) => eprintln!("ATTEMPT FAILED: {name}: {error}"),
        }
    }
    attempts::deceive_launcher(around).expect("it has a socket");
    eprintln!("{OVER}");
}

/// The surroundings of a daemon.
struct Place {
    folder: tempfile::TempDir,
    listener: TcpListener,
    _socket: UnixListener,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("it can");
        let (vm, outside) = (folder.path().join("vm"), folder.path().join("outside"));
        for folder in [&vm, &outside] {
            std::fs::create_dir(folder).expect("it is new");
        }
        std::fs::write(outside.join("secret"), "secret").expect("it is new");
        std::fs::write(outside.join("program"), "#!/bin/sh\ntouch \"$(dirname \"$0\")/marker\"\n").expect("it is new");
        std::fs::set_permissions(outside.join("program"), std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        let socket = UnixListener::bind(outside.join("socket")).expect("it is new");
        std::fs::File::create(vm.join("disk.img")).and_then(|disk| disk.set_len(1 << 20)).expect("it is new");
        let shown = vm.display();
        let host = format!(
            "[daemon]\ncontrol = \"{shown}/control\"\n[device.d]\npath = \"{shown}\"\n[vm.a.volume.v]\ndevice = \"d\"\n\
             source = \"{shown}/disk.img\"\nexport = {{ socket = \"{shown}/a.sock\" }}\n\
             [alert.all]\ncommand = \"/bin/true\"\n"
        );
        std::fs::write(vm.join("host.toml"), host).expect("it is new");
        Place { folder, listener, _socket: socket }
    }

    fn vm(&self, name: &str) -> PathBuf {
        self.folder.path().join("vm").join(name)
    }

    fn outside(&self, name: &str) -> PathBuf {
        self.folder.path().join("outside").join(name)
    }

    /// Starts a daemon that tries `what`.
    fn daemon(&self, what: &str) -> Daemon {
        let mut command = Command::new(std::env::current_exe().expect("it has a path"));
        command
            .arg("tempted")
            .arg(what)
            .arg(self.vm("host.toml"))
            .arg(self.outside("secret"))
            .arg(self.outside("program"));
        command.arg(self.listener.local_addr().expect("it listens").port().to_string()).arg(self.outside("socket"));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let error = child.stderr.take().expect("it is a pipe");
        let (sender, lines) = channel();
        thread::spawn(move || {
            BufReader::new(error).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Daemon { child, lines, log: Vec::new() }
    }

    /// Whether a client of the daemon writes and reads.
    fn serves(&self, daemon: &mut Daemon) {
        let until = Instant::now() + LONG;
        let mut client = loop {
            match Client::connect_unix(self.vm("a.sock"), "a/v") {
                Ok(client) => break client,
                Err(error) => {
                    daemon.log.extend(daemon.lines.try_iter());
                    assert!(Instant::now() < until, "it does not serve: {error}: {:#?}", daemon.log);
                }
            }
            // polls: the start of the daemon, another process.
            thread::sleep(Duration::from_millis(5));
        };
        let mut replies = 0;
        for (cookie, request) in
            [Request::Write { offset: 4096, data: &[7; 4096], fua: true }, Request::Read { offset: 4096, len: 4096 }]
                .into_iter()
                .enumerate()
        {
            client.submit(cookie as u64, request).expect("it is taken");
            while replies <= cookie {
                client
                    .receive(None, &mut |reply| {
                        assert!(reply.result.is_ok() && reply.data.iter().all(|byte| *byte == 7), "{:?}", reply.result);
                        replies += 1;
                    })
                    .expect("it answers");
            }
        }
    }
}

struct Daemon {
    child: Child,
    lines: Receiver<String>,
    log: Vec<String>,
}

impl Daemon {
    /// Reads its log up to this text; `false` if it ends before.
    fn reads(&mut self, text: &str) -> bool {
        loop {
            let Ok(line) = self.lines.recv_timeout(LONG) else { return false };
            let is_it = line.contains(text);
            self.log.push(line);
            if is_it {
                return true;
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const TESTS: [(&str, fn()); 2] = [
    ("attempts_to_leave_a_sealed_daemon_fail_and_it_goes_on", attempts_fail),
    ("calls_that_only_an_attacker_makes_end_the_daemon_which_serves_after_its_restart", deadly_calls_end_it),
];

fn test() -> ExitCode {
    let mut failed = 0;
    for (name, test) in TESTS {
        let passed = std::panic::catch_unwind(test).is_ok();
        failed += usize::from(!passed);
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "test result: {result}. {} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out;",
        TESTS.len() - failed
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn attempts_fail() {
    let place = Place::new();
    let mut daemon = place.daemon("all");
    assert!(daemon.reads(OVER), "{:#?}", daemon.log);
    // The attempts begin when it is sealed, and it says so a moment later.
    let is_told = daemon.log.iter().any(|line| line.contains("Sealed")) || daemon.reads("Sealed");
    let sealed = daemon.log.iter().find(|line| line.contains("Sealed")).filter(|_| is_told).expect("it says so");
    assert!(sealed.contains("privileges, landlock, rings, seccomp"), "{sealed}");
    let succeeded: Vec<&String> = daemon.log.iter().filter(|line| line.contains("ATTEMPT SUCCEEDED")).collect();
    assert!(succeeded.is_empty(), "{succeeded:#?}");
    let failed = daemon.log.iter().filter(|line| line.contains("ATTEMPT FAILED")).count();
    assert_eq!(failed, REFUSED.len(), "{:#?}", daemon.log);
    place.serves(&mut daemon);
    // The launcher has answered what came after the deceit: the daemon's own alert.
    assert!(daemon.reads("System calls refused"), "it says so: {:#?}", daemon.log);
    let has_ended = daemon.log.iter().any(|line| line.contains("The process for programs and connections has ended"));
    assert!(!has_ended, "the deceit has ended the launcher: {:#?}", daemon.log);
    rustix::process::kill_process(rustix::process::Pid::from_child(&daemon.child), rustix::process::Signal::TERM)
        .expect("it runs");
    let status = daemon.child.wait().expect("it is ours");
    assert_eq!(status.code(), Some(0), "{:#?}", daemon.log);
    while daemon.lines.recv_timeout(LONG).is_ok() {}
    assert!(!place.outside("marker").exists(), "the launcher has started a program that nothing names");
    assert!(place.listener.accept().is_err(), "something has connected");
    let mut secret = String::new();
    std::fs::File::open(place.outside("secret"))
        .and_then(|mut file| file.read_to_string(&mut secret))
        .expect("it is there");
    assert_eq!(secret, "secret");
    assert_eq!(std::fs::read_dir(place.outside("")).expect("it is there").count(), 3, "a file was made");
}

fn deadly_calls_end_it() {
    let place = Place::new();
    for (name, _) in DEADLY {
        let mut daemon = place.daemon(name);
        assert!(!daemon.reads(OVER), "{name} did not end it: {:#?}", daemon.log);
        let status = daemon.child.wait().expect("it is ours");
        assert_eq!(status.signal(), Some(libc::SIGSYS), "{name}: {:#?}", daemon.log);
        assert!(!status.core_dumped(), "{name}");
    }
    place.serves(&mut place.daemon("nothing"));
}
