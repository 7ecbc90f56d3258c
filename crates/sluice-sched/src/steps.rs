//! Steps that tests count: looks at a place in memory that is not known to be at hand.
//!
//! What a request costs must not grow with the length of a queue, nor with addresses that a guest chooses; time does not
//! show that reliably, a count does. Whatever walks calls [`step`], which is nothing outside of tests.

#[cfg(test)]
thread_local! {
    static STEPS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// One look.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// How many looks `work` takes.
#[cfg(test)]
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = STEPS.with(core::cell::Cell::get);
    let result = work();
    (result, STEPS.with(core::cell::Cell::get) - before)
}

#[cfg(test)]
mod tests;
