//! The order of work in an iteration of the loop. The loop runs on the test's thread, so that what clients send is there before an iteration
//! starts.

use std::mem::ManuallyDrop;

use sluice_sched::{Iops, Limit};

use super::*;
use crate::device::blocking;
use crate::device::order::{self, Step};
use crate::nbd::handshake::Negotiated;
use crate::reactor::event_loop::Reactor;
use crate::reactor::mailbox::{Inbox, mailbox};
use crate::reactor::supervisor::drain_and_drop;

const SIZE: u64 = 8 << 30;
/// An iteration in which there was nothing to do.
const NOTHING: [Step; 4] = [Step::Poll, Step::Publish, Step::Dispatch, Step::End];
const READ: (wire::Command, u32) = (wire::Command::Read, 4096);

/// A device without a thread.
struct Lab {
    built: Option<(ManuallyDrop<Reactor<Disk>>, blocking::Helper)>,
    mailbox: Mailbox<Disk>,
    inbox: Inbox<Disk>,
}

impl Lab {
    /// Creates a device with a VM, whose window has `requests`.
    fn new(delay: Option<DelaySpec>, policy: Policy, requests: u32, volumes: Vec<Edit>) -> Self {
        let (mailbox, inbox) = mailbox().unwrap();
        let (state, helper) = Reactor::build(&spec(delay), &mailbox, 0).unwrap();
        let mut lab = Lab { built: Some((ManuallyDrop::new(state), helper)), mailbox, inbox };
        let window = Window { requests, bytes: 32 << 20 };
        // An iteration never sleeps.
        let mut edits = vec![Edit::SetBusyPoll(true), Edit::AddVm { vm: "vm".to_owned(), policy, window }];
        edits.extend(volumes);
        let (reply, answer) = channel();
        lab.tell(Message::Edit(edits, reply));
        answer.recv().unwrap().unwrap();
        lab
    }

    /// Handles a message.
    fn tell(&mut self, message: Message<Disk>) {
        let state = &mut self.built.as_mut().unwrap().0;
        let now = state.actor.core.base.clock.now();
        state.message(now, message);
    }

    fn connect(&mut self, volume: &str) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let negotiated = Negotiated {
            export: "vm/disk".to_owned(),
            structured_replies: true,
            base_allocation: None,
            block_size_requested: false,
            gateway: None,
        };
        let arrived = Arrived {
            vm: "vm".to_owned(),
            volume: volume.to_owned(),
            generation: VolumeGeneration::default(),
            socket: theirs.into(),
            negotiated,
            offered: info(SIZE),
            peer: "test".to_owned(),
            permit: Box::new(()),
            handshake: Duration::ZERO,
        };
        self.tell(Message::Command(crate::frontend::nbd::Command::Connect(Box::new(arrived)).into()));
        // It is served at the end of an iteration.
        (0..2).for_each(|_| drop(self.iterate()));
        ours
    }

    /// Makes an iteration. Returns its steps, of which equal ones that follow each other are one.
    fn iterate(&mut self) -> Vec<Step> {
        order::take();
        let state = &mut self.built.as_mut().unwrap().0;
        state.iterate(&mut self.inbox, &mut Vec::new()).unwrap();
        let mut steps = order::take();
        steps.dedup();
        steps
    }

    /// Returns the steps of the next iteration in which there is something to do.
    fn next(&mut self) -> Vec<Step> {
        loop {
            let steps = self.iterate();
            if steps != NOTHING {
                return steps;
            }
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some((state, helper)) = self.built.take() {
            drain_and_drop("d", state, &self.mailbox, helper);
        }
    }
}

fn send(client: &mut UnixStream, requests: &[(wire::Command, u32)]) {
    let header = |(cookie, (command, length)): (usize, &(wire::Command, u32))| {
        RequestHeader { flags: 0, command: (*command).into(), cookie: cookie as u64, offset: 0, length: *length }
            .encode()
    };
    let bytes: Vec<u8> = requests.iter().enumerate().flat_map(header).collect();
    client.write_all(&bytes).unwrap();
}

fn null(name: &str) -> Edit {
    add_volume(name, VolumeGeneration::default(), StoreSpec::Null, SIZE)
}

#[test]
fn a_request_is_dispatched_completed_answered_and_shown_in_one_iteration() {
    use Step::*;
    let mut lab = Lab::new(None, Policy::default(), 64, vec![null("disk")]);
    let mut client = lab.connect("disk");
    send(&mut client, &[READ; 3]);
    assert_eq!(lab.next(), [Poll, Publish, Dispatch, Complete, Reply, Publish, Dispatch, End]);
}

/// The window of an NBD client opens when its replies have been sent.
#[test]
fn a_client_that_waited_for_room_is_served_before_the_gate_dispatches() {
    use Step::*;
    let mut lab = Lab::new(None, Policy::default(), 1, vec![null("disk")]);
    let mut client = lab.connect("disk");
    send(&mut client, &[READ; 2]);
    assert_eq!(lab.next(), [Poll, Publish, Dispatch, Complete, Reply, Publish, Dispatch, End]);
    assert_eq!(lab.next(), [Poll, Publish, Serve, Dispatch, Complete, Reply, Publish, Dispatch, End]);
}

#[test]
fn the_next_part_of_a_long_request_is_dispatched_in_the_same_iteration_up_to_a_bound() {
    use Step::*;
    let mut lab = Lab::new(None, Policy::default(), 64, vec![null("disk")]);
    let mut client = lab.connect("disk");
    send(&mut client, &[(wire::Command::WriteZeroes, 128 << 20)]);
    let first = [Poll, Publish, Dispatch, Complete, Continue, Publish, Dispatch];
    assert_eq!(lab.next(), [&first[..], &[Complete, Reply, Publish, Dispatch, End]].concat());
    send(&mut client, &[(wire::Command::WriteZeroes, u32::MAX - 511)]);
    let rounds = |steps: Vec<Step>| steps.into_iter().filter(|step| *step == Dispatch).count();
    let all: Vec<usize> = (0..10).map(|_| rounds(lab.iterate())).filter(|rounds| *rounds > 1).collect();
    assert_eq!(all, [16; 4], "64 parts");
}

#[test]
fn requests_of_a_client_that_has_gone_are_cancelled_before_the_next_client_is_served() {
    use Step::*;
    let limit = Limit { iops: Some(Iops::per_second(1)), bytes: None };
    let policy = Policy { limit, burst: Some(1), ..Policy::default() };
    let mut lab = Lab::new(None, policy, 1, vec![null("disk"), null("other")]);
    let (mut leaves, mut waits) = (lab.connect("disk"), lab.connect("other"));
    send(&mut leaves, &[READ; 2]);
    assert!(lab.next().contains(&Reply));
    assert!(lab.next().contains(&Serve), "its second request waits for the limit, and fills the window");
    send(&mut waits, &[READ]);
    lab.iterate();
    drop(leaves);
    assert_eq!(lab.next(), [Poll, Cancel, Reply, Publish, Serve, Dispatch, End]);
}

#[test]
fn a_client_is_admitted_after_the_requests_of_its_predecessor_are_given_back() {
    use Step::*;
    const LONG: Duration = Duration::from_secs(3600);
    let slow = DelaySpec { time: ServiceTime::Fixed(LONG), parallel: 1, bandwidth: None, seed: 1 };
    let mut lab = Lab::new(Some(slow), Policy::default(), 64, vec![null("disk")]);
    let mut leaves = lab.connect("disk");
    send(&mut leaves, &[READ]);
    lab.iterate();
    drop(leaves);
    let _comes = lab.connect("disk");
    lab.tell(Message::Test(Fault::Advance(LONG)));
    assert_eq!(lab.next(), [Poll, Complete, Reply, Publish, Admit, Dispatch, End]);
}

#[test]
fn a_write_that_waited_for_blocks_goes_to_the_gate_before_the_one_before_it_is_answered() {
    use Step::*;
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let spec = SourceSpec { buffered: true, ..SourceSpec::whole(file.path()) };
    let source = Arc::new(Source::open(&spec).unwrap().with_blocks(4096));
    let store = StoreSpec::File(FileSpec { source, extents: None });
    let volume = add_volume("disk", VolumeGeneration::default(), store, SIZE);
    let mut lab = Lab::new(None, Policy::default(), 64, vec![volume]);
    let mut client = lab.connect("disk");
    send(&mut client, &[(wire::Command::WriteZeroes, 512); 2]);
    let last = std::iter::from_fn(|| Some(lab.next())).find(|steps| steps.contains(&Cross)).unwrap();
    let at = |step: Step| last.iter().position(|known| *known == step);
    assert!(at(Complete) < at(Cross) && at(Cross) < at(Reply) && at(Reply) < at(End), "{last:?}");
}
