//! Tokens of requests at a gate that several workers share: the number of the worker, and the request in its table.

/// Bits for the index of a request.
const INDEX_BITS: u32 = 27;
/// Set if nothing is done at the device for a request: it is a query, or was refused.
const IS_IDLE: u32 = 1 << INDEX_BITS;
const WORKER_SHIFT: u32 = INDEX_BITS + 1;

/// Maximum number of workers.
pub(crate) const WORKERS_MAX: u32 = 1 << (u32::BITS - WORKER_SHIFT);

/// Returns the token of a request.
///
/// # Panics
/// If the table has more than 134 million requests, which no window allows.
pub(crate) fn pack(worker: u8, index: u32, occupies_device: bool) -> u32 {
    assert!(index < IS_IDLE && u32::from(worker) < WORKERS_MAX, "a token has room for the worker and the request");
    u32::from(worker) << WORKER_SHIFT | index | if occupies_device { 0 } else { IS_IDLE }
}

/// Returns the worker, and the request in its table.
pub(crate) fn split(token: u32) -> (u8, u32) {
    ((token >> WORKER_SHIFT) as u8, token & (IS_IDLE - 1))
}

/// Whether something is done at the device for a request.
pub(crate) fn occupies_device(token: u32) -> bool {
    token & IS_IDLE == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_holds_the_worker_and_the_request() {
        for (worker, index, occupies) in [(0, 0, true), (15, IS_IDLE - 1, false), (3, 77, true), (15, 0, true)] {
            let token = pack(worker, index, occupies);
            assert_eq!((split(token), occupies_device(token)), ((worker, index), occupies));
        }
        assert_eq!(WORKERS_MAX, 16);
    }
}
