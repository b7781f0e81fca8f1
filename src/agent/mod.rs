//! The embedded agent: a loop around a model and its tools. It has never heard of tasks.

pub mod definition;
pub mod drive;
pub mod model;
pub mod tools;
pub mod turn;
