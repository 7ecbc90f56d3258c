//! Any bytes as a client's half of the handshake.
#![no_main]

use std::io::{Cursor, Read, Result, Write};

use libfuzzer_sys::fuzz_target;
use sluice_fuzz_export::export;
use sluice_io::nbd::export::Export;
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
}

/// The client's bytes; the server's bytes are dropped.
struct Stream<'a>(Cursor<&'a [u8]>);

impl Read for Stream<'_> {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        self.0.read(into)
    }
}

impl Write for Stream<'_> {
    fn write(&mut self, from: &[u8]) -> Result<usize> {
        Ok(from.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    let mut stream = Stream(Cursor::new(data));
    if let Ok(negotiated) = negotiate_blocking(&mut stream, &Offer) {
        assert_eq!(negotiated.export, export().name);
    }
});
