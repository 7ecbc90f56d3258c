//! The tests of the laboratory that compute, in one program: it is linked once.

#[path = "../../sluice/tests/common/mod.rs"]
mod common;

mod advise;
mod kept;
mod quick;
mod reproduce;
mod sim;
