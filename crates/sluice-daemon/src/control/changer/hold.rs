//! Volumes that a change holds back: they may not be served as they are, until the file is corrected or `--force` names them.

use std::collections::BTreeMap;

use sluice_api::object::ObjectId;

use super::{Attempt, Kind, Thread};

impl Thread {
    /// Returns what is held back when this attempt is in force. A start and a reload look at all of it again.
    pub(super) fn held_with(&self, attempt: &Attempt) -> BTreeMap<ObjectId, String> {
        let mut held = match attempt.kind {
            Kind::Start(_) | Kind::Reload(_) => BTreeMap::new(),
            Kind::Change(_) | Kind::Retry(_) | Kind::Expire(_) => self.server.held.clone(),
        };
        held.extend(attempt.held.clone());
        held
    }

    /// Holds volumes back whose source or offset differs from when they were last served, or that are smaller.
    pub(super) fn hold(&mut self, mut attempt: Attempt, held: BTreeMap<ObjectId, String>) {
        if let (Kind::Change(_), Some((name, how))) = (&attempt.kind, held.first_key_value()) {
            let error = format!(
                "{name} is held back: {how}; correct the change or restore the source, or accept it with --force {name}"
            );
            return self.refuse(attempt, &error);
        }
        let new = held.into_iter().map(|(name, how)| {
            let reason = format!(
                "{how}; correct the file or restore the source, and reload, or accept it with `sluice apply FILE --force {name}`"
            );
            (name, reason)
        });
        let new: Vec<_> = new.collect();
        for (name, reason) in &new {
            let (vm, volume) = name.parts();
            tracing::error!(
                vm,
                volume = &*volume,
                reason,
                "Volume held back: its source or offset differs from when it was last served, or it is smaller"
            );
        }
        attempt.held.extend(new);
        self.advance(attempt);
    }
}
