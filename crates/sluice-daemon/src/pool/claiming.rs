//! What this host has reserved of a pool: how its claim at the meeting place follows what it promises.
//!
//! A change that promises more asks first, and is refused if the claim is. What is in force already (at a start, or after the place was
//! away) is claimed as soon as that is possible. A claim that has become smaller is written at once.
//!
//! Where the place compares ([`Way::Compare`]), what a claim was judged by is what it replaces. Then a host that does not know what became of
//! its last write, or what an earlier run of it still writes, first writes what it has read: whatever arrives later changes nothing.

use std::time::{Duration, Instant};

use sluice_pool::block::{self, BLOCKS, Claim, Header};
use sluice_pool::claims::{Claims, Refusal, place_of};
use sluice_pool::exchange::requests;
use tokio::sync::oneshot;

use super::helper::{Done, Request};
use super::place::Way;

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
    way: Way,
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
    pub(super) fn new(now: Instant, way: Way, host: block::Host, epoch: u64) -> Self {
        Claiming {
            way,
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
            rewrites: Claiming::rewrites_of_unknown(way),
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

    /// How often blocks are written again when a write may still arrive.
    fn rewrites_of_unknown(way: Way) -> u32 {
        match way {
            // Nothing is written by two at the same time.
            Way::Try => 0,
            Way::Compare => 1,
        }
    }

    /// The place cannot be used now. What was written may be there or not.
    pub(super) fn interrupt(&mut self, now: Instant, why: &str) {
        self.learn_again();
        self.rewrites = self.rewrites.max(Claiming::rewrites_of_unknown(self.way));
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
            return Some(Claiming::read_all(ClaimStep::Learn));
        };
        if self.rewrites > 0 {
            return Some(self.settle(rules.header, confirmed));
        }
        self.answer_asked(now);
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
        let tries = self.trying.take().map_or(0, |(_, tries)| tries);
        if self.way == Way::Try {
            self.sequence = self.sequence.saturating_add(1);
        }
        let claim = self.claim(rules.header, wanted, confirmed.reserved, true);
        let step = match self.way {
            Way::Try => (self.write(&claim), ClaimStep::Try),
            Way::Compare => Claiming::read_all(ClaimStep::Judge),
        };
        self.trying = Some((claim, tries + 1));
        Some(step)
    }

    fn read_all(step: ClaimStep) -> (Request, ClaimStep) {
        (Request::Read { count: BLOCKS as u32 }, step)
    }

    fn claim(&self, header: &Header, promised: Promised, before: u64, tried: bool) -> Claim {
        let Promised { reserved, vms } = promised;
        let (pool, host, epoch, sequence, name) =
            (header.pool, self.host, self.epoch, self.sequence, self.name.clone());
        Claim { pool, host, epoch, sequence, reserved, before, tried, name, vms }
    }

    fn write(&self, claim: &Claim) -> Request {
        let (first, bytes) = (place_of(claim) as u32, block::encode(claim).to_vec());
        match self.way {
            Way::Try => Request::Write { first, bytes },
            Way::Compare => Request::Swap { first, bytes },
        }
    }

    fn settle(&mut self, header: &Header, promised: Promised) -> (Request, ClaimStep) {
        self.sequence = self.sequence.saturating_add(1);
        let claim = self.claim(header, promised, promised.reserved, false);
        self.settling = Some(promised);
        (self.write(&claim), ClaimStep::Settle)
    }

    /// Takes the result of a step. Returns the next request, if it follows at once.
    pub(super) fn replied(
        &mut self,
        now: Instant,
        step: ClaimStep,
        done: Done,
        rules: &Rules<'_>,
    ) -> Option<(Request, ClaimStep)> {
        if done == Done::Others {
            self.learn_again();
            self.not_before = now + pause();
            return None;
        }
        let blocks = &done.blocks();
        match step {
            ClaimStep::Try => Some(Claiming::read_all(ClaimStep::Judge)),
            ClaimStep::Settle => {
                self.rewrites = self.rewrites.saturating_sub(1);
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
            ClaimStep::Judge => self.judge(now, Claims::read(rules.header, blocks), rules),
        }
    }

    fn learn(&mut self, claims: &Claims) {
        let own = claims.of(self.host);
        // If one of the two was damaged, the other one may be an old one. A run that has written both knows better.
        if self.sequence == 0 || !self.is_damaged(claims) {
            self.known =
                own.map_or_else(Promised::default, |claim| Promised { reserved: claim.confirmed(), vms: claim.vms });
        }
        self.sequence = self.sequence.max(own.map_or(0, |claim| claim.sequence));
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
        if self.is_damaged(claims) {
            self.rewrites = 2;
        }
    }

    /// Whether one of our blocks cannot be read.
    fn is_damaged(&self, claims: &Claims) -> bool {
        claims.unreadable.iter().any(|(host, _)| *host == self.host)
    }

    /// Confirms a claim by these, which were read after it was written if it is tried, or withdraws it.
    fn judge(&mut self, now: Instant, read: Claims, rules: &Rules<'_>) -> Option<(Request, ClaimStep)> {
        let (own, tries) = self.trying.take().expect("a claim was tried");
        self.mend(&read);
        let claims = match self.way {
            Way::Try => read,
            Way::Compare => read.with(own.clone()),
        };
        let Err(refusal) = claims.judge(&own, rules.most) else {
            return Some(self.settle(rules.header, Promised { reserved: own.reserved, vms: own.vms }));
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
        match self.way {
            Way::Try => Some(self.settle(rules.header, self.confirmed.unwrap_or(self.known))),
            Way::Compare => None,
        }
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
        /// All blocks as its helper has last read them.
        whole: Vec<u8>,
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
        /// Its helper is killed. What that has sent arrives at once or later, if writes are compared; else it arrives before the next one starts.
        Lose,
        /// One of those that killed helpers had sent arrives.
        Arrive(usize),
        /// It reads all, and compares what it has confirmed.
        ReadAll,
        /// Time passes.
        Wait,
    }

    /// Where hosts meet, and what arrives there late.
    struct Meets {
        way: Way,
        blocks: Vec<u8>,
        /// Each with the blocks by which it is compared.
        late: Vec<(Request, Vec<u8>)>,
    }

    impl Meets {
        fn new(way: Way, header: &Header) -> Meets {
            let mut blocks = vec![0; BLOCKS * SIZE];
            blocks[..SIZE].copy_from_slice(&block::encode(header));
            Meets { way, blocks, late: Vec::new() }
        }

        fn put(&mut self, first: u32, bytes: &[u8]) {
            self.blocks[first as usize * SIZE..][..bytes.len()].copy_from_slice(bytes);
        }

        fn carry_out(&mut self, request: &Request, whole: &mut Vec<u8>) -> Done {
            match request {
                Request::Read { .. } => {
                    whole.clone_from(&self.blocks);
                    Done::Read(self.blocks.clone())
                }
                Request::Swap { .. } if *whole != self.blocks => Done::Others,
                Request::Swap { first, bytes } | Request::Write { first, bytes } => {
                    self.put(*first, bytes);
                    whole.clone_from(&self.blocks);
                    Done::Changed
                }
                Request::Lock { .. } => Done::Changed,
            }
        }

        /// A helper has ended with this request outstanding.
        fn lose(&mut self, request: Request, mut whole: Vec<u8>) {
            match self.way {
                Way::Try => drop(self.carry_out(&request, &mut whole)),
                Way::Compare => self.late.push((request, whole)),
            }
        }
    }

    fn happens() -> impl Strategy<Value = (usize, Happens)> {
        let what = prop_oneof![
            12 => Just(Happens::Step),
            2 => (0..700_u64).prop_map(Happens::Ask),
            1 => (0..9_usize).prop_map(Happens::Kill),
            1 => Just(Happens::Lose),
            1 => (0..8_usize).prop_map(Happens::Arrive),
            1 => Just(Happens::ReadAll),
            2 => Just(Happens::Wait),
        ];
        (0..usize::from(HOSTS), what)
    }

    fn raw(number: u64) -> Promised {
        Promised { reserved: number, vms: 1 }
    }

    impl Host {
        fn new(now: Instant, way: Way, number: usize, epoch: u64, promised: u64) -> Host {
            let mut claiming = Claiming::new(now, way, number as u8 + 1, epoch);
            claiming.promise(now, Some(raw(promised)));
            Host { claiming, step: None, answer: None, wanted: 0, promised, whole: Vec::new() }
        }

        fn ask(&mut self, now: Instant, wanted: u64) {
            if self.answer.is_some() {
                return;
            }
            if wanted > self.promised {
                let (answer, receiver) = oneshot::channel();
                self.claiming.ask(now, raw(wanted), answer);
                (self.answer, self.wanted) = (Some(receiver), wanted);
            } else {
                self.promised = wanted;
                self.claiming.promise(now, Some(raw(wanted)));
            }
        }

        fn step(&mut self, now: Instant, rules: &Rules<'_>, place: &mut Meets) {
            self.step = match self.step.take() {
                None => self.claiming.next(now, rules),
                Some((request, step)) => {
                    let done = place.carry_out(&request, &mut self.whole);
                    self.claiming.replied(now, step, done, rules)
                }
            };
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

    fn carry_on(way: Way, events: Vec<(usize, Happens)>) -> Result<(), TestCaseError> {
        let header = Header { pool: 7, hosts: HOSTS, milli_iops: 1_000_000, request_bytes: 8192 };
        let mut place = Meets::new(way, &header);
        let mut now = Instant::now();
        let mut hosts: Vec<Host> =
            (0..usize::from(HOSTS)).map(|number| Host::new(now, way, number, number as u64, 0)).collect();
        for (epoch, (number, event)) in (100..).zip(events) {
            let rules = Rules { header: &header, most: MOST, obstacle: None, is_disputed: false };
            let host = &mut hosts[number];
            match event {
                Happens::Wait => now += PAUSE.1,
                Happens::Ask(wanted) => host.ask(now, wanted),
                Happens::Kill(sectors) => {
                    match host.step.take() {
                        Some((Request::Write { first, bytes }, _)) => {
                            place.put(first, &bytes[..(512 * sectors).min(SIZE)]);
                        }
                        Some((request, _)) => place.lose(request, host.whole.clone()),
                        None => {}
                    }
                    *host = Host::new(now, way, number, epoch, host.promised);
                }
                Happens::Lose => {
                    if let Some((request, _)) = host.step.take() {
                        place.lose(request, std::mem::take(&mut host.whole));
                        host.claiming.interrupt(now, "it was lost");
                    }
                }
                Happens::ReadAll => {
                    if host.step.is_none() {
                        host.whole.clone_from(&place.blocks);
                        host.claiming.compare(now, &Claims::read(&header, &place.blocks));
                    }
                }
                Happens::Arrive(which) => {
                    if !place.late.is_empty() {
                        let (request, mut whole) = place.late.remove(which % place.late.len());
                        place.carry_out(&request, &mut whole);
                    }
                }
                Happens::Step => host.step(now, &rules, &mut place),
            }
            hosts[number].follow(now);
            let promised: u64 = hosts.iter().map(|host| host.promised).sum();
            prop_assert!(promised <= MOST, "{promised} of {MOST} after {epoch}");
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn hosts_never_promise_together_more_than_there_is(events in prop::collection::vec(happens(), 1..300)) {
            carry_on(Way::Try, events)?;
        }

        #[test]
        fn where_claims_are_compared_they_do_not_either(events in prop::collection::vec(happens(), 1..300)) {
            carry_on(Way::Compare, events)?;
        }
    }
}
