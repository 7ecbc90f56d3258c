//! The web page, with curl and with a browser.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::raw::Raw;
use crate::common::{Daemon, LONG, MIB, Place, Running, run, sluice, start, tool};

mod browser;
mod nights;
mod shared;

/// A page server, with the cookie of its link.
struct Ui {
    running: Running,
    port: u16,
    url: String,
    cookie: String,
}

/// An answer: its status, its headers in lower case, and its body.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    /// The value of a header.
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")))
    }

    #[track_caller]
    fn has(&self, status: u16, texts: &[&str]) {
        assert_eq!(self.status, status, "{}", self.body);
        for text in texts {
            assert!(self.body.contains(text), "{text} in {}", self.body);
        }
    }
}

impl Ui {
    /// One whose link was not used.
    fn unused(place: &Place) -> Ui {
        let running = start(sluice().args(["-o", "json", "ui", "--socket"]).arg(place.socket("control")));
        let line = running.stdout.up_to(&["\"url\""]);
        let printed: Value = serde_json::from_str(&line).unwrap();
        let port = printed["port"].as_u64().unwrap() as u16;
        assert!(printed["ssh"].as_str().unwrap().starts_with(&format!("ssh -L {port}:127.0.0.1:{port} ")), "{printed}");
        Ui { running, port, url: printed["url"].as_str().unwrap().to_owned(), cookie: String::new() }
    }

    fn new(place: &Place) -> Ui {
        let mut ui = Ui::unused(place);
        let welcome = ui.ask(place, ui.url.split_once(&format!(":{}", ui.port)).unwrap().1, &[]);
        assert_eq!(welcome.status, 200, "{}", welcome.body);
        let set = welcome.header("set-cookie").unwrap().to_owned();
        assert!(set.ends_with("; httponly; samesite=strict; path=/"), "{set}");
        ui.cookie = set.split(';').next().unwrap().to_owned();
        ui
    }

    fn base(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Asks with these arguments of curl.
    fn ask(&self, place: &Place, path: &str, more: &[&str]) -> Answer {
        let cookie = format!("cookie: {}", self.cookie);
        curl(place, &format!("{}{path}", self.base()), &[&["--header", &cookie], more].concat())
    }

    fn get(&self, place: &Place, path: &str) -> Answer {
        self.ask(place, path, &[])
    }

    /// Sends a form of the page.
    fn post(&self, place: &Place, path: &str, fields: &[(&str, &str)]) -> Answer {
        let origin = format!("origin: {}", self.base());
        let fields: Vec<String> = fields.iter().map(|(name, text)| format!("{name}={text}")).collect();
        let data = fields.iter().flat_map(|field| ["--data-urlencode", field.as_str()]);
        self.ask(place, path, &["--header", &origin].into_iter().chain(data).collect::<Vec<_>>())
    }

    fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.running.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }
}

/// Asks curl for an address.
fn curl(place: &Place, url: &str, more: &[&str]) -> Answer {
    let (head, body) = (place.file("head"), place.file("body"));
    let mut curl = tool("curl", "curl");
    curl.args(["--silent", "--show-error", "--max-time", "20", "--write-out", "%{http_code}"]);
    curl.arg("--dump-header").arg(&head).arg("--output").arg(&body).args(more);
    let status = run(curl.arg(url)).ok();
    let text = |file| String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned();
    Answer { status: status.trim().parse().unwrap(), head: text(&head).to_lowercase(), body: text(&body) }
}

fn host(place: &Place) -> String {
    let volume = |vm: &str| place.volume(vm, "v", &place.image(&format!("{vm}.img"), 4 * MIB), "");
    let vms = "[vm.a]\nreservation = \"100 iops\"\n[vm.b]\nweight = 50\n";
    place.control_keys() + &place.device("capacity = \"1000 iops@8KiB\"") + vms + &volume("a") + &volume("b")
}

fn cli(place: &Place, verb: &[&str]) -> Value {
    let ended = run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")));
    serde_json::from_str(&ended.ok()).unwrap()
}

/// What the API has at a path.
fn api(place: &Place, path: &str) -> Value {
    let mut curl = tool("curl", "curl");
    curl.args(["--silent", "--show-error", "--max-time", "20", "--unix-socket"]).arg(place.socket("control"));
    serde_json::from_str(&run(curl.arg(format!("http://sluice{path}"))).ok()).unwrap()
}

/// The value of a field of a form.
fn field(page: &str, name: &str) -> String {
    let (_, rest) = page.split_once(&format!("name=\"{name}\" value=\"")).unwrap_or_else(|| panic!("{name} in {page}"));
    rest.split('"').next().unwrap().replace("&#34;", "\"").replace("&#60;", "<")
}

#[test]
fn a_link_works_once_and_only_for_this_host_and_site() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let ui = Ui::new(&place);
    let again = Ui { cookie: String::new(), ..ui };
    let (_, link) = again.url.split_once(&format!(":{}", again.port)).unwrap();
    again.ask(&place, link, &[]).has(403, &["was used already"]);
    again.get(&place, "/vms").has(401, &["Open the link"]);
    let ui = Ui { cookie: String::new(), ..again };
    assert_eq!(ui.ask(&place, "/", &["--header", "host: evil.example"]).status, 421);
    let styled = ui.get(&place, "/assets/ui.css");
    assert_eq!(styled.status, 200);
    let policy = styled.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'") && !policy.contains("unsafe"), "{policy}");
    for (name, value) in
        [("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer"), ("cache-control", "no-store")]
    {
        assert_eq!(styled.header(name), Some(value));
    }
    ui.running.signal(Signal::INT);
    assert_eq!(ui.running.end().code(), Some(0));
    let absent = run(sluice().args(["ui", "--socket"]).arg(place.socket("nothing"))).failed();
    assert!(absent.contains("No daemon at"), "{absent}");
}

#[test]
fn every_page_has_what_the_api_has() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let _client = Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap();
    cli(&place, &["set", "b", "limit=100 iops", "--for", "1h", "--reason", "noisy"]);
    let ui = Ui::new(&place);
    let get = |path: &str| ui.get(&place, path);
    get("/")
        .has(200, &["<p class=\"sentence well\"", "promise is not broken", "b/limit", "noisy", "/undo?name=b%2Flimit"]);
    get("/vms").has(200, &["1 to 2 of 2", "href=\"/vms/a\"", "0 of 100 iops", "data-cell=\"v/a/disk/p99\""]);
    get("/vms?text=B&sort=iops").has(200, &["1 to 1 of 1 that match, of 2", "aria-sort=\"descending\""]);
    get("/vms/a").has(200, &["VM a", "<h2 id=\"change\"", "value=\"100 iops\"", "Numbers of this chart", "process "]);
    get("/change/a/v").has(200, &["Change a/v"]);
    get("/devices/disk").has(200, &["Device disk", "may still be reserved"]);
    get("/events?kind=change&since=1h").has(200, &["noisy", "limit=100 iops"]);
    let csv = get("/events.csv?kind=changed");
    csv.has(200, &["time,kind,subject,who,before,after,reason,text\r\n", ",changed,b,"]);
    assert_eq!(csv.header("content-type"), Some("text/csv; charset=utf-8"));
    get("/api").has(200, &["/v1/vms/{vm}", "<span class=\"method\">PATCH</span>"]);
    // What is wrong is said in words.
    get("/vms/c").has(404, &["There is no VM, volume or NIC c"]);
    get("/devices/c").has(404, &["There is no device or uplink c"]);
    get("/vms?state=bad").has(400, &["the states are broken"]);
    get("/vms?x=1").has(400, &["unknown field"]);
    get("/events?since=then").has(400, &["write for example 2h"]);
    get("/nothing").has(404, &["There is no /nothing"]);
}

#[test]
fn a_change_is_previewed_confirmed_and_undone_and_a_refused_one_changes_nothing() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let ui = Ui::new(&place);
    let page = ui.get(&place, "/vms/a").body;
    let etag = field(&page, "etag");
    let form = |limit: &str, step: &str, etag: &str| {
        let fields = [
            ("reservation", "100 iops"),
            ("limit", limit),
            ("weight", ""),
            ("term", "600"),
            ("reason", "<b>why</b>"),
            ("etag", etag),
            ("step", step),
        ];
        ui.post(&place, "/change/a", &fields)
    };
    let limit = || api(&place, "/v1/vms/a")["items"][0]["policy"]["limit_iops"].clone();
    form("200 iops", "preview", &etag).has(200, &["What the change does", "200", "10 minutes", "Make the change"]);
    assert_eq!(limit(), Value::Null, "a dry run changes nothing");
    let wrong = form("50 iops", "confirm", &etag);
    wrong.has(400, &["role=\"alert\"", "value=\"50 iops\"", "&#60;b&#62;why"]);
    form("200 iopz", "preview", &etag).has(400, &["iopz"]);
    assert_eq!(limit(), Value::Null);
    let made = form("200 iops", "confirm", &etag);
    assert_eq!((made.status, made.header("location")), (303, Some("/vms/a?done=1")), "{}", made.body);
    assert_eq!(limit(), 200.0);
    let override_ = &api(&place, "/v1/overrides")["items"][0];
    assert_eq!((&override_["name"], &override_["reason"]), (&json!("a/limit"), &json!("<b>why</b>")));
    form("300 iops", "confirm", &etag).has(412, &["has changed since", "value=\"300 iops\"", "In force: 200 iops"]);
    assert_eq!(limit(), 200.0, "another version was changed");
    ui.get(&place, "/vms/a?done=1").has(200, &["In force, until", "Undo this change"]);
    assert_eq!(ui.post(&place, "/undo", &[("done", "1")]).status, 303);
    assert_eq!((limit(), &api(&place, "/v1/overrides")["total"]), (Value::Null, &json!(0)));
    ui.get(&place, "/vms/a?done=1").has(200, &["Undone:"]);
    // An undo does not undo what others have changed since.
    let etag = field(&ui.get(&place, "/vms/a").body, "etag");
    assert_eq!(form("210 iops", "confirm", &etag).header("location"), Some("/vms/a?done=2"));
    cli(&place, &["set", "a", "limit=220 iops", "--permanent"]);
    ui.post(&place, "/undo", &[("done", "2")]).has(412, &["Nothing was undone"]);
    assert_eq!(limit(), 220.0);
    cli(&place, &["reset", "--all"]);
    // What another program has set is undone by its name.
    cli(&place, &["set", "b", "weight=70"]);
    let seen = ui.get(&place, "/undo?name=b/weight");
    seen.has(200, &["Undo b/weight", "70", "What the undo does"]);
    // Another value than the one that was seen stays.
    cli(&place, &["set", "b", "weight=71"]);
    let undo = |page: &Answer| ui.post(&place, "/undo", &[("name", "b/weight"), ("etag", &field(&page.body, "etag"))]);
    undo(&seen).has(412, &["b/weight has changed since"]);
    assert_eq!(api(&place, "/v1/overrides")["total"], 1);
    assert_eq!(undo(&ui.get(&place, "/undo?name=b/weight")).status, 303);
    assert_eq!(api(&place, "/v1/overrides")["total"], 0);
    ui.get(&place, "/undo?name=b/weight").has(404, &["There is no change b/weight"]);
}

#[test]
fn what_a_form_must_not_have_is_refused() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let ui = Ui::new(&place);
    let foreign = |header: &str| ui.ask(&place, "/change/a", &["--header", header, "--data", "limit=5 iops"]).status;
    assert_eq!(foreign("origin: http://evil.example"), 403);
    assert_eq!(foreign("x-none: 1"), 403, "it says not where it comes from");
    ui.post(&place, "/change/a", &[("lmit", "5 iops")]).has(400, &["unknown field", "lmit"]);
    ui.post(&place, "/change/a", &[("reason", &"x".repeat(70_000))]).has(413, &["64 KiB"]);
    ui.post(&place, "/change/gone", &[("limit", "5 iops"), ("step", "confirm")]).has(404, &["value=\"5 iops\""]);
    ui.post(&place, "/change/a", &[("step", "now")]).has(400, &["it may be preview"]);
    assert_eq!(
        ui.ask(&place, "/vms/a", &["--request", "DELETE", "--header", &format!("origin: {}", ui.base())]).status,
        405
    );
    assert_eq!(api(&place, "/v1/overrides")["total"], 0);
}

#[test]
fn text_of_users_is_harmless() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let ui = Ui::new(&place);
    for (reason, weight) in [("<script>alert(1)</script>abc", "weight=60"), (&"\"<y>".repeat(100), "weight=61")] {
        cli(&place, &["set", "b", weight, "--reason", reason]);
    }
    for path in ["/", "/events", "/vms/b", "/undo?name=b/weight"] {
        let body = ui.get(&place, path).body;
        let is_harmless = !body.contains("<script>") && !body.contains("<y>");
        assert!(is_harmless, "{path}: {body}");
    }
    ui.get(&place, "/events")
        .has(200, &["&#60;script&#62;alert(1)&#60;/script&#62;abc", "<span title=\"&#34;&#60;y&#62;"]);
}

#[test]
fn a_stream_sends_changed_cells_and_what_happens_and_all_of_them_are_one_of_the_daemon() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let ui = Ui::new(&place);
    let open = |query: &str| {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, ui.port)).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let (port, cookie) = (ui.port, &ui.cookie);
        write!(stream, "GET /stream?{query} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n\r\n").unwrap();
        BufReader::new(stream)
            .lines()
            .map(Result::unwrap)
            .filter_map(|line| line.strip_prefix("data: ").map(|json| serde_json::from_str::<Value>(json).unwrap()))
    };
    let mut first = open("vms=a");
    // A user may have 8 connections at the daemon, and these are more.
    let others: Vec<_> = (0..12).map(|_| open("promises=true&devices=*")).collect();
    let cells = first.find(|patch| !patch["cells"].is_null()).unwrap();
    assert_eq!(cells["cells"]["v/a/disk/band"], "0 of 100 iops", "{cells}");
    assert!(cells["cells"].get("v/b/disk/band").is_none(), "{cells}");
    cli(&place, &["set", "a", "limit=300 iops", "--reason", "for the stream"]);
    let changed = first.find(|patch| patch["cells"]["v/a/disk/band"] == "0 of 100 to 300 iops").unwrap();
    assert!(
        changed["cells"].get("v/a/disk/weight").is_none() && changed["cells"].get("v/a/disk/p99").is_none(),
        "{changed}"
    );
    for other in others {
        let mut said = other.filter(|patch| !patch["say"].is_null());
        assert!(said.next().unwrap()["say"][0].as_str().unwrap().contains("for the stream"));
    }
    assert_eq!(cli(&place, &["get", "vms"])["vms"].as_array().unwrap().len(), 2);
}

#[test]
fn connections_that_send_nothing_or_read_nothing_take_no_memory_and_keep_nobody_out() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let ui = Ui::new(&place);
    ui.get(&place, "/vms");
    let before = ui.resident_bytes();
    let mut all = Vec::new();
    for number in 0..1000 {
        let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, ui.port)) else { continue };
        let (port, cookie) = (ui.port, &ui.cookie);
        let head = format!("HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n\r\n");
        // It may have made room for another one already.
        let _ = match number % 3 {
            0 => Ok(()),
            1 => write!(stream, "GET /stream?promises=true&devices=* {head}"),
            _ => write!(stream, "GET /vms {head}"),
        };
        all.push(stream);
    }
    ui.get(&place, "/vms").has(200, &["1 to 2 of 2"]);
    let more = ui.resident_bytes().saturating_sub(before);
    assert!(more < 32 * MIB, "{more} bytes more");
    let open = std::fs::read_dir(format!("/proc/{}/fd", ui.running.pid())).unwrap().count();
    assert!(open < 150, "{open} descriptors");
    assert_eq!(cli(&place, &["get", "vms"])["vms"].as_array().unwrap().len(), 2);
    let mut oldest = all.swap_remove(0);
    oldest.set_read_timeout(Some(LONG)).unwrap();
    assert!(matches!(oldest.read(&mut [0; 16]), Ok(0) | Err(_)), "it made room");
}
