//! Steps that tests count: accesses to memory that is probably not cached.
//!
//! The work per request must not grow with the length of a queue or with addresses that a guest chooses. Times do not
//! show that reliably, but a count does. Code that walks over entries calls [`step`], which does nothing outside of
//! tests.

#[cfg(test)]
thread_local! {
    static STEPS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// Counts one step.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// Returns the result of `work` and the number of its steps.
#[cfg(test)]
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = STEPS.with(core::cell::Cell::get);
    let result = work();
    (result, STEPS.with(core::cell::Cell::get) - before)
}

#[cfg(test)]
mod tests;
