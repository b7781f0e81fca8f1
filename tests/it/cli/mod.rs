//! The command line as a person or a script uses it: the built program, its output and exit codes.

mod agents;
mod auth;
mod forging;
mod mcp_install;
mod trust;
mod verbs;
mod versions;
