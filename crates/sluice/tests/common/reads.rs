//! Guests that keep reads outstanding while a test looks at the daemon.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use sluice_client::vhost::{Client, ClientOptions, Request};

use super::Place;

/// Ends the threads of a test, also if the test fails: a scope waits for its threads, and they would never end.
pub(crate) struct End<'a>(pub(crate) &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads 4 KiB in each of these VMs while `look` runs, with as many requests outstanding in each VM. `look` gets the numbers of their
/// answered requests.
pub(crate) fn while_reading<T, const N: usize>(
    place: &Place,
    vms: [&str; N],
    outstanding: u16,
    look: impl FnOnce(&dyn Fn() -> [u64; N]) -> T,
) -> T {
    let (stop, answered) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; N]);
    thread::scope(|scope| {
        let _end = End(&stop);
        for (vm, answered) in vms.into_iter().zip(&answered) {
            let (stop, socket) = (&stop, place.socket(vm));
            scope.spawn(move || read(&socket, outstanding, stop, answered));
        }
        look(&|| std::array::from_fn(|vm| answered[vm].load(Ordering::Relaxed)))
    })
}

/// Keeps reads outstanding until the end, and counts what is answered.
fn read(socket: &Path, outstanding: u16, stop: &AtomicBool, answered: &AtomicU64) {
    let options = ClientOptions { slots: outstanding, ..ClientOptions::default() };
    let mut client = Client::connect(socket, &options).unwrap();
    let submit = |client: &mut Client, slot: u16| {
        let queue = client.queue(0);
        queue.submit(slot, Request::Read { offset: u64::from(slot) << 12, len: 4096 }).unwrap();
        queue.publish().unwrap();
        queue.kick().unwrap();
    };
    (0..outstanding).for_each(|slot| submit(&mut client, slot));
    while !stop.load(Ordering::Relaxed) {
        for completion in client.wait(0, 1).unwrap() {
            answered.fetch_add(1, Ordering::Relaxed);
            submit(&mut client, completion.slot);
        }
    }
}
