//! `[uplink.NAME]`: checks of a single uplink.

use sluice_sched::admission::Capacity;
use sluice_sched::scheduler::{DeviceClass, DeviceInfo};
use sluice_sched::{CostModel, GateSettings, Percent};

use crate::device::{DeviceDraft, read_scheduler, window_of};
use crate::model::{Backend, Device, Port, Uplink};
use crate::reader::Reader;
use crate::source::Span;

/// The part of a link that may be reserved, if it is not stated.
const RESERVABLE: Percent = Percent::from_hundredths(7500);
/// Frames at the interface that are not sent yet.
const DEPTH: u32 = 32;

/// An uplink, with data for the checks across tables.
pub(crate) struct UplinkDraft {
    pub(crate) link: DeviceDraft,
    pub(crate) port: Port,
    isolated: bool,
    pub(crate) mtu: u16,
    pub(crate) span: Span,
}

impl UplinkDraft {
    pub(crate) fn read(name: &str, reader: &Reader<'_>) -> UplinkDraft {
        let before = reader.report.errors();
        let port = read_port(reader);
        let isolated = reader.bool("isolated").unwrap_or(false);
        if isolated && !matches!(port, None | Some((_, Port::Bridge(_)))) {
            let hint = "remove it; use bridge, or keep the ports apart on the other side";
            reader.refuse("isolated", "only a bridge has ports that it can isolate", hint);
        }
        // Placeholder for an invalid or missing interface; such a host is rejected.
        let (key, port) = port.unwrap_or(("bridge", Port::Bridge(String::new())));
        let (device, mtu) = (read_link(name, reader), read_mtu(reader, 1500));
        let link = DeviceDraft { device, path_at: reader.at(key), broken: reader.report.errors() > before };
        UplinkDraft { link, port, isolated, mtu, span: reader.span }
    }

    pub(crate) fn uplink(self) -> Uplink {
        Uplink { link: self.link.device, port: self.port, isolated: self.isolated, mtu: self.mtu }
    }

    /// Position of its interface.
    pub(crate) fn port_at(&self) -> Span {
        self.link.path_at
    }
}

/// The key that states its interface, and the interface.
fn read_port(reader: &Reader<'_>) -> Option<(&'static str, Port)> {
    let mut stated = ["bridge", "nic", "tap"].into_iter().filter(|key| reader.node(key).is_some());
    let Some(key) = stated.next() else {
        reader.missing("bridge", ", and so are nic and tap");
        return None;
    };
    for other in stated {
        reader.refuse(other, format!("the uplink already has a {key}"), "keep one of bridge, nic and tap");
    }
    let name = reader.interface(key)?.to_owned();
    Some((
        key,
        match key {
            "bridge" => Port::Bridge(name),
            "nic" => Port::Nic(name),
            _ => Port::Tap(name),
        },
    ))
}

/// Its scheduler, and the properties that the scheduler assumes.
fn read_link(name: &str, reader: &Reader<'_>) -> Device {
    let (cost, device_class) = (CostModel::frames(), DeviceClass::Network);
    let capacity = Capacity { iops: None, bytes: reader.link_rate("rate") };
    let settings = GateSettings { depth: DEPTH, cost, device_class, ..GateSettings::default() };
    let info = DeviceInfo::of(&settings, false, &capacity);
    let (scheduler, params) = read_scheduler(reader, &info, Some(device_class));
    Device {
        name: name.to_owned(),
        table: "uplink",
        device_class,
        paths: Vec::new(),
        backend: Backend::Null,
        scheduler,
        params,
        depth: DEPTH,
        capacity,
        reference: cost.reference_size(),
        rotational: Some(false),
        merging: false,
        busy_poll: false,
        admission: reader.word("admission") != Some("off"),
        reservable: reader.percent("reservable").unwrap_or(RESERVABLE),
        window: window_of(DEPTH),
        cost,
        pool: None,
        delay: None,
        latency: None,
    }
}

/// The `mtu` of an uplink or a NIC.
pub(crate) fn read_mtu(reader: &Reader<'_>, default: u16) -> u16 {
    reader.small("mtu").map_or(default, |mtu| u16::try_from(mtu).expect("the range ends at 65535"))
}
