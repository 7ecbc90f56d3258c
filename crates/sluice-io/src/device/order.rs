//! The steps of an iteration in the order in which they were done, for tests of that order.

use std::cell::RefCell;

/// A step of an iteration of the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Queues are polled.
    Poll,
    /// An operation of the disk is reported to the gate.
    Complete,
    /// The requests of a volume whose clients have gone are cancelled.
    Cancel,
    /// Requests that waited for blocks go to the gate.
    Cross,
    /// A request goes to the gate again.
    Continue,
    /// A request is given back to its frontend.
    Reply,
    /// Guests that poll see what was given back.
    Publish,
    /// Clients are served that waited for requests of an earlier one.
    Admit,
    /// A client is served that waited for room.
    Serve,
    /// The gate dispatches.
    Dispatch,
    /// Replies and interrupts are sent.
    End,
}

thread_local! {
    static STEPS: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn note(step: Step) {
    STEPS.with_borrow_mut(|steps| steps.push(step));
}

/// Returns the steps of this thread since the last call.
pub(crate) fn take() -> Vec<Step> {
    STEPS.take()
}
