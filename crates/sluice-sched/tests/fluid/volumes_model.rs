//! The fluid model of two levels: what VMs are due of a device, and their volumes of what the VM gets.
//!
//! A VM's minimum is its reservation, and its maximum what its limits and those of its volumes in use let pass together. The volumes share
//! what the VM gets in the same way, each with its own reservation and limits, and those that read, or that write, share the
//! VM's limit of that direction.
//!
//! Example: a VM reserves 500 and has two volumes in use with limits of 100 and 200, so it is due at most 300, and others lose at most 300 to
//! it.

use sluice_sched::Policy;

use super::check::FLOOR;
use super::model::{Claim, fill};
use super::plan::Cloud;
use super::volumes::rate;

/// The policy of a VM or of a volume, in requests per second.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    weight: f64,
    min: f64,
    limit: f64,
    /// For reads and for writes.
    by_direction: [f64; 2],
}

/// A VM, and each of its volumes: its policy, whether it writes, and whether it is in use.
pub struct VmModel {
    pub own: Member,
    pub volumes: Vec<(Member, bool, bool)>,
}

/// Minimum and maximum service that is due.
#[derive(Debug, Clone, Copy, Default)]
pub struct Range {
    pub least: f64,
    pub most: f64,
}

pub struct VmDues {
    pub own: Range,
    pub volumes: Vec<Range>,
}

pub struct Dues {
    pub vms: Vec<VmDues>,
}

impl Member {
    pub fn of(policy: &Policy) -> Member {
        let Policy { reservation, limit, read_limit, write_limit, .. } = policy;
        Member {
            weight: policy.weight.map_or(0.0, |weight| weight.as_f64()),
            min: if policy.is_reserved() { rate(reservation.iops, reservation.bytes) } else { 0.0 },
            limit: rate(limit.iops, limit.bytes),
            by_direction: [read_limit, write_limit].map(|limit| rate(limit.iops, limit.bytes)),
        }
    }

    fn claim(&self, max: f64) -> Claim {
        Claim { weight: self.weight, min: self.min.min(max), max, reserved: self.min > 0.0, debt: 0.0 }
    }
}

impl VmModel {
    /// What a volume may get by its own limits, or what it `got` of its queue from the phase before.
    fn cap(&self, volume: usize, each: &[f64]) -> f64 {
        let (member, writes, in_use) = self.volumes[volume];
        if in_use { member.limit.min(member.by_direction[usize::from(writes)]) } else { each[volume] }
    }

    fn claims(&self, each: &[f64]) -> Vec<Claim> {
        let claim = |volume: usize| {
            let claim = self.volumes[volume].0.claim(self.cap(volume, each));
            if self.volumes[volume].2 { claim } else { Claim { min: claim.max, ..claim } }
        };
        (0..self.volumes.len()).map(claim).collect()
    }

    /// The volumes of one direction.
    fn group(&self, writes: bool) -> Vec<usize> {
        (0..self.volumes.len()).filter(|volume| self.volumes[*volume].1 == writes).collect()
    }

    fn max(&self, each: &[f64]) -> f64 {
        let sum = |writes: bool| self.group(writes).into_iter().map(|volume| self.cap(volume, each)).sum::<f64>();
        let groups = [false, true].map(|writes| sum(writes).min(self.own.by_direction[usize::from(writes)]));
        self.own.limit.min(groups.into_iter().sum())
    }

    fn reserved_inside(&self, group: &[usize], each: &[f64]) -> f64 {
        let min = |volume: &usize| self.volumes[*volume].0.min.min(self.cap(*volume, each));
        group.iter().map(min).sum()
    }

    /// Divides what the VM got among its volumes; `each`: what these got. As long as its burst lasts the VM gets more than its limit and
    /// its volumes others parts of it, so each is due what lies between. The same holds beside a volume whose burst lasts.
    fn inside(&self, each: &[f64]) -> Vec<Range> {
        let got: f64 = each.iter().sum();
        let plain = self.claims(each);
        let with_bursts: Vec<Claim> = plain.iter().zip(each).map(|(claim, got)| used_burst(claim, *got)).collect();
        let ranges = self.divide(got, each, plain.clone());
        let others = [self.divide(got.min(self.own.limit), each, plain.clone()), self.divide(got, each, with_bursts)];
        let merge = |(volume, own): (usize, Range)| {
            let is_bursting = each[volume] > plain[volume].max;
            let others = others.iter().map(|ranges| ranges[volume]).filter(|_| !is_bursting);
            others.fold(own, |one, other| Range { least: one.least.min(other.least), most: one.most.max(other.most) })
        };
        ranges.into_iter().enumerate().map(merge).collect()
    }

    fn divide(&self, got: f64, each: &[f64], mut claims: Vec<Claim>) -> Vec<Range> {
        // The shortage is in proportion to reservations only where it is that of the whole VM, not of one direction.
        let mut unsure = vec![false; claims.len()];
        for writes in [false, true] {
            let group = self.group(writes);
            let short = self.reserved_inside(&group, each) > self.own.by_direction[usize::from(writes)];
            group.into_iter().for_each(|volume| unsure[volume] = short);
        }
        let mut shares = fill(got, FLOOR, &claims).shares;
        for _ in 0..2 {
            for writes in [false, true] {
                let group = self.group(writes);
                // Its burst may be a part of what they got.
                let most =
                    self.own.by_direction[usize::from(writes)].max(group.iter().map(|volume| each[*volume]).sum());
                if group.iter().map(|volume| shares[*volume]).sum::<f64>() <= most * 1.000_001 {
                    continue;
                }
                // The limit of this direction holds these volumes, which share it.
                let members: Vec<Claim> = group.iter().map(|volume| claims[*volume]).collect();
                let division = fill(most, FLOOR, &members);
                for (volume, share) in group.into_iter().zip(division.shares) {
                    (claims[volume].min, claims[volume].max) = (share, share);
                    unsure[volume] |= division.fits < 1.0;
                }
                shares = fill(got, FLOOR, &claims).shares;
            }
        }
        let range = |(volume, range): (usize, Range)| match unsure[volume] {
            true => Range { least: 0.0, most: self.cap(volume, each) },
            false => Range { least: range.least.min(shares[volume]), most: range.most.max(shares[volume]) },
        };
        ranges(got, &claims, each).into_iter().enumerate().map(range).collect()
    }
}

impl Dues {
    /// What VMs on a device of this capacity are due; `got` has what their volumes got.
    pub fn of(capacity: f64, vms: &[VmModel], got: &[Vec<f64>]) -> Dues {
        let claims: Vec<Claim> = vms.iter().zip(got).map(|(vm, each)| vm.own.claim(vm.max(each))).collect();
        let each: Vec<f64> = got.iter().map(|volumes| volumes.iter().sum()).collect();
        let ranges = ranges(capacity, &claims, &each);
        let vms = vms.iter().zip(ranges).zip(got).map(|((vm, own), got)| VmDues { own, volumes: vm.inside(got) });
        Dues { vms: vms.collect() }
    }
}

/// The claim of a volume that got more than its limit, because it used its burst.
fn used_burst(claim: &Claim, got: f64) -> Claim {
    if got > claim.max { Claim { min: got, max: got, ..*claim } } else { *claim }
}

/// Divides the capacity. A member with a limit may use some of its burst in the interval, so each of the others is due what the model
/// says, or what it says if those with a limit get what they `got`.
fn ranges(capacity: f64, claims: &[Claim], got: &[f64]) -> Vec<Range> {
    let plain = fill(capacity, FLOOR, claims).shares;
    let known = |member: usize| {
        let fixed = |(other, claim): (usize, &Claim)| match other != member && claim.max.is_finite() {
            true => Claim { min: got[other], max: got[other], ..*claim },
            false => *claim,
        };
        let claims: Vec<Claim> = claims.iter().enumerate().map(fixed).collect();
        fill(capacity, FLOOR, &claims).shares[member]
    };
    let range = |(member, share): (usize, f64)| {
        let known = known(member);
        Range { least: share.min(known), most: share.max(known) }
    };
    plain.into_iter().enumerate().map(range).collect()
}

/// The bursts of the limits of a policy, in requests.
pub fn bursts(policy: &Policy, cloud: &Cloud) -> f64 {
    let limits = [policy.limit, policy.read_limit, policy.write_limit];
    let burst = |limit| {
        let burst = cloud.burst(&Policy { limit, ..Policy::default() });
        burst.requests.max(burst.bytes / 8192.0)
    };
    limits.into_iter().filter(|limit| limit.is_set()).map(burst).sum()
}
