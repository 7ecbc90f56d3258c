use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};

use super::*;
use crate::canned::{self, CANNED_FILL, CannedError, CannedServer, Reads};
use sluice_io::nbd::export::{Export, transmission_flags};
use sluice_io::nbd::wire::{allocation, simple_reply};

type Served = JoinHandle<Result<(), CannedError>>;

fn pair(export: Export, options: &ClientOptions) -> (Client, Served) {
    let (stream, served) = canned::spawn_pair(export).expect("a socket pair");
    let client = Client::from_unix(stream, "a", options).expect("a good handshake");
    (client, served)
}

fn end(client: Client, served: Served) {
    client.disconnect().expect("the server listens");
    served.join().expect("no panic").expect("no error");
}

/// Receives until nothing is in flight; returns all replies.
fn receive_all(client: &mut Client) -> Vec<(u64, Result<(), Errno>, Vec<u8>)> {
    let mut replies = Vec::new();
    while client.in_flight() > 0 {
        let count = client
            .receive(None, &mut |reply| replies.push((reply.cookie, reply.result, reply.data.to_vec())))
            .expect("the server replies");
        assert!(count > 0);
    }
    replies
}

fn all_options() -> impl Iterator<Item = ClientOptions> {
    (0..8).map(|bits| ClientOptions {
        structured_replies: bits & 1 != 0,
        base_allocation: bits & 2 != 0,
        keep_data: bits & 4 != 0,
        ..ClientOptions::default()
    })
}

#[test]
fn the_handshake_reports_the_properties_of_the_export() {
    for options in all_options() {
        let (client, served) = pair(export(), &options);
        assert_eq!(client.size_bytes(), 1 << 20);
        assert_eq!(client.structured_replies(), options.structured_replies);
        assert_eq!(client.transmission_flags(), transmission_flags(&export().info, options.structured_replies));
        assert_eq!(client.block_sizes(), Some([512, 4096, 1 << 20]));
        let selected = options.structured_replies && options.base_allocation;
        assert_eq!(client.base_allocation().is_some(), selected);
        end(client, served);
    }
}

#[test]
fn every_command_is_answered() {
    for options in all_options() {
        let (mut client, served) = pair(export(), &options);
        let commands = [
            Command::Read { offset: 512, len: 1024 },
            Command::Write { offset: 0, data: &[1; 4096], fua: true },
            Command::Flush,
            Command::Trim { offset: 0, len: 512 },
            Command::WriteZeroes { offset: 0, len: 512, no_hole: true, fast: true },
            Command::Read { offset: 1 << 20, len: 512 },
            Command::Write { offset: 1 << 20, data: &[1; 512], fua: false },
            Command::BlockStatus { offset: 0, len: 1024 },
        ];
        for (cookie, command) in (100..).zip(commands) {
            client.submit(cookie, command).expect("room");
        }
        let data = if options.keep_data { vec![CANNED_FILL; 1024] } else { vec![] };
        let mut expected: Vec<_> = (100..108).map(|cookie| (cookie, Ok(()), vec![])).collect();
        expected[0].2 = data;
        expected[5].1 = Err(Errno::Einval);
        expected[6].1 = Err(Errno::Enospc);
        match client.base_allocation() {
            Some(_) => expected[7].2 = vec![0, 0, 4, 0, 0, 0, 0, 0],
            None => expected[7].1 = Err(Errno::Einval),
        }
        assert_eq!(receive_all(&mut client), expected, "{options:?}");
        end(client, served);
    }
}

#[test]
fn extents_can_be_read_from_a_reply() {
    let options = ClientOptions { base_allocation: true, ..ClientOptions::default() };
    let (mut client, served) = pair(export(), &options);
    client.submit(1, Command::BlockStatus { offset: 0, len: 8192 }).expect("room");
    let mut found = Vec::new();
    client.receive(None, &mut |reply| found.extend(wire::extents(reply.data))).expect("a reply");
    assert_eq!(found, [wire::Extent { length: 8192, flags: 0 }]);
    assert_eq!(found[0].flags & allocation::HOLE, 0);
    end(client, served);
}

#[test]
fn a_closed_loop_completes_many_requests() {
    for keep_data in [false, true] {
        let (mut client, served) = pair(export(), &ClientOptions { keep_data, ..ClientOptions::default() });
        let mut free: Vec<u64> = (0..64).collect();
        let (mut submitted, mut finished) = (0u64, 0usize);
        while finished < 20_000 {
            for cookie in free.drain(..) {
                let offset = submitted % 256 * 4096;
                let command = match submitted % 3 {
                    0 => Command::Write { offset, data: &[3; 4096], fua: false },
                    _ => Command::Read { offset, len: 4096 },
                };
                client.submit(cookie, command).expect("room");
                submitted += 1;
            }
            client.flush_output().expect("connected");
            let replies = client.receive(None, &mut |reply| {
                assert_eq!(reply.result, Ok(()));
                assert!(reply.data.iter().all(|byte| *byte == CANNED_FILL));
                free.push(reply.cookie);
            });
            finished += replies.expect("a reply");
        }
        receive_all(&mut client);
        end(client, served);
    }
}

#[test]
fn payloads_larger_than_every_buffer_do_not_deadlock() {
    // 16 MiB of writes and of reads are in flight: both directions fill up, and neither side may wait for the other.
    for keep_data in [false, true] {
        let options = ClientOptions { keep_data, ..ClientOptions::default() };
        let (mut client, served) = pair(export(), &options);
        let data = vec![1; 1 << 20];
        for cookie in 0..16 {
            client.submit(cookie, Command::Write { offset: 0, data: &data, fua: false }).expect("room");
            client.submit(cookie + 100, Command::Read { offset: 0, len: 1 << 20 }).expect("room");
        }
        assert!(!client.flush_output().expect("connected"), "more than a socket takes");
        assert!(client.output_pending() > 0);
        let replies = receive_all(&mut client);
        assert_eq!(replies.len(), 32);
        for (cookie, result, data) in replies {
            assert_eq!(result, Ok(()));
            let expected = if keep_data && cookie >= 100 { 1 << 20 } else { 0 };
            assert_eq!(data.len(), expected);
        }
        end(client, served);
    }
}

#[test]
fn one_thread_polls_two_clients_without_blocking() {
    let (first, first_served) = pair(export(), &ClientOptions::default());
    let (second, second_served) = pair(export(), &ClientOptions::default());
    let mut clients = [first, second];
    for client in &mut clients {
        assert_eq!(client.try_receive(&mut |_| ()).expect("connected"), 0, "nothing is there");
        for cookie in 0..10 {
            client.submit(cookie, Command::Read { offset: 0, len: 512 }).expect("room");
        }
        assert!(client.flush_output().expect("connected"));
    }
    while clients.iter().any(|client| client.in_flight() > 0) {
        let [first, second] = &clients;
        let read = rustix::event::PollFlags::IN;
        let mut polled = [rustix::event::PollFd::new(first, read), rustix::event::PollFd::new(second, read)];
        rustix::event::poll(&mut polled, None).expect("polling works");
        for client in &mut clients {
            client.try_receive(&mut |reply| assert_eq!(reply.result, Ok(()))).expect("connected");
        }
    }
    let [first, second] = clients;
    end(first, first_served);
    end(second, second_served);
}

/// A writable export of 1 MiB with every feature.
fn export() -> Export {
    Export::with_all_features("a", 1 << 20)
}

/// Starts a server that runs `script` after a normal handshake.
fn scripted(script: impl FnOnce(UnixStream) + Send + 'static) -> (Client, JoinHandle<()>) {
    struct Sample;
    impl sluice_io::nbd::handshake::Exports for Sample {
        fn list(&self) -> Vec<sluice_io::nbd::handshake::Listed> {
            vec![]
        }
        fn find(&self, name: &str) -> Option<Export> {
            Some(Export::with_all_features(name, 1 << 20))
        }
    }
    let (mut ours, theirs) = UnixStream::pair().expect("a socket pair");
    let server = thread::spawn(move || {
        sluice_io::nbd::negotiate::negotiate_blocking(&mut ours, &Sample).expect("a good handshake");
        script(ours);
    });
    let options = ClientOptions { structured_replies: false, ..ClientOptions::default() };
    (Client::from_unix(theirs, "a", &options).expect("a good handshake"), server)
}

fn next_cookie(stream: &mut UnixStream) -> u64 {
    let mut bytes = [0; RequestHeader::LEN];
    stream.read_exact(&mut bytes).expect("a request");
    RequestHeader::parse(&bytes).expect("a good magic").cookie
}

#[test]
fn a_reply_after_a_timeout_is_still_received() {
    let (reply_now, told_to_reply) = std::sync::mpsc::channel::<()>();
    let (mut client, server) = scripted(move |mut stream| {
        let cookie = next_cookie(&mut stream);
        told_to_reply.recv().expect("the test lives");
        stream.write_all(&simple_reply(cookie, Ok(()))).expect("the client lives");
    });
    client.submit(5, Command::Flush).expect("room");
    // One exact and one coarse timeout. The server replies only when the test tells it to.
    for timeout in [Duration::from_millis(1), COARSE_TIMEOUT] {
        let replies = client.receive(Some(timeout), &mut |_| panic!("no reply yet"));
        assert_eq!(replies.expect("connected"), 0);
    }
    reply_now.send(()).expect("the server lives");
    assert_eq!(client.receive(None, &mut |reply| assert_eq!(reply.cookie, 5)).expect("a reply"), 1);
    assert_eq!(client.receive(None, &mut |_| ()).expect("connected"), 0, "nothing is in flight");
    server.join().expect("no panic");
}

#[test]
fn replies_arrive_in_any_order() {
    let (mut client, server) = scripted(|mut stream| {
        let mut cookies: Vec<u64> = (0..3).map(|_| next_cookie(&mut stream)).collect();
        cookies.reverse();
        for cookie in cookies {
            stream.write_all(&simple_reply(cookie, Ok(()))).expect("the client lives");
        }
    });
    for cookie in [7, 8, 9] {
        client.submit(cookie, Command::Flush).expect("room");
    }
    let order: Vec<u64> = receive_all(&mut client).into_iter().map(|(cookie, ..)| cookie).collect();
    assert_eq!(order, [9, 8, 7]);
    server.join().expect("no panic");
}

#[test]
fn a_closed_connection_is_reported() {
    let (mut client, server) = scripted(|mut stream| {
        next_cookie(&mut stream);
    });
    client.submit(1, Command::Flush).expect("room");
    let outcome = client.receive(None, &mut |_| ());
    assert!(matches!(outcome, Err(ClientError::Closed)), "{outcome:?}");
    server.join().expect("no panic");
}

#[test]
fn a_request_after_a_refused_write_succeeds() {
    let mut export = export();
    export.info.read_only = true;
    let (mut client, served) = pair(export, &ClientOptions::default());
    client.submit(1, Command::Write { offset: 0, data: &[0x25; 8192], fua: false }).expect("room");
    client.submit(2, Command::Read { offset: 0, len: 512 }).expect("room");
    assert_eq!(receive_all(&mut client), [(1, Err(Errno::Eperm), vec![]), (2, Ok(()), vec![])]);
    end(client, served);
}

#[test]
fn a_fatal_request_closes_the_connection() {
    let (mut client, served) = pair(export(), &ClientOptions::default());
    let command = wire::Command::Write.into();
    let header = RequestHeader { flags: 0, command, cookie: 0, offset: 0, length: 65 << 20 };
    client.submit(1, Command::Raw { header, payload: &[] }).expect("room");
    let outcome = client.receive(None, &mut |_| panic!("no reply to that"));
    assert!(matches!(outcome, Err(ClientError::Closed)), "{outcome:?}");
    served.join().expect("no panic").expect("no error");
}

#[test]
fn the_servers_message_for_an_unknown_export_is_reported() {
    let (stream, served) = canned::spawn_pair(export()).expect("a socket pair");
    let error = Client::from_unix(stream, "b", &ClientOptions::default()).expect_err("no such export");
    let text = error.to_string();
    assert!(
        matches!(error, ClientError::Handshake(HandshakeError::Refused { option: wire::option::GO, .. })),
        "{text}"
    );
    assert!(text.ends_with("There is no such export"), "{text}");
    served.join().expect("no panic").expect("no error");
}

#[test]
fn a_peer_that_is_not_an_nbd_server_is_an_error() {
    for greeting in [&b"HTTP/1.1 400 Bad Request"[..], b"NBDMAGICIHAVEOPT\0\0", b"NBD"] {
        let (mut ours, theirs) = UnixStream::pair().expect("a socket pair");
        ours.write_all(greeting).expect("room in the socket");
        drop(ours);
        let outcome = Client::from_unix(theirs, "a", &ClientOptions::default());
        assert!(
            matches!(outcome, Err(ClientError::Handshake(HandshakeError::Protocol { .. } | HandshakeError::Closed))),
            "{outcome:?}"
        );
    }
}

#[test]
fn submit_rejects_requests_above_its_bounds() {
    let (mut client, served) = pair(export(), &ClientOptions::default());
    let too_long = client.submit(1, Command::Read { offset: 0, len: PAYLOAD_LEN_MAX + 1 });
    assert!(matches!(too_long, Err(ClientError::TooLong { .. })));
    for cookie in 0..IN_FLIGHT_MAX as u64 {
        client.submit(cookie, Command::Flush).expect("room");
    }
    assert!(matches!(client.submit(1, Command::Flush), Err(ClientError::TooManyInFlight)));
    assert_eq!(receive_all(&mut client).len(), IN_FLIGHT_MAX);
    client.submit(1, Command::Flush).expect("room again");
    receive_all(&mut client);
    end(client, served);
}

#[test]
fn unix_and_tcp_sockets_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("nbd.sock");
    let server = CannedServer::bind_unix(&path, export(), Reads::Data).expect("a new socket");
    let mut client = Client::connect_unix(&path, "").expect("the default export");
    client.submit(1, Command::Flush).expect("room");
    assert_eq!(receive_all(&mut client).len(), 1);
    drop(server);
    assert!(!path.exists());
    client.submit(2, Command::Flush).expect("room");
    assert_eq!(receive_all(&mut client).len(), 1, "a connection outlives the listener");
    client.disconnect().expect("the server listens");
    assert!(UnixListener::bind(&path).is_ok());

    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let served = thread::spawn(move || canned::serve(listener.accept().expect("a client").0, &export(), Reads::Data));
    let mut client = Client::connect_tcp(address, "a").expect("a good handshake");
    client.submit(1, Command::Read { offset: 0, len: 65536 }).expect("room");
    assert_eq!(receive_all(&mut client).len(), 1);
    end(client, served);
}
