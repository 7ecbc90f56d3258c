//! Recipes: workloads by name. Those that are a few numbers, those of the papers and of known benchmarks as requests at the
//! block device, and what VMs send into a network.
//!
//! A recipe has a name, a source, and parameters of which each has a default; a scenario names the recipe and changes what
//! it wants to change. What a source leaves open is marked with an A in brackets: an assumption, to be changed and swept.
//! What happens above the block device (directories, a guest's page cache and its writeback) is not there, unless a
//! parameter says so: each recipe states what it leaves out.

use std::collections::VecDeque;

use sluice_sched::params::{ParamError, ParamTable, Parameter};
use sluice_sched::scheduler::Medium;
use sluice_sched::{Instant, Kind};

use super::{Step, Workload, WorkloadRequest};
use crate::named::{parameter, parse, with_defaults};
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

/// Every recipe, by the file in which it is.
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

/// What is known of a recipe.
pub struct WorkloadProfile {
    /// What a scenario calls it.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// Where its numbers are from.
    pub source: &'static str,
    /// What can be changed; the defaults are written as a scenario would write them.
    pub parameters: &'static [Parameter],
    build: fn(BuildContext, &ParamTable) -> Built,
}

/// A workload, or what is wrong with its parameters.
pub type Built = Result<Box<dyn Workload>, ParamError>;

impl core::fmt::Debug for WorkloadProfile {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name)
    }
}

impl WorkloadProfile {
    /// What kind of device it is for.
    #[must_use]
    pub fn medium(&self) -> Medium {
        let of_network = network::PROFILES.iter().any(|known| known.name == self.name);
        if of_network { Medium::Network } else { Medium::Disk }
    }

    /// Makes the workload; `overrides` replaces defaults.
    ///
    /// # Errors
    /// A parameter that does not exist, or has a value that cannot be, or does not fit the volume.
    pub fn build(&self, overrides: &ParamTable, context: BuildContext) -> Built {
        (self.build)(context, &with_defaults(self.parameters, overrides))
    }
}

/// What a workload needs of the VM for which it is made.
#[derive(Debug, Clone)]
pub struct BuildContext {
    /// Length of the VM's volume, in bytes; what is sent into a network has none.
    pub volume: u64,
    /// When it begins.
    pub start: Instant,
    /// What it draws from.
    pub random: Stream,
}

/// Why a workload cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// No such recipe.
    #[error("No workload is called '{name}'; there are: {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// All names.
        known: String,
    },
    /// A parameter that does not exist, or has a value that cannot be.
    #[error("Workload {profile}: {source}")]
    Parameter {
        /// Which one.
        profile: &'static str,
        /// What is accepted.
        #[source]
        source: ParamError,
    },
}

/// All of them.
pub fn all() -> impl Iterator<Item = &'static WorkloadProfile> {
    PROFILES.iter().copied().flatten()
}

/// The one of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static WorkloadProfile> {
    all().find(|profile| profile.name == name)
}

/// Makes the workload of this name; `overrides` replaces defaults.
///
/// # Errors
/// [`RecipeError`]: no such recipe or parameter, or the volume is too small for it.
pub fn build(name: &str, context: BuildContext, overrides: &ParamTable) -> Result<Box<dyn Workload>, ProfileError> {
    let Some(profile) = find(name) else {
        let known: Vec<&str> = all().map(|profile| profile.name).collect();
        return Err(ProfileError::Unknown { name: name.to_owned(), known: known.join(", ") });
    };
    profile.build(overrides, context).map_err(|source| ProfileError::Parameter { profile: profile.name, source })
}

/// Refuses a part that is none.
fn part(name: &str, value: f64) -> Result<(), ParamError> {
    match (0.0..=1.0).contains(&value) {
        true => Ok(()),
        false => Err(ParamError(format!("{name} is {value}; it must be from 0 to 1"))),
    }
}

/// Refuses a size of requests that is none: whole sectors, up to 64 MiB.
fn request(name: &str, bytes: u64) -> Result<u32, ParamError> {
    match bytes.is_multiple_of(512) && (512..=64 << 20).contains(&bytes) {
        true => Ok(bytes as u32),
        false => Err(ParamError(format!("{name} is {bytes} B; it must be a multiple of 512 B, up to 64 MiB"))),
    }
}

/// Refuses what the volume has no room for.
fn fits(what: &str, bytes: u64, volume: u64) -> Result<(), ParamError> {
    match bytes <= volume {
        true => Ok(()),
        false => Err(ParamError(format!(
            "{what} need {bytes} B, but the volume has {volume} B; reduce the workload or enlarge the volume"
        ))),
    }
}

/// A step that asks.
fn ask(kind: Kind, offset: u64, length: u32) -> Step {
    Step::Ask(WorkloadRequest { kind, offset, length })
}

/// A step that asks for everything to be durable.
fn flush() -> Step {
    ask(Kind::Flush, 0, 0)
}

/// Steps over a stretch, in pieces of at most `most` bytes.
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
