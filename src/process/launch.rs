//! The daemon's side of a guard: start it, record it in a journal on disk (before the command exists, so
//! that the next daemon can find it after a crash), send it its order, renew its lease and wait for its
//! report. A guard that dies or does not react is swept: everything below it is killed from here.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::peer::GuardCount;
use super::protocol::{Cause, Order, RENEWAL, Report};
use super::sweep::{Record, sweep};
use super::{KILL_LIMIT, VERB};

/// How many renewals are sent per lease: five may be lost or late before it expires.
const RENEWALS: u32 = 6;
/// A guard that was told to kill and has not reported after this long is stopped (SIGSTOP) or stuck.
const GUARD_TIMEOUT: Duration = KILL_LIMIT.saturating_add(Duration::from_secs(1));

/// The journal of running guards, so that the next daemon can kill what this one could not.
pub trait Journal: Send + Sync {
    /// Resolves when the record is on disk. The command is not started before that.
    fn record(&self, record: &Record) -> BoxFuture<'static, Result<(), String>>;
    /// Called when no process of the command is left.
    fn erase(&self, record: &Record);
}

/// Starts commands under guards. Clones share the journal.
#[derive(Clone)]
pub struct Launcher {
    program: PathBuf,
    lease: Duration,
    environment: Variables,
    journal: Arc<dyn Journal>,
    /// The tasks that see commands to their end.
    watchers: TaskTracker,
}

/// Environment variables: names and values.
pub type Variables = Arc<Vec<(OsString, OsString)>>;

/// What to run.
#[derive(Debug)]
pub struct Command {
    pub program: String,
    pub arguments: Vec<String>,
    pub directory: PathBuf,
    /// In addition to the launcher's environment.
    pub environment: Vec<(String, String)>,
    /// Takes standard output and standard error.
    pub output: OwnedFd,
    /// The guard kills the command when it has more processes and threads than this; 0 is no limit. It
    /// polls, so the limit can be exceeded for a moment. For where the kernel's own limit does not hold.
    pub processes: u64,
    /// Passed to the clean-up function of the guard ([`super::guard::run`]) when no process of the
    /// command is left, even if the daemon is gone by then. Empty for none.
    pub cleanup: String,
}

/// A running command under its guard. Dropping it kills everything the command started.
#[derive(Debug)]
pub struct Process {
    kill: CancellationToken,
    report: oneshot::Receiver<Report>,
    _kill_on_drop: DropGuard,
}

/// Why no guard could be started. That the command itself cannot be started is in its [`Report`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the directory `{}` does not exist", .0.display())]
    NoDirectory(PathBuf),
    #[error(
        "cannot start `{}`, the program that starts agents' commands; was asyncagents uninstalled? \
         run `asyncagents daemon restart`", .program.display()
    )]
    NoGuard {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Launcher {
    /// `program` is this binary, or another that becomes a guard when its argument is [`VERB`].
    /// `environment` is the whole environment of commands: nothing is inherited from the daemon, which
    /// has keys in its own.
    pub fn new(
        program: PathBuf,
        lease: Duration,
        environment: Variables,
        journal: Arc<dyn Journal>,
    ) -> Launcher {
        Launcher { program, lease, environment, journal, watchers: TaskTracker::new() }
    }

    /// Commands are seen to their end by tasks of this tracker, so that its owner can wait until they are killed
    /// and cleaned up after.
    pub fn tracked_by(self, watchers: &TaskTracker) -> Launcher {
        Launcher { watchers: watchers.clone(), ..self }
    }

    /// Returns at once; whether the command could be started is in the report.
    pub fn start(&self, command: Command) -> Result<Process, Error> {
        // Before the guard exists: `commands_run` must never miss a command that can connect already.
        let counted = GuardCount::one();
        let (guard, socket) =
            self.spawn(&command).map_err(|source| match command.directory.is_dir() {
                false => Error::NoDirectory(command.directory.clone()),
                true => Error::NoGuard { program: self.program.clone(), source },
            })?;
        let Command { program, arguments, output, processes, cleanup, .. } = command;
        // While we hold a writer, the reader of the pipe would never see its end.
        drop(output);
        let kill = CancellationToken::new();
        let (reporting, report) = oneshot::channel();
        let order = Order {
            program,
            arguments,
            marker: String::new(),
            lease: self.lease,
            processes,
            cleanup,
        };
        let mut started = RunningGuard {
            _counted: counted,
            guard,
            socket,
            kill: kill.clone(),
            lease: self.lease,
            journal: Arc::clone(&self.journal),
        };
        // Not aborted with `Process`: dropping that only cancels `kill`, and the clean-up must go on.
        self.watchers.spawn(async move {
            let _ = reporting.send(started.run(order).await);
            // A guard that got no order is still reading; the end of the stream makes it exit.
            drop(started.socket);
            // Reaped last: while the guard is a zombie its process id cannot be reused, so the sweep's
            // comparison of session ids cannot hit a stranger.
            let _ = tokio::time::timeout(GUARD_TIMEOUT, started.guard.wait()).await;
        });
        Ok(Process { _kill_on_drop: kill.clone().drop_guard(), kill, report })
    }

    /// Both ends of the socket are close-on-exec, and the command gets another standard input: so no
    /// process but the daemon holds our end open, and its death is the end of the stream for the guard.
    fn spawn(&self, command: &Command) -> io::Result<(Child, tokio::net::UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let ours = tokio::net::UnixStream::from_std(ours)?;
        let mut guard = tokio::process::Command::new(&self.program);
        guard.arg0("asyncagents").arg(VERB).current_dir(&command.directory);
        guard.env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)));
        guard.envs(command.environment.iter().map(|(name, value)| (name, value)));
        guard.stdin(OwnedFd::from(theirs));
        guard.stdout(command.output.try_clone()?).stderr(command.output.try_clone()?);
        Ok((guard.spawn()?, ours))
    }
}

impl fmt::Debug for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launcher").field("program", &self.program).finish_non_exhaustive()
    }
}

impl Process {
    /// Kills everything the command started; [`Process::report`] resolves when all of it is gone.
    pub fn kill(&self) {
        self.kill.cancel();
    }

    /// Resolves when the command has ended and nothing it started is left, except for processes that
    /// could not be killed in time. Must be awaited only once.
    pub async fn report(&mut self) -> Report {
        let lost = |_| Report::of(Cause::GuardLost);
        (&mut self.report).await.unwrap_or_else(lost)
    }
}

/// A guard process, from its start until it is reaped.
struct RunningGuard {
    _counted: GuardCount,
    guard: Child,
    socket: tokio::net::UnixStream,
    kill: CancellationToken,
    lease: Duration,
    journal: Arc<dyn Journal>,
}

impl RunningGuard {
    async fn run(&mut self, mut order: Order) -> Report {
        let not_started = |why: String| Report::of(Cause::NotStarted(why));
        let pid = self.guard.id().unwrap_or_default().cast_signed();
        let record = match Record::of(pid) {
            Ok(record) => record,
            Err(error) => return not_started(format!("its guard cannot be watched: {error}")),
        };
        if let Err(error) = self.journal.record(&record).await {
            return not_started(format!("it could not be recorded first: {error}"));
        }
        order.marker = record.marker.clone();
        let report = match self.follow(&order).await {
            Some(report) => report,
            None => {
                tracing::warn!(guard = pid, "guard ended without a report; killing its command");
                remove(record.clone()).await
            }
        };
        match report.left.as_slice() {
            [] => self.journal.erase(&record),
            left => tracing::error!(
                guard = pid,
                pids = ?left,
                "command processes survived SIGKILL; the record is kept and the next daemon start \
                 tries again"
            ),
        }
        report
    }

    /// Sends the order and waits for the report. `None` when the guard ended without one, or no longer
    /// reacts after it was told to kill.
    async fn follow(&mut self, order: &Order) -> Option<Report> {
        let order = order.encode();
        let sent = tokio::select! {
            // Cancelled before the order was out: then the command is never started.
            biased;
            () = self.kill.cancelled() => false,
            sent = self.socket.write_all(&order) => sent.is_ok(),
        };
        if !sent {
            let _ = self.socket.shutdown().await;
        }
        let mut said = Vec::new();
        let mut renewal = tokio::time::interval(self.lease / RENEWALS);
        let mut killing = false;
        let deadline = sleep_until(Instant::now());
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                read = self.socket.read_buf(&mut said) => match read {
                    Ok(0) | Err(_) => return None,
                    Ok(1..) => if let Some(report) = Report::decode(&said) {
                        return Some(report);
                    },
                },
                () = self.kill.cancelled(), if !killing => {
                    killing = true;
                    deadline.as_mut().reset(Instant::now() + GUARD_TIMEOUT);
                    let _ = self.socket.shutdown().await;
                }
                () = &mut deadline, if killing => return None,
                _ = renewal.tick(), if !killing => {
                    // A full buffer means that the guard is stopped; what it finds there when it goes on
                    // renews the lease as well.
                    let _ = self.socket.try_write(&[RENEWAL]);
                }
            }
        }
    }
}

/// Kills what is left of a command whose guard is lost. On a blocking thread: it polls `/proc`.
async fn remove(record: Record) -> Report {
    let pid = record.pid;
    let swept = tokio::task::spawn_blocking(move || sweep(&record)).await;
    let left = match swept {
        Ok(Ok(())) => Vec::new(),
        Ok(Err(survivors)) => survivors.0,
        Err(_) => vec![pid],
    };
    Report { left, ..Report::of(Cause::GuardLost) }
}
