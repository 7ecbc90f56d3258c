//! `cargo xtask bench page`: what the web page and the API cost.
//!
//! First a null device over vhost-user-blk, 32 requests in flight: rounds in which the page of its VM is open and three programs follow
//! `/v1/stream` alternate with rounds in which nobody looks. Then a host with 1,000 VMs, of which those on the first page of the list are
//! read from: CPU time of `sluice ui` and of the daemon for a list, bytes that the list gets by its stream, memory, and the time until a
//! change is in force and on the page. The first paint and the tasks of a browser are not measured here.

use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use sluice_client::nbd;

use super::observe::host::Host;
use super::report::{Bound, Cell, Report, Table};
use super::server::{Server, build_sluice, scratch, sluice_binary};
use super::stats::Samples;
use super::vhost::load::{Load, Target};

/// Length of a round.
const ROUND: Duration = Duration::from_secs(3);
/// Time for the first samples of a new connection.
const SETTLE: Duration = Duration::from_millis(1500);
/// VMs on the first page of the list.
const SHOWN: usize = 50;
/// Programs that follow the stream of the daemon.
const STREAMS: usize = 3;

pub(super) fn run(quick: bool) -> Result<Report, String> {
    build_sluice()?;
    let mut report = Report::new("page");
    iops(&mut report, if quick { 1 } else { 15 })?;
    many(&mut report, if quick { 50 } else { 1000 }, if quick { 2 } else { 20 })?;
    Ok(report)
}

/// The IOPS of a null device with the page and streams, and without.
fn iops(report: &mut Report, rounds: usize) -> Result<(), String> {
    let folder = scratch(None)?;
    let (socket, control) = (folder.path().join("vm"), folder.path().join("control"));
    let host = format!(
        "[daemon]\ncontrol = \"{}\"\n[device.disk]\nbackend = \"null\"\ncapacity = \"9000000 iops@8KiB\"\n[vm.a]\nreservation = \"1000 \
         iops\"\n[vm.a.volume.v]\ndevice = \"disk\"\nsize = \"1GiB\"\nexport = {{ type = \"vhost-user-blk\", socket = \"{}\" }}\n",
        control.display(),
        socket.display()
    );
    let _server = Server::sluice(folder.path(), "host", &host, vec![control.clone(), socket.clone()])?;
    let failed = |error| format!("A front end failed: {error}");
    let target = Target { socket, queues: 1, depth: 32, block: 4096, poll: false };
    let mut load = Load::start(&[target]).map_err(failed)?;
    let ui = Ui::start(&control)?;
    let (mut with, mut without) = (Samples::default(), Samples::default());
    for round in 0..=rounds {
        eprintln!("page: round {round} of {rounds}");
        for is_open in [true, false] {
            let looks = if is_open { looks(&ui, &control, "/vms/a", "vms=a&details=true")? } else { Vec::new() };
            load.run(SETTLE).map_err(failed)?;
            let measured = load.run(ROUND).map_err(failed)?[0].iops();
            drop(looks);
            // The first round fills caches.
            if round > 0 {
                if is_open { with.push(measured) } else { without.push(measured) }
            }
        }
    }
    load.finish().map_err(failed)?;
    let ratio = with.ratio(&without);
    let title = "4 KiB reads over vhost-user, null, 1 x 32, with the page of the VM and three streams / without";
    let mut table = Table::new(title, &["IOPS with", "IOPS without", "ratio"]);
    table.row(vec![Cell::spread(&with, 0), Cell::spread(&without, 0), Cell::spread(&ratio, 3)]);
    report.table(table);
    report.target("IOPS with the page and three streams / without", Bound::AtLeast(0.99), ratio.median());
    Ok(())
}

/// A host with many VMs.
fn many(report: &mut Report, vms: usize, rounds: usize) -> Result<(), String> {
    let host = Host::start(vms)?;
    let control = host.control();
    let ui = Ui::start(&control)?;
    let _readers = Readers::start(&host, SHOWN.min(vms))?;
    ui.get("/vms")?;
    let (daemon_before, cpu) = (host.resident_kb()?, || Ok::<f64, String>(ui.cpu_ms()? + host.daemon_cpu_ms()?));
    let (mut list, mut of_ui) = (Samples::default(), Samples::default());
    for _ in 0..rounds {
        // The daemon's sampling goes on meanwhile, for some ms in each second.
        let (begin, begin_ui) = (cpu()?, ui.cpu_ms()?);
        let page = ui.get("/vms")?;
        list.push(cpu()? - begin);
        of_ui.push(ui.cpu_ms()? - begin_ui);
        if !page.contains("customer0") {
            return Err(format!("The list is not one: {page}"));
        }
    }
    let names: Vec<String> = (0..SHOWN.min(vms)).map(|vm| format!("customer{vm}")).collect();
    let looks = looks(&ui, &control, "/vms", &format!("vms={}", names.join(",")))?;
    thread::sleep(SETTLE);
    let seconds = if rounds < 10 { 3 } else { 20 };
    let begin = (looks[0].bytes(), cpu()?);
    // waits: what comes in this time is measured.
    thread::sleep(Duration::from_secs(seconds));
    let bytes = (looks[0].bytes() - begin.0) as f64 / seconds as f64;
    let busy = (cpu()? - begin.1) / 10.0 / seconds as f64;
    let (in_force, visible) = changes(&control, &looks[0], rounds)?;
    let more = host.resident_kb()? - daemon_before;
    let title = format!("{vms} VMs, {SHOWN} of them in the list and read from, with the list and three streams open");
    let columns = [
        "list, CPU [ms]",
        "of it in sluice ui",
        "to the page [kB/s]",
        "CPU of both [%]",
        "daemon, more [MB]",
        "sluice ui [MB]",
    ];
    let mut table = Table::new(title, &columns);
    let of_page = [Cell::Number(bytes / 1e3, 1), Cell::Number(busy, 1), Cell::Number(more / 1e3, 1)];
    let own = Cell::Number(ui.resident_kb()? / 1e3, 1);
    table.row([Cell::spread(&list, 1), Cell::spread(&of_ui, 1)].into_iter().chain(of_page).chain([own]).collect());
    report.table(table);
    let mut table = Table::new("A change over HTTP, in ms", &["in force", "on the page"]);
    table.row(vec![Cell::spread(&in_force, 1), Cell::spread(&visible, 0)]);
    report.table(table);
    report.target("list of VMs, CPU [ms]", Bound::AtMost(30.0), list.median());
    report.target("bytes to the page [kB/s]", Bound::AtMost(100.0), bytes / 1e3);
    report.target("more memory of the daemon [MB]", Bound::AtMost(10.0), more / 1e3);
    report.target("change in force [ms]", Bound::AtMost(10.0), in_force.median());
    report.target("change on the page [ms]", Bound::AtMost(1500.0), visible.range().1);
    Ok(())
}

/// Changes a VM of the list by HTTP. Returns the times until it is in force and until the page has it, in ms.
fn changes(control: &Path, page: &Look, rounds: usize) -> Result<(Samples, Samples), String> {
    let (mut in_force, mut visible) = (Samples::default(), Samples::default());
    for round in 0..rounds {
        // waits: a change at any moment of the second in which samples are sent.
        thread::sleep(Duration::from_millis(150 + 137 * round as u64 % 800));
        let limit = 3000 + round;
        let begin = Instant::now();
        patch(control, "customer0", &format!("{{\"limit\":\"{limit} iops@8KiB\"}}"))?;
        in_force.push(begin.elapsed().as_secs_f64() * 1e3);
        page.until(&format!("to {limit} iops"))?;
        visible.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    Ok((in_force, visible))
}

/// Opens a page with its stream, and the streams of programs. The first one is that of the page.
fn looks(ui: &Ui, control: &Path, page: &str, of: &str) -> Result<Vec<Look>, String> {
    ui.get(page)?;
    let mut all = vec![Look::of(ui.connect(&format!("/stream?{of}"))?)?];
    for _ in 0..STREAMS {
        let mut stream = UnixStream::connect(control).map_err(|error| format!("Control socket: {error}"))?;
        let sent = stream.write_all(b"GET /v1/stream HTTP/1.1\r\nHost: a\r\n\r\n");
        sent.map_err(|error| format!("Control socket: {error}"))?;
        all.push(Look::of(stream)?);
    }
    Ok(all)
}

/// A stream that is read by a thread, until it is dropped.
struct Look {
    bytes: Arc<AtomicU64>,
    lines: mpsc::Receiver<String>,
    close: Box<dyn FnMut() + Send>,
}

/// Socket of a stream.
trait Closing: Read + Send + Sized + 'static {
    fn other(&self) -> std::io::Result<Self>;
    fn close(&self);
}

impl Closing for TcpStream {
    fn other(&self) -> std::io::Result<TcpStream> {
        self.try_clone()
    }

    fn close(&self) {
        let _ = self.shutdown(std::net::Shutdown::Both);
    }
}

impl Closing for UnixStream {
    fn other(&self) -> std::io::Result<UnixStream> {
        self.try_clone()
    }

    fn close(&self) {
        let _ = self.shutdown(std::net::Shutdown::Both);
    }
}

impl Look {
    fn of<S: Closing>(stream: S) -> Result<Look, String> {
        let own = stream.other().map_err(|error| format!("A stream: {error}"))?;
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&bytes);
        let (sender, lines) = mpsc::sync_channel(64);
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                counted.fetch_add(line.len() as u64 + 1, Ordering::Relaxed);
                let _ = sender.try_send(line);
            }
        });
        Ok(Look { bytes, lines, close: Box::new(move || own.close()) })
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits for a line with this text.
    fn until(&self, text: &str) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).map_err(|_| format!("The stream never had {text}"))?;
            if line.contains(text) {
                return Ok(());
            }
        }
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        (self.close)();
    }
}

/// Changes a VM over HTTP.
fn patch(control: &Path, vm: &str, keys: &str) -> Result<(), String> {
    let body = format!("{{\"keys\":{keys}}}");
    let length = body.len();
    let request = format!(
        "PATCH /v1/vms/{vm} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: \
         close\r\n\r\n{body}"
    );
    let mut answer = String::new();
    let exchange = |answer: &mut String| -> std::io::Result<()> {
        let mut stream = UnixStream::connect(control)?;
        stream.write_all(request.as_bytes())?;
        stream.read_to_string(answer).map(drop)
    };
    exchange(&mut answer).map_err(|error| format!("Control socket: {error}"))?;
    if answer.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(format!("The change was refused: {answer}")) }
}

/// The page server. Dropping it kills it.
struct Ui {
    child: Child,
    port: u16,
    cookie: String,
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ui {
    fn start(control: &Path) -> Result<Ui, String> {
        let mut command = Command::new(sluice_binary());
        command.args(["-o", "json", "ui", "--socket"]).arg(control).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("Cannot start sluice ui: {error}"))?;
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line);
        read.map_err(|error| format!("sluice ui: {error}"))?;
        let link: Value = serde_json::from_str(&line).map_err(|error| format!("sluice ui: {error}: {line}"))?;
        let url = link["url"].as_str().unwrap_or_default();
        let port = link["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(0);
        let mut ui = Ui { child, port, cookie: String::new() };
        let welcome = ui.get(url.split_once(&format!(":{port}")).map_or("/", |(_, path)| path))?;
        let set = welcome.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap_or_default();
        ui.cookie = set.split(';').next().unwrap_or_default().to_owned();
        Ok(ui)
    }

    fn connect(&self, path: &str) -> Result<TcpStream, String> {
        let (port, cookie) = (self.port, &self.cookie);
        let head = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n");
        let close = if path.starts_with("/stream") { "" } else { "Connection: close\r\n" };
        let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).and_then(|mut stream| {
            stream.write_all(format!("{head}{close}\r\n").as_bytes())?;
            Ok(stream)
        });
        connected.map_err(|error| format!("sluice ui: {error}"))
    }

    /// The head and the body of a page.
    fn get(&self, path: &str) -> Result<String, String> {
        let mut page = String::new();
        self.connect(path)?.read_to_string(&mut page).map_err(|error| format!("{path}: {error}"))?;
        if page.starts_with("HTTP/1.1 200") { Ok(page) } else { Err(format!("{path}: {page}")) }
    }

    fn cpu_ms(&self) -> Result<f64, String> {
        super::observe::host::cpu_ms_of(self.child.id(), "")
    }

    fn resident_kb(&self) -> Result<f64, String> {
        super::observe::host::resident_kb(self.child.id())
    }
}

/// Clients that read from volumes, a few times a second each, until they are dropped.
struct Readers(Arc<AtomicBool>);

impl Readers {
    fn start(host: &Host, vms: usize) -> Result<Readers, String> {
        let is_over = Arc::new(AtomicBool::new(false));
        let connect = |vm| {
            let socket: PathBuf = host.socket(vm);
            nbd::Client::connect_unix(socket, &format!("customer{vm}/v0")).map_err(|error| format!("VM {vm}: {error}"))
        };
        let mut clients = (0..vms).map(connect).collect::<Result<Vec<_>, _>>()?;
        let ended = Arc::clone(&is_over);
        thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                for client in &mut clients {
                    let read = nbd::Command::Read { offset: 0, len: 4096 };
                    let sent = client.submit(0, read).and_then(|()| client.flush_output());
                    if sent.and_then(|_| client.receive(None, &mut |_| {}).map(drop)).is_err() {
                        return;
                    }
                }
                // waits: the rate of the load.
                thread::sleep(Duration::from_millis(50));
            }
        });
        Ok(Readers(is_over))
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
