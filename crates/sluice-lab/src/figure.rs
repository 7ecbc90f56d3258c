//! A table or figure of a paper: what is set up, what must come out, and what came out.

use serde::{Deserialize, Serialize};
use sluice_report::{Chart, Table};

use crate::band::BandPoint;

/// The five papers, and what is no paper's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Paper {
    /// Gulati, Merchant, Varman: mClock, OSDI 2010.
    Mclock,
    /// Flubber: two-level disk scheduling in virtualised environments.
    Flubber,
    /// MCFQ: fairness among VMs on solid-state drives.
    Mcfq,
    /// Performance isolation of virtual NICs in Xen.
    Netback,
    /// Two-tier disk scheduling in Xen.
    TwoTier,
    /// Mechanisms of all of them, each off and on.
    Ablations,
}

impl Paper {
    /// Every one.
    pub const ALL: [Paper; 6] =
        [Paper::Mclock, Paper::Flubber, Paper::Mcfq, Paper::Netback, Paper::TwoTier, Paper::Ablations];

    /// What it is called where it is read.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Paper::Mclock => "mClock: handling throughput variability for hypervisor I/O scheduling (OSDI 2010)",
            Paper::Flubber => "Flubber: two-level disk scheduling in virtualized environments",
            Paper::Mcfq => "MCFQ: slices of CFQ corrected by bandwidth, for virtual machines that share an SSD",
            Paper::Netback => "On the performance isolation across virtual network adapters in Xen",
            Paper::TwoTier => "Two-tier disk scheduling in Xen",
            Paper::Ablations => "Mechanisms of the papers, each off and on",
        }
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Paper::Mclock => "mclock",
            Paper::Flubber => "flubber",
            Paper::Mcfq => "mcfq",
            Paper::Netback => "netback",
            Paper::TwoTier => "two-tier",
            Paper::Ablations => "ablations",
        }
    }
}

/// How a row is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// Must hold on any device.
    #[serde(rename = "E")]
    Exact,
    /// Must hold in at least nine of ten points of the band.
    #[serde(rename = "S")]
    Shape,
    /// Shown beside the paper's, without a verdict.
    #[serde(rename = "H")]
    Hardware,
}

/// One row of the acceptance table.
#[derive(Debug)]
pub struct RowSpec {
    /// `M1a`, for example.
    pub id: &'static str,
    /// How it is judged.
    pub class: Class,
    /// What must come out, with the tolerance.
    pub must: &'static str,
    /// What the paper has.
    pub paper: &'static str,
    /// What is to be said beside it; of a row that fails: why, and which run shows it.
    pub note: &'static str,
}

/// A table or figure.
pub struct Figure {
    /// Its name on the command line.
    pub id: &'static str,
    /// Whose it is.
    pub paper: Paper,
    /// What the paper calls it: `Fig. 3`.
    pub label: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// The set-up: device, workloads, policies, and what had to be assumed.
    pub setup: &'static str,
    /// The file in `devices/` that it runs on; empty where it states a constant rate of its own.
    pub device: &'static str,
    /// Its rows.
    pub rows: &'static [RowSpec],
    /// Runs it at one point of the band.
    pub run: fn(&BandPoint) -> Result<Finding, LabError>,
}

/// What came out at one point.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Finding {
    /// One for each row of the figure.
    pub rows: Vec<Judged>,
    /// What was measured, baselines beside it.
    pub tables: Vec<Table>,
    /// The figure.
    pub charts: Vec<Chart>,
}

/// A row at one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Which row.
    pub id: String,
    /// Whether what must come out came out; nothing where there is no verdict.
    pub holds: Option<bool>,
    /// What came out, with its unit.
    pub measured: String,
}

impl Finding {
    /// A row that is judged.
    pub fn judge(&mut self, id: &str, holds: bool, measured: impl Into<String>) -> &mut Self {
        self.rows.push(Judged { id: id.into(), holds: Some(holds), measured: measured.into() });
        self
    }

    /// A row that is shown.
    pub fn show(&mut self, id: &str, measured: impl Into<String>) -> &mut Self {
        self.rows.push(Judged { id: id.into(), holds: None, measured: measured.into() });
        self
    }
}

/// Why a figure has no result.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A simulation broke a law: its numbers are worth nothing.
    #[error("A self-check of {0} failed: {1}")]
    Broken(String, sluice_sim::checks::Violation),
    /// A device file is wrong.
    #[error("Device file {0}: {1}")]
    Device(String, String),
    /// A gate, a scheduler or a model refused its settings.
    #[error("{0}")]
    Refused(String),
    /// A result could not be kept.
    #[error("Cannot write {0}: {1}")]
    Write(String, std::io::Error),
}
