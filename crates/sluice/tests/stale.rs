//! A hostile VMM that is detached while its session is blocked in sending: its queued messages must not reach the
//! volume of the VM that gets the same session index at the device thread.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{Daemon, MIB, Place, noise, until};
use rustix::event::{EventfdFlags, eventfd};
use serde_json::{Value, json};
use sluice_client::vhost::memory::{Memory, PAGE};
use sluice_client::vhost::session::Session;
use sluice_client::vhost::{ALL_FEATURES, Client, ClientError, ClientOptions, FrontendReq, VhostUserProtocolFeatures};

/// Number of attempts to hit the race.
const TIMES: u32 = 1000;
const TIMEOUT: Duration = Duration::from_secs(20);
/// Length of a reply to GET_FEATURES: header and a number.
const REPLY_LEN: u64 = 20;

/// Sends a request to the control socket, which is carried out.
fn message(place: &Place, message: &Value) {
    let request = serde_json::from_value(message.clone()).unwrap();
    sluice_api::http::ask::<Value>(&place.socket("control"), &request).unwrap();
}

fn attach(place: &Place) {
    let socket = place.volume_socket("hostile", "v");
    message(
        place,
        &json!({
            "verb": "attach",
            "target": "hostile/v",
            "vm": {},
            "how": { "term": "until-restart" },
            "keys": {
                "device": "disk",
                "source": place.file("hostile.img"),
                "export": { "type": "vhost-user-blk", "socket": socket },
            },
        }),
    );
}

/// A VMM whose queue contains a read of the first sector, and which has sent every message except the kick that
/// starts it.
struct Hostile {
    session: Session,
    memory: Memory,
    kick: OwnedFd,
}

/// Offsets of the message's header, data and status.
const HEADER: usize = 3 * PAGE;
const DATA: usize = 4 * PAGE;
const STATUS: usize = 5 * PAGE;

impl Hostile {
    fn connect(socket: &Path) -> Hostile {
        let mut session = Session::connect(socket, TIMEOUT).unwrap();
        let protocol = VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::CONFIG;
        session.set_protocol_features(protocol.bits()).unwrap();
        let memory = Memory::new(16 * PAGE, 1).unwrap();
        for (index, (offset, len, flags)) in
            [(HEADER, 16u32, 1u16), (DATA, 512, 3), (STATUS, 1, 2)].into_iter().enumerate()
        {
            let next = index as u16 + 1;
            let words = [&memory.guest(offset).to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes()];
            memory.write(16 * index, &[words.concat(), next.to_le_bytes().to_vec()].concat());
        }
        memory.write(STATUS, &[0xff]);
        // The available ring: one entry, chain 0.
        memory.u16(PAGE + 2).store(1, Ordering::Release);
        session.set_features(ALL_FEATURES & session.features().unwrap()).unwrap();
        session.set_memory_table(&memory).unwrap();
        session.set_ring_size(0, 64).unwrap();
        session.set_ring_addresses(0, [0, PAGE, 2 * PAGE].map(|offset| memory.user(offset))).unwrap();
        session.set_ring_base(0, 0).unwrap();
        session.enable_ring(0, true).unwrap();
        let kick = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        Hostile { session, memory, kick }
    }

    /// Returns the number of unread bytes of replies.
    fn unread(&self) -> u64 {
        rustix::io::ioctl_fionread(self.session.link().as_fd()).unwrap()
    }

    fn message(&self, questions: u64) {
        for _ in 0..questions {
            self.session.link().send(FrontendReq::GET_FEATURES as u32, 0, &[], &[]).unwrap();
        }
    }

    /// Reads all replies until the daemon closes the connection.
    fn read_all(&self) {
        while self.session.link().receive().is_ok() {}
    }

    /// Whether the read was served.
    fn has_read(&self) -> bool {
        let mut sector = [0; 512];
        self.memory.read(DATA, &mut sector);
        sector != [0; 512] || self.memory.u8(STATUS).load(Ordering::Acquire) != 0xff
    }
}

/// Returns the number of replies that fit into the socket of a VMM that reads none.
fn replies_that_fit(place: &Place) -> u64 {
    attach(place);
    let hostile = Hostile::connect(&place.volume_socket("hostile", "v"));
    hostile.message(400);
    let (mut unread, mut unchanged) = (0, 0);
    until("no more replies fit", || {
        let now = hostile.unread();
        (unread, unchanged) = if now > 0 && now == unread { (now, unchanged + 1) } else { (now, 0) };
        unchanged > 20
    });
    message(
        place,
        &json!({ "verb": "detach", "target": "hostile", "how": { "term": "until-restart", "force": ["hostile"] } }),
    );
    unread / REPLY_LEN
}

#[test]
fn a_detached_vmm_read_the_disk_of_the_next_vm() {
    let place = Place::new();
    let secret = noise(1, MIB as usize);
    let victims = place.write("victim.img", &secret);
    place.image("hostile.img", MIB);
    // Without a state directory, so that a detach takes no time.
    let control = format!("[daemon]\ncontrol = \"{}\"\n", place.socket("control").display());
    let host = control + &place.device("") + &place.vhost_volume("victim", "v", &victims, "");
    let daemon = Daemon::serve(&place, &host);
    let fit = replies_that_fit(&place);
    for round in 0..TIMES {
        attach(&place);
        let hostile = Hostile::connect(&place.volume_socket("hostile", "v"));
        // One reply more than fit: the session blocks in sending, and the next message is the kick.
        hostile.message(fit + 1);
        until("no more replies fit", || hostile.unread() == fit * REPLY_LEN);
        hostile.session.set_ring_kick(0, Some(hostile.kick.as_fd())).unwrap();
        message(
            &place,
            &json!({ "verb": "detach", "target": "hostile", "how": { "term": "until-restart", "force": ["hostile"] } }),
        );
        let socket = place.volume_socket("victim", "v");
        let mut victim = Client::connect(&socket, &ClientOptions::default()).unwrap();
        hostile.read_all();
        let mut sector = [0; 512];
        let read = victim.read(0, &mut sector);
        assert!(read.is_ok(), "round {round}: the next VM is thrown out: {read:?}");
        assert!(sector[..] == secret[..512]);
        assert!(!hostile.has_read(), "round {round}: a detached VMM has read the disk of another");
        victim.disconnect();
    }
    assert_eq!(daemon.accounts().device()["restarts"], 0);
    assert_eq!(daemon.terminate().code(), Some(0));
}

/// A VMM that never reads its replies is disconnected after a timeout, as a protocol violation.
#[test]
fn a_vmm_that_reads_no_replies_is_disconnected() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let daemon = Daemon::serve(&place, &(place.device("") + &place.vhost_volume("hostile", "v", &image, "")));
    let hostile = Hostile::connect(&place.volume_socket("hostile", "v"));
    hostile.message(400);
    daemon.stderr().up_to(&["VMM disconnected: protocol violation"]);
    hostile.read_all();
    assert!(matches!(hostile.session.features(), Err(ClientError::Io(_) | ClientError::Closed)));
    assert_eq!(daemon.terminate().code(), Some(0));
}
