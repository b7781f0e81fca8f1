//! What the tests share.

mod model_server;
pub mod process;
pub mod web;
mod world;

pub use model_server::{Asked, ModelServer};
pub use world::{World, caller, order, settings};
