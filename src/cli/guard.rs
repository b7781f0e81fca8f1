//! `asyncagents __guard` and `asyncagents __confine`: internal commands. The daemon starts every command of an agent
//! through the first, which kills what the command leaves behind; with Landlock the guard starts the second, which
//! confines itself and becomes the command.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::process::{self, guard};
use crate::sandbox;

/// Runs one of the two if the arguments name it, else returns `None`. Called before arguments are parsed and
/// without any configuration.
pub fn guard(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let verb = arguments.nth(1)?;
    if verb == process::VERB {
        // No message: standard error is the command's, and belongs to the output that the agent sees.
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
