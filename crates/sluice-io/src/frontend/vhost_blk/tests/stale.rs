//! Messages of sessions that have ended, which arrive when their index belongs to another VMM.

use super::*;

/// Number of repetitions of the race.
const TIMES: u64 = 1000;

impl Bench {
    fn remove_volume(&self, name: &str) {
        let (vm, volume) = ("vm".to_owned(), name.to_owned());
        self.device.edit(vec![Edit::RemoveVolume { vm, volume }]).unwrap();
    }

    fn stale_messages(&self) -> u64 {
        self.device.snapshot().unwrap().stale_messages
    }

    /// Sends every kind of message for a session. Returns the number of messages, all of which must be ignored.
    fn is_refused_everything(&self, session: &SessionHandle) -> u64 {
        let driver = Driver { features: 0, write_back: false };
        self.runtime.block_on(async {
            let answers = [
                session.start_queue(queue_spec(doorbell()), memory(), driver).await.map(|_| ()),
                session.stop_queue(0).await.map(|_| ()),
                session.enable_queue(0, false).await,
                session.set_call(0, Some(Arc::new(doorbell()))).await,
                session.set_memory(memory()).await,
                session.set_driver(driver).await,
            ];
            for answer in &answers {
                assert!(matches!(answer, Err(SessionError::Gone(..))), "{answers:?}");
            }
            answers.len() as u64
        })
    }
}

#[test]
fn a_vmm_that_connected_before_its_volume_was_replaced_opened_the_new_disk() {
    let bench = null(64);
    let old = VolumeGeneration::next();
    assert!(matches!(bench.open_generation("disk", old), Err(SessionError::Gone(..))));
    drop(bench.open());
}

#[test]
fn an_ended_session_changed_the_queue_of_the_one_with_its_index() {
    let bench = null(64);
    let mut next = 0;
    let mut refused = 0;
    for round in 0..TIMES {
        bench.add_volume("dead");
        let dead = bench.session_of("dead");
        bench.remove_volume("dead");
        let session = bench.open();
        let mut guest = bench.start_at(&session, next);
        refused += bench.is_refused_everything(&dead);
        if round % 2 == 0 {
            drop(dead);
        } else {
            bench.runtime.block_on(dead.close());
        }
        refused += 1;
        assert_eq!(guest.ask(1, 0, 8, 4096).0, 0, "round {round}");
        next = guest.available;
        assert_eq!(bench.runtime.block_on(session.stop_queue(0)), Ok(next), "the queue is unchanged");
        bench.runtime.block_on(session.close());
    }
    assert_eq!(bench.stale_messages(), refused);
    assert_eq!(bench.faults(), 0);
}

#[test]
fn a_restart_gave_the_indices_of_all_sessions_to_others() {
    let bench = null(64);
    let names: Vec<String> = (0..8).map(|number| format!("v{number}")).collect();
    names.iter().for_each(|name| bench.add_volume(name));
    let dead: Vec<SessionHandle> = names.iter().map(|name| bench.session_of(name)).collect();
    bench.device.mailbox.send(Message::Test(Fault::Panic)).unwrap();
    let session = bench.open();
    let _others: Vec<SessionHandle> = names.iter().map(|name| bench.session_of(name)).collect();
    let mut guest = bench.start(&session);
    let refused: u64 = dead.iter().map(|dead| bench.is_refused_everything(dead)).sum();
    assert_eq!(guest.ask(1, 0, 8, 4096).0, 0);
    assert_eq!(bench.stale_messages(), refused);
}
