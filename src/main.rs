//! Arguments in, exit code out. Everything else is the library's.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // Once for every command of an agent, so before anything else is looked at.
    if let Some(code) = asyncagents::cli::guard(std::env::args_os()) {
        return code;
    }
    let arguments = asyncagents::cli::Arguments::parse();
    match asyncagents::cli::run(arguments) {
        Ok(code) => code,
        Err(error) => {
            // Sources are never repeated in a text, so the chain is the whole story.
            let story: Vec<String> = error.chain().map(ToString::to_string).collect();
            #[expect(clippy::print_stderr, reason = "the one place where a command fails")]
            {
                eprintln!("error: {}", story.join(": "));
            }
            ExitCode::FAILURE
        }
    }
}
