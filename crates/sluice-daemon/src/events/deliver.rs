//! How an alert is delivered: a program is started, or a URL is posted to.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use sluice_config::AlertTo;
use sluice_config::secret::without_urls;

use crate::launcher::{self, Question};

/// Maximum time for one alert.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between looks whether a program has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Delivers an alert, by the launcher if this process has one. Returns the error in words.
pub(super) fn deliver(to: &AlertTo, body: &str) -> Result<(), String> {
    let question = match to {
        AlertTo::Command(program) => Question::Program(program.clone(), body.to_owned()),
        AlertTo::Webhook(url) => Question::Webhook(url.clone(), body.to_owned()),
    };
    let sent = match (launcher::ask_for(question), to) {
        (Some(done), _) => done.map(drop),
        (None, AlertTo::Command(program)) => run(program, body, TIMEOUT),
        (None, AlertTo::Webhook(url)) => post(url, body),
    };
    // An error may name the URL.
    sent.map_err(|error| if matches!(to, AlertTo::Webhook(_)) { without_urls(&error) } else { error })
}

/// Runs a program with `body` on its standard input. Programs that it has started and that are still in its process group are
/// killed when it has ended: each alert would leave others. If it takes too long it is killed itself.
pub(crate) fn run(program: &Path, body: &str, timeout: Duration) -> Result<(), String> {
    let mut command = Command::new(program);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    // A body is smaller than a pipe, so this does not wait for the program. One that does not read is no failure.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(body.as_bytes()));
    let until = Instant::now() + timeout;
    let group = Pid::from_raw(child.id().cast_signed()).expect("a process has a number");
    // It is looked at and not waited for: until then its number, which is that of its group, is given to nothing else.
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let has_ended = loop {
        match waitid(WaitId::Pid(group), look) {
            Ok(None) if Instant::now() < until => thread::sleep(LOOK),
            looked => break !matches!(looked, Ok(None)),
        }
    };
    let _ = kill_process_group(group, Signal::KILL);
    let status = child.wait().map_err(|error| error.to_string())?;
    match has_ended {
        true if status.success() => Ok(()),
        true => Err(status.to_string()),
        false => Err(format!("it did not end within {} s and was killed", timeout.as_secs())),
    }
}

/// Posts `body` to a URL. Returns the error in words.
pub(crate) fn post(url: &str, body: &str) -> Result<(), String> {
    // A redirected POST becomes a GET without the event, so an answer to that says nothing.
    let config =
        ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).max_redirects(0).max_redirects_will_error(false);
    let sent = config.build().new_agent().post(url).header("Content-Type", "application/json").send(body);
    let status = sent.map_err(|error| error.to_string())?.status();
    match status.is_success() {
        true => Ok(()),
        false => Err(format!("the server answered {status}; state the URL that it redirects to")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;
    use std::sync::mpsc::sync_channel;

    use super::*;

    /// Puts a shell script at `path`. Another process writes it: a program that another test starts meanwhile would inherit this one's
    /// descriptor, and until it ends nobody could start the script ("Text file busy").
    fn script(path: &Path, text: &str) {
        let source = path.with_extension("text");
        std::fs::write(&source, text).unwrap();
        let copied = Command::new("install").args(["-m", "755"]).arg(&source).arg(path).status();
        assert!(copied.unwrap().success());
    }

    #[test]
    fn a_program_gets_the_event_and_its_failure_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let (program, out) = (folder.path().join("alert"), folder.path().join("out"));
        script(&program, &format!("#!/bin/sh\ncat > {}\n", out.display()));
        run(&program, "{\"kind\":\"down\"}", TIMEOUT).unwrap();
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "{\"kind\":\"down\"}");
        script(&program, "#!/bin/sh\nexit 3\n");
        assert!(run(&program, "x", TIMEOUT).unwrap_err().contains('3'));
        assert!(run(Path::new("/does/not/exist"), "x", TIMEOUT).is_err());
    }

    #[test]
    fn a_program_that_hung_or_ended_left_the_programs_that_it_had_started() {
        let folder = tempfile::tempdir().unwrap();
        let (program, line) = (folder.path().join("alert"), folder.path().join("line"));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &line,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        for (last, timeout) in [("sleep 120", Duration::from_millis(200)), ("exit 0", TIMEOUT)] {
            // What is started keeps the line open, and ends only if it is killed.
            script(&program, &format!("#!/bin/sh\nexec 3>{}\nsleep 120 &\n{last}\n", line.display()));
            let (end, ended) = sync_channel(1);
            let line = line.clone();
            thread::spawn(move || end.send(std::fs::read(line).unwrap()));
            match run(&program, "x", timeout) {
                Ok(()) => assert_eq!(last, "exit 0"),
                Err(error) => assert!(last != "exit 0" && error.contains("was killed"), "{last}: {error}"),
            }
            let read = ended.recv_timeout(Duration::from_secs(60));
            assert_eq!(read.unwrap(), b"", "the line has an end, because nobody has it open any more");
        }
    }

    #[test]
    fn a_url_gets_the_event_by_post() {
        let (sent, seen) = posted("204 No Content\r\n");
        sent.unwrap();
        assert!(
            seen.starts_with("POST /hook ") && seen.to_lowercase().contains("content-type: application/json"),
            "{seen}"
        );
    }

    #[test]
    fn an_alert_that_was_redirected_to_a_page_counted_as_sent() {
        for status in ["301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect"] {
            let (sent, _) = posted(&format!("{status}\r\nLocation: /login\r\n"));
            let error = sent.unwrap_err();
            assert!(error.contains(&status[..3]) && error.contains("redirects to"), "{error}");
        }
    }

    /// Posts to a server that answers with this; returns also what it has got.
    fn posted(answer: &str) -> (Result<(), String>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let answer = format!("HTTP/1.1 {answer}Connection: close\r\nContent-Length: 0\r\n\r\n");
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = String::new();
            let mut buffer = [0; 1024];
            while !seen.ends_with("{\"a\":1}") {
                let read = stream.read(&mut buffer).unwrap();
                seen += &String::from_utf8_lossy(&buffer[..read]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            seen
        });
        (post(&url, "{\"a\":1}"), server.join().unwrap())
    }
}
