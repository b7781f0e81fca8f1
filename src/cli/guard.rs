//! `asyncagents __guard` and `asyncagents __confine`: not for people. The daemon starts every command of an
//! agent through the first, and with Landlock also through the second.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::process::{self, guard};
use crate::sandbox;

/// Runs a guard, or what a guard starts, if the arguments ask for one; they are not parsed and nothing is
/// configured.
pub fn guard(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let verb = arguments.nth(1)?;
    if verb == process::VERB {
        // Standard error belongs to the command, and nobody is there to read it.
        return Some(guard::run(sandbox::repair).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS));
    }
    if verb != sandbox::VERB {
        return None;
    }
    match sandbox::confine(arguments) {
        Ok(version) => println!("{version}"),
        Err(why) => {
            eprintln!("asyncagents: the sandbox could not be set up: {why}");
            return Some(ExitCode::FAILURE);
        }
    }
    Some(ExitCode::SUCCESS)
}
