//! Arguments of `sluice advise`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use sluice_sched::units::parse_duration;

use crate::progress::Style;

/// Recommend a scheduler for the guest and one for the host, for a workload on a device.
///
/// Simulates every pair of schedulers with the same seeds and ranks them, with 95 % confidence intervals (Student's t). A
/// pair is worse than the best one if their difference is significant after the Bonferroni correction for the number of
/// comparisons. Pairs without a significant difference are listed, and a rule of thumb chooses among them: noop or deadline
/// in the guest; deadline on a host with one VM; mclock, sfqd or cfq, which isolate VMs, on a host with several;
/// anticipatory never in a guest.
#[derive(Args)]
pub struct Advise {
    /// Workload of each guest thread: a name, optionally with parameters (ffsb-random-read,file_size=1GiB). An unknown name
    /// lists the workloads.
    #[arg(required_unless_present = "trace", conflicts_with = "trace")]
    pub workload: Option<String>,
    /// A trace instead of a workload. Each free thread takes the next request; each run uses another part of the trace.
    #[arg(long, value_name = "FILE", requires = "trace_format")]
    pub trace: Option<PathBuf>,
    /// Format of the trace: spc, msr, alibaba, blktrace, ...
    #[arg(long, value_name = "FORMAT", requires = "trace")]
    pub trace_format: Option<String>,
    /// Device model: a name, optionally with parameters (hdd, raid5,disks=6, ssd).
    #[arg(long, value_name = "MODEL")]
    pub device: String,
    /// Queue depth of the device.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub depth: u32,
    /// Guest schedulers to compare: ours, or none, mq-deadline, bfq and kyber, which stand for their nearest model.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "noop,deadline,anticipatory,cfq")]
    pub guest: Vec<String>,
    /// Host schedulers to compare.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "noop,deadline,anticipatory,cfq,mclock,sfqd"
    )]
    pub host: Vec<String>,
    /// Number of identical VMs, with equal weights.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub vms: u32,
    /// Threads of each VM, each with one outstanding request unless the workload states another number.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// Ring between a guest and the host.
    #[arg(long, value_enum, default_value_t = RingKind::Virtio)]
    pub ring: RingKind,
    /// Virtualisation overhead per request; requests pay it one at a time.
    #[arg(long, value_name = "TIME", default_value = "0us", value_parser = parse_duration)]
    pub request_cost: Duration,
    /// Metric that ranks the pairs.
    #[arg(long, value_enum, default_value_t = Counts::Throughput)]
    pub by: Counts,
    /// Runs of each pair, each with its own seed.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Seed of the first run.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Maximum length of a run in virtual time; the first second is not measured.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Concurrent runs. Default: the number of cores.
    #[arg(long, value_name = "N")]
    pub jobs: Option<NonZeroUsize>,
    /// Format of progress messages on standard error.
    #[arg(long, value_enum, default_value_t = Style::Auto)]
    pub progress: Style,
}

/// The ring between a guest and the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RingKind {
    /// 256 requests of at most 1016 KiB.
    Virtio,
    /// 32 requests of at most 44 KiB.
    Xen,
}

/// The metric that ranks the pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Counts {
    /// Requests per second.
    Throughput,
    /// The 99th percentile of latency.
    P99,
}
