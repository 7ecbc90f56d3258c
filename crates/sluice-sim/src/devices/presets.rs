//! Device presets: specific devices by name, each a model with its own default parameters.
//!
//! Values of data sheets are marked so; values that are typical of a class without a source are marked `[A]`.

use sluice_sched::params::{ParamTable, Parameter};

use crate::named::written;

/// Description of a preset.
pub struct DevicePreset {
    /// Name in a scenario.
    pub name: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    /// Origin of its values.
    pub source: &'static str,
    /// Its model.
    pub kind: &'static str,
    /// Random reads of 4 KiB per second, one at a time, within 5 %; a test measures them.
    pub reads: f64,
    /// Values that differ from the model's defaults, as written in a scenario.
    pub numbers: &'static [(&'static str, &'static str)],
}

impl DevicePreset {
    /// Its values, overridden by `stated`.
    pub(crate) fn with(&self, stated: &ParamTable) -> ParamTable {
        let own = self.numbers.iter().map(|(name, value)| ((*name).to_owned(), written(value)));
        own.chain(stated.clone()).collect()
    }

    /// Parameters of its model, with its own values as defaults.
    pub(crate) fn own(&self, parameters: impl Iterator<Item = Parameter>) -> Vec<Parameter> {
        let own = |name: &str| self.numbers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        parameters.map(|known| Parameter { default: own(known.name).unwrap_or(known.default), ..known }).collect()
    }
}

/// All presets.
pub const DEVICES: &[DevicePreset] = &[
    DevicePreset {
        name: "sata-7200-1tb",
        summary: "SATA disk of 1 TB, about 2010: 78 random reads of 4 KiB per second, one at a time",
        source: "rates and average seek as in data sheets and reviews of its class; ends of the seek curve [A]",
        kind: "hdd",
        reads: 77.7,
        numbers: &[("drive", "\"sata-7200-1tb\"")],
    },
    DevicePreset {
        name: "fc-15k-146",
        summary: "Fibre Channel disk of 146 GB: 178 random reads of 4 KiB per second, one at a time",
        source: "[mclock] 3 says 200 to 250 IOPS of such disks; numbers typical of the class [A]",
        kind: "hdd",
        reads: 178.0,
        numbers: &[("drive", "\"fc-15k-146\"")],
    },
    DevicePreset {
        name: "sas-15k-450",
        summary: "SAS disk of 450 GB: 181 random reads of 4 KiB per second, one at a time",
        source: "numbers typical of the class [A]",
        kind: "hdd",
        reads: 181.0,
        numbers: &[("drive", "\"sas-15k-450\"")],
    },
    DevicePreset {
        name: "raid0-10x-fc-15k-146",
        summary: "RAID-0 of ten disks of 146 GB: 1,470 to 2,060 random reads of 16 KiB per second, 32 at a time",
        source: "[mclock] 5.1: ten disks, about 1,600 IOPS",
        kind: "raid0",
        reads: 178.0,
        numbers: &[("disks", "10"), ("drive", "\"fc-15k-146\"")],
    },
    DevicePreset {
        name: "raid5-10x-fc-15k-146",
        summary: "RAID-5 of ten disks of 146 GB",
        source: "[mclock] 5.1: RAID-5 of ten disks",
        kind: "raid5",
        reads: 178.0,
        numbers: &[("disks", "10"), ("drive", "\"fc-15k-146\"")],
    },
    DevicePreset {
        name: "raid5-6x-fc-15k-146",
        summary: "RAID-5 of six disks of 146 GB: a node in dmClock's experiments",
        source: "[mclock] 5.2: RAID-5 of six disks, about 1,500 IOPS",
        kind: "raid5",
        reads: 178.0,
        numbers: &[("disks", "6"), ("drive", "\"fc-15k-146\"")],
    },
    DevicePreset {
        name: "raid0-4x-sata-7200-1tb",
        summary: "RAID-0 of four SATA disks of 1 TB",
        source: "as its disks",
        kind: "raid0",
        reads: 77.7,
        numbers: &[("disks", "4"), ("drive", "\"sata-7200-1tb\"")],
    },
    DevicePreset {
        name: "ssd-sata-400-consumer",
        summary: "SATA SSD of 400 GB with 7 % spare area, two bits per cell, aged",
        source: "times, channels and pages are MQSim's defaults; spare area as in reviews of consumer drives; overhead, \
                 reserve and buffer [A]",
        kind: "ssd",
        // 10 us for the command, 75 us for the flash, 25 us for the channel, 7 us for the bus.
        reads: 8550.0,
        numbers: &[
            ("dies", "4"),
            ("planes", "2"),
            ("blocks", "3189"),
            ("pages", "256"),
            ("overhead", "\"10us\""),
            ("buffer", "\"32MiB\""),
            ("state", "\"aged\""),
        ],
    },
];

#[cfg(test)]
mod tests {
    use sluice_sched::gate::Slot;
    use sluice_sched::params::Value;
    use sluice_sched::{Instant, Kind};

    use super::*;
    use crate::devices::{Job, Model};
    use crate::random::stream;
    use crate::scenario::models::{BuildContext, find};

    fn table(overrides: &[(&str, &str)]) -> ParamTable {
        overrides.iter().map(|(name, value)| ((*name).to_owned(), written(value))).collect()
    }

    fn capacity(name: &str, overrides: &[(&str, &str)]) -> u64 {
        find(name).unwrap().derive(&table(overrides)).unwrap().span
    }

    fn make(name: &str, overrides: &[(&str, &str)]) -> Box<dyn Model> {
        find(name).unwrap().build(&table(overrides), &BuildContext::default()).unwrap()
    }

    /// Random reads of 4 KiB per second with `depth` outstanding.
    fn reads(name: &str, overrides: &[(&str, &str)], depth: u32) -> f64 {
        let (mut model, pages) = (make(name, overrides), capacity(name, overrides) / 4096);
        let mut random = stream(1, "reads");
        let mut job = |slot| Job { slot, kind: Kind::Read, offset: random.below(pages) * 4096, length: 4096 };
        (0..depth).for_each(|slot| model.submit(Instant::ZERO, job(Slot(slot))));
        model.settle(Instant::ZERO);
        let (count, mut now) = (2000, Instant::ZERO);
        for _ in 0..count {
            now = model.next().unwrap().max(now);
            let slot = model.take(now).unwrap();
            model.submit(now, job(slot));
            model.settle(now);
        }
        f64::from(count) / now.since(Instant::ZERO).as_secs_f64()
    }

    #[test]
    fn every_preset_is_as_fast_as_stated() {
        // An SSD of 400 GB needs more memory than a test should: a smaller one of the same kind.
        let small = [("blocks", "770"), ("pages", "8"), ("aged_by", "0.0")];
        for preset in DEVICES {
            let overrides = if preset.kind == "ssd" { &small[..] } else { &[] };
            let off = reads(preset.name, overrides, 1) / preset.reads - 1.0;
            assert!(off.abs() < 0.05, "{}: {off:+.3} of {}", preset.name, preset.reads);
        }
    }

    #[test]
    fn capacities_and_overrides_are_taken() {
        assert_eq!(capacity("sata-7200-1tb", &[]), 1_000_000_000_000);
        assert_eq!(capacity("raid5-6x-fc-15k-146", &[]), 5 * 146_000_000_000);
        assert_eq!(capacity("raid0-10x-fc-15k-146", &[("disks", "2")]), 2 * 146_000_000_000);
        assert_eq!(capacity("ssd-sata-400-consumer", &[]) / 1_000_000_000, 400);
        assert!((reads("sata-7200-1tb", &[("queue", "32")], 32) / 175.0 - 1.0).abs() < 0.05);
        assert!(reads("sata-7200-1tb", &[("rpm", "15000"), ("overhead", "\"100us\"")], 1) > 85.0);
    }

    #[test]
    fn a_preset_replaces_the_defaults_of_its_model() {
        let set = find("raid5-6x-fc-15k-146").unwrap();
        let default = |name: &str| set.parameters().iter().find(|known| known.name == name).unwrap().default;
        assert_eq!((default("disks"), default("drive"), default("stripe")), ("6", "\"fc-15k-146\"", "\"64KiB\""));
        for set in DEVICES {
            let known = find(set.name).unwrap().parameters();
            for (name, value) in set.numbers {
                assert!(
                    known.iter().any(|known| known.name == *name && known.default == *value),
                    "{}: {name}",
                    set.name
                );
            }
        }
    }

    #[test]
    fn impossible_parameters_are_rejected() {
        let cases = [
            ("sata-7200-1tb", "qeue", Value::Integer(1), "unknown field `qeue`"),
            ("sata-7200-1tb", "rpm", Value::Integer(1), "rpm is 1; it must be from 1000 to 30000"),
            ("sata-7200-1tb", "seek_full", written("\"1ms\""), "seek_track, seek_average and seek_full must be"),
            ("sata-7200-1tb", "inner_rate", written("\"1GB/s\""), "inner_rate is above outer_rate"),
            ("raid5-6x-fc-15k-146", "disks", Value::Integer(2), "disks is 2; it must be from 3 to 256"),
            ("raid5-6x-fc-15k-146", "disk", Value::Integer(2), "unknown field `disk`"),
            ("raid0-4x-sata-7200-1tb", "stripe", written("\"100B\""), "stripe is 100B; it must be from 512B to 1GiB"),
            ("raid0-4x-sata-7200-1tb", "stripe", written("\"1000B\""), "stripe is 1000B; it must be a multiple"),
            ("ssd-sata-400-consumer", "blocks", Value::Integer(128), "A plane of 128 blocks"),
            ("ssd-sata-400-consumer", "spare", Value::Integer(0), "spare is 0; it must be from 0.01"),
        ];
        for (name, parameter, value, expected) in cases {
            let stated = ParamTable::from([(parameter.to_owned(), value)]);
            let error = find(name).unwrap().derive(&stated).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{name}: {error}");
        }
    }
}
