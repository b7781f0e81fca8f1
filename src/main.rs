//! Arguments in, exit code out. Everything else is the library's.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // Once for every command of an agent, so before anything else is looked at.
    if let Some(code) = asyncagents::cli::guard(std::env::args_os()) {
        return code;
    }
    let arguments = asyncagents::cli::Arguments::parse();
    asyncagents::cli::run(arguments)
}
