//! fio: the throughput of the disk without a server, and an NBD client that is not ours.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Results of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Figures {
    pub(super) iops: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// What fio reads.
pub(super) enum From<'a> {
    /// A file, by io_uring and with direct I/O: the disk without a server.
    File(&'a Path),
    /// An export of an NBD server, by fio's own engine, which is libnbd: each request is sent by a system call of its own.
    Nbd { socket: &'a Path, export: &'a str },
}

/// Random reads of 4 KiB by `jobs` threads, each with `depth` requests in flight.
pub(super) fn run(from: &From<'_>, jobs: u32, depth: u32, time: Duration) -> Result<Figures, String> {
    let mut command = Command::new("fio");
    command.args(["--name=bare", "--rw=randread", "--bs=4k", "--minimal"]);
    command.args(["--time_based", "--randrepeat=0", "--group_reporting", "--thread"]);
    command.arg(format!("--runtime={}ms", time.as_millis()));
    command.arg(format!("--iodepth={depth}")).arg(format!("--numjobs={jobs}"));
    match from {
        From::File(file) => {
            let size = fs::metadata(file).map_or(1 << 30, |metadata| metadata.len());
            command.args(["--ioengine=io_uring", "--direct=1"]);
            command.arg(format!("--filename={}", file.display())).arg(format!("--size={size}"));
        }
        From::Nbd { socket, export } => {
            command.arg("--ioengine=nbd").arg(format!("--uri=nbd+unix:///{export}?socket={}", socket.display()));
        }
    }
    let output = command.output().map_err(|error| format!("Cannot start fio: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).ok_or_else(|| format!("Cannot parse fio's output: {text} {}", String::from_utf8_lossy(&output.stderr)))
}

/// Parses fio's terse output, version 3.
pub(super) fn parse(text: &str) -> Option<Figures> {
    let fields: Vec<&str> = text.lines().find(|line| line.starts_with("3;"))?.split(';').collect();
    let percentile = |name: &str| fields.iter().find_map(|field| field.strip_prefix(name)?.parse().ok());
    let iops = fields.get(7)?.parse().ok()?;
    Some(Figures { iops, p50_us: percentile("50.000000%=")?, p99_us: percentile("99.000000%=")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terse_output_of_fio_is_parsed() {
        let line =
            "3;fio-3.33;bare;0;0;4096;40960;10240;100;1;2;3;4;5;6;7;8;1.000000%=9;50.000000%=410;99.000000%=2000;x";
        assert_eq!(parse(line), Some(Figures { iops: 10240.0, p50_us: 410.0, p99_us: 2000.0 }));
        assert_eq!(parse("fio: error"), None);
    }
}
