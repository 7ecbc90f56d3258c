//! Volumes that store nothing: reads return zeroes, and every operation ends immediately. For measurements.

use sluice_sched::Instant;

use crate::source::{Allocation, Span};
use crate::store::file::jobs::Jobs;
use crate::store::{
    AllocationQuery, Answer, Context, Done, Label, Op, OpIndex, Open, Store, StoreInfo, StoreNumber, StoreRef,
    StoreSpec, Volumes, Zeroing,
};

static INFO: StoreInfo =
    StoreInfo { memory: None, buffered: false, bridged: None, zeroing: (Zeroing::Cheap, Zeroing::Cheap) };

/// All volumes are alike.
#[derive(Default)]
pub(crate) struct Null {
    done: Vec<OpIndex>,
}

impl Store for Null {
    fn info(&self, _volume: StoreRef) -> &StoreInfo {
        &INFO
    }

    fn start(&mut self, _context: &mut Context<'_>, op: &Op<'_>) {
        self.done.push(op.index);
    }

    fn next_done(&mut self, _now: Instant) -> Option<(OpIndex, Done)> {
        Some((self.done.pop()?, Done::Ok))
    }
}

impl Volumes for Null {
    fn close(&mut self, _volume: u32, _jobs: &Jobs) {}

    fn describe(&self, _volume: u32) -> StoreSpec {
        StoreSpec::Null
    }

    fn allocation(&self, _volume: u32, query: &AllocationQuery, _jobs: &Jobs) -> Answer {
        Answer::Known(vec![Span { length: query.part.length, kind: Allocation::Hole }])
    }
}

impl Open for Null {
    type Spec = ();

    fn new(_kind: StoreNumber) -> Self {
        Null::default()
    }

    fn open(&mut self, _now: Instant, _label: Label, (): ()) -> u32 {
        0
    }

    fn replace(&mut self, _volume: u32, (): ()) {}
}
