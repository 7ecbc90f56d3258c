//! What is made of a run: what is printed, and what is written into a folder.

pub(crate) mod summary;
