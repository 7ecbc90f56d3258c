//! Any bytes as a sequence of calls to gates: schedulers, policies, requests, clients, devices and time.
//!
//! The first byte chooses between two kinds of runs. In a free run anything may happen in any order. The contract of
//! every scheduler is checked ([`gate::watched`], [`gate::ledger`]). In a regular run the device keeps its capacity,
//! clients report truthfully, and the reservations fit. There each backlogged VM must get its reservation
//! ([`gate::regular`]).
//!
//! Each input runs twice, and both runs must do the same. With `SLUICE_FUZZ_PRINT` set, the first run prints its
//! actions.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "gate/mod.rs"]
mod gate;

fuzz_target!(|data: &[u8]| gate::run(data));
