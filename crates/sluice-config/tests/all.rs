//! The tests of the host file, in one program: it is linked once.

mod changes;
mod errors;
mod examples;
mod mutated;
mod schema;
