//! Figures of VMs and devices, as pages show them and as the stream patches them: both take them from here.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};
use sluice_api::amount::{bits, mib_per_second, percent, rate, time};
use sluice_api::status::{Device, Health, State, Verdict};
use sluice_api::top::{Figures, Rates, Top, Vm};

use crate::text::visible;

/// Text for what is not known or not set.
pub(crate) const NOTHING: &str = "-";

/// What a cell has: text, or attributes of its element, or both.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: Option<String>,
    pub(crate) attributes: Vec<(&'static str, String)>,
}

/// Cells by the names that elements of a page have as `data-cell`.
pub(crate) type Cells = BTreeMap<String, Cell>;

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Cell {
        Cell { text: Some(text.into()), attributes: Vec::new() }
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (&self.text, self.attributes.is_empty()) {
            (Some(text), true) => serializer.serialize_str(text),
            (text, _) => {
                let mut parts = serializer.serialize_seq(Some(2))?;
                parts.serialize_element(text)?;
                parts.serialize_element(&self.attributes.iter().cloned().collect::<BTreeMap<_, _>>())?;
                parts.end()
            }
        }
    }
}

/// A rate in its band from reservation to limit. Lengths are parts of the whole bar, in percent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Band {
    pub(crate) filled: String,
    pub(crate) reserved: Option<String>,
    pub(crate) limit: Option<String>,
    /// `637 of 756 to 2000 iops`.
    pub(crate) text: String,
}

/// A VM or volume.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// Begin of the names of its cells.
    pub(crate) key: String,
    pub(crate) name: String,
    pub(crate) device: String,
    pub(crate) state: State,
    pub(crate) band: Band,
    pub(crate) iops: String,
    pub(crate) throughput: String,
    pub(crate) p99: String,
    pub(crate) outstanding: String,
    pub(crate) failed: String,
    pub(crate) held_by: String,
    pub(crate) weight: String,
}

/// A device or uplink.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DeviceRow {
    pub(crate) key: String,
    pub(crate) name: String,
    pub(crate) is_link: bool,
    pub(crate) health: &'static str,
    pub(crate) load: String,
    pub(crate) full: String,
    pub(crate) measured: String,
    pub(crate) stated: String,
    pub(crate) verdict: &'static str,
    pub(crate) reserved: String,
    pub(crate) p99: String,
    pub(crate) in_flight: String,
    pub(crate) vms: u32,
}

/// The word for a state, as `sluice get vms` has it.
pub(crate) fn word(state: State) -> &'static str {
    match state {
        State::Broken => "BROKEN",
        State::Kept => "kept",
        State::NotAsked => "idle",
        State::Unknown => "unknown",
        State::None => NOTHING,
    }
}

/// An amount in its unit.
#[derive(Clone, Copy)]
enum In {
    Iops,
    Bytes,
    Bits,
}

impl In {
    fn number(self, value: f64) -> String {
        match self {
            In::Iops => rate(value),
            In::Bytes => mib_per_second(value),
            In::Bits => bits(8.0 * value),
        }
    }

    fn unit(self) -> &'static str {
        match self {
            In::Iops => " iops",
            In::Bytes => " MiB/s",
            In::Bits => "",
        }
    }
}

impl Band {
    /// The band in requests or in bytes: the one of whose limit, or else reservation, more is used. `scale` is what the device gives, in requests.
    pub(crate) fn of(figures: &Figures, rates: &Rates, scale: f64) -> Band {
        let (reservation, limit) = (figures.reservation, figures.limit);
        let is_link = rates.bits_per_second.is_some();
        let iops = (rates.iops, reservation.iops, limit.iops);
        let bytes = (
            rates.bits_per_second.map_or(rates.bytes_per_second, |bits| bits / 8.0),
            reservation.bytes_per_second,
            limit.bytes_per_second,
        );
        let used = |(rate, reservation, limit): (f64, Option<f64>, Option<f64>)| {
            limit.or(reservation).map(|of| rate / of.max(f64::MIN_POSITIVE))
        };
        match (used(iops), used(bytes)) {
            (Some(by_iops), Some(by_bytes)) if by_bytes <= by_iops => Band::drawn(iops, scale, In::Iops),
            (Some(_), None) => Band::drawn(iops, scale, In::Iops),
            (None, None) if !is_link => Band::drawn(iops, scale, In::Iops),
            _ => Band::drawn(bytes, 0.0, if is_link { In::Bits } else { In::Bytes }),
        }
    }

    fn drawn((rate, reservation, limit): (f64, Option<f64>, Option<f64>), scale: f64, unit: In) -> Band {
        let end = limit.unwrap_or_else(|| scale.max(rate)).max(reservation.unwrap_or(0.0)).max(f64::MIN_POSITIVE);
        // A little room, so that the end of the band is seen.
        let at = |value: f64| format!("{:.1}", (95.0 * value / end).min(100.0));
        let reservation = reservation.filter(|reserved| *reserved > 0.0);
        let band = match (reservation, limit) {
            (Some(reserved), Some(limit)) => format!(" of {} to {}", unit.number(reserved), unit.number(limit)),
            (Some(reserved), None) => format!(" of {}", unit.number(reserved)),
            (None, Some(limit)) => format!(" up to {}", unit.number(limit)),
            (None, None) => String::new(),
        };
        let text = format!("{}{band}{}", unit.number(rate), unit.unit());
        Band { filled: at(rate), reserved: reservation.map(at), limit: limit.map(at), text }
    }
}

/// The number of requests that have failed, as `sluice get vms` has it, and whether they fail now.
fn failed(count: Option<u64>, is_failing: bool) -> String {
    format!("{}{}", count.unwrap_or(0), if is_failing { " failing" } else { "" })
}

impl Row {
    /// A VM. `devices` are all, for the scale of its band.
    pub(crate) fn of(vm: &Vm, devices: &[Device]) -> Row {
        let key = format!("v/{}/{}", vm.vm, vm.device);
        let is_failing = vm.volumes.iter().any(|volume| !volume.failing.is_empty());
        let row = Row::of_figures(key, vm.vm.clone(), &vm.device, &vm.now, vm.now.rates.unwrap_or_default(), devices);
        Row {
            failed: failed(vm.failed_requests, is_failing),
            held_by: vm.held_by.map_or(NOTHING, |cause| cause.in_words()).to_owned(),
            ..row
        }
    }

    /// The volumes and NICs of a VM.
    pub(crate) fn of_volumes<'a>(vm: &'a Vm, devices: &'a [Device]) -> impl Iterator<Item = Row> + 'a {
        vm.volumes.iter().map(|volume| {
            let key = format!("v/{}/{}/{}", vm.vm, vm.device, volume.volume);
            let rates = volume.now.rates.or(vm.now.rates).unwrap_or_default();
            let row = Row::of_figures(key, volume.volume.clone(), &vm.device, &volume.now, rates, devices);
            Row { failed: failed(volume.failed_requests, !volume.failing.is_empty()), ..row }
        })
    }

    fn of_figures(key: String, name: String, device: &str, figures: &Figures, rates: Rates, devices: &[Device]) -> Row {
        let known = devices.iter().find(|known| known.device == device);
        let capacity = known.map(|known| known.capacity).unwrap_or_default();
        let scale = capacity.measured_iops.or(capacity.stated_iops).unwrap_or(0.0);
        Row {
            key,
            name,
            device: device.to_owned(),
            state: figures.state.unwrap_or(State::None),
            band: Band::of(figures, &rates, scale),
            iops: rate(rates.iops),
            throughput: rates.bits_per_second.map_or_else(|| mib_per_second(rates.bytes_per_second), bits),
            p99: rates.p99_us.map_or(NOTHING.to_owned(), time),
            outstanding: figures.outstanding.to_string(),
            failed: "0".to_owned(),
            held_by: NOTHING.to_owned(),
            weight: figures.weight.map_or(NOTHING.to_owned(), |weight| weight.to_string()),
        }
    }

    /// The word for its state.
    pub(crate) fn word(&self) -> &'static str {
        word(self.state)
    }

    pub(crate) fn state_name(&self) -> &'static str {
        self.state.name()
    }

    pub(crate) fn cells(self, to: &mut Cells) {
        let state =
            Cell { text: Some(self.word().to_owned()), attributes: vec![("data-state", self.state.name().to_owned())] };
        let filled = Cell { text: None, attributes: vec![("width", self.band.filled.clone())] };
        let texts = [
            ("band", self.band.text),
            ("iops", self.iops),
            ("throughput", self.throughput),
            ("p99", self.p99),
            ("outstanding", self.outstanding),
            ("failed", self.failed),
            ("held", self.held_by),
        ];
        let texts = texts.into_iter().map(|(name, text)| (name, Cell::text(visible(&text))));
        let all = [("state", state), ("filled", filled)].into_iter().chain(texts);
        to.extend(all.map(|(name, cell)| (format!("{}/{name}", self.key), cell)));
    }
}

/// A capacity in requests, in bytes, or as bits of an uplink.
fn capacity(is_link: bool, iops: Option<f64>, bytes: Option<f64>) -> String {
    let iops = iops.filter(|_| !is_link).map(|iops| format!("{} iops", rate(iops)));
    let bytes = bytes.map(|bytes| if is_link { bits(8.0 * bytes) } else { format!("{} MiB/s", mib_per_second(bytes)) });
    let both: Vec<String> = iops.into_iter().chain(bytes).collect();
    if both.is_empty() { NOTHING.to_owned() } else { both.join(", ") }
}

impl DeviceRow {
    pub(crate) fn of(device: &Device) -> DeviceRow {
        let (is_link, now) = (device.rates.are_of_link(), &device.rates.second);
        let (held, ten) = (&device.capacity, &device.rates.ten_seconds);
        let reserved_percent = match (held.stated_iops, held.stated_bytes_per_second) {
            (Some(stated), _) if stated > 0.0 && !is_link => Some(100.0 * held.reserved_iops / stated),
            (_, Some(stated)) if stated > 0 => Some(100.0 * held.reserved_bytes_per_second as f64 / stated as f64),
            _ => None,
        };
        DeviceRow {
            key: format!("d/{}", device.device),
            name: device.device.clone(),
            is_link,
            health: health(device.health),
            load: match now.bits_per_second {
                Some(load) => bits(load),
                None => format!("{} iops", rate(now.normalised_iops)),
            },
            full: percent(device.full_percent),
            measured: capacity(is_link, held.measured_iops, held.measured_bytes_per_second),
            stated: capacity(is_link, held.stated_iops, held.stated_bytes_per_second.map(|bytes| bytes as f64)),
            verdict: verdict(held.verdict),
            reserved: reserved_percent.map_or(NOTHING.to_owned(), percent),
            p99: ten.p99_us.map_or(NOTHING.to_owned(), time),
            in_flight: device.in_flight.to_string(),
            vms: device.vms,
        }
    }

    pub(crate) fn cells(self, to: &mut Cells) {
        let texts = [
            ("health", self.health.to_owned()),
            ("load", self.load),
            ("full", self.full),
            ("measured", self.measured),
            ("stated", self.stated),
            ("verdict", self.verdict.to_owned()),
            ("reserved", self.reserved),
            ("p99", self.p99),
            ("in_flight", self.in_flight),
        ];
        to.extend(texts.into_iter().map(|(name, text)| (format!("{}/{name}", self.key), Cell::text(text))));
    }
}

fn health(health: Health) -> &'static str {
    match health {
        Health::Serving => "serving",
        Health::Restarting => "RESTARTING",
        Health::Silent => "SILENT",
        Health::Down => "DOWN",
        Health::Stalled => "STALLED",
        Health::Ended => "ENDED",
        Health::Unknown => "unknown",
    }
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::NotStated => "not stated",
        Verdict::Right => "as stated",
        Verdict::TooHigh => "gives LESS than stated",
        Verdict::TooLow => "gives more than stated",
        Verdict::Unknown => "not full yet",
    }
}

/// The cells of these VMs and devices.
pub(crate) fn cells(
    top: &Top,
    is_shown: impl Fn(&Vm) -> bool,
    with_volumes: bool,
    shows_device: impl Fn(&str) -> bool,
) -> Cells {
    let mut all = Cells::new();
    for vm in top.vms.iter().filter(|vm| is_shown(vm)) {
        Row::of(vm, &top.devices).cells(&mut all);
        if with_volumes {
            Row::of_volumes(vm, &top.devices).for_each(|row| row.cells(&mut all));
        }
    }
    for device in top.devices.iter().filter(|device| shows_device(&device.device)) {
        DeviceRow::of(device).cells(&mut all);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_failed_requests_are_shown_also_when_none_fails_now() {
        let volume = |count, failing| sluice_api::top::Volume {
            failed_requests: Some(count),
            failing,
            ..sluice_api::top::Volume::default()
        };
        let vm = Vm {
            failed_requests: Some(7),
            volumes: vec![volume(5, Vec::new()), volume(2, vec![sluice_api::status::Failing::default()])],
            ..Vm::default()
        };
        let rows: Vec<String> = Row::of_volumes(&vm, &[]).map(|row| row.failed).collect();
        assert_eq!((Row::of(&vm, &[]).failed, rows), ("7 failing".to_owned(), vec!["5".into(), "2 failing".into()]));
    }

    use sluice_api::top::Amount;

    fn band(rate: f64, reservation: Option<f64>, limit: Option<f64>) -> Band {
        let amount = |iops| Amount { iops, bytes_per_second: None };
        let figures = Figures { reservation: amount(reservation), limit: amount(limit), ..Figures::default() };
        Band::of(&figures, &Rates { iops: rate, ..Rates::default() }, 2000.0)
    }

    #[test]
    fn a_rate_has_its_band_in_words_and_as_lengths() {
        let both = band(500.0, Some(750.0), Some(1000.0));
        assert_eq!(both.text, "500 of 750 to 1000 iops");
        let lengths = (both.filled.as_str(), both.reserved.as_deref(), both.limit.as_deref());
        assert_eq!(lengths, ("47.5", Some("71.2"), Some("95.0")));
        assert_eq!(band(500.0, None, None).text, "500 iops");
        assert_eq!(band(0.0, Some(0.0), Some(10.0)).text, "0 up to 10.0 iops");
        assert_eq!(band(5000.0, None, Some(10.0)).filled, "100.0", "a burst does not leave the bar");
        let limit = Amount { iops: Some(1000.0), bytes_per_second: Some(1_048_576.0) };
        let rates = Rates { iops: 1.0, bytes_per_second: 524_288.0, ..Rates::default() };
        assert_eq!(Band::of(&Figures { limit, ..Figures::default() }, &rates, 0.0).text, "0.50 up to 1.00 MiB/s");
    }

    #[test]
    fn a_cell_is_its_text_or_has_attributes() {
        let json = |cell: &Cell| serde_json::to_string(cell).unwrap();
        assert_eq!(json(&Cell::text("5")), "\"5\"");
        let width = Cell { text: None, attributes: vec![("width", "5".to_owned())] };
        assert_eq!(json(&width), "[null,{\"width\":\"5\"}]");
    }
}
