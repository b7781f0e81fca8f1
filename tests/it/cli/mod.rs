//! The command line as a person or a script uses it: the built program, its output and exit codes.

mod agents;
mod answer;
mod auth;
mod conversation;
mod daemon;
mod doctor;
mod forging;
mod json;
mod looks;
mod mcp_install;
mod screen;
mod trust;
mod verbs;
mod versions;
