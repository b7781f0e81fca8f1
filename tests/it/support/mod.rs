//! What the tests share.

pub mod process;
mod world;

pub use world::{World, caller, order, settings};
