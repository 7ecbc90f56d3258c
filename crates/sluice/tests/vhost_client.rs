//! The tests' vhost-user-blk front end against a back end of another project, qemu-storage-daemon.
//!
//! The front end must itself be correct, because a mistake on both sides would not be noticed.

use std::path::Path;

use crate::common::{KIB, MIB, Place, Running, noise, start, tool, until};
use sluice_client::vhost::ring::{NEXT, WRITE};
use sluice_client::vhost::{
    ALL_FEATURES, Client, ClientError, ClientOptions, Cuts, FrontendReq, Request, VhostUserProtocolFeatures, ring,
};

const SIZE: u64 = 8 * MIB;
const EVENT_IDX: u64 = 1 << 29;
const INDIRECT: u64 = 1 << 28;

/// Starts the other back end on a file.
fn serve(place: &Place, image: &Path) -> Running {
    let mut command = tool("qemu-storage-daemon", "qemu-system-common");
    let node = format!("driver=file,filename={},node-name=n,discard=unmap", image.display());
    let socket = place.socket("qsd");
    let _ = std::fs::remove_file(&socket);
    let export = format!(
        "type=vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={},writable=on,num-queues=4",
        socket.display()
    );
    let running = start(command.args(["--blockdev", &node, "--export", &export]));
    until("its socket exists", || socket.exists());
    running
}

fn connect(place: &Place, options: &ClientOptions) -> Client {
    let mut client = None;
    until("the back end listens", || {
        client = Client::connect(&place.socket("qsd"), options).ok();
        client.is_some()
    });
    client.unwrap()
}

fn set_up(options: &ClientOptions) -> (Place, Running, Client) {
    let place = Place::new();
    let image = place.write("disk.img", noise(1, SIZE as usize));
    let running = serve(&place, &image);
    let client = connect(&place, options);
    (place, running, client)
}

fn options() -> ClientOptions {
    ClientOptions { kick_at_start: true, ..ClientOptions::default() }
}

#[test]
fn the_configuration_space_is_read() {
    let (_place, _running, client) = set_up(&ClientOptions { queues: 4, ..options() });
    let config = client.config();
    assert_eq!((config.size_bytes(), config.queues, config.block_size), (SIZE, 4, 512));
    assert!(config.seg_max > 0 && config.discard_sectors_max > 0 && config.discard_segments_max > 0);
    assert_ne!(client.features() & EVENT_IDX, 0);
    let session = client.session().unwrap();
    assert!(session.has(VhostUserProtocolFeatures::CONFIG) && session.has(VhostUserProtocolFeatures::MQ));
}

#[test]
fn every_request_completes_with_every_feature_set() {
    for (features, regions) in [
        (ALL_FEATURES, 1),
        (ALL_FEATURES & !EVENT_IDX, 1),
        (ALL_FEATURES & !INDIRECT, 1),
        (ALL_FEATURES & !INDIRECT & !EVENT_IDX, 5),
    ] {
        let (place, _running, mut client) = set_up(&ClientOptions { features, regions, ..options() });
        let content = noise(1, SIZE as usize);
        let mut bytes = vec![0; 64 * KIB as usize];
        client.read(4096, &mut bytes).unwrap();
        assert!(bytes == content[4096..4096 + bytes.len()]);
        let new = noise(2, bytes.len());
        client.write(MIB, &new).unwrap();
        client.perform(0, Request::Flush).unwrap();
        client.perform(0, Request::WriteZeroes { offset: MIB + 4096, len: 8192, unmap: true }).unwrap();
        client.perform(0, Request::Discard { offset: 2 * MIB, len: 4096 }).unwrap();
        client.read(MIB, &mut bytes).unwrap();
        assert!(bytes[..4096] == new[..4096] && bytes[12288..] == new[12288..]);
        assert!(bytes[4096..12288].iter().all(|byte| *byte == 0));
        let named = client.perform(0, Request::GetId).unwrap();
        assert_eq!(named.status, 0);
        let on_disk = std::fs::read(place.file("disk.img")).unwrap();
        assert!(on_disk[MIB as usize..][..4096] == new[..4096]);
        let beyond = client.perform(0, Request::Read { offset: SIZE, len: 512 });
        assert!(matches!(beyond, Err(ClientError::Status { status: 1 })), "{beyond:?}");
        let unknown = client.perform(0, Request::Other { kind: 77, sector: 0, to_device: 0, from_device: 0 });
        assert!(matches!(unknown, Err(ClientError::Status { status: 2 })), "{unknown:?}");
    }
}

#[test]
fn a_request_may_be_split_anywhere() {
    for features in [ALL_FEATURES, ALL_FEATURES & !INDIRECT] {
        let (_place, _running, mut client) = set_up(&ClientOptions { features, ..options() });
        let content = noise(1, SIZE as usize);
        let read = Request::Read { offset: 512, len: 4096 };
        for cuts in [
            Cuts { readable: &[1, 2, 3], writable: &[] },
            Cuts { readable: &[], writable: &[1000, 96, 2000, 1000] },
            Cuts { readable: &[8, 8], writable: &[512; 8] },
        ] {
            client.queue(0).submit_cut(3, read, cuts).unwrap();
            client.queue(0).publish().unwrap();
            let answers = client.wait(0, 1).unwrap();
            assert_eq!((answers[0].slot, answers[0].status), (3, 0), "{cuts:?}");
            let mut bytes = vec![0; 4096];
            client.queue(0).read_data(3, &mut bytes);
            assert!(bytes == content[512..4608], "{cuts:?}");
        }
    }
}

#[test]
fn several_full_queues_work_concurrently() {
    let (_place, _running, mut client) = set_up(&ClientOptions { queues: 4, queue_size: 64, ..options() });
    let content = noise(1, SIZE as usize);
    for round in 0..20 {
        for index in 0..4 {
            let queue = client.queue(index);
            for slot in 0..queue.slots() {
                let offset = (u64::from(index) * 64 + u64::from(slot)) * 4096 + round * 512;
                queue.submit(slot, Request::Read { offset, len: 4096 }).unwrap();
            }
            assert!(matches!(queue.submit(0, Request::Flush), Err(ClientError::Busy { slot: 0 })));
            queue.publish().unwrap();
        }
        for index in 0..4 {
            let answers = client.wait(index, 64).unwrap();
            assert_eq!(answers.len(), 64);
            for answer in answers {
                let mut bytes = vec![0; 4096];
                client.queue(index).read_data(answer.slot, &mut bytes);
                let offset = (usize::from(index) * 64 + usize::from(answer.slot)) * 4096 + round as usize * 512;
                assert!(answer.status == 0 && bytes == content[offset..offset + 4096]);
            }
        }
    }
}

#[test]
fn a_stopped_queue_resumes_at_its_position() {
    let (_place, _running, mut client) = set_up(&options());
    for _ in 0..3 {
        client.perform(0, Request::Flush).unwrap();
    }
    let base = client.stop_queue(0).unwrap();
    assert_eq!(base, 3);
    client.queue(0).submit(0, Request::Flush).unwrap();
    client.queue(0).publish().unwrap();
    client.start_queue(0, base).unwrap();
    assert_eq!(client.wait(0, 1).unwrap().len(), 1);
}

#[test]
fn the_front_end_reconnects_to_a_restarted_back_end() {
    let (place, running, mut client) = set_up(&options());
    client.write(0, &[7; 512]).unwrap();
    client.queue(0).submit(5, Request::Read { offset: 0, len: 512 }).unwrap();
    running.kill();
    assert!(matches!(client.session().unwrap().features(), Err(ClientError::Closed | ClientError::Io(_))));
    client.queue(0).publish().unwrap();
    let _running = serve(&place, &place.file("disk.img"));
    until("the back end listens", || client.reconnect(&place.socket("qsd")).is_ok());
    let answers = client.wait(0, 1).unwrap();
    assert_eq!((answers[0].slot, answers[0].status, client.queue(0).in_flight()), (5, 0, 0));
    let mut bytes = [0; 512];
    client.queue(0).read_data(5, &mut bytes);
    assert_eq!(bytes, [7; 512]);
}

#[test]
fn an_endless_chain_can_be_sent() {
    let (_place, _running, mut client) = set_up(&options());
    let queue = client.queue(0);
    let address = queue.memory().guest(queue.data(0));
    let round = |next| ring::Descriptor { address, len: 16, flags: NEXT | WRITE, next };
    queue.ring().write_descriptor(1, round(2));
    queue.ring().write_descriptor(2, round(1));
    queue.push_head(1);
    queue.publish().unwrap();
    // This back end closes the connection.
    until("the back end disconnects", || client.session().unwrap().features().is_err());
}

#[test]
fn an_unknown_message_can_be_sent() {
    let (_place, _running, client) = set_up(&options());
    let link = client.session().unwrap().link();
    link.send(9999, 0, &[1, 2, 3], &[]).unwrap();
    // This back end closes the connection.
    let answer = client.session().unwrap().answer(FrontendReq::GET_FEATURES);
    assert!(matches!(answer, Err(ClientError::Closed)), "{answer:?}");
}
