//! `sluice why`: what is so of a VM, what was, and what would help, in words.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluice_observe::cause::Cause;

use super::events::neighbours;
use super::promise::{broken, cause};
use super::{list, percent, rate, text, time};

/// The answer for one VM.
pub(crate) struct Answer<'a> {
    vm: &'a str,
    /// The VM on each of its devices: those that serve it now come first.
    devices: Vec<OnDevice<'a>>,
    /// Length of the time that was looked at, in seconds.
    seconds: u64,
}

/// A VM on one device.
struct OnDevice<'a> {
    /// `-` if it is not known, as of volumes that are held back.
    device: &'a str,
    /// `None` if it does not serve the VM.
    now: Option<&'a Value>,
    violations: BTreeMap<(String, String), Violation>,
    /// Events of the device, in sentences.
    events: Vec<String>,
}

/// All violations of one promise.
#[derive(Debug, Default)]
struct Violation {
    name: String,
    kind: String,
    count: u64,
    /// Sum of their durations; one that still lasts is counted until now.
    seconds: u64,
    /// Seconds by cause; of one that has not ended 0.
    causes: BTreeMap<String, u64>,
    /// Reason why a volume is or was not served.
    detail: Option<String>,
    /// Neighbours that were served during the last one.
    neighbours: Option<String>,
    /// Beginning of one that has not ended, in seconds since 1970.
    began: Option<u64>,
    lasts: bool,
}

/// A promise that is broken now.
struct BrokenNow<'a> {
    name: String,
    kind: &'a str,
    cause: &'a str,
    /// Seconds for which it has been.
    seconds: u64,
}

/// Returns the promises of a VM and its volumes on one device that are broken now.
fn broken_now<'a>(vm: &str, now: &'a Value) -> Vec<BrokenNow<'a>> {
    let mut all = Vec::new();
    let mut add = |name: String, object: &'a Value| {
        let broken = list(&object["promises"]).iter().filter(|promise| promise["state"] == "broken");
        all.extend(broken.map(|promise| BrokenNow {
            name: name.clone(),
            kind: text(&promise["kind"]),
            cause: text(&promise["cause"]),
            seconds: promise["for_seconds"].as_u64().unwrap_or(0),
        }));
    };
    add(vm.to_owned(), now);
    list(&now["volumes"]).iter().for_each(|volume| add(format!("{vm}/{}", text(&volume["volume"])), volume));
    all
}

impl<'a> Answer<'a> {
    /// `events` are those of the VM and its devices from `since` to `now`, in seconds since 1970.
    pub(crate) fn of(vm: &'a str, now: &'a [Value], events: &'a [Value], (since, until): (u64, u64)) -> Answer<'a> {
        let serving = now.iter().map(|object| OnDevice::new(text(&object["device"]), Some(object)));
        let mut devices: Vec<OnDevice<'_>> = serving.collect();
        for event in events {
            let device = text(&event["device"]);
            let known = devices.iter().position(|known| known.device == device);
            let index = known.unwrap_or_else(|| {
                devices.push(OnDevice::new(device, None));
                devices.len() - 1
            });
            devices[index].add(vm, event, since);
        }
        devices.iter_mut().for_each(|device| device.until(vm, (since, until)));
        Answer { vm, devices, seconds: until - since }
    }

    /// The causes of what is so now and of what was, the longest first.
    fn causes(&self) -> Vec<String> {
        let violated = self.devices.iter().any(OnDevice::is_violated);
        sorted(self.devices.iter().filter(|device| device.is_violated() || !violated))
    }

    /// The answer for people.
    pub(crate) fn in_words(&self) -> String {
        let last = span(self.seconds);
        if self.devices.is_empty() {
            return format!("{} is not served now.\n\nIn the last {last} no promise to it was broken.", self.vm);
        }
        let each: Vec<String> = self.devices.iter().map(|device| device.in_words(self.vm, &last)).collect();
        each.join("\n\n")
    }

    /// The answer for programs.
    pub(crate) fn json(&self) -> Value {
        let violation = |device: &str, violation: &Violation| {
            json!({
                "name": violation.name,
                "device": device,
                "kind": violation.kind,
                "count": violation.count,
                "seconds": violation.seconds,
                "lasts": violation.lasts,
                "causes_seconds": violation.causes,
                "detail": violation.detail,
            })
        };
        let violations =
            self.devices.iter().flat_map(|on| on.violations.values().map(|known| violation(on.device, known)));
        let by_device = self.devices.iter().map(|on| {
            let causes = sorted([on]);
            json!({ "device": on.device, "events": on.events, "advice": advice(&causes), "causes": causes })
        });
        let causes = self.causes();
        json!({
            "ok": true,
            "version": 1,
            "vm": self.vm,
            "now": self.devices.iter().filter_map(|device| device.now).collect::<Vec<_>>(),
            "seconds": self.seconds,
            "violations": violations.collect::<Vec<_>>(),
            "devices": self.devices.iter().flat_map(|device| &device.events).collect::<Vec<_>>(),
            "by_device": by_device.collect::<Vec<_>>(),
            "advice": advice(&causes),
            "causes": causes,
            "text": self.in_words(),
        })
    }
}

/// Causes on these devices, the longest first.
fn sorted<'a>(devices: impl IntoIterator<Item = &'a OnDevice<'a>>) -> Vec<String> {
    let mut causes: BTreeMap<String, u64> = BTreeMap::new();
    for (cause, seconds) in devices.into_iter().flat_map(OnDevice::causes) {
        *causes.entry(cause).or_default() += seconds;
    }
    let mut sorted: Vec<(String, u64)> = causes.into_iter().collect();
    sorted.sort_by_key(|(_, seconds)| std::cmp::Reverse(*seconds));
    sorted.into_iter().map(|(cause, _)| cause).collect()
}

fn advice(causes: &[String]) -> Vec<&'static str> {
    let known = |name: &String| Cause::ALL.into_iter().find(|cause| cause.name() == name);
    causes.iter().filter_map(known).map(Cause::advice).collect()
}

impl<'a> OnDevice<'a> {
    fn new(device: &'a str, now: Option<&'a Value>) -> OnDevice<'a> {
        OnDevice { device, now, violations: BTreeMap::new(), events: Vec::new() }
    }

    fn add(&mut self, vm: &str, event: &Value, since: u64) {
        if event["vm"].is_null() {
            self.events.push(super::events::sentence(event));
            return;
        }
        let name = event["volume"].as_str().map_or_else(|| vm.to_owned(), |volume| format!("{vm}/{volume}"));
        let kind = text(&event["kind"]).to_owned();
        let of = self.violations.entry((name.clone(), kind.clone())).or_default();
        (of.name, of.kind) = (name, kind);
        of.add(event, since);
    }

    /// Counts what lasts until the end of the time that is looked at.
    fn until(&mut self, vm: &str, (since, until): (u64, u64)) {
        for violation in self.violations.values_mut().filter(|violation| violation.is_absence()) {
            violation.lasts_since_it_began(until);
        }
        for broken in self.now.map(|now| broken_now(vm, now)).unwrap_or_default() {
            let key = (broken.name.clone(), broken.kind.to_owned());
            self.violations.entry(key).or_default().lasts_now(&broken, until - since);
        }
    }

    /// Whether a promise was broken, or is now.
    fn is_violated(&self) -> bool {
        !self.violations.is_empty()
    }

    /// Whether a volume is held back now.
    fn is_held_back(&self) -> bool {
        self.violations.values().any(|violation| violation.lasts && violation.kind == "held_back")
    }

    /// Seconds by cause; without a violation what holds the VM now.
    fn causes(&self) -> Vec<(String, u64)> {
        let violated = self.violations.values().flat_map(|violation| &violation.causes);
        let mut causes: Vec<(String, u64)> =
            violated.map(|(cause, seconds)| (cause.clone(), (*seconds).max(1))).collect();
        let promises = list(&self.now.unwrap_or(&Value::Null)["promises"]);
        causes.extend(promises.iter().filter_map(|promise| Some((promise["cause"].as_str()?.to_owned(), 1))));
        if causes.is_empty() {
            let held_by = self.now.and_then(|now| now["held_by"].as_str());
            causes.extend(held_by.map(|cause| (cause.to_owned(), 1)));
        }
        causes
    }

    fn in_words(&self, vm: &str, last: &str) -> String {
        let mut lines = vec![match (self.now, self.device) {
            (Some(now), _) => now_in_words(vm, now),
            (None, _) if self.is_held_back() => format!("{vm} has volumes that are held back."),
            (None, "-") => format!("{vm} is not served now."),
            (None, device) => format!("{vm} is not served from device {device} now."),
        }];
        lines.push(String::new());
        if !self.is_violated() {
            lines.push(format!("In the last {last} no promise to it was broken."));
        }
        lines.extend(self.violations.values().map(|violation| violation.in_words(last)));
        if !self.events.is_empty() {
            lines.push(String::new());
            lines.push("Its device meanwhile:".to_owned());
            lines.extend(self.events.iter().map(|sentence| format!("  {sentence}")));
        }
        let advice = advice(&sorted([self]));
        if !advice.is_empty() {
            lines.push(String::new());
            lines.push("What would help:".to_owned());
            lines.extend(advice.into_iter().map(|advice| format!("  {advice}")));
        }
        lines.join("\n")
    }
}

impl Violation {
    fn add(&mut self, event: &Value, since: u64) {
        let (time, seconds) = (event["time"].as_u64().unwrap_or(0), event["seconds"].as_u64().unwrap_or(0));
        let cause = text(&event["cause"]).to_owned();
        self.neighbours = neighbours(event).or(self.neighbours.take());
        if self.is_unserved() {
            self.detail = event["detail"].as_str().map(str::to_owned).or(self.detail.take());
        }
        if event["phase"] == "began" {
            self.count += 1;
            self.began = Some(time);
            self.causes.entry(cause).or_default();
            return;
        }
        // One that began before the time that is looked at.
        if self.began.take().is_none() {
            self.count += 1;
        }
        let seconds = seconds.min(time.saturating_sub(since));
        self.seconds += seconds;
        *self.causes.entry(cause).or_default() += seconds;
    }

    /// Whether it is about requests that fail.
    fn is_failing(&self) -> bool {
        matches!(self.kind.as_str(), "no_space" | "errors" | "source_shortened")
    }

    /// Whether it is about a volume that is not served.
    fn is_unserved(&self) -> bool {
        matches!(self.kind.as_str(), "held_back" | "out_of_service")
    }

    /// Whether it is about a volume that is not served, or about requests that fail: the state of promises says nothing of it.
    fn is_absence(&self) -> bool {
        self.is_failing() || self.is_unserved()
    }

    /// Counts one that has not ended until `now`.
    fn lasts_since_it_began(&mut self, now: u64) {
        if let Some(began) = self.began {
            self.lasts = true;
            self.seconds += now.saturating_sub(began);
        }
    }

    /// Counts one that lasts. One that has begun and neither ended nor lasts was cut off by the end of the daemon.
    fn lasts_now(&mut self, broken: &BrokenNow<'_>, seconds_max: u64) {
        (self.name, self.kind, self.lasts) = (broken.name.clone(), broken.kind.to_owned(), true);
        if self.began.is_none() {
            self.count += 1;
        }
        self.seconds += broken.seconds.min(seconds_max);
        self.causes.entry(broken.cause.to_owned()).or_default();
    }

    fn in_words(&self, last: &str) -> String {
        let what = match self.kind.as_str() {
            "reservation" => "its reservation was broken",
            "latency" => "its latency target was broken",
            "held_back" => "it was held back",
            "out_of_service" => "it was out of service",
            "link_down" => "its interface was down",
            "refused" => "requests of it were refused",
            "queue_stopped" => "a queue of it had stopped",
            "no_space" => "requests failed because there was no space",
            "errors" => "requests failed",
            "source_shortened" => "its source was shorter than the volume",
            other => other,
        };
        let times = if self.count == 1 { "once".to_owned() } else { format!("{} times", self.count) };
        let mut causes: Vec<(&String, &u64)> = self.causes.iter().collect();
        causes.sort_by_key(|(_, seconds)| std::cmp::Reverse(**seconds));
        let causes: Vec<&str> = causes.into_iter().map(|(name, _)| cause(name)).collect();
        let causes = self.detail.clone().unwrap_or_else(|| causes.join(", then "));
        let lasts = match self.lasts {
            true if self.is_failing() => ", and this has not ended",
            true => ", and still is",
            false => "",
        };
        let others = self.neighbours.as_ref().map_or(String::new(), |others| format!(" Served meanwhile: {others}."));
        format!(
            "{}: in the last {last} {what} {times}, for {} in all{lasts}. Cause: {}.{others}",
            self.name,
            span(self.seconds),
            causes.trim_end_matches('.')
        )
    }
}

fn span(seconds: u64) -> String {
    humantime::format_duration(std::time::Duration::from_secs(seconds)).to_string()
}

fn now_in_words(name: &str, vm: &Value) -> String {
    let (ten, parts) = (&vm["rates"]["10s"], &vm["parts"]);
    let mut lines = Vec::new();
    let device = text(&vm["device"]);
    if ten["iops"].as_f64() == Some(0.0) && vm["outstanding"].as_u64() == Some(0) {
        lines.push(format!("{name} asks for nothing on device {device} now."));
    } else {
        lines.push(format!(
            "{name} gets {} normalised iops on device {device}, with a p99 of {} from arrival to completion. It has {} requests \
             outstanding, and had a queue at the gate for {} of the last 10 s.",
            rate(&ten["normalised_iops"]),
            time(&ten["p99_us"]),
            vm["outstanding"],
            percent(&parts["backlogged_percent"]),
        ));
        if let Some(held_by) = vm["held_by"].as_str() {
            lines.push(format!("It does not get more, or sooner, because of: {}.", cause(held_by)));
        }
    }
    let mut all = broken(name, vm);
    for volume in list(&vm["volumes"]) {
        all.extend(broken(&format!("{name}/{}", text(&volume["volume"])), volume));
    }
    lines.extend(all.into_iter().map(|line| format!("BROKEN now: {line}.")));
    lines.extend(super::object::failing(vm));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(time: u64, phase: &str, cause: &str, seconds: u64) -> Value {
        json!({
            "time": time, "phase": phase, "kind": "reservation", "vm": "db", "device": "disk", "cause": cause,
            "seconds": seconds, "neighbours": [{ "vm": "web", "percent": 61.2, "by": "weight" }],
        })
    }

    /// A VM whose reservation is broken now.
    fn broken(cause: &str, seconds: u64) -> Value {
        let promise = json!({
            "kind": "reservation", "state": "broken", "cause": cause, "for_seconds": seconds, "wanted": 100.0, "got": 50.0,
            "unit": "iops",
        });
        json!({
            "device": "disk", "outstanding": 8, "promises": [promise], "volumes": [],
            "rates": { "10s": { "iops": 200.0, "normalised_iops": 200.0, "p99_us": 46_000.0 } },
            "parts": { "backlogged_percent": 100.0 },
        })
    }

    #[test]
    fn violations_on_two_devices_were_one_with_the_causes_of_both() {
        let on = |device: &str, mut value: Value| {
            value["device"] = device.into();
            value
        };
        let now = [on("fast", broken("own_limit", 10)), on("slow", broken("device", 5))];
        let down = json!({
            "time": 1100, "phase": "began", "kind": "down", "device": "slow", "cause": "device", "text": "Device slow does not serve",
        });
        let events =
            [on("fast", event(1190, "began", "own_limit", 0)), on("gone", event(1100, "ended", "batch", 60)), down];
        let answer = Answer::of("db", &now, &events, (1000, 1200));
        let json = answer.json();
        let violations: Vec<_> = list(&json["violations"])
            .iter()
            .map(|one| (text(&one["device"]), one["count"].as_u64().unwrap(), one["seconds"].as_u64().unwrap()))
            .collect();
        assert_eq!(violations, [("fast", 1, 10), ("slow", 1, 5), ("gone", 1, 60)]);
        let causes: Vec<_> = list(&json["by_device"]).iter().map(|one| one["causes"].clone()).collect();
        assert_eq!(causes, [json!(["own_limit"]), json!(["device"]), json!(["batch"])]);
        let words = answer.in_words();
        let parts: Vec<&str> = ["on device fast", "on device slow", "not served from device gone"]
            .iter()
            .map(|start| &words[words.find(start).unwrap_or_else(|| panic!("{start}: {words}"))..])
            .collect();
        let [fast, slow, gone] = [0, 1, 2].map(|index| {
            parts.get(index + 1).map_or(parts[index], |next| &parts[index][..parts[index].len() - next.len()])
        });
        assert!(fast.contains("its own limit") && !fast.contains("does not serve"), "{fast}");
        assert!(slow.contains("for 5s in all") && slow.contains("Device slow does not serve"), "{slow}");
        assert!(gone.contains("a batch of another VM") && !gone.contains("its own limit"), "{gone}");
    }

    #[test]
    fn a_violation_that_began_before_the_time_and_lasts_was_left_out() {
        let now = [broken("device", 7200)];
        let answer = Answer::of("db", &now, &[], (1000, 4600));
        let violation = &answer.json()["violations"][0];
        assert_eq!((violation["count"].as_u64(), violation["seconds"].as_u64()), (Some(1), Some(3600)));
        assert_eq!(violation["lasts"], true);
        assert!(!answer.in_words().contains("no promise to it was broken"), "{}", answer.in_words());
    }

    #[test]
    fn a_violation_that_a_crash_of_the_daemon_cut_off_lasted_for_ever() {
        let events = [event(1100, "began", "device", 0)];
        let answer = Answer::of("db", &[], &events, (1000, 4600));
        let violation = &answer.json()["violations"][0];
        assert_eq!((violation["count"].as_u64(), violation["seconds"].as_u64()), (Some(1), Some(0)));
        assert_eq!(violation["lasts"], false);
    }

    #[test]
    fn a_vm_whose_volume_was_detached_was_said_to_be_held_back() {
        let event = |time, phase: &str, kind: &str, device: &str| {
            json!({
                "time": time, "phase": phase, "kind": kind, "vm": "web", "volume": "x", "device": device,
                "cause": "source_unavailable", "seconds": 20, "detail": "/x.img is a qcow2 image",
            })
        };
        let events = [event(1100, "began", "out_of_service", "disk"), event(1120, "ended", "out_of_service", "disk")];
        let words = Answer::of("web", &[], &events, (1000, 1200)).in_words();
        assert!(words.starts_with("web is not served from device disk now."), "{words}");
        let of_volume =
            "web/x: in the last 3m 20s it was out of service once, for 20s in all. Cause: /x.img is a qcow2 image.";
        assert!(words.contains(of_volume) && words.matches("web/x:").count() == 1, "{words}");
        let held = [event(1100, "began", "held_back", "-")];
        let words = Answer::of("web", &[], &held, (1000, 1200)).in_words();
        assert!(words.starts_with("web has volumes that are held back."), "{words}");
        let over = [event(1100, "began", "held_back", "-"), event(1120, "ended", "held_back", "-")];
        let words = Answer::of("web", &[], &over, (1000, 1200)).in_words();
        assert!(words.starts_with("web is not served now."), "{words}");
    }

    #[test]
    fn violations_are_summed_by_promise_and_cause() {
        let events = [
            event(1010, "ended", "device", 30),
            event(1100, "began", "others_weight", 0),
            event(1140, "ended", "others_weight", 40),
            event(1190, "began", "others_weight", 0),
        ];
        let now = [broken("others_weight", 10)];
        let answer = Answer::of("db", &now, &events, (1000, 1200));
        let json = answer.json();
        let violation = &json["violations"][0];
        assert_eq!((violation["count"].as_u64(), violation["seconds"].as_u64()), (Some(3), Some(60)), "10 + 40 + 10");
        assert_eq!(violation["causes_seconds"], json!({ "device": 10, "others_weight": 40 }));
        assert_eq!((violation["lasts"].as_bool(), json["causes"][0].as_str()), (Some(true), Some("others_weight")));
        let words = answer.in_words();
        for part in [
            "broken 3 times, for 1m in all, and still is",
            "weights of other VMs, then the device",
            "web 61 % (by weight)",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }

    #[test]
    fn a_vm_without_violations_is_told_what_holds_it() {
        let now = [json!({
            "device": "disk", "outstanding": 8, "held_by": "own_limit", "promises": [], "volumes": [],
            "rates": { "10s": { "iops": 200.0, "normalised_iops": 200.0, "p99_us": 46_000.0 } },
            "parts": { "backlogged_percent": 100.0 },
        })];
        let words = Answer::of("web", &now, &[], (0, 3600)).in_words();
        for part in ["gets 200 normalised iops", "because of: its own limit", "last 1h no promise", "Raise the limit"] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }
}
