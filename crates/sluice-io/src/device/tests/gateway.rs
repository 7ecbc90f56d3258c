//! Gateways and nodes: both sides are devices, or one of them is played by the test.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender};

use sluice_sched::gate::Service;
use sluice_sched::tracker::{Sums, Told};
use sluice_sched::{Cost, Limit, Phase};

use super::*;
use crate::nbd::client::{self, HandshakeError, Session, Wanted};
use crate::nbd::gateway::count::{Counts, VmCount};
use crate::nbd::gateway::proof::Key;
use crate::nbd::gateway::record::{ReplyRecord, RequestRecord};
use crate::nbd::gateway::sessions::{Admitted, Sessions, Settings};
use crate::nbd::gateway::{Admission, Hello, Known, StartId};
use crate::nbd::wire::{Command as Wire, simple_reply, transmission_flag};
use crate::source::remote::{Dial, RemoteSpec, Resend};

const SIZE: u64 = 8 << 20;
const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";

fn key(bytes: &[u8]) -> Key {
    Key::new(bytes).unwrap()
}

/// A node with the volume `disk` of `vm`, which gateways `gw1` and `gw2` may serve.
#[derive(Clone)]
struct Node {
    name: &'static str,
    device: NbdHandle,
    sessions: Arc<Sessions>,
}

impl Node {
    fn new(name: &'static str, device: &Device) -> Node {
        let sessions = Arc::<Sessions>::default();
        let vms = vec!["vm".to_owned()];
        let gateway = |name: &str| (name.to_owned(), Admitted { key: Some(Arc::new(key(KEY))), vms: vms.clone() });
        sessions.set(Settings { node: name.to_owned(), gateways: [gateway("gw1"), gateway("gw2")].into() });
        Node { name, device: device.nbd(), sessions }
    }

    /// Connects as this gateway.
    fn connect(&self, gateway: client::Gateway<'_>) -> Result<(UnixStream, Session), HandshakeError> {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let node = self.clone();
        let server = thread::spawn(move || {
            // A client that is refused closes the connection.
            let Ok(negotiated) = negotiate_blocking(&mut theirs, &node) else { return };
            let known = negotiated.gateway.clone();
            let arrived = Arrived {
                vm: "vm".to_owned(),
                volume: "disk".to_owned(),
                generation: VolumeGeneration::default(),
                socket: OwnedFd::from(theirs),
                negotiated,
                offered: info(SIZE),
                peer: "gateway".to_owned(),
                permit: Box::new(()),
                handshake: Duration::ZERO,
            };
            match known {
                Some(known) => node.sessions.attach(&known, &node.device, || node.device.attach(arrived)),
                None => node.device.attach(arrived),
            }
        });
        let wanted = Wanted { gateway: Some(gateway), ..Wanted::default() };
        let session = client::run(&mut ours, "vm/disk", wanted);
        session.map(|session| {
            server.join().unwrap();
            (ours, session)
        })
    }

    fn connect_at(&self, name: &str, epoch: u64) -> Result<UnixStream, HandshakeError> {
        let key = key(KEY);
        let gateway = client::Gateway { name, node: self.name, key: &key, epoch, vm: "vm" };
        self.connect(gateway).map(|(socket, _)| socket)
    }
}

impl Exports for Node {
    fn list(&self) -> Vec<Listed> {
        vec![Listed { name: "vm/disk".to_owned(), description: String::new() }]
    }

    fn find(&self, name: &str) -> Option<Export> {
        (name == "vm/disk").then(|| Export { info: info(SIZE), ..Export::with_all_features("vm/disk", SIZE) })
    }

    fn challenge(&self, hello: &Hello) -> Result<Admission, Option<String>> {
        self.sessions.challenge(hello, "vm", "d", StartId([1; 16]))
    }

    async fn admit(&self, hello: &Hello, key: &Key) -> Result<(), String> {
        // The handshake's own thread has no runtime.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(self.sessions.admit(hello, "vm", key))
    }
}

/// A request as a gateway sends it, without data.
fn ask_as_gateway(socket: &mut UnixStream, cookie: u64, command: Wire, told: Told) {
    let header = RequestHeader { flags: 0, command: command.into(), cookie, offset: 0, length: 4096 };
    socket.write_all(&[&header.encode()[..], &RequestRecord { vm: 0, told }.encode()].concat()).unwrap();
}

/// The reply to a request, without data; `None` if the connection was closed.
fn reply_of(socket: &mut UnixStream) -> Option<(u64, ReplyRecord)> {
    let mut reply = [0; 16];
    socket.read_exact(&mut reply).ok()?;
    assert_eq!(wire::u32_at(&reply, 4), 0, "an error");
    let mut record = [0; ReplyRecord::LEN];
    socket.read_exact(&mut record).unwrap();
    Some((wire::u64_at(&reply, 8), ReplyRecord::parse(&record)))
}

fn read_4k(socket: &mut UnixStream, told: Told) -> Option<ReplyRecord> {
    ask_as_gateway(socket, 7, Wire::Read, told);
    let (cookie, record) = reply_of(socket)?;
    socket.read_exact(&mut [0; 4096]).unwrap();
    assert_eq!(cookie, 7);
    Some(record)
}

#[test]
fn a_reply_tells_what_the_request_was_served() {
    let behind = device(None);
    let (_file, store) = file(SIZE);
    add(&behind, Policy::default().reserving(100_000), store, SIZE);
    let mut socket = Node::new("n", &behind).connect_at("gw1", 1).unwrap();
    let record = read_4k(&mut socket, Told::default()).unwrap();
    let cost = GateSettings::default().cost.cost(Kind::Read, 4096);
    let service = Service { cost, bytes: 4096 };
    let start = StartId([1; 16]);
    assert_eq!(record, ReplyRecord { phase: Phase::Reservation, service, reserved: service, start });
}

#[test]
fn what_other_nodes_serve_counts_against_a_limit() {
    let behind = device(None);
    let limit = Limit { iops: Some(sluice_sched::Iops::per_second(1000)), bytes: None };
    let (_file, store) = file(SIZE);
    add(&behind, Policy { limit, ..Policy::default() }, store, SIZE);
    let mut socket = Node::new("n", &behind).connect_at("gw1", 1).unwrap();
    let told = |sequence: u64, requests: u64| {
        let sums = Sums { all: requests << Cost::SHIFT, ..Sums::default() };
        Told { sums, at_idle: 0, servers: 2, outstanding: 0, sequence }
    };
    // The first one says how it was before: also a large number costs nothing.
    read_4k(&mut socket, told(1, 1_000_000)).unwrap();
    // Sums that run backwards are no new start, from which 100,000 requests more would take 100 s of the limit.
    read_4k(&mut socket, told(2, 1_000_010)).unwrap();
    read_4k(&mut socket, told(3, 900_000)).unwrap();
    read_4k(&mut socket, told(4, 1_000_010)).unwrap();
    // 5,000,000 requests elsewhere take 5,000 s of it.
    ask_as_gateway(&mut socket, 7, Wire::Read, told(5, 6_000_010));
    while behind.snapshot().unwrap().queued == 0 {}
    behind.mailbox.send(Message::Test(Fault::Advance(Duration::from_secs(4900)))).unwrap();
    assert_eq!(behind.snapshot().unwrap().queued, 1, "it waits for its limit");
    behind.mailbox.send(Message::Test(Fault::Advance(Duration::from_secs(200)))).unwrap();
    assert_eq!(reply_of(&mut socket).unwrap().0, 7);
    socket.read_exact(&mut [0; 4096]).unwrap();
}

#[test]
fn a_wrong_key_another_node_and_a_vm_that_is_not_listed_are_refused() {
    let behind = device(None);
    add(&behind, Policy::default(), StoreSpec::Null, SIZE);
    let node = Node::new("n", &behind);
    let (right, wrong) = (key(KEY), key(b"another key of the same length.."));
    let gateway = client::Gateway { name: "gw1", node: "n", key: &right, epoch: 1, vm: "vm" };
    let refused = |gateway| node.connect(gateway).map(drop).unwrap_err().to_string();
    for (gateway, why) in [
        (client::Gateway { key: &wrong, ..gateway }, "the same key"),
        (client::Gateway { node: "other", ..gateway }, "node \"n\""),
        (client::Gateway { name: "gw3", ..gateway }, "[nbd.gateway.gw3]"),
        (client::Gateway { vm: "web", ..gateway }, "VM web is not among the vms"),
    ] {
        let text = refused(gateway);
        assert!(text.contains(why), "{text}");
    }
    // Nothing of this has begun an epoch, and trying the key does not either.
    node.connect(client::Gateway { epoch: 0, ..gateway })
        .map(|(_, session)| assert_eq!(session.gateway.map(|known| known.epoch), Some(0)))
        .unwrap();
    let mut first = node.connect_at("gw1", 1).unwrap();
    node.connect(client::Gateway { epoch: 0, ..gateway }).unwrap();
    assert!(read_4k(&mut first, Told::default()).is_some());
    node.sessions.set(Settings::default());
    assert_eq!(reply_of(&mut first), None, "it may not come any more");
    assert!(refused(gateway).contains("no gateways"));
}

#[test]
fn a_newer_gateway_ends_the_sessions_of_an_older_one_which_does_not_come_back() {
    let behind = device(None);
    add(&behind, Policy::default(), StoreSpec::Null, SIZE);
    let node = Node::new("n", &behind);
    let mut first = node.connect_at("gw1", 10).unwrap();
    assert!(read_4k(&mut first, Told::default()).is_some());
    let mut second = node.connect_at("gw2", 11).unwrap();
    assert_eq!(reply_of(&mut first), None);
    assert!(read_4k(&mut second, Told::default()).is_some());
    let refused = node.connect_at("gw1", 10).unwrap_err().to_string();
    assert!(refused.contains("gateway gw2 has taken VM vm over"), "{refused}");
    // The same one, which has lost its connection: the first ends although its peer is there.
    let mut again = node.connect_at("gw2", 11).unwrap();
    assert_eq!(reply_of(&mut second), None);
    assert!(read_4k(&mut again, Told::default()).is_some());
}

/// The device has a write of the first session when the second one comes, and ends it before a request of that.
#[test]
fn requests_of_an_ended_session_are_over_before_those_of_the_next_one() {
    let behind = device(Some(DelaySpec {
        time: ServiceTime::Fixed(Duration::from_millis(50)),
        parallel: 8,
        bandwidth: None,
        seed: 1,
    }));
    let (_file, store) = file(SIZE);
    add(&behind, Policy::default(), store, SIZE);
    let node = Node::new("n", &behind);
    for round in 1..=5u8 {
        let mut first = node.connect_at("gw1", 1).unwrap();
        let header = RequestHeader { flags: 0, command: Wire::Write.into(), cookie: 1, offset: 0, length: 4096 };
        let record = RequestRecord { vm: 0, told: Told::default() }.encode();
        first.write_all(&[&header.encode()[..], &record, &[round; 4096]].concat()).unwrap();
        while behind.snapshot().unwrap().in_flight == 0 {}
        let mut second = node.connect_at("gw1", 1).unwrap();
        let header = RequestHeader { cookie: 2, ..header };
        second.write_all(&[&header.encode()[..], &record, &[0xff; 4096]].concat()).unwrap();
        assert_eq!(reply_of(&mut second).unwrap().0, 2);
        ask_as_gateway(&mut second, 3, Wire::Read, Told::default());
        reply_of(&mut second).unwrap();
        let mut data = [0; 4096];
        second.read_exact(&mut data).unwrap();
        assert!(data.iter().all(|byte| *byte == 0xff), "the write of the first session came later");
    }
}

#[test]
fn a_request_of_another_vm_than_the_exports_ends_the_connection() {
    let behind = device(None);
    add(&behind, Policy::default(), StoreSpec::Null, SIZE);
    let node = Node::new("n", &behind);
    let mut socket = node.connect_at("gw1", 1).unwrap();
    let header = RequestHeader { flags: 0, command: Wire::Read.into(), cookie: 1, offset: 0, length: 4096 };
    let record = RequestRecord { vm: 1, told: Told::default() }.encode();
    socket.write_all(&[&header.encode()[..], &record].concat()).unwrap();
    assert_eq!(reply_of(&mut socket), None);
}

/// A node that the test plays: each connection with the start that it states.
#[derive(Clone)]
struct Played {
    next: Arc<Mutex<Receiver<(UnixStream, StartId)>>>,
    count: Arc<VmCount>,
}

impl Dial for Played {
    fn look(&self) -> Result<(OwnedFd, Session), String> {
        let (unused, _) = UnixStream::pair().unwrap();
        Ok((unused.into(), Self::session(StartId([1; 16]))))
    }

    fn dial(&self) -> Result<(OwnedFd, Session), String> {
        let (socket, start) = self.next.lock().unwrap().try_recv().map_err(|_| "nothing comes".to_owned())?;
        Ok((socket.into(), Self::session(start)))
    }

    fn count(&self) -> Option<Arc<VmCount>> {
        Some(Arc::clone(&self.count))
    }
}

impl Played {
    fn session(start: StartId) -> Session {
        use transmission_flag::{HAS_FLAGS, SEND_FLUSH, SEND_FUA};
        let (gateway, vm) = ("gw1".to_owned(), ("vm".to_owned(), 0));
        let known = Known { gateway, epoch: 1, vm, server: ("n".to_owned(), "d".to_owned()), start };
        let flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA;
        Session { size_bytes: SIZE, flags, gateway: Some(known), ..Session::default() }
    }
}

struct Player {
    sender: Sender<(UnixStream, StartId)>,
    device: Device,
}

impl Player {
    fn new(start: u8) -> (Player, UnixStream) {
        let (sender, receiver) = channel();
        let counts = Counts::new(|| Ok(1));
        let played = Played { next: Arc::new(Mutex::new(receiver)), count: counts.of("vm") };
        let player = Player { sender, device: device(None) };
        let first = player.accept(start);
        let (name, dial) = ("nbd://n/vm/disk".to_owned(), Box::new(played));
        let spec = RemoteSpec { name, read_only: false, block_size: None, resend: Resend::Fenced, dial };
        add(&player.device, Policy::default(), StoreSpec::Remote(Arc::new(spec.connect().unwrap())), SIZE);
        (player, first)
    }

    fn accept(&self, start: u8) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.sender.send((theirs, StartId([start; 16]))).unwrap();
        ours
    }
}

fn next(socket: &mut UnixStream) -> (RequestHeader, Told) {
    let mut bytes = [0; RequestHeader::LEN + RequestRecord::LEN];
    socket.read_exact(&mut bytes).unwrap();
    let (header, record) = bytes.split_first_chunk().unwrap();
    let header = RequestHeader::parse(header).unwrap();
    if header.kind() == Wire::Write {
        socket.read_exact(&mut vec![0; header.length as usize]).unwrap();
    }
    (header, RequestRecord::parse(record.first_chunk().unwrap()).told)
}

fn answer(socket: &mut UnixStream, header: &RequestHeader, start: u8) {
    let service = Service { cost: Cost::ONE, bytes: 4096 };
    let start = StartId([start; 16]);
    let record = ReplyRecord { phase: Phase::Weight, service, reserved: Service::NONE, start };
    socket.write_all(&[&simple_reply(header.cookie, Ok(()))[..], &record.encode()].concat()).unwrap();
    if header.kind() == Wire::Read {
        socket.write_all(&vec![0; header.length as usize]).unwrap();
    }
}

const WRITE: Command<'static> = Command::Write { offset: 0, data: &[5; 4096], fua: false };

#[test]
fn everything_is_sent_again_to_a_node_that_ends_the_earlier_session() {
    let (player, mut first) = Player::new(1);
    let mut client = connect(&player.device, SIZE);
    client.submit(1, WRITE).unwrap();
    client.flush_output().unwrap();
    let (_, told) = next(&mut first);
    assert_eq!((told.servers, told.outstanding, told.sequence), (1, 0, 1));
    drop(first);
    let mut second = player.accept(1);
    let (again, told) = next(&mut second);
    assert_eq!((again.kind(), told.sequence, told.sums), (Wire::Write, 2, Sums::default()));
    answer(&mut second, &again, 1);
    client.receive(None, &mut |reply| assert_eq!((reply.cookie, reply.result), (1, Ok(())))).unwrap();
}

#[test]
fn confirmed_writes_are_lost_only_with_a_node_that_was_started_again() {
    let (player, mut first) = Player::new(1);
    let mut client = connect(&player.device, SIZE);
    let serve = |client: &mut Client, socket: &mut UnixStream, start, command| {
        client.submit(1, command).unwrap();
        client.flush_output().unwrap();
        let (header, _) = next(socket);
        answer(socket, &header, start);
        client.receive(None, &mut |reply| assert_eq!(reply.result, Ok(()))).unwrap();
    };
    serve(&mut client, &mut first, 1, WRITE);
    drop(first);
    let mut second = player.accept(1);
    serve(&mut client, &mut second, 1, WRITE);
    // A node cannot be another one in the middle of a connection.
    client.submit(2, Command::Read { offset: 0, len: 4096 }).unwrap();
    client.flush_output().unwrap();
    let (header, _) = next(&mut second);
    answer(&mut second, &header, 2);
    let mut third = player.accept(2);
    let (header, _) = next(&mut third);
    answer(&mut third, &header, 2);
    client.receive(None, &mut |reply| assert_eq!((reply.cookie, reply.result), (2, Ok(())))).unwrap();
    assert_eq!(ask(&mut client, WRITE), Err(Errno::Eio), "what was not flushed may be lost");
    player.device.edit(vec![Edit::AcceptLoss { vm: "vm".to_owned(), volume: "disk".to_owned() }]).unwrap();
    serve(&mut client, &mut third, 2, WRITE);
    drop(third);
    let mut fourth = player.accept(2);
    serve(&mut client, &mut fourth, 2, WRITE);
}

#[test]
fn two_devices_of_a_gateway_count_for_one_vm() {
    let counts = Counts::new(|| Ok(1));
    let [one, other] = [("n1", "d"), ("n2", "d")].map(|(node, device)| (node.to_owned(), device.to_owned()));
    let count = counts.of("vm");
    let again = counts.of("vm");
    assert_eq!((count.number(&one), again.number(&other), count.number(&other)), (0, 1, 1));
    drop((count, again));
    assert_eq!(counts.of("vm").number(&other), 0, "without a volume it ends");
}
