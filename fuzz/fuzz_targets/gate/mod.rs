//! The runs of the target, and their shared parts.

mod fairness;
mod free;
mod input;
mod ledger;
mod meters;
mod model;
mod policies;
mod regular;
mod subject;
mod watched;
mod world;

use std::sync::OnceLock;

use input::Input;

/// Runs an input twice; both runs must do the same.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let run: fn(Input<'_>, bool) -> Vec<world::Event> = match input.byte() % 8 {
        6 | 7 => regular::run,
        _ => free::run,
    };
    let first = run(input, is_printing());
    let second = run(input, false);
    for (place, (first, second)) in first.iter().zip(&second).enumerate() {
        assert_eq!(first, second, "S4: event {place} of the second run is another one");
    }
    assert_eq!(first.len(), second.len(), "S4: the second run has another number of events");
}

/// Whether actions are printed.
fn is_printing() -> bool {
    static PRINTING: OnceLock<bool> = OnceLock::new();
    *PRINTING.get_or_init(|| std::env::var_os("SLUICE_FUZZ_PRINT").is_some())
}
