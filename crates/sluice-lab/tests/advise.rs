//! `sluice advise`: its output, its repeatability, and errors that say what to change.

use std::path::Path;

use crate::common::{Ended, Place, run, sluice};
use serde_json::Value;

/// Options for few pairs and short runs.
const SMALL: [&str; 8] = ["--guest", "noop,cfq", "--host", "noop,mclock", "--duration", "3s", "--runs", "3"];

fn advise(arguments: &[&str]) -> Ended {
    run(sluice().args(["-o", "json", "advise"]).args(arguments))
}

fn json_of(ended: &Ended) -> Value {
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {}", ended.stdout))
}

// rule: two-tier.advice
#[test]
fn a_disk_that_sorts_needs_no_idling_in_the_guest_and_any_host_scheduler_will_do() {
    let question = ["ffsb-random-read", "--device", "hdd,queue=32", "--ring", "xen"];
    let first = advise(&[&question[..], &SMALL].concat());
    let answer = json_of(&first);
    assert_eq!((answer["choose"]["guest"].as_str(), answer["told_apart"].as_bool()), (Some("noop"), Some(false)));
    let pairs = answer["pairs"].as_array().unwrap();
    let sureness: Vec<_> = pairs.iter().map(|pair| (pair["guest"].as_str().unwrap(), &pair["sureness"])).collect();
    assert_eq!(sureness.len(), 4);
    assert!(sureness.iter().all(|(guest, sureness)| (*guest == "cfq") == (*sureness == "behind")), "{sureness:?}");
    assert!(pairs.iter().all(|pair| pair["iops"]["half_interval_95"].as_f64() > Some(0.0)), "{pairs:?}");
    let output = answer["sentences"].to_string();
    assert!(output.contains("The host's choice among mclock, noop makes no significant difference"), "{output}");
    // The result does not depend on the number of concurrent runs.
    let again = advise(&[&question[..], &SMALL, &["--jobs", "3"]].concat());
    assert_eq!(first.stdout, again.stdout);
    // For several VMs, a scheduler that isolates them.
    let several = json_of(&advise(&[&question[..], &SMALL, &["--vms", "3", "--threads", "2"]].concat()));
    assert_eq!(several["choose"]["host"].as_str(), Some("mclock"), "{several}");
}

#[test]
fn schedulers_of_todays_guests_are_compared_by_their_nearest_model() {
    let options = ["--host", "noop", "--duration", "2s", "--runs", "2"];
    let question = ["closed,size=4KiB", "--device", "sas-15k-450", "--guest", "none,mq-deadline,bfq,kyber"];
    let answer = json_of(&advise(&[&question[..], &options].concat()));
    let mut guests: Vec<_> = answer["pairs"].as_array().unwrap().iter().map(|pair| pair["guest"].as_str()).collect();
    guests.sort_unstable();
    assert_eq!(guests, [Some("cfq"), Some("deadline"), Some("noop")], "none and kyber have one model");
    let today = answer["today"].to_string();
    for what in [
        "none of today's Linux is modelled by noop",
        "kyber of",
        "mq-deadline of",
        "bfq of today's Linux is modelled by cfq",
    ] {
        assert!(today.contains(what), "{what} in {today}");
    }
    let text = run(sluice().arg("advise").args(question).args(options)).stdout;
    assert!(text.contains("\nbfq of today's Linux is modelled by cfq: both idle"), "{text}");
}

#[test]
fn the_text_output_is_a_table_and_sentences() {
    let ended = run(sluice().args(["advise", "closed,size=4KiB", "--device", "sas-15k-450"]).args(SMALL));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    for what in ["GUEST", "P99 [ms]", "95 % intervals", "Choose ", "cannot be told from the best"] {
        assert!(ended.stdout.contains(what), "{what} in {}", ended.stdout);
    }
}

#[test]
fn a_trace_is_replayed_in_parts() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces/tpcc.trace");
    let trace = trace.to_str().unwrap();
    let arguments = ["--trace", trace, "--trace-format", "disksim-ns", "--device", "hdd,queue=32", "--by", "p99"];
    let answer = json_of(&advise(&[&arguments[..], &SMALL].concat()));
    assert_eq!(answer["by"].as_str(), Some("p99"));
    let p99 = |pair: &Value| pair["latency_p99_ms"]["mean"].as_f64().unwrap();
    let pairs = answer["pairs"].as_array().unwrap();
    assert!(pairs.windows(2).all(|two| p99(&two[0]) <= p99(&two[1])), "{pairs:?}");
}

#[test]
fn an_endless_file_is_rejected() {
    let place = tempfile::tempdir().unwrap();
    let pipe = place.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for file in ["/dev/zero", pipe.to_str().unwrap()] {
        let ended = advise(&["--trace", file, "--trace-format", "oracle-general", "--device", "hdd"]);
        assert_eq!(ended.code(), Some(4), "{}", ended.stderr);
        assert!(ended.stderr.contains("it is not a regular file"), "{}", ended.stderr);
        let ended = advise(&["closed", "--device", &format!("hdd,cylinders=9,seek_file={file}")]);
        assert!(ended.stderr.contains("it is not a regular file"), "{}", ended.stderr);
    }
}

#[test]
fn the_error_for_an_empty_trace_advised_fewer_runs() {
    let place = Place::new();
    let trace = place.write("empty.spc", "");
    let ended = advise(&["--trace", trace.to_str().unwrap(), "--trace-format", "spc", "--device", "hdd"]);
    assert!(ended.stderr.contains("has no request; name a trace that has some"), "{}", ended.stderr);
}

#[test]
fn an_unknown_name_is_rejected_with_the_known_ones() {
    let cases: [(&[&str], &str); 14] = [
        (&["ffsb", "--device", "hdd"], "No workload is called 'ffsb'; there are: closed"),
        (&["closed", "--device", "floppy"], "No device model is called 'floppy'; there are: "),
        (
            &["closed", "--device", "hdd", "--guest", "cfg"],
            "No guest scheduler is called 'cfg'; there are: anticipatory",
        ),
        (&["closed", "--device", "hdd", "--guest", "bfq,cfq,bfq"], "'bfq' is named twice"),
        (
            &["closed", "--device", "hdd", "--host", "bfq"],
            "No scheduler of disks is called 'bfq'; there are: anticipatory",
        ),
        (&["closed", "--device", "hdd", "--host", "netback"], "No scheduler of disks is called 'netback'"),
        (
            &["--trace", "x", "--trace-format", "pcap", "--device", "hdd"],
            "No trace format is called 'pcap'; there are: spc",
        ),
        (
            &["--trace", "/none", "--trace-format", "spc", "--device", "hdd"],
            "error: Trace /none cannot be opened: No such file",
        ),
        (&["closed,speed", "--device", "hdd"], "'speed' of 'closed,speed' is no parameter"),
        (&["closed,speed=1", "--device", "hdd"], "Workload closed has no parameter 'speed'; it has "),
        (&["closed,size=big", "--device", "hdd"], "Workload closed: size: "),
        (&["closed", "--device", "hdd,rpm=fast"], "Device model hdd: rpm: "),
        (&["closed", "--device", "hdd", "--guest", "noop,cfq,noop"], "'noop' is named twice"),
        (&["closed", "--device", "hdd", "--duration", "1s"], "--duration must be more than 1s"),
    ];
    for (arguments, what) in cases {
        let ended = advise(arguments);
        assert_ne!(ended.code(), Some(0), "{arguments:?}");
        assert!(ended.stderr.contains(what), "{arguments:?}: {}", ended.stderr);
    }
}
