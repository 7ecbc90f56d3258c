//! Independent runs in parallel.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::figure::LabError;

/// Called after each run with the number of completed runs and their total.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Results of `jobs` in their order, with `threads` of them concurrently.
///
/// # Errors
/// Of the jobs that failed, the error of the first one in order; no further jobs are started after it.
pub(crate) fn each<J: Sync, T: Send>(
    jobs: &[J],
    threads: usize,
    progress: Progress<'_>,
    work: impl Fn(&J) -> Result<T, LabError> + Sync,
) -> Result<Vec<T>, LabError> {
    let (next, over) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(number) else { break };
                    let result = work(job);
                    if result.is_err() {
                        next.store(jobs.len(), Ordering::Relaxed);
                    }
                    // Results of other threads stay valid if one has panicked.
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
                    progress(over.fetch_add(1, Ordering::Relaxed) + 1, jobs.len());
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_unstable_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_order_of_the_jobs_and_the_first_error_is_returned() {
        let jobs: Vec<usize> = (0..100).collect();
        for threads in [0, 1, 3, 1000] {
            let started = AtomicUsize::new(0);
            let progress = |_: usize, of: usize| {
                assert_eq!(of, 100);
                started.fetch_add(1, Ordering::Relaxed);
            };
            let squares = each(&jobs, threads, &progress, |job| Ok(job * job)).unwrap();
            assert!(squares.iter().enumerate().all(|(job, square)| *square == job * job) && squares.len() == 100);
            assert_eq!(started.into_inner(), 100);
        }
        let begun = AtomicUsize::new(0);
        let error = each(&jobs, 1, &|_, _| {}, |job| {
            begun.fetch_add(1, Ordering::Relaxed);
            if *job < 7 { Ok(()) } else { Err(LabError::Refused(format!("job {job}"))) }
        });
        assert_eq!((error.unwrap_err().to_string(), begun.into_inner()), ("job 7".to_owned(), 8));
        assert_eq!(each(&[], 4, &|_, _| {}, |job: &usize| Ok(*job)).unwrap(), [0usize; 0]);
    }
}
