//! The long forms of tests that gain from repetition: kills, faults below the daemon, a cluster in trouble.

use std::process::ExitCode;
use std::time::Instant;

use crate::Verb;
use crate::test::{self, Row};

/// Run tests that gain from repetition for long: some hours for all. The last line is `N passed, N failed`.
#[derive(clap::Args)]
pub(crate) struct Campaign {
    /// Run only these rows.
    #[arg(value_name = "ROW", value_parser = clap::builder::PossibleValuesParser::new(ROWS.iter().map(|row| row.module)))]
    only: Vec<String>,
}

/// A module of black-box tests.
struct Long {
    module: &'static str,
    /// What makes it long: of the daemon, of a guest's NIC, of a node and its gateway, of OSDs; rounds of faults.
    variables: &'static [(&'static str, &'static str)],
}

const ROWS: &[Long] = &[
    Long { module: "crash", variables: &[("SLUICE_CRASHES", "200")] },
    Long { module: "state_crash", variables: &[("SLUICE_CRASHES", "300")] },
    Long { module: "network_crash", variables: &[("SLUICE_CRASHES", "50")] },
    Long { module: "nodes", variables: &[("SLUICE_CRASHES", "100")] },
    Long { module: "gateways", variables: &[("SLUICE_CRASHES", "100")] },
    Long { module: "ceph", variables: &[("SLUICE_CRASHES", "100")] },
    Long { module: "campaign", variables: &[("SLUICE_CAMPAIGN_ROUNDS", "500"), ("SLUICE_CAMPAIGN_STALL", "60")] },
];

impl Verb for Campaign {
    const NAME: &'static str = "campaign";

    fn run(self) -> Result<ExitCode, String> {
        let is_chosen = |row: &&Long| self.only.is_empty() || self.only.iter().any(|name| name == row.module);
        let rows = ROWS.iter().filter(is_chosen).map(|long| {
            println!("\n==== {} ====", long.module);
            let start = Instant::now();
            let tally = test::run_long(long.module, long.variables).unwrap_or_else(|error| {
                println!("error: {error}");
                test::Tally::of_preparation(false)
            });
            Row { name: long.module.to_owned(), tally, took: start.elapsed() }
        });
        Ok(test::sum_up(&rows.collect::<Vec<_>>()))
    }
}
