//! Arguments of `sluice reproduce`.

use std::path::PathBuf;

use clap::Args;

use crate::progress::Style;

/// Reproduce the papers' tables and figures on modelled devices, with a verdict for each row.
///
/// Every row of the acceptance table has a class. Shapes (S) must hold over a band of the device's parameters. Rows that depend on hardware (H)
/// are shown next to the paper's number, which they are near or differ from. Conformance rows (C) are checks of our own that must hold
/// wherever they are run. The exit code is 1 if a conformance row fails.
///
/// With --real, figures of mClock, Flubber and MCFQ run on real I/O next to the simulation: this process serves temporary disks over NBD and
/// vhost-user-blk on a device of constant rate, six times as fast as in the paper, or on one with the completion times of a modelled
/// drive. As root the figures of netback run with NICs of this process and iperf in network namespaces. All of them take about 50 minutes. The
/// exit code is 1 if a real value differs from the simulated one by more than 3 % (10 % on a modelled drive or behind a queue that drops) and half a percent of the device's rate.
///
/// With --guests the VMs are three Linux guests under QEMU that measure their requests themselves, in real time: 26 minutes for two figures of
/// mClock. As root the kernel's BFQ and blk-throttle run on the same file. QEMU must be installed; kernel and busybox
/// are downloaded once as Debian packages.
#[derive(Args)]
pub struct Reproduce {
    /// Papers (mclock, flubber, mcfq, netback, two-tier), ablations, figures, rows (M1, M1a; a row brings its figure), or all.
    #[arg(default_value = "all")]
    pub what: Vec<String>,
    /// Run only the nominal point; verdicts are those of this point. With --real: measure a fifth of the time.
    #[arg(long, conflicts_with = "docs")]
    pub quick: bool,
    /// Run on real I/O: the figures of mclock but for mclock-oltp, those of flubber, and mcfq-windows; as root those of netback but for
    /// netback-disk; rows of them, or all.
    #[arg(long, conflicts_with_all = ["list", "threads", "fresh"])]
    pub real: bool,
    /// With --real: mclock-reservations and mclock-oltp with three guests under QEMU.
    #[arg(long, requires = "real")]
    pub guests: bool,
    /// Folder of the guests' kernel and first file system. If they are not in it, they are made there from downloaded packages.
    /// Default: sluice-guests in the user's cache.
    #[arg(long, value_name = "DIR", requires = "guests")]
    pub guest_root: Option<PathBuf>,
    /// List papers, figures and rows, and run nothing.
    #[arg(long)]
    pub list: bool,
    /// Write report.html, rows.json and a text for each paper to this folder. Results of an earlier run in it are reused. With --real: real.html and
    /// real.json, or guests.html and guests.json.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Write the texts and charts of the papers to this folder, as in docs/papers; only for whole papers. With --real: real.md or guests.md, only
    /// for all figures.
    #[arg(long, value_name = "DIR")]
    pub docs: Option<PathBuf>,
    /// Ignore the results of earlier runs.
    #[arg(long, requires = "out")]
    pub fresh: bool,
    /// Concurrent simulations. Default: the number of cores.
    #[arg(long, alias = "jobs", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Format of progress messages on standard error.
    #[arg(long, value_enum, default_value_t = Style::Auto)]
    pub progress: Style,
}
