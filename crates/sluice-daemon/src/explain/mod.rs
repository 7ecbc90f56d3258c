//! What is so, in words: the same for the command line, for the page and for programs.
//!
//! | file | contents |
//! |---|---|
//! | `why` | what is so of a VM, what was, and what would help |
//! | `advice` | what would help, by cause and policies |
//! | `promise`, `shares`, `outstanding` | a promise, the parts of VMs in a device, and the requests that a reservation needs |

use sluice_api::event::Event;
use sluice_api::status::{Failing, Vm};

use crate::state::time::Time;

mod advice;
pub mod outstanding;
pub mod promise;
pub mod shares;
pub mod why;

/// An event in one line.
#[must_use]
pub fn sentence(event: &Event) -> String {
    format!("{}  {}", Time(event.time), event.text)
}

/// The neighbours that were served meanwhile, largest first.
#[must_use]
pub fn neighbours(event: &Event) -> Option<String> {
    shares::in_words(&event.neighbours)
}

/// What fails now, each of a volume, if it is one of several.
pub fn failing<'a>(all: impl Iterator<Item = (Option<&'a str>, &'a Failing)>) -> Vec<String> {
    let line = |(volume, failing): (Option<&str>, &Failing)| {
        let volume = volume.map_or_else(String::new, |volume| format!(", volume {volume}"));
        format!("FAILING now{volume}: {}", failing.text)
    };
    all.map(line).collect()
}

/// What fails now of a VM.
pub fn failing_of(vm: &Vm) -> impl Iterator<Item = (Option<&str>, &Failing)> {
    vm.volumes.iter().flat_map(|volume| volume.failing.iter().map(|failing| (Some(volume.volume.as_str()), failing)))
}
