//! Arguments of the laboratory's verbs.
//!
//! `sluice` checks, explains and completes them, and `sluice-lab` carries them out.

use clap::Subcommand;

mod advise;
mod reproduce;
mod schema;
mod sim;

pub use advise::{Advise, Counts, RingKind};
pub use reproduce::Reproduce;
pub use schema::{Described, Schema};
pub use sim::{Check, Log, Report, Run, Sim, SimVerb, Sweep};

/// The verbs that only the laboratory carries out.
#[derive(Subcommand)]
pub enum Lab {
    Reproduce(Reproduce),
    Sim(Sim),
    Advise(Advise),
}

impl Lab {
    /// Whether the verb has its own display, which log lines would disturb.
    #[must_use]
    pub fn has_display(&self) -> bool {
        matches!(self, Lab::Reproduce(Reproduce { real: true, .. }))
    }

    /// Whether its result has rows.
    #[must_use]
    pub fn has_rows(&self) -> bool {
        matches!(self, Lab::Reproduce(Reproduce { real: false, .. }))
    }
}
