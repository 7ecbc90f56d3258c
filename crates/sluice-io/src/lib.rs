pub mod nbd;
pub mod source;
