//! The program: parses the arguments and turns the outcome into an exit code. Everything else is in the
//! library. The same binary is the command line, the daemon, the MCP server and the guard around commands.

use std::process::ExitCode;

fn main() -> ExitCode {
    // A guard is started for every command an agent runs: it must cost neither argument parsing nor
    // configuration, and its arguments are none of the command line's.
    if let Some(code) = asyncagents::cli::guard(std::env::args_os()) {
        return code;
    }
    asyncagents::cli::run(asyncagents::cli::Arguments::read())
}
