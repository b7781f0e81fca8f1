//! Background agents for coding agents. The modules in reading order, lowest first.

// decide: no async, no clock, no IO
pub mod backoff;
pub mod quote;
pub mod sse;
pub mod task;
pub mod text;
pub mod transcript;

pub mod fork;
pub mod notice;

// do
pub mod auth;
pub mod claim;
pub mod clock;
pub mod feed;
pub mod metrics;
pub mod net;
pub mod private_file;
pub mod process;
pub mod sandbox;
pub mod store;
pub mod threads;
pub mod trust;

pub mod agent;

pub mod host;

pub mod supervisor;

// speak
pub mod wire;

pub mod tools;

pub mod http;

pub mod client;

// compose
pub mod config;

pub mod daemon;

pub mod mcp;

pub mod cli;
