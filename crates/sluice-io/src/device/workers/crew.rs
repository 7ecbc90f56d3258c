//! The threads of a device: the first, which is supervised and gets the messages of the control plane, and the others, which it
//! starts and ends.
//!
//! If one of them fails, the first one fails too, and the device is restarted as a whole.

use std::io;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use sluice_sched::Gate;

use crate::backend::delay::{Delay, Servers};
use crate::backend::sync::Files;
use crate::clock::Clock;
use crate::device::blocking;
use crate::device::event_loop::{Loop, Parts};
use crate::device::machine::{self, Machine};
use crate::device::mailbox::{Inbox, Mailbox};
use crate::device::message::Message;
use crate::device::panics;
use crate::device::priority;
use crate::device::probe::Pulse;
use crate::device::spec::{ClientSnapshot, DeviceSpec, Edit, EditError};
use crate::device::supervisor::{drain_and_drop, set_timer_slack};
use crate::device::workers::changes::Tape;
use crate::device::workers::gateway::Gateway;
use crate::device::workers::hub::{Combined, Hub, Seat};
use crate::device::workers::joint::Part;
use crate::device::workers::lane::lane;
use crate::device::workers::port::Port;
use crate::device::workers::token::WORKERS_MAX;

/// Records between a worker and the gate, in each direction. What has no room waits.
const LANE_LENGTH: usize = if cfg!(test) { 16 } else { 1024 };

/// The specification of a device and the mailboxes of its threads, from which a start and each restart build the threads.
pub(crate) struct Plan {
    pub(crate) spec: DeviceSpec,
    /// Mailboxes of all threads, in the order of their numbers.
    mailboxes: Vec<Mailbox>,
    /// Inboxes, in the same order. A running thread has taken its own; the first one's is never here.
    inboxes: Mutex<Vec<Option<Inbox>>>,
}

/// A message of the first thread of a device to the others.
pub(crate) enum WorkerMessage {
    Change(Box<Change>),
    Clients(Part<Vec<ClientSnapshot>>),
    Probe(Part<Pulse>),
}

/// A change that the first thread has made.
#[derive(Clone)]
pub(crate) struct Change {
    pub(crate) edit: Edit,
    pub(crate) tape: Tape,
    /// Restarts of the device before it. One from before a restart has been made.
    pub(crate) restarts: u64,
    /// Done when it has been made; `None` during a start.
    pub(crate) reply: Option<Part<Result<(), EditError>>>,
}

/// The channel on which a thread waits before it begins, and the changes that it gets there.
type Early = (Sender<Vec<Change>>, Vec<Change>);

/// The other threads, as the first one sees them.
pub(crate) struct Others {
    mailboxes: Vec<Mailbox>,
    /// Until they begin: changes that they make before anything else.
    early: Option<Vec<Early>>,
}

/// Threads that work for the first thread of a device.
pub(crate) struct Helpers {
    blocking: blocking::Helper,
    others: Option<(Arc<Hub>, Vec<JoinHandle<()>>)>,
}

impl Plan {
    /// Checks the number of threads.
    pub(crate) fn new(spec: DeviceSpec, first: Mailbox) -> io::Result<Plan> {
        let wrong = match spec.threads {
            0 | 1 => None,
            threads if threads > WORKERS_MAX => Some("A device has at most 16 threads"),
            _ if spec.gate.merging => Some("A device with several threads does not merge requests"),
            _ if spec.model.is_some() => Some("A device with several threads has no model"),
            _ => None,
        };
        if let Some(wrong) = wrong {
            return Err(io::Error::other(wrong));
        }
        let (mut mailboxes, mut inboxes) = (vec![first], vec![None]);
        for _ in 1..spec.threads {
            let (mailbox, inbox) = crate::device::mailbox::mailbox()?;
            mailboxes.push(mailbox);
            inboxes.push(Some(inbox));
        }
        Ok(Plan { spec, mailboxes, inboxes: Mutex::new(inboxes) })
    }

    /// Returns the mailboxes of all threads.
    pub(crate) fn mailboxes(&self) -> &[Mailbox] {
        &self.mailboxes
    }

    fn take_inbox(&self, worker: usize) -> Option<Inbox> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)[worker].take()
    }

    fn return_inbox(&self, worker: usize, inbox: Inbox) {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)[worker] = Some(inbox);
    }
}

impl Others {
    /// Passes a change on.
    pub(crate) fn change(&mut self, change: &Change) {
        match &mut self.early {
            Some(early) => early.iter_mut().for_each(|(_, changes)| changes.push(change.clone())),
            None => self.send(|| Message::Worker(WorkerMessage::Change(Box::new(change.clone())))),
        }
    }

    pub(crate) fn send(&self, message: impl Fn() -> Message) {
        for mailbox in &self.mailboxes {
            let _ = mailbox.send(message());
        }
    }

    /// Lets them begin, once.
    pub(crate) fn begin(&mut self) {
        for (sender, changes) in self.early.take().into_iter().flatten() {
            let _ = sender.send(changes);
        }
    }
}

impl machine::Helper for Helpers {
    fn end(mut self, device: &str) {
        self.end_others();
        self.blocking.end(device);
    }

    fn keep(mut self, device: &str) {
        self.end_others();
        self.blocking.keep(device);
    }
}

impl Helpers {
    /// Waits for the others, which wait for the kernel to finish their requests.
    fn end_others(&mut self) {
        if let Some((hub, threads)) = self.others.take() {
            Helpers::end_threads(&hub, threads);
        }
    }

    fn end_threads(hub: &Hub, threads: Threads) {
        hub.end();
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Builds the loop of the first thread, and starts the others. They wait until the first one begins.
pub(crate) fn build(plan: &Arc<Plan>, mailbox: &Mailbox, restarts: u64) -> io::Result<(Loop, Helpers)> {
    let spec = &plan.spec;
    let scheduler = spec.scheduler.build().map_err(io::Error::other)?;
    let gate = Gate::new(scheduler, spec.gate);
    let delay = Loop::delay(spec)?;
    let (clock, files) = (Clock::start(), Files::new());
    if plan.mailboxes.len() == 1 {
        let parts = Parts { gate: Gateway::Own(gate), delay, clock, files };
        let (first, blocking) = Loop::assemble(spec, mailbox, restarts, parts)?;
        return Ok((first, Helpers { blocking, others: None }));
    }
    let ports = ports(plan, gate, delay.map(Delay::into_servers))?;
    let hub = Arc::clone(ports[0].hub());
    let started = start_others(plan, ports, (clock, &files), restarts);
    let (first, begins, threads) = match started {
        Ok(started) => started,
        Err((error, threads)) => {
            Helpers::end_threads(&hub, threads);
            return Err(error);
        }
    };
    let parts = Parts { gate: Gateway::Shared(Box::new(first)), delay: Loop::held_delay(spec)?, clock, files };
    match Loop::assemble(spec, mailbox, restarts, parts) {
        Ok((mut first, blocking)) => {
            let early = begins.into_iter().map(|begin| (begin, Vec::new())).collect();
            first.others = Some(Others { mailboxes: plan.mailboxes[1..].to_vec(), early: Some(early) });
            Ok((first, Helpers { blocking, others: Some((hub, threads)) }))
        }
        Err(error) => {
            drop(begins);
            Helpers::end_threads(&hub, threads);
            Err(error)
        }
    }
}

/// Creates the shared gate, and the end of each worker.
fn ports(plan: &Plan, gate: Gate, delay: Option<Servers>) -> io::Result<Vec<Port>> {
    let settings = *gate.settings();
    let (mut outer, mut outboxes, mut inboxes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in &plan.mailboxes {
        let (outbox, drained) = lane(LANE_LENGTH);
        let (filled, inbox) = lane(LANE_LENGTH);
        outer.push((outbox, inbox));
        outboxes.push(drained);
        inboxes.push(filled);
    }
    let seats = plan.mailboxes.iter().map(|mailbox| Seat::new(mailbox.clone())).collect();
    let hub = Arc::new(Hub::new(Combined::new(gate, delay, outboxes, inboxes), seats));
    let ports = (0u8..).zip(outer);
    let ports = ports.map(|(worker, (outbox, inbox))| Port::new((Arc::clone(&hub), worker), outbox, inbox, settings));
    Ok(ports.collect())
}

type Begins = Vec<Sender<Vec<Change>>>;
type Threads = Vec<JoinHandle<()>>;

/// Starts all threads but the first. Returns the first one's end of the gate.
fn start_others(
    plan: &Arc<Plan>,
    ports: Vec<Port>,
    (clock, files): (Clock, &Files),
    restarts: u64,
) -> Result<(Port, Begins, Threads), (io::Error, Threads)> {
    let (mut begins, mut threads) = (Vec::new(), Vec::new());
    let (ready, is_ready) = channel();
    let mut ports = ports.into_iter();
    let first = ports.next().expect("there is a first worker");
    for port in ports {
        let (begin, begins_with) = channel();
        let worker = Worker {
            plan: Arc::clone(plan),
            number: usize::from(port.worker()),
            files: files.of_worker(port.worker()),
            port,
            clock,
            restarts,
        };
        let name = format!("dev-{}/{}", plan.spec.name, worker.number);
        let ready = ready.clone();
        match thread::Builder::new().name(name).spawn(move || worker.run(&ready, &begins_with)) {
            Ok(thread) => threads.push(thread),
            Err(error) => return Err((error, threads)),
        }
        begins.push(begin);
    }
    drop(ready);
    for _ in &threads {
        let report = is_ready.recv().unwrap_or_else(|_| Err(io::Error::other("A thread of the device has ended")));
        if let Err(error) = report {
            return Err((error, threads));
        }
    }
    Ok((first, begins, threads))
}

/// What another thread is started with.
struct Worker {
    plan: Arc<Plan>,
    number: usize,
    port: Port,
    clock: Clock,
    files: Files,
    restarts: u64,
}

impl Worker {
    fn run(self, ready: &Sender<io::Result<()>>, begins_with: &Receiver<Vec<Change>>) {
        set_timer_slack();
        priority::start(&self.plan.spec.name);
        let Worker { plan, number, port, clock, files, restarts } = self;
        let Some(mut inbox) = plan.take_inbox(number) else { return };
        let (device, mailbox, hub) = (&plan.spec.name, &plan.mailboxes[number], Arc::clone(port.hub()));
        let built = Loop::held_delay(&plan.spec).and_then(|delay| {
            let parts = Parts { gate: Gateway::Shared(Box::new(port)), delay, clock, files };
            Loop::assemble(&plan.spec, mailbox, restarts, parts)
        });
        match built {
            Err(error) => drop(ready.send(Err(error))),
            Ok((state, helper)) => {
                let _ = ready.send(Ok(()));
                // Only `drain_and_drop` may free it, because the kernel may still write to its memory.
                let mut state = ManuallyDrop::new(state);
                if let Ok(changes) = begins_with.recv() {
                    // Messages from before a restart may have been signalled already.
                    mailbox.wake();
                    let end = catch_unwind(AssertUnwindSafe(|| {
                        state.begin(changes);
                        state.run(&mut inbox)
                    }));
                    report_end(device, &hub, number, end);
                }
                drain_and_drop(device, state, mailbox, helper);
            }
        }
        plan.return_inbox(number, inbox);
    }
}

/// Tells the first thread how another one has ended.
fn report_end(device: &str, hub: &Hub, number: usize, end: thread::Result<io::Result<()>>) {
    match end {
        Ok(Ok(())) => hub.has_ended(number),
        Ok(Err(error)) => {
            tracing::error!(device, %error, "Device thread failed: restarting the threads of the device");
            hub.has_failed(error.to_string());
        }
        Err(payload) => {
            let panic = panics::describe(&*payload);
            tracing::error!(device, panic, "Device thread panicked: restarting the threads of the device");
            hub.has_failed(panic);
        }
    }
}
