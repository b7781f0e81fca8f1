//! All integration tests, in one binary: one link step.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, unreachable_pub)]

mod layers;
mod support;

mod agents;
mod auth;
mod batches;
mod bounds;
mod calls;
mod cancel;
mod cannot_go_on;
mod clear;
mod cli;
mod commands;
mod daemon;
mod damage;
mod deliver;
mod doors;
mod embedded;
mod ends;
mod events;
mod faults;
mod forging;
mod fork;
mod hostile;
mod hostile_clone;
mod hostile_model;
mod hosts;
mod invariants;
mod kill;
mod launch;
mod list;
mod model_runs;
mod models;
mod opencode;
mod opencode_faults;
mod opencode_stub;
mod output;
mod permissions;
mod processes;
mod prune;
mod queue;
mod real_opencode;
mod reload;
mod resume;
mod scenarios;
mod stalls;
mod status;
mod store;
mod sweep;
mod tools;
mod trust;
mod versions;
mod wait;
mod wire_formats;
