//! Gateways and the storage nodes behind them: daemons in namespaces on one bridge, or on Unix sockets.
//!
//! `SLUICE_CRASHES=100` is the long form: gateway and node are killed 100 times each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use sluice_client::net::Namespace;
use sluice_client::vhost::ClientOptions;

use crate::common::journal::Journal;
use crate::common::raw::Raw;
use crate::common::{Daemon, MIB, Place, noise, run, sluice};

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// Writes the key that a gateway and its nodes share.
fn key(place: &Place) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    let path = place.write("gateway.key", KEY);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.display().to_string()
}

/// The tables of a node with the volume `a/v`, which `gateways` may serve. Another test adds lines to `[vm.a]`.
fn node(place: &Place, name: &str, listen: &str, gateways: &[&str], vm: &str) -> String {
    let (image, key) = (place.image("a.img", 4 * MIB), key(place));
    let delay = "capacity = \"1500 iops@8KiB\"\ndepth = 16\ndelay = { time = { mean = \"10.6ms\" }, parallel = 16 }";
    let gateway = |name: &&str| format!("[nbd.gateway.{name}]\nkey_file = \"{key}\"\nvms = [\"a\"]\n");
    let nbd = format!("[nbd]\nnode = \"{name}\"\n{listen}\n{}", gateways.iter().map(gateway).collect::<String>());
    let volume = place.volume("a", "v", &image, "");
    place.control_keys() + &nbd + &place.device(delay) + &format!("[vm.a]\n{vm}\n") + &volume
}

/// The tables of a gateway with a volume of VM `a` at each of `nodes`: its name, the path of the device, and the source.
fn gateway(place: &Place, name: &str, nodes: &[(String, String, String)], insecure: bool) -> String {
    let key = key(place);
    let of_node = |(node, path, source): &(String, String, String)| {
        format!(
            "[device.{node}]\npath = \"{path}\"\ngateway = {{ name = \"{name}\", key_file = \"{key}\" }}\n{}\
             [vm.a.volume.{node}]\ndevice = \"{node}\"\nsource = \"{source}\"\nexport = {{ socket = \"{}\" }}\n",
            if insecure { "insecure = true\n" } else { "" },
            place.volume_socket("a", node).display(),
        )
    };
    place.control_keys() + &nodes.iter().map(of_node).collect::<String>()
}

/// Reads at random from all volumes, 8 requests at each, until there were `requests` of them.
fn read_all(places: &[(&Place, &str)], requests: u64) -> Duration {
    let (left, began) = (AtomicU64::new(requests), Instant::now());
    std::thread::scope(|scope| {
        for (place, volume) in places.iter().flat_map(|at| [at; 8]) {
            let left = &left;
            scope.spawn(move || {
                let mut raw = Raw::open(&place.volume_socket("a", volume), &format!("a/{volume}")).unwrap();
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                    raw.read(0, 4096).unwrap();
                }
            });
        }
    });
    began.elapsed()
}

/// Three nodes and two gateways on one bridge; the way to the third node is slow.
struct Cluster {
    nodes: Vec<(Place, Namespace, Option<Daemon>, String)>,
    gateways: Vec<(Place, Namespace, Option<Daemon>, String)>,
    _bridge: Namespace,
}

impl Cluster {
    fn new(vm: &str) -> Cluster {
        let bridge = Namespace::new("bridge").unwrap();
        bridge.ip("link add br0 type bridge").unwrap();
        bridge.ip("link set br0 up").unwrap();
        let station = |number: usize| {
            let station = Namespace::new(&format!("n{number}")).unwrap();
            bridge.connect(&format!("p{number}"), &station).unwrap();
            bridge.ip(&format!("link set p{number} master br0 up")).unwrap();
            station.up("eth0", &format!("10.78.0.{number}/24")).unwrap();
            station
        };
        let mut cluster =
            Cluster { nodes: Vec::new(), gateways: Vec::new(), _bridge: Namespace::new("unused").unwrap() };
        let mut addresses = Vec::new();
        for number in 1..=3 {
            let (place, station, name) = (Place::new(), station(number), format!("node{number}"));
            let address = format!("nbd://10.78.0.{number}:10809");
            let listen = format!("listen = \"10.78.0.{number}:10809\"\ninsecure = true");
            let host = node(&place, &name, &listen, &["gw1", "gw2"], vm);
            if number == 3 {
                station.run("tc qdisc add dev eth0 root tbf rate 200mbit burst 32k latency 20ms").unwrap();
            }
            addresses.push((name, address.clone(), format!("{address}/a/v")));
            cluster.nodes.push((place, station, None, host));
            cluster.serve_node(number - 1);
        }
        for number in [1, 2] {
            let (place, station) = (Place::new(), station(3 + number));
            let host = gateway(&place, &format!("gw{number}"), &addresses, true);
            cluster.gateways.push((place, station, None, host));
            cluster.serve_gateway(number - 1);
        }
        cluster._bridge = bridge;
        cluster
    }

    fn serve_node(&mut self, at: usize) {
        let (place, station, daemon, host) = &mut self.nodes[at];
        *daemon = Some(Daemon::serve_by(place, host, |command| station.command(command)));
    }

    fn serve_gateway(&mut self, at: usize) {
        let (place, station, daemon, host) = &mut self.gateways[at];
        *daemon = Some(Daemon::serve_by(place, host, |command| station.command(command)));
    }

    fn gateway(&self, at: usize) -> &Daemon {
        self.gateways[at].2.as_ref().unwrap()
    }

    fn read(&self, gateway: usize, nodes: &[&'static str], requests: u64) -> Duration {
        let places: Vec<(&Place, &str)> = nodes.iter().map(|node| (&self.gateways[gateway].0, *node)).collect();
        read_all(&places, requests)
    }
}

/// At least this long for as many requests under a limit of 300 IOPS, of which a burst of 0.1 s is free at each of three nodes.
fn least(requests: u64) -> Duration {
    Duration::from_secs_f64((requests - 3 * 30) as f64 / 300.0 * 0.97)
}

#[test]
fn a_limit_holds_over_nodes_that_fail_and_come_back_and_under_another_gateway() {
    let mut cluster = Cluster::new("limit = \"300 iops@8KiB\"");
    let all = ["node1", "node2", "node3"];
    let took = cluster.read(0, &all, 900);
    assert!(took >= least(900), "three nodes took {took:?}");
    // One alone has the whole limit.
    let took = cluster.read(0, &["node2"], 450);
    assert!(took >= least(450), "one node took {took:?}");
    // A node that hangs is no reason for more at the others, and none for less when it is there again.
    let hung = cluster.nodes[0].2.as_ref().unwrap();
    hung.signal(Signal::STOP);
    let took = cluster.read(0, &["node2", "node3"], 450);
    hung.signal(Signal::CONT);
    assert!(took >= least(450), "two nodes took {took:?}");
    // A node that was killed has forgotten what it was told, and the first that it hears is no burst and no debt.
    cluster.nodes[2].2.take().unwrap().kill();
    cluster.serve_node(2);
    let took = cluster.read(0, &all, 450);
    assert!(took >= least(450), "with a node that was started again {took:?}");
    // So for a gateway, which counts from zero again.
    cluster.gateways[0].2.take().unwrap().kill();
    cluster.serve_gateway(0);
    let took = cluster.read(0, &all, 450);
    assert!(took >= least(450), "with a gateway that was started again {took:?}");
    // Another one takes the VM over with its first request, and the first one is told and does not come back.
    let took = cluster.read(1, &all, 450);
    assert!(took >= least(450), "another gateway took {took:?}");
    let told = cluster.gateway(0).stderr().up_to(&["gateway gw2 has taken VM a over"]);
    assert!(told.contains("the server refuses this gateway"), "{told}");
    cluster.read(1, &all, 90);
}

/// What a host file says wrong is found before a VM is served, and without taking one over.
#[test]
fn a_gateway_that_may_not_come_is_told_why() {
    let (node_place, place) = (Place::new(), Place::new());
    let socket = node_place.socket("nbd.sock");
    let listen = format!("socket = \"{}\"", socket.display());
    let host = node(&node_place, "node1", &listen, &["gw1"], "");
    let daemon = Daemon::serve(&node_place, &host);
    let at = |name: &str| {
        let (path, source) =
            (format!("nbd+unix:{}", socket.display()), format!("nbd+unix:///a/v?socket={}", socket.display()));
        (name.to_owned(), path, source)
    };
    let right = gateway(&place, "gw1", &[at("node1")], false);
    let serving = Daemon::serve(&place, &right);
    let mut raw = Raw::open(&place.volume_socket("a", "node1"), "a/node1").unwrap();
    raw.write(0, &noise(1, 4096)).unwrap();
    let checked = |host: &str| run(sluice().args(["check", "--host"]).arg(place.write("checked.toml", host))).stdout;
    for (host, why) in [
        (gateway(&place, "gw2", &[at("node1")], false), "this server knows no gateway gw2"),
        (gateway(&place, "gw1", &[at("node2")], false), "the server is node \\\"node1\\\""),
        (right.replace("vm.a.", "vm.b."), "VM b is not among the vms of [nbd.gateway.gw1]"),
        (right.replace("gateway.key", "missing.key"), "missing.key: No such file"),
    ] {
        let text = checked(&host);
        assert!(text.to_lowercase().contains(&why.replace('\\', "").to_lowercase()), "{why}\n{text}");
    }
    let other = place.write("other.key", KEY.replace('0', "1"));
    std::fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let text = checked(&right.replace("gateway.key", "other.key"));
    assert!(text.contains("both sides need the same key"), "{text}");
    assert!(checked(&right).contains("No errors"), "{}", checked(&right));
    raw.read(0, 4096).expect("checks have disturbed nobody");
    // The node has no gateways any more.
    let without = host.replace("[nbd.gateway.gw1]", "[nbd.gateway.gw3]");
    daemon.accept(&without);
    let told = serving.stderr().up_to(&["knows no gateway gw1"]);
    assert!(told.contains("Lost the connection"), "{told}");
    daemon.accept(&host);
    raw.read(0, 4096).expect("it waits until it may come again");
    assert_eq!(serving.accounts().0["out_of_service"], json!([]));
}

/// A gateway sends all again, because a node ends the earlier session first. What a node has confirmed is on its disk, whichever is killed.
#[test]
fn no_acknowledged_write_is_lost_or_torn_when_a_gateway_or_its_node_is_killed() {
    const APPENDERS: usize = 8;
    let kills = std::env::var("SLUICE_CRASHES").map_or(4, |wanted| 2 * wanted.parse::<u32>().expect("a number"));
    let (node_place, place) = (Place::new(), Place::new());
    let socket = node_place.socket("nbd.sock");
    let host = node(&node_place, "node1", &format!("socket = \"{}\"", socket.display()), &["gw1"], "");
    let node_host = host.replace("10.6ms", "1ms");
    let mut node = Some(Daemon::serve(&node_place, &node_host));
    let (path, source) =
        (format!("nbd+unix:{}", socket.display()), format!("nbd+unix:///a/v?socket={}", socket.display()));
    let host = gateway(&place, "gw1", &[("node1".to_owned(), path, source)], false);
    let host = host.replace("export = {", "export = { type = \"vhost-user-blk\",");
    let mut gateway = Some(Daemon::serve(&place, &host));
    let options = ClientOptions { queues: 1, slots: 24, ..ClientOptions::default() };
    let mut client = place.vhost("a", "node1", &options);
    let mut journal = Journal::new(APPENDERS, 1, client.config().block_size, 0x5eed);
    let image = node_place.file("a.img");
    let on_disk = || std::fs::read(&image).unwrap()[..Journal::len_bytes(APPENDERS) as usize].to_vec();
    for kill in 0..kills {
        let enough = 20 + journal.random(200);
        journal.work(&mut client, enough);
        let killed = if kill % 2 == 0 { &mut node } else { &mut gateway };
        killed.take().expect("it runs").kill();
        journal.reap(&mut client);
        journal.check(&on_disk());
        if kill % 2 == 0 {
            node = Some(Daemon::serve(&node_place, &node_host));
        } else {
            gateway = Some(Daemon::serve(&place, &host));
            client.reconnect(&place.volume_socket("a", "node1")).unwrap();
        }
        journal.fill(&mut client);
    }
    journal.finish(&mut client);
    journal.check(&on_disk());
    for daemon in [gateway, node] {
        assert_eq!(daemon.expect("it runs").terminate().code(), Some(0));
    }
}
