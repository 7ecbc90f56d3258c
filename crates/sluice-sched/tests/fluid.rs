//! mClock against a fluid model: random plans of many VMs on one device and on several nodes.
//!
//! The model knows the guarantees and not the implementation. `SLUICE_FLUID_PLANS=20000` runs that many plans and
//! prints the progress; `SLUICE_FLUID_SEED` is the seed of the first, and `SLUICE_FLUID_LENGTH` makes phases longer.

#![allow(unreachable_pub, reason = "modules of one test")]

pub(crate) mod campaign;
pub(crate) mod chance;
pub(crate) mod check;
pub(crate) mod controls;
pub(crate) mod found;
pub(crate) mod generate;
pub(crate) mod holes;
pub(crate) mod holes_dmclock;
pub(crate) mod holes_volumes;
pub(crate) mod model;
pub(crate) mod phase;
pub(crate) mod plan;
pub(crate) mod run;
pub(crate) mod shape;
pub(crate) mod shrink;
pub(crate) mod station;
pub(crate) mod volumes;
pub(crate) mod volumes_model;
pub(crate) mod world;

use self::campaign::Campaign;

#[test]
fn random_plans_on_one_node_get_what_the_fluid_model_says() {
    Campaign::from_environment(300, false).run();
}

#[test]
fn random_plans_on_several_nodes_get_what_the_fluid_model_says() {
    Campaign::from_environment(200, true).run();
}

#[test]
fn random_plans_of_volumes_get_what_the_fluid_model_says() {
    volumes::run(40);
}
