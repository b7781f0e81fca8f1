//! The daemon as a process: start, stop, one per storage directory, configuration that changes.

mod lifetime;
mod reload;
