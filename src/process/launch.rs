//! The daemon's side of a guard: start it, write it down, give it its order, renew its lease, and see
//! to it that nothing is left, also when the guard itself is killed.

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

use super::peer::Counted;
use super::protocol::{Cause, Order, RENEWAL, Report};
use super::sweep::{Record, sweep};
use super::{KILL_LIMIT, VERB};

/// A lease is renewed this often before it would expire.
const RENEWALS: u32 = 6;
/// A guard that was told to kill and says nothing for so long is stopped or stuck.
const PATIENCE: Duration = KILL_LIMIT.saturating_add(Duration::from_secs(1));

/// Where guards are written down, so that the next daemon can finish what this one could not.
pub trait Journal: Send + Sync {
    /// Resolves when the record is on disk. The command is not started before that.
    fn record(&self, record: &Record) -> BoxFuture<'static, Result<(), String>>;
    /// Everything is gone.
    fn erase(&self, record: &Record);
}

/// Starts commands under guards. Clones share the journal.
#[derive(Clone)]
pub struct Launcher {
    program: PathBuf,
    lease: Duration,
    environment: Variables,
    journal: Arc<dyn Journal>,
}

/// Names and values.
pub type Variables = Arc<Vec<(OsString, OsString)>>;

#[derive(Debug)]
pub struct Command {
    pub program: String,
    pub arguments: Vec<String>,
    pub directory: PathBuf,
    /// Added to what every command gets.
    pub environment: Vec<(String, String)>,
    /// Takes standard output and standard error.
    pub output: OwnedFd,
    /// The guard ends the command when it has more processes and threads than this, which takes a moment;
    /// 0 is no limit. For where the kernel's own limit does not hold.
    pub processes: u64,
    /// Given to whoever finishes the command in its guard ([`super::guard::run`]) when nothing of it is
    /// left, also when the daemon is gone by then. Empty is nothing.
    pub afterwards: String,
}

/// A command under a guard. Dropping it kills everything.
#[derive(Debug)]
pub struct Process {
    kill: CancellationToken,
    report: oneshot::Receiver<Report>,
    _kill_on_drop: DropGuard,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the directory `{}` does not exist", .0.display())]
    NoDirectory(PathBuf),
    #[error(
        "cannot start `{}`, the program that commands are started through; was asyncagents \
         uninstalled? restart the daemon with `asyncagents daemon stop`", .program.display()
    )]
    NoGuard {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Launcher {
    /// `program` is this program, or another one that becomes a guard when its argument is [`VERB`].
    /// `environment` is all that commands get of it: nothing is inherited.
    pub fn new(
        program: PathBuf,
        lease: Duration,
        environment: Variables,
        journal: Arc<dyn Journal>,
    ) -> Launcher {
        Launcher { program, lease, environment, journal }
    }

    /// Returns at once; whether the command could be started is in the report.
    pub fn start(&self, command: Command) -> Result<Process, Error> {
        // Before there is anything to be looked for.
        let counted = Counted::one();
        let (guard, socket) =
            self.spawn(&command).map_err(|source| match command.directory.is_dir() {
                false => Error::NoDirectory(command.directory.clone()),
                true => Error::NoGuard { program: self.program.clone(), source },
            })?;
        let Command { program, arguments, output, processes, afterwards, .. } = command;
        // Else we would keep whoever reads it from seeing its end.
        drop(output);
        let kill = CancellationToken::new();
        let (reporting, report) = oneshot::channel();
        let order = Order {
            program,
            arguments,
            marker: String::new(),
            lease: self.lease,
            processes,
            afterwards,
        };
        let mut started = Started {
            _counted: counted,
            guard,
            socket,
            kill: kill.clone(),
            lease: self.lease,
            journal: Arc::clone(&self.journal),
        };
        // A task of its own, because it has to be finished whoever stops waiting for it.
        tokio::spawn(async move {
            let _ = reporting.send(started.run(order).await);
            // A guard that was given no order waits for the end of the stream.
            drop(started.socket);
            // Reaped last: as long as the guard is a zombie, its id still names its session.
            let _ = tokio::time::timeout(PATIENCE, started.guard.wait()).await;
        });
        Ok(Process { _kill_on_drop: kill.clone().drop_guard(), kill, report })
    }

    /// Both ends of the socket are close-on-exec, and the command gets another standard input: no one
    /// but the daemon can keep the guard from seeing the end of the stream.
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
    /// Everything the command started is killed; [`Process::report`] resolves when it is gone.
    pub fn kill(&self) {
        self.kill.cancel();
    }

    /// Resolves when the command has ended and nothing it started is left, or nothing that could be
    /// killed in time. To be awaited once.
    pub async fn report(&mut self) -> Report {
        let lost = |_| Report::of(Cause::GuardLost);
        (&mut self.report).await.unwrap_or_else(lost)
    }
}

struct Started {
    _counted: Counted,
    guard: Child,
    socket: tokio::net::UnixStream,
    kill: CancellationToken,
    lease: Duration,
    journal: Arc<dyn Journal>,
}

impl Started {
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
            left => tracing::error!(pids = ?left, "command cannot be killed; it stays on record"),
        }
        report
    }

    /// `None` when the guard ended without a report, or does not react any more.
    async fn follow(&mut self, order: &Order) -> Option<Report> {
        let order = order.encode();
        let sent = tokio::select! {
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
        let patience = sleep_until(Instant::now());
        tokio::pin!(patience);
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
                    patience.as_mut().reset(Instant::now() + PATIENCE);
                    let _ = self.socket.shutdown().await;
                }
                () = &mut patience, if killing => return None,
                _ = renewal.tick(), if !killing => {
                    // A full buffer means that the guard is stopped; it will find enough of them.
                    let _ = self.socket.try_write(&[RENEWAL]);
                }
            }
        }
    }
}

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
