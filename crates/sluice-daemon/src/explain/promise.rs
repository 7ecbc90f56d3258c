//! Promises in words.

use sluice_api::amount::span;
use sluice_api::event::{EventKind, Unit};
use sluice_api::status::{Promise, State};

/// The mark of a VM, volume or device in a table.
pub fn mark(state: State) -> &'static str {
    match state {
        State::Broken => "BROKEN",
        State::Kept => "kept",
        State::NotAsked => "idle",
        State::Unknown => "unknown",
        State::None => "-",
    }
}

/// A broken promise in a sentence.
pub fn sentence(name: &str, promise: &Promise) -> String {
    let amount = |amount: Option<f64>| promise.unit.unwrap_or(Unit::Unknown).show(amount.unwrap_or(0.0));
    let (wanted, got) = (amount(promise.wanted), amount(promise.got));
    let since = promise.for_seconds.map_or(String::new(), |seconds| format!(" for {}", span(seconds)));
    let cause = promise.cause.unwrap_or_default().in_words();
    match promise.kind {
        EventKind::Latency => {
            format!(
                "{name}: {got} of the requests take longer than the target, which allows {wanted},{since}; cause: {cause}"
            )
        }
        _ => format!("{name}: gets {got} of the {wanted} that it has reserved and asks for,{since}; cause: {cause}"),
    }
}

/// The broken promises among some, each in a sentence.
pub fn broken(name: &str, promises: &[Promise]) -> Vec<String> {
    let broken = promises.iter().filter(|promise| promise.state == State::Broken);
    broken.map(|promise| sentence(name, promise)).collect()
}
