//! The `bash` tool: a command in the workspace, under a guard, so that nothing it started outlives the
//! call. The sandbox is planned in `confined`, permissions are decided before the call. It ends when the
//! command exits, times out or is cancelled, and returns only when all of its processes are gone.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use self::capture::Capture;
pub(super) use self::confined::leaves;
use super::{Context, Error, Output};
use crate::process::{Cause, Command, Process, Report, Status, Survivors};
use crate::sandbox::Plan;
use crate::text::clip;

mod capture;
mod confined;

const DEFAULT_TIMEOUT: f64 = 120.0;
const LONGEST_TIMEOUT: f64 = 600.0;
/// How long the output is still read after all processes of the command are gone. The pipe may stay open:
/// a process that is not the command's may have inherited it.
const GRACE: Duration = Duration::from_secs(1);

const STOPPED_DAEMON: &str = "killed: the daemon was stopped or stuck for too long to watch over it; \
    see what it has done before you run it again";
const LOST_GUARD: &str = "killed: the process that watched over it was killed, perhaps by the command \
    itself; see what it has done before you run it again";

pub(super) const DESCRIPTION: &str = "\
Run a command with `bash -c` in the workspace's root; every call starts there, in a new shell, \
without a terminal or input. Returns stdout and stderr, interleaved, and the exit code. More than \
30000 characters are cut in the middle and kept whole in a file. When the call ends or its time is \
up, everything the command started is killed, also in the background: start \
a server and use it in the same call. Commands run in a sandbox where the system has one: they write in \
the workspace and in `/tmp`, which is this session's own, and see of the home directory only programs. \
Use the other tools to read, find and change files.";

pub(super) const REQUIRED: &[&str] = &["command"];

pub(super) fn properties() -> Value {
    json!({
        "command": { "type": "string" },
        "timeout": {
            "type": "number", "minimum": 1, "maximum": LONGEST_TIMEOUT, "default": DEFAULT_TIMEOUT,
            "description": "How long it may take, in seconds.",
        },
        "outside": {
            "type": "boolean", "default": false,
            "description": "Run it outside the sandbox. A person is asked each time: only for what \
                cannot work inside.",
        },
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    command: String,
    timeout: Option<f64>,
    outside: Option<bool>,
}

/// What ended the command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Itself,
    TimedOut,
    Cancelled,
}

pub(super) async fn run(arguments: Arguments, context: &Context) -> Result<Output, Error> {
    let seconds = arguments.timeout.unwrap_or(DEFAULT_TIMEOUT).clamp(0.1, LONGEST_TIMEOUT);
    let plan = confined::plan(&arguments, context).await?;
    let (mut process, mut pipe) = start(&plan, context)?;
    let mut capture = Capture::new(&context.overflow, context.output_room.clone());

    let limit = Duration::from_secs_f64(seconds);
    let (end, mut report) = follow(&mut process, &mut pipe, &mut capture, limit, context).await;
    confined::without_its_own(&plan, &mut report);
    let (level, repairs) = (plan.level, confined::repair(plan, &report).await);
    if end == End::Cancelled {
        return Err(Error::Cancelled);
    }
    // What was written last may still be in the pipe.
    let _ = tokio::time::timeout(GRACE, capture.drain(&mut pipe)).await;
    let mut text = capture.finish().await;
    if text.is_empty() {
        text.push_str("(no output)");
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    // `abnormal`: killed through no fault of the command's, and told as an error.
    let (said, abnormal) = match (end, &report.cause) {
        (_, Cause::NotStarted(reason)) => return Err(Error::failed("run", "bash", reason)),
        (End::TimedOut, _) => (timed_out(seconds), false),
        (_, Cause::LeaseExpired) => (STOPPED_DAEMON.to_owned(), true),
        (_, Cause::GuardLost) => (LOST_GUARD.to_owned(), true),
        (_, Cause::TooManyProcesses(limit)) => (too_many_processes(*limit), false),
        (_, Cause::Exited | Cause::Killed) => (ending(report.status), false),
    };
    if let Some(why) = confined::not_set_up(level, &text, report.status) {
        return Err(Error::failed("run", "bash", why));
    }
    let hint = confined::hint(level, &text, report.status);
    let room = confined::room(level, &context.session_sandbox).await;
    text.push_str(&format!("({said}){}{repairs}{hint}{room}", leftovers(&report)));
    if abnormal {
        return Err(Error::Killed { text });
    }
    Ok(Output { text, title: clip(arguments.command.lines().next().unwrap_or_default(), 80) })
}

fn start(plan: &Plan, context: &Context) -> Result<(Process, pipe::Receiver), Error> {
    let failed = |error: io::Error| Error::failed("run", "bash", error);
    // One pipe for standard output and error: with two, their order would be lost.
    let (reader, writer) = io::pipe().map_err(failed)?;
    let pipe = pipe::Receiver::from_owned_fd(reader.into()).map_err(failed)?;
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    // No terminal: programs must neither page their output nor ask for a password.
    let environment = vec![
        set("TERM", "dumb"),
        set("PAGER", "cat"),
        set("GIT_PAGER", "cat"),
        set("GIT_TERMINAL_PROMPT", "0"),
    ];
    let command = Command {
        program: plan.program.clone(),
        arguments: plan.arguments.clone(),
        directory: context.workspace.root().to_owned(),
        environment,
        output: writer.into(),
        processes: plan.processes,
        cleanup: plan.repairs.clone(),
    };
    let process = context.launcher.start(command);
    let process = process.map_err(|error| match error.source() {
        Some(source) => Error::failed("run", "bash", format!("{error}: {source}")),
        None => Error::failed("run", "bash", error),
    })?;
    Ok((process, pipe))
}

/// Reads the output until no process of the command is left. After a time-out or a cancellation it goes
/// on reading, so that the command cannot block on a full pipe while it is killed.
async fn follow(
    process: &mut Process,
    pipe: &mut pipe::Receiver,
    capture: &mut Capture,
    limit: Duration,
    context: &Context,
) -> (End, Report) {
    let timeout = tokio::time::sleep(limit);
    tokio::pin!(timeout);
    let mut buffer = vec![0; 64 * 1024];
    let mut open = true;
    let mut end = End::Itself;
    loop {
        tokio::select! {
            // Cancellation first, then the end, then the time limit: a command that ended in time counts
            // as such even if its output is still being read.
            biased;
            () = context.cancel.cancelled(), if end != End::Cancelled => {
                process.kill();
                end = End::Cancelled;
            }
            report = process.report() => return (end, report),
            () = &mut timeout, if end == End::Itself => {
                process.kill();
                end = End::TimedOut;
            }
            read = pipe.read(&mut buffer), if open => match read {
                Ok(length @ 1..) => capture.add(&buffer[..length]).await,
                Ok(0) | Err(_) => open = false,
            },
        }
    }
}

fn ending(status: Option<Status>) -> String {
    match status {
        Some(Status::Code(code)) => format!("exit code {code}"),
        Some(Status::Signal(signal)) => format!("killed by signal {signal}"),
        None => "killed".to_owned(),
    }
}

fn timed_out(seconds: f64) -> String {
    format!(
        "killed after {seconds} s, its time-out; pass a longer `timeout`, at most \
         {LONGEST_TIMEOUT}, or do it in smaller steps"
    )
}

fn too_many_processes(limit: u64) -> String {
    format!(
        "killed: it had more than {limit} processes and threads, the limit; do it in smaller steps"
    )
}

/// What became of the programs that the shell left running.
fn leftovers(report: &Report) -> String {
    let mut text = match (report.killed, &report.cause) {
        (1, Cause::Exited) => {
            "\n(1 program it left in the background was ended with the call)".to_owned()
        }
        (2.., Cause::Exited) => format!(
            "\n({} programs it left in the background were ended with the call)",
            report.killed
        ),
        _ => String::new(),
    };
    if !report.left.is_empty() {
        text.push_str(&format!("\n({})", Survivors(report.left.clone())));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftover_processes_are_reported_whether_they_could_be_killed_or_not() {
        let report = |cause, killed, left: &[i32]| Report {
            cause,
            status: Some(Status::Code(0)),
            killed,
            left: left.to_vec(),
            cleanup: Vec::new(),
        };
        for (report, expected) in [
            (report(Cause::Exited, 0, &[]), ""),
            (
                report(Cause::Exited, 1, &[]),
                "\n(1 program it left in the background was ended with the call)",
            ),
            (
                report(Cause::Exited, 3, &[7]),
                "\n(3 programs it left in the background were ended with the call)\n\
                 (process 7 could not be killed within 5 s; end it by hand)",
            ),
            (
                report(Cause::Killed, 0, &[7, 8]),
                "\n(processes 7, 8 could not be killed within 5 s; end them by hand)",
            ),
        ] {
            assert_eq!(leftovers(&report), expected);
        }
    }
}
