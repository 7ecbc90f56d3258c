//! The linear model of Linux' iocost as a device.

use serde::Deserialize;
use sluice_sched::Bytes;
use sluice_sched::params::{ParamError, ParamTable, Range};
use sluice_sched::scheduler::DeviceClass;

use super::{Derived, ModelKind, parameter, parse, ranged};
use crate::devices::linear::{Coefficients, Linear};

const OF_KERNEL: &str = "none";

pub(super) const KINDS: &[ModelKind] = &[ModelKind {
    name: "linear",
    summary: "The cost model of Linux' iocost: six numbers give the cost of a request, and requests are served one \
              after the other",
    device_class: DeviceClass::Disk,
    parameters: &[&[
        ranged(
            "kernel",
            "word",
            Range::Words(&["hdd", "ssd-qd1", "ssd", "ssd-fast"]),
            "\"ssd\"",
            "The kernel's own numbers; the other keys replace them",
        ),
        parameter(
            "line",
            "a line of io.cost.model",
            "none",
            "All six numbers, as the kernel writes them; of the other keys only size may be added",
        ),
        parameter("rbps", "1 or more", OF_KERNEL, "Sequential read throughput in bytes per second"),
        parameter("rseqiops", "1 or more", OF_KERNEL, "Sequential reads of 4KiB per second"),
        parameter("rrandiops", "1 or more", OF_KERNEL, "Random reads of 4KiB per second"),
        parameter("wbps", "1 or more", OF_KERNEL, "Sequential write throughput in bytes per second"),
        parameter("wseqiops", "1 or more", OF_KERNEL, "Sequential writes of 4KiB per second"),
        parameter("wrandiops", "1 or more", OF_KERNEL, "Random writes of 4KiB per second"),
        parameter("size", "a size", "\"1TiB\"", "Size of the device, which its VMs share"),
    ]],
    derive: |table| read(table).map(|(coefficients, size)| derive(&coefficients, size)),
    build: |table, _, _| Ok(Box::new(Linear::new(&read(table)?.0))),
}];

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kernel {
    Hdd,
    SsdQd1,
    Ssd,
    SsdFast,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Stated {
    kernel: Option<Kernel>,
    line: Option<String>,
    rbps: Option<u64>,
    rseqiops: Option<u64>,
    rrandiops: Option<u64>,
    wbps: Option<u64>,
    wseqiops: Option<u64>,
    wrandiops: Option<u64>,
    size: Option<Bytes>,
}

fn read(table: &ParamTable) -> Result<(Coefficients, u64), ParamError> {
    let stated: Stated = parse(table)?;
    let size = stated.size.map_or(1 << 40, |size| size.0);
    if let Some(line) = &stated.line {
        if let Some(beside) = table.keys().find(|name| !["line", "size"].contains(&name.as_str())) {
            return Err(ParamError(format!(
                "line contains all numbers, so {beside} is not allowed; remove one of them"
            )));
        }
        return Ok((line.parse().map_err(|error| ParamError(format!("{error}")))?, size));
    }
    let kernel = match stated.kernel.unwrap_or(Kernel::Ssd) {
        Kernel::Hdd => Coefficients::HDD,
        Kernel::SsdQd1 => Coefficients::SSD_QD1,
        Kernel::Ssd => Coefficients::SSD,
        Kernel::SsdFast => Coefficients::SSD_FAST,
    };
    let coefficients = Coefficients {
        rbps: stated.rbps.unwrap_or(kernel.rbps),
        rseqiops: stated.rseqiops.unwrap_or(kernel.rseqiops),
        rrandiops: stated.rrandiops.unwrap_or(kernel.rrandiops),
        wbps: stated.wbps.unwrap_or(kernel.wbps),
        wseqiops: stated.wseqiops.unwrap_or(kernel.wseqiops),
        wrandiops: stated.wrandiops.unwrap_or(kernel.wrandiops),
    };
    // A table has the same constraints as a line.
    Ok((coefficients.to_string().parse().map_err(|error| ParamError(format!("{error}")))?, size))
}

fn derive(coefficients: &Coefficients, size: u64) -> Derived {
    let Coefficients { rbps, rseqiops, rrandiops, wbps, wseqiops, wrandiops } = *coefficients;
    // Besides the base cost of the request, a page takes its transfer time.
    let bounded = |iops: u64, bps: u64| (iops as f64).min(bps as f64 / 4096.0);
    let anywhere = (bounded(rrandiops, rbps), bounded(wrandiops, wbps));
    let facts = vec![
        ("random reads of 4KiB", format!("{:.0} iops", anywhere.0)),
        ("random writes of 4KiB", format!("{:.0} iops", anywhere.1)),
        ("sequential reads", format!("{:.0} MB/s", rbps as f64 / 1e6)),
        ("io.cost.model", coefficients.to_string()),
    ];
    let most = [anywhere.0, anywhere.1, bounded(rseqiops, rbps), bounded(wseqiops, wbps)];
    Derived { span: size, most: (most.into_iter().fold(0.0, f64::max), "requests of 4KiB"), facts, rotational: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::written;

    fn stated(table: &[(&str, &str)]) -> Result<Coefficients, String> {
        let table = table.iter().map(|(name, value)| ((*name).to_owned(), written(value))).collect();
        read(&table).map(|(coefficients, _)| coefficients).map_err(|error| error.to_string())
    }

    #[test]
    fn parameters_come_from_the_kernel_a_line_or_keys() {
        assert_eq!(stated(&[]), Ok(Coefficients::SSD));
        assert_eq!(stated(&[("kernel", "\"hdd\"")]), Ok(Coefficients::HDD));
        assert_eq!(stated(&[("kernel", "\"ssd-qd1\"")]), Ok(Coefficients::SSD_QD1));
        let line = format!("\"8:16 {}\"", Coefficients::SSD_FAST);
        assert_eq!(stated(&[("line", &line)]), Ok(Coefficients::SSD_FAST));
        let one = Coefficients { rbps: 7, ..Coefficients::HDD };
        assert_eq!(stated(&[("kernel", "\"hdd\""), ("rbps", "7")]), Ok(one));
        let refused = |table: &[_], expected| {
            let error = stated(table).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        };
        refused(&[("line", &line), ("wbps", "7")], "line contains all numbers, so wbps is not allowed");
        refused(&[("line", "\"rbps=1\"")], "io.cost.model has no rseqiops");
        refused(&[("rbps", "0")], "rbps=0 is not valid; write a whole number above 0");
    }
}
