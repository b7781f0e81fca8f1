//! All integration tests, in one binary: one link step.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod daemon;
mod faults;
mod layers;
mod store;
mod support;
