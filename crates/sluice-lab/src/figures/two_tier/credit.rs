//! Section 2.3: statements about Xen's credit scheduler, in the paper's version.

use sluice_report::Table;
use sluice_sched::Instant;
use sluice_sim::cpu::credit1::{Params, VcpuId, WEIGHT_DEFAULT};
use sluice_sim::cpu::{Class as Work, Host};

use crate::band::BandPoint;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::setup::{at, within};

/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;
/// Length in seconds of a run in which all domains compute.
const SECONDS: u64 = 60;

pub(in crate::figures) const FIGURE: Figure = Figure {
    id: "two-tier-credit",
    paper: Paper::TwoTier,
    label: "Section 2.3",
    title: "Xen Credit Scheduler",
    setup: "The credit scheduler of Xen 4.1.2 on one or two CPUs, and domains with one virtual CPU each that compute all the \
            time, sleep, or are woken up by events that take 0.5 ms each.",
    device: "",
    rows: &[
        RowSpec {
            id: "X4a",
            class: Class::Conformance,
            must: "equal weights get equal time and 512:256 gets 2:1, within 2 % of a CPU over a minute",
            paper: "the domains with the same weight will receive the same amount",
            note: "",
        },
        RowSpec {
            id: "X4b",
            class: Class::Conformance,
            must: "with a cap of 50 never more than half of one CPU over a minute, and within 3 % of it, idle CPUs or not",
            paper: "if cap=50, the domain can only use half of all CPU time slice resources",
            note: "\"All\" is read as that of one physical CPU: with two it is a quarter of all.",
        },
        RowSpec {
            id: "X4c",
            class: Class::Conformance,
            must: "of two domains that always run each has the CPU for 30 ms at a time, and for no longer",
            paper: "each scheduled virtual domain with sufficient credit will receive up to 30ms time slice",
            note: "",
        },
        RowSpec {
            id: "X4d",
            class: Class::Conformance,
            must: "an event of an idle domain is served at once beside one that computes; eight at once one after the other; one of \
                   a domain that computes as well waits for the other's slice, up to 30 ms",
            paper: "boost state has priority above Under and Over; with multiple I/O intensive domains in it at the same time it is \
                    difficult to reduce response delay",
            note: "",
        },
    ],
    run: measure,
};

/// Domains with these weights and caps that always compute.
fn computing(cpus: usize, domains: &[(u32, u32)]) -> (Host<u64>, Vec<VcpuId>) {
    let mut host = Host::new(Params::XEN_4_1, cpus);
    let vcpus: Vec<_> = domains
        .iter()
        .map(|(weight, cap)| {
            let domain = host.add_domain(*weight, *cap);
            host.add_vcpu(domain, u64::MAX)
        })
        .collect();
    vcpus.iter().for_each(|vcpu| host.set_busy(Instant::ZERO, *vcpu, true));
    (host, vcpus)
}

/// Percent of one CPU for each.
fn shares(cpus: usize, domains: &[(u32, u32)]) -> Vec<f64> {
    let (mut host, vcpus) = computing(cpus, domains);
    host.advance(at(SECONDS), &mut Vec::new());
    vcpus.iter().map(|vcpu| 100.0 * host.used_nanos(*vcpu) as f64 * 1e-9 / SECONDS as f64).collect()
}

/// The shortest and the longest time for which the first of two has the CPU, in milliseconds, sampled every
/// millisecond.
fn slices() -> (u64, u64) {
    let (mut host, vcpus) = computing(1, &[(WEIGHT_DEFAULT, 0); 2]);
    // In the first accountings not all of them are active.
    let (mut lengths, mut on) = (Vec::new(), 0);
    for now in 3_000..SECONDS * 1000 {
        host.advance(Instant::from_millis(now), &mut Vec::new());
        if host.scheduler().running(0) == Some(vcpus[0]) {
            on += 1;
        } else if on > 0 {
            lengths.push(std::mem::take(&mut on));
        }
    }
    // The first one may be incomplete.
    let whole = lengths.iter().skip(1).copied();
    (whole.clone().min().unwrap_or(0), whole.max().unwrap_or(0))
}

/// Maximum delay of an event in milliseconds: `count` domains have one of 0.5 ms every 7 ms, next to one that computes.
fn latest(count: usize, compute_too: bool) -> f64 {
    let mut host: Host<u64> = Host::new(Params::XEN_4_1, 1);
    let mut vcpu = || {
        let domain = host.add_domain(WEIGHT_DEFAULT, 0);
        host.add_vcpu(domain, 1)
    };
    let (other, woken) = (vcpu(), (0..count).map(|_| vcpu()).collect::<Vec<_>>());
    let busy: Vec<_> = woken.iter().filter(|_| compute_too).chain([&other]).copied().collect();
    busy.into_iter().for_each(|vcpu| host.set_busy(Instant::ZERO, vcpu, true));
    let mut done = Vec::new();
    for round in 0..500 {
        // Not before the first accounting, when all of them have BOOST.
        let now = Instant::from_nanos(45 * MS + round * 7 * MS);
        host.advance(now, &mut done);
        woken.iter().for_each(|vcpu| host.submit(now, *vcpu, Work::Net, MS / 2, now.as_nanos()));
    }
    host.advance(at(6), &mut done);
    done.iter().map(|item| item.at.as_nanos() - item.tag).max().unwrap_or(0) as f64 / MS as f64
}

fn measure(_: &BandPoint) -> Result<Finding, LabError> {
    let mut finding = Finding::default();
    let mut table = Table::new("CPU of domains that always compute [% of one CPU]", &["CPUs", "weight/cap", "got"]);
    let mut share = |cpus: usize, domains: &[(u32, u32)]| {
        let got = shares(cpus, domains);
        let stated: Vec<_> = domains.iter().map(|(weight, cap)| format!("{weight}/{cap}")).collect();
        let shown: Vec<_> = got.iter().map(|share| format!("{share:.1}")).collect();
        table.row([cpus.to_string(), stated.join(", "), shown.join(", ")]);
        got
    };
    let equal = share(1, &[(256, 0); 3]);
    let double = share(1, &[(512, 0), (256, 0)]);
    let off = equal.iter().map(|got| (got - 100.0 / 3.0).abs()).chain([(double[0] - 200.0 / 3.0).abs()]);
    let worst = off.fold(0.0, f64::max);
    finding.judge("X4a", worst <= 2.0, format!("at most {worst:.2} % of the CPU off"));
    let capped = [share(1, &[(256, 50)]), share(2, &[(256, 50)]), share(1, &[(256, 50), (256, 0)])].map(|got| got[0]);
    let holds = capped.iter().all(|got| *got <= 50.0 && within(*got, 50.0, 0.03));
    finding.judge("X4b", holds, capped.map(|got| format!("{got:.1} %")).join(", "));
    let (shortest, longest) = slices();
    finding.judge("X4c", (shortest, longest) == (30, 30), format!("{shortest} to {longest} ms"));
    let (one, several, computes) = (latest(1, false), latest(8, false), latest(1, true));
    let holds = within(one, 0.5, 0.01) && within(several, 4.0, 0.01) && (20.0..=31.0).contains(&computes);
    finding.judge("X4d", holds, format!("{one:.1} ms; eight {several:.1} ms; computing as well {computes:.1} ms"));
    finding.tables.push(table);
    Ok(finding)
}
