//! Prometheus reads the metrics; alerts and dashboard work with them.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::common::stations::{Lab, Uplink, address};
use crate::common::{Daemon, LONG, MIB, Place, fio, free_address, run, sluice, start, tool, until};
use serde_json::Value;
use sluice_client::net::traffic::Sender;

/// A host with a device that gives 400 requests per second, and two VMs: `busy` fills it, `slow` waits for its own limit and so
/// breaks its latency target.
fn host(place: &Place, metrics: &str) -> String {
    let (busy, slow) = (place.image("busy.img", 16 * MIB), place.image("slow.img", 16 * MIB));
    let device = place.device(
        "scheduler = \"mclock\"\ndepth = 2\ncapacity = \"400 iops@8KiB\"\n[device.disk.delay]\nparallel = 2\ntime = \"5ms\"",
    );
    format!(
        "{}metrics = \"{metrics}\"\n{device}{}{}[vm.busy]\nreservation = \"100 iops@8KiB\"\n[vm.slow]\nlimit = \"40 \
         iops@8KiB\"\nburst = 1\nlatency = {{ p99 = \"20ms\" }}\nallow_unenforced = true\n",
        place.control_keys(),
        place.volume("busy", "v", &busy, ""),
        place.volume("slow", "v", &slow, ""),
    )
}

/// Load on both VMs until it is dropped.
fn load(place: &Place) -> crate::common::Running {
    let job = |vm: &str, depth| {
        format!("[{vm}]\nioengine=nbd\nuri={}\nrw=randread\nbs=8k\nsize=16m\niodepth={depth}\n", place.uri(vm, "v"))
    };
    let jobs = format!("time_based=1\nruntime=300\n{}{}", job("busy", 8), job("slow", 4));
    start(&mut fio::fio(place, "load", &jobs))
}

/// Sends a request as it stands. Returns the head and the body of the response.
fn exchange(mut stream: impl Read + Write, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    (head.to_lowercase(), body.to_owned())
}

fn connect(address: &str) -> TcpStream {
    let address: SocketAddr = address.parse().unwrap();
    TcpStream::connect_timeout(&address, LONG).unwrap()
}

/// Requests a path by GET, with more header lines.
fn get(address: &str, path: &str, headers: &str) -> (String, String) {
    exchange(connect(address), &format!("GET {path} HTTP/1.1\r\nHost: sluice\r\n{headers}\r\n"))
}

fn ask(place: &Place, arguments: &[&str]) -> crate::common::Ended {
    run(sluice().args(arguments).arg("--socket").arg(place.socket("control")))
}

/// Asks until the counters have been read once.
fn sampled(place: &Place) -> String {
    let mut text = String::new();
    until("the first sample", || {
        text = ask(place, &["metrics"]).ok();
        text.contains("sluice_device_up{")
    });
    text
}

#[test]
fn prometheus_accepts_both_formats_and_the_file_for_node_exporter() {
    let (place, address) = (Place::new(), free_address());
    let _daemon = Daemon::serve(&place, &host(&place, &address));
    let printed = sampled(&place);
    let (head, classic) = get(&address, "/metrics", "");
    assert!(head.starts_with("http/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}");
    let (head, open) = get(&address, "/metrics", "Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n");
    assert!(head.contains("application/openmetrics-text"), "{head}");
    assert!(open.ends_with("# EOF\n") && !classic.contains("# EOF"));
    let printed_open = ask(&place, &["metrics", "--format", "openmetrics"]).ok();
    assert!(printed_open.ends_with("# EOF\n"));
    let file = place.file("sluice.prom");
    ask(&place, &["metrics", "--textfile", file.to_str().unwrap()]).ok();
    let written = std::fs::read_to_string(&file).unwrap();
    let left: Vec<_> = std::fs::read_dir(place.folder()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".sluice-")), "{left:?}");
    for text in [&classic, &printed, &written] {
        for series in ["sluice_requests_total{", "sluice_request_latency_seconds_bucket{", "sluice_build_info{"] {
            assert!(text.lines().any(|line| line.starts_with(series)), "{series}: {text}");
        }
        let checked = place.write("checked.txt", text);
        let shell = format!("promtool check metrics < {}", checked.display());
        let ended = run(tool("sh", "dash").args(["-c", &shell]));
        assert_eq!((ended.code(), ended.stdout.as_str(), ended.stderr.as_str()), (Some(0), "", ""));
    }
    let wrong = ask(&place, &["metrics", "--textfile", "metrics.txt"]).failed();
    assert!(wrong.contains("only files whose names end in .prom"), "{wrong}");
}

#[test]
fn a_socket_for_metrics_has_the_mode_of_the_control_socket_and_is_removed() {
    let place = Place::new();
    let socket = place.socket("metrics");
    let daemon = Daemon::serve(&place, &host(&place, socket.to_str().unwrap()));
    let stream = UnixStream::connect(&socket).unwrap();
    let (head, body) = exchange(stream, "GET /metrics HTTP/1.0\r\n\r\n");
    assert!(head.contains(" 200 ") && body.contains("sluice_build_info{"), "{head}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o660);
    daemon.terminate();
    until("the socket is removed", || !socket.exists());
}

#[test]
fn clients_that_send_rubbish_or_nothing_keep_none_from_the_metrics() {
    let (place, address) = (Place::new(), free_address());
    let _daemon = Daemon::serve(&place, &host(&place, &address));
    let silent: Vec<TcpStream> = (0..100).map(|_| connect(&address)).collect();
    let (head, _) = get(&address, "/metrics", "");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let status = |request: &str| exchange(connect(&address), request).0.split(' ').nth(1).map(str::to_owned);
    assert_eq!(status("GET /secret HTTP/1.1\r\nHost: a\r\n\r\n").as_deref(), Some("404"));
    assert_eq!(status("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").as_deref(), Some("405"));
    assert_eq!(status("\u{1}\u{2}\r\n\r\n").as_deref(), Some("400"));
    let long = format!("GET /metrics HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    // The daemon may close before it has read everything, so the response may be lost.
    let mut stream = connect(&address);
    let _ = stream.write_all(long.as_bytes());
    let mut response = String::new();
    let _ = stream.read_to_string(&mut response);
    assert!(!response.contains(" 200 "), "{response}");
    let (head, body) = exchange(connect(&address), "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(head.starts_with("http/1.1 200") && body.is_empty(), "{head}");
    drop(silent);
}

#[test]
fn a_failed_reload_shows_in_the_metrics() {
    let (place, address) = (Place::new(), free_address());
    let host = host(&place, &address);
    let daemon = Daemon::serve(&place, &host);
    let successful = |value: u32| sampled(&place).contains(&format!("sluice_config_last_reload_successful {value}\n"));
    until("the start counts as success", || successful(1));
    daemon.reload("rubbish");
    until("the failure shows", || successful(0));
    daemon.accept(&host);
    until("the success shows", || successful(1));
}

#[test]
fn a_mistyped_file_and_a_dry_run_counted_as_failed_reloads() {
    let (place, address) = (Place::new(), free_address());
    let daemon = Daemon::serve(&place, &host(&place, &address));
    let (mistyped, rubbish) = (place.file("hots.toml"), place.file("rubbish.toml"));
    std::fs::write(&rubbish, "rubbish").unwrap();
    let apply = |file: &Path, more: &[&str]| {
        run(sluice().arg("apply").arg(file).args(more).arg("--socket").arg(place.socket("control")))
    };
    let refused = apply(&mistyped, &[]);
    assert!(refused.code() != Some(0) && refused.stderr.contains("The daemon serves"), "{}", refused.stderr);
    let refused = apply(&rubbish, &["--dry-run"]);
    assert!(refused.code() != Some(0) && refused.stderr.contains("rubbish.toml"), "{}", refused.stderr);
    let applied = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let status = || ask(&place, &["-o", "json", "status"]).stdout;
    let time = || serde_json::from_str::<Value>(&status()).unwrap()["time"].as_u64().unwrap();
    until("a later sample", || time() > applied);
    assert!(sampled(&place).contains("sluice_config_last_reload_successful 1\n"));
    let ended = daemon.terminate();
    assert!(!ended.stderr.contains("ERROR") && !ended.stderr.contains("rubbish"), "{}", ended.stderr);
}

fn contrib(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(path)
}

#[test]
fn each_alert_fires_when_it_should_and_only_then() {
    let tested = contrib("prometheus/sluice.rules.test.yml");
    run(tool("promtool", "prometheus").args(["test", "rules"]).arg(&tested)).ok();
    let rules = std::fs::read_to_string(contrib("prometheus/sluice.rules.yml")).unwrap();
    let (tested, manual) = (std::fs::read_to_string(tested).unwrap(), manual());
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tested.contains(&format!("alertname: {alert}\n        exp_alerts:")), "{alert} is not tested");
        assert!(manual.contains(&format!("| `{alert}` |")), "{alert} is not in docs/monitoring.md");
    }
    for name in names(&rules) {
        assert!(manual.contains(&format!("| `{name}` |")), "alerts use {name}, which is no metric");
    }
}

fn manual() -> String {
    std::fs::read_to_string(contrib("../docs/monitoring.md")).unwrap()
}

/// Names of metrics in expressions, without the suffixes of histograms.
fn names(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let words = words.filter(|word| word.starts_with("sluice_"));
    words.map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned()).collect()
}

fn dashboard() -> Value {
    serde_json::from_slice(&std::fs::read(contrib("grafana/sluice.json")).unwrap()).unwrap()
}

/// The expressions of panels or annotations, with values for the variables of the dashboard.
fn expressions<'a>(all: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    let variables = |text: &str| {
        let text = text.replace("$__rate_interval", "10s");
        ["instance", "device", "vm"].iter().fold(text, |text, name| text.replace(&format!("${name}"), ".*"))
    };
    all.into_iter().map(|one| variables(one["expr"].as_str().expect("each has an expression"))).collect()
}

fn of_panels(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    expressions(panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten()))
}

/// Whether an expression has data only if there is a NIC.
fn is_of_links(expression: &str) -> bool {
    ["sluice_nic_", "sluice_uplink_", "volume=~\"nic/"].iter().any(|name| expression.contains(name))
        && !expression.contains("or vector(0)")
}

/// A Prometheus that scrapes the daemon each second.
struct Prometheus {
    address: String,
    _running: crate::common::Running,
}

impl Prometheus {
    fn start(place: &Place, target: &str) -> Prometheus {
        let address = free_address().replace(":10809", ":9090");
        let rules = contrib("prometheus/sluice.rules.yml").canonicalize().unwrap();
        let config = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }}\nrule_files: ['{}']\nscrape_configs: \
             [{{ job_name: sluice, static_configs: [{{ targets: ['{target}'] }}] }}]\n",
            rules.display()
        );
        let config = place.write("prometheus.yml", config);
        let data = place.file("prometheus");
        let mut command = tool("prometheus", "prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", data.display()));
        command.arg(format!("--web.listen-address={address}"));
        let prometheus = Prometheus { address, _running: start(&mut command) };
        until("Prometheus answers", || {
            let address: SocketAddr = prometheus.address.parse().unwrap();
            TcpStream::connect_timeout(&address, LONG).is_ok()
        });
        prometheus
    }

    /// The value of an expression for each VM; the label is empty without one.
    fn query(&self, expression: &str) -> BTreeMap<String, f64> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        // HTTP/1.0 has no chunks.
        let request = format!("GET /api/v1/query?query={encoded} HTTP/1.0\r\n\r\n");
        let (_, body) = exchange(connect(&self.address), &request);
        let Ok(reply) = serde_json::from_str::<Value>(&body) else { return BTreeMap::new() };
        let reply = match reply["status"].as_str() {
            Some("success") => reply,
            _ => panic!("{expression}: {reply}"),
        };
        let results = reply["data"]["result"].as_array().unwrap().iter();
        let of = |result: &Value| {
            let vm = result["metric"]["vm"].as_str().unwrap_or_default().to_owned();
            (vm, result["value"][1].as_str().unwrap().parse().unwrap())
        };
        results.map(of).collect()
    }
}

fn near(what: &str, got: f64, wanted: f64, part: f64) {
    assert!((got - wanted).abs() <= wanted.abs() * part, "{what}: {got}, and not {wanted}");
}

#[test]
fn the_dashboard_shows_of_a_busy_daemon_what_get_shows() {
    let (place, address) = (Place::new(), free_address());
    let _daemon = Daemon::serve(&place, &host(&place, &address));
    let _load = load(&place);
    let prometheus = Prometheus::start(&place, &address);
    let dashboard = dashboard();
    let (panels, annotations) =
        (of_panels(&dashboard), expressions(dashboard["annotations"]["list"].as_array().unwrap()));
    assert!(panels.len() > 35 && annotations.len() == 2, "{panels:?}");
    for name in names(&panels.concat()).into_iter().chain(names(&annotations.concat())) {
        assert!(manual().contains(&format!("| `{name}` |")), "the dashboard uses {name}, which is no metric");
    }
    for expression in &annotations {
        assert!(prometheus.query(expression).is_empty(), "nothing was restarted: {expression}");
    }
    for expression in panels.iter().filter(|expression| !is_of_links(expression)) {
        until(&format!("data for {expression}"), || !prometheus.query(expression).is_empty());
    }
    // Rates over ten seconds settle when the load has run for as long.
    let ten_seconds = "rate(sluice_device_full_seconds_total[10s]) > 0.9 and sluice_device_full_seconds_total > 20";
    until("20 s of a full device", || !prometheus.query(ten_seconds).is_empty());
    let shown: Value = serde_json::from_str(&ask(&place, &["get", "vms", "-o", "json"]).ok()).unwrap();
    let vms = shown["vms"].as_array().unwrap();
    let rates = prometheus.query("sum by (vm) (rate(sluice_requests_total{result=\"ok\"}[10s]))");
    let service = prometheus.query("sum by (vm) (rate(sluice_normalized_requests_total[10s]))");
    let bytes = prometheus.query("sum by (vm) (rate(sluice_request_bytes_total[10s]))");
    let broken = prometheus.query("sluice_promise_broken{kind=\"latency\"}");
    for name in ["busy", "slow"] {
        let vm = vms.iter().find(|vm| vm["vm"] == name).unwrap_or_else(|| panic!("{shown}"));
        let of = |what: &str| vm["rates"]["10s"][what].as_f64().unwrap_or_else(|| panic!("{what}: {vm}"));
        near("iops", rates[name], of("iops"), 0.25);
        near("normalised iops", service[name], of("normalised_iops"), 0.25);
        near("bytes", bytes[name], of("bytes_per_second"), 0.25);
        assert_eq!(vm["state"] == "broken", name == "slow", "{vm}");
    }
    assert_eq!(broken, BTreeMap::from([("slow".to_owned(), 1.0)]));
    assert_eq!(prometheus.query("sluice_policy_reservation_ops_per_second")["busy"], 100.0);
    assert_eq!(prometheus.query("sluice_policy_limit_ops_per_second")["slow"], 40.0);
    assert_eq!(prometheus.query("sluice_device_capacity_ops_per_second")[""], 400.0);
    until("the alert fires", || {
        prometheus.query("ALERTS{alertname=\"SluiceLatencyBroken\",alertstate=\"firing\"}").contains_key("slow")
    });
}

/// Serves what `sluice metrics` prints at an address, because a daemon in a namespace of its own cannot be reached over TCP.
fn pass_on(place: &Place) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, socket) = (listener.local_addr().unwrap().to_string(), place.socket("control"));
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 4096]);
            let metrics = run(sluice().args(["metrics", "--socket"]).arg(&socket));
            let head = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n";
            let _ = stream.write_all((head.to_owned() + &metrics.stdout).as_bytes());
            if metrics.code() != Some(0) {
                return;
            }
        }
    });
    address
}

#[test]
fn the_dashboard_shows_who_takes_most_of_a_link_and_what_is_dropped() {
    // The first VM sends more than its limit, so that frames are dropped.
    let lab = Lab::new(Uplink::Tap, "100Mbit/s", &["limit = \"5Mbit/s\"", ""]);
    // Outside, a station is told that an address has a MAC address that no port has.
    lab.outside.ip(&format!("neigh replace {} lladdr 02:00:00:00:00:99 dev eth0 nud permanent", address(99))).unwrap();
    let nobody = SocketAddr::new(address(99).into(), 9);
    let _sinks = [lab.sink(1), lab.sink(2)];
    let _senders = [lab.send(1, 50), lab.send(2, 20), Sender::udp(&lab.outside, nobody, 100, 10).unwrap()];
    let prometheus = Prometheus::start(&lab.place, &pass_on(&lab.place));
    let panels = of_panels(&dashboard());
    for expression in panels.iter().filter(|expression| is_of_links(expression)) {
        until(&format!("data for {expression}"), || !prometheus.query(expression).is_empty());
    }
    let most =
        panels.iter().find(|expression| expression.starts_with("topk(10, 8 * ")).unwrap().replace("topk(10", "topk(1");
    until("the second VM takes most", || prometheus.query(&most).keys().eq(["vm2"]));
}
