//! `sluice alert --test`, and the last alert that failed.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::common::{Daemon, Ended, Place, run, script, sluice, start, until};
use serde_json::Value;

fn host(place: &Place, alerts: &str) -> String {
    format!("{}[device.disk]\nbackend = \"null\"\n{alerts}", place.control_keys())
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(verb).arg("--socket").arg(place.socket("control")))
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(ended.stdout.lines().next().unwrap_or("null")).unwrap()
}

#[test]
fn a_test_sends_what_an_event_would_and_status_names_the_last_failure() {
    let place = Place::new();
    let (program, told) = (place.file("page"), place.file("told.json"));
    script(&program, &format!("#!/bin/sh\ncat > {0}.new\nmv {0}.new {0}\n", told.display()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://me:s3cret@{}/s3cret?token=s3cret", listener.local_addr().unwrap());
    let all = format!("[alert.all]\nwebhook = \"{url}\"\n");
    let host = host(&place, &format!("[alert.down]\ncommand = \"{}\"\n{all}", program.display()));
    let daemon = Daemon::serve(&place, &host);
    let respond = |status: &str| {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut seen, mut buffer) = (String::new(), [0; 1024]);
        while !seen.ends_with('}') {
            let read = stream.read(&mut buffer).unwrap();
            assert!(read > 0, "the end of the request is missing: {seen}");
            seen += &String::from_utf8_lossy(&buffer[..read]);
        }
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        seen
    };
    let test = || start(sluice().args(["-o", "json", "alert", "--test", "--socket"]).arg(place.socket("control")));

    let tested = test();
    let posted = respond("500 Internal Server Error");
    let tested = tested.end();
    assert_eq!(tested.code(), Some(1), "{}", tested.stdout);
    let (result, event) = (json(&tested), std::fs::read_to_string(&told).unwrap());
    let event: Value = serde_json::from_str(&event).unwrap();
    assert_eq!((&event["test"], &event["kind"], &event["suppressed"]), (&true.into(), &"down".into(), &0.into()));
    assert!(event["text"].as_str().unwrap().starts_with("TEST"), "{event}");
    assert!(posted.starts_with("POST /s3cret?token=s3cret ") && posted.contains("\"test\":true"), "{posted}");
    let alerts = result["alerts"].as_array().unwrap();
    let of = |class: &str| alerts.iter().find(|alert| alert["class"] == class).unwrap();
    assert!(result["ok"] == false && of("down")["error"].is_null(), "{result}");
    assert!(of("all")["error"].as_str().unwrap().contains("500"), "{result}");
    let status = ask(&place, &["status"]);
    assert_eq!(status.code(), Some(0), "no promise is broken by it");
    assert!(status.stdout.contains("[alert.all]) failed at ") && status.stdout.contains("500"), "{}", status.stdout);
    let failed = json(&ask(&place, &["-o", "json", "status"]))["failed_alert"].clone();
    assert!(failed["class"] == "all" && failed["time"].as_u64() > Some(0), "{failed}");

    let tested = test();
    respond("204 No Content");
    let tested = tested.end();
    assert_eq!((tested.code(), json(&tested)["ok"].clone()), (Some(0), Value::Bool(true)));
    assert_eq!(json(&ask(&place, &["-o", "json", "status"]))["failed_alert"], Value::Null, "it has arrived since");
    let one = ask(&place, &["alert", "--test", "down"]).ok();
    assert!(one.contains(program.to_str().unwrap()) && !one.contains("all"), "{one}");
    let log = daemon.terminate().stderr;
    assert!(log.contains("Alert failed"), "{log}");
    for text in [log, result.to_string(), status.stdout, failed.to_string()] {
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn others_are_served_while_a_recipient_hangs_and_a_second_test_is_refused() {
    let place = Place::new();
    let (program, begun) = (place.file("page"), place.file("begun"));
    script(&program, &format!("#!/bin/sh\ntouch {}\nexec sleep 600\n", begun.display()));
    let _daemon = Daemon::serve(&place, &host(&place, &format!("[alert.all]\ncommand = \"{}\"\n", program.display())));
    let tested = start(sluice().args(["alert", "--test", "--socket"]).arg(place.socket("control")));
    until("the program runs", || begun.exists());
    ask(&place, &["status"]).ok();
    ask(&place, &["get", "overrides"]).ok();
    assert!(ask(&place, &["alert", "--test"]).failed().contains("A test of alerts runs"));
    let tested = tested.end();
    assert_eq!(tested.code(), Some(1));
    assert!(tested.stdout.contains("FAILED: it did not end within 10 s and was killed"), "{}", tested.stdout);
}

#[test]
fn a_test_without_a_table_says_which_to_write() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place, ""));
    let refused = ask(&place, &["alert", "--test"]);
    assert_eq!(refused.code(), Some(3));
    assert!(
        refused.stderr.contains("no table [alert.all]") && refused.stderr.contains("webhook = "),
        "{}",
        refused.stderr
    );
    let with = host(&place, "[alert.latency]\ncommand = \"/bin/true\"\n");
    let refused = daemon.reload(&with);
    assert!(refused.contains("the program /bin/true. Restart the daemon"), "{refused}");
    assert_eq!(daemon.terminate().code(), Some(0));
    let _daemon = Daemon::serve(&place, &with);
    ask(&place, &["alert", "--test", "latency"]).ok();
    assert!(ask(&place, &["alert", "--test", "down"]).failed().contains("no table [alert.down]"));
    assert!(ask(&place, &["alert", "--test", "dwn"]).failed().contains("There is no class 'dwn'"));
    assert_eq!(run(sluice().arg("alert")).code(), Some(2));
}
