//! What the tests share.

mod world;

pub use world::{World, caller, order, settings};
