//! Names of the users who change something.
//!
//! The host's user database may be at a server that is slow, or does not respond. So a thread looks a name up, which is known for a minute
//! then. Until it has replied no further one is looked up: a user whose name is not found in time is told by number.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use sluice_io::users;

/// Maximum time for one name.
const LOOKUP_MAX: Duration = Duration::from_secs(1);

/// Time for which a name is known, and the maximum number of known ones.
const KNOWN_FOR: Duration = Duration::from_secs(60);
const KNOWN_MAX: usize = 64;

/// Looks names up.
#[derive(Default)]
pub(super) struct Names {
    known: BTreeMap<u32, (String, Instant)>,
    /// A lookup that has taken too long.
    late: Option<Receiver<Option<String>>>,
}

impl Names {
    /// The name of a user at `now`, or else the number.
    pub(super) fn of(&mut self, uid: u32, now: Instant) -> String {
        self.known.retain(|_, (_, since)| now < *since + KNOWN_FOR);
        if let Some((name, _)) = self.known.get(&uid) {
            return name.clone();
        }
        let name = self.look_up(move || users::name_of(uid)).unwrap_or_else(|| format!("uid {uid}"));
        if self.known.len() < KNOWN_MAX {
            self.known.insert(uid, (name.clone(), now));
        }
        name
    }

    fn look_up(&mut self, name: impl FnOnce() -> Option<String> + Send + 'static) -> Option<String> {
        match &self.late {
            Some(late) if late.try_recv() == Err(TryRecvError::Empty) => return None,
            _ => self.late = None,
        }
        let (reply, found) = sync_channel(1);
        thread::Builder::new().name("user-name".to_owned()).spawn(move || drop(reply.send(name()))).ok()?;
        found.recv_timeout(LOOKUP_MAX).unwrap_or_else(|_| {
            self.late = Some(found);
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_database_that_hung_held_up_all_events() {
        let mut names = Names::default();
        let (go_on, hangs) = sync_channel::<()>(0);
        assert_eq!(names.look_up(move || hangs.recv().ok().map(|()| "late".to_owned())), None);
        assert_eq!(names.look_up(|| panic!("nothing is looked up meanwhile")), None);
        go_on.send(()).unwrap();
        while names.look_up(|| Some("root".to_owned())).is_none() {
            thread::yield_now();
        }
        let now = Instant::now();
        assert_eq!(names.of(0, now), "root");
        assert_eq!(names.of(4_000_000_000, now), "uid 4000000000");
        assert_eq!(names.known.len(), 2);
        names.of(0, now + KNOWN_FOR);
        assert_eq!(names.known.len(), 1, "it is looked up again");
    }
}
