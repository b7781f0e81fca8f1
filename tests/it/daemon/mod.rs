//! The daemon as a process: start, stop, one per storage directory, reloading its configuration.

mod lifetime;
mod reload;
