//! The tests of observation, in one program: it is linked once.

mod common;

mod causes;
mod changes;
mod edges;
mod kept;
mod links;
mod named;
mod pool;
