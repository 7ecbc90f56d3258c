//! The tests of the laboratory that start guests or a browser: they run beside no other test that measures.

#[path = "../../sluice/tests/common/mod.rs"]
mod common;

mod real_guests;
mod real_nics;
mod report_page;
