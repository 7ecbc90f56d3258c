//! HTTP on the control socket, with curl as the client.

use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use sluice_api::change::Changed;
use sluice_api::request::{How, Request};

use crate::common::raw::Raw;
use crate::common::{Daemon, Ended, LONG, MIB, Place, run, run_within, sluice, tool};

/// An answer: its status and its document.
#[derive(Debug)]
struct Answer {
    status: u16,
    kind: String,
    body: Value,
}

/// Asks with these arguments of curl.
fn curl(place: &Place, path: &str, more: &[&str]) -> Answer {
    let file = place.file("answer");
    let mut curl = tool("curl", "curl");
    curl.args(["--silent", "--show-error", "--max-time", "20", "--write-out", "%{http_code} %{content_type}"]);
    curl.arg("--unix-socket").arg(place.socket("control")).arg("--output").arg(&file);
    let said = run(curl.args(more).arg(format!("http://sluice{path}"))).ok();
    let (status, kind) = said.trim_end().split_once(' ').unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let body = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"));
    Answer { status: status.parse().unwrap(), kind: kind.to_owned(), body }
}

fn get(place: &Place, path: &str) -> Value {
    let answer = curl(place, path, &[]);
    assert_eq!((answer.status, answer.kind.as_str()), (200, "application/json"), "{path}: {}", answer.body);
    answer.body
}

fn send(place: &Place, method: &str, path: &str, body: &Value) -> Answer {
    let (method, body) = (["--request", method], body.to_string());
    curl(place, path, &[&method[..], &["--header", "content-type: application/json", "--data", &body]].concat())
}

/// A problem: its status, code and words.
#[track_caller]
fn refused(answer: Answer, status: u16, code: &str, words: &str) {
    let Answer { body, kind, .. } = &answer;
    assert_eq!(
        (answer.status, kind.as_str(), &body["code"]),
        (status, "application/problem+json", &json!(code)),
        "{body}"
    );
    assert!(body["status"] == status && body["detail"].as_str().unwrap().contains(words), "{words}: {body}");
}

fn host(place: &Place) -> String {
    let volume = |vm: &str| place.volume(vm, "v", &place.image(&format!("{vm}.img"), 4 * MIB), "");
    let vms = "[vm.a]\nreservation = \"100 iops\"\n[vm.b]\nweight = 50\n";
    place.control_keys() + &place.device("capacity = \"1000 iops@8KiB\"") + vms + &volume("a") + &volume("b")
}

fn cli(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")))
}

#[test]
fn what_the_command_line_shows_is_read_over_http() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap().read(0, 4096).unwrap();
    assert_eq!(get(&place, "/health")["ok"], true);
    assert_eq!(get(&place, "/v1/status")["promises_broken"], 0);
    let vms = get(&place, "/v1/vms");
    let shown: Value = serde_json::from_str(&cli(&place, &["get", "vms"]).ok()).unwrap();
    assert_eq!((&vms["total"], &vms["items"][0]["vm"]), (&json!(2), &json!("a")));
    let policy = |all: &Value, at: usize| all[at]["policy"].clone();
    assert_eq!(policy(&vms["items"], 1), policy(&shown["vms"], 1));
    assert_eq!(get(&place, "/v1/vms/a")["items"][0]["policy"]["reservation_iops"], 100.0);
    assert_eq!(
        get(&place, "/v1/vms?fields=vm,device&limit=1"),
        json!({ "items": [{ "vm": "a", "device": "disk" }], "total": 2, "next": "a disk" })
    );
    assert_eq!(get(&place, "/v1/vms?fields=vm&cursor=a%20disk")["items"], json!([{ "vm": "b" }]));
    assert_eq!(get(&place, "/v1/volumes/b/v?fields=volume"), json!({ "volume": "v" }));
    assert_eq!(get(&place, "/v1/devices/disk")["health"], "serving");
    assert_eq!(get(&place, "/v1/devices?fields=device,pool")["items"], json!([{ "device": "disk" }]), "it has no pool");
    for empty in ["nics", "uplinks", "pools", "policies", "overrides"] {
        assert_eq!(get(&place, &format!("/v1/{empty}")), json!({ "items": [], "total": 0 }), "{empty}");
    }
    assert_eq!(get(&place, "/v1/clients/a/v")["items"], json!([]));
    let why: Value = serde_json::from_str(&cli(&place, &["why", "a"]).ok()).unwrap();
    let told = get(&place, "/v1/why?vm=a");
    assert_eq!(
        (&told["vm"], &told["causes"], &told["now"][0]["policy"]),
        (&why["vm"], &why["causes"], &why["now"][0]["policy"])
    );
    let started = get(&place, "/v1/events")["events"][0].clone();
    assert_eq!(get(&place, &format!("/v1/events/{}", started["id"])), started);
    assert_eq!(get(&place, "/openapi.json")["openapi"], "3.1.0");
    let metrics = run(tool("curl", "curl")
        .args(["--silent", "--unix-socket"])
        .arg(place.socket("control"))
        .arg("http://s/metrics"));
    assert!(metrics.ok().contains("sluice_build_info"));
    assert_eq!(get(&place, "/v1/history/a?step=minute")["vm"], "a");
    assert_eq!(get(&place, "/v1/history/a/v")["volume"], "v");
}

#[test]
fn what_is_wrong_with_a_request_is_said_as_a_problem() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let get = |path: &str| curl(&place, path, &[]);
    refused(get("/v1/vm"), 404, "no-such-resource", "/v1/vm");
    refused(get("/v1/vms/c"), 404, "not-found", "There is no VM, volume or NIC c");
    refused(get("/v1/volumes/a/w"), 404, "not-found", "w");
    for (path, words) in [
        ("devices/ssd", "device ssd"),
        ("policies/gold", "policy gold"),
        ("overrides/a/limit", "a/limit"),
        ("events/999", "event 999"),
        ("why?vm=c", "no VM c"),
        ("vms/c/keys", "no c"),
        ("pools/disk", "pool of device disk"),
    ] {
        refused(get(&format!("/v1/{path}")), 404, "not-found", words);
    }
    refused(get("/v1/history/a?step=hour"), 400, "invalid", "second, minute");
    refused(get("/v1/vms?feilds=vm"), 400, "invalid", "feilds");
    refused(get("/v1/vms?fields=vm,wieght"), 400, "invalid", "wieght");
    refused(get("/v1/vms?limit=0"), 400, "invalid", "from 1 to");
    refused(send(&place, "PUT", "/v1/vms/a", &json!({})), 405, "method-not-allowed", "method");
    let patch = |body: &Value| send(&place, "PATCH", "/v1/vms/a", body);
    refused(patch(&json!({ "keys": { "wieght": 5 } })), 400, "invalid", "wieght");
    let several = patch(&json!({ "keys": { "limit": "5", "latency": { "p98": "5ms" } } })).body;
    let errors: Vec<_> =
        several["errors"].as_array().unwrap().iter().map(|one| (&one["pointer"], &one["hint"])).collect();
    let told =
        |pointer: &str, hint: &str| errors.iter().any(|one| one.0 == pointer && one.1.as_str().unwrap().contains(hint));
    assert!(told("/keys/limit", "5 iops") && told("/keys/latency/p98", "did you mean 'p99'?"), "{several}");
    refused(patch(&json!({ "key": {} })), 400, "invalid", "key");
    refused(patch(&json!({ "keys": { "reservation": "5000 iops" } })), 400, "invalid", "5000 iops");
    let _client = Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap();
    refused(curl(&place, "/v1/volumes/a/v", &["--request", "DELETE"]), 409, "refused", "a/v");
    refused(send(&place, "POST", "/v1/reset", &json!({ "until": 5 })), 400, "invalid", "until");
    refused(curl(&place, "/v1/volumes/a/v?forse=a/v", &["--request", "DELETE"]), 400, "invalid", "forse");
    refused(patch(&json!({ "keys": {}, "until": 1, "persist": true })), 400, "invalid", "until, seconds");
    refused(patch(&json!({ "reason": "x".repeat(70_000) })), 413, "too-large", "limit");
    let plain = curl(&place, "/v1/vms/a", &["--request", "PATCH", "--data", "{}"]);
    refused(plain, 415, "no-json", "application/json");
    let overrides = cli(&place, &["get", "overrides"]).ok();
    assert_eq!(serde_json::from_str::<Value>(&overrides).unwrap()["overrides"], json!([]), "nothing has changed");
}

#[test]
fn a_change_over_http_is_in_force_and_is_taken_back() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let body = json!({ "keys": { "limit": "200 iops" }, "reason": "noisy" });
    let changed = send(&place, "PATCH", "/v1/vms/b", &body);
    assert_eq!(
        (changed.status, &changed.body["after"]["policy"]["limit_iops"]),
        (200, &json!(200.0)),
        "{}",
        changed.body
    );
    assert_eq!(get(&place, "/v1/vms/b")["items"][0]["policy"]["limit_iops"], 200.0);
    let overrides = get(&place, "/v1/overrides")["items"].clone();
    assert_eq!((&overrides[0]["name"], &overrides[0]["reason"]), (&json!("b/limit"), &json!("noisy")));
    let reset = send(&place, "POST", "/v1/reset", &json!({ "reset": ["b/limit"] }));
    assert_eq!(reset.status, 200, "{}", reset.body);
    assert_eq!(get(&place, "/v1/vms/b")["items"][0]["policy"]["limit_iops"], Value::Null);
    // Volumes come and go.
    let export = place.volume_socket("c", "w");
    let keys = json!({ "device": "disk", "source": place.image("c.img", MIB), "export": { "socket": export } });
    let attach = |vm: &str| {
        send(&place, "POST", &format!("/v1/volumes/{vm}/w"), &json!({ "keys": keys, "vm": { "weight": 30 } }))
    };
    assert_eq!(attach("c").status, 200);
    refused(attach("c"), 409, "exists", "c/w");
    let mut client = Raw::open(&export, "c/w").unwrap();
    client.write(0, &[1; 4096]).unwrap();
    assert_eq!(curl(&place, "/v1/volumes/c/w?force=c/w&reason=moved", &["--request", "DELETE"]).status, 200);
    refused(curl(&place, "/v1/volumes/c/w", &[]), 404, "not-found", "c/w");
}

#[test]
fn a_change_is_tried_first_and_made_only_for_the_version_that_was_read() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let patch = |path: &str, body: &Value| send(&place, "PATCH", path, body);
    let more = json!({ "keys": { "reservation": "300 iops" } });
    let tried = patch("/v1/vms/a?dry_run=1", &more);
    assert_eq!((tried.status, &tried.body["changes"][0]["after"]), (200, &json!("300")), "{}", tried.body);
    let parts: Vec<_> = tried.body["parts"].as_array().unwrap().iter().map(|part| &part["text"]).collect();
    let told = [
        "spare for b on disk: 233 iops, was 300",
        "a reserves 30 % of disk, was 10 %; spare for a on disk: 467 iops, was 600",
    ];
    assert_eq!(parts, told);
    refused(
        patch("/v1/vms/a?dry_run=1", &json!({ "keys": { "reservation": "5000 iops" } })),
        400,
        "invalid",
        "5000 iops",
    );
    refused(patch("/v1/vms/a?dry_run=yes", &more), 400, "invalid", "'yes' is neither 1 nor 0");
    let client = Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap();
    let delete = |query: &str| curl(&place, &format!("/v1/volumes/a/v{query}"), &["--request", "DELETE"]);
    refused(delete("?dry_run=1"), 409, "refused", "a/v");
    drop(client);
    assert_eq!(delete("?dry_run=1&force=a/v").body["changes"][0]["effect"], "will be closed");
    assert_eq!(send(&place, "POST", "/v1/apply?dry_run=1", &json!({})).body["changes"], json!([]));
    assert_eq!(get(&place, "/v1/vms/a")["items"][0]["policy"]["reservation_iops"], 100.0, "it was only tried");
    assert_eq!(get(&place, "/v1/overrides")["total"], 0);
    // Two people have read the same version.
    let read = get(&place, "/v1/vms/a/keys");
    assert_eq!(read["keys"], json!({ "reservation": "100 iops" }));
    let version = format!("if-match: \"{}\"", read["version"].as_str().unwrap());
    let change = |method: &str, path: &str, body: &str| {
        curl(
            &place,
            path,
            &["--request", method, "--header", &version, "--header", "content-type: application/json", "--data", body],
        )
    };
    assert_eq!(change("PATCH", "/v1/vms/a", &more.to_string()).status, 200);
    let late = |method: &str, path: &str| {
        refused(change(method, path, "{\"keys\":{\"weight\":5}}"), 412, "changed", "a has changed")
    };
    late("PATCH", "/v1/vms/a");
    late("PATCH", "/v1/vms/a?dry_run=1");
    late("DELETE", "/v1/vms/a");
    late("POST", "/v1/vms/a/accept-loss");
    refused(change("POST", "/v1/reset", "{}"), 400, "invalid", "If-Match is for one object");
    assert_eq!(get(&place, "/v1/vms/a/keys")["keys"], json!({ "reservation": "300 iops" }));
    assert_eq!(cli(&place, &["get", "overrides"]).ok().matches("\"name\"").count(), 1);
}

/// A port of this host whose connections go to the control socket, for clients that know no Unix sockets.
fn over_tcp(place: &Place) -> String {
    let (listener, socket) = (TcpListener::bind("127.0.0.1:0").unwrap(), place.socket("control"));
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(daemon)) = (client, UnixStream::connect(&socket)) else { return };
            let (mut from, mut to) = (client.try_clone().unwrap(), daemon.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut &daemon, &mut &client);
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

/// Ends the load of a test, also of one that fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A client of others makes requests from the document, right ones and wrong ones, while a VM works and its limit changes: each answer is one
/// that the document has.
#[test]
fn every_resource_answers_as_its_document_says() {
    let place = Place::new();
    let volume = |vm: &str| place.volume(vm, "0", &place.image(&format!("{vm}.img"), 4 * MIB), "");
    let policies = "[policy.0]\nweight = 50\n[vm.0]\npolicy = \"0\"\n[vm.busy]\nreservation = \"100 iops\"\n";
    let host = place.control_keys() + &place.device("capacity = \"1000 iops@8KiB\"") + policies;
    let daemon = Daemon::serve(&place, &(host + &volume("0") + &volume("busy")));
    let address = over_tcp(&place);
    let is_over = AtomicBool::new(false);
    let mut guest = Raw::open(&place.volume_socket("busy", "0"), "busy/0").unwrap();
    let set = |limit: u32| {
        let keys = toml::Table::from_iter([("limit".to_owned(), format!("{limit} iops").into())]);
        let request = Request::Set { target: "busy".to_owned(), keys, reset: Vec::new(), how: How::default() };
        sluice_api::http::ask::<Changed>(&place.socket("control"), &request).unwrap();
    };
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        // The limit paces the reads, and they pace its changes.
        scope.spawn(|| {
            for read in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                guest.read(0, 4096).unwrap();
                if read % 50 == 0 {
                    set(200 + read % 100);
                }
            }
        });
        let mut tester = tool("schemathesis", "schemathesis, of Python");
        tester.args([
            "run",
            &format!("http://{address}/openapi.json"),
            "--no-color",
            "--warnings",
            "off",
            "--seed",
            "1",
        ]);
        tester.args(["--phases", "examples,coverage,fuzzing", "--max-examples", "15", "--continue-on-failure"]);
        // A stream does not end. Which keys and words a host file may have is no part of the document.
        tester.args(["--exclude-path", "/v1/stream", "--exclude-checks", "positive_data_acceptance"]);
        let found = run_within(tester.current_dir(place.folder()), 10 * LONG);
        assert_eq!(found.code(), Some(0), "{}", found.stdout);
        drop(over);
    });
    assert_eq!(get(&place, "/health")["ok"], true);
    daemon.terminate();
}

#[test]
fn a_stream_has_samples_and_what_happens() {
    use std::io::{BufRead as _, BufReader, Write as _};
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let mut stream = UnixStream::connect(place.socket("control")).unwrap();
    stream.write_all(b"GET /v1/stream?vms=b HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let mut data = |kind: &str| -> Value {
        lines.find(|line| *line == format!("event: {kind}")).unwrap();
        let line = lines.next().unwrap();
        serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap()
    };
    let sample = data("sample");
    assert_eq!((&sample["vms"][0]["vm"], sample["vms"].as_array().unwrap().len()), (&json!("b"), 1));
    cli(&place, &["set", "b", "limit=100 iops", "--reason", "for the stream"]).ok();
    let event = data("event");
    assert!(event["text"].as_str().unwrap().contains("for the stream"), "{event}");
}

#[test]
fn connections_that_send_nothing_or_read_nothing_keep_no_other_client_out() {
    use std::io::Write as _;
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let mut others = Vec::new();
    for number in 0..200 {
        let mut stream = UnixStream::connect(place.socket("control")).unwrap();
        let _ = match number % 3 {
            0 => stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n"),
            // The body does not come.
            1 => stream.write_all(b"POST /v1/reset HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n"),
            _ => Ok(()),
        };
        others.push(stream);
    }
    assert_eq!(cli(&place, &["get", "vms"]).code(), Some(0));
    assert_eq!(get(&place, "/v1/vms")["total"], 2);
}
