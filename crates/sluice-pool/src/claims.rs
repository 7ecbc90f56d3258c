//! What hosts have reserved of a pool, so that together they never promise more than it has.
//!
//! A host that wants to promise more writes that as a claim, *then* reads the claims of all hosts. If they fit together, it confirms its
//! own; if not, it withdraws it and may try again after a random pause. Of two hosts that claim at the same time at least one reads the
//! claim of the other, so two that do not fit together are never both confirmed.
//!
//! Where the place compares what a host has read before it writes, one step is enough: see [`Claims::with`].
//!
//! A host has two blocks and writes them alternately, and a claim that is tried repeats what was confirmed before it, so that is still known
//! if a write is torn. A block that cannot be read may hide a claim, and no host confirms more until its host or `sluice pool forget` has
//! written it again.

use crate::block::{self, Claim, Header, Host, SIZE, Unreadable};

/// Letters of a name that are shown.
const NAME_MAX: usize = 64;

/// The claims of all hosts, as of one read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claims {
    /// The claims that hold, in the order of the hosts.
    pub held: Vec<Claim>,
    /// Hosts with a block that cannot be read.
    pub unreadable: Vec<(Host, Unreadable)>,
}

/// Why a claim is not confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Together they exceed what may be reserved, in raw cost per second.
    Over { claims: Claims, most: u64 },
    /// A block cannot be read.
    Unreadable(Host, Unreadable),
    /// What was written is not there: another daemon writes our blocks.
    Overwritten,
}

impl Claims {
    /// Reads the claims of a pool from all its blocks.
    #[must_use]
    pub fn read(header: &Header, blocks: &[u8]) -> Claims {
        let mut claims = Claims::default();
        for host in 1..=header.hosts.clamp(1, block::HOSTS_MAX) {
            let [first, second] = [0, 1].map(|slot| one(header.pool, host, slot, blocks));
            let unreadable = [&first, &second].into_iter().find_map(|read| read.as_ref().err());
            claims.unreadable.extend(unreadable.map(|reason| (host, *reason)));
            let held = [first, second].into_iter().filter_map(Result::ok).flatten();
            claims.held.extend(held.max_by_key(|claim| claim.sequence));
        }
        claims
    }

    /// These with another claim of a host.
    #[must_use]
    pub fn with(mut self, own: Claim) -> Claims {
        self.held.retain(|claim| claim.host != own.host);
        self.held.push(own);
        self
    }

    /// The claim of a host.
    #[must_use]
    pub fn of(&self, host: Host) -> Option<&Claim> {
        self.held.iter().find(|claim| claim.host == host)
    }

    /// Raw cost per second that is reserved together.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.held.iter().fold(0, |sum, claim| sum.saturating_add(claim.reserved))
    }

    /// Whether `own`, which was written before these were read, may be confirmed. `most` is what may be reserved in raw cost per second.
    ///
    /// # Errors
    /// The reason for which it may not.
    pub fn judge(&self, own: &Claim, most: u64) -> Result<(), Refusal> {
        if let Some((host, reason)) = self.unreadable.first() {
            return Err(Refusal::Unreadable(*host, *reason));
        }
        if self.of(own.host) != Some(own) {
            return Err(Refusal::Overwritten);
        }
        if self.sum() > most { Err(Refusal::Over { claims: self.clone(), most }) } else { Ok(()) }
    }
}

/// Reads one of the two claims of a host; nothing if it was never written.
fn one(pool: u64, host: Host, slot: usize, blocks: &[u8]) -> Result<Option<Claim>, Unreadable> {
    let at = (block::claims_of(host) + slot) * SIZE;
    let bytes = blocks.get(at..at + SIZE).ok_or(Unreadable::Torn)?;
    match block::decode::<Claim>(bytes) {
        Ok(claim) if claim.pool == pool && claim.host == host => Ok(Some(Claim { name: shown(&claim.name), ..claim })),
        Ok(_) => Err(Unreadable::Foreign),
        Err(Unreadable::Empty) => Ok(None),
        Err(reason) => Err(reason),
    }
}

/// A name as a terminal may show it.
fn shown(name: &str) -> String {
    name.chars().filter(|letter| letter.is_ascii_graphic()).take(NAME_MAX).collect()
}

/// Index of the block in which a claim with this number is written.
#[must_use]
pub const fn place_of(claim: &Claim) -> usize {
    block::claims_of(claim.host) + (claim.sequence % 2) as usize
}
