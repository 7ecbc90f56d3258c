//! Writes of the state: that of a change, of what is in force after one that failed, and of what is in force at the exit.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;

use super::helpers::PATH_TIMEOUT;
use super::shared::Shared;
use crate::state::Saved;
use crate::state::dropin::DropIn;
use crate::state::keeper::Keeper;
use crate::state::overrides::report_gone;

/// Interval between attempts to write a state that could not be written.
const REPEAT_EVERY: Duration = Duration::from_secs(10);
/// Interval between looks whether a write still hangs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum time for the last writes.
const LAST_WRITE_MAX: Duration = Duration::from_secs(1);

/// Writes a drop-in, and the state if the state directory has another one, or may have. Returns whether the state was written; `None`
/// if the daemon is exiting.
pub(super) async fn write(
    shared: &Shared,
    keeper: &mut Keeper,
    dropin: Option<DropIn>,
    saved: &Saved,
) -> Option<Result<bool, String>> {
    tokio::select! {
        biased;
        () = shared.exit() => None,
        written = keeper.save(dropin, saved, PATH_TIMEOUT) => Some(written),
    }
}

/// Takes back a drop-in whose change is not in force, and writes the state that is.
pub(super) async fn write_in_force(shared: &Shared, keeper: &mut Keeper) {
    let saved = shared.in_force.borrow().state.saved.clone();
    match write(shared, keeper, None, &saved).await {
        None | Some(Ok(false)) => {}
        Some(Ok(true)) => tracing::info!("State directory is up to date again"),
        Some(Err(error)) => retry(shared, &error),
    }
}

/// Reports that the state in force could not be written, and repeats that later.
pub(super) fn retry(shared: &Shared, error: &str) {
    tracing::error!(error, "Cannot write the state directory: its content differs from the changes in force; retrying");
    shared.tasks.unsaved.notify_one();
}

/// Writes the state in force again after it could not be written. Ends never.
pub(super) async fn repeat(shared: Rc<Shared>) -> u64 {
    loop {
        shared.tasks.unsaved.notified().await;
        let is_hung = shared.keeper.lock().await.hangs();
        sleep(if is_hung { LOOK_EVERY } else { REPEAT_EVERY }).await;
        let mut keeper = shared.keeper.lock().await;
        match keeper.hangs() {
            true => shared.tasks.unsaved.notify_one(),
            false => write_in_force(&shared, &mut keeper).await,
        }
    }
}

/// Writes the state for the next start. A change that is being saved is not made. `is_stop`: the daemon has not failed, so changes
/// until a restart end.
pub(super) async fn exit(shared: &Shared, is_stop: bool) {
    shared.tasks.exits.send_replace(true);
    let mut keeper = shared.keeper.lock().await;
    let saved = {
        let state = &mut shared.in_force.borrow_mut().state;
        if is_stop {
            report_gone(&state.saved.stop(&state.files));
        }
        state.saved.clone()
    };
    if let Err(error) = keeper.save_last(&saved, LAST_WRITE_MAX).await {
        tracing::error!(
            error,
            "Cannot write the state at exit: after the restart, changes made with --until-restart may still \
             be in force, and a drop-in may still have a refused change made with --persist"
        );
    }
}
