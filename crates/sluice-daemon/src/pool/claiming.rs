//! What this host has reserved of a pool: how its claim at the meeting place follows what it promises.
//!
//! A change that promises more asks first, and is refused if the claim is. What is in force already (at a start, or after the place was
//! away) is claimed as soon as that is possible. A claim that has become smaller is written at once.

use std::time::{Duration, Instant};

use sluice_pool::block::{self, BLOCKS, Claim, Header};
use sluice_pool::claims::{Claims, Refusal, place_of};
use sluice_pool::exchange::requests;
use tokio::sync::oneshot;

use super::helper::Request;

/// How often a claim is tried while others try too.
const TRIES: u32 = 6;
/// Bounds of the pause before it is tried again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(300));
/// Time between two attempts to claim what is in force.
const RETRY: Duration = Duration::from_secs(5);
/// Time in which a change comes into force after its claim was confirmed.
const KEPT: Duration = Duration::from_secs(30);

/// What a host promises its VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Promised {
    /// Raw cost per second.
    pub(crate) reserved: u64,
    /// Number of VMs that reserve.
    pub(crate) vms: u32,
}

/// The answer to a claim; the error is in words.
pub(crate) type Answer = oneshot::Sender<Result<(), String>>;

/// A step at the meeting place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimStep {
    /// Reads what this host has claimed before.
    Learn,
    /// Writes a claim that is tried.
    Try,
    /// Reads all claims after that.
    Judge,
    /// Writes that it is confirmed, withdrawn, or smaller.
    Settle,
}

/// What is needed to judge a claim.
pub(super) struct Rules<'a> {
    pub(super) header: &'a Header,
    /// What may be reserved, in raw cost per second.
    pub(super) most: u64,
    /// Why nothing more may be reserved now.
    pub(super) obstacle: Option<String>,
    /// Whether another daemon writes our blocks, so that its claim may stand there.
    pub(super) is_disputed: bool,
}

/// The claim of this host.
pub(super) struct Claiming {
    name: String,
    host: block::Host,
    epoch: u64,
    /// What was confirmed when that was last known.
    known: Promised,
    /// As last written and confirmed; `None` until it is known.
    confirmed: Option<Promised>,
    sequence: u64,
    /// What is in force; `None` before anything is.
    promised: Option<Promised>,
    /// What a change wants to promise.
    asked: Option<(Promised, Answer)>,
    /// The claim that is tried, and how often.
    trying: Option<(Claim, u32)>,
    /// What is confirmed when the present write has ended.
    settling: Option<Promised>,
    /// Blocks to be written again, because one of them says nothing or a claim that was only tried.
    rewrites: u32,
    not_before: Instant,
    /// Until then a confirmed claim stays although its change is not in force yet.
    kept_until: Instant,
    /// Why what is in force is not claimed.
    refusal: Option<String>,
}

impl Claiming {
    pub(super) fn new(now: Instant, host: block::Host, epoch: u64) -> Self {
        Claiming {
            name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            host,
            epoch,
            known: Promised::default(),
            confirmed: None,
            sequence: 0,
            promised: None,
            asked: None,
            trying: None,
            settling: None,
            rewrites: 0,
            not_before: now,
            kept_until: now,
            refusal: None,
        }
    }

    /// What is in force now.
    pub(super) fn promise(&mut self, now: Instant, promised: Option<Promised>) {
        self.kept_until = now;
        if promised != self.promised {
            (self.promised, self.not_before, self.refusal) = (promised, now, None);
        }
    }

    /// A change wants to promise this.
    pub(super) fn ask(&mut self, now: Instant, promised: Promised, answer: Answer) {
        if let Some((_, tries)) = &mut self.trying {
            *tries = 0;
        }
        self.asked = Some((promised, answer));
        self.not_before = now;
    }

    /// Why less is claimed than is promised, if it is.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// What was confirmed, in raw cost per second.
    pub(super) fn confirmed(&self) -> u64 {
        self.confirmed.unwrap_or(self.known).reserved
    }

    /// What is in force, or what was claimed before that.
    fn in_force(&self) -> Promised {
        self.promised.unwrap_or(self.known)
    }

    /// Whether more is claimed than is in force, as when the pool has left the host file.
    pub(super) fn has_too_much(&self) -> bool {
        self.confirmed() > self.in_force().reserved
    }

    /// Whether a confirmed claim waits for its change to come into force.
    fn is_kept(&self, now: Instant) -> bool {
        self.has_too_much() && now < self.kept_until
    }

    /// When there may be something to do without another event.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        if self.asked.is_some() || self.rewrites > 0 {
            return Some(self.not_before);
        }
        let is_open = self.promised.is_some() && self.promised != self.confirmed;
        is_open.then(|| if self.is_kept(now) { self.kept_until } else { self.not_before })
    }

    /// The place cannot be used now. What was written may be there or not.
    pub(super) fn interrupt(&mut self, now: Instant, why: &str) {
        self.learn_again();
        self.refuse(now, format!("the claim cannot be written: {why}"));
    }

    /// What stands at the place may have changed without this host.
    pub(super) fn learn_again(&mut self) {
        self.known = self.confirmed.unwrap_or(self.known);
        (self.confirmed, self.trying, self.settling) = (None, None, None);
    }

    fn refuse(&mut self, now: Instant, why: String) {
        self.not_before = now + RETRY;
        match self.asked.take() {
            Some((_, answer)) => drop(answer.send(Err(why))),
            None if self.in_force().reserved > self.confirmed() => self.refusal = Some(why),
            None => {}
        }
    }

    fn answer_asked(&mut self, now: Instant) {
        let confirmed = self.confirmed();
        if let Some((_, answer)) = self.asked.take_if(|(asked, _)| confirmed >= asked.reserved) {
            self.kept_until = now + KEPT;
            let _ = answer.send(Ok(()));
        }
        if confirmed >= self.in_force().reserved {
            self.refusal = None;
        }
    }

    /// The next request, when no other one is outstanding.
    pub(super) fn next(&mut self, now: Instant, rules: &Rules<'_>) -> Option<(Request, ClaimStep)> {
        // A change that has given up asks for nothing.
        self.asked.take_if(|(_, answer)| answer.is_closed());
        if now < self.not_before {
            return None;
        }
        if rules.is_disputed {
            // What stands in our blocks may be the other daemon's, and must stay.
            self.refuse(now, "another daemon has the number of this host".to_owned());
            return None;
        }
        let Some(confirmed) = self.confirmed else {
            return Some((Request::Read { first: 0, count: BLOCKS as u32 }, ClaimStep::Learn));
        };
        self.answer_asked(now);
        if self.rewrites > 0 {
            self.rewrites -= 1;
            return Some(self.settle(rules.header, confirmed));
        }
        let promised = self.in_force();
        let wanted = match &self.asked {
            Some((asked, _)) => *asked,
            None if promised == confirmed || self.is_kept(now) => return None,
            None => promised,
        };
        if wanted.reserved <= confirmed.reserved {
            return Some(self.settle(rules.header, wanted));
        }
        if let Some(obstacle) = &rules.obstacle {
            self.refuse(now, obstacle.clone());
            return None;
        }
        let claim = self.claim(rules.header, wanted, confirmed.reserved, true);
        let tries = self.trying.take().map_or(0, |(_, tries)| tries);
        let request = Claiming::write(&claim);
        self.trying = Some((claim, tries + 1));
        Some((request, ClaimStep::Try))
    }

    fn claim(&mut self, header: &Header, promised: Promised, before: u64, tried: bool) -> Claim {
        self.sequence = self.sequence.saturating_add(1);
        let Promised { reserved, vms } = promised;
        let (pool, host, epoch, sequence, name) =
            (header.pool, self.host, self.epoch, self.sequence, self.name.clone());
        Claim { pool, host, epoch, sequence, reserved, before, tried, name, vms }
    }

    fn write(claim: &Claim) -> Request {
        Request::Write { first: place_of(claim) as u32, bytes: block::encode(claim).to_vec() }
    }

    fn settle(&mut self, header: &Header, promised: Promised) -> (Request, ClaimStep) {
        let claim = self.claim(header, promised, promised.reserved, false);
        self.settling = Some(promised);
        (Claiming::write(&claim), ClaimStep::Settle)
    }

    /// Takes the result of a step. Returns the next request, if it follows at once.
    pub(super) fn replied(
        &mut self,
        now: Instant,
        step: ClaimStep,
        blocks: &[u8],
        rules: &Rules<'_>,
    ) -> Option<(Request, ClaimStep)> {
        match step {
            ClaimStep::Try => Some((Request::Read { first: 0, count: BLOCKS as u32 }, ClaimStep::Judge)),
            ClaimStep::Settle => {
                self.confirmed = self.settling.take();
                self.answer_asked(now);
                self.next(now, rules)
            }
            ClaimStep::Learn | ClaimStep::Judge if !rules.header.is_in(blocks) => {
                self.interrupt(now, "its header has changed");
                None
            }
            ClaimStep::Learn => {
                self.learn(&Claims::read(rules.header, blocks));
                self.next(now, rules)
            }
            ClaimStep::Judge => Some(self.judge(now, &Claims::read(rules.header, blocks), rules)),
        }
    }

    fn learn(&mut self, claims: &Claims) {
        let own = claims.of(self.host);
        self.sequence = self.sequence.max(own.map_or(0, |claim| claim.sequence));
        self.known =
            own.map_or_else(Promised::default, |claim| Promised { reserved: claim.confirmed(), vms: claim.vms });
        self.confirmed = Some(self.known);
        if own.is_some_and(|claim| claim.tried) {
            self.rewrites = 2;
        }
        self.mend(claims);
    }

    /// Compares what stands at the place with what was confirmed. An old copy of it, or none, is no claim for the others: it is claimed again.
    pub(super) fn compare(&mut self, now: Instant, claims: &Claims) {
        let there = claims.of(self.host).map_or(0, Claim::confirmed);
        if self.confirmed.is_some_and(|confirmed| confirmed.reserved != there) {
            tracing::error!(
                there = requests(there),
                "The claim of this host at the meeting place was changed: claiming again"
            );
            self.learn_again();
            self.not_before = now;
        }
        self.mend(claims);
    }

    /// Writes our blocks again if one of them cannot be read: it may hide a claim from the others.
    fn mend(&mut self, claims: &Claims) {
        if claims.unreadable.iter().any(|(host, _)| *host == self.host) {
            self.rewrites = 2;
        }
    }

    /// Confirms a claim that was written before these were read, or withdraws it.
    fn judge(&mut self, now: Instant, claims: &Claims, rules: &Rules<'_>) -> (Request, ClaimStep) {
        let (own, tries) = self.trying.take().expect("a claim was tried");
        self.mend(claims);
        let Err(refusal) = claims.judge(&own, rules.most) else {
            return self.settle(rules.header, Promised { reserved: own.reserved, vms: own.vms });
        };
        let is_contended = claims.held.iter().any(|claim| claim.host != self.host && claim.tried);
        let may_pass = match refusal {
            Refusal::Over { .. } => is_contended,
            // It may have been read while it was written.
            Refusal::Unreadable(..) => true,
            Refusal::Overwritten => false,
        };
        if may_pass && tries < TRIES {
            self.trying = Some((own, tries));
            self.not_before = now + pause();
        } else {
            self.refuse(now, in_words(&refusal, self.host, own.reserved));
        }
        self.settle(rules.header, self.confirmed.unwrap_or(self.known))
    }
}

/// A random pause, so that hosts that try at the same time do not do so again.
fn pause() -> Duration {
    let span = (PAUSE.1 - PAUSE.0).as_nanos() as u64;
    PAUSE.0 + Duration::from_nanos(super::random() % span)
}

fn in_words(refusal: &Refusal, host: block::Host, reserved: u64) -> String {
    match refusal {
        Refusal::Unreadable(other, reason) => format!(
            "the claims of host {other} cannot be read: a block of it {reason}. Its daemon writes them again when it starts; if it is gone for \
             good, use `sluice pool forget`"
        ),
        Refusal::Overwritten => {
            format!(
                "another daemon writes the blocks of host {host}: give each host a number of its own in `[device.NAME.pool]`"
            )
        }
        Refusal::Over { claims, most } => {
            let others = claims.held.iter().filter(|claim| claim.host != host && claim.reserved > 0);
            let held = others.clone().fold(0_u64, |sum, claim| sum.saturating_add(claim.reserved));
            let named = others.map(|claim| {
                let tried = if claim.tried { ", not confirmed yet" } else { "" };
                format!("host {} ({}) has {:.0} iops{tried}", claim.host, claim.name, requests(claim.reserved))
            });
            let named: Vec<String> = named.collect();
            format!(
                "this host would have {:.0} iops reserved, and {}: of the {:.0} iops that hosts may reserve together, {:.0} are left for it",
                requests(reserved),
                if named.is_empty() { "no other host has any".to_owned() } else { named.join(", ") },
                requests(*most),
                requests(most.saturating_sub(held)),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sluice_pool::block::SIZE;

    use super::*;

    const HOSTS: u8 = 3;
    const MOST: u64 = 1000;

    /// A host, and what it waits for.
    struct Host {
        claiming: Claiming,
        step: Option<(Request, ClaimStep)>,
        answer: Option<oneshot::Receiver<Result<(), String>>>,
        wanted: u64,
        /// What its VMs were promised.
        promised: u64,
    }

    /// What may happen to a host.
    #[derive(Debug, Clone)]
    enum Happens {
        /// Its request is carried out, and it gets the reply.
        Step,
        /// A change wants to reserve this.
        Ask(u64),
        /// It is killed in the middle of a write, of which this number of sectors has landed, and starts again.
        Kill(usize),
        /// Time passes.
        Wait,
    }

    fn happens() -> impl Strategy<Value = (usize, Happens)> {
        let what = prop_oneof![
            12 => Just(Happens::Step),
            2 => (0..700_u64).prop_map(Happens::Ask),
            1 => (0..9_usize).prop_map(Happens::Kill),
            2 => Just(Happens::Wait),
        ];
        (0..usize::from(HOSTS), what)
    }

    fn raw(number: u64) -> Promised {
        Promised { reserved: number, vms: 1 }
    }

    impl Host {
        fn new(now: Instant, number: usize, epoch: u64, promised: u64) -> Host {
            let mut claiming = Claiming::new(now, number as u8 + 1, epoch);
            claiming.promise(now, Some(raw(promised)));
            Host { claiming, step: None, answer: None, wanted: 0, promised }
        }

        /// Takes the answer to what a change asked, and puts that into force.
        fn follow(&mut self, now: Instant) {
            let answered = self.answer.as_mut().and_then(|answer| answer.try_recv().ok());
            if let Some(answer) = answered {
                self.answer = None;
                if answer.is_ok() {
                    self.promised = self.wanted;
                    self.claiming.promise(now, Some(raw(self.promised)));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn hosts_never_promise_together_more_than_there_is(events in prop::collection::vec(happens(), 1..300)) {
            let header = Header { pool: 7, hosts: HOSTS, milli_iops: 1_000_000, request_bytes: 8192 };
            let mut place = vec![0; BLOCKS * SIZE];
            place[..SIZE].copy_from_slice(&block::encode(&header));
            let mut now = Instant::now();
            let mut hosts: Vec<Host> = (0..usize::from(HOSTS)).map(|number| Host::new(now, number, number as u64, 0)).collect();
            for (epoch, (number, event)) in (100..).zip(events) {
                let rules = Rules { header: &header, most: MOST, obstacle: None, is_disputed: false };
                let host = &mut hosts[number];
                match event {
                    Happens::Wait => now += PAUSE.1,
                    Happens::Ask(wanted) => if host.answer.is_none() {
                        if wanted > host.promised {
                            let (answer, receiver) = oneshot::channel();
                            host.claiming.ask(now, raw(wanted), answer);
                            (host.answer, host.wanted) = (Some(receiver), wanted);
                        } else {
                            host.promised = wanted;
                            host.claiming.promise(now, Some(raw(wanted)));
                        }
                    }
                    Happens::Kill(sectors) => {
                        if let Some((Request::Write { first, bytes }, _)) = host.step.take() {
                            let (at, landed) = (first as usize * SIZE, (512 * sectors).min(SIZE));
                            place[at..at + landed].copy_from_slice(&bytes[..landed]);
                        }
                        *host = Host::new(now, number, epoch, host.promised);
                    }
                    Happens::Step => {
                        let next = match host.step.take() {
                            None => host.claiming.next(now, &rules),
                            Some((Request::Write { first, bytes }, step)) => {
                                place[first as usize * SIZE..][..bytes.len()].copy_from_slice(&bytes);
                                host.claiming.replied(now, step, &[], &rules)
                            }
                            Some((_, step)) => host.claiming.replied(now, step, &place, &rules),
                        };
                        host.step = next;
                    }
                }
                hosts[number].follow(now);
                let promised: u64 = hosts.iter().map(|host| host.promised).sum();
                prop_assert!(promised <= MOST, "{promised} of {MOST} after {epoch}");
            }
        }
    }
}
