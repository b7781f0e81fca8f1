//! What the tests share.

mod model_server;
pub mod process;
mod world;

pub use model_server::{Asked, ModelServer};
pub use world::{World, caller, order, settings};
