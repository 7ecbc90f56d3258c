//! A scheduler and its oracle behind one gate: both get the same calls, and every result must be the same.

use sluice_sched::scheduler::{Change, ChangeError, Decision, Scheduler, State};
use sluice_sched::*;

/// Both together. The reason for waiting is not compared.
pub struct Twin {
    pub fast: Box<dyn Scheduler>,
    pub oracle: Box<dyn Scheduler>,
    decisions: u64,
}

pub fn twin(fast: Box<dyn Scheduler>, oracle: Box<dyn Scheduler>) -> Box<dyn Scheduler> {
    Box::new(Twin { fast, oracle, decisions: 0 })
}

impl Scheduler for Twin {
    fn insert(&mut self, now: Instant, request: Request) {
        self.fast.insert(now, request);
        self.oracle.insert(now, request);
    }

    fn grow(&mut self, now: Instant, grown: Request) -> bool {
        let fast = self.fast.grow(now, grown);
        assert_eq!(fast, self.oracle.grow(now, grown), "growing {grown:?}");
        fast
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        let fast = self.fast.dispatch(now);
        let due = self.oracle.dispatch(now);
        let comparable = match fast {
            Decision::Dispatch(request) => Decision::Dispatch(Request { wait: Wait::None, ..request }),
            other => other,
        };
        assert_eq!(comparable, due, "decision {} at {now:?}: the fast one, then the oracle", self.decisions);
        self.decisions += 1;
        fast
    }

    fn complete(&mut self, now: Instant, completion: &Completion) {
        self.fast.complete(now, completion);
        self.oracle.complete(now, completion);
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        self.oracle.configure(now, change)?;
        self.fast.configure(now, change)
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        let mut expected = Vec::new();
        self.oracle.cancel(now, scope, &mut expected);
        self.fast.cancel(now, scope, removed);
        let ids = |requests: &[Request]| {
            let mut ids: Vec<RequestId> = requests.iter().map(|request| request.id).collect();
            ids.sort();
            ids
        };
        assert_eq!(ids(removed), ids(&expected), "cancelled requests");
    }

    fn inspect(&self, now: Instant) -> State {
        self.fast.inspect(now)
    }
}
