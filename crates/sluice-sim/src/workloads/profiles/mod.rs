//! Workload profiles: named workloads. Simple ones with a few parameters, those of the papers and of known benchmarks
//! as requests at the block device, and network traffic of VMs.
//!
//! A profile has a name, a source, and parameters with defaults. A scenario names the profile and overrides parameters.
//! Values that a source does not state are marked `[A]`: an assumption, to be changed and swept. Effects above the
//! block device (directories, a guest's page cache and its writeback) are left out, unless a parameter covers them;
//! each profile states what it leaves out.

use std::collections::VecDeque;

use sluice_sched::params::{ParamError, ParamTable, Parameter};
use sluice_sched::scheduler::DeviceClass;
use sluice_sched::{Instant, Kind};

use super::{Step, Workload, WorkloadRequest};
use crate::named::{check, parameter, parse, ranged, with_defaults};
use crate::random::Stream;

mod backup;
mod dvdstore;
mod ffsb;
mod filebench_files;
mod filebench_oltp;
mod iometer;
mod lookalike;
mod network;
mod plain;
mod sysbench;

pub use sysbench::sysbench_processes;

/// All profiles, by file.
pub const PROFILES: &[&[WorkloadProfile]] = &[
    plain::PROFILES,
    sysbench::PROFILES,
    iometer::PROFILES,
    filebench_files::PROFILES,
    filebench_oltp::PROFILES,
    ffsb::PROFILES,
    dvdstore::PROFILES,
    backup::PROFILES,
    lookalike::PROFILES,
    network::PROFILES,
];

/// Description of a profile.
pub struct WorkloadProfile {
    /// Name in a scenario.
    pub name: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    /// Origin of its values.
    pub source: &'static str,
    device_class: DeviceClass,
    /// Parameters, with defaults as written in a scenario.
    pub parameters: &'static [Parameter],
    build: fn(BuildContext, &ParamTable) -> Built,
}

/// A workload, or the error of its parameters.
pub type Built = Result<Box<dyn Workload>, ParamError>;

impl core::fmt::Debug for WorkloadProfile {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name)
    }
}

impl WorkloadProfile {
    /// A profile for disks without a name: what a profile need not state. It does not build.
    const BASE: WorkloadProfile = WorkloadProfile {
        name: "",
        summary: "",
        source: "",
        device_class: DeviceClass::Disk,
        parameters: &[],
        build: |_, _| Err(ParamError(String::new())),
    };

    /// Kind of device that it is for.
    #[must_use]
    pub const fn device_class(&self) -> DeviceClass {
        self.device_class
    }

    /// Builds the workload; `overrides` replaces defaults.
    ///
    /// # Errors
    /// An unknown parameter, an invalid value, or a volume that is too small.
    pub fn build(&self, overrides: &ParamTable, context: BuildContext) -> Built {
        check(self.parameters, overrides)?;
        (self.build)(context, &with_defaults(self.parameters, overrides))
    }
}

/// Input of a workload from its VM.
#[derive(Debug, Clone)]
pub struct BuildContext {
    /// Size of the VM's volume in bytes; network traffic has none.
    pub volume: u64,
    /// Start of the workload.
    pub start: Instant,
    /// Its random numbers.
    pub random: Stream,
}

/// A workload that cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// Unknown profile.
    #[error("No workload is called '{name}'; there are: {known}")]
    Unknown {
        /// The requested name.
        name: String,
        /// All names.
        known: String,
    },
    /// An unknown parameter, or an invalid value.
    #[error("Workload {profile}: {source}")]
    Parameter {
        profile: &'static str,
        #[source]
        source: ParamError,
    },
}

/// All profiles.
pub fn all() -> impl Iterator<Item = &'static WorkloadProfile> {
    PROFILES.iter().copied().flatten()
}

/// The profile with that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static WorkloadProfile> {
    all().find(|profile| profile.name == name)
}

/// Builds the workload with this name; `overrides` replaces defaults.
///
/// # Errors
/// [`ProfileError`]: an unknown profile or parameter, or a volume that is too small.
pub fn build(name: &str, context: BuildContext, overrides: &ParamTable) -> Result<Box<dyn Workload>, ProfileError> {
    let Some(profile) = find(name) else {
        let known: Vec<&str> = all().map(|profile| profile.name).collect();
        return Err(ProfileError::Unknown { name: name.to_owned(), known: known.join(", ") });
    };
    profile.build(overrides, context).map_err(|source| ProfileError::Parameter { profile: profile.name, source })
}

/// Rejects a request size other than whole sectors up to 64 MiB.
fn request(name: &str, bytes: u64) -> Result<u32, ParamError> {
    match bytes.is_multiple_of(512) && (512..=64 << 20).contains(&bytes) {
        true => Ok(bytes as u32),
        false => Err(ParamError(format!("{name} is {bytes} B; it must be a multiple of 512 B, up to 64 MiB"))),
    }
}

/// Rejects what does not fit the volume.
fn fits(what: &str, bytes: u64, volume: u64) -> Result<(), ParamError> {
    match bytes <= volume {
        true => Ok(()),
        false => Err(ParamError(format!(
            "{what} need {bytes} B, but the volume has {volume} B; reduce the workload or enlarge the volume"
        ))),
    }
}

/// A step with a request.
fn ask(kind: Kind, offset: u64, length: u32) -> Step {
    Step::Ask(WorkloadRequest { kind, offset, length })
}

/// A step with a flush.
fn flush() -> Step {
    ask(Kind::Flush, 0, 0)
}

/// Steps over a range, in requests of at most `most` bytes.
fn stretch(steps: &mut VecDeque<Step>, kind: Kind, offset: u64, length: u64, most: u32) {
    let mut done = 0;
    while done < length {
        let piece = (length - done).min(u64::from(most)) as u32;
        steps.push_back(ask(kind, offset + done, piece));
        done += u64::from(piece);
    }
}

#[cfg(test)]
mod tests;
