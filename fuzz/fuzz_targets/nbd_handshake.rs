//! Any bytes as a client's half of the handshake, also after a gateway has proven its key, and as the messages of gateways and nodes.
#![no_main]

use std::io::{self, Cursor, Read, Write};
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use sluice_fuzz_export::export;
use sluice_io::nbd::export::Export;
use sluice_io::nbd::gateway::proof::{Key, Side};
use sluice_io::nbd::gateway::record::{ReplyRecord, RequestRecord};
use sluice_io::nbd::gateway::{Challenge, Admission, Hello, OPTION_HELLO, OPTION_PROOF, StartId};
use sluice_io::nbd::handshake::{Exports, Listed};
use sluice_io::nbd::negotiate::negotiate_blocking;

#[path = "export.rs"]
mod sluice_fuzz_export;

/// A list of that export.
struct Offer;

impl Exports for Offer {
    fn list(&self) -> Vec<Listed> {
        vec![Listed { name: export().name, description: export().description }]
    }

    fn find(&self, name: &str) -> Option<Export> {
        (name == export().name).then(export)
    }

    fn challenge(&self, _hello: &Hello) -> Result<Admission, Option<String>> {
        Ok(Admission { key: Arc::new(key()), challenge: challenge(), vm: "vm".to_owned() })
    }
}

fn key() -> Key {
    Key::new(&[7; 32]).expect("it is long enough")
}

fn challenge() -> Challenge {
    Challenge { node: "n".to_owned(), device: "d".to_owned(), nonce: [2; 32], start: StartId::default() }
}

fn option(code: u32, payload: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT".as_slice(), &code.to_be_bytes(), &(payload.len() as u32).to_be_bytes(), payload].concat()
}

/// What a gateway sends up to its proof, which holds.
fn introduction() -> Vec<u8> {
    let (gateway, vms) = ("g".to_owned(), vec!["vm".to_owned()]);
    let hello = Hello { gateway, epoch: 1, nonce: [1; 32], export: export().name, vms };
    let proof = key().prove(Side::Client, &hello, &challenge());
    [vec![0, 0, 0, 3], option(OPTION_HELLO, &hello.encode()), option(OPTION_PROOF, &proof)].concat()
}

/// The client's bytes; the server's bytes are dropped.
struct Stream<'a>(Cursor<&'a [u8]>);

impl Read for Stream<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Stream<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    let mut stream = Stream(Cursor::new(data));
    if let Ok(negotiated) = negotiate_blocking(&mut stream, &Offer) {
        assert_eq!(negotiated.export, export().name);
    }
    let introduced = [&introduction(), data].concat();
    if let Ok(negotiated) = negotiate_blocking(&mut Stream(Cursor::new(&introduced)), &Offer) {
        let known = negotiated.gateway.expect("it has proven its key");
        assert!(!negotiated.structured_replies && known.vm.1 == 0 && negotiated.export == export().name);
    }
    if let Ok(hello) = Hello::parse(data) {
        assert_eq!(hello.encode(), data);
    }
    if let Ok(challenge) = Challenge::parse(data) {
        assert_eq!(challenge.encode(), data);
    }
    if let Some(bytes) = data.first_chunk() {
        let record = RequestRecord::parse(bytes);
        assert_eq!(RequestRecord::parse(&record.encode()), record);
    }
    if let Some(bytes) = data.first_chunk() {
        let record = ReplyRecord::parse(bytes);
        assert_eq!(ReplyRecord::parse(&record.encode()), record);
    }
});
