//! QEMU's control protocol (QMP): a JSON object per line, with replies to commands, and events.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use serde_json::{Value, json};

use crate::common::LONG;

pub(crate) struct Qmp {
    writer: RefCell<UnixStream>,
    lines: Receiver<String>,
    events: RefCell<VecDeque<Value>>,
}

impl Qmp {
    pub(crate) fn new(stream: UnixStream) -> Qmp {
        let (sender, lines) = channel();
        let reader = stream.try_clone().unwrap();
        std::thread::spawn(move || super::forward_lines(reader, &sender));
        let qmp = Qmp { writer: RefCell::new(stream), lines, events: RefCell::default() };
        let greeting = qmp.next();
        assert!(greeting["QMP"].is_object(), "{greeting}");
        qmp.execute("qmp_capabilities", &json!({}));
        qmp
    }

    /// Runs a command, which must succeed, and returns its result.
    #[track_caller]
    pub(crate) fn execute(&self, command: &str, arguments: &Value) -> Value {
        let request = json!({ "execute": command, "arguments": arguments });
        self.writer.borrow_mut().write_all(format!("{request}\n").as_bytes()).expect("QEMU is there");
        loop {
            let message = self.next();
            if let Some(result) = message.get("return") {
                return result.clone();
            }
            assert!(message["event"].is_string(), "{request}: {message}");
            self.events.borrow_mut().push_back(message);
        }
    }

    /// Waits for an event; earlier events are dropped.
    #[track_caller]
    pub(crate) fn event(&self, name: &str) -> Value {
        loop {
            let event = self.events.borrow_mut().pop_front();
            let event = event.unwrap_or_else(|| self.next());
            if event["event"] == name {
                return event;
            }
        }
    }

    #[track_caller]
    fn next(&self) -> Value {
        let deadline = Instant::now() + LONG;
        let line = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let line = line.unwrap_or_else(|error| panic!("QEMU says nothing: {error}"));
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}
