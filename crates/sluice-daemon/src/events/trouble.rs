//! Why the record is not kept, shared with those who answer for the daemon.

use std::sync::{Arc, Mutex, PoisonError};

use sluice_api::status::RecordTrouble;

use crate::state::time::Time;

/// Seconds without an answer of the thread after which its disk hangs: it answers a heartbeat every 5 s.
const HUNG: u64 = 15;

/// The state of the record.
#[derive(Clone, Default)]
pub(super) struct Trouble(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    trouble: Option<RecordTrouble>,
    /// Times of the last heartbeat that was sent and of the last one that was answered, in seconds since 1970.
    sent: u64,
    answered: u64,
}

impl Trouble {
    fn with<T>(&self, of: impl FnOnce(&mut Known) -> T) -> T {
        of(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that a heartbeat was sent.
    pub(super) fn sent(&self, time: u64) {
        self.with(|known| {
            known.sent = time;
            if known.answered == 0 {
                known.answered = time;
            }
        });
    }

    /// Notes that a heartbeat has arrived.
    pub(super) fn answered(&self, time: u64) {
        self.with(|known| known.answered = time);
    }

    /// Notes what is wrong now.
    pub(super) fn set(&self, text: Option<&str>) {
        self.with(|known| match (text, &mut known.trouble) {
            (None, trouble) => *trouble = None,
            (Some(text), Some(trouble)) if trouble.text == text => {}
            (Some(text), Some(trouble)) => trouble.text = text.to_owned(),
            (Some(text), trouble) => {
                *trouble = Some(RecordTrouble { since: Time::of_clock().0, text: text.to_owned() })
            }
        });
    }

    /// Returns why the record is not kept.
    pub(super) fn get(&self) -> Option<RecordTrouble> {
        self.with(|known| {
            let hung = || RecordTrouble {
                since: known.answered,
                text: "the disk of the state directory does not respond".to_owned(),
            };
            known.trouble.clone().or_else(|| (known.sent >= known.answered + HUNG).then(hung))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_was_not_kept_was_known_to_the_log_alone() {
        let trouble = Trouble::default();
        trouble.sent(100);
        assert_eq!(trouble.get(), None);
        trouble.set(Some("disk full"));
        trouble.set(Some("read-only"));
        assert_eq!(trouble.get().unwrap().text, "read-only");
        trouble.set(None);
        trouble.answered(100);
        (105..115).for_each(|time| trouble.sent(time));
        assert_eq!(trouble.get(), None);
        trouble.sent(115);
        assert_eq!(trouble.get().map(|trouble| trouble.since), Some(100), "it hangs");
        trouble.answered(115);
        assert_eq!(trouble.get(), None);
    }
}
