//! Accounting, every 30 ms: credits for the active domains, and the states of their virtual CPUs that follow.

use sluice_sched::Instant;

use super::{Credit1, Doing, OnFull, PERIOD_CREDITS, Priority, WeightPer};

fn div_up(dividend: i64, divisor: i64) -> i64 {
    (dividend + divisor - 1).div_euclid(divisor)
}

impl Credit1 {
    /// Ends an accounting period. Returns the credits that were given.
    ///
    /// Example: two CPUs have 600 credits, and two domains with one virtual CPU each have the weights 512 and 256. The first
    /// is due 400 but can use only 300. The other 100 go to the second, which gets 300 instead of 200.
    // rule: credit1.accounting-always, credit1.accounting-fair, credit1.accounting-negative, credit1.conserved
    pub fn account(&mut self, now: Instant) -> i64 {
        self.accountings += 1;
        let owed = (-self.balance).max(0);
        let weights: i64 = self.active.iter().map(|domain| self.share(*domain)).sum();
        let mut total = PERIOD_CREDITS * self.cpus.len() as i64 + owed;
        let (mut left, mut balance, mut given) = (weights, 0, 0);
        let mut below_peak = false;
        let mut order = Vec::with_capacity(self.active.len());
        for domain in std::mem::take(&mut self.active) {
            let share = self.share(domain);
            let vcpus = self.domains[domain].active.len() as i64;
            left -= share;
            let peak = self.peak(domain, div_up(owed * share, weights));
            let mut fair = div_up(total * share, weights);
            let had_more = fair > peak;
            if had_more {
                // Credits that a domain cannot use are divided among the others by weight.
                if left > 0 {
                    total += div_up((fair - peak) * weights, left);
                }
                fair = peak;
            }
            // A domain with more than it can use comes first, so that the domains after it see the rest.
            match had_more && below_peak {
                true => order.insert(0, domain),
                false => order.push(domain),
            }
            below_peak |= !had_more;
            let each = div_up(fair, vcpus);
            for vcpu in std::mem::take(&mut self.domains[domain].active) {
                given += each;
                balance += self.grant(now, vcpu, each, vcpus);
            }
        }
        self.active = order.into_iter().filter(|domain| !self.domains[*domain].active.is_empty()).collect();
        self.balance = balance;
        given
    }

    /// A domain's part of the credits.
    // rule: credit1.version-3-3, credit1.version-4-1
    fn share(&self, domain: usize) -> i64 {
        let known = &self.domains[domain];
        match self.params.weight_per {
            WeightPer::Domain => known.weight,
            WeightPer::Vcpu => known.weight * known.active.len() as i64,
        }
    }

    /// The most credits that a domain can use.
    // rule: credit1.accounting-cap, credit1.cap-bound
    fn peak(&self, domain: usize, of_owed: i64) -> i64 {
        let known = &self.domains[domain];
        let peak = PERIOD_CREDITS * known.active.len() as i64 + of_owed;
        if known.cap > 0 { peak.min(div_up(PERIOD_CREDITS * known.cap, 100)) } else { peak }
    }

    /// Gives a virtual CPU its credits. Returns its balance.
    // rule: credit1.over, credit1.under
    fn grant(&mut self, now: Instant, index: usize, credits: i64, vcpus: i64) -> i64 {
        let cap = self.domains[self.vcpus[index].domain].cap;
        let cap_each = div_up(div_up(PERIOD_CREDITS * cap, 100), vcpus);
        let vcpu = &mut self.vcpus[index];
        vcpu.credit += credits;
        if vcpu.credit < 0 {
            vcpu.priority = Priority::Over;
            vcpu.credit = vcpu.credit.max(-PERIOD_CREDITS);
            if cap > 0 && vcpu.credit < -cap_each && !vcpu.parked {
                vcpu.parked = true;
                // It pays for the time up to now, below the bound.
                self.pause(now, index);
            }
        } else {
            vcpu.priority = Priority::Under;
            let was_parked = std::mem::replace(&mut vcpu.parked, false);
            if vcpu.credit > PERIOD_CREDITS {
                vcpu.active = false;
                vcpu.credit = if self.params.on_full == OnFull::Halve { vcpu.credit / 2 } else { 0 };
            }
            if was_parked && self.vcpus[index].wants {
                self.runnable(now, index);
            }
        }
        let vcpu = &self.vcpus[index];
        if vcpu.active {
            self.domains[vcpu.domain].active.push(index);
        }
        vcpu.credit
    }

    /// Takes a parked virtual CPU from its CPU or its queue.
    // rule: credit1.over
    fn pause(&mut self, now: Instant, index: usize) {
        let (cpu, doing) = (self.vcpus[index].cpu, self.vcpus[index].doing);
        match doing {
            Doing::Running => self.schedule(now, cpu),
            Doing::Queued => {
                self.cpus[cpu].queue.retain(|queued| *queued != index);
                self.vcpus[index].doing = Doing::Blocked;
            }
            Doing::Blocked => {}
        }
    }
}
