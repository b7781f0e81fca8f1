//! The command line as a person or a script uses it: the built program, its output and exit codes.

mod agents;
mod answer;
mod auth;
mod conversation;
mod daemon;
mod doctor;
mod json;
mod mcp_install;
mod rendering;
mod screen;
mod spoofing;
mod trust;
mod verbs;
mod versions;
