//! A table or figure of a paper: its set-up, the expected results, and the results.

use serde::{Deserialize, Serialize};
use sluice_report::{Chart, Table};

use crate::band::BandPoint;

/// The five papers, and a group of our own.
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
    /// Mechanisms of all papers, each off and on.
    Ablations,
}

impl Paper {
    pub const ALL: [Paper; 6] =
        [Paper::Mclock, Paper::Flubber, Paper::Mcfq, Paper::Netback, Paper::TwoTier, Paper::Ablations];

    /// Title in reports.
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

    /// Name on the command line.
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

/// Kind of check of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// A check of our own that a scheduler does what it is configured to do, with tolerances of our own. Must hold wherever it is run.
    #[serde(rename = "C")]
    Conformance,
    /// Must hold at nine of ten points of the range or more, with every seed.
    #[serde(rename = "S")]
    Shape,
    /// Shown next to the paper's value, without a check.
    #[serde(rename = "H")]
    Hardware,
}

/// One row of the acceptance table.
#[derive(Debug)]
pub struct RowSpec {
    /// `M1a`, for example.
    pub id: &'static str,
    /// Kind of its check.
    pub class: Class,
    /// Expected result, with its tolerance.
    pub must: &'static str,
    /// Value of the paper.
    pub paper: &'static str,
    /// Note; for a row that fails: the reason, and the run that shows it.
    pub note: &'static str,
}

/// A table or figure.
pub struct Figure {
    /// Name on the command line.
    pub id: &'static str,
    pub paper: Paper,
    /// Name in the paper, such as `Fig. 3`.
    pub label: &'static str,
    /// Subject.
    pub title: &'static str,
    /// Set-up: device, workloads, policies, and assumptions.
    pub setup: &'static str,
    /// Its file in `devices/`; empty if it states a constant rate itself.
    pub device: &'static str,
    pub rows: &'static [RowSpec],
    /// Runs it at one point of the range.
    pub run: fn(&BandPoint) -> Result<Finding, LabError>,
}

/// Results at one point.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Finding {
    /// One for each row of the figure.
    pub rows: Vec<Judged>,
    /// Measurements, with baselines.
    pub tables: Vec<Table>,
    pub charts: Vec<Chart>,
}

/// Result of a row at one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    pub id: String,
    /// Whether the expected result was reached; `None` without a check, or if the row's precondition is not met at this point.
    pub holds: Option<bool>,
    /// Measured value, with its unit.
    pub measured: String,
    /// Means that the paper prints, each with the one measured; empty if the row has none.
    #[serde(default)]
    pub means: Vec<(f64, f64)>,
    /// Effects that the paper prints as relative changes, each with the one measured; empty if the row has none.
    #[serde(default)]
    pub effects: Vec<(f64, f64)>,
}

impl Judged {
    /// A row without a check.
    #[must_use]
    pub fn new(id: &str, measured: impl Into<String>) -> Judged {
        Judged { id: id.into(), holds: None, measured: measured.into(), means: Vec::new(), effects: Vec::new() }
    }

    /// Adds means that the paper prints, each with the one measured.
    pub fn means(&mut self, means: impl IntoIterator<Item = (f64, f64)>) -> &mut Judged {
        self.means.extend(means);
        self
    }
}

/// Whether a measured effect has the direction of the printed one and at least half of its size.
#[must_use]
pub fn is_half(printed: f64, measured: f64) -> bool {
    measured * printed.signum() >= 0.5 * printed.abs()
}

impl Finding {
    fn add(&mut self, row: Judged) -> &mut Judged {
        self.rows.push(row);
        self.rows.last_mut().expect("just added")
    }

    /// Adds a row that is checked.
    pub fn judge(&mut self, id: &str, holds: bool, measured: impl Into<String>) -> &mut Judged {
        self.judge_if(true, id, holds, measured)
    }

    /// Adds a row that is checked where its precondition is met.
    pub fn judge_if(&mut self, met: bool, id: &str, holds: bool, measured: impl Into<String>) -> &mut Judged {
        self.add(Judged { holds: met.then_some(holds), ..Judged::new(id, measured) })
    }

    /// Adds a row that holds if `others` does and if each effect, printed and measured, has at least half of its printed size.
    pub fn judge_effects(
        &mut self,
        id: &str,
        others: bool,
        measured: impl Into<String>,
        effects: Vec<(f64, f64)>,
    ) -> &mut Judged {
        let holds = others && effects.iter().all(|(printed, measured)| is_half(*printed, *measured));
        self.add(Judged { holds: Some(holds), effects, ..Judged::new(id, measured) })
    }

    /// Adds a row that is only shown.
    pub fn show(&mut self, id: &str, measured: impl Into<String>) -> &mut Judged {
        self.add(Judged::new(id, measured))
    }
}

/// A figure without a result.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A simulation violated an invariant, so its results are invalid.
    #[error("A self-check of {0} failed: {1}")]
    Broken(String, sluice_sim::checks::Violation),
    /// A device file is invalid.
    #[error("Device file {0}: {1}")]
    Device(String, String),
    /// A gate, a scheduler or a model rejected its parameters.
    #[error("{0}")]
    Refused(String),
    /// A result could not be stored.
    #[error("Cannot write {0}: {1}")]
    Write(String, std::io::Error),
}
