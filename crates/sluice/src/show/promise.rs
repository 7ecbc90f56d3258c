//! Promises in words.

use serde_json::Value;

use super::{list, text};

/// The mark of a VM, volume or device in a table.
pub(crate) fn mark(state: &Value) -> &'static str {
    match state.as_str() {
        Some("broken") => "BROKEN",
        Some("kept") => "kept",
        Some("not_asked") => "idle",
        Some("unknown") => "unknown",
        _ => "-",
    }
}

/// The broken promises of a VM or volume, each in a sentence.
pub(crate) fn broken(name: &str, object: &Value) -> Vec<String> {
    let promises = list(&object["promises"]).iter().filter(|promise| promise["state"] == "broken");
    promises.map(|promise| sentence(name, promise)).collect()
}

fn sentence(name: &str, promise: &Value) -> String {
    let (wanted, got) = (amount(promise, "wanted"), amount(promise, "got"));
    let since = promise["for_seconds"].as_u64().map_or(String::new(), |seconds| format!(" for {seconds} s"));
    let cause = cause(text(&promise["cause"]));
    match promise["kind"].as_str() {
        Some("latency") => {
            format!(
                "{name}: {got} of the requests take longer than the target, which allows {wanted},{since}; cause: {cause}"
            )
        }
        _ => format!("{name}: gets {got} of the {wanted} that it has reserved and asks for,{since}; cause: {cause}"),
    }
}

fn amount(promise: &Value, key: &str) -> String {
    let amount = promise[key].as_f64().unwrap_or(0.0);
    match promise["unit"].as_str() {
        Some("iops") => format!("{amount:.0} iops"),
        Some("bytes_per_second") => format!("{:.1} MiB/s", amount / 1_048_576.0),
        Some("percent") => format!("{amount:.1} %"),
        _ => format!("{amount:.0}"),
    }
}

/// A cause in words. One of a newer daemon is shown as it is.
pub(crate) fn cause(name: &str) -> &str {
    let known = sluice_observe::cause::Cause::ALL.into_iter().find(|cause| cause.name() == name);
    known.map_or(name, |cause| cause.in_words())
}
