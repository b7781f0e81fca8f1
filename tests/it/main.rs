//! All integration tests in one binary, so that there is one link step.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, unreachable_pub)]

mod layers;
mod support;

mod agent;
mod cli;
mod daemon;
mod host;
mod http;
mod mcp;
mod process;
mod sandbox;
mod store;
mod supervisor;
mod tools;
