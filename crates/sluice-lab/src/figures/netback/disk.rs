//! Fig. 8: disk requests of one VM and network traffic of another.

use sluice_report::{Chart, Line, Table};
use sluice_sim::engine::Change;

use super::{Backend, Bench, DEVICE, at, link, timed};
use crate::band::BandPoint;
use crate::device::LinkFile;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};

/// Start and end of the disk requests, and end of the run, in seconds: the paper's figure has 45 of them, and t0 and t1 without numbers.
const TIMES: [u64; 3] = [15, 30, 45];
/// Factor below which a rate counts as reduced.
const FALLS: f64 = 0.95;

pub(in crate::figures) const FIGURE: Figure = Figure {
    id: "netback-disk",
    paper: Paper::Netback,
    label: "Fig. 8",
    title: "Disk I/O influence on network performance",
    setup: "One guest sends datagrams of 1472 bytes (1500 with the headers of IP and UDP) at 100 Mb/s; from t0 = 15 s to t1 = 30 s of 45 another one keeps 32 reads of 4 KiB \
            outstanding at a disk behind the same driver domain, whose virtual CPU serves packets and disk requests in turn. \
            Each of the three has a CPU of its own.",
    device: DEVICE,
    rows: &[
        RowSpec {
            id: "N5a",
            class: Class::Shape,
            must: "between t0 and t1 the throughput falls, to less than 95 % of that before, and then comes back to within 2 %",
            paper: "disk operations have a strong impact on the network's performance",
            note: "It falls as long as a packet and a disk request together take the driver domain longer than a packet takes the \
                   wire, and the disk is fast enough to keep it busy: table \"What it comes from\".",
        },
        RowSpec {
            id: "N5b",
            class: Class::Hardware,
            must: "throughput before, between and after",
            paper: "in the figure alone",
            note: "The depth is what the two costs in the driver domain make it, and the paper has neither.",
        },
    ],
    run: measure,
};

/// Rate of the sender before, during and after, and over time.
fn simulate(backend: Backend, link: LinkFile, point: &BandPoint) -> Result<([f64; 3], Vec<f64>), LabError> {
    let mut bench = Bench::with_disk(backend, link, point)?;
    bench.flow(0, at(0), "VM1")?;
    bench.simulation.plan_change(at(TIMES[0]), Change::Start(1));
    bench.simulation.plan_change(at(TIMES[1]), Change::Idle(1));
    bench.run(TIMES[2], backend.name())?;
    let [begins, ends, last] = TIMES.map(|time| time as usize);
    // Frames count when they are queued, and filling the queue takes some seconds at the start and after the disk
    // requests.
    let means = [(begins - 2, begins), (begins + 2, ends), (last - 3, last)];
    Ok((means.map(|(from, to)| bench.mean(0, from, to)), bench.rates(0, 0, last)))
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let mut finding = Finding::default();
    let (request_per_packet, disk_us) = (point.setting("request-cost"), point.setting("disk-time"));
    let device = LinkFile { request_per_packet, disk_us, ..link(point)? };
    let ([before, between, after], series) = simulate(Backend::Netback, device, point)?;
    let holds = between < FALLS * before && (after - before).abs() <= 0.02 * before;
    finding.judge("N5a", holds, format!("falls to {:.0} % and comes back", 100.0 * between / before));
    finding.show("N5b", format!("{before:.1}, {between:.1}, {after:.1} Mb/s of data"));
    finding.charts.push(Chart::lines("VM1", "time [s]", "Mb/s of data", vec![Line::new("VM1", timed(&series))]));
    if !point.is_nominal() {
        return Ok(finding);
    }
    let columns = ["run", "before t0", "between", "after t1", "falls to [%]"];
    let mut table = Table::new("What it comes from [Mb/s of data]", &columns);
    let with = |ratio: f64, disk_us: f64| LinkFile { request_per_packet: ratio, disk_us, ..device };
    let runs = [
        ("a disk request costs 10 times a packet's work", Backend::Netback, device),
        ("6.5 times", Backend::Netback, with(6.5, device.disk_us)),
        ("3 times", Backend::Netback, with(3.0, device.disk_us)),
        ("10 times, at a disk of 2000 requests per second", Backend::Netback, with(10.0, 500.0)),
        ("10 times, at a disk of 100 requests per second", Backend::Netback, with(10.0, 10_000.0)),
        ("10 times, round robin that waits for room", Backend::RoundRobin, device),
        ("10 times, WRR in bytes", Backend::Bytes, device),
    ];
    for (name, backend, link) in runs {
        let (got, _) = simulate(backend, link, point)?;
        let numbers = got.map(|got| format!("{got:.1}"));
        table.row(std::iter::once(name.to_owned()).chain(numbers).chain([format!("{:.0}", 100.0 * got[1] / got[0])]));
    }
    finding.tables.push(table);
    Ok(finding)
}
