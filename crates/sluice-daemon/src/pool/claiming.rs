//! What this host has reserved of a pool: how its claim at the meeting place follows what it promises.
//!
//! A change that promises more asks first, and is refused if the claim is. What is in force already (at a start, or after the place was
//! away) is claimed as soon as that is possible. A claim that has become smaller is written at once.

use std::time::{Duration, Instant};

use sluice_pool::block::{self, BLOCKS, Claim, Header, SIZE};
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
}

/// The claim of this host.
pub(super) struct Claiming {
    name: String,
    host: block::Host,
    epoch: u64,
    /// As last written and confirmed; `None` until it is known.
    confirmed: Option<Promised>,
    sequence: u64,
    /// What this host had claimed when that was last known.
    known: Promised,
    /// What is in force; `None` before anything is.
    promised: Option<Promised>,
    /// What a change wants to promise.
    asked: Option<(Promised, Answer)>,
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
    pub(super) fn new(host: block::Host, epoch: u64) -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Claiming {
            // A name is for people, and is short.
            name: name.chars().filter(|letter| !letter.is_control()).take(64).collect(),
            host,
            epoch,
            confirmed: None,
            sequence: 0,
            known: Promised::default(),
            promised: None,
            asked: None,
            trying: None,
            settling: None,
            rewrites: 0,
            not_before: Instant::now(),
            kept_until: Instant::now(),
            refusal: None,
        }
    }

    /// What is in force now.
    pub(super) fn promise(&mut self, promised: Option<Promised>) {
        self.kept_until = Instant::now();
        if promised != self.promised {
            (self.promised, self.not_before, self.refusal) = (promised, Instant::now(), None);
        }
    }

    /// A change wants to promise this.
    pub(super) fn ask(&mut self, promised: Promised, answer: Answer) {
        self.asked = Some((promised, answer));
        self.not_before = Instant::now();
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

    /// When there may be something to do without another event.
    pub(super) fn due(&self) -> Option<Instant> {
        let is_open =
            self.asked.is_some() || self.rewrites > 0 || self.promised.is_some() && self.promised != self.confirmed;
        is_open.then_some(self.not_before)
    }

    /// The place cannot be used now. What was written may be there or not.
    pub(super) fn interrupt(&mut self, why: &str) {
        self.known = self.confirmed.unwrap_or(self.known);
        (self.confirmed, self.trying, self.settling) = (None, None, None);
        self.refuse(format!("the claim cannot be written: {why}"));
    }

    fn refuse(&mut self, why: String) {
        self.not_before = Instant::now() + RETRY;
        match self.asked.take() {
            Some((_, answer)) => drop(answer.send(Err(why))),
            None if self.in_force().reserved > self.confirmed() => self.refusal = Some(why),
            None => {}
        }
    }

    fn answer_asked(&mut self) {
        let is_met =
            |asked: &Promised, confirmed: Option<Promised>| confirmed.is_some_and(|had| had.reserved >= asked.reserved);
        if let Some((_, answer)) = self.asked.take_if(|(asked, _)| is_met(asked, self.confirmed)) {
            self.kept_until = Instant::now() + KEPT;
            let _ = answer.send(Ok(()));
        }
        if self.confirmed() >= self.in_force().reserved {
            self.refusal = None;
        }
    }

    /// The next request, when no other one is outstanding.
    pub(super) fn next(&mut self, rules: &Rules<'_>) -> Option<(Request, ClaimStep)> {
        // The change has given up.
        self.asked.take_if(|(_, answer)| answer.is_closed());
        if Instant::now() < self.not_before {
            return None;
        }
        let Some(confirmed) = self.confirmed else {
            return Some((Request::Read { first: 0, count: BLOCKS as u32 }, ClaimStep::Learn));
        };
        self.answer_asked();
        if self.rewrites > 0 {
            self.rewrites -= 1;
            return Some(self.write(rules.header, confirmed, false));
        }
        let promised = self.in_force();
        let is_kept = promised.reserved < confirmed.reserved && Instant::now() < self.kept_until;
        let wanted = match &self.asked {
            Some((asked, _)) => *asked,
            None if promised == confirmed || is_kept => return None,
            None => promised,
        };
        if wanted.reserved <= confirmed.reserved {
            return Some(self.write(rules.header, wanted, false));
        }
        if let Some(obstacle) = &rules.obstacle {
            self.refuse(obstacle.clone());
            return None;
        }
        Some(self.write(rules.header, wanted, true))
    }

    /// Writes what is in force if more is claimed, as for a change that was not made.
    pub(super) fn give_back(&mut self, rules: &Rules<'_>) -> Option<(Request, ClaimStep)> {
        let is_more = self.confirmed.is_some_and(|confirmed| confirmed.reserved > self.in_force().reserved);
        is_more.then(|| self.write(rules.header, self.in_force(), false))
    }

    fn write(&mut self, header: &Header, promised: Promised, tried: bool) -> (Request, ClaimStep) {
        self.sequence += 1;
        let claim = Claim {
            pool: header.pool,
            host: self.host,
            epoch: self.epoch,
            sequence: self.sequence,
            reserved: promised.reserved,
            tried,
            name: self.name.clone(),
            vms: promised.vms,
        };
        let request = Request::Write { first: place_of(&claim) as u32, bytes: block::encode(&claim).to_vec() };
        if tried {
            let tries = self.trying.take().map_or(0, |(_, tries)| tries);
            self.trying = Some((claim, tries + 1));
            return (request, ClaimStep::Try);
        }
        self.settling = Some(promised);
        (request, ClaimStep::Settle)
    }

    /// Takes the result of a step. Returns the next request, if it follows at once.
    pub(super) fn replied(
        &mut self,
        step: ClaimStep,
        blocks: &[u8],
        rules: &Rules<'_>,
    ) -> Option<(Request, ClaimStep)> {
        match step {
            ClaimStep::Learn => {
                let claims = Claims::read(rules.header, blocks);
                let own = claims.of(self.host);
                self.sequence = self.sequence.max(own.map_or(0, |claim| claim.sequence));
                // One that was only tried may exceed the pool: then what was confirmed before it holds.
                let is_tried = own.is_some_and(|claim| claim.tried);
                let is_unreadable = claims.unreadable.iter().any(|(host, _)| *host == self.host);
                self.rewrites = if is_tried || is_unreadable { 2 } else { 0 };
                self.known = self.earlier(rules.header, blocks);
                self.confirmed = Some(self.known);
                self.next(rules)
            }
            ClaimStep::Try => Some((Request::Read { first: 0, count: BLOCKS as u32 }, ClaimStep::Judge)),
            ClaimStep::Judge => Some(self.judge(&Claims::read(rules.header, blocks), rules)),
            ClaimStep::Settle => {
                self.confirmed = self.settling.take();
                self.answer_asked();
                self.next(rules)
            }
        }
    }

    /// What this host had reserved before a claim that was only tried.
    fn earlier(&self, header: &Header, blocks: &[u8]) -> Promised {
        let at = |slot: usize| &blocks[(block::claims_of(self.host) + slot) * SIZE..][..SIZE];
        let both = [0, 1].map(|slot| block::decode::<Claim>(at(slot)).ok());
        let confirmed = both.into_iter().flatten().filter(|claim| claim.pool == header.pool && !claim.tried);
        let last = confirmed.max_by_key(|claim| claim.sequence);
        last.map_or_else(Promised::default, |claim| Promised { reserved: claim.reserved, vms: claim.vms })
    }

    /// Confirms a claim that was written before these were read, or withdraws it.
    fn judge(&mut self, claims: &Claims, rules: &Rules<'_>) -> (Request, ClaimStep) {
        let (own, tries) = self.trying.take().expect("a claim was tried");
        let before = self.confirmed.unwrap_or_default();
        match claims.judge(&own, rules.most) {
            Ok(()) => self.write(rules.header, Promised { reserved: own.reserved, vms: own.vms }, false),
            Err(refusal) => {
                let is_contended = claims.held.iter().any(|claim| claim.host != self.host && claim.tried);
                if matches!(refusal, Refusal::Over { .. }) && is_contended && tries < TRIES {
                    self.trying = Some((own, tries));
                    self.not_before = Instant::now() + pause();
                } else {
                    self.refuse(in_words(&refusal, self.host, own.reserved));
                }
                self.write(rules.header, before, false)
            }
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
            let held: u64 = others.clone().map(|claim| claim.reserved).sum();
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
