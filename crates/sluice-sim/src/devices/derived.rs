//! Properties that follow from a device's parameters, without building it.

use std::time::Duration;

use sluice_sched::params::ParamError;

use super::hdd::{HddSpec, SeekCurve};
use super::ssd::{Geometry, SsdSpec};

/// Maximum number of pages of a flash drive: their map takes some GiB of memory.
const PAGES_MAX: u64 = 200_000_000;

#[derive(Debug, Clone, PartialEq)]
pub struct Derived {
    /// Size in bytes.
    pub span: u64,
    /// Maximum number of requests per second, and their kind.
    pub most: (f64, &'static str),
    /// Further properties: name and value.
    pub facts: Vec<(&'static str, String)>,
    /// Whether adjacent requests cost much less.
    pub rotational: bool,
}

impl Derived {
    /// Properties of `disks` disks, of which `parities` hold parity.
    pub(crate) fn of_disks(spec: &HddSpec, disks: u64, parities: u64) -> Self {
        let one = 1.0 / alone(spec);
        let mut facts = vec![
            ("random reads of 4KiB, one at a time", format!("{one:.0} iops")),
            ("sequential, outer zone", format!("{:.0} MB/s", spec.rates.0 * (disks - parities) as f64 / 1e6)),
        ];
        if disks > 1 {
            facts.push(("disks", disks.to_string()));
        }
        let most = (one * disks as f64, "random reads of 4KiB without sorting; sorted or sequential reads are faster");
        Derived { span: spec.capacity * (disks - parities), most, facts, rotational: true }
    }

    /// Properties of a flash drive; `aged` is its initial state.
    ///
    /// Example with the default parameters: a spare area of 7 % gives a write amplification of 1.07 / 0.14 = 7.6. A page
    /// then takes its plane 0.75 + 6.6 x 0.825 + 7.6 x 3.8 / 128 = 6.5 ms, so 8 planes write 1,240 pages per second.
    pub(crate) fn of_flash(spec: &SsdSpec, aged: bool) -> Self {
        let Geometry { pages, page_bytes, blocks, spare, reserve, channels, .. } = spec.geometry;
        let planes = f64::from(spec.geometry.planes_in_all());
        let seconds = |time: Duration| time.as_secs_f64();
        let read = planes / seconds(spec.read);
        let channels = f64::from(channels) * spec.channel / f64::from(page_bytes);
        let bus = spec.bus / f64::from(page_bytes);
        let most = read.min(channels).min(bus);
        let clean = (planes / seconds(spec.program)).min(channels).min(bus);
        let amplification = (1.0 + spare) / (2.0 * spare);
        // Cost of a page, by the formula in the model's documentation.
        let used = seconds(spec.program)
            + (amplification - 1.0) * seconds(spec.read + spec.program)
            + amplification * seconds(spec.erase) / f64::from(pages);
        let spare_blocks = f64::from(blocks) * spare / (1.0 + spare);
        let facts = vec![
            ("random writes of one page, clean", format!("{clean:.0} iops")),
            ("random writes of one page, aged", format!("about {:.0} iops", planes / used)),
            ("write amplification, aged", format!("about {amplification:.1}")),
            ("spare blocks of a plane", format!("{spare_blocks:.0}, of which {reserve} stay free")),
            ("state", if aged { "aged" } else { "clean" }.to_owned()),
        ];
        let span = spec.geometry.host_pages() * u64::from(page_bytes);
        Derived { span, most: (most, "reads of one page"), facts, rotational: false }
    }
}

/// Rejects a geometry that is impossible, or too large for memory.
pub(crate) fn check_geometry(geometry: &Geometry) -> Result<(), ParamError> {
    let physical = u64::from(geometry.planes_in_all()) * u64::from(geometry.blocks) * u64::from(geometry.pages);
    if physical > PAGES_MAX {
        return Err(ParamError(format!("{physical} pages are too many to simulate; use at most {PAGES_MAX}")));
    }
    geometry.check().map_err(|error| ParamError(error.to_string()))
}

/// Seconds that a disk takes for a small random request, one at a time: overhead, seek, half a revolution and transfer.
///
/// Example: the SATA disk of 7,200 rpm takes 0.2 + 8.5 + 4.17 + 0.04 = 12.9 ms, 78 requests per second.
fn alone(spec: &HddSpec) -> f64 {
    let seek = match &spec.seek {
        SeekCurve::Formula { average, .. } => *average,
        // The mean distance of two positions is a third of the stroke.
        table @ SeekCurve::Table(_) => table.time(1.0 / 3.0),
    };
    let transfer = 4096.0 / ((spec.rates.0 + spec.rates.1) / 2.0);
    spec.overhead.as_secs_f64() + seek + 30.0 / f64::from(spec.rpm) + transfer
}
