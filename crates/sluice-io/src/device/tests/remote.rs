//! Volumes of another server: a second device, or a server that does what a test wants.

use std::collections::VecDeque;
use std::io;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender};

use super::*;
use crate::nbd::client::{self, Session, Wanted};
use crate::nbd::wire::{Command as Wire, command_flag, simple_reply, transmission_flag};
use crate::source::remote::{Dial, RemoteSpec, Resend};

const SIZE: u64 = 8 << 20;

/// Connects to a volume of another device.
struct ToDevice(NbdHandle);

impl Dial for ToDevice {
    fn dial(&self) -> Result<(OwnedFd, Session), String> {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let device = self.0.clone();
        let server = thread::spawn(move || {
            let export = Export { info: info(SIZE), ..Export::with_all_features("vm/disk", SIZE) };
            let negotiated = negotiate_blocking(&mut theirs, &One(export)).unwrap();
            device.attach(Arrived {
                vm: "vm".to_owned(),
                volume: "disk".to_owned(),
                generation: VolumeGeneration::default(),
                socket: OwnedFd::from(theirs),
                negotiated,
                offered: info(SIZE),
                peer: "gateway".to_owned(),
                permit: Box::new(()),
                handshake: Duration::ZERO,
            });
        });
        let session = client::run(&mut ours, "vm/disk", Wanted::default()).map_err(|error| error.to_string())?;
        server.join().unwrap();
        Ok((ours.into(), session))
    }
}

/// Passes connections on, as long as there are some; the server is away otherwise.
#[derive(Clone)]
struct Scripted(Arc<Mutex<Receiver<UnixStream>>>);

impl Dial for Scripted {
    fn dial(&self) -> Result<(OwnedFd, Session), String> {
        use transmission_flag::{HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES};
        let socket = self.0.lock().unwrap().try_recv().map_err(|_| "the test accepts no connection".to_owned())?;
        let flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES;
        Ok((socket.into(), Session { size_bytes: SIZE, flags, ..Session::default() }))
    }
}

/// The test's side of [`Scripted`].
struct Server(Sender<UnixStream>);

impl Server {
    fn new() -> (Server, Scripted) {
        let (sender, receiver) = channel();
        (Server(sender), Scripted(Arc::new(Mutex::new(receiver))))
    }

    /// Makes a connection that the device gets next.
    fn accept(&self) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.0.send(theirs).unwrap();
        ours
    }
}

fn next(connection: &mut UnixStream) -> RequestHeader {
    let mut header = [0; RequestHeader::LEN];
    connection.read_exact(&mut header).unwrap();
    let header = RequestHeader::parse(&header).unwrap();
    if header.kind() == Wire::Write {
        connection.read_exact(&mut vec![0; header.length as usize]).unwrap();
    }
    header
}

fn answer(connection: &mut UnixStream, header: &RequestHeader, byte: u8) {
    connection.write_all(&simple_reply(header.cookie, Ok(()))).unwrap();
    if header.kind() == Wire::Read {
        connection.write_all(&vec![byte; header.length as usize]).unwrap();
    }
}

fn remote(dial: impl Dial + 'static, resend: Resend) -> StoreSpec {
    let name = "nbd://node/vm/disk".to_owned();
    let spec = RemoteSpec { name, read_only: false, block_size: None, resend, dial: Box::new(dial) };
    StoreSpec::Remote(Arc::new(spec.connect().unwrap()))
}

/// A gateway in front of a server that the test plays, and its first connection.
fn scripted(resend: Resend) -> (Device, Server, UnixStream) {
    let (server, dial) = Server::new();
    let connection = server.accept();
    let device = device(None);
    add(&device, Policy::default(), remote(dial, resend), SIZE);
    (device, server, connection)
}

fn submit(client: &mut Client, cookie: u64, command: Command<'_>) {
    client.submit(cookie, command).unwrap();
    client.flush_output().unwrap();
}

/// The next reply: its cookie, and whether it is none of an error.
fn reply(client: &mut Client) -> (u64, Result<(), Errno>) {
    let mut replies = VecDeque::new();
    while replies.is_empty() {
        client.receive(None, &mut |reply| replies.push_back((reply.cookie, reply.result))).unwrap();
    }
    assert_eq!(replies.len(), 1, "{replies:?}");
    replies.pop_front().unwrap()
}

const fn read(offset: u64, len: u32) -> Command<'static> {
    Command::Read { offset, len }
}

const fn write(data: &[u8]) -> Command<'_> {
    Command::Write { offset: 0, data, fua: false }
}

#[test]
fn data_of_every_size_and_place_arrive_at_another_server() {
    let (behind, gateway) = (device(None), device(None));
    let (_file, store) = file(SIZE);
    add(&behind, Policy::default(), store, SIZE);
    add(&gateway, Policy::default(), remote(ToDevice(behind.nbd()), Resend::Reads), SIZE);
    let (mut client, mut direct) = (connect(&gateway, SIZE), connect(&behind, SIZE));
    let mut image = vec![0u8; SIZE as usize];
    let mut chance = 0x5eed_u64;
    let mut below = |limit: u64| {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (chance >> 33) % limit
    };
    for step in 0..300u64 {
        let len = 512 * (1 + below(if step % 10 == 0 { 4000 } else { 64 }));
        let offset = 512 * below((SIZE - len) / 512);
        let range = offset as usize..(offset + len) as usize;
        match below(8) {
            0..4 => {
                let data: Vec<u8> = (0..len).map(|at| (at / 512 + step) as u8).collect();
                ask(&mut client, Command::Write { offset, data: &data, fua: step % 3 == 0 }).unwrap();
                image[range].copy_from_slice(&data);
            }
            4 => {
                let zero = Command::WriteZeroes { offset, len: len as u32, no_hole: step % 2 == 0, fast: false };
                ask(&mut client, zero).unwrap();
                image[range].fill(0);
            }
            5 => assert_eq!(ask(&mut client, Command::Flush), Ok(Vec::new())),
            _ => assert_eq!(ask(&mut client, read(offset, len as u32)).unwrap(), image[range], "step {step}"),
        }
    }
    for at in (0..SIZE).step_by(1 << 20) {
        let range = at as usize..at as usize + (1 << 20);
        assert_eq!(ask(&mut client, read(at, 1 << 20)).unwrap(), image[range.clone()]);
        assert_eq!(ask(&mut direct, read(at, 1 << 20)).unwrap(), image[range]);
    }
    ask(&mut client, Command::Trim { offset: 0, len: 4096 }).unwrap();
}

#[test]
fn a_read_is_sent_again_and_a_write_that_may_have_been_done_fails() {
    let (device, server, mut first) = scripted(Resend::Reads);
    let mut client = connect(&device, SIZE);
    submit(&mut client, 1, read(4096, 512));
    let lost = next(&mut first);
    submit(&mut client, 2, write(&[7; 512]));
    assert_eq!(next(&mut first).kind(), Wire::Write);
    drop(first);
    assert_eq!(reply(&mut client), (2, Err(Errno::Eio)));
    // What comes while the server is away waits for it.
    submit(&mut client, 3, write(&[8; 512]));
    let mut second = server.accept();
    let again = next(&mut second);
    assert_eq!((again.kind(), again.offset, again.length), (Wire::Read, lost.offset, lost.length));
    assert_ne!(again.cookie, lost.cookie);
    let later = next(&mut second);
    answer(&mut second, &later, 0);
    assert_eq!(reply(&mut client), (3, Ok(())));
    answer(&mut second, &again, 9);
    assert_eq!(reply(&mut client), (1, Ok(())));
}

#[test]
fn a_write_is_sent_again_where_that_was_asked_for() {
    let (device, server, mut first) = scripted(Resend::All);
    let mut client = connect(&device, SIZE);
    for cookie in 1..=2 {
        submit(&mut client, cookie, write(&[7; 512]));
        assert_eq!(next(&mut first).kind(), Wire::Write);
    }
    drop(first);
    let mut second = server.accept();
    for cookie in 1..=2 {
        let again = next(&mut second);
        assert_eq!(again.kind(), Wire::Write);
        answer(&mut second, &again, 0);
        assert_eq!(reply(&mut client), (cookie, Ok(())));
    }
}

#[test]
fn after_confirmed_writes_without_a_flush_a_lost_server_may_have_lost_them() {
    let (device, server, mut first) = scripted(Resend::Reads);
    let mut client = connect(&device, SIZE);
    let mut serve = |connection: &mut UnixStream, cookie, command: Command<'_>| {
        submit(&mut client, cookie, command);
        let header = next(connection);
        answer(connection, &header, 0);
        assert_eq!(reply(&mut client), (cookie, Ok(())));
        header
    };
    serve(&mut first, 1, write(&[7; 512]));
    serve(&mut first, 2, Command::Flush);
    let forced = serve(&mut first, 3, Command::Write { offset: 0, data: &[1; 512], fua: true });
    assert_eq!(forced.flags, command_flag::FUA);
    drop(first);
    let mut second = server.accept();
    serve(&mut second, 4, write(&[7; 512]));
    drop(second);
    let mut third = server.accept();
    serve(&mut third, 5, read(0, 512));
    assert_eq!(ask(&mut client, write(&[7; 512])), Err(Errno::Eio));
    assert_eq!(ask(&mut client, Command::Flush), Err(Errno::Eio));
    let lost = |device: &Device| device.snapshot().unwrap().vms[0].volumes[0].faults.is_lost;
    assert!(lost(&device));
    device.edit(vec![Edit::AcceptLoss { vm: "vm".to_owned(), volume: "disk".to_owned() }]).unwrap();
    assert!(!lost(&device));
    submit(&mut client, 6, write(&[7; 512]));
    let header = next(&mut third);
    answer(&mut third, &header, 0);
    assert_eq!(reply(&mut client), (6, Ok(())));
}

/// A server that is stopped keeps its connections.
#[test]
fn a_server_that_is_silent_for_too_long_is_away() {
    let (device, server, mut first) = scripted(Resend::Reads);
    let mut client = connect(&device, SIZE);
    submit(&mut client, 1, read(0, 512));
    next(&mut first);
    device.mailbox.send(Message::Test(Fault::Advance(Duration::from_secs(31)))).unwrap();
    let mut rest = Vec::new();
    first.read_to_end(&mut rest).unwrap();
    let mut second = server.accept();
    let again = next(&mut second);
    answer(&mut second, &again, 0);
    assert_eq!(reply(&mut client), (1, Ok(())));
    // And one that does not come back fails what waits for it, and what comes then.
    drop(second);
    submit(&mut client, 2, read(0, 512));
    device.mailbox.send(Message::Test(Fault::Advance(Duration::from_secs(31)))).unwrap();
    assert_eq!(reply(&mut client), (2, Err(Errno::Eio)));
    let mut third = server.accept();
    loop {
        submit(&mut client, 3, read(0, 512));
        if let Some(header) = (third.set_nonblocking(true).is_ok()).then(|| peeked(&mut third)).flatten() {
            answer(&mut third, &header, 0);
            assert_eq!(reply(&mut client), (3, Ok(())));
            return;
        }
        // polls: the device connects again after a pause.
        assert_eq!(reply(&mut client), (3, Err(Errno::Eio)));
    }
}

/// The next request, if one comes within a moment.
fn peeked(connection: &mut UnixStream) -> Option<RequestHeader> {
    connection.set_nonblocking(false).unwrap();
    connection.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut header = [0; RequestHeader::LEN];
    match connection.read_exact(&mut header) {
        Ok(()) => Some(RequestHeader::parse(&header).unwrap()),
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            None
        }
    }
}

/// A server that answers a write before it has all of it must not make the device free what is still being sent.
#[test]
fn an_early_answer_ends_a_write_when_it_is_sent() {
    let (device, _server, mut first) = scripted(Resend::Reads);
    let mut client = connect(&device, SIZE);
    let data = vec![3; 4 << 20];
    submit(&mut client, 1, write(&data));
    while client.output_pending() > 0 {
        client.flush_output().unwrap();
    }
    let mut header = [0; RequestHeader::LEN];
    let mut left = data.len();
    // The gate splits it.
    while left > 0 {
        first.read_exact(&mut header).unwrap();
        let header = RequestHeader::parse(&header).unwrap();
        answer(&mut first, &header, 0);
        first.read_exact(&mut vec![0; header.length as usize]).unwrap();
        left -= header.length as usize;
    }
    assert_eq!(reply(&mut client), (1, Ok(())));
}

#[test]
fn a_server_that_breaks_the_protocol_is_left_and_the_device_goes_on() {
    let nonsense: [fn(&mut UnixStream, &RequestHeader); 4] = [
        |connection, _| connection.write_all(&[0xff; 64]).unwrap(),
        |connection, header| connection.write_all(&simple_reply(header.cookie ^ 1, Ok(()))).unwrap(),
        |connection, header| connection.write_all(&simple_reply(header.cookie | 0xffff_ffff, Ok(()))).unwrap(),
        |connection, header| {
            answer(connection, header, 1);
            answer(connection, header, 2);
        },
    ];
    for (number, nonsense) in nonsense.into_iter().enumerate() {
        let (device, server, mut first) = scripted(Resend::Reads);
        let mut client = connect(&device, SIZE);
        submit(&mut client, 1, read(0, 512));
        let header = next(&mut first);
        nonsense(&mut first, &header);
        let mut second = server.accept();
        if number < 3 {
            let again = next(&mut second);
            answer(&mut second, &again, 0);
        }
        assert_eq!(reply(&mut client), (1, Ok(())), "{number}");
        submit(&mut client, 2, read(0, 512));
        let header = next(&mut second);
        answer(&mut second, &header, 0);
        assert_eq!(reply(&mut client), (2, Ok(())), "{number}");
    }
}

#[test]
fn a_restarted_device_thread_connects_again() {
    let (device, server, mut first) = scripted(Resend::Reads);
    let mut client = connect(&device, SIZE);
    submit(&mut client, 1, read(0, 512));
    let header = next(&mut first);
    answer(&mut first, &header, 0);
    assert_eq!(reply(&mut client), (1, Ok(())));
    device.mailbox.send(Message::Test(Fault::Panic)).unwrap();
    let mut rest = Vec::new();
    first.read_to_end(&mut rest).unwrap();
    let mut client = connect(&device, SIZE);
    submit(&mut client, 2, read(0, 512));
    let mut second = server.accept();
    let header = next(&mut second);
    answer(&mut second, &header, 0);
    assert_eq!(reply(&mut client), (2, Ok(())));
    drop(device);
    let mut rest = Vec::new();
    second.read_to_end(&mut rest).unwrap();
}

#[test]
fn the_rest_of_a_read_comes_from_the_next_connection() {
    for length in [4096u32, 1 << 18] {
        let (device, server, mut first) = scripted(Resend::Reads);
        let mut client = connect(&device, SIZE);
        client.submit(1, read(8192, length)).unwrap();
        client.flush_output().unwrap();
        let header = next(&mut first);
        first.write_all(&simple_reply(header.cookie, Ok(()))).unwrap();
        first.write_all(&vec![1; length as usize / 4]).unwrap();
        drop(first);
        let mut second = server.accept();
        let rest = next(&mut second);
        let came = rest.offset - header.offset;
        assert_eq!((rest.offset + u64::from(rest.length), rest.length < length), (8192 + u64::from(length), came > 0));
        answer(&mut second, &rest, 2);
        let mut data = Vec::new();
        while data.is_empty() {
            client.receive(None, &mut |reply| data = reply.data.to_vec()).unwrap();
        }
        let (before, after) = data.split_at(came as usize);
        assert!(before.iter().all(|byte| *byte == 1) && after.iter().all(|byte| *byte == 2), "{length}");
    }
}

/// A server that is shutting down answers the requests that it has taken, and has not carried out those that it refuses.
#[test]
fn a_server_that_is_shut_down_fails_nothing() {
    let (device, server, mut first) = scripted(Resend::Reads);
    let mut client = connect(&device, SIZE);
    let headers: Vec<RequestHeader> = (1..=3)
        .map(|cookie| {
            submit(&mut client, cookie, write(&[cookie as u8; 512]));
            next(&mut first)
        })
        .collect();
    let refused = simple_reply(headers[1].cookie, Err(wire::Errno::Eshutdown));
    first.write_all(&refused).unwrap();
    answer(&mut first, &headers[2], 0);
    assert_eq!(reply(&mut client), (3, Ok(())));
    submit(&mut client, 4, Command::Write { offset: 4096, data: &[4; 512], fua: true });
    answer(&mut first, &headers[0], 0);
    assert_eq!(reply(&mut client), (1, Ok(())));
    let mut rest = Vec::new();
    first.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "nothing more is sent there");
    // The first two were confirmed and not flushed.
    device.edit(vec![Edit::AcceptLoss { vm: "vm".to_owned(), volume: "disk".to_owned() }]).unwrap();
    let mut second = server.accept();
    for cookie in [2, 4] {
        let again = next(&mut second);
        assert_eq!(again.offset, if cookie == 2 { 0 } else { 4096 });
        answer(&mut second, &again, 0);
        assert_eq!(reply(&mut client), (cookie, Ok(())));
    }
}

#[test]
fn an_export_with_impossible_numbers_is_refused() {
    struct Stated(Session);
    impl Dial for Stated {
        fn dial(&self) -> Result<(OwnedFd, Session), String> {
            Ok((UnixStream::pair().unwrap().0.into(), self.0.clone()))
        }
    }
    let refused = |size_bytes: u64, block_sizes: [u32; 3]| {
        let session = Session { size_bytes, block_sizes: Some(block_sizes), ..Session::default() };
        let (name, dial) = ("nbd://n/x".to_owned(), Box::new(Stated(session)));
        let spec = RemoteSpec { name, read_only: false, block_size: None, resend: Resend::Reads, dial };
        spec.connect().map(drop).unwrap_err().to_string()
    };
    for minimum in [0, 3, 128 << 10, u32::MAX] {
        assert!(refused(SIZE, [minimum, 4096, 1 << 20]).contains("both cannot be"), "{minimum}");
    }
    assert!(refused(u64::MAX - 511, [1, 4096, 1 << 20]).contains("both cannot be"));
    assert!(refused(SIZE, [1, 4096, 64 << 10]).contains("takes at most 65536 bytes at once"));
    assert!(refused(1000, [1, 4096, 1 << 20]).contains("not a multiple of 512"));
}
