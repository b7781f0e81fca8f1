//! Background agents for coding agents: a daemon that launches agents, survives crashes, and notifies each
//! parent once.
//!
//! The modules are listed in reading order, lowest layer first; a module knows only modules of its own band
//! and below it. `tests/it/layers.rs` has the exact table and fails the build when an import climbs.

// Decide: pure functions and data; no async, no clock, no IO.
pub mod backoff;
pub mod quote;
pub mod sse;
pub mod task;
pub mod text;
pub mod transcript;

pub mod fork;
pub mod notice;

// Do: the store, the hosts where agents run, and the supervisor that connects them.
pub mod auth;
pub mod claim;
pub mod clock;
pub mod feed;
pub mod metrics;
pub mod net;
pub mod notify;
pub mod private_file;
pub mod process;
pub mod sandbox;
pub mod store;
pub mod threads;
pub mod trust;

pub mod agent;

pub mod host;

pub mod supervisor;

// Speak: the HTTP API, its JSON, its client, and the tools that agents call.
pub mod wire;

pub mod tools;

pub mod http;

pub mod client;

// Compose: configuration, the daemon that wires it all, MCP over stdio, the command line.
pub mod config;

pub mod daemon;

pub mod mcp;

pub mod cli;
