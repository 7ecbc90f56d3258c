//! A measurement that depends on the machine alone, repeated in each round of a benchmark.
//!
//! Two threads pass a byte to and fro over a pair of sockets, as client and server do: each round trip has two wake-ups
//! and four system calls. On a quiet machine its time stays nearly the same. How far it strays says how far any other
//! figure of the same report may stray without a reason of its own.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Duration of one measurement.
const TIME: Duration = Duration::from_millis(20);

/// Returns the mean time of a round trip in microseconds, or NaN if there are no sockets.
pub(super) fn round_trip_us() -> f64 {
    let Ok((mut own, mut other)) = UnixStream::pair() else { return f64::NAN };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            while other.read_exact(&mut byte).is_ok() && other.write_all(&byte).is_ok() {}
        });
        let (begin, mut trips, mut byte) = (Instant::now(), 0_u32, [0]);
        while begin.elapsed() < TIME {
            if own.write_all(&byte).is_err() || own.read_exact(&mut byte).is_err() {
                return f64::NAN;
            }
            trips += 1;
        }
        // The other thread ends when this socket is closed.
        drop(own);
        begin.elapsed().as_secs_f64() * 1e6 / f64::from(trips)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_takes_time_and_ends() {
        assert!(round_trip_us() > 0.1);
    }
}
