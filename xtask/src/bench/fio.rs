//! fio's io_uring engine on a file: the throughput of the disk without a server.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Random reads of 4 KiB with direct I/O. Returns IOPS, p50 and p99 in microseconds.
pub(super) fn run(
    file: &Path,
    size_bytes: u64,
    jobs: u32,
    depth: u32,
    time: Duration,
) -> Result<(f64, f64, f64), String> {
    let mut command = Command::new("fio");
    command.args(["--name=bare", "--ioengine=io_uring", "--direct=1", "--rw=randread", "--bs=4k", "--minimal"]);
    command.args(["--time_based", "--randrepeat=0", "--group_reporting", "--thread"]);
    command.arg(format!("--filename={}", file.display())).arg(format!("--size={size_bytes}"));
    command.arg(format!("--runtime={}ms", time.as_millis()));
    command.arg(format!("--iodepth={depth}")).arg(format!("--numjobs={jobs}"));
    let output = command.output().map_err(|error| format!("Cannot start fio: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).ok_or_else(|| format!("Cannot parse fio's output: {text} {}", String::from_utf8_lossy(&output.stderr)))
}

/// Parses fio's terse output, version 3.
pub(super) fn parse(text: &str) -> Option<(f64, f64, f64)> {
    let fields: Vec<&str> = text.lines().find(|line| line.starts_with("3;"))?.split(';').collect();
    let percentile = |name: &str| fields.iter().find_map(|field| field.strip_prefix(name)?.parse().ok());
    Some((fields.get(7)?.parse().ok()?, percentile("50.000000%=")?, percentile("99.000000%=")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terse_output_of_fio_is_parsed() {
        let line =
            "3;fio-3.33;bare;0;0;4096;40960;10240;100;1;2;3;4;5;6;7;8;1.000000%=9;50.000000%=410;99.000000%=2000;x";
        assert_eq!(parse(line), Some((10240.0, 410.0, 2000.0)));
        assert_eq!(parse("fio: error"), None);
    }
}
