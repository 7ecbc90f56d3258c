//! mClock against a fluid model: random plans of many VMs on one device and on several nodes.
//!
//! The model knows the guarantees and not the implementation. `SLUICE_FLUID_PLANS=20000` runs that many plans and
//! prints the progress; `SLUICE_FLUID_SEED` is the seed of the first, and `SLUICE_FLUID_LENGTH` makes phases longer.

mod fluid {
    #![allow(unreachable_pub, reason = "a module of one test")]
    pub mod campaign;
    pub mod chance;
    pub mod check;
    pub mod controls;
    pub mod found;
    pub mod generate;
    pub mod holes;
    pub mod holes_dmclock;
    pub mod holes_volumes;
    pub mod model;
    pub mod phase;
    pub mod plan;
    pub mod run;
    pub mod shape;
    pub mod shrink;
    pub mod station;
    pub mod volumes;
    pub mod volumes_model;
    pub mod world;
}

use fluid::campaign::Campaign;

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
    fluid::volumes::run(40);
}
