//! `asyncagents demo`: three background agents in the current directory, on the offline explorer: no key, no server, no
//! network. Then three more, whose daemon is killed while they work, to show that nothing is lost.
//!
//! It has a storage directory of its own, with a daemon and a port of its own, so that it never touches real work. All
//! of it is removed at the end, also after Ctrl-C, and when nobody reads the output any more (`| head`). Killed with
//! `kill -9`, its daemon ends and removes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

use super::connection::{Connection, connect};
use super::show::{self, BOLD, DIM, GOOD, Kind, Line, LiveFrame, PLAIN, WARNING};
use super::wait::progress;
use super::{here, tasks};
use crate::client::{Client, Stop};
use crate::clock::Clock;
use crate::config::{Environment, Flags, Settings};
use crate::daemon::start;
use crate::task::launch::Arguments;
use crate::task::{Budget, Status};
use crate::text;
use crate::wire::{CallerRequest, CallerView, CancelRequest, LaunchRequest, TaskView};

/// How often the tasks are read and the screen is drawn.
const FRAME: Duration = Duration::from_millis(80);

/// A round ends after this time; in very large directories a search takes longer.
const LONGEST_ROUND: Duration = Duration::from_secs(8);

/// How many lines of a result are shown.
const MOST_LINES: usize = 10;

/// The exit code after Ctrl-C.
const INTERRUPTED: u8 = 130;

/// A longer path would leave no room for the name of a socket.
const LONGEST_TEMPORARY: usize = 60;

/// How the name of its temporary directory begins.
const PREFIX: &str = "aademo";

/// Agent, description, prompt.
type DemoTask = (&'static str, &'static str, &'static str);

const FIRST: [DemoTask; 3] = [
    ("explore", "find where it starts", "Where is main, the entry, and what does it start?"),
    ("explore", "find how errors are treated", "Where is an error, exception or panic raised?"),
    (
        "librarian",
        "read what the docs promise",
        "What does the documentation say about install, usage, license and dependencies?",
    ),
];

const SECOND: [DemoTask; 3] = [
    ("explore", "find the tests", "Where are tests, and what do they assert or expect?"),
    ("explore", "find the configuration", "Where are config, settings, environment and defaults?"),
    ("explore", "find what is unfinished", "Where is a todo, fixme, hack or deprecated thing?"),
];

/// For a directory that has nothing to ask about.
const SAMPLE: [(&str, &str); 4] = [
    (
        "README.md",
        "# Guestbook\n\nUsage: `guestbook NAME` signs the book. Install it with `cargo install --path .`.\n\
         License: MIT. Dependencies: none.\n",
    ),
    (
        "src/main.rs",
        "//! The entry: reads the name, signs the book.\n\nmod book;\n\nfn main() {\n    \
         let name = std::env::args().nth(1).expect(\"usage: guestbook NAME\");\n    \
         if let Err(error) = book::sign(&name) {\n        eprintln!(\"error: {error}\");\n        \
         std::process::exit(1);\n    }\n}\n",
    ),
    (
        "src/book.rs",
        "/// Default settings; TODO: read them from the environment.\nconst FILE: &str = \"guestbook.txt\";\n\n\
         pub fn sign(name: &str) -> Result<(), String> {\n    if name.is_empty() {\n        \
         return Err(\"error: a name is needed\".into());\n    }\n    \
         std::fs::write(FILE, name).map_err(|error| error.to_string())\n}\n",
    ),
    (
        "tests/sign.rs",
        "#[test]\nfn an_empty_name_is_an_error() {\n    assert!(guestbook::sign(\"\").is_err());\n}\n",
    ),
];

#[derive(Args)]
#[command(after_help = "\
It needs no key, no server and no network: its agents use the offline explorer, a rule-based search
instead of a model. It works in a storage directory of its own, with a daemon of its own, and
removes both at the end. For real models set ASYNCAGENTS_MODEL and use `asyncagents run`.

Example:
  cd ~/project && asyncagents demo")]
pub(super) struct Demo {}

impl Demo {
    pub(super) async fn run(self, environment: &Environment) -> anyhow::Result<ExitCode> {
        let place = Place::make(environment)?;
        let interrupted = async {
            let mut terminated = signal(SignalKind::terminate())?;
            let mut hung_up = signal(SignalKind::hangup())?;
            tokio::select! {
                pressed = tokio::signal::ctrl_c() => pressed,
                _ = terminated.recv() => Ok(()),
                _ = hung_up.recv() => Ok(()),
            }
        };
        let shown = tokio::select! {
            shown = place.show() => Some(shown),
            signal = interrupted => signal.context("cannot wait for Ctrl-C").err().map(Err),
        };
        // Whatever has failed, the daemon and the directory go first.
        let Some(shown) = shown else {
            let cancelled = place.cancel_all().await;
            place.remove().await?;
            let cancelled = cancelled?;
            show::note(&format!(
                "\ninterrupted: {} stopped, the demo's daemon stopped, its files removed",
                show::counted(cancelled as u64, "task")
            ));
            return Ok(ExitCode::from(INTERRUPTED));
        };
        let removed = place.remove().await;
        let outcome = shown?;
        removed?;
        match outcome {
            Outcome::AllCompleted => {
                suggest()?;
                Ok(ExitCode::SUCCESS)
            }
            Outcome::SomeFailed => Ok(ExitCode::FAILURE),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    AllCompleted,
    SomeFailed,
}

/// Where a demo takes place.
struct Place {
    settings: Settings,
    workspace: String,
    root: TempDir,
}

impl Place {
    fn make(environment: &Environment) -> anyhow::Result<Place> {
        let temporary = std::env::temp_dir();
        let temporary = match temporary.as_os_str().len() {
            ..=LONGEST_TEMPORARY => temporary,
            _ => PathBuf::from("/tmp"),
        };
        let root = tempfile::Builder::new().prefix(PREFIX).tempdir_in(temporary);
        let root = root.context("cannot make a temporary directory for the demo")?;
        // Empty, so that the user's own is not read.
        let config = root.path().join("config.toml");
        fs::write(&config, "").context("cannot write into the temporary directory")?;
        let flags = Flags {
            home: Some(root.path().join("home")),
            config: Some(config),
            ..Flags::default()
        };
        let settings = Settings::resolve(&environment.apart(), &flags)?;
        let settings = Settings { tied_directory: Some(root.path().to_owned()), ..settings };
        let workspace = match is_empty(Path::new(&here()?)) {
            true => sample(&root.path().join("guestbook"))?,
            false => here()?,
        };
        Ok(Place { settings, workspace, root })
    }

    async fn show(&self) -> anyhow::Result<Outcome> {
        let connection = connect(&self.settings).await?;
        let round = Round::new(&connection, &self.workspace, &self.settings.home);
        heading(&format!("Three background agents look around in {}", self.workspace))?;
        let ids = round.launch(&FIRST).await?;
        let first = round.watch(&ids).await?;
        for task in &first {
            print_result(task)?;
        }
        heading("Three more, and their daemon is killed while they work")?;
        let ids = round.launch(&SECOND).await?;
        let killed = self.kill_daemon(&connection, &ids).await?;
        let second = round.watch(&ids).await?;
        let health = connection.call(Client::health).await?;
        let completed = second.iter().filter(|task| is_completed(task)).count();
        let is_lost = second.len() != ids.len() || health.pid == killed;
        anyhow::ensure!(!is_lost, "the daemon that was killed has not been replaced");
        let line = Line::new(GOOD.bold(), "Nothing was lost: ").with(
            PLAIN,
            &format!(
                "daemon {} replaced {killed}, {completed} of {} completed, each reported once.",
                health.pid,
                show::counted(ids.len() as u64, "task"),
            ),
        );
        show::print(&line)?;
        Ok(match first.iter().chain(&second).all(is_completed) {
            true => Outcome::AllCompleted,
            false => Outcome::SomeFailed,
        })
    }

    /// `kill -9`; returns the pid of the daemon that is gone.
    async fn kill_daemon(
        &self,
        connection: &Connection<'_>,
        ids: &[String],
    ) -> anyhow::Result<u32> {
        let health = connection.call(Client::health).await?;
        let tasks = read(connection, ids).await?;
        let at_work = tasks.iter().filter(|task| !tasks::is_over(task)).count();
        let pid = i32::try_from(health.pid).ok().and_then(Pid::from_raw);
        let pid = pid.context("the daemon has no process id")?;
        kill_process(pid, Signal::KILL).context("cannot kill the demo's daemon")?;
        let line = Line::new(WARNING.bold(), &format!("kill -9 {}", health.pid))
            .with(PLAIN, &format!(" while {at_work} of {} agents were at work", ids.len()));
        show::print(&line)?;
        show::line("")?;
        Ok(health.pid)
    }

    /// Stops what is at work; returns how many that were. A daemon that is just being started is waited for: it would
    /// otherwise come up after everything was removed.
    async fn cancel_all(&self) -> anyhow::Result<usize> {
        let connection = connect(&self.settings).await?;
        let caller = CallerView { session_id: PARENT.to_owned(), ..CallerView::default() };
        let request = CancelRequest { caller, all: true, ..CancelRequest::default() };
        let view = connection.call(async |client| client.cancel(&request).await).await?;
        Ok(view.cancelled.len())
    }

    async fn remove(self) -> anyhow::Result<()> {
        if start::stop(&self.settings, Stop::ForGood).await.is_err()
            && let Some(daemon) = self.listener().await
        {
            kill_process(daemon, Signal::KILL).context("cannot kill the demo's daemon")?;
        }
        self.root.close().context("cannot remove the demo's temporary directory")
    }

    /// The process that listens on the daemon's socket, also when it does not answer. The kernel names it: a process id
    /// in a file could by now be that of another process.
    async fn listener(&self) -> Option<Pid> {
        let stream = UnixStream::connect(start::socket(&self.settings.home)).await.ok()?;
        Pid::from_raw(stream.peer_cred().ok()?.pid()?)
    }
}

const PARENT: &str = "demo";

/// Launches agents and watches them.
struct Round<'a> {
    connection: &'a Connection<'a>,
    parent: CallerView,
    home: &'a Path,
}

impl<'a> Round<'a> {
    fn new(connection: &'a Connection<'a>, workspace: &str, home: &'a Path) -> Round<'a> {
        let parent = CallerView {
            session_id: PARENT.to_owned(),
            directory: workspace.to_owned(),
            ..CallerView::default()
        };
        Round { connection, parent, home }
    }

    async fn launch(&self, tasks: &[DemoTask]) -> anyhow::Result<Vec<String>> {
        let mut ids = Vec::new();
        for (agent, description, prompt) in tasks {
            let request = LaunchRequest {
                caller: self.parent.clone(),
                arguments: Arguments {
                    description: Some((*description).into()),
                    prompt: Some((*prompt).into()),
                    agent: Some((*agent).into()),
                    // Pinned, whatever an agent's file says: a demo must not cost anything.
                    host: Some("embedded".into()),
                    model: Some("offline/explorer".into()),
                    budget: Some(Budget {
                        wall_seconds: Some(LONGEST_ROUND.as_secs()),
                        ..Budget::default()
                    }),
                    ..Arguments::default()
                },
                key: Some(Clock::system().nonce()),
                ..LaunchRequest::default()
            };
            let task = self.connection.call(async |client| client.launch(&request).await).await?;
            ids.push(task.session_id);
        }
        Ok(ids)
    }

    /// Where the same can be seen in a browser. Only drawn, never printed: the address ends with the daemon.
    fn dashboard(&self) -> Option<Line> {
        let server = start::server(self.home)?;
        Some(Line::new(DIM, &format!("in a browser, while this runs: {}/", server.url)))
    }

    /// Draws the tasks until all of them have ended, and prints notices as they arrive.
    async fn watch(&self, ids: &[String]) -> anyhow::Result<Vec<TaskView>> {
        let mut live = LiveFrame::on_stdout();
        let began = Instant::now();
        let mut printed = 0;
        // Polls, unlike `wait`: the lines are drawn again with every frame anyway.
        loop {
            let tasks = read(self.connection, ids).await?;
            let request = CallerRequest { caller: self.parent.clone() };
            let call = async |client: &Client| client.read_mailbox(&request).await;
            let notices = self.connection.call(call).await?.notices;
            // Before the screen is cleared, so that it is blank for as short a time as can be.
            let mut lines = progress(&tasks, tasks::now());
            lines.extend(self.dashboard());
            if let Some(live) = &mut live {
                live.clear();
            }
            printed += notices.len();
            for notice in notices {
                print_notice(&notice.visible)?;
            }
            // The notice is written with the end, and handed out a moment later.
            if tasks.iter().all(tasks::is_over) && printed >= ids.len() {
                anyhow::ensure!(
                    printed == ids.len(),
                    "received {} for {}",
                    show::counted(printed as u64, "notice"),
                    show::counted(ids.len() as u64, "task")
                );
                return Ok(tasks);
            }
            if let Some(live) = &mut live {
                live.draw(&lines);
            }
            anyhow::ensure!(
                began.elapsed() < 2 * LONGEST_ROUND,
                "the demo's agents have not ended after {} seconds",
                2 * LONGEST_ROUND.as_secs()
            );
            tokio::time::sleep(FRAME).await;
        }
    }
}

async fn read(connection: &Connection<'_>, ids: &[String]) -> anyhow::Result<Vec<TaskView>> {
    let mut tasks = Vec::with_capacity(ids.len());
    for id in ids {
        tasks.push(connection.call(async |client| client.task(id).await).await?);
    }
    Ok(tasks)
}

fn is_completed(task: &TaskView) -> bool {
    task.status == Status::Completed
}

/// Removes the directory of a demo that was killed, and no other: `home` was the demo's storage directory.
pub(super) fn remove_left(directory: &Path, home: &Path) -> std::io::Result<()> {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    match name.starts_with(PREFIX) && home.parent() == Some(directory) {
        true => fs::remove_dir_all(directory),
        false => Ok(()),
    }
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

/// Writes the sample project; returns where it is.
fn sample(root: &Path) -> anyhow::Result<String> {
    for (name, contents) in SAMPLE {
        let file = root.join(name);
        let written = file.parent().map_or(Ok(()), fs::create_dir_all);
        written
            .and_then(|()| fs::write(&file, contents))
            .with_context(|| format!("cannot write `{}`", file.display()))?;
    }
    Ok(root.display().to_string())
}

fn heading(text: &str) -> anyhow::Result<()> {
    show::print(&Line::new(BOLD, text))?;
    show::line("")
}

fn print_notice(text: &str) -> anyhow::Result<()> {
    let none = Line::default();
    let (mark, text) = match text.strip_prefix("✓ ") {
        Some(rest) => (Line::new(GOOD, "✓ "), rest),
        None => (none.clone(), text),
    };
    let lines = show::body(text, Kind::Markdown, show::Screen::stdout().width, &mark, &none);
    lines.iter().try_for_each(show::print)?;
    show::line("")
}

fn print_result(task: &TaskView) -> anyhow::Result<()> {
    let title = Line::new(BOLD, &task.description)
        .with(DIM, &format!(" ({}, {})", task.agent, task.short_id));
    show::print(&title)?;
    let text = task.result.as_ref().or(task.error.as_ref()).map_or("(no output)", String::as_str);
    let lines: Vec<&str> = text.lines().collect();
    let hidden = lines.len().saturating_sub(MOST_LINES);
    let shown = lines.iter().take(MOST_LINES).copied().collect::<Vec<_>>().join("\n");
    show::framed_markdown("written by the agent", text::head(&shown, 4_000))?;
    if hidden > 0 {
        let more = format!("… and {}", show::counted(hidden as u64, "more line"));
        show::print(&Line::new(DIM, &more))?;
    }
    show::line("")
}

fn suggest() -> anyhow::Result<()> {
    show::line("\nThe demo's daemon is stopped and its files are removed. Where to look next:")?;
    for (command, what) in [
        ("asyncagents run --follow --agent explore '…'", "an agent of your own, here"),
        ("asyncagents dash", "what your agents do, in a browser"),
        ("asyncagents mcp install --help", "for Claude Code, Codex and others"),
    ] {
        let line = Line::new(BOLD, &format!("  {command:<46}")).with(DIM, what);
        show::print(&line)?;
    }
    Ok(())
}
