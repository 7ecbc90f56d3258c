//! A model as the device.

use std::sync::Mutex;

use sluice_sched::Request;
use sluice_sched::gate::Slot;

use super::*;
use crate::store::delay::{DeviceModel, ModelMaker};

/// Completes each request at once, and notes its address.
struct Noting {
    addresses: Arc<Mutex<Vec<u64>>>,
    held: Option<(sluice_sched::Instant, Slot)>,
}

impl DeviceModel for Noting {
    fn submit(&mut self, now: sluice_sched::Instant, slot: Slot, request: &Request) {
        self.addresses.lock().unwrap().push(request.offset);
        self.held = Some((now, slot));
    }

    fn next(&self) -> Option<sluice_sched::Instant> {
        self.held.map(|(at, _)| at)
    }

    fn take(&mut self, _at: sluice_sched::Instant) -> Option<Slot> {
        self.held.take().map(|(_, slot)| slot)
    }
}

#[test]
fn blocks_that_the_file_system_had_placed_had_addresses_outside_of_the_modelled_device() {
    const BLOCK: u64 = 1 << 16;
    let addresses = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&addresses);
    let maker = ModelMaker(Arc::new(move || Box::new(Noting { addresses: Arc::clone(&noted), held: None })));
    let delay = DelaySpec { time: ServiceTime::Fixed(Duration::ZERO), parallel: 1, bandwidth: None, seed: 1 };
    let device = Device::start(DeviceSpec { model: Some(maker), ..spec(Some(delay)) }).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    // The volume is the last four of eight blocks, of which the file system has placed one.
    file.as_file().set_len(8 * BLOCK).unwrap();
    std::os::unix::fs::FileExt::write_all_at(file.as_file(), &[7; BLOCK as usize], 5 * BLOCK).unwrap();
    file.as_file().sync_all().unwrap();
    let part =
        SourceSpec { buffered: true, offset: 4 * BLOCK, length: Some(4 * BLOCK), ..SourceSpec::whole(file.path()) };
    let source = Arc::new(Source::open_within(&part, Duration::from_secs(10)).unwrap());
    let extents = source.extents().ok();
    add(&device, Policy::default(), StoreSpec::File(FileSpec { source, extents }), 4 * BLOCK);
    let mut client = connect(&device, 4 * BLOCK);
    for block in [0, 1] {
        ask(&mut client, Command::Read { offset: block * BLOCK, len: 512 }).unwrap();
    }
    ask(&mut client, Command::Write { offset: 3 * BLOCK, data: &[1; 512], fua: false }).unwrap();
    assert_eq!(*addresses.lock().unwrap(), [4 * BLOCK, 5 * BLOCK, 7 * BLOCK]);
}
