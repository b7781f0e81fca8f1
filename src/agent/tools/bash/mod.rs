//! `bash`: a command in the workspace, in a process group of its own, which does not outlive its
//! time. What it may touch is not decided here.

use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

use self::capture::Capture;
use super::text::clip;
use super::{Context, Error, Output};

mod capture;

const DEFAULT_TIMEOUT: f64 = 120.0;
const LONGEST_TIMEOUT: f64 = 600.0;
/// How long the pipe may stay open after the shell has ended.
const GRACE: Duration = Duration::from_secs(1);
/// Killed processes are gone at once, unless the kernel is stuck with them.
const DYING: Duration = Duration::from_secs(5);

pub(super) const DESCRIPTION: &str = "\
Run a command with `bash -c` in the workspace's root; every call starts there, in a new shell, \
without a terminal or input. Answers what it prints, standard and error output as they come, and \
its exit code. More than 30000 characters are cut in the middle and kept whole in a file. At the \
time-out everything the command started is killed; a program that is to go on must be put into the \
background with its output in a file. Use the other tools to read, find and change files.";

pub(super) const REQUIRED: &[&str] = &["command"];

pub(super) fn properties() -> Value {
    json!({
        "command": { "type": "string" },
        "timeout": {
            "type": "number", "minimum": 1, "maximum": LONGEST_TIMEOUT, "default": DEFAULT_TIMEOUT,
            "description": "How long it may take, in seconds.",
        },
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    command: String,
    timeout: Option<f64>,
}

enum End {
    Exited(ExitStatus),
    TimedOut,
    Cancelled,
}

pub(super) async fn run(arguments: Arguments, context: &Context) -> Result<Output, Error> {
    let seconds = arguments.timeout.unwrap_or(DEFAULT_TIMEOUT).clamp(0.1, LONGEST_TIMEOUT);
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => Error::failed("run", "bash", "it or the workspace does not exist"),
        _ => Error::failed("run", "bash", error),
    };
    let (mut child, mut pipe) = start(&arguments.command, context).map_err(failed)?;
    let mut group = Group::of(&child);
    let mut capture = Capture::new(&context.overflow);

    let limit = Duration::from_secs_f64(seconds);
    let end = follow(&mut child, &mut pipe, &mut capture, limit, context).await.map_err(failed)?;
    match end {
        End::Exited(_) => group.spare(),
        End::TimedOut | End::Cancelled => {
            group.kill();
            let _ = tokio::time::timeout(DYING, child.wait()).await;
        }
    }
    if let End::Cancelled = end {
        return Err(Error::Cancelled);
    }
    let drained = tokio::time::timeout(GRACE, capture.drain(&mut pipe)).await;
    let mut text = capture.finish().await;
    if text.is_empty() {
        text.push_str("(no output)");
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&ending(&end, seconds));
    if drained.is_err() {
        text.push_str(
            "\n(something it started goes on in the background; what that prints is lost)",
        );
    }
    Ok(Output { text, title: clip(arguments.command.lines().next().unwrap_or_default(), 80) })
}

fn start(command: &str, context: &Context) -> io::Result<(Child, pipe::Receiver)> {
    // One pipe for both, or their order would be lost.
    let (reader, writer) = io::pipe()?;
    let pipe = pipe::Receiver::from_owned_fd(reader.into())?;
    let child = Command::new("bash")
        .arg("-c")
        .arg(command)
        .current_dir(context.workspace.root())
        // The daemon's own keys are not the agent's.
        .env_remove("OPENAI_API_KEY")
        .env_remove("ANTHROPIC_API_KEY")
        .env_remove("MALLOC_MMAP_THRESHOLD_")
        .env("TERM", "dumb")
        .env("PAGER", "cat")
        .env("GIT_PAGER", "cat")
        .env("GIT_TERMINAL_PROMPT", "0")
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    Ok((child, pipe))
}

async fn follow(
    child: &mut Child,
    pipe: &mut pipe::Receiver,
    capture: &mut Capture,
    limit: Duration,
    context: &Context,
) -> io::Result<End> {
    let timeout = tokio::time::sleep(limit);
    tokio::pin!(timeout);
    let mut buffer = vec![0; 64 * 1024];
    let mut open = true;
    loop {
        tokio::select! {
            biased;
            () = context.cancel.cancelled() => return Ok(End::Cancelled),
            () = &mut timeout => return Ok(End::TimedOut),
            status = child.wait() => return Ok(End::Exited(status?)),
            read = pipe.read(&mut buffer), if open => match read? {
                0 => open = false,
                length => capture.add(&buffer[..length]).await,
            },
        }
    }
}

fn ending(end: &End, seconds: f64) -> String {
    match end {
        End::Exited(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("(exit code {code})"),
            (None, Some(signal)) => format!("(killed by signal {signal})"),
            (None, None) => format!("({status})"),
        },
        End::TimedOut => format!(
            "(killed after {seconds} s, its time-out; pass a longer `timeout`, at most \
             {LONGEST_TIMEOUT}, or run it in the background with its output in a file)"
        ),
        End::Cancelled => "(cancelled)".to_owned(),
    }
}

/// The shell and what it started. Killed when dropped, unless the shell ended by itself: then its id
/// may soon be somebody else's.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Group {
        Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())))
    }

    fn spare(&mut self) {
        self.0 = None;
    }

    fn kill(&mut self) {
        if let Some(id) = self.0.take() {
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
