//! `asyncagents __guard`: not for people. The daemon starts every command of an agent through it.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::process::{VERB, guard};

/// Runs a guard if the arguments ask for one; they are not parsed and nothing is configured.
pub fn guard(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    if arguments.nth(1)? != VERB {
        return None;
    }
    match guard::run() {
        Ok(()) => Some(ExitCode::SUCCESS),
        // Standard error belongs to the command, and nobody is there to read it.
        Err(_) => Some(ExitCode::FAILURE),
    }
}
