//! Arguments in, exit code out. Everything else is the library's.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let arguments = asyncagents::cli::Arguments::parse();
    match asyncagents::cli::run(arguments) {
        Ok(code) => code,
        Err(error) => {
            asyncagents::cli::complain(&error);
            ExitCode::FAILURE
        }
    }
}
