//! Volumes that other servers store: `sluice serve`, nbdkit and qemu-nbd.
//!
//! `SLUICE_CRASHES=100` is the long form: a node is killed 100 times.

use std::path::Path;

use serde_json::json;
use sluice_client::vhost::ClientOptions;

use crate::common::journal::Journal;
use crate::common::raw::{EIO, Raw};
use crate::common::{Daemon, Ended, KIB, MIB, Place, Running, free_address, noise, run, sluice, start, tool, until};

/// A gateway with a volume for each export: its name, the address of its server, and the source.
fn gateway(place: &Place, volumes: &[(&str, String, String)]) -> String {
    let volume = |(name, path, source): &(&str, String, String)| {
        let socket = place.volume_socket("g", name);
        format!(
            "[device.{name}]\npath = \"{path}\"\n[vm.g.volume.{name}]\ndevice = \"{name}\"\nsource = \"{source}\"\n\
             export = {{ socket = \"{}\" }}\n",
            socket.display()
        )
    };
    place.control_keys() + &volumes.iter().map(volume).collect::<String>()
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")))
}

fn at_socket(socket: &Path, export: &str) -> (String, String) {
    let socket = socket.display();
    (format!("nbd+unix:{socket}"), format!("nbd+unix:///{export}?socket={socket}"))
}

/// A storage node with the volume `a/v`.
struct Node {
    place: Place,
    host: String,
}

impl Node {
    fn new() -> Node {
        let place = Place::new();
        let image = place.image("a.img", 4 * MIB);
        let host = place.control_keys() + &place.device("") + &place.volume("a", "v", &image, "");
        Node { place, host }
    }

    fn serve(&self) -> Daemon {
        Daemon::serve(&self.place, &self.host)
    }

    fn volume(&self) -> (&'static str, String, String) {
        let (path, source) = at_socket(&self.place.volume_socket("a", "v"), "a/v");
        ("node", path, source)
    }
}

fn open(place: &Place, name: &str) -> Raw {
    Raw::open(&place.volume_socket("g", name), &format!("g/{name}")).unwrap()
}

fn qemu_nbd(place: &Place) -> Running {
    let image = place.image("q.img", 4 * MIB);
    let mut command = tool("qemu-nbd", "qemu-utils");
    command.args(["--format=raw", "--persistent", "--shared=4", "--export-name=disk", "--socket"]);
    let running = start(command.arg(place.socket("q.sock")).arg(image));
    until("qemu-nbd listens", || place.socket("q.sock").exists());
    running
}

#[test]
fn volumes_on_servers_of_others_hold_what_is_written() {
    let (place, node) = (Place::new(), Node::new());
    let _node = node.serve();
    let address = free_address();
    let (ip, port) = address.rsplit_once(':').unwrap();
    let _kit = start(tool("nbdkit", "nbdkit").args(["-f", "-p", port, "-i", ip, "memory", "4M"]));
    let _qemu = qemu_nbd(&place);
    until("nbdkit listens", || std::net::TcpStream::connect(&address).is_ok());
    let (qemu, disk) = at_socket(&place.socket("q.sock"), "disk");
    let volumes =
        [node.volume(), ("kit", format!("nbd://{address}"), format!("nbd://{address}/")), ("qemu", qemu, disk)];
    let host = gateway(&place, &volumes);
    let daemon = Daemon::serve(&place, &host);
    for (name, ..) in &volumes {
        let mut raw = open(&place, name);
        assert_eq!(raw.size_bytes, 4 * MIB, "{name}");
        for (number, length) in [(0, 512), (1, 4 * KIB), (2, 300 * KIB), (3, MIB)] {
            let data = noise(number, length as usize);
            raw.write(number * MIB, &data).unwrap();
            assert_eq!(raw.read(number * MIB, length as u32).unwrap(), data, "{name}, {length}");
        }
        raw.flush().unwrap();
    }
    // By programs of others too, through the daemon and at the server.
    let compared = run(tool("qemu-img", "qemu-utils")
        .args(["compare", "-f", "raw", "-F", "raw", &place.uri("g", "kit")])
        .arg(format!("nbd://{address}")));
    assert!(compared.ok().contains("identical"));
    // What it connects to is fixed when it starts.
    let other = [("more", format!("{}x", volumes[0].1), format!("{}x", volumes[0].2))];
    let refused = daemon.reload(&gateway(&place, &[&volumes[..], &other].concat()));
    assert!(refused.contains("the server nbd+unix:") && refused.contains("Restart the daemon"), "{refused}");
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_server_that_is_not_there_or_lacks_the_export_puts_only_its_volumes_out_of_service() {
    let (place, node) = (Place::new(), Node::new());
    let (path, _) = at_socket(&node.place.volume_socket("a", "v"), "");
    let wrong = format!("nbd+unix:///none?socket={}", node.place.volume_socket("a", "v").display());
    let host = gateway(&place, &[node.volume()]) + &place.device("");
    let image = place.image("b.img", MIB);
    let host = host + &place.volume("b", "v", &image, "");
    let file = place.write("host.toml", &host);
    let checked = run(sluice().args(["check", "--host"]).arg(&file));
    assert!(checked.stdout.contains("Cannot connect to nbd+unix:"), "{}", checked.stdout);
    let daemon = Daemon::serve(&place, &host);
    let out = || daemon.accounts().0["out_of_service"].clone();
    assert_eq!(out(), json!(["g/node"]));
    Raw::open(&place.volume_socket("b", "v"), "b/v").unwrap().write(0, &noise(1, 4096)).unwrap();
    let _node = node.serve();
    until("it is served", || out() == json!([]));
    open(&place, "node").write(0, &noise(2, 4096)).unwrap();
    let checked = run(sluice()
        .args(["check", "--host"])
        .arg(place.write("wrong.toml", gateway(&place, &[("node", path, wrong)]))));
    assert!(checked.stdout.contains("the server has no export 'none': state one that it has"), "{}", checked.stdout);
}

#[test]
fn a_node_that_is_killed_delays_reads_and_its_confirmed_writes_count_as_lost_until_that_is_accepted() {
    let (place, node) = (Place::new(), Node::new());
    let mut running = node.serve();
    let daemon = Daemon::serve(&place, &gateway(&place, &[node.volume()]));
    let mut raw = open(&place, "node");
    let data = noise(3, 64 << 10);
    raw.write(0, &data).unwrap();
    raw.flush().unwrap();
    let failing = || ask(&place, &["describe", "g/node"]).stdout;
    for end in [Daemon::kill, |daemon: Daemon| assert_eq!(daemon.terminate().code(), Some(0))] {
        end(running);
        running = std::thread::scope(|scope| {
            let reads = scope.spawn(|| raw.read(0, 64 << 10).unwrap());
            until("the server is told to be away", || failing().contains("server_away"));
            let running = node.serve();
            assert_eq!(reads.join().unwrap(), data);
            running
        });
    }
    raw.write(MIB, &data).unwrap();
    running.kill();
    let _running = node.serve();
    assert_eq!(raw.read(0, 64 << 10).unwrap(), data);
    assert_eq!(raw.write(2 * MIB, &data), Err(EIO));
    assert_eq!(raw.flush(), Err(EIO));
    let told = daemon.stderr().up_to(&["The server may have lost writes"]);
    assert!(told.contains("Lost the connection to the server of a volume"), "{told}");
    until("the loss is told", || failing().contains("lost_writes"));
    until("the server is told to be there", || !failing().contains("server_away"));
    ask(&place, &["accept-loss", "g/node"]).ok();
    raw.write(2 * MIB, &data).unwrap();
    raw.flush().unwrap();
    assert_eq!(raw.read(MIB, 64 << 10).unwrap(), data, "a killed process loses nothing, but that is not known");
}

/// A guest writes through a gateway that sends all again. What the node's daemon has confirmed is on its disk, and what it has not is sent to
/// the next one, which waits for what the killed one had in flight.
#[test]
fn no_acknowledged_write_is_lost_or_torn_when_a_node_is_killed() {
    const APPENDERS: usize = 8;
    let kills = std::env::var("SLUICE_CRASHES").map_or(3, |wanted| wanted.parse().expect("SLUICE_CRASHES is a number"));
    let (place, node) = (Place::new(), Node::new());
    let mut running = node.serve();
    let (name, path, source) = node.volume();
    let host = gateway(&place, &[(name, format!("{path}\"\nresend = \"unsafe"), source)]);
    let _daemon = Daemon::serve(&place, &host.replace("export = {", "export = { type = \"vhost-user-blk\","));
    let options = ClientOptions { queues: 1, slots: 24, ..ClientOptions::default() };
    let mut client = place.vhost("g", "node", &options);
    let mut journal = Journal::new(APPENDERS, 1, client.config().block_size, 0x5eed);
    let image = node.place.file("a.img");
    let on_disk = || std::fs::read(&image).unwrap()[..Journal::len_bytes(APPENDERS) as usize].to_vec();
    for _ in 0..kills {
        let enough = 20 + journal.random(200);
        journal.work(&mut client, enough);
        running.kill();
        journal.reap(&mut client);
        journal.check(&on_disk());
        running = node.serve();
        journal.fill(&mut client);
    }
    journal.finish(&mut client);
    journal.check(&on_disk());
    assert_eq!(running.terminate().code(), Some(0));
}
