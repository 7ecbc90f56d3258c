//! The device of a trial.

use std::time::Duration;

use sluice_sim::devices::Model;

use crate::band::BandPoint;
use crate::device::{DeviceFile, ModelFile};
use crate::figure::LabError;

/// The device of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Device {
    /// Serves this number of requests per second, one at a time.
    Constant(f64),
    /// Serves as many requests at a time as its depth, each for an exponentially distributed time with this mean.
    Servers(Duration),
    /// The model of a device file.
    Drive { file: &'static str, form: Form },
}

/// What of a device file is the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Form {
    /// All of it, as it is.
    AsFile,
    /// A single one of its drives.
    Single,
    /// A drive that sorts this number of commands.
    Queue(u32),
    /// Its drives as RAID-5, with a write cache and a read-ahead of these sizes in bytes.
    Raid5 { cache: u64, read_ahead: u64 },
    /// A flash drive after much use.
    Aged,
}

impl Form {
    /// The model of a device file.
    pub(super) fn model(self, file: &str) -> Result<Box<dyn Model>, LabError> {
        let (mut file, point) = (DeviceFile::load(file)?, &BandPoint::NOMINAL);
        match (self, &mut file.model) {
            (Form::Single, _) => return file.drive(point),
            (Form::Raid5 { cache, read_ahead }, _) => return Ok(file.as_raid5(cache, read_ahead).model(point)),
            (Form::Queue(queue), ModelFile::Drives { drive, .. }) => drive.queue = queue,
            (Form::Aged, ModelFile::Ssd(drive)) => return Ok(Box::new(drive.aged(point)?)),
            _ => {}
        }
        Ok(file.model(point))
    }
}
