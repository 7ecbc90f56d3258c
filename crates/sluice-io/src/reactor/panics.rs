//! Where and why a device thread has panicked, for its log line and its event.
//!
//! `catch_unwind` returns the message of a panic, but not its place. Only the panic hook of the process knows the place, so it
//! tells this module.

use std::any::Any;
use std::cell::Cell;
use std::panic::PanicHookInfo;

thread_local! {
    static PLACE: Cell<Option<String>> = const { Cell::new(None) };
}

/// Records where the calling thread panics. For the panic hook of the process; without it, the place stays unknown.
pub fn note(panic: &PanicHookInfo<'_>) {
    PLACE.set(panic.location().map(ToString::to_string));
}

/// Describes the panic that the calling thread has caught.
pub(crate) fn describe(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let message = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    match PLACE.take() {
        Some(place) => format!("panicked at {place}: {message}"),
        None => format!("panicked: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn a_caught_panic_is_described_by_its_place_and_its_message() {
        let caught = catch_unwind(|| panic!("of a test, number {}", 7)).unwrap_err();
        assert_eq!(describe(&*caught), "panicked: of a test, number 7");
        PLACE.set(Some("file.rs:3:5".to_owned()));
        let caught = catch_unwind(|| panic!("of a test")).unwrap_err();
        assert_eq!(describe(&*caught), "panicked at file.rs:3:5: of a test");
    }
}
